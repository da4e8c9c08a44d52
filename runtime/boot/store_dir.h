/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Files of jobs in one directory: "JOB.WHAT", where JOB is 16 hexadecimal digits. A file appears
 * whole, once, and stands under the job key. Its writer may hold it locked: as long as it is locked
 * the writer lives, so what dead jobs have left can be told apart, and removed.
 */
#ifndef HORON_BOOT_STORE_DIR_H
#define HORON_BOOT_STORE_DIR_H

#include "boot/auth.h"
#include "status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define HORON_STORE_DIR_NAME_BYTES 64
#define HORON_STORE_DIR_WHO_BYTES 96

struct horon_store_dir {
    char path[256];
    const struct horon_auth_key *key; /* outlives it */
};

/** What stands in a file. */
struct horon_store_file {
    uint32_t size;  /* ranks of the job, as its writer believes */
    uint64_t nonce; /* tells two writers of one rank apart */
    char who[HORON_STORE_DIR_WHO_BYTES];
    const uint8_t *body;
    size_t body_bytes;
    uint8_t *memory; /* of one that was read: free it */
};

enum horon_store_life {
    HORON_STORE_DEAD, /* there is no such file, or nobody holds it */
    HORON_STORE_ALIVE,
    HORON_STORE_UNKNOWN /* this file system has no locks */
};

/**
 * @param job, what say which file
 * @param lock_out NULL, or it is held from its first moment on: a descriptor, to be given to
 *        horon_store_dir_let_go()
 * @return OK | AGAIN, there is one already | ERR_MEMORY | ERR_SYSTEM
 */
horon_status_t horon_store_dir_write(const struct horon_store_dir *dir, uint64_t job,
                                     const char *what, const struct horon_store_file *file,
                                     int *lock_out, struct horon_error *error);

/** @return OK, file_out->memory is the caller's | AGAIN, there is none | ERR_AUTH, it was written
 *          with another key | ERR_MEMORY | ERR_SYSTEM */
horon_status_t horon_store_dir_read(const struct horon_store_dir *dir, uint64_t job,
                                    const char *what, struct horon_store_file *file_out,
                                    struct horon_error *error);

bool horon_store_dir_has(const struct horon_store_dir *dir, uint64_t job, const char *what);
enum horon_store_life horon_store_dir_life(const struct horon_store_dir *dir, uint64_t job,
                                           const char *what);
/** Ends a lock and sets it to -1; -1 is a no-op. */
void horon_store_dir_let_go(int *lock);
void horon_store_dir_remove(const struct horon_store_dir *dir, uint64_t job, const char *what);

/** Removes all files of a job, unless somebody who lives holds one, or that cannot be known. */
void horon_store_dir_clear(const struct horon_store_dir *dir, uint64_t job);

/**
 * Jobs that have a file here, ascending.
 * @param what only those that have this one; NULL: any
 * @param jobs_out to be freed @return how many
 */
int horon_store_dir_list(const struct horon_store_dir *dir, const char *what, uint64_t **jobs_out);

#endif
