/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A mux whose peer says anything at all. The input is a script: the peer's bytes, raw or as frames
 * with small fields (so that they often concern what is posted), mixed with what this side does:
 * posts, gives up, lets progress. Whatever comes, the mux must stay within the memory of its
 * transfers, forget what it was told to forget, and bound what it allocates.
 */
#undef NDEBUG

#include "alloc.h"
#include "link/mux.h"
#include "link/mux_announced.h"
#include "link/mux_frame.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

enum { SLOTS = 12, EAGER_BYTES = 100, EAGER_TOTAL_BYTES = 400, CONTROL_BYTES_MAX = 500 };
enum { STREAM_BYTES = 1 << 16 };

/* The peer's end: what it said, and how much of it we have read. */
struct fake_link {
    struct horon_link base;
    uint8_t *said; /* [said_bytes], of STREAM_BYTES */
    size_t said_bytes, read_bytes;
    size_t read_max;  /* bytes a receive gives at most */
    size_t write_max; /* bytes a send takes at most */
    bool fetches;
    _Atomic uint64_t own_stamp, peer_stamp;
};

struct slot {
    struct horon_transfer transfer;
    uint8_t *data;
    bool used;
};

struct script {
    const uint8_t *bytes;
    size_t left;
};

struct fuzz {
    struct fake_link *link; /* the mux's */
    struct horon_mux *mux;
    struct slot slots[SLOTS];
    size_t heard;
    bool dead;
};

static horon_status_t fake_send(struct horon_link *link, const struct iovec *vector, int count,
                                size_t *sent_bytes_out, struct horon_error *error)
{
    (void)error;
    struct fake_link *fake = (struct fake_link *)link;
    size_t sent = 0;
    volatile uint8_t sink = 0;
    for (int i = 0; i < count; i++) {
        size_t bytes = vector[i].iov_len;
        if (bytes > fake->write_max - sent)
            bytes = fake->write_max - sent;
        for (size_t b = 0; b < bytes; b++) /* read it: the sanitizer looks */
            sink = (uint8_t)(sink + ((const uint8_t *)vector[i].iov_base)[b]);
        sent += bytes;
    }
    *sent_bytes_out = sent;
    return sent ? HORON_OK : HORON_AGAIN;
}

static horon_status_t fake_recv(struct horon_link *link, const struct iovec *vector, int count,
                                size_t *got_bytes_out, struct horon_error *error)
{
    (void)error;
    struct fake_link *fake = (struct fake_link *)link;
    size_t got = 0;
    for (int i = 0; i < count; i++) {
        size_t bytes = vector[i].iov_len;
        if (bytes > fake->said_bytes - fake->read_bytes)
            bytes = fake->said_bytes - fake->read_bytes;
        if (bytes > fake->read_max - got)
            bytes = fake->read_max - got;
        if (bytes == 0)
            continue;
        memcpy(vector[i].iov_base, fake->said + fake->read_bytes, bytes);
        fake->read_bytes += bytes;
        got += bytes;
    }
    *got_bytes_out = got;
    return got ? HORON_OK : HORON_AGAIN;
}

/* Whatever lies at its address; the peer's stamp is 0, which some loans say. */
static horon_status_t fake_fetch(struct horon_link *link, void *to, uint64_t at, size_t bytes)
{
    const struct fake_link *fake = (const struct fake_link *)link;
    (void)at;
    memset(to, 2, bytes);
    return fake->fetches ? HORON_OK : HORON_ERR_UNSUPPORTED;
}

static void fake_destroy(struct horon_link *link)
{
    free(((struct fake_link *)link)->said);
    horon_free(link);
}

static const struct horon_link_ops fake_ops = {
    .name = "fake",
    .send = fake_send,
    .recv = fake_recv,
    .descriptor = horon_link_no_descriptor,
    .interest = horon_link_plain_interest,
    .ready = horon_link_always_ready,
    .found = horon_link_finds_nothing,
    .undelivered = horon_link_nothing_undelivered,
    .check = horon_link_always_answers,
    .fetch = fake_fetch,
    .destroy = fake_destroy,
};

/* 0, 34 and 89 share a bucket. */
static uint64_t some_sequence(uint8_t choice)
{
    static const uint64_t sequences[] = {0, 34, 89, 1};
    return sequences[choice & 3];
}

static horon_status_t hear(void *arg, int peer, const void *bytes, size_t byte_count,
                           struct horon_error *error)
{
    struct fuzz *fuzz = arg;
    (void)error;
    assert(peer == 1);
    assert(byte_count <= CONTROL_BYTES_MAX);
    for (size_t i = 0; i < byte_count; i++)
        fuzz->heard += ((const uint8_t *)bytes)[i];
    if (byte_count == 7) /* an abort, say: the callback gives an operation up */
        horon_mux_forget(fuzz->mux, 0, some_sequence(((const uint8_t *)bytes)[0]));
    return HORON_OK;
}

