/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The store in a directory, for tests and for looking at: one look after another whether the files
 * are there that a round needs. store_meet.h says which.
 */
#include "boot/store_meet.h"

#include "alloc.h"
#include "boot/store_frame.h"
#include "clock.h"
#include "codec.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define LOOK_FIRST_NS 500000u /* first pause between looks; doubles ... */
#define LOOK_LAST_NS 8000000u /* ... up to this */
static horon_status_t file_put(struct horon_store *base, const void *blob, size_t bytes, bool last,
                               uint64_t deadline_ns, struct horon_error *error)
{
    struct horon_file_store *store = (struct horon_file_store *)base;
    (void)last;
    store->deadline_ns = deadline_ns;
    if (store->round > 0) {
        horon_status_t status = horon_file_write(store, blob, bytes, store->job, NULL, error);
        return status == HORON_AGAIN
                   ? horon_error_set(error, HORON_ERR_SYSTEM, "somebody writes our files in %s",
                                     store->dir.path)
                   : status;
    }
    store->first = horon_alloc(bytes + 1);
    if (!store->first)
        return horon_error_set(error, HORON_ERR_MEMORY, "no memory for a card of %zu bytes", bytes);
    memcpy(store->first, blob, bytes);
    store->first_bytes = bytes;
    store->put_first = true;
    return HORON_OK;
}

/* ---- Rounds ---- */

/* OK: it is found | AGAIN: not yet */
static horon_status_t read_blob(struct horon_file_store *store, int rank, struct horon_error *error)
{
    char name[HORON_STORE_DIR_NAME_BYTES];
    struct horon_store_file file;
    horon_status_t status = horon_store_dir_read(
        &store->dir, store->job, horon_file_name(store->round, rank, name), &file, error);
    if (status != HORON_OK)
        return status;
    status = file.body_bytes > HORON_STORE_BLOB_BYTES_MAX
                 ? horon_error_set(error, HORON_ERR_PROTO, "a card of rank %d is too long", rank)
                 : horon_file_keep(store, rank, file.body, file.body_bytes, error);
    horon_free(file.memory);
    return status;
}

/* The first who sees it says who it was; the others, who see that one leave, too, take its word. */
static horon_status_t say_lost(struct horon_file_store *store, const char *ranks,
                               struct horon_error *error)
{
    struct horon_store_file file = store->mine;
    char text[480];
    snprintf(text, sizeof text, "of %d ranks, %s left while joining", store->size, ranks);
    file.body = (const uint8_t *)text;
    file.body_bytes = strlen(text);
    if (horon_store_dir_write(&store->dir, store->job, "lost", &file, NULL, error) != HORON_AGAIN ||
        horon_store_dir_read(&store->dir, store->job, "lost", &file, error) != HORON_OK)
        return horon_error_set(error, HORON_ERR_PEER_LOST, "%s", text);
    horon_error_set(error, HORON_ERR_PEER_LOST, "%.*s", (int)file.body_bytes,
                    (const char *)file.body);
    horon_free(file.memory);
    return HORON_ERR_PEER_LOST;
}

/* Appends "rank 1 (process 12 on node3)"; its first file is there, but nobody holds it any more. */
static void name_lost(const struct horon_file_store *store, int rank, char *text, size_t text_bytes)
{
    char name[HORON_STORE_DIR_NAME_BYTES];
    const size_t used = strlen(text);
    struct horon_store_file file;
    if (horon_store_dir_read(&store->dir, store->job, horon_file_name(0, rank, name), &file,
                             NULL) != HORON_OK)
        file = (struct horon_store_file){.who = "unknown"};
    snprintf(text + used, text_bytes - used, "%srank %d (%s)", used ? ", " : "", rank, file.who);
    horon_free(file.memory);
}

static horon_status_t look_for_lost(struct horon_file_store *store, struct horon_error *error)
{
    char ranks[400] = "", name[HORON_STORE_DIR_NAME_BYTES];
    for (int r = 0; r < store->size; r++) {
        if (store->found[r] ||
            horon_store_dir_life(&store->dir, store->job, horon_file_name(0, r, name)) !=
                HORON_STORE_DEAD)
            continue;
        /* it may have written this round's in its last moment */
        if (!horon_store_dir_has(&store->dir, store->job, horon_file_name(store->round, r, name)))
            name_lost(store, r, ranks, sizeof ranks);
    }
    return ranks[0] ? say_lost(store, ranks, error) : HORON_AGAIN;
}

static size_t found_bytes(const uint8_t *found)
{
    struct horon_reader in = horon_reader_over(found, sizeof(uint32_t));
    return sizeof(uint32_t) + horon_read_u32(&in);
}

