/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which thread makes progress. The engine belongs to the holder of the token. A thread that waits
 * takes it and drives, so a blocking call costs no hand-over; the context's own thread drives when
 * nobody waits. It never sleeps with the token in hand, but for a nap (patience.h).
 *
 * Invariant: the wake word of this rank is 0 while the token is held, and says what to ring for
 * while it is free. Releasing stores the word, fences, and looks once more: a post or a peer's flag
 * that came before is seen by that look, and the thread or rank that makes a later one sees the
 * word and rings. A thread that submits rings late, as it may soon drive itself (late_bell.c). The
 * progress thread (progress.c) is the only one that sleeps on the doorbell; a waiter that has
 * waited long gives the token back and sleeps on its request's state.
 *
 * A waiter that leaves output behind rings too, even if its own request has ended: others need it.
 * So does one that leaves something in flight, unless the progress thread has said (`minds`) that
 * it wakes by itself, to look for what nobody tells. That is seldom, and a backend that wakes no
 * thread stands still until then: for one it rings all the same, but later. A waiter rings late,
 * unless it gives up, as a thread that waited for one operation often waits for another.
 *
 * To look for what is left over takes a tenth of a small operation. One that goes by the flags of
 * this host alone, and is over before its thread lets go, has touched nothing of that: what the
 * thread before it has found still holds.
 */
#include "wait.h"

#include "deaths.h"
#include "engine/express.h"
#include "exec/owed_ring.h"
#include "patience.h"

#include <assert.h>
#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

/* A driver looks at everything once in so many turns of the ordered channel. */
#define TURNS_PER_LOOK 64
/* Likewise where each turn yields the core, and so lasts as long as others wish. */
#define YIELDS_PER_LOOK 8
/* Likewise with several hosts, where a look moves the links: its system call takes longer than a
 * hand-over within the host, if there is one to be waited for. */
#define SPINS_PER_LINK_LOOK 8
/* After so many turns of one driver the progress thread is told to mind what is in flight. */
#define TURNS_UNMINDED 4096
/* What wants its next turn later than this waits until the progress thread wakes by itself. */
#define RUNG_FOR_NS UINT64_C(10000000)
/* Of all, by a waiter whose request is over. */
#define LAST_TURNS 4
/* Of a thread that asks for the token, each a yield. */
#define TAKE_TRIES 1000
/* A waiter that sleeps looks up now and then, ever less often: a callback that lasts keeps the
 * progress thread from driving, and then the waiter drives, a little at a time. */
#define SLICE_MS 100
#define SLICE_MS_MAX 400
#define BUSY_SLICE_MS 1
/* More than any system has. */
#define THREADS_MAX (1u << 22)

static struct horon_rank_line *own_line(struct horon_context *ctx)
{
    return horon_host_line(&ctx->host, ctx->host.local_rank);
}

bool horon_token_try(struct horon_context *ctx)
{
    if (atomic_load_explicit(&ctx->token, memory_order_relaxed) ||
        atomic_exchange_explicit(&ctx->token, 1, memory_order_acquire))
        return false;
    assert(horon_owner_is_nobodys(&ctx->owner));
    horon_owner_take(&ctx->owner);
    horon_host_awake(&ctx->host);
    return true;
}

/* A thread counts itself in and out, among those that wait or those that take. */
static void count_in(_Atomic uint32_t *threads)
{
    const uint32_t before = atomic_fetch_add(threads, 1);
    assert(before < THREADS_MAX);
}

static void count_out(_Atomic uint32_t *threads)
{
    const uint32_t before = atomic_fetch_sub(threads, 1);
    assert(before >= 1 && before <= THREADS_MAX); /* this one is among them */
}

void horon_token_take(struct horon_context *ctx)
{
    count_in(&ctx->waiters);
    count_in(&ctx->takers);
    while (!horon_token_try(ctx))
        sched_yield();
    count_out(&ctx->takers);
    count_out(&ctx->waiters);
}

bool horon_token_ask(struct horon_context *ctx)
{
    bool got = false;
    count_in(&ctx->waiters);
    count_in(&ctx->takers);
    for (int i = 0; i < TAKE_TRIES && !(got = horon_token_try(ctx)); i++)
        sched_yield();
    count_out(&ctx->takers);
    count_out(&ctx->waiters);
    return got;
}

