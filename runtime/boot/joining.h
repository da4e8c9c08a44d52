/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Inside of joining: what its steps share. Each function that fails leaves a text in its error.
 */
#ifndef HORON_BOOT_JOINING_H
#define HORON_BOOT_JOINING_H

#include "backend/mpi_comm.h"
#include "boot/boot.h"
#include "boot/connect/links.h"
#include "boot/identity/identity.h"
#include "boot/share.h"
#include "boot/store/store.h"
#include "boot/store/stream.h"

#define HORON_JOINING_DESCRIPTORS 12 /* that a rank opens meanwhile, and its loops afterwards */

/** One rank that joins. Owner: horon_boot(). */
struct horon_joining {
    struct horon_boot *boot;
    struct horon_owner owner; /* the thread that joins, of the pump meanwhile */
    const struct horon_config *config;
    const struct horon_boot_caller *caller;
    struct horon_log *log;
    struct horon_identity id;
    struct horon_mpi_comm comm; /* if the caller gave one */
    uint64_t ask_ns;            /* when the caller is asked next whether to go on */
    bool interrupted;           /* the caller does not want to; it is not asked again */
    uint64_t look_ns;           /* when something is looked at that wakes no pump; 0: nothing is */
    uint64_t slow_ns;     /* when it is told what is waited for; UINT64_MAX: it was, or never */
    uint64_t deadline_ns; /* when waiting ends; UINT64_MAX: never */
    uint64_t begun_ns, met_ns, connected_ns; /* the ends of the steps; 0: not yet */
    const char *doing;                       /* "while ...", for texts */
    bool mpi_may_tell;         /* where ranks meet, if it is begun, and nothing else does */
    bool over;                 /* joining has failed, and the others know, or told us */
    bool others_failed;        /* our failure only follows from another rank's */
    struct horon_store *store; /* NULL in a world of one */
    struct horon_self self;    /* towards other ranks */
    struct horon_profile mine;
    char settings[HORON_PROFILE_SETTINGS_BYTES]; /* for mine; both */
    char told[HORON_ADDRESSES_TEXT_BYTES];
    struct horon_share *share;
    struct horon_listeners listeners; /* until the links take them */
    struct horon_error unheard;       /* why other hosts could not reach this rank */
    int missing;                      /* connections to other hosts */
    struct horon_error link_error;    /* the first that failed */
    struct horon_error awaited;       /* what the caller's prepare() waits for */
    struct horon_blobs blobs;         /* of this round */
    int *leader_of;                   /* [size] */
    uint8_t blob[HORON_STORE_BLOB_BYTES_MAX];
};

/* ---- joining.c: waiting and rounds ---- */

/** Turns the pump once, until something happens or the moment has come; UINT64_MAX: never. */
void horon_joining_turn(struct horon_joining *j, uint64_t until_ns);

/**
 * One turn for what is not there yet.
 * @param late called when the deadline has passed: says what is missing, by ERR_TIMEOUT or a status
 *        that explains it better
 * @return OK, look again | what @p late said | ERR_CANCELLED, the caller wants no more | another
 *         rank's failure
 */
horon_status_t horon_joining_wait(struct horon_joining *j,
                                  void (*late)(struct horon_joining *j, struct horon_error *why),
                                  struct horon_error *error);

/** From now on it counts how long it takes until horon_joining_tell_slow() is due, at slow_ns. */
void horon_joining_watch(struct horon_joining *j);
/** Warns what is waited for, unless @p why is "". Not again, or, if it is "", after another while.
 */
void horon_joining_tell_slow(struct horon_joining *j, const char *doing, const char *why);

/**
 * Holds a round of the store. If this rank has failed, all others hear it: at once, or, if that
 * only follows from another rank's failure, here.
 * @param doing "while ...", for texts
 * @param gift  what this rank gives to all; NULL: nothing, and after this last round it has joined
 * @param error how this rank fared; then how all did
 * @return OK, all ranks fared well, and what they gave is in the blobs | the failure that explains
 *         the others
 */
horon_status_t horon_round_hold(struct horon_joining *j, const char *doing,
                                const struct horon_writer *gift, struct horon_error *error);

/* ---- steps.c: the order of it all ---- */

/** Of a world of one: only its shared memory is made. */
horon_status_t horon_joining_run_alone(struct horon_joining *j, struct horon_error *error);
/** Begins what all ranks begin together, and waits until it is through; again is a no-op.
 * @return OK | as horon_joining_wait() | what the caller's prepare() says */
horon_status_t horon_joining_begin(struct horon_joining *j, struct horon_error *error);
horon_status_t horon_joining_run(struct horon_joining *j, struct horon_error *error);

/* ---- report.c: lines of the log, at debug but for the last ---- */

/** Once the identity is found: by what, where ranks meet, and where the key comes from. */
void horon_joining_report_identity(const struct horon_joining *j);
/** Once all have joined: memory, each link, and how long each step took. */
void horon_joining_report_links(const struct horon_joining *j);
/** Likewise: warns of a program's MPI that is not the launcher's. */
void horon_joining_report_mpi(const struct horon_joining *j);

#endif
