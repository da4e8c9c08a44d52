/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Somebody between the ranks of fuzz_engine: takes whole frames from one link and gives them to the
 * other. Those of one rank, the liar, the script passes, loses, says twice, damages, cuts or
 * exchanges; or it says something before them, or scribbles on memory that the rank shares.
 */
#undef NDEBUG
#include "liar.h"

#include "codec.h"
#include "engine/engine_state.h"
#include "link/mux_frame.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

/* ---- Links ----------------------------------------------------------------------------------- */

static struct horon_ring *make_ring(void)
{
    const size_t bytes = (horon_ring_bytes(RING_BYTES) + 63) / 64 * 64;
    struct horon_ring *ring = aligned_alloc(64, bytes);
    assert(ring);
    memset(ring, 0, sizeof *ring);
    return ring;
}

static bool are_linked(const struct fuzz *fuzz, int a, int b)
{
    const struct horon_topology *topology = &fuzz->world->ranks[a].topology;
    return horon_topology_parent(topology, a) == b || horon_topology_parent(topology, b) == a ||
           horon_topology_linked(topology, a, b);
}

void fuzz_make_pipes(struct fuzz *fuzz)
{
    for (int a = 0; a < RANKS; a++)
        for (int b = 0; b < RANKS; b++) {
            if (a == b || !are_linked(fuzz, a, b))
                continue;
            fuzz->pipes[a][b] = calloc(1, sizeof *fuzz->pipes[a][b]);
            assert(fuzz->pipes[a][b]);
            fuzz->pipes[a][b]->said = make_ring();
            fuzz->pipes[a][b]->heard = make_ring();
        }
    for (int a = 0; a < RANKS; a++)
        for (int b = 0; b < RANKS; b++)
            if (fuzz->pipes[a][b])
                assert(horon_link_ring_create(fuzz->pipes[b][a]->heard, fuzz->pipes[a][b]->said,
                                              RING_BYTES, NULL,
                                              &fuzz->pipes[a][b]->tap) == HORON_OK);
}

void fuzz_make_links(struct fuzz *fuzz, int rank, struct horon_link **links)
{
    for (int peer = 0; peer < RANKS; peer++)
        if (fuzz->pipes[rank][peer])
            assert(horon_link_ring_create(fuzz->pipes[rank][peer]->said,
                                          fuzz->pipes[peer][rank]->heard, RING_BYTES, NULL,
                                          &links[peer]) == HORON_OK);
}

void fuzz_free_pipes(struct fuzz *fuzz)
{
    for (int a = 0; a < RANKS; a++)
        for (int b = 0; b < RANKS; b++)
            if (fuzz->pipes[a][b])
                fuzz->pipes[a][b]->tap->ops->destroy(fuzz->pipes[a][b]->tap);
    for (int a = 0; a < RANKS; a++)
        for (int b = 0; b < RANKS; b++)
            if (fuzz->pipes[a][b]) {
                free(fuzz->pipes[a][b]->said);
                free(fuzz->pipes[a][b]->heard);
                free(fuzz->pipes[a][b]);
            }
}

/* ---- What becomes of a frame ----------------------------------------------------------------- */

static void say(struct pipe *pipe, const void *bytes, size_t byte_count)
{
    if (byte_count > sizeof pipe->out - pipe->out_bytes)
        return;
    memcpy(pipe->out + pipe->out_bytes, bytes, byte_count);
    pipe->out_bytes += byte_count;
}

static void say_control(struct pipe *pipe, const uint8_t *body, size_t body_bytes)
{
    uint8_t header[HORON_MUX_HEADER_BYTES];
    const struct horon_mux_frame frame = {.type = HORON_MUX_CONTROL,
                                          .body_bytes = (uint32_t)body_bytes};
    horon_mux_frame_encode(&frame, header);
    say(pipe, header, sizeof header);
    say(pipe, body, body_bytes);
}

/* @param team  0: the job; 2 and 3 there are never */
static void say_abort(struct pipe *pipe, struct script *script, uint8_t team)
{
    uint8_t body[300];
    char text[256] = "";
    struct horon_writer out = horon_writer_over(body, sizeof body);
    memset(text, 'a', next_byte(script));
    horon_write_u8(&out, HORON_CONTROL_ABORT);
    horon_write_varint(&out, team);
    horon_write_u32(&out, (uint32_t)(int8_t)next_byte(script));
    horon_write_string(&out, text);
    say_control(pipe, body, out.used);
}

