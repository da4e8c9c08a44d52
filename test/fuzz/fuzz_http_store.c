/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A client of Horovod's rendezvous server, and a server that answers anything (answers.h). Whatever
 * comes: the client asks once a connection and no more than three times, what it asks is a request
 * that horonrun's own server reads, and what it takes for a value came whole behind a 200.
 */
#undef NDEBUG

#include "alloc.h"
#include "answers.h"
#include "boot/gloo/store.h"
#include "http.h"

#include <assert.h>
#include <string.h>

enum { STEPS_MAX = 20, VALUE_BYTES = 16, ASKED_MAX = 4096, TRIES_MAX = 3 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static const struct horon_gloo_wait no_limit = {.deadline_ns = UINT64_MAX};

/* The pause between two tries. */
horon_status_t __wrap_horon_gloo_wait_for(const struct horon_gloo_wait *wait, struct pollfd *fds,
                                          size_t count, int pause_ms, struct horon_error *error);
horon_status_t __wrap_horon_gloo_wait_for(const struct horon_gloo_wait *wait, struct pollfd *fds,
                                          size_t count, int pause_ms, struct horon_error *error)
{
    (void)wait, (void)fds, (void)error;
    assert(count == 0 && pause_ms > 0);
    return HORON_AGAIN;
}

static struct {
    char bytes[ASKED_MAX]; /* on this connection */
    size_t count;
    int connection;
    const char *method, *path;
    size_t body_bytes;
} asked;

static void hear(const void *bytes, size_t count)
{
    if (asked.connection != horon_answers.dialled)
        asked.count = 0;
    asked.connection = horon_answers.dialled;
    assert(count <= sizeof asked.bytes - asked.count);
    if (count > 0)
        memcpy(asked.bytes + asked.count, bytes, count);
    asked.count += count;
}

static void expect_request(void)
{
    struct horon_http head;
    assert(asked.connection == horon_answers.dialled);
    assert(horon_http_look(asked.bytes, asked.count, &head) == HORON_OK);
    assert(horon_http_word_is(&head, 0, asked.method) && horon_http_word_is(&head, 1, asked.path));
    assert(head.length == asked.body_bytes && asked.count == head.head_bytes + asked.body_bytes);
}

static void get(struct horon_gloo_store *store)
{
    struct horon_gloo_value value = {0};
    struct horon_error error = {0};
    asked.method = "GET";
    asked.body_bytes = 0;
    const horon_status_t status = horon_gloo_store_get(store, "1", &value, &no_limit, &error);
    assert(status >= 0 || error.text[0]);
    assert((status == HORON_OK) == (value.bytes != NULL));
    assert(value.count <= HORON_GLOO_VALUE_BYTES_MAX);
    horon_free(value.bytes);
}

static void set(struct horon_gloo_store *store, size_t bytes)
{
    static const uint8_t value[VALUE_BYTES];
    struct horon_error error = {0};
    asked.method = "PUT";
    asked.body_bytes = bytes;
    const horon_status_t status = horon_gloo_store_set(store, "1", value, bytes, &no_limit, &error);
    assert(status != HORON_AGAIN);
    assert(status >= 0 || error.text[0]);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    const struct horon_gloo_store_options options = {
        .url = "http://127.0.0.1:1", .prefix = "scope", .rank = 1, .size = 2};
    struct horon_gloo_store *store = NULL;
    struct horon_error error = {0};
    horon_answers = (struct horon_answers){
        .script = data, .left = bytes, .hear = hear, .answers = expect_request};
    asked.connection = 0;
    asked.path = "/scope/1";
    assert(horon_gloo_store_open(&options, &store, &error) == HORON_OK);
    for (int step = 0; horon_answers.left > 0 && step < STEPS_MAX; step++) {
        const int before = horon_answers.dialled;
        if (step % 4 == 3)
            set(store, horon_answers.left % VALUE_BYTES);
        else
            get(store);
        assert(horon_answers.dialled > before && horon_answers.dialled <= before + TRIES_MAX);
    }
    horon_gloo_store_destroy(store);
    return 0;
}
