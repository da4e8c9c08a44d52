/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A coordinator whose neighbours say anything at all. The first byte chooses its place in a tree;
 * the rest is a script of what its rank does (submit, cancel, intern, flush) and what the
 * neighbours say: raw bytes, or records with small fields, so that they often concern what is in
 * flight. Whatever comes, every token must come back at most once, and nothing may crash or grow
 * without bound.
 */
#undef NDEBUG
#include "coordinator/internal.h"

#include <stdlib.h>

enum { NAMES = 6, TOKENS = 4096, CACHE = 3, HANDLES = 8 };

struct script {
    const uint8_t *bytes;
    size_t left;
};

struct fuzz {
    struct horon_coordinator *coordinator;
    int parent;
    uint64_t next_token;
    uint8_t in_flight[TOKENS];
    uint32_t handles[HANDLES];
    size_t handle_count;
    uint8_t message[8192];
};

static uint8_t next_byte(struct script *script)
{
    if (script->left == 0)
        return 0;
    script->left--;
    return *script->bytes++;
}

static struct horon_operation some_tensor(uint8_t what)
{
    static const char names[NAMES][2] = {"a", "b", "c", "d", "e", "f"};
    struct horon_operation op = {
        .agreed =
            {
                .verb = what >> 6,
                .dtype = HORON_FLOAT32,
                .ndim = 1,
                .prescale = 1,
                .postscale = 1,
                .shape = {1 + (what >> 5 & 1)},
            },
        .name = names[(what & 7) % NAMES],
        .name_bytes = 1,
    };
    op.name_hash = horon_name_hash(op.name, op.name_bytes);
    if (what >> 3 & 1) {
        op.agreed.group_hash = 7;
        op.agreed.group_size = 2 + (what >> 4 & 1);
    }
    horon_signature_make_canonical(&op.agreed);
    return op;
}

/* ---- What the neighbours say ----------------------------------------------------------------- */

static void write_small_name(struct horon_writer *out, uint8_t what)
{
    char name[2] = {(char)('a' + what % NAMES), 0};
    horon_write_string(out, name);
}

static void write_up_record(struct horon_writer *out, uint32_t *next_id, struct script *script)
{
    uint8_t what = next_byte(script), more = next_byte(script);
    struct horon_operation tensor = some_tensor(more);
    switch (what & 3) {
    case 0:
        horon_write_u8(out, COORD_UP_READY);
        horon_coord_write_id(out, next_id, more % CACHE);
        horon_write_varint(out, 1 + (what >> 2) % CACHE);
        *next_id += (what >> 2) % CACHE;
        break;
    case 1:
    case 2:
        horon_write_u8(out, what & 2 ? COORD_UP_FAILED : COORD_UP_ANNOUNCE);
        horon_write_string(out, tensor.name);
        horon_coord_signature_write(out, &tensor.agreed);
        if (what & 2) {
            horon_write_u8(out, what >> 2 & 1);
            horon_write_string(out, "they differ");
        }
        break;
    default:
        if (what >> 2 >= 60) {
            horon_write_u8(out, COORD_UP_JOINED);
            horon_write_varint(out, more & 3);
            horon_write_u8(out, what >> 2 & 1);
            horon_write_varint(out, more >> 2);
            break;
        }
        horon_write_u8(out, (uint8_t)(COORD_UP_WITHDRAW + (what >> 2) % 3));
        write_small_name(out, more);
        if ((what >> 2) % 3 == 2)
            horon_write_varint(out, what >> 5);
    }
}

/* @param joined ranks have, so that names are followed by descriptions */
static void write_batch(struct horon_writer *out, uint64_t sequence, bool joined,
                        struct script *script)
{
    uint32_t next_id = 0;
    uint8_t what = next_byte(script);
    horon_write_u8(out, COORD_DOWN_BATCH);
    horon_write_varint(out, sequence);
    horon_write_u8(out, what & 1);
    if (what & 1)
        horon_write_string(out, "they differ");
    for (int items = what >> 1 & 7; items > 0; items--) {
        uint8_t item = next_byte(script);
        horon_write_u8(out, 1 + item % 4);
        if (item % 4 != 3)
            horon_coord_write_id(out, &next_id, (item >> 2) % CACHE);
        if (item % 4 == 1) {
            horon_write_varint(out, 1 + (item >> 4) % 2);
            next_id += (item >> 4) % 2;
        } else if (item % 4 >= 2) {
            write_small_name(out, item >> 5);
            if (joined && !(what & 1)) {
                const struct horon_operation tensor = some_tensor(item);
                horon_coord_signature_write(out, &tensor.agreed);
            }
        }
    }
    horon_write_u8(out, COORD_ITEM_END);
}

/* Records with small fields, or the bytes of the script as they are. */
static size_t compose(struct fuzz *fuzz, bool down, uint8_t what, struct script *script)
{
    struct horon_writer out = horon_writer_over(fuzz->message, sizeof fuzz->message);
    uint64_t passed = fuzz->coordinator->sequence;
    if (what & 1) {
        size_t bytes = next_byte(script);
        bytes = bytes < script->left ? bytes : script->left;
        horon_write_bytes(&out, script->bytes, bytes);
        script->bytes += bytes;
        script->left -= bytes;
        return out.used;
    }
    horon_write_u8(&out, down ? COORD_TAG_DOWN : COORD_TAG_UP);
    if (!down) {
        uint64_t behind = what >> 1 & 3;
        horon_write_varint(&out, passed > behind ? passed - behind : passed);
    }
    uint32_t next_id = 0;
    for (int records = 1 + (what >> 3 & 3); records > 0; records--) {
        if (!down) {
            write_up_record(&out, &next_id, script);
        } else if (next_byte(script) & 3) {
            write_batch(&out, passed++, fuzz->coordinator->joined_count > 0, script);
        } else {
            uint8_t kind = next_byte(script);
            if (kind >= 240) {
                horon_write_u8(&out, COORD_DOWN_JOINED);
                horon_write_varint(&out, passed++);
                horon_write_varint(&out, kind & 3);
                horon_write_varint(&out, kind >> 2 & 3);
                continue;
            }
            horon_write_u8(&out, (uint8_t)(COORD_DOWN_WITHDRAWN + kind % 3));
            write_small_name(&out, next_byte(script));
            if (kind % 3 == 2)
                horon_write_varint(&out, kind >> 5);
        }
    }
    return out.used;
}

