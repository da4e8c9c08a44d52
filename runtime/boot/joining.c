/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Waiting and rounds. While a rank waits, for whatever, it serves the store if that is its part,
 * and listens to the store: what another rank gives up for ends our waiting at once.
 *
 * A failure has a cause or only follows from one (a peer hung up, or did not come). The rank that
 * knows the cause tells the store, which tells all at once; the others put theirs into the next
 * round, and learn the cause there.
 */
#include "boot/joining.h"

#include "clock.h"

#include <assert.h>
#include <limits.h>
#include <stdio.h>

/* For the last round: a rank that found the reason just before the deadline may yet tell it. */
#define LAST_GRACE_NS 1250000000u
#define TOLD_OVERRUN_MS 200     /* over the limit by less than this is at the limit */
#define FAREWELL_NS 1000000000u /* for the store to take our word */
#define TICK_NS 100000000u      /* between two looks whether the caller still wants to join */
#define TOLD_TEXT_BYTES 900     /* of an error's text, behind the rank's name */

void horon_joining_turn(struct horon_joining *j, uint64_t until_ns)
{
    const uint64_t now_ns = horon_clock_ns();
    const uint64_t left_ms = until_ns > now_ns ? (until_ns - now_ns) / 1000000u + 1 : 0;
    horon_pump_turn(&j->boot->pump, left_ms < INT_MAX ? (int)left_ms : -1);
}

/* What ended joining, with what was being done meanwhile. */
static horon_status_t fail_while(const struct horon_joining *j, const struct horon_error *why,
                                 struct horon_error *error)
{
    const long long limit_ms = j->config->start_timeout_ms;
    const long long took_ms = (long long)((horon_clock_ns() - j->begun_ns) / 1000000u);
    char waited[48] = "";
    if (took_ms > limit_ms + TOLD_OVERRUN_MS) /* the grace, or a machine that is too busy */
        snprintf(waited, sizeof waited, " (it was ended after %lld ms)", took_ms);
    /* a rank whose variables count ranks that were never started waits for them */
    const bool doubtful = j->met_ns == 0 && j->id.origin[0];
    if (why->status == HORON_ERR_TIMEOUT)
        horon_error_set(error, why->status,
                        "joining took longer than %lld ms%s, while %s: %.*s%s%s%s", limit_ms,
                        waited, j->doing, TOLD_TEXT_BYTES, why->text, doubtful ? " (here: " : "",
                        doubtful ? j->id.origin : "", doubtful ? ")" : "");
    else
        horon_error_set(error, why->status, "joining failed while %s: %.*s", j->doing,
                        TOLD_TEXT_BYTES, why->text);
    error->blame = why->blame;
    return error->status;
}

/* The cause of what failed here lies here, unless it is known to lie elsewhere. */
static void blame_self(const struct horon_joining *j, struct horon_error *error)
{
    if (error->blame.rank < 0)
        error->blame.rank = j->id.rank;
}

static horon_status_t interrupted(const struct horon_joining *j, struct horon_error *error)
{
    horon_error_set(error, HORON_ERR_CANCELLED, "joining was interrupted while %s", j->doing);
    blame_self(j, error);
    return HORON_ERR_CANCELLED;
}

/* One turn, while the caller wants to join at all. */
static void turn(struct horon_joining *j)
{
    const struct horon_boot_caller *caller = j->caller;
    const bool asks = caller->interrupted && !j->interrupted;
    uint64_t until_ns = asks && j->ask_ns < j->deadline_ns ? j->ask_ns : j->deadline_ns;
    if (j->look_ns && j->look_ns < until_ns)
        until_ns = j->look_ns;
    if (j->slow_ns < until_ns)
        until_ns = j->slow_ns;
    horon_joining_turn(j, until_ns);
    if (!asks || horon_clock_ns() < j->ask_ns)
        return;
    j->interrupted = caller->interrupted(caller->interrupted_arg) != 0;
    j->ask_ns = horon_clock_ns() + TICK_NS;
}

/* OK: nothing is wrong with the store. Else joining is over, and the text is complete. */
static horon_status_t ask_store(struct horon_joining *j, struct horon_error *error)
{
    bool whole = false;
    struct horon_error why = {0};
    if (!j->store || horon_store_failed(j->store, &whole, &why) == HORON_OK)
        return HORON_OK;
    j->over = true;
    if (!whole)
        return fail_while(j, &why, error);
    *error = why;
    return error->status;
}

static void blobs_are_late(struct horon_joining *j, struct horon_error *why)
{
    horon_store_explain(j->store, true, why);
}

void horon_joining_watch(struct horon_joining *j)
{
    const uint64_t slow_ns = j->caller->slow_ns;
    j->slow_ns = slow_ns ? horon_clock_ns() + slow_ns : UINT64_MAX;
}

void horon_joining_tell_slow(struct horon_joining *j, const char *doing, const char *why)
{
    horon_joining_watch(j);
    if (!why[0])
        return;
    j->slow_ns = UINT64_MAX;
    HORON_LOG_WARN(j->log, "still %s, after %d s: %s", doing,
                   (int)((horon_clock_ns() - j->begun_ns) / 1000000000u), why);
}

