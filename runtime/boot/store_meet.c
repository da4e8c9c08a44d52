/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The offers and their answers. An answer that lies there already is of a process that died, and
 * is replaced; of another living process of our rank; or of a job that ends just now.
 */
#include "boot/store_meet.h"

#include "alloc.h"
#include "codec.h"

#include <stdio.h>
#include <string.h>

const char *horon_file_name(uint32_t round, int rank, char name[HORON_STORE_DIR_NAME_BYTES])
{
    snprintf(name, HORON_STORE_DIR_NAME_BYTES, "%u.%d", (unsigned)round, rank);
    return name;
}

horon_status_t horon_file_keep(struct horon_file_store *store, int rank, const void *blob,
                               size_t bytes, struct horon_error *error)
{
    uint8_t *kept = horon_alloc(sizeof(uint32_t) + bytes);
    if (!kept)
        return horon_error_set(error, HORON_ERR_MEMORY, "no memory for a card of %zu bytes", bytes);
    struct horon_writer out = horon_writer_over(kept, sizeof(uint32_t) + bytes);
    horon_write_u32(&out, (uint32_t)bytes);
    horon_write_bytes(&out, blob, bytes);
    store->found[rank] = kept;
    store->found_count++;
    return HORON_OK;
}

void horon_file_drop(struct horon_file_store *store, int rank)
{
    horon_free(store->found[rank]);
    store->found[rank] = NULL;
    store->found_count--;
}

horon_status_t horon_file_write(struct horon_file_store *store, const void *body, size_t bytes,
                                uint64_t job, int *lock_out, struct horon_error *error)
{
    char name[HORON_STORE_DIR_NAME_BYTES];
    struct horon_store_file file = store->mine;
    file.body = body;
    file.body_bytes = bytes;
    return horon_store_dir_write(&store->dir, job, horon_file_name(store->round, store->rank, name),
                                 &file, lock_out, error);
}

static horon_status_t check_file(const struct horon_file_store *store, int rank,
                                 const struct horon_store_file *file, struct horon_error *error)
{
    if (file->size == (uint32_t)store->size)
        return HORON_OK;
    return horon_error_set(error, HORON_ERR_CONFIG,
                           "rank %d believes in a job of %d ranks, rank %d (%s) in one of %u",
                           store->rank, store->size, rank, file->who, file->size);
}

/* ---- Meeting: rank 0 ---- */

/* OK: it is found | AGAIN: it has not come */
static horon_status_t read_answer(struct horon_file_store *store, int rank,
                                  struct horon_error *error)
{
    char name[HORON_STORE_DIR_NAME_BYTES];
    struct horon_store_file file;
    horon_status_t status =
        horon_store_dir_read(&store->dir, store->job, horon_file_name(0, rank, name), &file, error);
    if (status != HORON_OK)
        return status;
    status = check_file(store, rank, &file, error);
    if (status == HORON_OK)
        status = horon_file_keep(store, rank, file.body, file.body_bytes, error);
    store->nonces[rank] = file.nonce;
    horon_free(file.memory);
    return status;
}

/* Who answered and died since is to come anew. */
static bool all_alive(struct horon_file_store *store)
{
    char name[HORON_STORE_DIR_NAME_BYTES];
    bool alive = true;
    for (int r = 1; r < store->size; r++) {
        if (horon_store_dir_life(&store->dir, store->job, horon_file_name(0, r, name)) !=
            HORON_STORE_DEAD)
            continue;
        horon_store_dir_remove(&store->dir, store->job, name);
        horon_file_drop(store, r);
        alive = false;
    }
    return alive;
}

static horon_status_t complete_first(struct horon_file_store *store, struct horon_error *error)
{
    const size_t bytes = (size_t)store->size * 8 + store->first_bytes;
    uint8_t *body = horon_alloc(bytes);
    if (!body)
        return horon_error_set(error, HORON_ERR_MEMORY, "no memory to join");
    struct horon_writer out = horon_writer_over(body, bytes);
    for (int r = 0; r < store->size; r++)
        horon_write_u64(&out, store->nonces[r]);
    horon_write_bytes(&out, store->first, store->first_bytes);
    horon_status_t status =
        horon_file_write(store, body, bytes, store->job, &store->first_lock, error);
    horon_free(body);
    if (status == HORON_AGAIN)
        return horon_error_set(error, HORON_ERR_SYSTEM, "somebody writes our files in %s",
                               store->dir.path);
    store->met = status == HORON_OK;
    return store->met ? horon_file_keep(store, 0, store->first, store->first_bytes, error) : status;
}

static horon_status_t gather_answers(struct horon_file_store *store, struct horon_error *error)
{
    for (int r = 1; r < store->size; r++) {
        horon_status_t status = store->found[r] ? HORON_OK : read_answer(store, r, error);
        if (status < 0)
            return status;
    }
    if (store->found_count < store->size - 1 || !all_alive(store))
        return HORON_AGAIN;
    for (int r = 1; r < store->size; r++) { /* an answer may be another's than when it was read */
        horon_file_drop(store, r);
        horon_status_t status = read_answer(store, r, error);
        if (status != HORON_OK)
            return status;
    }
    return complete_first(store, error);
}

/* ---- Meeting: the others ---- */

