/* SPDX-License-Identifier: Apache-2.0 */
/* Which kind of store an address means, and what the kinds share. */
#include "boot/store/store.h"

#include "alloc.h"
#include "codec.h"

#include <string.h>

horon_status_t horon_store_open(const struct horon_store_options *options,
                                struct horon_store **store_out, struct horon_error *error)
{
    static const struct {
        const char *prefix;
        horon_status_t (*open)(const struct horon_store_options *, struct horon_store **,
                               struct horon_error *);
    } kinds[] = {{"tcp://", horon_store_open_tcp}, {"file:", horon_store_open_tcp}};
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++)
        if (strncmp(options->address, kinds[i].prefix, strlen(kinds[i].prefix)) == 0)
            return kinds[i].open(options, store_out, error);
    return horon_error_set(error, HORON_ERR_CONFIG,
                           "HORON_STORE=%s is neither tcp://HOST:PORT nor file:DIR",
                           options->address);
}

horon_status_t horon_blobs_cut(struct horon_blobs *blobs, int size, uint8_t *memory, size_t offset,
                               size_t bytes)
{
    struct horon_reader in = horon_reader_over(memory + offset, bytes - offset);
    struct horon_blob *items = horon_zalloc((size_t)size, sizeof *items);
    if (!items)
        return HORON_ERR_MEMORY;
    for (int r = 0; r < size; r++) {
        items[r].count = horon_read_u32(&in);
        items[r].bytes = horon_read_view(&in, items[r].count);
    }
    if (!horon_reader_finished(&in)) {
        horon_free(items);
        return HORON_ERR_PROTO;
    }
    *blobs = (struct horon_blobs){.items = items, .memory = memory};
    return HORON_OK;
}

void horon_blobs_deinit(struct horon_blobs *blobs)
{
    horon_free(blobs->items);
    horon_free(blobs->memory);
    *blobs = (struct horon_blobs){0};
}