/* The mark of what cannot wait stays until a look at everything has found nothing more: a thread
 * that is rung for it may find the token taken, by one that looks only for what it does itself. */
bool horon_token_look(struct horon_context *ctx)
{
    HORON_ASSERT_OWNER(&ctx->owner);
    _Atomic bool *urgent = &own_line(ctx)->urgent;
    const bool marked =
        atomic_load_explicit(urgent, memory_order_relaxed) && atomic_exchange(urgent, false);
    ctx->left_nothing = false;
    const bool moved = horon_engine_progress(ctx->engine);
    if (marked && moved)
        atomic_store_explicit(urgent, true, memory_order_relaxed);
    return moved;
}

/* What run.c begins itself is not counted: it is told by the thread that gives the token back
 * before the end of it. */
bool horon_token_flies(const struct horon_context *ctx)
{
    return atomic_load_explicit(&ctx->posted, memory_order_relaxed) !=
               atomic_load_explicit(&ctx->landed, memory_order_relaxed) ||
           atomic_load_explicit(&ctx->leaves, memory_order_relaxed);
}

/* What a thread that lets go of the token has done with it. */
enum last_touch {
    TOUCHED,  /* anything */
    AS_FOUND, /* see horon_token_release_as_found() */
    ARMED     /* it is the progress thread, and watches the links that are full */
};

/* What peers have changed counts for what is in flight, and for what a full ring has room for
 * again; the rest is this rank's own. What full links would take is left over even if the progress
 * thread watches them: a waiter may have called it off before its next turn, and looks at its own
 * request only. */
static bool any_left_over(struct horon_context *ctx, enum last_touch touch)
{
    const bool armed = touch == ARMED;
    const bool flies = horon_engine_in_flight(ctx->engine) > 0;
    atomic_store_explicit(&ctx->leaves, flies, memory_order_relaxed);
    if (flies || armed) /* else a link with anything unsent is left over, full or not */
        atomic_thread_fence(memory_order_seq_cst); /* the wake word is there before this look */
    if (flies) {
        const bool minds = atomic_load_explicit(&ctx->minds, memory_order_relaxed);
        if (horon_token_look(ctx) ||
            (!armed && (atomic_load_explicit(&ctx->disarmed, memory_order_relaxed) || !minds)))
            return true;
    }
    if (touch == AS_FOUND && ctx->left_nothing) {
        assert(!HORON_OWNERS_CHECKED || !horon_engine_leaves_work(ctx->engine, true));
        return false;
    }
    const bool leaves = horon_engine_leaves_work(ctx->engine, !armed);
    ctx->left_nothing = !armed && !leaves;
    return leaves;
}

/* Does something in flight stand still until the progress thread gives it a turn? */
static bool any_wants_turns(const struct horon_context *ctx)
{
    if (horon_engine_in_flight(ctx->engine) == 0 || horon_engine_needs_thread(ctx->engine))
        return false;
    const uint64_t pause_ns = horon_engine_interval_ns(ctx->engine);
    return pause_ns > 0 && pause_ns < RUNG_FOR_NS;
}

/* Posted to, told of a death or rung while the token was still in hand: the progress thread may
 * have woken for it, found the token taken, and gone back to sleep. For what cannot wait a peer may
 * have rung nobody, as the wake word said that this rank looks. */
static bool slept_through(struct horon_context *ctx)
{
    const struct horon_rank_line *line = own_line(ctx);
    if (atomic_load_explicit(&ctx->token, memory_order_relaxed))
        return false; /* somebody else has it, and will look */
    return atomic_load_explicit(&line->wake, memory_order_relaxed) == 0 ||
           atomic_load_explicit(&line->urgent, memory_order_relaxed) ||
           horon_engine_has_post(ctx->engine) ||
           atomic_load_explicit(&ctx->deaths, memory_order_relaxed);
}

