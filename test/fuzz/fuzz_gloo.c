/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What ranks of Gloo publish in a store, which anybody may write. The first bytes say the era, the
 * ranks and which of them reads. Whatever comes: an address that can be used, or a reason.
 */
#undef NDEBUG

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

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    if (bytes >= HEAD)
        read_published(data, bytes);
    return 0;
}
