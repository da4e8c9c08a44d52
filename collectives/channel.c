/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Channels: set-up, the table of verbs, and how ranks of a host enter an operation.
 *
 * Entering: a rank stores a head with the operation's number and check into one of two small slots.
 * It may reuse a slot once all others have entered the operation in between, because a rank enters
 * an operation only after it has ended the one before. Whoever reads a head of another operation
 * than its own has found a rank that broke the promise of equal sequences, and names both.
 */
#include "channel_state.h"

#include "alloc.h"

#include <stdio.h>
#include <string.h>

static const struct horon_verb_ops *const verbs[HORON_VERB_COUNT] = {
    [HORON_ALLREDUCE] = &horon_allreduce_ops,
    [HORON_BROADCAST] = &horon_broadcast_ops,
    [HORON_ALLGATHER] = &horon_allgather_ops,
    [HORON_BARRIER] = &horon_allreduce_ops, /* of nothing */
};

static void *table(size_t count, size_t item_bytes, bool *ok)
{
    void *memory = horon_zalloc(count, item_bytes);
    if (!memory)
        *ok = false;
    return memory;
}

static bool allocate_tables(struct horon_channel *channel)
{
    const struct horon_team *team = channel->team;
    size_t local = (size_t)team->local_size, size = (size_t)team->size;
    size_t hosts = (size_t)team->host_count, segments = (size_t)team->segments;
    size_t runs = HORON_SLOTS * (size_t)channel->carried;
    bool ok = true;
    for (int slot = 0; slot < HORON_SLOTS; slot++) {
        channel->small[slot] = table(local, sizeof *channel->small[slot], &ok);
        channel->chunk[slot] = table(local, sizeof *channel->chunk[slot], &ok);
    }
    channel->posted = table(local, sizeof *channel->posted, &ok);
    channel->reduced = table(local, sizeof *channel->reduced, &ok);
    channel->inputs = table(local, sizeof *channel->inputs, &ok);
    channel->outputs = table(local + 1, sizeof *channel->outputs, &ok);
    channel->nets = table(runs, sizeof *channel->nets, &ok);
    channel->net_scratch = table(runs, sizeof *channel->net_scratch, &ok);
    channel->carriers = table(segments * hosts, sizeof *channel->carriers, &ok);
    channel->leaders = table(hosts, sizeof *channel->leaders, &ok);
    channel->counts = table(size, sizeof *channel->counts, &ok);
    channel->rows = table(size, sizeof *channel->rows, &ok);
    channel->starts = table(size, sizeof *channel->starts, &ok);
    channel->bounds = table(size + 1, sizeof *channel->bounds, &ok);
    channel->transfer_max = 2 * size;
    channel->transfers =
        table(HORON_SLOTS * channel->transfer_max, sizeof *channel->transfers, &ok);
    channel->transfer_peers =
        table(HORON_SLOTS * channel->transfer_max, sizeof *channel->transfer_peers, &ok);
    return ok;
}

static void fill_tables(struct horon_channel *channel)
{
    const struct horon_team *team = channel->team;
    const struct horon_host *host = channel->host;
    const size_t at = channel->options.arena_at;
    for (int rank = 0; rank < team->local_size; rank++) {
        for (int slot = 0; slot < HORON_SLOTS; slot++) {
            channel->small[slot][rank] = horon_host_small(host, at, rank, slot);
            channel->chunk[slot][rank] = horon_host_chunk(host, at, rank, slot);
        }
        channel->posted[rank] = horon_host_posted(host, at, rank);
        channel->reduced[rank] = horon_host_reduced(host, at, rank);
    }
    for (int slot = 0; slot < HORON_SLOTS; slot++)
        channel->result[slot] = horon_host_result(host, at, 0, slot);
    for (int h = 0; h < team->host_count; h++) {
        const int *ranks = team->host_ranks + team->host_first[h];
        int host_size = team->host_first[h + 1] - team->host_first[h];
        channel->leaders[h] = ranks[0];
        for (int segment = 0; segment < team->segments; segment++)
            channel->carriers[segment * team->host_count + h] = ranks[segment % host_size];
    }
}

horon_status_t horon_channel_create(const struct horon_channel_options *options,
                                    const struct horon_team *team, struct horon_host *host,
                                    struct horon_channel **channel_out)
{
    struct horon_channel *channel = horon_zalloc(1, sizeof *channel);
    if (!channel)
        return HORON_ERR_MEMORY;
    channel->options = *options;
    channel->team = team;
    channel->host = host;
    /* segments l, l + L, l + 2L, ... below `segments` */
    channel->carried =
        (team->segments - team->local_rank + team->local_size - 1) / team->local_size;
    if (!allocate_tables(channel)) {
        horon_channel_destroy(channel);
        return HORON_ERR_MEMORY;
    }
    fill_tables(channel);
    *channel_out = channel;
    return HORON_OK;
}

static void forget_transfers(struct horon_channel *channel)
{
    if (channel->phase == HORON_PHASE_IDLE)
        return;
    for (int rank = 0; rank < channel->team->size; rank++)
        if (channel->team->mux_of[rank])
            horon_mux_forget(channel->team->mux_of[rank], (uint32_t)channel->options.channel,
                             channel->ended);
}

