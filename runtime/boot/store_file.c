/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The store in a directory, for tests and for looking at: a blob is a file "SESSION.ROUND.RANK",
 * written under another name and renamed when whole. A rank's next session is the first of which it
 * has no file yet. A digest with the job key stands before each blob; it keeps strangers' files
 * out, but not old ones of the same job: the directory must be fresh. Whoever made it removes it.
 */
#include "boot/store.h"

#include "alloc.h"
#include "boot/store_frame.h"
#include "clock.h"
#include "codec.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define LOOK_FIRST_NS 500000u /* first pause between looks; doubles ... */
#define LOOK_LAST_NS 8000000u /* ... up to this */
#define SESSIONS_MAX 1000000

struct file_store {
    struct horon_store base;
    struct horon_store_options options;
    char directory[256];
    int size, rank;
    int session;
    uint32_t round;
    struct horon_timer timer; /* makes the pump turn, so that get() looks again */
    uint64_t pause_ns;
    uint64_t deadline_ns;
    uint8_t **found; /* [size] the files of this round that were read, as u32 length and blob */
    int found_count;
};

static void name_file(const struct file_store *store, const char *kind, uint32_t round, int rank,
                      char *path, size_t path_bytes)
{
    snprintf(path, path_bytes, "%s/%s%d.%u.%d", store->directory, kind, store->session,
             (unsigned)round, rank);
}

/* The digest covers which file it is, so that none can stand in for another. */
static horon_status_t digest(const struct file_store *store, int rank, const void *blob,
                             size_t bytes, uint8_t *mac, struct horon_error *error)
{
    char label[96];
    snprintf(label, sizeof label, "horon file store 1 %d.%u.%d", store->session,
             (unsigned)store->round, rank);
    return horon_auth_digest(store->options.key, label, blob, bytes, mac, error);
}

static bool write_all(int fd, const void *bytes, size_t byte_count)
{
    const uint8_t *at = bytes;
    while (byte_count) {
        ssize_t done = write(fd, at, byte_count);
        if (done < 0 && errno == EINTR)
            continue;
        if (done <= 0)
            return false;
        at += done;
        byte_count -= (size_t)done;
    }
    return true;
}

static horon_status_t file_put(struct horon_store *base, const void *blob, size_t bytes, bool last,
                               uint64_t deadline_ns, struct horon_error *error)
{
    struct file_store *store = (struct file_store *)base;
    (void)last;
    uint8_t mac[HORON_PROOF_BYTES];
    char draft[320], path[320];
    store->deadline_ns = deadline_ns;
    horon_status_t status = digest(store, store->rank, blob, bytes, mac, error);
    if (status != HORON_OK)
        return status;
    name_file(store, "draft.", store->round, store->rank, draft, sizeof draft);
    name_file(store, "", store->round, store->rank, path, sizeof path);
    int fd = open(draft, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    bool good = fd >= 0 && write_all(fd, mac, sizeof mac) && write_all(fd, blob, bytes);
    int why = errno;
    if (fd >= 0)
        close(fd);
    if (!good || rename(draft, path) != 0)
        return horon_error_set_errno(error, HORON_ERR_SYSTEM, good ? errno : why,
                                     "the store's file %s cannot be written", path);
    return HORON_OK;
}

/* @return OK, found[rank] is set | AGAIN, there is no such file yet | ERR_* */
static horon_status_t read_file(struct file_store *store, int rank, struct horon_error *error)
{
    uint8_t mac[HORON_PROOF_BYTES];
    char path[320];
    const size_t room = HORON_PROOF_BYTES + HORON_STORE_BLOB_BYTES_MAX + 1;
    name_file(store, "", store->round, rank, path, sizeof path);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return errno == ENOENT ? HORON_AGAIN
                               : horon_error_set_errno(error, HORON_ERR_SYSTEM, errno,
                                                       "the store's file %s cannot be read", path);
    uint8_t *bytes = horon_alloc(sizeof(uint32_t) + room);
    ssize_t got = bytes ? read(fd, bytes + sizeof(uint32_t), room) : -1;
    close(fd);
    const size_t count = got < HORON_PROOF_BYTES ? 0 : (size_t)got - HORON_PROOF_BYTES;
    const uint8_t *file = bytes + sizeof(uint32_t);
    if (got < HORON_PROOF_BYTES || count > HORON_STORE_BLOB_BYTES_MAX ||
        digest(store, rank, file + HORON_PROOF_BYTES, count, mac, error) != HORON_OK ||
        !horon_auth_equal(mac, file)) {
        horon_free(bytes);
        return horon_error_set(error, HORON_ERR_AUTH,
                               "the store's file %s was not written with our job key", path);
    }
    struct horon_writer out = horon_writer_over(bytes, sizeof(uint32_t));
    horon_write_u32(&out, (uint32_t)count);
    memmove(bytes + sizeof(uint32_t), file + HORON_PROOF_BYTES, count);
    store->found[rank] = bytes;
    store->found_count++;
    return HORON_OK;
}

static size_t found_bytes(const uint8_t *found)
{
    struct horon_reader in = horon_reader_over(found, sizeof(uint32_t));
    return sizeof(uint32_t) + horon_read_u32(&in);
}

/* Joins the files to what the TCP store would have answered. */
static horon_status_t gather(struct file_store *store, struct horon_blobs *blobs_out,
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
        horon_free(store->found[r]);
        store->found[r] = NULL;
    }
    horon_status_t status = horon_blobs_cut(blobs_out, store->size, memory, 0, bytes);
    if (status != HORON_OK) {
        horon_free(memory);
        return horon_error_set(error, status, "the store's files cannot be joined");
    }
    store->found_count = 0;
    store->round++;
    store->pause_ns = LOOK_FIRST_NS;
    return HORON_OK;
}

