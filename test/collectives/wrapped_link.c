/* SPDX-License-Identifier: Apache-2.0 */
#undef NDEBUG
#include "wrapped_link.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

enum { HEAD_BYTES = 4, BODY_BYTES_MAX = 700, FRAME_BYTES_MAX = HEAD_BYTES + BODY_BYTES_MAX };

struct wrapped_link {
    struct horon_link base;
    struct horon_link *inside;
    uint8_t send_secret[WRAPPED_SECRET_BYTES], receive_secret[WRAPPED_SECRET_BYTES];
    uint64_t sealed, opened; /* bytes so far, of each direction */
    uint8_t out[FRAME_BYTES_MAX], in[FRAME_BYTES_MAX];
    size_t out_begin, out_end; /* of a frame, what the link inside has not taken */
    size_t in_bytes;           /* of a frame that comes */
    size_t plain_begin;        /* of a whole frame, what was not given yet; 0: none is whole */
};

static uint8_t mask(const uint8_t *secret, uint64_t at)
{
    return (uint8_t)(at * 167 + 29 + (at >> 8)) ^ secret[at % WRAPPED_SECRET_BYTES];
}

static size_t body_bytes(const uint8_t *frame)
{
    return (size_t)frame[0] | (size_t)frame[1] << 8;
}

static uint16_t sum_of(const uint8_t *bytes, size_t count)
{
    uint16_t sum = 1;
    for (size_t i = 0; i < count; i++)
        sum = (uint16_t)(sum * 31 + bytes[i]);
    return sum;
}

/* Makes a frame of a prefix of the vector, behind the first `skip` bytes. @return its body's bytes
 */
static size_t seal(struct wrapped_link *link, const struct iovec *vector, int count, size_t skip)
{
    size_t used = 0;
    for (int i = 0; i < count && used < BODY_BYTES_MAX; i++) {
        const uint8_t *bytes = vector[i].iov_base;
        for (size_t b = 0; b < vector[i].iov_len && used < BODY_BYTES_MAX; b++) {
            if (skip > 0)
                skip--;
            else
                link->out[HEAD_BYTES + used++] = bytes[b] ^ mask(link->send_secret, link->sealed++);
        }
    }
    const uint16_t sum = sum_of(link->out + HEAD_BYTES, used);
    const uint8_t head[HEAD_BYTES] = {(uint8_t)used, (uint8_t)(used >> 8), (uint8_t)sum,
                                      (uint8_t)(sum >> 8)};
    memcpy(link->out, head, HEAD_BYTES);
    link->out_begin = 0;
    link->out_end = HEAD_BYTES + used;
    return used;
}

static horon_status_t flush(struct wrapped_link *link, struct horon_error *error)
{
    while (link->out_begin < link->out_end) {
        size_t sent = 0;
        const struct iovec rest = {.iov_base = link->out + link->out_begin,
                                   .iov_len = link->out_end - link->out_begin};
        horon_status_t status = link->inside->ops->send(link->inside, &rest, 1, &sent, error);
        if (status != HORON_OK)
            return status;
        link->out_begin += sent;
    }
    return HORON_OK;
}

static horon_status_t wrapped_send(struct horon_link *base, const struct iovec *vector, int count,
                                   size_t *sent_bytes_out, struct horon_error *error)
{
    struct wrapped_link *link = (struct wrapped_link *)base;
    const size_t wanted = horon_link_vector_bytes(vector, count);
    size_t taken = 0;
    horon_status_t status = flush(link, error);
    while (status == HORON_OK && taken < wanted) {
        taken += seal(link, vector, count, taken);
        status = flush(link, error);
    }
    *sent_bytes_out = taken;
    if (status == HORON_AGAIN && taken > 0 && taken < wanted)
        return HORON_OK;
    /* the last frame is held in part: what it holds was taken, and `interest` says so */
    return status == HORON_AGAIN && taken > 0 ? HORON_OK : status;
}

/* Reads on until a frame is whole. */
static horon_status_t gather(struct wrapped_link *link, struct horon_error *error)
{
    while (link->plain_begin == 0) {
        const size_t whole =
            link->in_bytes < HEAD_BYTES ? HEAD_BYTES : HEAD_BYTES + body_bytes(link->in);
        assert(whole <= FRAME_BYTES_MAX);
        if (link->in_bytes == whole && whole > HEAD_BYTES) {
            const size_t bytes = whole - HEAD_BYTES;
            assert(sum_of(link->in + HEAD_BYTES, bytes) ==
                   (link->in[2] | (unsigned)link->in[3] << 8));
            for (size_t i = 0; i < bytes; i++)
                link->in[HEAD_BYTES + i] ^= mask(link->receive_secret, link->opened++);
            link->plain_begin = HEAD_BYTES;
            return HORON_OK;
        }
        size_t got = 0;
        const struct iovec rest = {.iov_base = link->in + link->in_bytes,
                                   .iov_len = whole - link->in_bytes};
        horon_status_t status = link->inside->ops->recv(link->inside, &rest, 1, &got, error);
        if (status != HORON_OK)
            return status;
        link->in_bytes += got;
    }
    return HORON_OK;
}

