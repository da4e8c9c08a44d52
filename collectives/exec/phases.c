/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Entering: a rank stores a head with the operation's number and check into one of its small slots,
 * which it takes in turn. It may reuse a slot once all others have entered the operation behind the
 * one that used it last, because a rank enters an operation only after it has ended the one before.
 * What it has seen of that holds for good, and it looks again only when it needs more.
 *
 * Data that does not fit into the line of the head lies in one of as many areas, which the head
 * names: the one that its rank used last of those that all others have left. So a rank that is not
 * ahead of the others stays in lines that its cache has, and one that is takes another area.
 *
 * A rank that reads a head of another operation than its own has found a rank that broke the
 * promise of equal sequences, and names both.
 *
 * The ranks that an operation waits for are looked up only for a warning or a time limit: it costs
 * the hot path nothing.
 */
#include "exec/phases.h"

#include "channel_state.h"
#include "exec/exchange.h"
#include "exec/owed_ring.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>

#define BIT(phase) (1u << HORON_PHASE_##phase)
const uint8_t horon_phase_after[HORON_PHASE_COUNT] = {
    [HORON_PHASE_IDLE] = BIT(ENTER),
    [HORON_PHASE_ENTER] = BIT(IDLE) | BIT(MEET) | BIT(EXCHANGE) | BIT(PUBLISH) | BIT(PIPELINE),
    [HORON_PHASE_MEET] = BIT(IDLE) | BIT(EXCHANGE) | BIT(PUBLISH) | BIT(PIPELINE),
    [HORON_PHASE_EXCHANGE] = BIT(IDLE) | BIT(PIPELINE),
    [HORON_PHASE_PUBLISH] = BIT(IDLE) | BIT(PIPELINE),
    [HORON_PHASE_PIPELINE] = BIT(IDLE) | BIT(PIPELINE), /* lengths, then what is that long */
};

horon_status_t horon_phase_done(struct horon_channel *channel, struct horon_error *error)
{
    (void)channel;
    (void)error;
    return HORON_OK;
}

horon_status_t horon_phase_owe(struct horon_channel *channel, int spared)
{
    assert(!channel->owing && channel->phase == HORON_PHASE_ENTER);
    channel->owing_spares = spared;
    channel->owing = channel->verb;
    channel->owing_state = channel->state;
    return HORON_OK;
}

bool horon_phase_settled(struct horon_channel *channel, void *state)
{
    (void)channel;
    (void)state;
    return true;
}

horon_status_t horon_phase_unreachable(struct horon_channel *channel, struct horon_error *error)
{
    (void)channel;
    assert(false);
    return horon_error_set(error, HORON_ERR_PROTO, "an operation came into a phase it has not");
}

/* The number of the operation, plus one, that its rank entered last into this slot. */
static uint64_t entered(const struct horon_slot_head *head)
{
    return atomic_load_explicit(&head->sequence, memory_order_acquire);
}

/* A rank that is awaited is mostly some cache misses away. A rank that has a core for itself looks
 * for as long as a small operation takes: one that does not end in its first turn goes through its
 * lane, which takes longer. */
enum { LOOKS = 400 };

/* Likewise; but of one that has not entered @p wanted yet perhaps a moment later. */
static uint64_t entered_soon(const struct horon_channel *channel,
                             const struct horon_slot_head *head, uint64_t wanted)
{
    int looks = channel->team->crowded ? 1 : LOOKS;
    uint64_t number;
    do
        number = entered(head);
    while (number < wanted && --looks > 0);
    return number;
}

/* That this rank may write its slot all must have entered an operation, so many before this one. */
enum { AHEAD = HORON_SMALL_SLOTS - 1 };

/* That operation's number, plus one; 0: there is none yet. */
static uint64_t number_behind(const struct horon_channel *channel)
{
    return channel->ended + 1 > AHEAD ? channel->ended + 1 - AHEAD : 0;
}