static horon_status_t file_get(struct horon_store *base, struct horon_blobs *blobs_out,
                               struct horon_error *error)
{
    struct file_store *store = (struct file_store *)base;
    for (int r = 0; r < store->size; r++) {
        horon_status_t status = store->found[r] ? HORON_OK : read_file(store, r, error);
        if (status < 0)
            return status;
    }
    if (store->found_count == store->size)
        return gather(store, blobs_out, error);
    const uint64_t now = horon_clock_ns();
    if (now >= store->deadline_ns) {
        char text[HORON_ERROR_TEXT_BYTES - 64];
        base->ops->explain(base, text, sizeof text);
        return horon_error_set(error, HORON_ERR_TIMEOUT, "%s", text);
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

static horon_status_t file_explain(const struct horon_store *base, char *text, size_t text_bytes)
{
    const struct file_store *store = (const struct file_store *)base;
    size_t used =
        (size_t)snprintf(text, text_bytes, "of %d ranks, %s", store->size,
                         store->round ? "these went no further: rank" : "these never came: rank");
    const char *separator = " ";
    for (int r = 0; r < store->size && used < text_bytes; r++) {
        if (store->found[r])
            continue;
        used += (size_t)snprintf(text + used, text_bytes - used, "%s%d", separator, r);
        separator = ", ";
    }
    return HORON_ERR_TIMEOUT;
}

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
    struct file_store *store = (struct file_store *)base;
    horon_pump_untimer(store->options.pump, &store->timer);
    for (int r = 0; store->found && r < store->size; r++)
        horon_free(store->found[r]);
    horon_free(store->found);
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

static void find_session(struct file_store *store)
{
    char path[320];
    do {
        name_file(store, "", 0, store->rank, path, sizeof path);
    } while (access(path, F_OK) == 0 && ++store->session < SESSIONS_MAX);
}

horon_status_t horon_store_open_file(const struct horon_store_options *options,
                                     struct horon_store **store_out, struct horon_error *error)
{
    const char *directory = options->address + strlen("file:");
    if (!directory[0])
        return horon_error_set(error, HORON_ERR_CONFIG,
                               "HORON_STORE=file: names no directory: file:DIR");
    if (access(directory, R_OK | W_OK | X_OK) != 0)
        return horon_error_set(error, HORON_ERR_CONFIG,
                               "the store's directory '%s' cannot be used: "
                               "%s%s",
                               directory, strerrordesc_np(errno),
                               errno == ENOENT ? "; make it before the ranks start" : "");
    struct file_store *store = horon_zalloc(1, sizeof *store);
    if (store && strlen(directory) >= sizeof store->directory) {
        horon_free(store);
        return horon_error_set(error, HORON_ERR_CONFIG,
                               "the store's directory has a name of more than %zu bytes",
                               sizeof store->directory - 1);
    }
    if (!store)
        return horon_error_set(error, HORON_ERR_MEMORY, "no memory for the store");
    store->base.ops = &file_ops;
    store->options = *options;
    snprintf(store->directory, sizeof store->directory, "%s", directory);
    store->size = (int)options->hello.size;
    store->rank = options->hello.rank;
    store->pause_ns = LOOK_FIRST_NS;
    store->timer = (struct horon_timer){.due = look_again, .arg = store};
    store->found = horon_zalloc((size_t)store->size, sizeof *store->found);
    if (!store->found) {
        horon_free(store);
        return horon_error_set(error, HORON_ERR_MEMORY, "no memory for the store");
    }
    find_session(store);
    *store_out = &store->base;
    return HORON_OK;
}