/* Gives what is whole. @return bytes */
static size_t give(struct wrapped_link *link, uint8_t *to, size_t room)
{
    size_t bytes = link->in_bytes - link->plain_begin;
    bytes = bytes < room ? bytes : room;
    memcpy(to, link->in + link->plain_begin, bytes);
    link->plain_begin += bytes;
    if (link->plain_begin == link->in_bytes)
        link->plain_begin = link->in_bytes = 0;
    return bytes;
}

static horon_status_t wrapped_recv(struct horon_link *base, const struct iovec *vector, int count,
                                   size_t *got_bytes_out, struct horon_error *error)
{
    struct wrapped_link *link = (struct wrapped_link *)base;
    size_t got = 0;
    for (int i = 0; i < count; i++) {
        for (size_t at = 0; at < vector[i].iov_len;) {
            horon_status_t status = gather(link, error);
            *got_bytes_out = got;
            if (status != HORON_OK)
                return got > 0 ? HORON_OK : status; /* an end is told by the next call */
            const size_t part =
                give(link, (uint8_t *)vector[i].iov_base + at, vector[i].iov_len - at);
            at += part;
            got += part;
        }
    }
    *got_bytes_out = got;
    return HORON_OK;
}

static int wrapped_descriptor(const struct horon_link *base)
{
    const struct horon_link *inside = ((const struct wrapped_link *)base)->inside;
    return inside->ops->descriptor(inside);
}

static size_t held(const struct horon_link *base)
{
    const struct wrapped_link *link = (const struct wrapped_link *)base;
    return link->out_end - link->out_begin;
}

static unsigned wrapped_interest(const struct horon_link *base, bool sends)
{
    const struct horon_link *inside = ((const struct wrapped_link *)base)->inside;
    return inside->ops->interest(inside, sends || held(base) > 0);
}

static bool wrapped_ready(const struct horon_link *base)
{
    const struct wrapped_link *link = (const struct wrapped_link *)base;
    return link->plain_begin > 0 || link->inside->ops->ready(link->inside);
}

static void wrapped_found(struct horon_link *base, unsigned events)
{
    struct horon_link *inside = ((struct wrapped_link *)base)->inside;
    inside->ops->found(inside, events);
}

static size_t wrapped_undelivered(const struct horon_link *base)
{
    const struct horon_link *inside = ((const struct wrapped_link *)base)->inside;
    return held(base) + inside->ops->undelivered(inside);
}

static horon_status_t wrapped_check(struct horon_link *base, struct horon_error *error)
{
    struct horon_link *inside = ((struct wrapped_link *)base)->inside;
    return inside->ops->check(inside, error);
}

static void wrapped_destroy(struct horon_link *base)
{
    struct wrapped_link *link = (struct wrapped_link *)base;
    link->inside->ops->destroy(link->inside);
    free(link);
}

static const struct horon_link_ops wrapped_ops = {
    .name = "wrapped",
    .send = wrapped_send,
    .recv = wrapped_recv,
    .descriptor = wrapped_descriptor,
    .interest = wrapped_interest,
    .ready = wrapped_ready,
    .found = wrapped_found,
    .undelivered = wrapped_undelivered,
    .check = wrapped_check,
    .destroy = wrapped_destroy,
};

struct horon_link *wrapped_link_create(struct horon_link *inside)
{
    struct wrapped_link *link = calloc(1, sizeof *link);
    assert(link);
    link->base.ops = &wrapped_ops;
    link->inside = inside;
    return &link->base;
}

struct horon_link *wrapped_link_create_with(struct horon_link *inside, const uint8_t *send_secret,
                                            const uint8_t *receive_secret)
{
    struct wrapped_link *link = (struct wrapped_link *)wrapped_link_create(inside);
    memcpy(link->send_secret, send_secret, WRAPPED_SECRET_BYTES);
    memcpy(link->receive_secret, receive_secret, WRAPPED_SECRET_BYTES);
    return &link->base;
}
