/* SPDX-License-Identifier: Apache-2.0 */
/* Whole worlds that join: one thread a rank, in one process. */
#ifndef TEST_BOOTS_H
#define TEST_BOOTS_H

#include "../../count_fds.h"
#include "../../free_port.h"
#include "boot/boot.h"

#include <pthread.h>
#include <stddef.h>

#define BOOT_RANKS_MAX 17
#define BOOT_SETTINGS_MAX 8

struct boots;

/** One rank of the world. */
struct boots_rank {
    struct boots *world;
    int rank;
    pthread_t thread;
    const char *settings[BOOT_SETTINGS_MAX + 1]; /* on top of the world's; first NULL ends them */
    bool absent;                                 /* never starts */
    int size;                                    /* what it takes for the world's; 0: that */
    int limit_ms;                                /* of joining; 0: the world's */
    struct horon_log log;
    struct horon_boot boot;
    horon_status_t status;
    _Atomic bool ended; /* with the status */
    struct horon_error error;
    int warnings;
    char warning[256];   /* the last one */
    _Atomic int slow;    /* warnings that it still waits */
    char waits[512];     /* the first of them */
    _Atomic int arrived; /* ranks that have come to the store, where this one serves it */
};

struct boots {
    int size;
    const char *settings[BOOT_SETTINGS_MAX + 1];
    int limit_ms; /* of joining; 0: what is in the settings, or horon's own */
    size_t control_bytes, arena_bytes;
    int host_ranks_max;
    uint64_t slow_ns;               /* as of horon_boot_caller */
    horon_link_wrap_fn_t wrap;      /* NULL, or of the links of store sessions */
    int (*interrupted)(void *rank); /* NULL, or asked by every rank */
    /* NULL, or called by every rank before it listens to others */
    horon_status_t (*get_ready)(void *rank, int number, struct horon_error *error);
    /* NULL, or called by every rank again and again, once they are connected */
    horon_status_t (*prepare)(void *rank, const struct horon_launcher *launcher, int size,
                              struct horon_error *error);
    struct boots_rank ranks[BOOT_RANKS_MAX];
};

/** A world of @p size ranks with small memory and no settings but STORE=@p store. */
void boots_init(struct boots *world, int size, const char *store);
void boots_setting(struct boots *world, const char *setting);
/** Starts all ranks and waits until each has joined or failed. */
void boots_join(struct boots *world);
/** Joins until rank 0's error has @p said, with all limits four times as long each time: where
 * others have the cores, ranks may not have met within a short one. Gives up after a few. */
void boots_join_until(struct boots *world, const char *said);
/** Ends the boots of all ranks that joined. */
void boots_part(struct boots *world);
/** Asserts that all joined. */
void boots_expect_joined(const struct boots *world);
/** Asserts that all that started failed so, with @p text in what they say, and with the option that
 * bounds joining if it took too long. */
void boots_expect_all_fail(const struct boots *world, horon_status_t status, const char *text);
/** A store of its own for a world: a port, or a directory that ends with it. */
struct place {
    char setting[128]; /* STORE=... */
    char directory[64];
};
void place_tcp(struct place *place);
void place_file(struct place *place);
void place_end(const struct place *place);

/** Makes MASTER_ADDR and MASTER_PORT a port of 127.0.0.1 that another program has: *port_out.
 * @return the other's socket, for untake_master_port() */
int take_master_port(int *port_out);
void untake_master_port(int stranger);
/** Joins ranks as some launcher tells them: the environment has @p variables [count] meanwhile,
 * names and values. */
void boots_join_told(struct boots *world, const char *const (*variables)[2], size_t count);

#endif
