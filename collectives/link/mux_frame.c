/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Encodes and decodes the header of a frame. What comes from the peer is bounded here before
 * anybody computes with it: a decoded DATA frame lies within its transfer, no sum of its fields
 * overflows, and its body is short. Whether the frame fits the transfers in flight is for
 * link/mux_recv.c to say.
 */
#include "link/mux_frame.h"

#include "codec.h"

#include <assert.h>
#include <inttypes.h>

#define FRAME_MAGIC 0x6f48u
/* The type, on the wire, of a frame of data that announces; beside those of enum horon_mux_type. */
#define SHORT_TYPE 8u
#define TYPE_AT 2
#define ANNOUNCES (HORON_MUX_FLAG_EAGER | HORON_MUX_FLAG_ANNOUNCES)

static_assert(HORON_MUX_BODY_BYTES_MAX <= UINT32_MAX, "body_bytes has 4 bytes");
static_assert(SHORT_TYPE > HORON_MUX_TAKEN, "a type of its own");

size_t horon_mux_frame_header_bytes(const uint8_t *bytes)
{
    return bytes[TYPE_AT] == SHORT_TYPE ? HORON_MUX_SHORT_HEADER_BYTES : HORON_MUX_HEADER_BYTES;
}

/* By words: what is copied by words next is then not in parts. */
static size_t encode_short(const struct horon_mux_frame *frame,
                           uint8_t header[HORON_MUX_HEADER_BYTES])
{
    struct horon_writer out = horon_writer_over(header, HORON_MUX_SHORT_HEADER_BYTES);
    assert(frame->type == HORON_MUX_DATA && frame->flags == ANNOUNCES);
    assert(frame->tag <= HORON_MUX_SHORT_TAG_MAX);
    assert(frame->bytes == frame->body_bytes && frame->offset == 0);
    horon_write_u64(&out, FRAME_MAGIC | SHORT_TYPE << 8 * TYPE_AT | frame->tag << 24 |
                              (uint64_t)frame->generation << 32);
    horon_write_u64(&out, frame->body_bytes | (uint64_t)frame->channel << 32);
    horon_write_u64(&out, frame->sequence);
    horon_write_u64(&out, frame->check);
    horon_write_u64(&out, frame->returned_bytes | (uint64_t)frame->returned_transfers << 32);
    assert(out.ok);
    assert(out.used == HORON_MUX_SHORT_HEADER_BYTES);
    return out.used;
}

size_t horon_mux_frame_encode(const struct horon_mux_frame *frame,
                              uint8_t header[HORON_MUX_HEADER_BYTES])
{
    if (frame->flags & HORON_MUX_FLAG_ANNOUNCES)
        return encode_short(frame, header);
    struct horon_writer out = horon_writer_over(header, HORON_MUX_HEADER_BYTES);
    horon_write_u16(&out, FRAME_MAGIC);
    horon_write_u8(&out, frame->type);
    horon_write_u8(&out, frame->flags);
    horon_write_u32(&out, frame->generation);
    horon_write_u32(&out, frame->body_bytes);
    horon_write_u32(&out, frame->channel);
    horon_write_u64(&out, frame->sequence);
    horon_write_u64(&out, frame->tag);
    horon_write_u64(&out, frame->check);
    horon_write_u64(&out, frame->bytes);
    horon_write_u64(&out, frame->offset);
    horon_write_u32(&out, frame->returned_bytes);
    horon_write_u32(&out, frame->returned_transfers);
    assert(out.ok);
    assert(out.used == HORON_MUX_HEADER_BYTES);
    return out.used;
}

void horon_mux_loan_encode(const struct horon_mux_loan *loan, uint8_t body[HORON_MUX_LOAN_BYTES])
{
    struct horon_writer out = horon_writer_over(body, HORON_MUX_LOAN_BYTES);
    horon_write_u64(&out, loan->at);
    horon_write_u64(&out, loan->stamp);
    assert(out.ok);
    assert(out.used == HORON_MUX_LOAN_BYTES);
}

struct horon_mux_loan horon_mux_loan_decode(const uint8_t body[HORON_MUX_LOAN_BYTES])
{
    struct horon_reader in = horon_reader_over(body, HORON_MUX_LOAN_BYTES);
    struct horon_mux_loan loan;
    loan.at = horon_read_u64(&in);
    loan.stamp = horon_read_u64(&in);
    assert(horon_reader_finished(&in));
    return loan;
}