static struct slot *free_slot(struct fuzz *fuzz, const struct horon_transfer_id *id)
{
    struct slot *slot = NULL;
    for (int i = 0; i < SLOTS; i++) {
        const struct slot *other = &fuzz->slots[i];
        if (!other->used)
            slot = &fuzz->slots[i];
        else if (other->transfer.id.sequence == id->sequence && other->transfer.id.tag == id->tag)
            return NULL; /* ids are unique: that is the caller's part */
    }
    return slot;
}

/* Takes some where they are, and posts the receive of some, as one that waited for its tag. */
static horon_status_t hear_of(void *arg, int peer, struct horon_mux_announced *announced,
                              struct horon_error *error)
{
    struct fuzz *fuzz = arg;
    const struct horon_transfer_id *id = &announced->id;
    const uint64_t bytes = announced->bytes;
    struct slot *slot = id->channel == 0 && bytes % 2 ? free_slot(fuzz, id) : NULL;
    assert(peer == 1);
    assert(bytes <= HORON_MUX_BODY_BYTES_MAX);
    announced->taken = announced->data && bytes % 4 == 2;
    for (uint64_t i = 0; announced->taken && i < bytes; i++)
        fuzz->heard += ((const uint8_t *)announced->data)[i];
    if (!slot)
        return HORON_OK;
    slot->data = malloc((size_t)bytes);
    slot->transfer = (struct horon_transfer){
        .id = *id, .data = slot->data, .bytes = (size_t)bytes, .check = announced->check};
    slot->used = horon_mux_post_recv(fuzz->mux, &slot->transfer, error) == HORON_OK;
    if (!slot->used) {
        free(slot->data);
        slot->data = NULL;
    }
    return HORON_OK;
}

static uint8_t next_byte(struct script *script)
{
    if (script->left == 0)
        return 0;
    script->left--;
    return *script->bytes++;
}

/* Sizes around every bound. */
static uint64_t some_size(uint8_t choice)
{
    static const uint64_t sizes[] = {0,   1,   2,   7,   63,  64,  99,   100,
                                     101, 200, 300, 399, 400, 401, 1000, 40000};
    return sizes[choice & 15];
}

static struct horon_transfer_id some_id(uint8_t choice)
{
    return (struct horon_transfer_id){
        .channel = 0, .sequence = some_sequence(choice), .tag = (choice >> 2) & 1};
}

static void release_done(struct fuzz *fuzz)
{
    for (int i = 0; i < SLOTS; i++) {
        if (fuzz->slots[i].used && fuzz->slots[i].transfer.done) {
            free(fuzz->slots[i].data);
            fuzz->slots[i].data = NULL;
            fuzz->slots[i].used = false;
        }
    }
}

static void let_progress(struct fuzz *fuzz, int turns)
{
    bool moved = true;
    struct horon_error error = {0};
    for (int i = 0; moved && !fuzz->dead && i < turns; i++) {
        moved = false;
        fuzz->dead = horon_mux_progress(fuzz->mux, &moved, &error) != HORON_OK;
        assert(!fuzz->dead || error.text[0]);
        (void)horon_mux_wants_write(fuzz->mux);
    }
    release_done(fuzz);
}

static void peer_says(struct fuzz *fuzz, const void *bytes, size_t count)
{
    struct fake_link *link = fuzz->link;
    if (count > STREAM_BYTES - link->said_bytes)
        return;
    if (count)
        memcpy(link->said + link->said_bytes, bytes, count);
    link->said_bytes += count;
}

static void say_frame(struct fuzz *fuzz, struct script *script)
{
    uint8_t frame_bytes[HORON_MUX_HEADER_BYTES + 2048];
    const struct horon_transfer_id id = some_id(next_byte(script));
    const uint8_t kind = next_byte(script), sizes = next_byte(script), odd = next_byte(script);
    struct horon_mux_frame frame = {
        .type = (uint8_t)(1 + (kind & 7) % (fuzz->link->base.lends ? 7 : 5)),
        .flags = kind >> 7,
        .generation = 1,
        .channel = id.channel,
        .sequence = id.sequence,
        .tag = id.tag,
        .check = (odd & 64) != 0,
        .bytes = some_size(sizes),
        .offset = (odd & 2) ? next_byte(script) : 0,
        .returned_bytes = (odd & 4) ? next_byte(script) : 0,
        .returned_transfers = (odd & 8) ? next_byte(script) : 0,
    };
    if (frame.type == HORON_MUX_DATA || frame.type == HORON_MUX_CONTROL || (odd & 16))
        frame.body_bytes = (uint32_t)some_size(sizes >> 4) % 2048;
    if (odd & 32)
        frame.offset = some_size(odd >> 6);
    if (frame.type == HORON_MUX_DATA && kind & 64) {
        frame.flags = HORON_MUX_FLAG_EAGER | HORON_MUX_FLAG_ANNOUNCES;
        frame.bytes = frame.body_bytes;
        frame.offset = 0;
        frame.tag &= HORON_MUX_SHORT_TAG_MAX;
    }
    if (frame.type == HORON_MUX_LOAN && !(odd & 16))
        frame.body_bytes = HORON_MUX_LOAN_BYTES;
    const size_t header_bytes = horon_mux_frame_encode(&frame, frame_bytes);
    if (header_bytes == HORON_MUX_HEADER_BYTES && kind & 64)
        frame_bytes[3] |= HORON_MUX_FLAG_ANNOUNCES; /* which stands in no header of this length */
    memset(frame_bytes + header_bytes, frame.type == HORON_MUX_LOAN ? odd & 1 : kind,
           frame.body_bytes);
    peer_says(fuzz, frame_bytes, header_bytes + frame.body_bytes);
    if (!(odd & 1)) /* else it stays in the link for a while */
        let_progress(fuzz, 100);
}