static void say_goodbye(struct pipe *pipe, struct script *script, uint8_t team)
{
    uint8_t body[64];
    struct horon_writer out = horon_writer_over(body, sizeof body);
    const uint8_t rank = next_byte(script);
    horon_write_u8(&out, rank & 64 ? HORON_CONTROL_END : HORON_CONTROL_GOODBYE);
    horon_write_varint(&out, team);
    for (int i = 0; i < HORON_LEFT_COUNT; i++) {
        horon_write_u64(&out, (uint64_t)(int64_t)(int8_t)next_byte(script));
        horon_write_u32(&out, rank & 128 ? UINT32_MAX : (rank >> i) & 3); /* the ranks to blame */
    }
    say_control(pipe, body, out.used);
}

/* A control message as it stands in the script, behind its kind. */
static void say_script(struct pipe *pipe, struct script *script)
{
    uint8_t body[256] = {next_byte(script) % (HORON_CONTROL_GAVE_UP + 1)};
    size_t bytes = next_byte(script);
    bytes = bytes < script->left ? bytes : script->left;
    memcpy(body + 1, script->bytes, bytes);
    script->bytes += bytes;
    script->left -= bytes;
    say_control(pipe, body, 1 + bytes);
}

/* Another value in one field of the header, which stays as long as it is: that of a frame that
 * announces has no room for more. */
static void change_field(struct horon_mux_frame *frame, uint8_t which, uint8_t value)
{
    const uint64_t wide = value & 64 ? (uint64_t)(int64_t)(int8_t)value : value & 63;
    const bool announces = frame->flags & HORON_MUX_FLAG_ANNOUNCES;
    switch (announces ? 2 + which % 6 : which % 9) {
    case 0:
        frame->type = value % 7;
        break;
    case 1:
        frame->flags = value & HORON_MUX_FLAG_EAGER;
        break;
    case 2:
        frame->channel = (uint32_t)wide;
        break;
    case 3:
        frame->sequence += wide;
        break;
    case 4:
        frame->tag ^= announces ? value : wide << (value & 128 ? 32 : 0);
        break;
    case 5:
        frame->check ^= wide;
        break;
    case 7:
        if (!announces)
            frame->bytes += wide;
        break;
    case 8:
        frame->offset += wide;
        break;
    default:
        frame->returned_bytes = (uint32_t)wide;
        frame->returned_transfers = (uint32_t)wide;
    }
}

/* Anything may stand in memory that it shares with others. */
static void scribble(const struct fuzz *fuzz, struct pipe *pipe, struct script *script)
{
    const struct horon_host *host = &fuzz->world->ranks[fuzz->liar].host;
    struct horon_team_line *line = horon_host_team_line(host, host->local_rank);
    struct horon_aborts *aborts = horon_host_aborts(host);
    struct horon_abort_record *record = &aborts->of[host->local_rank];
    const uint8_t what = next_byte(script), value = next_byte(script);
    const uint64_t wide = (uint64_t)(int64_t)(int8_t)value;
    struct horon_slot_head *slot = horon_host_small(
        host, horon_engine_arena_at(&host->shape, what >> 3 & 1), host->local_rank, what >> 4 & 1);
    switch (what & 7) {
    case 0:
        record->status = (int32_t)wide;
        memset(record->text, what & 8 ? 'a' : 0, sizeof record->text);
        record->generation = host->generation;
        atomic_store(&aborts->claimed, (uint32_t)(1 + host->local_rank) + (what & 8 ? value : 0u));
        break;
    case 1:
        for (int i = 0; i < HORON_LEFT_COUNT; i++)
            atomic_store(&line->sequence[i], wide);
        atomic_store(&line->culprit[0], value);
        atomic_store(&line->left, what & 8);
        atomic_fetch_add(&line->version, 2);
        break;
    case 2:
        atomic_fetch_add(&pipe->heard->written, wide);
        break;
    case 3:
        atomic_store(&pipe->heard->writer_closed, 1);
        break;
    case 4:
        slot->count = wide;
        break;
    case 5:
        slot->check ^= wide;
        break;
    case 6:
        atomic_store(&slot->sequence, wide);
        break;
    default:
        slot->verb ^= value & 3;
        slot->root = value;
    }
}

