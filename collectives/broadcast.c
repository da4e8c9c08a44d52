/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Broadcast: every rank's output becomes root's input. Completion is local: root does not learn
 * that the others have it, they do not learn of each other.
 *
 * On root's host everybody reads root's slot. To another host each slice travels once, among its
 * carriers. Many bytes go along the chain of hosts (plan/broadcast_chain.c): each host sends and
 * receives S at most. Fewer go down a binomial tree (plan/broadcast.c): log2(H) steps, in each of
 * which root's host sends S. Five hosts, root on host 0:
 *
 *      chain  0->1->2->3->4        tree  0->1, then 0->2 1->3, then 0->4
 *
 * There everybody reads the carriers' slots. Small ones travel whole between the first ranks of the
 * hosts, and are published in a result slot.
 *
 * Of two ranks on one host the other reads what is neither small nor long where it lies, in root's
 * input (exec/lent.h). Root stays until it has.
 *
 * A rank meets one other before it waits for anything else, since ranks that began something else
 * may never do that: root on root's host, elsewhere the first rank, which compares with its peers.
 * Root meets all of its host if it has to wait for them at all.
 */
#include "exec/exchange.h"
#include "exec/lent.h"
#include "exec/walk.h"

#include <string.h>

/* Of a chunk that the others begin with. Where there is more than one of them, root fills the next
 * one meanwhile: that is faster than one copy. */
enum { EARLY_BYTES_MIN = 128 << 10 };

struct broadcast {
    bool small;
    bool reads; /* the other of two ranks reads root's input where it lies */
    bool is_root, on_root_host;
    /* Root waits for those of its host before it is over: until they read, or make room. So it can
     * see as well whether all have begun the same, before anything else. */
    bool stays;
    int above; /* local rank that this one meets, perhaps itself */
    struct horon_exchange exchange;
    struct horon_cursor post_at, out_at;
    struct horon_lent lent;
};

static struct broadcast *state_of(const struct horon_channel *channel)
{
    assert(channel->verb == &horon_broadcast_ops);
    return channel->state;
}

static size_t state_bytes(const struct horon_team *team)
{
    return sizeof(struct broadcast) + horon_lent_table_bytes(team);
}

static void init(void *memory, const struct horon_team *team)
{
    struct broadcast *state = memory;
    (void)team;
    state->exchange = (struct horon_exchange){.op = HORON_SUM};
    state->lent.parts = (struct horon_lent_part *)(void *)(state + 1);
}

/* Both ranks say the same: they know as much of the operation, also one that has joined. */
static bool may_be_read(const struct horon_channel *channel, size_t bytes)
{
    return channel->team->size == 2 && bytes <= EARLY_BYTES_MIN &&
           horon_lent_serves(channel, bytes);
}

static size_t most_chunk_bytes(const struct horon_channel *channel, size_t bytes)
{
    const size_t most = channel->host->shape.chunk_bytes, net = channel->options.net_chunk_bytes;
    if (channel->team->host_count > 1)
        return most < net ? most : net;
    return horon_pipeline_early_chunk(bytes, EARLY_BYTES_MIN, most);
}

static void begin(struct horon_channel *channel)
{
    struct broadcast *state = state_of(channel);
    const struct horon_team *team = channel->team;
    const int root = channel->op->agreed.root;
    assert(root >= 0);
    assert(root < team->size);
    const int host = team->host_of[root];
    const size_t bytes = (size_t)channel->count * channel->element_bytes;
    state->small = bytes <= horon_channel_small_limit(channel);
    state->reads = !state->small && may_be_read(channel, bytes);
    state->stays =
        !state->small && (state->reads || bytes > HORON_SLOTS * most_chunk_bytes(channel, bytes));
    state->is_root = team->rank == root;
    state->on_root_host = team->host == host;
    state->above = state->on_root_host ? team->local_rank_of[root] : 0;
    if (team->host_count > 1)
        state->exchange.kind = horon_exchange_choose(channel, HORON_PLAN_FROM_ROOT, channel->count);
    state->exchange.root = host;
    state->exchange.dtype = (horon_dtype_t)channel->op->agreed.dtype;
}

static void enter(struct horon_channel *channel)
{
    const struct broadcast *state = state_of(channel);
    struct horon_cursor cursor = {0};
    if (!state->is_root)
        return;
    if (state->small)
        horon_cursor_copy_in(
            channel, &cursor, 0, channel->count,
            horon_phase_place(channel, (size_t)channel->count * channel->element_bytes));
    if (state->reads) {
        struct horon_lent_input offer = {0};
        if (channel->op->part_count == 1)
            offer = horon_lent_offer(channel, channel->op->parts[0].src);
        memcpy(horon_phase_place(channel, sizeof offer), &offer, sizeof offer);
    }
    for (size_t i = 0; i < channel->op->part_count; i++) { /* root's output, if it has its own */
        const struct horon_part *part = &channel->op->parts[i];
        if (part->dst && part->dst != part->src && part->count)
            memcpy(part->dst, part->src, part->count * channel->element_bytes);
    }
}