static void post(struct fuzz *fuzz, struct script *script, bool is_send, bool now)
{
    const struct horon_transfer_id id = some_id(next_byte(script));
    const size_t bytes = (size_t)some_size(next_byte(script));
    struct slot *slot = free_slot(fuzz, &id);
    if (!slot)
        return;
    slot->data = malloc(bytes); /* exactly: the sanitizer sees a byte beyond */
    if (slot->data)
        memset(slot->data, 1, bytes);
    slot->transfer = (struct horon_transfer){.id = id, .data = slot->data, .bytes = bytes};
    struct horon_error error = {0};
    horon_status_t status = HORON_OK;
    if (!is_send)
        status = horon_mux_post_recv(fuzz->mux, &slot->transfer, &error);
    else if (!now || !horon_mux_send_now(fuzz->mux, &slot->transfer))
        status = horon_mux_post_send(fuzz->mux, &slot->transfer, &error);
    slot->used = status == HORON_OK;
    if (!slot->used) {
        assert(error.text[0]);
        free(slot->data);
        slot->data = NULL;
    }
}

static void forget(struct fuzz *fuzz, uint64_t sequence)
{
    horon_mux_forget(fuzz->mux, 0, sequence);
    for (int i = 0; i < SLOTS; i++) {
        if (fuzz->slots[i].used && fuzz->slots[i].transfer.id.sequence == sequence) {
            free(fuzz->slots[i].data);
            fuzz->slots[i].data = NULL;
            fuzz->slots[i].used = false;
        }
    }
}

static void play(struct fuzz *fuzz, struct script *script)
{
    while (script->left > 0 && !fuzz->dead) {
        const uint8_t what = next_byte(script);
        switch (what & 7) {
        case 0:
        case 1:
        case 2:
            say_frame(fuzz, script);
            break;
        case 3:
            post(fuzz, script, true, what & 8);
            break;
        case 4:
            post(fuzz, script, false, false);
            break;
        case 5:
            forget(fuzz, some_sequence(what >> 3));
            break;
        case 6:
            fuzz->link->read_max = 1 + (size_t)some_size(what >> 4);
            fuzz->link->write_max = (size_t)some_size(next_byte(script));
            let_progress(fuzz, what & 8 ? 1 : 3);
            break;
        default: { /* raw bytes to the end of the script, or a control message of ours */
            if (what & 8) {
                (void)horon_mux_post_control(fuzz->mux, script->bytes, script->left & 63);
                break;
            }
            peer_says(fuzz, script->bytes, script->left);
            script->left = 0;
            break;
        }
        }
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t byte_count);
int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t byte_count)
{
    struct fuzz fuzz = {.link = horon_zalloc(1, sizeof *fuzz.link)};
    struct script script = {.bytes = bytes, .left = byte_count};
    const struct horon_mux_options options = {
        .eager_bytes = EAGER_BYTES,
        .eager_total_bytes = EAGER_TOTAL_BYTES,
        .control_bytes_max = CONTROL_BYTES_MAX,
        .generation = 1,
        .peer = 1,
        .peer_name = "rank 1",
        .on_control = hear,
        .on_announced = hear_of,
        .arg = &fuzz,
    };
    assert(fuzz.link);
    fuzz.link->base.ops = &fake_ops;
    fuzz.link->said = malloc(STREAM_BYTES);
    fuzz.link->base.lends = byte_count % 2;
    fuzz.link->base.own_stamp = &fuzz.link->own_stamp;
    fuzz.link->base.peer_stamp = &fuzz.link->peer_stamp;
    fuzz.link->fetches = byte_count % 4 == 1;
    assert(fuzz.link->said);
    fuzz.link->read_max = 100000;
    fuzz.link->write_max = 100000;
    if (horon_mux_create(&fuzz.link->base, &options, &fuzz.mux) != HORON_OK)
        abort();
    play(&fuzz, &script);
    let_progress(&fuzz, 1000);
    horon_mux_destroy(fuzz.mux);
    for (int i = 0; i < SLOTS; i++)
        free(fuzz.slots[i].data);
    return 0;
}
