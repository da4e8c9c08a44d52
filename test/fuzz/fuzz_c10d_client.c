/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A client of torch's TCPStore in each dialect, and a server that answers anything, in pieces of
 * any size, or leaves. The program is linked so that what the client says and hears goes through
 * this file, not through sockets. Whatever comes: what the client says is a request of its own
 * protocol, a value that it takes is one that came whole, and a connection of no use is not used
 * again.
 */
#undef NDEBUG

#include "alloc.h"
#include "boot/gloo/c10d_group.h"
#include "boot/gloo/c10d_wire.h"
#include "boot/gloo/dial.h"
#include "boot/gloo/store.h"

#include <assert.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { STEPS_MAX = 50, VALUE_BYTES = 16 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

/* The library's calls of these come here. */
horon_status_t __wrap_horon_gloo_dial(const struct horon_addresses *all, struct horon_fds *fds,
                                      const struct horon_gloo_wait *wait, int *fd_out,
                                      struct horon_error *error);
horon_status_t __wrap_horon_gloo_send(int fd, const void *bytes, size_t count,
                                      const struct horon_gloo_wait *wait,
                                      struct horon_error *error);
horon_status_t __wrap_horon_gloo_receive(int fd, void *bytes, size_t room, size_t *got_out,
                                         const struct horon_gloo_wait *wait,
                                         struct horon_error *error);

static struct {
    const uint8_t *answers; /* what is left of them */
    size_t left;
    bool ended; /* it has left, or stands still */
    enum horon_c10d_dialect dialect;
    struct horon_c10d_buffer heard;
} server;

horon_status_t __wrap_horon_gloo_dial(const struct horon_addresses *all, struct horon_fds *fds,
                                      const struct horon_gloo_wait *wait, int *fd_out,
                                      struct horon_error *error)
{
    (void)fds, (void)wait, (void)error;
    assert(all->count > 0);
    *fd_out = open("/dev/null", O_RDWR | O_CLOEXEC);
    assert(*fd_out >= 0);
    return HORON_OK;
}

horon_status_t __wrap_horon_gloo_send(int fd, const void *bytes, size_t count,
                                      const struct horon_gloo_wait *wait, struct horon_error *error)
{
    struct horon_c10d_request request;
    size_t used;
    horon_status_t status;
    (void)wait, (void)error;
    assert(fd >= 0 && !server.ended);
    assert(horon_c10d_buffer_add(&server.heard, bytes, count));
    while ((status = horon_c10d_request_read(server.heard.bytes, server.heard.used, server.dialect,
                                             &request, &used)) == HORON_OK)
        horon_c10d_buffer_cut(&server.heard, used);
    assert(status == HORON_AGAIN);
    return HORON_OK;
}

/* An answer has its length before it: 0, the server leaves; 255, it stands still. */
horon_status_t __wrap_horon_gloo_receive(int fd, void *bytes, size_t room, size_t *got_out,
                                         const struct horon_gloo_wait *wait,
                                         struct horon_error *error)
{
    (void)wait, (void)error;
    assert(fd >= 0 && !server.ended && room > 0);
    assert(server.heard.used == 0); /* it has asked */
    const uint8_t length = server.left > 0 ? server.answers[0] : 0;
    size_t count = server.left > 0 ? server.left - 1 : 0;
    count = length < count ? length : count;
    count = room < count ? room : count;
    server.ended = count == 0 || length == UINT8_MAX;
    if (length == UINT8_MAX)
        return HORON_ERR_TIMEOUT;
    if (count > 0)
        memcpy(bytes, server.answers + 1, count);
    const size_t used = server.left > 0 ? 1 + count : 0;
    server.answers += used;
    server.left -= used;
    *got_out = count;
    return HORON_OK;
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
    const horon_status_t status = horon_gloo_store_get(store, "1", &value, NULL, &error);
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
        horon_gloo_store_set(store, "1", value, bytes % VALUE_BYTES, NULL, &error);
    expect_text(status, &error);
    return status >= 0;
}

static bool meet(struct horon_gloo_store *store)
{
    struct horon_error error = {0};
    const horon_status_t status = horon_gloo_c10d_group_meet(store, 0, NULL, &error);
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
    server.answers = data;
    server.left = bytes;
    server.ended = false;
    server.dialect = dialect;
    const horon_status_t status = horon_gloo_store_open(&options, &store, &error);
    expect_text(status, &error);
    assert((status == HORON_OK) == (store != NULL));
    for (int step = 0; store && server.left > 0 && step < STEPS_MAX; step++) {
        const bool used = step % 8 == 7   ? meet(store)
                          : step % 4 == 3 ? set(store, server.left)
                                          : get(store);
        assert(useful || !used);
        useful = used;
    }
    horon_gloo_store_destroy(store);
    horon_c10d_buffer_deinit(&server.heard);
    server.heard = (struct horon_c10d_buffer){0};
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    speak(data, bytes, HORON_C10D_SINCE_2_3);
    speak(data, bytes, HORON_C10D_UNTIL_2_0);
    return 0;
}