/* The number, plus one, of an operation that the local rank has entered: the last one mostly, so
 * that it need not be asked again at each of the next operations; or less than @p wanted, if it has
 * not entered that. */
static uint64_t entered_last(const struct horon_channel *channel, int local, uint64_t wanted)
{
    uint64_t number = 0;
    for (uint64_t back = 0; back <= AHEAD && number < wanted; back++)
        number = entered(channel->small[(channel->ended - back) % HORON_SMALL_SLOTS][local]);
    return number;
}

/* Have all ranks of the host entered an operation of this number? */
static bool see_all(struct horon_channel *channel, uint64_t number)
{
    uint64_t all = channel->ended;
    if (channel->all_entered >= number)
        return true;
    for (int local = 0; local < channel->team->local_size && all >= number; local++) {
        const uint64_t last =
            local == channel->team->local_rank ? all : entered_last(channel, local, number);
        all = last < all ? last : all;
    }
    if (all > channel->all_entered)
        channel->all_entered = all;
    return all >= number;
}

static bool may_enter(struct horon_channel *channel)
{
    return see_all(channel, number_behind(channel));
}

/* For less, a look at the heads of all others costs more than lines that are not in the cache. */
enum { LOOK_BYTES = 512 };

/* Of the operation before this one; -1: it used none. */
static int area_of_last(const struct horon_channel *channel)
{
    const uint64_t before = channel->ended + HORON_SMALL_SLOTS - 1;
    const int self = channel->team->local_rank;
    const int area = channel->small[before % HORON_SMALL_SLOTS][self]->area - 1;
    if (area < 0 || area >= HORON_SMALL_SLOTS) /* others can write there */
        return -1;
    return channel->area_used[area] == channel->ended ? area : -1;
}

/* The area that this rank used last of those that nobody reads any more: its lines are still in the
 * caches. There is one, as there is a slot. */
static int free_area(struct horon_channel *channel, size_t bytes)
{
    int best = -1;
    if (bytes >= LOOK_BYTES)
        see_all(channel, channel->ended);
    const int last = area_of_last(channel);
    if (last >= 0 && channel->area_used[last] < channel->all_entered)
        return last;
    for (int area = 0; area < HORON_SMALL_SLOTS; area++) {
        const uint64_t used = channel->area_used[area];
        if ((used == 0 || used < channel->all_entered) &&
            (best < 0 || used > channel->area_used[best]))
            best = area;
    }
    assert(best >= 0);
    return best;
}

uint8_t *horon_phase_place(struct horon_channel *channel, size_t bytes)
{
    assert(channel->phase == HORON_PHASE_ENTER);
    return bytes <= HORON_SLOT_DATA_BYTES ? horon_slot_data(horon_channel_own(channel))
                                          : horon_phase_place_in_area(channel, bytes);
}

uint8_t *horon_phase_place_in_area(struct horon_channel *channel, size_t bytes)
{
    struct horon_slot_head *own = horon_channel_own(channel);
    assert(channel->phase == HORON_PHASE_ENTER);
    const int area = free_area(channel, bytes);
    channel->area_used[area] = channel->ended + 1;
    own->area = (uint8_t)(area + 1);
    return channel->area[area][channel->team->local_rank];
}

struct horon_slot_head *horon_phase_behind(const struct horon_channel *channel, int local)
{
    assert(channel->phase == HORON_PHASE_ENTER && channel->ended > 0);
    return channel->small[(channel->ended - 1) % HORON_SMALL_SLOTS][local];
}

static bool is_behind(const struct horon_channel *channel, int local)
{
    return local == channel->owing_spares ||
           entered_soon(channel, horon_phase_behind(channel, local), channel->ended) ==
               channel->ended;
}

bool horon_phase_all_behind(const struct horon_channel *channel)
{
    for (int local = 0; local < channel->team->local_size; local++)
        if (!is_behind(channel, local))
            return false;
    return true;
}