/* Once, long before the limit. Ranks that have reached the store leave it to the one that serves
 * it, or to the launcher, to say which of them it lacks. */
static void tell_slow(struct horon_joining *j,
                      void (*late)(struct horon_joining *j, struct horon_error *why))
{
    const bool others_failed = j->others_failed; /* nothing has failed yet */
    struct horon_error why = {0};
    if (late != blobs_are_late)
        late(j, &why);
    else if (horon_store_is_sought(j->store))
        horon_store_explain(j->store, false, &why);
    j->others_failed = others_failed;
    /* "": another's to say, or it came in this moment; the next thing may last, too */
    horon_joining_tell_slow(j, j->doing, why.text);
}

horon_status_t horon_joining_wait(struct horon_joining *j,
                                  void (*late)(struct horon_joining *j, struct horon_error *why),
                                  struct horon_error *error)
{
    struct horon_error why;
    if (ask_store(j, error) != HORON_OK)
        return error->status;
    if (j->interrupted)
        return interrupted(j, error);
    if (horon_clock_ns() < j->deadline_ns) {
        turn(j);
        const uint64_t now_ns = horon_clock_ns();
        if (now_ns >= j->slow_ns && now_ns < j->deadline_ns) /* which tells it, too */
            tell_slow(j, late);
        return HORON_OK;
    }
    late(j, &why);
    assert(why.status < 0);
    return fail_while(j, &why, error);
}

/* @return @p why as the others are told: which rank failed, in its text and as data */
static struct horon_error told_by_us(const struct horon_joining *j, const struct horon_error *why)
{
    struct horon_error told;
    horon_error_set(&told, why->status, "rank %d (%s): %.*s", j->id.rank, j->mine.name,
                    TOLD_TEXT_BYTES, why->text[0] ? why->text : horon_status_text(why->status));
    if (why->text[0])
        told.blame = why->blame;
    blame_self(j, &told);
    return told;
}

/* This rank has failed with @p why: tells the others; those that have not come yet learn it when
 * they do. Without a connection it is told as soon as there is one, while the caller wants that. */
static void give_up(struct horon_joining *j, const struct horon_error *why)
{
    const struct horon_error told = told_by_us(j, why);
    struct horon_error ignored;
    if (j->over)
        return;
    j->slow_ns = UINT64_MAX; /* what it waits for now is not joining */
    const bool connected = horon_store_abort(j->store, &told);
    if (connected)
        j->deadline_ns = horon_clock_ns() + FAREWELL_NS;
    while (ask_store(j, &ignored) == HORON_OK && horon_clock_ns() < j->deadline_ns &&
           (connected || !j->interrupted))
        turn(j);
    j->over = true;
}

/* ---- Rounds ---- */

/* The store is asked at the deadline which ranks are missing. Where all stood still (a machine that
 * was suspended, a job that was stopped) every limit has passed when they go on: the server has its
 * time from then on. */
static horon_status_t hold(struct horon_joining *j, enum horon_store_put put,
                           const struct horon_writer *blob, struct horon_error *error)
{
    const uint64_t deadline_ns = j->deadline_ns;
    horon_status_t status =
        horon_store_put(j->store, put, blob->bytes, blob->used, deadline_ns, error);
    if (status != HORON_OK)
        return status;
    HORON_LOG_TRACE(j->log, "while %s: gave %zu bytes to the store", j->doing, blob->used);
    while (status == HORON_OK && !horon_store_get(j->store, &j->blobs)) {
        j->deadline_ns = horon_store_answer_due_ns(j->store);
        status = horon_joining_wait(j, blobs_are_late, error);
    }
    j->deadline_ns = deadline_ns;
    HORON_LOG_TRACE(j->log, "while %s: %s", j->doing,
                    status == HORON_OK ? "has what every rank gave" : error->text);
    return status;
}

horon_status_t horon_round_hold(struct horon_joining *j, const char *doing,
                                const struct horon_writer *gift, struct horon_error *error)
{
    struct horon_writer blob = gift ? *gift : horon_writer_over(j->blob, sizeof j->blob);
    enum horon_store_put put = gift ? HORON_STORE_PUT_MORE : HORON_STORE_PUT_LAST;
    assert(!gift == (j->met_ns != 0)); /* in order, and each once */
    assert(!j->connected_ns);
    if (error->status != HORON_OK && !j->over) {
        blame_self(j, error);
        if (!j->others_failed && error->status != HORON_ERR_PEER_LOST)
            give_up(j, error);
    }
    if (j->over)
        return error->status;
    if (error->status != HORON_OK) {
        const struct horon_error told = told_by_us(j, error);
        blob = horon_writer_over(j->blob, sizeof j->blob);
        horon_error_write(&blob, &told);
        put = HORON_STORE_PUT_FAILED;
    }
    assert(blob.ok);
    j->doing = doing;
    if (!gift && j->deadline_ns != UINT64_MAX)
        j->deadline_ns += LAST_GRACE_NS;
    horon_status_t status = hold(j, put, &blob, error);
    if (status != HORON_OK && j->interrupted)
        give_up(j, error);
    if (status == HORON_OK && !gift && j->interrupted) /* in the last moment */
        status = interrupted(j, error);
    return status;
}
