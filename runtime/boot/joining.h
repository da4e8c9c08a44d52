/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Inside of joining: what its phases share. Each function that fails leaves a text in its error. A
 * phase of one rank that fails ends joining for all, by horon_joining_give_up() or in the next
 * round.
 */
#ifndef HORON_BOOT_JOINING_H
#define HORON_BOOT_JOINING_H

#include "boot/boot.h"
#include "boot/card.h"
#include "boot/host.h"
#include "boot/identity.h"
#include "boot/peers.h"
#include "boot/pump.h"
#include "boot/share.h"
#include "boot/store.h"
#include "boot/store_frame.h"

/** Of a rank with others; boot.c lists them. */
#define HORON_JOINING_PHASES 4

/** What is kept of another rank's card. */
struct horon_rank_info {
    char socket[HORON_CARD_SOCKET_BYTES];
    uint64_t group;
    uint32_t cores;
};

/** One rank that joins. Owner: horon_boot(). */
struct horon_joining {
    struct horon_boot *boot;
    const struct horon_config *config;
    const struct horon_boot_caller *caller;
    struct horon_log *log;
    struct horon_identity id;
    struct horon_auth_key key;
    struct horon_pump pump;
    struct horon_timer alarm; /* makes the pump turn at the deadline */
    struct horon_timer tick;  /* and whenever the caller is to be asked whether to go on */
    bool asking;              /* it is time to */
    bool interrupted;         /* the caller does not want to; it is not asked again */
    uint64_t deadline_ns;
    uint64_t begun_ns, phase_end_ns[HORON_JOINING_PHASES]; /* for the log */
    const char *phase;                                     /* "while ...", for texts */
    bool over;                 /* joining has failed, and the others know, or told us */
    bool others_failed;        /* our failure only follows from another rank's */
    struct horon_store *store; /* NULL in a world of one */
    struct horon_hello hello;
    struct horon_card mine;
    int host_listener; /* until the host takes it */
    struct horon_host *host;
    struct horon_share *share;
    struct horon_listeners listeners;
    struct horon_peers *peers;
    /* [size] each */
    struct horon_rank_info *infos;
    struct horon_peer_info *peer_infos;
    char (*names)[64];
    int *leader_of;
    struct horon_addresses *addresses; /* of linked lower ranks; others have none */
    uint8_t blob[HORON_STORE_BLOB_BYTES_MAX];
};

/** The answers of one round; all zero is none. */
struct horon_round {
    struct horon_blobs blobs;
    struct horon_reader *payloads; /* [size] what each rank put, behind how it fared */
};

/** Sets the moment at which waiting ends; UINT64_MAX: never. */
void horon_joining_set_deadline(struct horon_joining *j, uint64_t at_ns);

/**
 * Turns the pump until @p ask says other than AGAIN.
 * @return what it said | ERR_TIMEOUT, the deadline passed; no text | ERR_CANCELLED, the caller
 * wants no more | another rank's failure; over
 */
horon_status_t horon_joining_wait(struct horon_joining *j,
                                  horon_status_t (*ask)(struct horon_joining *j,
                                                        struct horon_error *error),
                                  struct horon_error *error);

/** Fills @p error with ERR_CANCELLED, and the phase. */
horon_status_t horon_joining_interrupted(const struct horon_joining *j, struct horon_error *error);

/** Fills @p error with ERR_TIMEOUT, the phase, and @p text. */
horon_status_t horon_joining_timeout(const struct horon_joining *j, const char *text,
                                     struct horon_error *error);

/** This rank has failed with @p why: tells the others now, if it can and they do not know. */
void horon_joining_give_up(struct horon_joining *j, const struct horon_error *why);

/** Begins this rank's blob with how it fared; the round's own bytes follow. */
struct horon_writer horon_round_begin(struct horon_joining *j, const struct horon_error *so_far);

/** Reads how a rank fared, which stands before its round's own bytes. @return false: unreadable */
bool horon_round_head_read(struct horon_reader *in, uint8_t *weight_out,
                           struct horon_error *how_out);

/**
 * Puts the blob and waits for the others'. @p round is to be ended in any case.
 * @return OK, all ranks fared well | the failure that explains the others
 */
horon_status_t horon_round_do(struct horon_joining *j, const struct horon_writer *out, bool last,
                              struct horon_round *round, struct horon_error *error);
void horon_round_deinit(struct horon_round *round);

/* ---- phases.c: what a rank does by itself, and the round after it ---- */

/** @return OK | ERR_CONFIG, PORT_RANGE or INTERFACES makes no sense on this machine */
horon_status_t horon_phase_check_settings(const struct horon_joining *j, struct horon_error *error);
horon_status_t horon_phase_open_socket(struct horon_joining *j, struct horon_error *error);
horon_status_t horon_phase_meet(struct horon_joining *j, const struct horon_error *so_far,
                                struct horon_error *error);
horon_status_t horon_phase_find_host(struct horon_joining *j, struct horon_error *error);
horon_status_t horon_phase_agree_on_hosts(struct horon_joining *j, const struct horon_error *so_far,
                                          struct horon_error *error);
horon_status_t horon_phase_share(struct horon_joining *j, struct horon_error *error);
/* The two below: nothing and no round, if there is one host. */
horon_status_t horon_phase_listen(struct horon_joining *j, struct horon_error *error);
horon_status_t horon_phase_agree_on_addresses(struct horon_joining *j,
                                              const struct horon_error *so_far,
                                              struct horon_error *error);
horon_status_t horon_phase_connect(struct horon_joining *j, struct horon_error *error);
horon_status_t horon_phase_be_ready(struct horon_joining *j, const struct horon_error *so_far,
                                    struct horon_error *error);

#endif