static void let_go(struct horon_context *ctx, enum last_touch touch)
{
    const bool armed = touch == ARMED;
    HORON_ASSERT_OWNER(&ctx->owner);
    assert(atomic_load_explicit(&ctx->token, memory_order_relaxed) == 1);
    horon_host_sleep(&ctx->host, horon_engine_wants(ctx->engine));
    const bool ring = any_left_over(ctx, touch);
    const bool ring_later = !ring && !armed && any_wants_turns(ctx);
    const bool owes_ring = horon_host_take_ring(&ctx->host);
    horon_owner_give(&ctx->owner);
    atomic_store_explicit(&ctx->token, 0, memory_order_release);
    atomic_thread_fence(memory_order_seq_cst); /* what follows looks at what came before it */
    if (owes_ring)
        horon_host_ring_sleepers(&ctx->host);
    const bool ring_now = ring || slept_through(ctx);
    if (ring_now && armed)
        horon_doorbell_ring(ctx->doorbell);
    else if (ring_now)
        horon_late_bell_set(ctx);
    else if (ring_later)
        horon_late_bell_set_later(ctx);
}

void horon_token_release(struct horon_context *ctx)
{
    let_go(ctx, TOUCHED);
}

void horon_token_release_as_found(struct horon_context *ctx)
{
    let_go(ctx, AS_FOUND);
}

void horon_token_release_armed(struct horon_context *ctx)
{
    let_go(ctx, ARMED);
}

bool horon_context_may_be_asleep(struct horon_context *ctx)
{
    /* a post is sequentially consistent, too, and so comes before this look without a fence */
    return atomic_load_explicit(&own_line(ctx)->wake, memory_order_seq_cst) != 0;
}

void horon_context_notify(struct horon_context *ctx)
{
    if (horon_context_may_be_asleep(ctx) && atomic_exchange(&own_line(ctx)->wake, 0))
        horon_doorbell_ring(ctx->doorbell);
}

/* ---- waiting -------------------------------------------------------------------------------- */

static struct horon_patience patience_of(const struct horon_context *ctx, bool spins)
{
    return horon_patience_of(spins ? ctx->config.spin_us : 0, ctx->config.yield_us);
}

/* Of a waiter with the token. Whether others want its core it learns from its own yields; among
 * ranks of other programs, which all come by sockets and have threads of which it knows nothing, it
 * naps. */
static struct horon_patience patience_of_driver(struct horon_context *ctx)
{
    HORON_ASSERT_OWNER(&ctx->owner);
    const bool naps = horon_engine_is_mixed(ctx->engine);
    const bool spins = !ctx->crowded || (!naps && horon_yields_may_spin(&ctx->yields));
    struct horon_patience patience = patience_of(ctx, spins);
    patience.yields = ctx->crowded ? &ctx->yields : NULL;
    if (naps) {
        patience.nap_until = horon_poller_descriptor(ctx->poller);
        patience.nap_ns = ctx->crowded ? 0 : HORON_AWAKE_NS;
    }
    return patience;
}

static bool past(uint64_t deadline_ns)
{
    return deadline_ns != UINT64_MAX && horon_clock_ns() >= deadline_ns;
}

static unsigned turns_per_look(const struct horon_context *ctx, bool spins)
{
    if (ctx->boot.topology.host_count == 1)
        return spins ? TURNS_PER_LOOK : YIELDS_PER_LOOK;
    return spins && ctx->host.shape.local_size > 1 ? SPINS_PER_LINK_LOOK : 1;
}

/* What others have in flight may keep a driver from giving up. Until then nobody rings, and what
 * was begun here was not posted: without this the progress thread would look for nothing meanwhile.
 */
static void have_minded(struct horon_context *ctx, unsigned turn)
{
    if (turn % TURNS_UNMINDED || atomic_load_explicit(&ctx->minds, memory_order_relaxed))
        return;
    atomic_store_explicit(&ctx->leaves, true, memory_order_relaxed);
    horon_late_bell_set(ctx);
}

