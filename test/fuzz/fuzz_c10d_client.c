/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A client of torch's TCPStore in each dialect, and a server that answers anything (answers.h).
 * Whatever comes: what the client says is a request of its own protocol, a value that it takes is
 * one that came whole, and a connection of no use is not used again.
 */
#undef NDEBUG

#include "alloc.h"
#include "answers.h"
#include "boot/gloo/c10d_group.h"
#include "boot/gloo/c10d_wire.h"
#include "boot/gloo/store.h"

#include <assert.h>

enum { STEPS_MAX = 50, VALUE_BYTES = 16 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static const struct horon_gloo_wait no_limit = {.deadline_ns = UINT64_MAX};

static enum horon_c10d_dialect spoken;
static struct horon_c10d_buffer heard;

static void hear(const void *bytes, size_t count)
{
    struct horon_c10d_request request;
    size_t used;
    horon_status_t status;
    assert(horon_c10d_buffer_add(&heard, bytes, count));
    while ((status = horon_c10d_request_read(heard.bytes, heard.used, spoken, &request, &used)) ==
           HORON_OK)
        horon_c10d_buffer_cut(&heard, used);
    assert(status == HORON_AGAIN);
}

static void expect_whole(void)
{
    assert(heard.used == 0);
}

static void expect_text(horon_status_t status, const struct horon_error *error)
{
    assert(status >= 0 || error->text[0]);
}

/* @return has the connection been of use? */
static bool get(struct horon_gloo_store *store)
{
    struct horon_gloo_value value = {0};
    struct horon_error error = {0};
    const horon_status_t status = horon_gloo_store_get(store, "1", &value, &no_limit, &error);
    expect_text(status, &error);
    assert((status == HORON_OK) == (value.bytes != NULL));
    assert(value.count <= HORON_GLOO_VALUE_BYTES_MAX);
    horon_free(value.bytes);
    return status >= 0;
}

static bool set(struct horon_gloo_store *store, size_t bytes)
{
    static const uint8_t value[VALUE_BYTES];
    struct horon_error error = {0};
    const horon_status_t status =
        horon_gloo_store_set(store, "1", value, bytes % VALUE_BYTES, &no_limit, &error);
    expect_text(status, &error);
    return status >= 0;
}

static bool meet(struct horon_gloo_store *store)
{
    struct horon_error error = {0};
    const horon_status_t status = horon_gloo_c10d_group_meet(store, 0, &no_limit, &error);
    expect_text(status, &error);
    return status >= 0;
}

static void speak(const uint8_t *data, size_t bytes, enum horon_c10d_dialect dialect)
{
    const struct horon_gloo_store_options options = {.url = "tcp://127.0.0.1:1",
                                                     .prefix = "default_pg/0/0",
                                                     .rank = 1,
                                                     .size = 2,
                                                     .until_torch_2_0 =
                                                         dialect == HORON_C10D_UNTIL_2_0};
    struct horon_gloo_store *store = NULL;
    struct horon_error error = {0};
    bool useful = true;
    horon_answers = (struct horon_answers){
        .script = data, .left = bytes, .hear = hear, .answers = expect_whole};
    spoken = dialect;
    const horon_status_t status = horon_gloo_store_open(&options, &store, &error);
    expect_text(status, &error);
    assert((status == HORON_OK) == (store != NULL));
    for (int step = 0; store && horon_answers.left > 0 && step < STEPS_MAX; step++) {
        const bool used = step % 8 == 7   ? meet(store)
                          : step % 4 == 3 ? set(store, horon_answers.left)
                                          : get(store);
        assert(useful || !used);
        useful = used;
    }
    horon_gloo_store_destroy(store);
    horon_c10d_buffer_deinit(&heard);
    heard = (struct horon_c10d_buffer){0};
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    speak(data, bytes, HORON_C10D_SINCE_2_3);
    speak(data, bytes, HORON_C10D_UNTIL_2_0);
    return 0;
}