/* Lets a frame of the liar pass, or not quite. */
static void lie(struct fuzz *fuzz, struct pipe *pipe, uint8_t *bytes, size_t byte_count,
                struct horon_mux_frame *frame)
{
    struct script *script = &fuzz->script;
    const size_t header_bytes = horon_mux_frame_header_bytes(bytes);
    const uint8_t what = next_byte(script);
    switch (what & 15) {
    case 1:
        return;
    case 2:
        say(pipe, bytes, byte_count);
        break;
    case 3: /* a byte anywhere */
        bytes[(size_t)(next_byte(script) * 131u) % byte_count] ^= next_byte(script);
        break;
    case 4: /* a byte of the body, near its beginning */
        if (byte_count > header_bytes) {
            const size_t at = next_byte(script) % (byte_count - header_bytes);
            bytes[header_bytes + at] = next_byte(script);
        }
        break;
    case 5: /* cut in a way that the framing survives */
        frame->body_bytes = next_byte(script) % (frame->body_bytes + 1);
        if (frame->flags & HORON_MUX_FLAG_ANNOUNCES)
            frame->bytes = frame->body_bytes;
        horon_mux_frame_encode(frame, bytes);
        byte_count = header_bytes + frame->body_bytes;
        break;
    case 6:
        say_abort(pipe, script, what >> 4 & 3);
        break;
    case 7:
        say_goodbye(pipe, script, what >> 4 & 3);
        break;
    case 8:
        say_script(pipe, script);
        break;
    case 9:
    case 10: {
        const uint8_t which = next_byte(script);
        change_field(frame, which, next_byte(script));
        horon_mux_frame_encode(frame, bytes);
        break;
    }
    case 11:
        say(pipe, pipe->last, pipe->last_bytes);
        break;
    case 12: /* gone in the middle of it */
        byte_count = next_byte(script) % byte_count;
        pipe->ended = true;
        break;
    case 13:
        scribble(fuzz, pipe, script);
        break;
    default:
        break;
    }
    say(pipe, bytes, byte_count);
}

static bool is_changed(const struct fuzz *fuzz)
{
    return fuzz->script.left > 0 && *fuzz->script.bytes & 15 && (*fuzz->script.bytes & 15) < 14;
}

/* Hands on whole frames. */
static void carry_frames(struct fuzz *fuzz, struct pipe *pipe, bool lies)
{
    const struct horon_mux_frame_limits limits = {.control_bytes_max = HORON_CONTROL_BYTES_MAX,
                                                  .peer_name = "the liar"};
    size_t used = 0;
    while (!pipe->ended && pipe->in_bytes - used >= HORON_MUX_SHORT_HEADER_BYTES) {
        struct horon_mux_frame frame;
        struct horon_error error;
        uint8_t *bytes = pipe->in + used;
        const size_t header_bytes = horon_mux_frame_header_bytes(bytes);
        if (pipe->in_bytes - used < header_bytes)
            break;
        assert(horon_mux_frame_decode(bytes, &limits, &frame, &error) == HORON_OK);
        const size_t byte_count = header_bytes + frame.body_bytes;
        assert(byte_count <= FRAME_BYTES_MAX / 2);
        if (pipe->in_bytes - used < byte_count || pipe->out_bytes > FRAME_BYTES_MAX / 4)
            break;
        used += byte_count;
        if (!lies) {
            say(pipe, bytes, byte_count);
            continue;
        }
        uint8_t now[sizeof pipe->last];
        if (byte_count <= sizeof now)
            memcpy(now, bytes, byte_count);
        fuzz->lied |= is_changed(fuzz);
        lie(fuzz, pipe, bytes, byte_count, &frame);
        if (byte_count <= sizeof now) {
            memcpy(pipe->last, now, byte_count);
            pipe->last_bytes = byte_count;
        }
    }
    memmove(pipe->in, pipe->in + used, pipe->in_bytes - used);
    pipe->in_bytes -= used;
}

/* @return did anything move? */
bool fuzz_carry(struct fuzz *fuzz, int from, int to)
{
    struct pipe *pipe = fuzz->pipes[from][to];
    struct horon_error error = {0};
    size_t got = 0, sent = 0;
    if (!pipe)
        return false;
    struct iovec room = {pipe->in + pipe->in_bytes, sizeof pipe->in - pipe->in_bytes};
    if (room.iov_len > 0)
        (void)pipe->tap->ops->recv(pipe->tap, &room, 1, &got, &error);
    pipe->in_bytes += got;
    carry_frames(fuzz, pipe, from == fuzz->liar);
    struct iovec there = {pipe->out, pipe->out_bytes};
    struct horon_link *tap = fuzz->pipes[to][from]->tap; /* faces the rank that hears */
    if (there.iov_len > 0)
        (void)tap->ops->send(tap, &there, 1, &sent, &error);
    memmove(pipe->out, pipe->out + sent, pipe->out_bytes - sent);
    pipe->out_bytes -= sent;
    if (pipe->ended && pipe->out_bytes == 0)
        atomic_store(&pipe->heard->writer_closed, 1);
    return got > 0 || sent > 0;
}
