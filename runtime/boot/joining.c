/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Waiting and rounds. While a rank waits, for whatever, it serves the store if that is its part,
 * and listens to the store: what another rank gives up for ends our waiting at once.
 *
 * A failure has a cause or only follows from one (a peer hung up, or did not come). The rank that
 * knows the cause tells it; the others go on to the next round and learn it there.
 */
#include "boot/joining.h"

#include "clock.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

/* The store says at the deadline which ranks are missing: wait for that. */
#define GRACE_NS 500000000u
/* For the last round: a rank that found the reason just before the deadline may yet tell it. */
#define LAST_GRACE_NS 2000000000u
#define TOLD_OVERRUN_MS 200     /* over the limit by less than this is at the limit */
#define FAREWELL_NS 1000000000u /* for the store to take our word */
#define TICK_NS 100000000u      /* between two looks whether the caller still wants to join */

enum weight { WEIGHT_FINE = 0, WEIGHT_FOLLOWS = 1, WEIGHT_CAUSE = 2 };

void horon_joining_turn(struct horon_joining *j, uint64_t until_ns)
{
    horon_pump_timer(&j->boot->pump, &j->alarm, until_ns);
    horon_pump_turn(&j->boot->pump, -1);
}

static horon_status_t time_is_up(const struct horon_joining *j, const char *text,
                                 struct horon_error *error)
{
    const long long limit_ms = j->config->start_timeout_ms;
    const long long took_ms = (long long)((horon_clock_ns() - j->begun_ns) / 1000000u);
    char waited[48] = "";
    if (took_ms > limit_ms + TOLD_OVERRUN_MS) /* the grace, or a machine that is too busy */
        snprintf(waited, sizeof waited, " (it was ended after %lld ms)", took_ms);
    /* a rank whose variables count ranks that were never started waits for them */
    const bool doubtful = j->met_ns == 0 && j->id.origin[0];
    return horon_error_set(error, HORON_ERR_TIMEOUT,
                           "joining took longer than %lld ms%s, while %s: %s%s%s%s", limit_ms,
                           waited, j->doing, text, doubtful ? " (here: " : "",
                           doubtful ? j->id.origin : "", doubtful ? ")" : "");
}

horon_status_t horon_joining_interrupted(const struct horon_joining *j, struct horon_error *error)
{
    return horon_error_set(error, HORON_ERR_CANCELLED, "joining was interrupted while %s",
                           j->doing);
}

/* One turn, while the caller wants to join at all. */
static void turn(struct horon_joining *j)
{
    const struct horon_boot_caller *caller = j->caller;
    const bool asks = caller->interrupted && !j->interrupted;
    horon_joining_turn(j, asks && j->ask_ns < j->deadline_ns ? j->ask_ns : j->deadline_ns);
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
    horon_status_t status = j->store ? horon_store_failed(j->store, &whole, &why) : HORON_OK;
    if (status == HORON_OK)
        return HORON_OK;
    j->over = true;
    if (whole)
        return horon_error_set(error, status, "%s", why.text);
    if (status == HORON_ERR_TIMEOUT)
        return time_is_up(j, why.text, error);
    return horon_error_set(error, status, "joining failed while %s: %s", j->doing, why.text);
}

static horon_status_t too_late(struct horon_joining *j,
                               horon_status_t (*late)(struct horon_joining *j, char *text,
                                                      size_t text_bytes),
                               struct horon_error *error)
{
    char text[HORON_ERROR_TEXT_BYTES - 128];
    horon_status_t status = late(j, text, sizeof text);
    if (status == HORON_ERR_TIMEOUT)
        return time_is_up(j, text, error);
    return horon_error_set(error, status, "joining failed while %s: %s", j->doing, text);
}

horon_status_t horon_joining_wait(struct horon_joining *j,
                                  horon_status_t (*ask)(struct horon_joining *j,
                                                        struct horon_error *error),
                                  horon_status_t (*late)(struct horon_joining *j, char *text,
                                                         size_t text_bytes),
                                  struct horon_error *error)
{
    for (;;) {
        horon_status_t status = ask(j, error);
        if (status != HORON_AGAIN)
            return status;
        if (ask_store(j, error) != HORON_OK)
            return error->status;
        if (j->interrupted)
            return horon_joining_interrupted(j, error);
        if (horon_clock_ns() >= j->deadline_ns)
            return too_late(j, late, error);
        turn(j);
    }
}

static enum weight weigh(const struct horon_joining *j, const struct horon_error *error)
{
    if (error->status == HORON_OK)
        return WEIGHT_FINE;
    return j->others_failed || error->status == HORON_ERR_PEER_LOST ? WEIGHT_FOLLOWS : WEIGHT_CAUSE;
}

/* This rank has failed with @p why: tells the others now, if it can and they do not know. */
static void give_up(struct horon_joining *j, const struct horon_error *why)
{
    struct horon_error whole, ignored;
    if (j->over || weigh(j, why) != WEIGHT_CAUSE)
        return;
    horon_error_set(&whole, why->status, "rank %d (%s): %s", j->id.rank, j->mine.name, why->text);
    if (!horon_store_abort(j->store, &whole)) {
        j->over = j->interrupted; /* else the next round will tell */
        return;
    }
    j->deadline_ns = horon_clock_ns() + FAREWELL_NS;
    while (ask_store(j, &ignored) == HORON_OK && horon_clock_ns() < j->deadline_ns)
        horon_joining_turn(j, j->deadline_ns);
    j->over = true;
}

/* ---- Rounds ---- */