/* Is the offer for us? It was answered before it is read, so that rank 0 learns of it, too. */
static horon_status_t check_offer(const struct horon_file_store *store,
                                  struct horon_file_offer *offer, bool alive,
                                  struct horon_error *error)
{
    struct horon_store_file file;
    horon_status_t status = horon_store_dir_read(&store->dir, offer->job, "offer", &file, error);
    if (status == HORON_OK) {
        status = check_file(store, 0, &file, error);
        horon_free(file.memory);
    }
    offer->over = status != HORON_OK;
    /* without locks it may be of a job that is long over, with another key */
    return alive || status == HORON_ERR_MEMORY ? status : HORON_OK;
}

/* Another has answered as our rank. OK: that is no matter of ours, or no more */
static horon_status_t judge_other_answer(struct horon_file_store *store, uint64_t job,
                                         const char *name, struct horon_error *error)
{
    struct horon_store_file other;
    const enum horon_store_life life = horon_store_dir_life(&store->dir, job, name);
    if (horon_store_dir_has(&store->dir, job, "0.0"))
        return HORON_OK; /* it is complete: a job of before, which ends just now */
    if (life == HORON_STORE_DEAD)
        horon_store_dir_remove(&store->dir, job, name); /* ours comes in its place */
    if (life != HORON_STORE_ALIVE ||
        horon_store_dir_read(&store->dir, job, name, &other, NULL) != HORON_OK)
        return HORON_OK;
    horon_free(other.memory);
    if (strcmp(other.who, store->mine.who) == 0)
        return HORON_OK; /* another context of this process */
    return horon_error_set(error, HORON_ERR_CONFIG,
                           "rank %d came twice, as %s and as %s: each process needs a rank of its "
                           "own",
                           store->rank, other.who, store->mine.who);
}

static horon_status_t answer(struct horon_file_store *store, uint64_t job,
                             struct horon_error *error)
{
    char name[HORON_STORE_DIR_NAME_BYTES];
    const enum horon_store_life life = horon_store_dir_life(&store->dir, job, "offer");
    for (int i = 0; i < store->offer_count; i++)
        if (store->offers[i].job == job)
            return HORON_OK;
    if (life == HORON_STORE_DEAD || store->offer_count == HORON_FILE_OFFERS_MAX)
        return HORON_OK;
    struct horon_file_offer *offer = &store->offers[store->offer_count];
    *offer = (struct horon_file_offer){.job = job, .lock = -1};
    horon_status_t status =
        horon_file_write(store, store->first, store->first_bytes, job, &offer->lock, error);
    if (status == HORON_AGAIN)
        return judge_other_answer(store, job, horon_file_name(0, store->rank, name), error);
    if (status != HORON_OK)
        return status;
    store->offer_count++;
    return check_offer(store, offer, life == HORON_STORE_ALIVE, error);
}

/* OK: it is complete, and ours | AGAIN: it is not */
static horon_status_t read_first(struct horon_file_store *store, struct horon_file_offer *offer,
                                 struct horon_error *error)
{
    struct horon_store_file file;
    uint64_t nonce = 0;
    horon_status_t status = horon_store_dir_read(&store->dir, offer->job, "0.0", &file, error);
    if (status != HORON_OK)
        return status;
    struct horon_reader in = horon_reader_over(file.body, file.body_bytes);
    for (int r = 0; r < store->size; r++) {
        const uint64_t one = horon_read_u64(&in);
        nonce = r == store->rank ? one : nonce;
    }
    const size_t bytes = in.limit - in.used;
    const void *blob = horon_read_view(&in, bytes);
    offer->over = !in.ok || nonce != store->mine.nonce;
    status = offer->over ? HORON_AGAIN : horon_file_keep(store, 0, blob, bytes, error);
    horon_free(file.memory);
    if (status != HORON_OK)
        return status;
    store->met = true;
    store->job = offer->job;
    return HORON_OK;
}

static horon_status_t look_for_offers(struct horon_file_store *store, struct horon_error *error)
{
    uint64_t *jobs = NULL;
    horon_status_t status = HORON_OK;
    const int count = horon_store_dir_list(&store->dir, "offer", &jobs);
    for (int i = 0; i < count && status == HORON_OK; i++)
        status = answer(store, jobs[i], error);
    horon_free(jobs);
    for (int i = 0; i < store->offer_count && status >= 0 && !store->met; i++)
        if (!store->offers[i].over)
            status = read_first(store, &store->offers[i], error);
    return status < 0 ? status : store->met ? HORON_OK : HORON_AGAIN;
}

horon_status_t horon_file_offer(struct horon_file_store *store, struct horon_error *error)
{
    uint64_t *jobs = NULL;
    horon_status_t status = horon_random(&store->job, sizeof store->job, error);
    if (status != HORON_OK)
        return status;
    const int count = horon_store_dir_list(&store->dir, NULL, &jobs);
    for (int i = 0; i < count; i++)
        horon_store_dir_clear(&store->dir, jobs[i]);
    horon_free(jobs);
    return horon_store_dir_write(&store->dir, store->job, "offer", &store->mine, &store->offer_lock,
                                 error);
}

horon_status_t horon_file_meet(struct horon_file_store *store, struct horon_error *error)
{
    return store->rank == 0 ? gather_answers(store, error) : look_for_offers(store, error);
}
