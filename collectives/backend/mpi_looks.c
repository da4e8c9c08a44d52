/* SPDX-License-Identifier: Apache-2.0 */
/*
 * When to look at what MPI has in flight. MPI moves nothing unless somebody makes a call, and wakes
 * nobody. So a thread that waits looks again and again, and one that sleeps after a pause.
 *
 * MPI does not say that data has moved, nor does the time that a look takes: a rank whose memory
 * another one reads has nothing to do, but for telling now and then that there is more. What is
 * known is when all ranks have begun the operation. From then on it is at work as long as so many
 * bytes may take, and a thread that waits does not fall asleep. After that pauses grow.
 */
#include "backend/mpi_state.h"

#include "clock.h"

/* A turn looks so many times: where a look that finds nothing yields the core, as in Open MPI, a
 * waiter yields once more after each turn, and of few looks that shows. But it lasts no longer than
 * this. */
#define LOOKS 16
#define TURN_NS UINT64_C(20000)
/* How long an operation may take: of no bytes, and for each of them, at 50 MB/s; but no longer than
 * a minute, as a rank may hang in it. */
#define AT_WORK_NS UINT64_C(10000000)
#define AT_WORK_NS_A_BYTE UINT64_C(20)
#define AT_WORK_NS_MAX UINT64_C(60000000000)
/* So often it is said to have moved: less than a thread waits before it sleeps. */
#define MOVES_NS UINT64_C(50000)
/* From a hand-over to what an idle core may cost; part of the time since it should be through. */
#define PAUSE_MIN_NS UINT64_C(20000)
#define PAUSE_MAX_NS UINT64_C(1000000)
#define PAUSES 1000

/* @return OK: what was launched is through | IN_PROGRESS | ERR_SYSTEM */
static horon_status_t look(const struct horon_mpi_channel *channel, struct horon_error *error)
{
    int through = 0;
    const int code =
        horon_mpi_calls_of(channel)->testall(channel->flying, channel->requests, &through,
                                             channel->context->library->family->statuses_ignore);
    if (code != HORON_MPI_SUCCESS)
        return horon_mpi_failed(channel->context->library, "MPI_Testall", code, error);
    return through ? HORON_OK : HORON_IN_PROGRESS;
}

void horon_mpi_expect(struct horon_mpi_channel *channel, uint64_t elements)
{
    const uint64_t most = AT_WORK_NS_MAX / AT_WORK_NS_A_BYTE / channel->element_bytes;
    const uint64_t bytes = (elements < most ? elements : most) * channel->element_bytes;
    const uint64_t ns = AT_WORK_NS + AT_WORK_NS_A_BYTE * bytes * (uint64_t)channel->team->size;
    channel->looks.work_ns = ns < AT_WORK_NS_MAX ? ns : AT_WORK_NS_MAX;
}

/* The clock is read as seldom as it can be: what is short ends in the first look or soon. */
horon_status_t horon_mpi_look(struct horon_mpi_channel *channel, bool *moved_out,
                              struct horon_error *error)
{
    struct horon_mpi_looks *looks = &channel->looks;
    uint64_t begun_ns = 0, now_ns = 0;
    assert(channel->flying > 0);
    for (int i = 0; i < LOOKS && now_ns - begun_ns < TURN_NS; i++) {
        const horon_status_t status = look(channel, error);
        if (status == HORON_OK) {
            channel->flying = 0;
            *moved_out = true;
        }
        if (status != HORON_IN_PROGRESS)
            return status;
        now_ns = horon_clock_ns();
        begun_ns = i == 0 ? now_ns : begun_ns;
    }
    if (looks->work_ns) {
        looks->due_ns = now_ns + looks->work_ns;
        looks->work_ns = 0;
    }
    if (now_ns < looks->due_ns && now_ns - looks->moved_ns >= MOVES_NS) {
        looks->moved_ns = now_ns;
        *moved_out = true;
    }
    return HORON_IN_PROGRESS;
}

uint64_t horon_mpi_pause(const struct horon_mpi_channel *channel)
{
    const uint64_t now_ns = horon_clock_ns(), due_ns = channel->looks.due_ns;
    const uint64_t pause_ns = now_ns < due_ns ? 0 : (now_ns - due_ns) / PAUSES;
    if (pause_ns < PAUSE_MIN_NS)
        return PAUSE_MIN_NS;
    return pause_ns < PAUSE_MAX_NS ? pause_ns : PAUSE_MAX_NS;
}