static bool hear(struct fuzz *fuzz, uint8_t what, struct script *script)
{
    struct horon_error error = {0};
    int from = fuzz->parent >= 0 && what & 1 ? fuzz->parent : 1 + (what >> 1 & 1);
    size_t bytes = compose(fuzz, from == fuzz->parent, what >> 2, script);
    horon_status_t status =
        horon_coordinator_receive(fuzz->coordinator, from, fuzz->message, bytes, &error);
    assert(status == HORON_OK || status == HORON_ERR_PROTO);
    assert(status == HORON_OK || error.text[0]);
    return status == HORON_OK;
}

/* ---- What the rank does ---------------------------------------------------------------------- */

static void submit(struct fuzz *fuzz, bool by_handle, uint8_t what)
{
    struct horon_operation tensor = some_tensor(what);
    if (fuzz->next_token == TOKENS)
        return;
    horon_status_t status;
    if (by_handle && fuzz->handle_count)
        status = horon_coordinator_submit_handle(
            fuzz->coordinator, fuzz->handles[what % fuzz->handle_count], fuzz->next_token);
    else
        status = horon_coordinator_submit(fuzz->coordinator, &tensor, fuzz->next_token);
    const bool joined = horon_coord_seat_joined(fuzz->coordinator, 0);
    assert(status == HORON_OK || status == HORON_ERR_DUPLICATE ||
           (joined && status == HORON_ERR_INVALID));
    if (status == HORON_OK)
        fuzz->in_flight[fuzz->next_token++] = 1;
}

static void intern(struct fuzz *fuzz, uint8_t what)
{
    struct horon_operation tensor = some_tensor(what);
    if (fuzz->handle_count == HANDLES)
        horon_coordinator_drop(fuzz->coordinator, fuzz->handles[--fuzz->handle_count]);
    horon_status_t status =
        horon_coordinator_intern(fuzz->coordinator, &tensor, &fuzz->handles[fuzz->handle_count]);
    assert(status == HORON_OK);
    fuzz->handle_count++;
}

static void drain(struct fuzz *fuzz)
{
    struct horon_batch batch;
    while (horon_coordinator_next_batch(fuzz->coordinator, &batch))
        for (size_t i = 0; i < batch.count && !batch.absent; i++) {
            assert(batch.tokens[i] < fuzz->next_token);
            assert(fuzz->in_flight[batch.tokens[i]] == 1);
            fuzz->in_flight[batch.tokens[i]] = 0;
        }
    int to;
    const void *bytes;
    size_t byte_count;
    while (horon_coordinator_next_message(fuzz->coordinator, &to, &bytes, &byte_count))
        assert(byte_count <= HORON_COORDINATOR_MESSAGE_BYTES_MAX);
}

static void play(struct fuzz *fuzz, struct script *script)
{
    bool alive = true;
    char text[64];
    while (alive && script->left > 0) {
        uint8_t what = next_byte(script), rest = what >> 3;
        switch (what & 7) {
        case 0:
        case 1:
            submit(fuzz, what & 1, next_byte(script));
            break;
        case 2:
            if (rest == 31)
                alive = horon_coordinator_join(fuzz->coordinator, 0) != HORON_ERR_PROTO;
            horon_coordinator_cancel(fuzz->coordinator,
                                     fuzz->next_token - 1 - rest % (fuzz->next_token + 1));
            break;
        case 3:
            intern(fuzz, next_byte(script));
            break;
        case 4:
            alive = horon_coordinator_flush(fuzz->coordinator, rest & 1) == HORON_OK;
            horon_coordinator_ask(fuzz->coordinator, rest);
            (void)horon_coordinator_explain(fuzz->coordinator, rest, text, sizeof text);
            drain(fuzz);
            break;
        default:
            alive = hear(fuzz, next_byte(script), script);
        }
    }
    drain(fuzz);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t byte_count);
int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t byte_count)
{
    static const int children[] = {1, 2};
    struct script script = {.bytes = bytes, .left = byte_count};
    struct fuzz *fuzz = horon_zalloc(1, sizeof *fuzz);
    assert(fuzz);
    uint8_t place = next_byte(&script);
    fuzz->parent = place & 1 ? 3 : -1;
    const struct horon_coordinator_options options = {
        .rank = 0,
        .size = 4,
        .parent = fuzz->parent,
        .children = children,
        .child_count = place >> 1 & 3 ? (place >> 1 & 3) - 1 : 2,
        .cache_entries = place & 8 ? 0 : CACHE,
        .fusion_bytes = place & 16 ? 0 : 100,
    };
    if (horon_coordinator_create(&options, &fuzz->coordinator) != HORON_OK)
        abort();
    play(fuzz, &script);
    horon_coordinator_destroy(fuzz->coordinator);
    horon_free(fuzz);
    return 0;
}