void horon_channel_destroy(struct horon_channel *channel)
{
    if (!channel)
        return;
    forget_transfers(channel);
    for (int slot = 0; slot < HORON_SLOTS; slot++) {
        horon_free(channel->small[slot]);
        horon_free(channel->chunk[slot]);
    }
    for (int i = 0; i < HORON_SLOTS * channel->carried; i++) {
        if (channel->nets)
            horon_netrun_deinit(&channel->nets[i]);
        if (channel->net_scratch)
            horon_free(channel->net_scratch[i].bytes);
    }
    horon_free(channel->posted);
    horon_free(channel->reduced);
    horon_free(channel->inputs);
    horon_free(channel->outputs);
    horon_free(channel->nets);
    horon_free(channel->net_scratch);
    horon_free(channel->carriers);
    horon_free(channel->leaders);
    horon_free(channel->counts);
    horon_free(channel->rows);
    horon_free(channel->starts);
    horon_free(channel->bounds);
    horon_free(channel->transfers);
    horon_free(channel->transfer_peers);
    horon_free(channel);
}

void horon_channel_begin(struct horon_channel *channel, const struct horon_operation *op)
{
    const struct horon_signature *agreed = &op->agreed;
    const horon_dtype_t dtype = (horon_dtype_t)agreed->dtype;
    channel->op = op;
    channel->parts = op->parts;
    channel->element_bytes = horon_dtype_bytes(dtype);
    bool average = agreed->redop == HORON_AVERAGE;
    channel->combine = average ? HORON_SUM : (horon_redop_t)agreed->redop;
    const uint64_t ranks = average ? (uint64_t)channel->team->size : 1;
    const bool rounded = channel->team->host_count > 1; /* before the hosts' sums are added up */
    const double divisor = rounded ? horon_reduce_partial_divisor(dtype, ranks) : 1.0;
    channel->partial = (struct horon_reduce_finish){.postscale = 1.0, .divisor = divisor};
    channel->finish = (struct horon_reduce_finish){.postscale = agreed->postscale,
                                                   .divisor = (double)ranks / divisor};
    channel->met = 0;
    channel->phase = HORON_PHASE_ENTER;
    verbs[agreed->verb]->begin(channel);
}

/* What this rank began, as its peers on this host would read it. */
static void fill_head(const struct horon_channel *channel, struct horon_slot_head *head)
{
    const struct horon_operation *op = channel->op;
    const bool rows = horon_verb_of(&op->agreed)->ahead == HORON_AHEAD_ROWS;
    head->check = op->check;
    head->count = rows ? op->rows : op->count;
    head->verb = op->agreed.verb;
    head->dtype = op->agreed.dtype;
    head->redop = op->agreed.redop;
    head->root = op->agreed.root;
}

static void describe(const struct horon_slot_head *head, char *text, size_t text_bytes)
{
    const struct horon_verb_row *row = &horon_verb_rows[head->verb % HORON_VERB_COUNT];
    char elements[64] = "", more[32] = "";
    if (horon_verb_moves(row))
        snprintf(elements, sizeof elements, " of %llu %s", (unsigned long long)head->count,
                 horon_dtype_name((horon_dtype_t)head->dtype));
    if (horon_verb_reduces(row))
        snprintf(more, sizeof more, ", %s", horon_redop_name((horon_redop_t)head->redop));
    else if (horon_verb_is_rooted(row))
        snprintf(more, sizeof more, ", root %d", (int)head->root);
    snprintf(text, text_bytes, "%s%s%s", row->name, elements, more);
}

/* A link names its peer and compares numbers. All ranks will read the text: this one, and what it
 * began, go before it. */
static void name_us(const struct horon_channel *channel, struct horon_error *error)
{
    const char *self = channel->team->rank_names[channel->team->rank];
    struct horon_slot_head head = {0};
    char ours[160], said[HORON_ERROR_TEXT_BYTES];
    if (strstr(error->text, self))
        return; /* it was found on this host: both sides are named */
    fill_head(channel, &head);
    describe(&head, ours, sizeof ours);
    snprintf(said, sizeof said, "%s", error->text);
    horon_error_set(error, HORON_ERR_MISMATCH,
                    "operation %llu in order differs between ranks: %s began %s, but %.600s",
                    (unsigned long long)channel->ended, self, ours, said);
}

horon_status_t horon_channel_advance(struct horon_channel *channel, bool *moved_out,
                                     struct horon_error *error)
{
    enum horon_phase before = channel->phase;
    horon_status_t status = verbs[channel->op->agreed.verb]->advance(channel, moved_out, error);
    if (channel->phase != before)
        *moved_out = true; /* the next phase may not have been looked at */
    if (status == HORON_OK) {
        channel->chunk_base += channel->chunks;
        channel->chunks = 0;
        channel->phase = HORON_PHASE_IDLE;
        channel->ended++;
        *moved_out = true;
    }
    if (status == HORON_ERR_MISMATCH)
        name_us(channel, error);
    return status;
}