/* Those that sleep for an entry. One of a single line is with the others by the time that this rank
 * has theirs, and mostly the operation is over then; of many lines a rank that looks for the others
 * before its own are out gains nothing. */
static void ring(const struct horon_channel *channel, const struct horon_slot_head *own)
{
    if (own->area)
        horon_host_wake_all(channel->host, HORON_WAKE_DATA);
    else
        horon_host_owe_ring(channel->host);
}

/* Other ranks have read the line that this rank writes next: to have it alone takes as long as to
 * read theirs. So its core asks for it here, and gets it while this rank waits for them; but not if
 * one of them may still read there. */
static void fetch_next(const struct horon_channel *channel)
{
    const uint64_t next = channel->ended + 1;
    if (channel->all_entered + AHEAD > next)
        __builtin_prefetch(channel->small[next % HORON_SMALL_SLOTS][channel->team->local_rank], 1);
}

static horon_status_t enter(struct horon_channel *channel, bool *moved_out,
                            struct horon_error *error)
{
    if (channel->owing && !channel->owing->settle(channel, channel->owing_state))
        return HORON_IN_PROGRESS;
    channel->owing = NULL;
    if (!may_enter(channel))
        return HORON_IN_PROGRESS;
    struct horon_slot_head *own = horon_channel_own(channel);
    own->area = 0;
    channel->verb->enter(channel);
    horon_channel_fill_head(channel, own);
    atomic_store_explicit(&own->sequence, channel->ended + 1, memory_order_release);
    ring(channel, own);
    fetch_next(channel);
    *moved_out = true;
    return channel->verb->entered(channel, error);
}

/* @return OK, all that are awaited are there and agree | IN_PROGRESS | ERR_MISMATCH */
static horon_status_t see_entries(struct horon_channel *channel, struct horon_error *error)
{
    struct horon_slot_head **heads = channel->small[horon_channel_slot(channel)];
    const uint64_t check = horon_slot_check(channel->team->generation, channel->op->check);
    const uint64_t number = channel->ended + 1;
    const int end = channel->meet_end;
    int met = channel->met;
    for (; met < end; met++) {
        if (entered(heads[met]) == number) /* it is ahead, perhaps further */
            __builtin_prefetch(channel->small[number % HORON_SMALL_SLOTS][met]);
        else if (entered_soon(channel, heads[met], number) != number)
            break;
        if (heads[met]->check != check)
            return horon_channel_differs(channel, met, error);
    }
    channel->met = met;
    return met == end ? HORON_OK : HORON_IN_PROGRESS;
}

static horon_status_t meet(struct horon_channel *channel, struct horon_error *error)
{
    const horon_status_t status = see_entries(channel, error);
    if (status != HORON_OK)
        return status;
    if (channel->meets_all && channel->all_entered <= channel->ended)
        channel->all_entered = channel->ended + 1;
    return channel->verb->met(channel, error);
}

static horon_status_t exchange(struct horon_channel *channel, struct horon_error *error)
{
    const horon_status_t status = horon_netrun_advance(&channel->nets[0], error);
    return status == HORON_OK ? channel->verb->exchanged(channel, error) : status;
}

void horon_phase_publish(struct horon_channel *channel)
{
    struct horon_slot_head *result = channel->result[horon_channel_slot(channel)];
    assert(channel->team->local_rank == 0);
    atomic_store_explicit(&result->sequence, channel->ended + 1, memory_order_release);
    horon_host_wake_all(channel->host, HORON_WAKE_DATA);
}

static horon_status_t await_result(struct horon_channel *channel, struct horon_error *error)
{
    const struct horon_slot_head *result = channel->result[horon_channel_slot(channel)];
    if (atomic_load_explicit(&result->sequence, memory_order_acquire) != channel->ended + 1)
        return HORON_IN_PROGRESS;
    return channel->verb->published(channel, error);
}