static horon_status_t entered(struct horon_channel *channel, struct horon_error *error)
{
    (void)error;
    const struct broadcast *state = state_of(channel);
    const bool sends = channel->team->host_count > 1 && channel->team->local_rank == 0;
    if (state->is_root && state->small && !sends)
        return HORON_OK;
    return horon_phase_meet(channel,
                            state->is_root && state->stays ? HORON_MEET_ALL : state->above);
}

/* ---- small ---------------------------------------------------------------------------------- */

static horon_status_t copy_small(struct horon_channel *channel, const uint8_t *data)
{
    struct horon_cursor cursor = {0};
    horon_cursor_copy_out(channel, &cursor, 0, channel->count, data);
    return HORON_OK;
}

static uint8_t *result_data(const struct horon_channel *channel)
{
    return horon_slot_data(channel->result[horon_channel_slot(channel)]);
}

/* On root's host everybody reads root's slot; the first rank then also sends it on. */
static horon_status_t small_met(struct horon_channel *channel)
{
    const struct broadcast *state = state_of(channel);
    uint8_t *data = result_data(channel);
    if (state->on_root_host) {
        data = horon_channel_data(channel, state->above);
        if (!state->is_root)
            copy_small(channel, data);
        if (channel->team->host_count == 1 || channel->team->local_rank != 0)
            return HORON_OK;
    }
    if (channel->team->local_rank == 0)
        return horon_exchange_begin_small(channel, &state->exchange, data, channel->count);
    horon_phase_move(channel, HORON_PHASE_PUBLISH);
    return HORON_IN_PROGRESS;
}

static horon_status_t small_published(struct horon_channel *channel, struct horon_error *error)
{
    (void)error;
    return copy_small(channel, result_data(channel));
}

static horon_status_t small_exchanged(struct horon_channel *channel, struct horon_error *error)
{
    if (state_of(channel)->on_root_host)
        return HORON_OK;
    horon_phase_publish(channel);
    return small_published(channel, error);
}

/* ---- chunks ---------------------------------------------------------------------------------- */

/* Where a rank that has its host to itself sends a chunk from, or gets it; NULL: its slot. */
static uint8_t *own_memory(const struct horon_channel *channel, uint64_t chunk,
                           struct horon_cursor *cursor)
{
    struct horon_piece piece;
    if (!horon_chunk_is_in_place(channel, chunk, cursor, &piece))
        return NULL;
    return state_of(channel)->is_root ? (uint8_t *)(uintptr_t)piece.src : (uint8_t *)piece.dst;
}

/* Root fills its slot; there, or to their own, carriers then begin the exchange with other hosts.
 */
static horon_status_t post(struct horon_channel *channel, uint64_t chunk, struct horon_error *error)
{
    (void)error;
    struct broadcast *state = state_of(channel);
    const struct horon_team *team = channel->team;
    const uint64_t first = chunk * channel->pipeline.chunk_count;
    uint8_t *memory = own_memory(channel, chunk, &state->post_at);
    if (state->is_root) {
        if (!memory)
            horon_cursor_copy_in(channel, &state->post_at, first,
                                 first + horon_pipeline_elements(channel, chunk),
                                 horon_pipeline_slots(channel, chunk)[team->local_rank]);
        horon_pipeline_say_posted(channel, chunk);
    } else if (state->on_root_host && !horon_pipeline_has_posted(channel, state->above, chunk)) {
        return HORON_IN_PROGRESS;
    }
    if (!memory)
        memory = horon_pipeline_slots(channel,
                                      chunk)[state->on_root_host ? state->above : team->local_rank];
    horon_status_t status = HORON_OK;
    for (int index = 0; team->host_count > 1 && status == HORON_OK && index < channel->carried;
         index++)
        status = horon_exchange_begin_slice(channel, &state->exchange, chunk, index, memory);
    return status;
}

static horon_status_t exchange(struct horon_channel *channel, uint64_t chunk,
                               struct horon_error *error)
{
    if (channel->team->host_count == 1)
        return HORON_OK;
    const uint64_t end = channel->pipeline.next[HORON_STAGE_REDUCE];
    const horon_status_t status = horon_exchange_advance(channel, chunk, end, error);
    if (status == HORON_OK && !state_of(channel)->on_root_host)
        horon_pipeline_say_posted(channel, chunk);
    return status;
}

/* In one piece: cut into slices, a copy takes up to a third longer. */
static void copy_from_root(struct horon_channel *channel, uint64_t chunk)
{
    struct broadcast *state = state_of(channel);
    const uint64_t first = chunk * channel->pipeline.chunk_count;
    horon_cursor_copy_out(channel, &state->out_at, first,
                          first + horon_pipeline_elements(channel, chunk),
                          horon_pipeline_slots(channel, chunk)[state->above]);
}

static void copy_from_carriers(struct horon_channel *channel, uint64_t chunk)
{
    struct broadcast *state = state_of(channel);
    struct horon_walk all;
    horon_walk_begin(&all, channel, chunk, HORON_WALK_ALL, &state->out_at);
    for (uint64_t count; (count = horon_walk_run(channel, &all)) > 0;
         horon_walk_use(channel, &all, count))
        memcpy(all.run.dst, all.slots[horon_slice_owner(channel, all.segment)] + all.offset,
               count * channel->element_bytes);
}