/* In order: mostly it moves by the flags of this host. */
static void drive_ordered(struct horon_context *ctx, struct horon_request *request,
                          uint64_t deadline_ns)
{
    struct horon_patience patience = patience_of_driver(ctx);
    const bool spins = patience.spin_ns > 0;
    const unsigned per_look = turns_per_look(ctx, spins);
    struct horon_engine_team *team = request->team;
    uint64_t now;
    assert(request->in_order);
    for (unsigned turn = 1;; turn++) {
        const bool look = turn % per_look == 0;
        bool moved = horon_engine_advance(team, true);
        if (horon_request_ended(request))
            return;
        have_minded(ctx, turn);
        if (moved)
            patience.since_ns = 0;
        if (look) {
            horon_deaths_report(ctx);
            if (horon_token_look(ctx)) {
                patience.since_ns = 0;
                moved |= horon_engine_has_unsent(ctx->engine); /* before it yields: others wait */
            }
            if (horon_request_ended(request))
                return;
        }
        if (atomic_load_explicit(&ctx->takers, memory_order_relaxed))
            return;
        if (moved && turn % TURNS_PER_LOOK)
            continue;
        if (!look && spins)
            horon_cpu_relax();
        else if (!horon_patience_go_on(&patience, &now) || now >= deadline_ns)
            return;
    }
}

/* What a thread waits for: requests, one after the other, of which the first is in flight. One that
 * was not started, or is of another context, ends the wait before it. */
struct wait {
    const struct horon_context *ctx;
    struct horon_request *const *requests; /* [left] */
    const uint32_t *runs;                  /* likewise, or NULL: see wait.h */
    size_t left;
    uint32_t number; /* of the first one's run; a callback may begin the next one before anybody has
                        looked */
    struct horon_waited waited;
};

/* Can the wait go on with it, once all before it are over? */
static bool may_follow(const struct wait *wait, const struct horon_request *request)
{
    return request && (request->context == wait->ctx || request->nobodys) &&
           atomic_load_explicit(&request->state, memory_order_relaxed) != HORON_REQUEST_IDLE;
}

/* @param number  of a run; a start that is refused takes it back */
static bool has_ended(const struct horon_request *request, uint32_t number)
{
    const uint32_t word = atomic_load_explicit(&request->state, memory_order_acquire);
    return (word & HORON_REQUEST_STATE_MASK) == HORON_REQUEST_ENDED ||
           (word != HORON_REQUEST_IDLE && word / HORON_REQUEST_RUN != number);
}

/* Goes past the first, which is over, and all behind it that are. */
static void go_past(struct wait *wait)
{
    const struct horon_request *first = wait->requests[0];
    uint32_t number = wait->number;
    size_t over = 0;
    do {
        if (wait->waited.status == HORON_OK)
            wait->waited.status = horon_request_end_of(first, number);
        if (++over == wait->left || !may_follow(wait, wait->requests[over])) {
            wait->waited.over += over;
            wait->left = 0;
            return;
        }
        first = wait->requests[over];
        number = wait->runs ? wait->runs[over] : horon_request_run_number(first);
    } while (has_ended(first, number));
    wait->waited.over += over;
    wait->requests += over;
    if (wait->runs)
        wait->runs += over;
    wait->left -= over;
    wait->number = number;
}

/* Goes past all that is over. @return is nothing left? */
static bool is_over(struct wait *wait)
{
    if (wait->left > 0 && has_ended(wait->requests[0], wait->number))
        go_past(wait);
    return wait->left == 0;
}

/* How many of those waited for, from the first on, are messages of one set that have not ended: one
 * or two, as what a rank sends and gets at the same time. */
static size_t messages_of(const struct wait *wait)
{
    const struct horon_request *first = wait->requests[0];
    if (wait->left < 2 || !may_follow(wait, wait->requests[1]))
        return 1;
    const struct horon_request *second = wait->requests[1];
    const bool joins = second->paired && second->team == first->team;
    return joins && !horon_request_ended(second) ? 2 : 1;
}

/* A turn of all, or, mostly, only of what the request waits for: once it has begun, the other ranks
 * of this host say by flags how far they are, and a rank that looks at all else sees them late. A
 * message has no flags, but a link, and so has the one that it is exchanged for. */
