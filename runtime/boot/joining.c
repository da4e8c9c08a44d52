/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Waiting and rounds. While a rank waits, for whatever, it serves the store if that is its part,
 * and listens to the store: what another rank gives up for ends our waiting at once.
 *
 * A failure has a cause or only follows from one (a peer hung up, or did not come). Who knows the
 * cause tells it; the others go on to the next round and learn it there.
 */
#include "boot/joining.h"

#include "alloc.h"
#include "clock.h"

#include <stdio.h>
#include <string.h>

#define GRACE_NS                                                                                   \
    500000000u /* the store's word on who is missing comes at the deadline: wait for it */
#define TOLD_OVERRUN_MS 200     /* over the limit by less than this is at the limit */
#define FAREWELL_NS 1000000000u /* for the store to take our word */
#define TICK_NS 100000000u      /* between two looks whether the caller still wants to join */

enum weight { WEIGHT_FINE = 0, WEIGHT_FOLLOWS = 1, WEIGHT_CAUSE = 2 };

void horon_joining_set_deadline(struct horon_joining *j, uint64_t at_ns)
{
    j->deadline_ns = at_ns;
    if (at_ns == UINT64_MAX)
        horon_pump_untimer(&j->pump, &j->alarm);
    else
        horon_pump_timer(&j->pump, &j->alarm, at_ns);
}

horon_status_t horon_joining_timeout(const struct horon_joining *j, const char *text,
                                     struct horon_error *error)
{
    const long long limit_ms = j->config->start_timeout_ms;
    const long long took_ms = (long long)((horon_clock_ns() - j->begun_ns) / 1000000u);
    char waited[48] = "";
    if (took_ms > limit_ms + TOLD_OVERRUN_MS) /* the grace, or a machine that is too busy */
        snprintf(waited, sizeof waited, " (it was ended after %lld ms)", took_ms);
    /* who counts ranks that were never started waits for them */
    const bool doubtful = j->phase_end_ns[0] == 0 && j->id.origin[0];
    return horon_error_set(error, HORON_ERR_TIMEOUT,
                           "joining took longer than %lld ms%s, while %s: %s%s%s%s", limit_ms,
                           waited, j->phase, text, doubtful ? " (here: " : "",
                           doubtful ? j->id.origin : "", doubtful ? ")" : "");
}

horon_status_t horon_joining_interrupted(const struct horon_joining *j, struct horon_error *error)
{
    return horon_error_set(error, HORON_ERR_CANCELLED, "joining was interrupted while %s",
                           j->phase);
}

/* One turn of the pump, while the caller wants to join at all. */
static void turn(struct horon_joining *j)
{
    const struct horon_boot_caller *caller = j->caller;
    if (caller->interrupted && !j->interrupted && !j->tick.active)
        horon_pump_timer(&j->pump, &j->tick, horon_clock_ns() + TICK_NS);
    horon_pump_turn(&j->pump, -1);
    if (j->asking && !j->interrupted)
        j->interrupted = caller->interrupted(caller->interrupted_arg) != 0;
    j->asking = false;
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
        return horon_joining_timeout(j, why.text, error);
    return horon_error_set(error, status, "joining failed while %s: %s", j->phase, why.text);
}

horon_status_t horon_joining_wait(struct horon_joining *j,
                                  horon_status_t (*ask)(struct horon_joining *j,
                                                        struct horon_error *error),
                                  struct horon_error *error)
{
    for (;;) {
        horon_status_t status = ask(j, error);
        if (status == HORON_AGAIN && ask_store(j, error) != HORON_OK)
            return error->status;
        if (status != HORON_AGAIN)
            return status;
        if (j->interrupted)
            return horon_joining_interrupted(j, error);
        if (horon_clock_ns() >= j->deadline_ns)
            return HORON_ERR_TIMEOUT;
        turn(j);
    }
}

static enum weight weigh(const struct horon_joining *j, const struct horon_error *error)
{
    if (error->status == HORON_OK)
        return WEIGHT_FINE;
    return j->others_failed || error->status == HORON_ERR_PEER_LOST ? WEIGHT_FOLLOWS : WEIGHT_CAUSE;
}