/* Joins the files to what the TCP store would have answered. */
static horon_status_t gather(struct horon_file_store *store, struct horon_blobs *blobs_out,
                             struct horon_error *error)
{
    size_t bytes = 0;
    for (int r = 0; r < store->size; r++)
        bytes += found_bytes(store->found[r]);
    uint8_t *memory = horon_alloc(bytes);
    if (!memory)
        return horon_error_set(error, HORON_ERR_MEMORY, "no memory for the cards of %d ranks",
                               store->size);
    size_t used = 0;
    for (int r = 0; r < store->size; r++) {
        size_t one = found_bytes(store->found[r]);
        memcpy(memory + used, store->found[r], one);
        used += one;
        horon_file_drop(store, r);
    }
    horon_status_t status = horon_blobs_cut(blobs_out, store->size, memory, 0, bytes);
    if (status != HORON_OK) {
        horon_free(memory);
        return horon_error_set(error, status, "the store's files cannot be joined");
    }
    store->round++;
    store->pause_ns = LOOK_FIRST_NS;
    return HORON_OK;
}

/* OK: all blobs of the round are found | AGAIN */
static horon_status_t look(struct horon_file_store *store, struct horon_error *error)
{
    horon_status_t status = HORON_OK;
    if (!store->met)
        status = horon_file_meet(store, error);
    for (int r = 0; r < store->size && status >= 0 && store->met; r++)
        status = store->found[r] ? HORON_OK : read_blob(store, r, error);
    if (status < 0)
        return status;
    if (store->met && store->found_count == store->size)
        return HORON_OK;
    return store->met ? look_for_lost(store, error) : HORON_AGAIN;
}

static horon_status_t file_get(struct horon_store *base, struct horon_blobs *blobs_out,
                               struct horon_error *error)
{
    struct horon_file_store *store = (struct horon_file_store *)base;
    horon_status_t status = store->put_first ? look(store, error) : HORON_AGAIN;
    if (status == HORON_OK)
        return gather(store, blobs_out, error);
    if (status < 0)
        return status;
    const uint64_t now = horon_clock_ns();
    if (now >= store->deadline_ns) {
        char text[HORON_ERROR_TEXT_BYTES - 64];
        status = base->ops->explain(base, text, sizeof text);
        return horon_error_set(error, status, "%s", text);
    }
    if (!store->timer.active) {
        horon_pump_timer(store->options.pump, &store->timer, now + store->pause_ns);
        store->pause_ns = store->pause_ns * 2 > LOOK_LAST_NS ? LOOK_LAST_NS : store->pause_ns * 2;
    }
    return HORON_AGAIN;
}

static void look_again(void *arg)
{
    (void)arg; /* that the pump turned is all */
}

/* Files tell nothing by themselves: a failure travels in the next round. */
static horon_status_t file_failed(const struct horon_store *base, bool *whole_out,
                                  struct horon_error *error)
{
    (void)base;
    (void)whole_out;
    (void)error;
    return HORON_OK;
}

static bool file_abort(struct horon_store *base, const struct horon_error *why)
{
    (void)base;
    (void)why;
    return false;
}

/* ---- Texts ---- */

/* The offer that a rank waits on; on rank 0 its own. @return false: there is none */
static bool current_job(const struct horon_file_store *store, uint64_t *job_out)
{
    *job_out = store->job;
    bool known = store->met || store->rank == 0;
    for (int i = 0; i < store->offer_count && !known; i++)
        if (!store->offers[i].over) {
            *job_out = store->offers[i].job;
            known = horon_store_dir_life(&store->dir, *job_out, "offer") != HORON_STORE_DEAD ||
                    i == store->offer_count - 1;
        }
    return known;
}

static bool is_missing(const struct horon_file_store *store, uint64_t job, int rank)
{
    char name[HORON_STORE_DIR_NAME_BYTES];
    if (store->met)
        return !store->found[rank];
    return rank > 0 && rank != store->rank &&
           !horon_store_dir_has(&store->dir, job, horon_file_name(0, rank, name));
}

static int count_others(const struct horon_file_store *store, uint64_t job)
{
    uint64_t *jobs = NULL;
    int others = 0;
    const int count = horon_store_dir_list(&store->dir, NULL, &jobs);
    for (int i = 0; i < count; i++)
        others += jobs[i] != job;
    horon_free(jobs);
    return others;
}