static bool drive_turn(struct horon_context *ctx, const struct wait *wait, unsigned turn)
{
    const struct horon_request *request = wait->requests[0];
    if (request->paired && turn % YIELDS_PER_LOOK) {
        const horon_status_t moved =
            horon_engine_move_messages(ctx->engine, wait->requests, messages_of(wait));
        if (moved != HORON_AGAIN)
            return moved == HORON_IN_PROGRESS;
    }
    const bool by_flags = request->begun && !request->paired && ctx->boot.topology.host_count == 1;
    if (by_flags && turn % YIELDS_PER_LOOK)
        return horon_engine_advance(request->team, request->in_order);
    horon_deaths_report(ctx);
    return horon_token_look(ctx);
}

/* What was submitted with the request that is over may have begun in the same turn. It goes out
 * now, as nobody may look after it for a while. And where the decision came with the mark of what
 * cannot wait, for it may concern ranks that wait for nothing, one more look finds nothing mostly;
 * left to the progress thread, that look costs several times what a small operation does. */
static void see_off_others(struct horon_context *ctx)
{
    const _Atomic bool *urgent = &own_line(ctx)->urgent;
    int turns = LAST_TURNS;
    while (turns-- > 0 &&
           (horon_engine_in_flight(ctx->engine) > 0 ||
            atomic_load_explicit(urgent, memory_order_relaxed)) &&
           horon_token_look(ctx))
        continue;
}

/* With the token: drives until the run is over, the deadline, or the end of patience.
 * @param glances  a turn of all that moves nothing is all */
static void drive(struct horon_context *ctx, struct wait *wait, uint64_t deadline_ns, bool glances)
{
    struct horon_patience patience = patience_of_driver(ctx);
    const bool spins = patience.spin_ns > 0;
    uint64_t now;
    assert(wait->requests[0]->context == ctx || wait->requests[0]->nobodys);
    for (unsigned turn = glances ? YIELDS_PER_LOOK : 1; !is_over(wait); turn++) {
        bool moved = drive_turn(ctx, wait, turn);
        have_minded(ctx, turn);
        if ((glances && !moved) || atomic_load_explicit(&ctx->takers, memory_order_relaxed))
            return;
        glances = false;
        if (moved) {
            patience.since_ns = 0;
            if (turn % TURNS_PER_LOOK == 0 && past(deadline_ns))
                return;
            continue;
        }
        if (is_over(wait))
            return;
        if (spins && turn % YIELDS_PER_LOOK) /* the clock takes longer than to look again */
            horon_cpu_relax();
        else if (!horon_patience_go_on(&patience, &now) || now >= deadline_ns)
            return;
    }
}

void horon_requests_drive(struct horon_context *ctx, struct horon_request *const *requests,
                          size_t n, uint64_t deadline_ns)
{
    struct wait wait = {ctx, requests, NULL, n, 0, {0, HORON_OK}};
    assert(n > 0 && requests[0]->nobodys);
    if (requests[0]->in_order && !horon_request_ended(requests[0])) {
        drive_ordered(ctx, requests[0], deadline_ns);
        return;
    }
    drive(ctx, &wait, deadline_ns, false);
    if (is_over(&wait))
        see_off_others(ctx);
}

static int futex(_Atomic uint32_t *word, int operation, uint32_t value,
                 const struct timespec *timeout)
{
    return (int)syscall(SYS_futex, word, operation, value, timeout, NULL, 0);
}

void horon_waiters_wake(_Atomic uint32_t *state)
{
    futex(state, FUTEX_WAKE_PRIVATE, INT_MAX, NULL);
}

/* @param wait  not over */
static void sleep_on(const struct wait *wait, uint64_t deadline_ns, int64_t slice_ms)
{
    struct horon_request *request = wait->requests[0];
    _Atomic uint32_t *state = &request->state;
    const uint32_t flying = wait->number * HORON_REQUEST_RUN | HORON_REQUEST_FLYING;
    const uint32_t waited = flying | HORON_REQUEST_WAITED;
    uint32_t seen = flying;
    if (!atomic_compare_exchange_strong(state, &seen, waited) && seen != waited)
        return;
    const uint64_t now = horon_clock_ns(), end_ns = horon_clock_deadline(now, slice_ms);
    if (has_ended(request, wait->number) || now >= deadline_ns)
        return;
    const uint64_t left = (end_ns < deadline_ns ? end_ns : deadline_ns) - now;
    struct timespec timeout = {.tv_sec = (time_t)(left / 1000000000u),
                               .tv_nsec = (long)(left % 1000000000u)};
    futex(state, FUTEX_WAIT_PRIVATE, waited, &timeout);
}

