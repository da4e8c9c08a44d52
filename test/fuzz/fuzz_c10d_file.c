/* SPDX-License-Identifier: Apache-2.0 */
/*
 * torch's FileStore, a file that anybody on the host may write: a rank reads and writes its keys
 * while others append records, or what is none, and cut it. Whatever stands there: a value that the
 * file holds, no value, or a reason. And what a rank has kept of it is what another one finds that
 * reads all of it now, unless it was cut.
 */
#undef NDEBUG

#include "alloc.h"
#include "boot/gloo/store.h"
#include "codec.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { STEPS_MAX = 100, RANKS = 2, RECORD_BYTES = 300 };
enum { RAW, RECORD, CUT, GET, SET, REOPEN, ACTS };

/* Of records. "-" takes one away; the last two are torch's counts, of those that use the file. */
static const char *const keys[] = {"/0", "/1", "-/0", "/", "-", "", "cleanup/", "refcount/"};
enum { KEYS = 8, KEYS_OF_RANKS = 2 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static const struct horon_gloo_wait no_limit = {.deadline_ns = UINT64_MAX};

static struct horon_gloo_store *open_store(int file)
{
    char url[64];
    struct horon_gloo_store *store = NULL;
    struct horon_error error = {0};
    snprintf(url, sizeof url, "c10d-file:/proc/self/fd/%d", file);
    const struct horon_gloo_store_options options = {
        .url = url, .prefix = "", .size = RANKS, .wait = no_limit};
    const horon_status_t status = horon_gloo_store_open(&options, &store, &error);
    assert(status == HORON_OK || (!store && error.text[0]));
    return store;
}

static void add_bytes(int file, const void *bytes, size_t count)
{
    const off_t end = lseek(file, 0, SEEK_END);
    assert(end >= 0);
    assert(pwrite(file, bytes, count, end) == (ssize_t)count);
}

static void add_record(int file, const char *key, const uint8_t *value, size_t count)
{
    uint8_t record[RECORD_BYTES];
    struct horon_writer out = horon_writer_over(record, sizeof record);
    horon_write_u32(&out, (uint32_t)strlen(key));
    horon_write_bytes(&out, key, strlen(key));
    horon_write_u32(&out, (uint32_t)count);
    horon_write_bytes(&out, value, count);
    add_bytes(file, record, out.used);
}

static off_t bytes_of(int file)
{
    struct stat about;
    assert(fstat(file, &about) == 0);
    return about.st_size;
}

static horon_status_t get(int file, struct horon_gloo_store *store, const char *key,
                          struct horon_gloo_value *value_out)
{
    struct horon_error error = {0};
    const horon_status_t status = horon_gloo_store_get(store, key, value_out, &no_limit, &error);
    assert(status >= 0 || error.text[0]);
    assert(status != HORON_OK || (off_t)value_out->count < bytes_of(file));
    return status;
}

/* @param cut  what the store has kept may stand there no more */
static void look(int file, struct horon_gloo_store *store, const char *key, bool cut)
{
    struct horon_gloo_value value = {0}, anew = {0};
    const horon_status_t status = get(file, store, key, &value);
    struct horon_gloo_store *other = open_store(file);
    if (other && !cut) {
        assert(get(file, other, key, &anew) == status);
        assert(value.count == anew.count);
        assert(value.count == 0 || memcmp(value.bytes, anew.bytes, value.count) == 0);
    }
    horon_gloo_store_destroy(other);
    horon_free(value.bytes);
    horon_free(anew.bytes);
}

static void set(struct horon_gloo_store *store, const char *key, const uint8_t *bytes, size_t count)
{
    struct horon_error error = {0};
    const horon_status_t status = horon_gloo_store_set(store, key, bytes, count, &no_limit, &error);
    assert(status == HORON_OK || error.text[0]);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    const int file = memfd_create("fuzz", MFD_CLOEXEC);
    struct horon_gloo_store *store = NULL;
    bool cut = false;
    assert(file >= 0);
    for (int step = 0; bytes >= 2 && step < STEPS_MAX; step++) {
        const unsigned act = data[0] % ACTS, which = data[0] / ACTS;
        const size_t most = bytes - 2, count = data[1] < most ? data[1] : most;
        const uint8_t *rest = data + 2;
        size_t used = 0;
        if (act >= GET && !store)
            store = open_store(file);
        switch (act) {
        case RAW:
            add_bytes(file, rest, count);
            used = count;
            break;
        case RECORD:
            add_record(file, keys[which % KEYS], rest, count);
            used = count;
            break;
        case CUT:
            assert(ftruncate(file, bytes_of(file) * data[1] / UINT8_MAX) == 0);
            cut = true;
            break;
        case GET:
            if (store)
                look(file, store, keys[which % KEYS_OF_RANKS] + 1, cut);
            break;
        case SET:
            if (store)
                set(store, keys[which % KEYS_OF_RANKS] + 1, rest, count);
            used = count;
            break;
        default: /* REOPEN */
            horon_gloo_store_destroy(store);
            store = open_store(file);
            cut = false;
        }
        data += 2 + used;
        bytes -= 2 + used;
    }
    horon_gloo_store_destroy(store);
    close(file);
    return 0;
}