static horon_status_t out(struct horon_channel *channel, uint64_t chunk, struct horon_error *error)
{
    (void)error;
    struct broadcast *state = state_of(channel);
    if (!state->on_root_host && !horon_pipeline_all_posted(channel, chunk))
        return HORON_IN_PROGRESS;
    if (state->on_root_host && !state->is_root)
        copy_from_root(channel, chunk);
    else if (!state->on_root_host && !own_memory(channel, chunk, &state->out_at))
        copy_from_carriers(channel, chunk);
    /* others' flags on root's host count chunks too, so that the next pipeline finds them alike */
    if (state->on_root_host && !state->is_root)
        horon_pipeline_set_posted(channel, chunk);
    horon_pipeline_say_reduced(channel, chunk);
    return HORON_OK;
}

/* Does root wait for that rank of its host, to begin, or to have what was in the slot? */
static bool root_awaits(const struct horon_channel *channel, int local, uint64_t chunk)
{
    const struct broadcast *state = state_of(channel);
    return local != state->above && ((state->stays && horon_phase_misses(channel, local)) ||
                                     horon_pipeline_keeps_slot(channel, local, chunk));
}

/* Does root owe it, and wait for nobody itself? */
static bool root_owes(const struct horon_channel *channel, uint64_t chunk)
{
    if (horon_pipeline_has_posted(channel, state_of(channel)->above, chunk))
        return false;
    for (int local = 0; local < channel->team->local_size; local++)
        if (root_awaits(channel, local, chunk))
            return false;
    return true;
}

static bool waits_for(const struct horon_channel *channel, int rank)
{
    const struct broadcast *state = state_of(channel);
    const struct horon_team *team = channel->team;
    const struct horon_pipeline *pipeline = &channel->pipeline;
    const uint64_t next = pipeline->next[HORON_STAGE_POST];
    const int local = team->local_rank_of[rank];
    if (team->host_of[rank] != team->host)
        return horon_exchange_waits_for(channel, pipeline->next[HORON_STAGE_REDUCE], rank);
    if (state->on_root_host && local == state->above && next < pipeline->chunks &&
        root_owes(channel, next))
        return true;
    if (state->on_root_host && state->stays && horon_phase_misses(channel, local))
        return true;
    return horon_pipeline_is_last(channel, local);
}

static const struct horon_pipeline_ops chunks = {
    .turn = horon_pipeline_turn,
    .step =
        {
            [HORON_STAGE_POST] = post,
            [HORON_STAGE_REDUCE] = horon_pipeline_pass,
            [HORON_STAGE_EXCHANGE] = exchange,
            [HORON_STAGE_OUT] = out,
        },
    .waits_for = waits_for,
};

static horon_status_t begin_chunks(struct horon_channel *channel)
{
    struct broadcast *state = state_of(channel);
    state->post_at = state->out_at = (struct horon_cursor){0};
    return horon_pipeline_begin(channel, &chunks, channel->count, channel->element_bytes,
                                most_chunk_bytes(channel, channel->count * channel->element_bytes));
}

/* ---- where it lies --------------------------------------------------------------------------- */

/* If root offers it: of several tensors it does not. */
static horon_status_t begin_to_read(struct horon_channel *channel)
{
    struct broadcast *state = state_of(channel);
    struct horon_lent_part *part = &state->lent.parts[state->above];
    struct horon_lent_input offer;
    memcpy(&offer, horon_channel_data(channel, state->above), sizeof offer);
    state->reads = offer.at != 0;
    if (!state->reads)
        return begin_chunks(channel);
    memset(state->lent.parts, 0, horon_lent_table_bytes(channel->team));
    if (!state->is_root && !channel->op->drops) {
        part->offer = offer;
        part->bytes = channel->count * channel->element_bytes;
        part->to = channel->op->parts[0].dst;
    }
    return horon_lent_begin(channel, &state->lent, false);
}

static horon_status_t met(struct horon_channel *channel, struct horon_error *error)
{
    (void)error;
    const struct broadcast *state = state_of(channel);
    if (state->small)
        return small_met(channel);
    return state->reads ? begin_to_read(channel) : begin_chunks(channel);
}

/* Root's input could not be read: it goes through slots. */
static horon_status_t piped(struct horon_channel *channel, struct horon_error *error)
{
    struct broadcast *state = state_of(channel);
    (void)error;
    if (!state->reads || !state->lent.refused)
        return HORON_OK;
    state->reads = false;
    return begin_chunks(channel);
}

const struct horon_verb_ops horon_broadcast_ops = {
    .state_bytes = state_bytes,
    .init = init,
    .begin = begin,
    .enter = enter,
    .entered = entered,
    .met = met,
    .exchanged = small_exchanged,
    .published = small_published,
    .piped = piped,
    .settle = horon_phase_settled,
    .reach = HORON_LINKS_REACH_OUTPUTS_ALONE,
};
