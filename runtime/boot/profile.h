/* SPDX-License-Identifier: Apache-2.0 */
/* What a rank tells all others through the store: the blobs of the rounds of joining. */
#ifndef HORON_BOOT_PROFILE_H
#define HORON_BOOT_PROFILE_H

#include "boot/connect/handshake.h"
#include "codec.h"
#include "config.h"
#include "status.h"

#include <stdint.h>

#define HORON_PROFILE_SETTINGS_BYTES 4096
#define HORON_PROFILE_SOCKET_BYTES 80

/** What a rank is, and where: what it puts into the first round, and what all keep of it. */
struct horon_profile {
    uint8_t member[HORON_MEMBER_BYTES];
    uint64_t job;  /* random; rank 0's becomes the job's */
    char name[64]; /* of the host, for people */
    /* Hashes; of two that are equal, and not 0: */
    uint64_t kernel;  /* the ranks share the cores of a machine, perhaps in several containers */
    uint64_t machine; /* loopback and abstract sockets lead from one rank to the other */
    uint64_t host;    /* the ranks share memory */
    uint64_t readers; /* they may read each other's memory, too */
    uint64_t group;   /* their memory counts against one control group's limit */
    uint32_t cores;   /* that are online, as this process sees it; 0: not known */
    char socket[HORON_PROFILE_SOCKET_BYTES]; /* abstract unix socket, or "" */
    /* Views, of the answer of a round once they come from there: */
    const char *settings;  /* "NAME=value\n" of all that must agree; of another than rank 0 "" */
    const char *addresses; /* where it listens (horon_addresses_write()); "" if it does not */
};

/** Fills all but job, socket, host, readers and addresses. @param settings for the profile's */
horon_status_t horon_profile_fill(struct horon_profile *profile,
                                  char settings[HORON_PROFILE_SETTINGS_BYTES],
                                  const struct horon_config *config, struct horon_error *error);

/** @param settings also those: rank 0 */
void horon_profile_encode(struct horon_writer *out, const struct horon_profile *profile,
                          bool settings);
/** @return false: the bytes are no profile, of which settings and addresses are views */
bool horon_profile_decode(struct horon_reader *in, struct horon_profile *profile);

/** Sets kernel, the running one, and machine: that, and the calling thread's network namespace.
 * @param proc "/proc", or a directory like it for tests */
void horon_profile_find_machine(struct horon_profile *profile, const char *proc);

/** Sets host: the machine, and the user there, whom the others let in. And readers: the host, and
 * the pid namespace; 0 where the system forbids it. @param proc likewise */
void horon_profile_find_host(struct horon_profile *profile, const char *proc);

/** @param first rank 0's. @return OK | ERR_CONFIG, naming the first setting that differs, with both
 * values */
horon_status_t horon_profile_check_settings(const struct horon_profile *first,
                                            const struct horon_profile *mine, int rank,
                                            struct horon_error *error);

#endif