static void write_head(struct horon_writer *out, uint8_t weight, const struct horon_error *so_far)
{
    const char *why = so_far->text[0] ? so_far->text : horon_status_text(so_far->status);
    horon_write_u8(out, weight);
    horon_write_u32(out, (uint32_t)so_far->status);
    horon_write_string(out, so_far->status == HORON_OK ? "" : why);
}

bool horon_round_head_read(struct horon_reader *in, uint8_t *weight_out,
                           struct horon_error *how_out)
{
    *how_out = (struct horon_error){0};
    *weight_out = horon_read_u8(in);
    const uint32_t number = horon_read_u32(in);
    const bool fine = number == HORON_OK;
    how_out->status = fine ? HORON_OK : horon_status_from_peer(number);
    horon_read_string(in, how_out->text, sizeof how_out->text);
    return in->ok && (*weight_out == WEIGHT_FINE) == fine && (int32_t)number <= 0 &&
           (fine || how_out->text[0]);
}

static horon_status_t unreadable(int rank, struct horon_error *error)
{
    return horon_error_set(error, HORON_ERR_PROTO,
                           "rank %d put something unreadable into the store", rank);
}

/* The heaviest failure, of the lowest rank that has one so heavy; cuts off how each rank fared. */
static horon_status_t judge(struct horon_joining *j, struct horon_error *error)
{
    int culprit = -1;
    uint8_t heaviest = WEIGHT_FINE;
    struct horon_error worst = {0};
    for (int r = 0; r < j->id.size; r++) {
        struct horon_blob *blob = &j->blobs.items[r];
        struct horon_reader in = horon_reader_over(blob->bytes, blob->count);
        struct horon_error one;
        uint8_t weight;
        if (!horon_round_head_read(&in, &weight, &one))
            return unreadable(r, error);
        blob->bytes += in.used;
        blob->count -= in.used;
        if (weight <= heaviest)
            continue;
        culprit = r;
        heaviest = weight;
        worst = one;
    }
    if (culprit < 0)
        return HORON_OK;
    if (culprit == j->id.rank)
        return horon_error_set(error, worst.status, "%s", worst.text);
    if (!j->boot->ranks.names[culprit][0]) /* its profile was to come in this round */
        return horon_error_set(error, worst.status, "rank %d: %s", culprit, worst.text);
    return horon_error_set(error, worst.status, "rank %d (%s): %s", culprit,
                           j->boot->ranks.names[culprit], worst.text);
}

static horon_status_t take_gifts(struct horon_joining *j, const struct horon_round *round,
                                 struct horon_error *error)
{
    horon_status_t status = judge(j, error);
    for (int r = 0; r < j->id.size && status == HORON_OK; r++) {
        const struct horon_blob *blob = &j->blobs.items[r];
        struct horon_reader in = horon_reader_over(blob->bytes, blob->count);
        if (round->take)
            status = round->take(j, r, &in, error);
        if (status == HORON_OK && !horon_reader_finished(&in))
            status = unreadable(r, error);
    }
    return status;
}

static horon_status_t ask_blobs(struct horon_joining *j, struct horon_error *error)
{
    struct horon_error why = {0};
    horon_status_t status = horon_store_get(j->store, &j->blobs, &why);
    if (status == HORON_ERR_TIMEOUT)
        return time_is_up(j, why.text, error);
    if (status != HORON_OK && status != HORON_AGAIN)
        return horon_error_set(error, status, "joining failed while %s: %s", j->doing, why.text);
    return status;
}

static horon_status_t blobs_are_late(struct horon_joining *j, char *text, size_t text_bytes)
{
    return horon_store_explain(j->store, text, text_bytes);
}

static horon_status_t hold(struct horon_joining *j, const struct horon_round *round,
                           const struct horon_error *so_far, struct horon_error *error)
{
    struct horon_writer out = horon_writer_over(j->blob, sizeof j->blob);
    j->doing = round->doing;
    write_head(&out, (uint8_t)weigh(j, so_far), so_far);
    if (round->give)
        round->give(j, &out);
    if (!out.ok)
        return horon_error_set(error, HORON_ERR_CONFIG, "this rank's profile is too long");
    if (round->last && j->deadline_ns != UINT64_MAX)
        j->deadline_ns += LAST_GRACE_NS;
    const uint64_t deadline_ns = j->deadline_ns;
    horon_status_t status =
        horon_store_put(j->store, out.bytes, out.used, round->last, deadline_ns, error);
    if (status != HORON_OK)
        return status;
    HORON_LOG_TRACE(j->log, "while %s: gave %zu bytes to the store", j->doing, out.used);
    if (deadline_ns != UINT64_MAX)
        j->deadline_ns = deadline_ns + GRACE_NS;
    status = horon_joining_wait(j, ask_blobs, blobs_are_late, error);
    j->deadline_ns = deadline_ns;
    HORON_LOG_TRACE(j->log, "while %s: %s", j->doing,
                    status == HORON_OK ? "has what every rank gave" : error->text);
    return status == HORON_OK ? take_gifts(j, round, error) : status;
}

horon_status_t horon_round_hold(struct horon_joining *j, const struct horon_round *round,
                                const struct horon_error *so_far, struct horon_error *error)
{
    assert(round->last == (j->met_ns != 0)); /* in order, and each once */
    assert(!j->connected_ns);
    if (so_far->status != HORON_OK)
        give_up(j, so_far);
    if (j->over) {
        *error = *so_far;
        return so_far->status;
    }
    horon_status_t status = hold(j, round, so_far, error);
    if (status != HORON_OK && j->interrupted)
        give_up(j, error);
    return status;
}