static horon_status_t file_explain(const struct horon_store *base, char *text, size_t text_bytes)
{
    const struct horon_file_store *store = (const struct horon_file_store *)base;
    uint64_t job = 0;
    const bool known = current_job(store, &job);
    const int others = count_others(store, job);
    const char *separator = " ";
    size_t used = (size_t)snprintf(text, text_bytes, "of %d ranks, ", store->size);
    int missing = 0;
    /* who comes after that has nothing to answer: not all who are missing need be to blame */
    const bool left = known && !store->met && store->rank > 0 &&
                      horon_store_dir_life(&store->dir, job, "offer") == HORON_STORE_DEAD;
    if (left)
        used += (size_t)snprintf(text + used, text_bytes - used, "rank 0 left while joining");
    for (int r = 0; r < store->size && known; r++)
        missing += is_missing(store, job, r);
    if (left && missing)
        used += (size_t)snprintf(text + used, text_bytes - used, "; ");
    if (!missing && !left)
        used += (size_t)snprintf(text + used, text_bytes - used,
                                 known ? "rank 0 went no further" : "rank 0 never came");
    else if (missing)
        used +=
            (size_t)snprintf(text + used, text_bytes - used,
                             store->met ? "these went no further: rank" : "these never came: rank");
    for (int r = 0; r < store->size && missing && used < text_bytes; r++) {
        if (!is_missing(store, job, r))
            continue;
        used += (size_t)snprintf(text + used, text_bytes - used, "%s%d", separator, r);
        separator = ", ";
    }
    if (others && used < text_bytes)
        snprintf(text + used, text_bytes - used,
                 "; %s has files of %d other job%s, perhaps left over: each job needs a directory "
                 "of its own",
                 store->dir.path, others, others == 1 ? "" : "s");
    return HORON_ERR_TIMEOUT;
}

/* ---- Beginning and end ---- */

static bool file_busy(const struct horon_store *base)
{
    (void)base;
    return false;
}

static int file_take_socket(struct horon_store *base)
{
    (void)base;
    return -1;
}

static void file_destroy(struct horon_store *base)
{
    struct horon_file_store *store = (struct horon_file_store *)base;
    horon_pump_untimer(store->options.pump, &store->timer);
    horon_store_dir_let_go(&store->offer_lock);
    horon_store_dir_let_go(&store->first_lock);
    for (int i = 0; i < store->offer_count; i++)
        horon_store_dir_let_go(&store->offers[i].lock);
    if (store->rank == 0)
        horon_store_dir_clear(&store->dir, store->job);
    for (int i = 0; i < store->offer_count; i++)
        horon_store_dir_clear(&store->dir, store->offers[i].job);
    for (int r = 0; store->found && r < store->size; r++)
        horon_free(store->found[r]);
    horon_free(store->found);
    horon_free(store->nonces);
    horon_free(store->first);
    horon_free(store);
}

static const struct horon_store_ops file_ops = {.name = "file",
                                                .put = file_put,
                                                .get = file_get,
                                                .failed = file_failed,
                                                .abort = file_abort,
                                                .explain = file_explain,
                                                .busy = file_busy,
                                                .take_socket = file_take_socket,
                                                .destroy = file_destroy};

static horon_status_t check_directory(const char *directory, struct horon_error *error)
{
    const size_t limit = sizeof((struct horon_store_dir *)0)->path;
    if (!directory[0])
        return horon_error_set(error, HORON_ERR_CONFIG,
                               "HORON_STORE=file: names no directory: file:DIR");
    if (strlen(directory) >= limit)
        return horon_error_set(error, HORON_ERR_CONFIG,
                               "the store's directory has a name of more than %zu bytes",
                               limit - 1);
    if (access(directory, R_OK | W_OK | X_OK) == 0)
        return HORON_OK;
    return horon_error_set(
        error, HORON_ERR_CONFIG, "the store's directory '%s' cannot be used: %s%s", directory,
        strerrordesc_np(errno), errno == ENOENT ? "; make it before the ranks start" : "");
}

horon_status_t horon_store_open_file(const struct horon_store_options *options,
                                     struct horon_store **store_out, struct horon_error *error)
{
    const char *directory = options->address + strlen("file:");
    horon_status_t status = check_directory(directory, error);
    if (status != HORON_OK)
        return status;
    struct horon_file_store *store = horon_zalloc(1, sizeof *store);
    if (!store)
        return horon_error_set(error, HORON_ERR_MEMORY, "no memory for the store");
    store->base.ops = &file_ops;
    store->options = *options;
    store->dir.key = options->key;
    snprintf(store->dir.path, sizeof store->dir.path, "%s", directory);
    store->size = (int)options->hello.size;
    store->rank = options->hello.rank;
    store->mine.size = options->hello.size;
    snprintf(store->mine.who, sizeof store->mine.who, "%s", options->who ? options->who : "one");
    store->offer_lock = store->first_lock = -1;
    store->pause_ns = LOOK_FIRST_NS;
    store->timer = (struct horon_timer){.due = look_again, .arg = store};
    store->found = horon_zalloc((size_t)store->size, sizeof *store->found);
    store->nonces = horon_zalloc((size_t)store->size, sizeof *store->nonces);
    status = store->found && store->nonces
                 ? horon_random(&store->mine.nonce, sizeof store->mine.nonce, error)
                 : horon_error_set(error, HORON_ERR_MEMORY, "no memory for the store");
    if (status == HORON_OK && store->rank == 0)
        status = horon_file_offer(store, error);
    if (status != HORON_OK) {
        file_destroy(&store->base);
        return status;
    }
    *store_out = &store->base;
    return HORON_OK;
}