/* The first chunks may go before all have met: a pipeline looks at `met` where that matters. */
static horon_status_t pipe(struct horon_channel *channel, bool *moved_out,
                           struct horon_error *error)
{
    if (!horon_channel_has_met(channel)) {
        const horon_status_t status = see_entries(channel, error);
        if (status < 0)
            return status;
    }
    const horon_status_t status = horon_pipeline_advance(channel, moved_out, error);
    if (status != HORON_OK)
        return status;
    if (!horon_pipeline_end(channel))
        return horon_channel_damaged(channel, error);
    *moved_out = true;
    return channel->verb->piped(channel, error);
}

horon_status_t horon_phase_advance(struct horon_channel *channel, bool *moved_out,
                                   struct horon_error *error)
{
    const enum horon_phase before = channel->phase;
    horon_status_t status = HORON_IN_PROGRESS;
    assert(before != HORON_PHASE_IDLE);
    if (before == HORON_PHASE_ENTER)
        status = enter(channel, moved_out, error);
    if (status == HORON_IN_PROGRESS && channel->phase == HORON_PHASE_MEET)
        status = meet(channel, error);
    if (status == HORON_IN_PROGRESS && channel->phase == HORON_PHASE_EXCHANGE)
        status = exchange(channel, error);
    else if (status == HORON_IN_PROGRESS && channel->phase == HORON_PHASE_PUBLISH)
        status = await_result(channel, error);
    if (status == HORON_IN_PROGRESS && channel->phase == HORON_PHASE_PIPELINE)
        status = pipe(channel, moved_out, error);
    if (channel->phase != before)
        *moved_out = true;
    return status;
}

bool horon_phase_misses(const struct horon_channel *channel, int local)
{
    return entered(channel->small[horon_channel_slot(channel)][local]) < channel->ended + 1;
}

static bool waits_here(const struct horon_channel *channel, int rank, int local)
{
    switch (channel->phase) {
    case HORON_PHASE_IDLE:
    case HORON_PHASE_EXCHANGE:
        return false;
    case HORON_PHASE_ENTER:
        return (channel->owing && !is_behind(channel, local)) ||
               entered_last(channel, local, number_behind(channel)) < number_behind(channel);
    case HORON_PHASE_MEET:
        return local >= channel->met && local < channel->meet_end &&
               horon_phase_misses(channel, local);
    case HORON_PHASE_PUBLISH:
        return local == 0; /* it exchanges with the other hosts */
    case HORON_PHASE_PIPELINE:
        return channel->pipeline.ops->waits_for(channel, rank);
    }
    return false;
}

bool horon_phase_waits_for(const struct horon_channel *channel, int rank)
{
    const struct horon_team *team = channel->team;
    if (rank == team->rank)
        return false;
    if (team->host_of[rank] == team->host)
        return waits_here(channel, rank, team->local_rank_of[rank]);
    if (channel->phase == HORON_PHASE_EXCHANGE)
        return horon_netrun_waits_for(&channel->nets[0], rank);
    return channel->phase == HORON_PHASE_PIPELINE &&
           channel->pipeline.ops->waits_for(channel, rank);
}

void horon_phase_explain(const struct horon_channel *channel, char *text, size_t text_bytes)
{
    static const char *const said[HORON_PHASE_COUNT] = {
        [HORON_PHASE_IDLE] = "",
        [HORON_PHASE_ENTER] = "the operation before is not over on all ranks of this host",
        [HORON_PHASE_MEET] = "the ranks of this host meet",
        [HORON_PHASE_EXCHANGE] = "hosts exchange their parts",
        [HORON_PHASE_PUBLISH] = "hosts exchange their parts, this host's by its first rank",
    };
    const struct horon_pipeline *pipeline = &channel->pipeline;
    if (channel->phase == HORON_PHASE_PIPELINE)
        snprintf(text, text_bytes, "%" PRIu64 " of %" PRIu64 " chunks are done",
                 pipeline->next[HORON_STAGE_OUT], pipeline->chunks);
    else
        snprintf(text, text_bytes, "%s", said[channel->phase]);
}