void horon_joining_give_up(struct horon_joining *j, const struct horon_error *why)
{
    struct horon_error whole, ignored;
    if (j->over || weigh(j, why) != WEIGHT_CAUSE)
        return;
    horon_error_set(&whole, why->status, "rank %d (%s): %s", j->id.rank, j->mine.name, why->text);
    if (!horon_store_abort(j->store, &whole)) {
        j->over = j->interrupted; /* else the next round will tell */
        return;
    }
    horon_joining_set_deadline(j, horon_clock_ns() + FAREWELL_NS);
    while (ask_store(j, &ignored) == HORON_OK && horon_clock_ns() < j->deadline_ns)
        horon_pump_turn(&j->pump, -1);
    j->over = true;
}

struct horon_writer horon_round_begin(struct horon_joining *j, const struct horon_error *so_far)
{
    struct horon_writer out = horon_writer_over(j->blob, sizeof j->blob);
    horon_write_u8(&out, (uint8_t)weigh(j, so_far));
    horon_write_u32(&out, (uint32_t)so_far->status);
    const char *why = so_far->text[0] ? so_far->text : horon_status_text(so_far->status);
    horon_write_string(&out, so_far->status == HORON_OK ? "" : why);
    return out;
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

/* The heaviest failure, of the lowest rank that has one so heavy. */
static horon_status_t judge_round(const struct horon_joining *j, struct horon_round *round,
                                  struct horon_error *error)
{
    int culprit = -1;
    uint8_t heaviest = WEIGHT_FINE;
    struct horon_error worst = {0};
    for (int r = 0; r < j->id.size; r++) {
        const struct horon_blob *blob = &round->blobs.items[r];
        struct horon_reader *in = &round->payloads[r];
        struct horon_error one;
        uint8_t weight;
        *in = horon_reader_over(blob->bytes, blob->count);
        if (!horon_round_head_read(in, &weight, &one))
            return horon_error_set(error, HORON_ERR_PROTO,
                                   "rank %d put something unreadable into the store", r);
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
    if (!j->names[culprit][0]) /* its card was to come in this round */
        return horon_error_set(error, worst.status, "rank %d: %s", culprit, worst.text);
    return horon_error_set(error, worst.status, "rank %d (%s): %s", culprit, j->names[culprit],
                           worst.text);
}

static horon_status_t wait_for_blobs(struct horon_joining *j, struct horon_round *round,
                                     struct horon_error *error)
{
    for (;;) {
        struct horon_error why = {0};
        horon_status_t status = horon_store_get(j->store, &round->blobs, &why);
        if (status == HORON_ERR_TIMEOUT)
            return horon_joining_timeout(j, why.text, error);
        if (status != HORON_OK && status != HORON_AGAIN)
            return horon_error_set(error, status, "joining failed while %s: %s", j->phase,
                                   why.text);
        if (status == HORON_OK)
            return HORON_OK;
        status = ask_store(j, error);
        if (status != HORON_OK)
            return status;
        if (j->interrupted)
            return horon_joining_interrupted(j, error);
        if (horon_clock_ns() >= j->deadline_ns) {
            status = horon_store_explain(j->store, why.text, sizeof why.text);
            if (status == HORON_ERR_TIMEOUT)
                return horon_joining_timeout(j, why.text, error);
            return horon_error_set(error, status, "joining failed while %s: %s", j->phase,
                                   why.text);
        }
        turn(j);
    }
}

horon_status_t horon_round_do(struct horon_joining *j, const struct horon_writer *out, bool last,
                              struct horon_round *round, struct horon_error *error)
{
    const uint64_t deadline_ns = j->deadline_ns;
    if (!out->ok)
        return horon_error_set(error, HORON_ERR_CONFIG, "this rank's card is too long");
    round->payloads = horon_zalloc((size_t)j->id.size, sizeof *round->payloads);
    if (!round->payloads)
        return horon_error_set(error, HORON_ERR_MEMORY, "no memory to join");
    horon_status_t status =
        horon_store_put(j->store, out->bytes, out->used, last, deadline_ns, error);
    if (status != HORON_OK)
        return status;
    HORON_LOG_TRACE(j->log, "while %s: gave %zu bytes to the store", j->phase, out->used);
    if (deadline_ns != UINT64_MAX)
        horon_joining_set_deadline(j, deadline_ns + GRACE_NS);
    status = wait_for_blobs(j, round, error);
    horon_joining_set_deadline(j, deadline_ns);
    HORON_LOG_TRACE(j->log, "while %s: %s", j->phase,
                    status == HORON_OK ? "has what every rank gave" : error->text);
    return status == HORON_OK ? judge_round(j, round, error) : status;
}

void horon_round_deinit(struct horon_round *round)
{
    horon_blobs_deinit(&round->blobs);
    horon_free(round->payloads);
    *round = (struct horon_round){0};
}