static void read_short(struct horon_reader *in, struct horon_mux_frame *frame)
{
    *frame = (struct horon_mux_frame){.type = HORON_MUX_DATA, .flags = ANNOUNCES};
    const uint64_t first = horon_read_u64(in);
    frame->tag = (uint8_t)(first >> 24);
    frame->generation = (uint32_t)(first >> 32);
    const uint64_t second = horon_read_u64(in);
    frame->bytes = frame->body_bytes = (uint32_t)second;
    frame->channel = (uint32_t)(second >> 32);
    frame->sequence = horon_read_u64(in);
    frame->check = horon_read_u64(in);
    const uint64_t last = horon_read_u64(in);
    frame->returned_bytes = (uint32_t)last;
    frame->returned_transfers = (uint32_t)(last >> 32);
    assert(horon_reader_finished(in));
}

static void read_long(struct horon_reader *in, struct horon_mux_frame *frame)
{
    (void)horon_read_u16(in); /* the magic */
    frame->type = horon_read_u8(in);
    frame->flags = horon_read_u8(in);
    frame->generation = horon_read_u32(in);
    frame->body_bytes = horon_read_u32(in);
    frame->channel = horon_read_u32(in);
    frame->sequence = horon_read_u64(in);
    frame->tag = horon_read_u64(in);
    frame->check = horon_read_u64(in);
    frame->bytes = horon_read_u64(in);
    frame->offset = horon_read_u64(in);
    frame->returned_bytes = horon_read_u32(in);
    frame->returned_transfers = horon_read_u32(in);
    assert(horon_reader_finished(in));
}

/* NULL, or what is wrong with a piece of a transfer. */
static const char *data_fault(const struct horon_mux_frame *frame)
{
    if (frame->flags & ~ANNOUNCES)
        return "unknown flags";
    if (frame->body_bytes > HORON_MUX_BODY_BYTES_MAX)
        return "too long a piece of data";
    if (frame->offset > frame->bytes)
        return "data beyond the end of its transfer";
    if (frame->body_bytes > frame->bytes - frame->offset)
        return "data beyond the end of its transfer";
    if (frame->body_bytes == 0 && frame->bytes != 0)
        return "a piece of data without data";
    return NULL;
}

static const char *frame_fault(const struct horon_mux_frame *frame, size_t control_bytes_max)
{
    switch (frame->type) {
    case HORON_MUX_DATA:
        return data_fault(frame);
    case HORON_MUX_CONTROL:
        if (frame->flags)
            return "unknown flags";
        return frame->body_bytes > control_bytes_max ? "too long a control message" : NULL;
    case HORON_MUX_LOAN:
        if (frame->flags)
            return "unknown flags";
        return frame->body_bytes != HORON_MUX_LOAN_BYTES ? "a loan of another form" : NULL;
    case HORON_MUX_CREDIT:
    case HORON_MUX_WANT:
    case HORON_MUX_ROOM:
    case HORON_MUX_TAKEN:
        if (frame->flags)
            return "unknown flags";
        return frame->body_bytes ? "a body where none belongs" : NULL;
    }
    return "a frame of unknown type";
}

horon_status_t horon_mux_frame_decode(const uint8_t *header,
                                      const struct horon_mux_frame_limits *limits,
                                      struct horon_mux_frame *frame_out, struct horon_error *error)
{
    const size_t bytes = horon_mux_frame_header_bytes(header);
    struct horon_reader in = horon_reader_over(header, bytes);
    struct horon_mux_frame frame;
    assert(limits->peer_name);
    assert(limits->control_bytes_max > 0);
    if ((header[0] | (uint32_t)header[1] << 8) != FRAME_MAGIC)
        return horon_error_set(error, HORON_ERR_PROTO, "%s sent bytes that are no frame",
                               limits->peer_name);
    if (bytes == HORON_MUX_SHORT_HEADER_BYTES)
        read_short(&in, &frame);
    else
        read_long(&in, &frame);
    if (frame.generation != limits->generation)
        return horon_error_set(error, HORON_ERR_PROTO,
                               "%s sent a frame of generation %" PRIu32 ", this is %" PRIu32,
                               limits->peer_name, frame.generation, limits->generation);
    const char *fault = frame_fault(&frame, limits->control_bytes_max);
    if (bytes == HORON_MUX_HEADER_BYTES && (frame.flags & HORON_MUX_FLAG_ANNOUNCES))
        fault = "unknown flags"; /* which stand in no header of this length */
    if (fault)
        return horon_error_set(error, HORON_ERR_PROTO, "%s sent %s (type %u, %" PRIu32 " bytes)",
                               limits->peer_name, fault, (unsigned)frame.type, frame.body_bytes);
    if (frame.type == HORON_MUX_DATA) { /* what takes it computes with these */
        assert(frame.offset <= frame.bytes);
        assert(frame.body_bytes <= frame.bytes - frame.offset);
        assert(frame.body_bytes <= HORON_MUX_BODY_BYTES_MAX);
    }
    *frame_out = frame;
    return HORON_OK;
}
