/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What an engine hears: three ranks in one thread, on one to three hosts, run some operations while
 * somebody between them changes what one of them says. The first bytes choose places and
 * operations; then each frame of that rank draws from the script what becomes of it: it passes, is
 * lost, said twice, damaged, cut, exchanged, something is said before it, or memory that it shares
 * is scribbled on. Whatever comes: the others end every request once, with a reason if it failed;
 * and if nothing was changed, all succeed.
 */
#undef NDEBUG
#include "link/mux_frame.h"
#include "world/world.h"

#include "codec.h"
#include "engine/engine_state.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

enum { RANKS = 3, OPS_MAX = 6, RING_BYTES = 16384, TURNS_MAX = 300, QUIET_TURNS = 4 };
enum { FRAME_BYTES_MAX = 32768, OUTPUT_BYTES_MAX = 1 << 20 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

struct script {
    const uint8_t *bytes;
    size_t left;
};

/* One direction of a link: what @p from said, and what the other will hear of it. */
struct pipe {
    struct horon_ring *said, *heard; /* NULL: no link */
    struct horon_link *tap;          /* this side of said[from][to] and heard[to][from] */
    uint8_t in[FRAME_BYTES_MAX], out[FRAME_BYTES_MAX];
    size_t in_bytes, out_bytes;
    uint8_t last[512]; /* the last short frame, to be said again */
    size_t last_bytes;
    bool ended;
};

/* An operation as one rank sees it. */
struct part {
    struct horon_request *request;
    float *src, *dst;
    void *output; /* an allgather's */
};

struct fuzz {
    struct world *world;
    struct script script;
    int liar;
    bool lied, differs;
    struct pipe *pipes[RANKS][RANKS];
    struct part parts[OPS_MAX][RANKS];
    int ops;
};

static uint8_t next_byte(struct script *script)
{
    if (script->left == 0)
        return 0;
    script->left--;
    return *script->bytes++;
}

/* ---- Links ----------------------------------------------------------------------------------- */

static struct horon_ring *make_ring(void)
{
    const size_t bytes = (horon_ring_bytes(RING_BYTES) + 63) / 64 * 64;
    struct horon_ring *ring = aligned_alloc(64, bytes);
    assert(ring);
    memset(ring, 0, sizeof *ring);
    return ring;
}

static uint64_t read_clock(void *arg)
{
    return ((const struct world *)arg)->now_ns;
}

static bool are_linked(const struct fuzz *fuzz, int a, int b)
{
    const struct horon_topology *topology = &fuzz->world->ranks[a].topology;
    return horon_topology_parent(topology, a) == b || horon_topology_parent(topology, b) == a ||
           horon_topology_linked(topology, a, b);
}

static void make_pipes(struct fuzz *fuzz)
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

static void make_engine(struct fuzz *fuzz, int rank)
{
    struct world_rank *self = &fuzz->world->ranks[rank];
    struct horon_link *links[RANKS] = {0};
    struct horon_error error = {0};
    for (int peer = 0; peer < RANKS; peer++)
        if (fuzz->pipes[rank][peer])
            assert(horon_link_ring_create(fuzz->pipes[rank][peer]->said,
                                          fuzz->pipes[peer][rank]->heard, RING_BYTES, NULL,
                                          &links[peer]) == HORON_OK);
    const struct horon_engine_options options = {
        .config = &fuzz->world->config,
        .topology = &self->topology,
        .host = &self->host,
        .links = links,
        .now_ns = read_clock,
        .now_arg = fuzz->world,
        .log = &fuzz->world->log,
        .ended = world_release,
        .release = world_release,
    };
    assert(horon_engine_create(&options, &self->engine, &error) == HORON_OK);
}

static void free_pipes(struct fuzz *fuzz)
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

static void say_abort(struct pipe *pipe, struct script *script)
{
    uint8_t body[300];
    char text[256] = "";
    struct horon_writer out = horon_writer_over(body, sizeof body);
    memset(text, 'a', next_byte(script));
    horon_write_u8(&out, HORON_CONTROL_ABORT);
    horon_write_varint(&out, 0); /* the job */
    horon_write_u32(&out, (uint32_t)(int8_t)next_byte(script));
    horon_write_string(&out, text);
    say_control(pipe, body, out.used);
}

static void say_goodbye(struct pipe *pipe, struct script *script)
{
    uint8_t body[64];
    struct horon_writer out = horon_writer_over(body, sizeof body);
    const uint8_t rank = next_byte(script);
    horon_write_u8(&out, rank & 64 ? HORON_CONTROL_END : HORON_CONTROL_GOODBYE);
    horon_write_varint(&out, 0); /* the job */
    for (int i = 0; i < HORON_LEFT_COUNT; i++) {
        horon_write_u64(&out, (uint64_t)(int64_t)(int8_t)next_byte(script));
        horon_write_u32(&out, rank & 128 ? UINT32_MAX : (rank >> i) & 3); /* the ranks to blame */
    }
    say_control(pipe, body, out.used);
}

/* A control message as it stands in the script, behind its kind. */
static void say_script(struct pipe *pipe, struct script *script)
{
    uint8_t body[256] = {next_byte(script) % 5};
    size_t bytes = next_byte(script);
    bytes = bytes < script->left ? bytes : script->left;
    memcpy(body + 1, script->bytes, bytes);
    script->bytes += bytes;
    script->left -= bytes;
    say_control(pipe, body, 1 + bytes);
}

/* Another value in one field of the header. */
static void change_field(struct horon_mux_frame *frame, uint8_t which, uint8_t value)
{
    const uint64_t wide = value & 64 ? (uint64_t)(int64_t)(int8_t)value : value & 63;
    switch (which % 9) {
    case 0:
        frame->type = value % 7;
        break;
    case 1:
        frame->flags = value & 3;
        break;
    case 2:
        frame->channel = (uint32_t)wide;
        break;
    case 3:
        frame->sequence += wide;
        break;
    case 4:
        frame->tag ^= wide << (value & 128 ? 32 : 0);
        break;
    case 5:
        frame->check ^= wide;
        break;
    case 6:
        frame->bytes += wide;
        break;
    case 7:
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
    struct horon_abort_record *record = horon_host_abort(host);
    const uint8_t what = next_byte(script), value = next_byte(script);
    const uint64_t wide = (uint64_t)(int64_t)(int8_t)value;
    struct horon_slot_head *slot = horon_host_small(
        host, horon_engine_arena_at(&host->shape, what >> 3 & 1), host->local_rank, what >> 4 & 1);
    switch (what & 7) {
    case 0:
        record->status = (int32_t)wide;
        memset(record->text, what & 8 ? 'a' : 0, sizeof record->text);
        atomic_store(&record->state, 2);
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
        if (byte_count > HORON_MUX_HEADER_BYTES) {
            const size_t body_bytes = byte_count - HORON_MUX_HEADER_BYTES;
            const size_t at = next_byte(script) % body_bytes;
            bytes[HORON_MUX_HEADER_BYTES + at] = next_byte(script);
        }
        break;
    case 5: /* cut in a way that the framing survives */
        frame->body_bytes = next_byte(script) % (frame->body_bytes + 1);
        horon_mux_frame_encode(frame, bytes);
        byte_count = HORON_MUX_HEADER_BYTES + frame->body_bytes;
        break;
    case 6:
        say_abort(pipe, script);
        break;
    case 7:
        say_goodbye(pipe, script);
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
    while (!pipe->ended && pipe->in_bytes - used >= HORON_MUX_HEADER_BYTES) {
        struct horon_mux_frame frame;
        struct horon_error error;
        uint8_t *bytes = pipe->in + used;
        assert(horon_mux_frame_decode(bytes, &limits, &frame, &error) == HORON_OK);
        const size_t byte_count = HORON_MUX_HEADER_BYTES + frame.body_bytes;
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
static bool carry(struct fuzz *fuzz, int from, int to)
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

/* ---- Operations ------------------------------------------------------------------------------ */

static void *make_output(void *arg, uint64_t rows, size_t bytes)
{
    struct part *part = arg;
    (void)rows;
    assert(!part->output);
    if (bytes <= OUTPUT_BYTES_MAX) /* what a liar adds up to is more */
        part->output = malloc(bytes);
    return part->output;
}

static void submit(struct fuzz *fuzz, int rank, int op, uint8_t what, uint8_t odd)
{
    static const uint64_t counts[] = {1, 0, 7, 300, 1500, 3000};
    char name[] = {(char)('a' + op), 0};
    struct part *part = &fuzz->parts[op][rank];
    horon_descriptor_t desc = HORON_DESCRIPTOR_INIT;
    desc.verb = what & 3;
    desc.dtype = HORON_FLOAT32;
    desc.redop = HORON_SUM;
    desc.flags = what & 4 ? HORON_IN_ORDER : 0;
    desc.name = desc.verb == HORON_BARRIER ? NULL : name;
    desc.count = desc.verb == HORON_BARRIER ? 0 : counts[(what >> 3) % 6];
    desc.root = desc.verb == HORON_BROADCAST ? (what >> 6) % RANKS : 0;
    if (desc.verb == HORON_ALLGATHER)
        desc.count += (uint64_t)rank;
    if (odd) { /* no liar is needed for ranks that differ */
        desc.count += desc.verb != HORON_BARRIER;
        fuzz->differs = true;
    }
    const size_t bytes = (size_t)desc.count * sizeof(float);
    part->src = malloc(bytes); /* exactly: the sanitizer sees a byte beyond */
    part->dst = malloc(bytes);
    assert(part->src && part->dst);
    memset(part->src, rank, bytes);
    desc.src = part->src;
    desc.dst = desc.verb == HORON_ALLGATHER ? NULL : part->dst;
    desc.alloc = desc.verb == HORON_ALLGATHER ? make_output : NULL;
    desc.alloc_arg = part;
    part->request = world_submit(fuzz->world, rank, &desc);
}

static void submit_all(struct fuzz *fuzz)
{
    fuzz->ops = 1 + next_byte(&fuzz->script) % OPS_MAX;
    for (int op = 0; op < fuzz->ops; op++) {
        const uint8_t what = next_byte(&fuzz->script), whose = next_byte(&fuzz->script);
        for (int rank = 0; rank < RANKS; rank++) {
            if (whose >> rank & 1)
                fuzz->differs = true; /* that rank does not take part */
            else
                submit(fuzz, rank, op, what, whose >> (4 + rank) & 1);
        }
    }
}

static bool turn(struct fuzz *fuzz)
{
    bool moved = false;
    for (int rank = 0; rank < RANKS; rank++) {
        moved |= horon_engine_progress(fuzz->world->ranks[rank].engine);
        for (int peer = 0; peer < RANKS; peer++) {
            moved |= carry(fuzz, rank, peer);
            moved |= carry(fuzz, peer, rank);
        }
    }
    fuzz->world->now_ns += 1000;
    return moved;
}

static void check_ended(const struct fuzz *fuzz, bool must_succeed)
{
    for (int op = 0; op < fuzz->ops; op++)
        for (int rank = 0; rank < RANKS; rank++) {
            const struct horon_request *request = fuzz->parts[op][rank].request;
            if (!request)
                continue;
            const bool ended = atomic_load(&request->state) == HORON_REQUEST_ENDED;
            assert(ended || !must_succeed);
            if (!ended)
                continue;
            assert(request->status == HORON_OK || request->status < 0);
            assert(request->status == HORON_OK || request->error_text);
            assert(request->status == HORON_OK || !must_succeed);
        }
    for (int rank = 0; rank < RANKS; rank++) {
        const char *text = "";
        const struct horon_engine *engine = fuzz->world->ranks[rank].engine;
        const horon_status_t status = world_failure(engine, &text);
        assert(engine->job->failed ? status < 0 && text[0] : status == HORON_OK);
    }
}

static void play(struct fuzz *fuzz, bool one_leaves)
{
    submit_all(fuzz);
    int quiet = 0;
    for (int i = 0; i < TURNS_MAX && quiet < QUIET_TURNS; i++)
        quiet = turn(fuzz) ? 0 : quiet + 1;
    check_ended(fuzz, !fuzz->lied && !fuzz->differs);
    if (one_leaves) {
        horon_engine_leave(fuzz->world->ranks[(fuzz->liar + 1) % RANKS].engine);
        for (int i = 0; i < QUIET_TURNS; i++)
            turn(fuzz);
        check_ended(fuzz, false);
    }
}

static void end(struct fuzz *fuzz)
{
    for (int rank = 0; rank < RANKS; rank++)
        horon_engine_leave(fuzz->world->ranks[rank].engine); /* ends what is in flight */
    for (int op = 0; op < fuzz->ops; op++)
        for (int rank = 0; rank < RANKS; rank++) {
            struct part *part = &fuzz->parts[op][rank];
            assert(!part->request || atomic_load(&part->request->state) == HORON_REQUEST_ENDED);
            world_release(part->request);
            free(part->src);
            free(part->dst);
            free(part->output);
        }
    world_destroy(fuzz->world);
    free_pipes(fuzz);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    static const int shapes[][RANKS] = {{1, 1, 1}, {2, 1}, {1, 2}, {3}};
    static const int host_counts[] = {3, 2, 2, 1};
    static const char *const settings[] = {"SHM_CHUNK_BYTES=4096", "SHM_SMALL_BYTES=512",
                                           "NET_EAGER_BYTES=200",  "NET_CHUNK_BYTES=4096",
                                           "CACHE_ENTRIES=3",      NULL};
    struct fuzz fuzz = {.script = {.bytes = data, .left = bytes}};
    const uint8_t place = next_byte(&fuzz.script);
    const int shape = place & 3;
    fuzz.liar = (place >> 2) % RANKS;
    fuzz.world = world_create_bare(shapes[shape], host_counts[shape], settings, 1);
    make_pipes(&fuzz);
    for (int rank = 0; rank < RANKS; rank++)
        make_engine(&fuzz, rank);
    play(&fuzz, place & 128);
    end(&fuzz);
    return 0;
}