uint64_t horon_channel_ended(const struct horon_channel *channel)
{
    return channel->ended;
}

bool horon_may_enter(struct horon_channel *channel)
{
    int before = (int)((channel->ended + 1) % HORON_SLOTS);
    for (; channel->met < channel->team->local_size; channel->met++) {
        const struct horon_slot_head *head = channel->small[before][channel->met];
        if (atomic_load_explicit(&head->sequence, memory_order_acquire) < channel->ended)
            return false;
    }
    channel->met = 0;
    return true;
}

void horon_enter(struct horon_channel *channel)
{
    struct horon_slot_head *head =
        channel->small[horon_slot_of(channel)][channel->team->local_rank];
    fill_head(channel, head);
    atomic_store_explicit(&head->sequence, channel->ended + 1, memory_order_release);
    horon_host_wake_all(channel->host, HORON_WAKE_DATA);
}

static horon_status_t name_both(struct horon_channel *channel, int other, struct horon_error *error)
{
    const struct horon_team *team = channel->team;
    const int *ranks = team->host_ranks + team->host_first[team->host];
    struct horon_slot_head **heads = channel->small[horon_slot_of(channel)];
    char ours[160], theirs[160];
    describe(heads[team->local_rank], ours, sizeof ours);
    describe(heads[other], theirs, sizeof theirs);
    const char *same = strcmp(ours, theirs) == 0
                           ? " (they differ in name, shape, scale, or in an operation before)"
                           : "";
    return horon_error_set(error, HORON_ERR_MISMATCH,
                           "operation %llu in order differs between ranks: %s began %s, %s began "
                           "%s%s; all ranks must begin the same sequence",
                           (unsigned long long)channel->ended, team->rank_names[team->rank], ours,
                           team->rank_names[ranks[other]], theirs, same);
}

horon_status_t horon_meet(struct horon_channel *channel, struct horon_error *error)
{
    struct horon_slot_head **heads = channel->small[horon_slot_of(channel)];
    for (; channel->met < channel->team->local_size; channel->met++) {
        struct horon_slot_head *head = heads[channel->met];
        if (atomic_load_explicit(&head->sequence, memory_order_acquire) != channel->ended + 1)
            return HORON_IN_PROGRESS;
        if (head->check != channel->op->check)
            return name_both(channel, channel->met, error);
    }
    return HORON_OK;
}

bool horon_cursor_next(const struct horon_part *parts, struct horon_cursor *cursor,
                       size_t element_bytes, uint64_t from, uint64_t to,
                       struct horon_piece *piece_out)
{
    if (from >= to)
        return false;
    while (from >= cursor->part_start + parts[cursor->part].count)
        cursor->part_start += parts[cursor->part++].count;
    const struct horon_part *part = &parts[cursor->part];
    uint64_t inside = from - cursor->part_start;
    uint64_t left = part->count - inside;
    /* a broadcast has no input but on the root */
    piece_out->src = part->src ? (const char *)part->src + inside * element_bytes : NULL;
    piece_out->dst = part->dst ? (char *)part->dst + inside * element_bytes : NULL;
    piece_out->at = from;
    piece_out->count = to - from < left ? to - from : left;
    return true;
}

void horon_copy_in(struct horon_channel *channel, struct horon_cursor *cursor, uint64_t from,
                   uint64_t to, uint8_t *memory)
{
    struct horon_piece piece;
    size_t element = channel->element_bytes;
    for (uint64_t at = from; horon_cursor_next(channel->parts, cursor, element, at, to, &piece);
         at += piece.count)
        memcpy(memory + (at - from) * element, piece.src, piece.count * element);
}

void horon_copy_out(struct horon_channel *channel, struct horon_cursor *cursor, uint64_t from,
                    uint64_t to, const uint8_t *memory)
{
    struct horon_piece piece;
    size_t element = channel->element_bytes;
    for (uint64_t at = from; horon_cursor_next(channel->parts, cursor, element, at, to, &piece);
         at += piece.count)
        memcpy(piece.dst, memory + (at - from) * element, piece.count * element);
}

size_t horon_small_limit(const struct horon_channel *channel)
{
    size_t limit = channel->host->shape.small_bytes;
    bool cores_to_spare = channel->team->host_count == 1 && !channel->host->crowded;
    return cores_to_spare ? limit / 8 : limit;
}

uint64_t horon_slice_bound(const struct horon_channel *channel, uint64_t count, int parts,
                           int index)
{
    if (index == parts)
        return count;
    uint64_t in_line = 64 / channel->element_bytes ? 64 / channel->element_bytes : 1;
    return count / (uint64_t)parts * (uint64_t)index / in_line * in_line;
}

void *horon_net_scratch(struct horon_channel *channel, int index, size_t bytes)
{
    struct net_memory *memory = &channel->net_scratch[index];
    if (memory->bytes && memory->limit >= bytes)
        return memory->bytes;
    horon_free(memory->bytes);
    memory->limit = 0;
    memory->bytes = horon_alloc_lines(bytes);
    if (memory->bytes)
        memory->limit = bytes;
    return memory->bytes;
}
