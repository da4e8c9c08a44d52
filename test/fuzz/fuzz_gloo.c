/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What ranks of Gloo publish in a store, which anybody may write; and two clients of a server of
 * torch's TCPStore. The first byte chooses. Of what is published the next ones say the era, the
 * ranks and which of them reads: whatever comes, an address that can be used, or a reason. What the
 * clients say comes in pieces, each after its length: whatever comes, no answer without a request.
 */
#undef NDEBUG

#include "boot/gloo/c10d_wire.h"
#include "boot/gloo/published.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

enum { HEAD = 3, SIZE_MAX_HERE = 6 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static void read_published(const uint8_t *data, size_t bytes)
{
    const enum horon_gloo_era era = data[0] % 2 ? HORON_GLOO_ERA_1 : HORON_GLOO_ERA_3;
    const int size = 2 + data[1] % (SIZE_MAX_HERE - 1);
    const int rank = data[2] % size,
              peer = (rank + 1 + data[2] / SIZE_MAX_HERE % (size - 1)) % size;
    const size_t count = bytes - HEAD;
    uint8_t *copy = malloc(count + 1); /* so that a byte too far is seen */
    struct horon_gloo_peer read;
    struct horon_error error = {0};
    assert(copy);
    memcpy(copy, data + HEAD, count);
    const horon_status_t status =
        horon_gloo_peer_read(era, copy, count, size, rank, peer, &read, &error);
    assert(status == HORON_OK || error.text[0]);
    assert(status != HORON_OK || horon_gloo_era_of(copy, count, size) == era);
    if (status == HORON_OK) {
        char text[HORON_ADDRESS_TEXT_BYTES];
        assert(horon_address_port(&read.address.at) > 0);
        assert(horon_gloo_connects(&read.address.at, &read.address.at) == 0);
        horon_address_text(&read.address.at, text);
    }
    free(copy);
}

static void serve(const uint8_t *data, size_t bytes)
{
    struct client {
        struct horon_c10d_buffer heard, answer;
        enum horon_c10d_dialect dialect;
        bool closed;
    } clients[2] = {0};
    struct horon_c10d_table *table = horon_c10d_table_create();
    assert(table);
    while (bytes > 0) {
        struct client *client = &clients[data[0] % 2];
        size_t count = data[0] / 2;
        count = count < bytes - 1 ? count : bytes - 1;
        if (!client->closed && horon_c10d_buffer_add(&client->heard, data + 1, count))
            client->closed = horon_c10d_serve_all(table, &client->dialect, &client->heard,
                                                  &client->answer) != HORON_OK;
        assert(client->dialect != HORON_C10D_UNHEARD || client->answer.used == 0);
        data += 1 + count;
        bytes -= 1 + count;
    }
    for (int i = 0; i < 2; i++) {
        horon_c10d_buffer_deinit(&clients[i].heard);
        horon_c10d_buffer_deinit(&clients[i].answer);
    }
    horon_c10d_table_destroy(table);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    if (bytes > 0 && data[0] % 2)
        serve(data + 1, bytes - 1);
    else if (bytes >= 1 + HEAD)
        read_published(data + 1, bytes - 1);
    return 0;
}