void horon_context_move_here(struct horon_context *ctx)
{
    if (!horon_engine_needs_thread(ctx->engine) || !horon_token_try(ctx))
        return;
    (void)horon_token_look(ctx);
    horon_token_release(ctx);
}

/* Looks on while another thread drives. @return true: got the token */
static bool look_on(struct horon_context *ctx, struct wait *wait, uint64_t deadline_ns)
{
    struct horon_patience patience = patience_of(ctx, !ctx->crowded);
    uint64_t now;
    bool got = false;
    if (is_over(wait))
        return false; /* it gave way to another thread, which has ended it */
    if (!atomic_load_explicit(&ctx->takers, memory_order_relaxed) && horon_token_try(ctx))
        return true;
    count_in(&ctx->waiters);
    while (!is_over(wait)) {
        /* one that takes it for a moment goes before one that drives for long */
        got = !atomic_load_explicit(&ctx->takers, memory_order_relaxed) && horon_token_try(ctx);
        if (got || !horon_patience_go_on(&patience, &now) || now >= deadline_ns)
            break;
    }
    count_out(&ctx->waiters);
    return got;
}

/* A wait in slices goes on where the last one ended: asleep, with its patience spent. */
static bool has_slept(const struct wait *wait)
{
    return atomic_load(&wait->requests[0]->state) & HORON_REQUEST_WAITED;
}

/* Does no other thread drive, so that a waiter looks by itself now and then? @param needed  what is
 * in flight may be moved by this thread alone */
static bool is_alone(struct horon_context *ctx, bool needed)
{
    return needed || atomic_load_explicit(&ctx->calling_back, memory_order_relaxed);
}

/* @param wait  not over. @return likewise OK | ERR_TIMEOUT */
static horon_status_t wait_until_over(struct horon_context *ctx, struct wait *wait,
                                      int64_t timeout_ms)
{
    const uint64_t deadline =
        timeout_ms < 0 ? UINT64_MAX : horon_clock_deadline(horon_clock_ns(), timeout_ms);
    bool slept = has_slept(wait);
    int64_t slice_ms = SLICE_MS;
    const bool needed = horon_engine_needs_thread(ctx->engine);
    for (;;) {
        const bool alone = is_alone(ctx, needed);
        if ((!slept || alone) && look_on(ctx, wait, deadline)) {
            const bool glances = slept && alone;
            drive(ctx, wait, deadline, glances);
            if (is_over(wait))
                see_off_others(ctx);
            bool gave_way = atomic_load_explicit(&ctx->takers, memory_order_relaxed);
            horon_token_release(ctx);
            if (gave_way && !past(deadline))
                continue;
            if (!is_over(wait) && !(glances && is_alone(ctx, needed)))
                horon_doorbell_ring(ctx->doorbell); /* this thread gives up: the other takes over */
        }
        if (is_over(wait))
            return HORON_OK;
        if (past(deadline))
            return HORON_ERR_TIMEOUT;
        sleep_on(wait, deadline, alone ? BUSY_SLICE_MS : slice_ms);
        if (!is_over(wait))
            slept = has_slept(wait);
        slice_ms = alone ? SLICE_MS : slice_ms < SLICE_MS_MAX ? 2 * slice_ms : SLICE_MS_MAX;
    }
}

horon_status_t horon_context_wait_runs(struct horon_context *ctx,
                                       struct horon_request *const *requests, const uint32_t *runs,
                                       size_t n, int64_t timeout_ms,
                                       struct horon_waited *waited_out)
{
    const uint32_t number = runs ? runs[0] : horon_request_run_number(requests[0]);
    struct wait wait = {ctx, requests, runs, n, number, {0, HORON_OK}};
    assert(n > 0);
    const horon_status_t status =
        is_over(&wait) ? HORON_OK : wait_until_over(ctx, &wait, timeout_ms);
    if (waited_out)
        *waited_out = wait.waited;
    return status;
}
