/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Inside of the store in a directory: how its ranks meet. What lies there may be old, so a job has
 * a random number, and meets like this:
 *     JOB.offer    rank 0, as soon as it comes
 *     JOB.0.RANK   each other rank answers every offer that it sees, with its blob of round 0
 *     JOB.0.0      rank 0, once all have answered: its blob behind the nonces of their answers
 *     JOB.N.RANK   blobs of round N
 * A dead rank 0 completes no round, and a nonce shows a rank whether it is its own answer that was
 * taken. The first of each rank is locked as long as its store exists: who lost its lock without
 * having come so far has left, and whoever unlocks last removes the job's files.
 */
#ifndef HORON_BOOT_STORE_MEET_H
#define HORON_BOOT_STORE_MEET_H

#include "boot/store.h"
#include "boot/store_dir.h"

#define HORON_FILE_OFFERS_MAX 64 /* answered at a time; further ones must be old */

struct horon_file_offer {
    uint64_t job;
    int lock;  /* of our answer */
    bool over; /* it took another answer, or is not for us */
};

struct horon_file_store {
    struct horon_store base;
    struct horon_store_options options;
    struct horon_store_dir dir;
    struct horon_store_file mine; /* the head of what we write */
    int size, rank;
    bool met;     /* job is agreed */
    uint64_t job; /* rank 0: its offer, from the begin */
    int offer_lock, first_lock;
    struct horon_file_offer offers[HORON_FILE_OFFERS_MAX]; /* of other ranks */
    int offer_count;
    uint32_t round;
    uint8_t *first; /* our blob of round 0, until it can be written */
    size_t first_bytes;
    bool put_first;
    struct horon_timer timer; /* makes the pump turn, so that get() looks again */
    uint64_t pause_ns;
    uint64_t deadline_ns;
    uint8_t **found; /* [size] the blobs of this round that were read, behind their u32 length */
    int found_count;
    uint64_t *nonces; /* [size] of the answers, on rank 0 */
};

/** @return @p name, "ROUND.RANK" */
const char *horon_file_name(uint32_t round, int rank, char name[HORON_STORE_DIR_NAME_BYTES]);

/** Keeps a blob of this round, or forgets it. */
horon_status_t horon_file_keep(struct horon_file_store *store, int rank, const void *blob,
                               size_t bytes, struct horon_error *error);
void horon_file_drop(struct horon_file_store *store, int rank);

/** Writes our file of this round. @return as horon_store_dir_write() */
horon_status_t horon_file_write(struct horon_file_store *store, const void *body, size_t bytes,
                                uint64_t job, int *lock_out, struct horon_error *error);

/** Rank 0: what dead jobs have left goes, and everybody can see that it is here. */
horon_status_t horon_file_offer(struct horon_file_store *store, struct horon_error *error);

/**
 * One look whether the job has met; then store->met, and at least one blob of round 0 is found.
 * @return OK | AGAIN | ERR_AUTH | ERR_CONFIG, a rank came twice, or believes in another size |
 *         ERR_MEMORY | ERR_SYSTEM
 */
horon_status_t horon_file_meet(struct horon_file_store *store, struct horon_error *error);

#endif
