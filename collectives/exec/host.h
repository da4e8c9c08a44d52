/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the ranks of one host share: a control segment, and one arena a rank. Here are the layout
 * (pure), the flags that say how far each rank is, and the wake words that say which ranks sleep.
 *
 * The rule that keeps it fast: the next writer of a line is its last reader. A rank copies a chunk
 * into its own slot, the reducers overwrite it there with the result, and the same rank reads it
 * back. What only moves (broadcast, gather ...) cannot keep it: see stream.h.
 */
#ifndef HORON_EXEC_HOST_H
#define HORON_EXEC_HOST_H

#include "alive.h"
#include "link/link.h"
#include "status.h"

#include <assert.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/** Chunk slots that a rank has on a channel; two, so that a rank is at most one chunk ahead. */
#define HORON_SLOTS 2
/** Small slots, areas, result slots: so many operations less one a rank may be ahead of the others
 * that does not need them, such as a broadcast's root. */
#define HORON_SMALL_SLOTS 8

/** What the sizes depend on; equal on all ranks of the host. */
struct horon_host_shape {
    int local_size;
    size_t small_bytes; /* data of a small slot; a multiple of 64 */
    size_t chunk_bytes; /* data of a chunk slot */
};

/** What moves between caches; slots and slices begin on one. */
#define HORON_LINE_BYTES ((size_t)64)
#define HORON_RING_DATA_BYTES ((size_t)64 << 10)

/** Data of a chunk slot where @p wanted was asked for: at least two lines for each rank of the job,
 * as each, and each host, may have a region of it in any team (windows.h, reducescatter.c). */
size_t horon_host_chunk_bytes(size_t wanted, int job_size);

/** Of the segment that the members of a team on one host share. */
size_t horon_host_team_bytes(const struct horon_host_shape *shape);
/** Of the whole job's control segment: lines of the processes, then the job's as a team. */
size_t horon_host_control_bytes(const struct horon_host_shape *shape);
/** Of one channel in the arena of each member. */
size_t horon_host_channel_bytes(const struct horon_host_shape *shape);

/* Bits of a wake word. 0: somebody makes progress here and looks at everything. */
#define HORON_WAKE_ASLEEP 1u  /* nobody does: ring for what cannot wait (abort, goodbye) */
#define HORON_WAKE_DATA 2u    /* ring when a flag or slot changes */
#define HORON_WAKE_CONTROL 4u /* ring when a control message is there */

/** How many numbers say what a rank that leaves has done; what they count the engine knows. */
#define HORON_LEFT_COUNT 3

/** What is known of the ranks that left: the least that any of them has done, and the rank that is
 * to blame for it. Two of these make one, in any order and as often as one likes. */
struct horon_departures {
    bool any; /* else nothing below counts */
    uint64_t sequence[HORON_LEFT_COUNT];
    uint32_t culprit[HORON_LEFT_COUNT];
};

/** One process's line in the job's control segment: how it sleeps. */
struct horon_rank_line {
    _Alignas(64) _Atomic uint32_t wake;
    _Atomic bool urgent;     /* what cannot wait is there: the rank looks until nothing moves */
    _Atomic int32_t process; /* its number, for those that may read its memory */
    /* Without HORON_WAKE_ASLEEP, for looks after each step: it changes only where a rank sleeps. */
    _Alignas(64) _Atomic uint32_t wants;
    _Alignas(64) struct horon_alive alive; /* what is read of that process is its own */
};

/** One member's line in the segment of a team. */
struct horon_team_line {
    /* Of what this rank knows of departures. 0: nothing yet, odd: it is being written. */
    _Alignas(64) _Atomic uint32_t version;
    _Atomic uint32_t generation;
    _Atomic bool left, made; /* it takes part in nothing more; it has made its arena, for texts */
    _Atomic uint32_t culprit[HORON_LEFT_COUNT];
    _Atomic uint64_t sequence[HORON_LEFT_COUNT];
};

/** Why the team's ranks on this host must stop, as one of them says. */
struct horon_abort_record {
    _Alignas(64) uint32_t generation;
    int32_t status, rank, other_rank;
    uint32_t cause;
    char text[HORON_ERROR_TEXT_BYTES];
};

/** Each writes its own and then claims: what is claimed is whole, whatever befalls a writer. */
struct horon_aborts {
    _Alignas(64) _Atomic uint32_t claimed; /* that local rank, plus one; 0: by none yet */
    struct horon_abort_record of[];        /* [local_size] */
};

/** A monotonic count with a line of its own. */
struct horon_flag {
    _Alignas(64) _Atomic uint64_t value;
    _Atomic uint64_t refused, read, stamp; /* lent.h */
};

/** Head of a small or result slot. Data follows at once; what does not fit into the line of a small
 * slot's head lies in an area, behind the line of any of its rank's heads. The sequence is stored
 * last (release): what it covers is then readable. */
struct horon_slot_head {
    _Atomic uint64_t sequence;        /* operation + 1; 0: never used */
    uint64_t check;                   /* horon_slot_check(), channel_state.h */
    uint64_t count;                   /* elements of this rank; rows with AHEAD_ROWS */
    uint8_t verb, dtype, redop, area; /* of its data: its number, plus one; 0: the data follows */
    int32_t root;
};
#define HORON_SLOT_DATA_BYTES (HORON_LINE_BYTES - sizeof(struct horon_slot_head))

/** What one member of a team shares with those on its host. Local ranks are the team's. Owner:
 * its maker; the memory is not owned. */
struct horon_host {
    struct horon_host_shape shape;
    uint32_t generation; /* of the membership; what others say in another one is not heard */
    int local_rank;
    struct horon_rank_line *lines; /* of all processes of the job here */
    const int *process_of;  /* [local_size] the line of each member; NULL: one by one, of the job */
    uint8_t *segment;       /* of the team */
    uint8_t *const *arenas; /* [local_size] memory of the channels, one piece a member */
    bool readable;          /* members may read each other's memory: all of them say so, or none */
    void (*doorbell)(void *arg, int process); /* rings another process, or this one */
    void *doorbell_arg;
    bool owes_ring; /* this rank has stored data for which no sleeper was rung yet */
    bool puts_off;  /* in a step that rings at its end the reader of what it wrote */
    int owes_wake;  /* that local rank, plus one; 0: it wrote nothing yet */
};

/** Points @p host at the job's control segment, as its process number @p local_rank. */
void horon_host_see_control(struct horon_host *host, uint8_t *control, int local_rank);

static inline int horon_host_process(const struct horon_host *host, int local_rank)
{
    return host->process_of ? host->process_of[local_rank] : local_rank;
}
struct horon_rank_line *horon_host_line(const struct horon_host *host, int local_rank);
/* A team's segment begins with the lines of its members; the reasons to stop are next. */
static inline struct horon_team_line *horon_host_team_line(const struct horon_host *host,
                                                           int local_rank)
{
    assert(local_rank >= 0 && local_rank < host->shape.local_size);
    return (struct horon_team_line *)(void *)host->segment + local_rank;
}
static inline struct horon_aborts *horon_host_aborts(const struct horon_host *host)
{
    struct horon_team_line *first = (struct horon_team_line *)(void *)host->segment;
    return (struct horon_aborts *)(void *)(first + host->shape.local_size);
}
/* Of the channel that begins @p at bytes into each arena. */
/** Chunks that @p local_rank has put into its slot (posted) or is done with (reduced). */
struct horon_flag *horon_host_posted(const struct horon_host *host, size_t at, int local_rank);
struct horon_flag *horon_host_reduced(const struct horon_host *host, size_t at, int local_rank);
struct horon_slot_head *horon_host_small(const struct horon_host *host, size_t at, int local_rank,
                                         int slot);
uint8_t *horon_host_area(const struct horon_host *host, size_t at, int local_rank, int area);
struct horon_slot_head *horon_host_result(const struct horon_host *host, size_t at, int local_rank,
                                          int slot);
uint8_t *horon_host_chunk(const struct horon_host *host, size_t at, int local_rank, int slot);
/** Ring to or from the team's first rank on the host, of local rank @p member (1..). */
struct horon_ring *horon_host_ring(const struct horon_host *host, int member, bool to_leader);

/** This process stops looking: ring it for @p bits, HORON_WAKE_*, not 0. It has to look once more
 * after this and a full fence. */
void horon_host_sleep(const struct horon_host *host, uint32_t bits);
/** This rank looks at everything again. */
void horon_host_awake(const struct horon_host *host);

/** After the stores to be seen: rings the other members, or one of them, whose wake word has one of
 * @p bits. With HORON_WAKE_ASLEEP alone one that is about to sleep looks once more. */
void horon_host_wake_all(const struct horon_host *host, uint32_t bits);
void horon_host_wake(const struct horon_host *host, int local_rank, uint32_t bits);

/** Writes what this rank knows of departures, and if it has left itself, and rings everybody. */
void horon_host_write_departures(const struct horon_host *host,
                                 const struct horon_departures *departures, bool left);
/** Has the line of @p local_rank another version than @p version? */
static inline bool horon_host_has_news(const struct horon_host *host, int local_rank,
                                       uint32_t version)
{
    return atomic_load_explicit(&horon_host_team_line(host, local_rank)->version,
                                memory_order_acquire) != version;
}
/** Likewise, and is it whole? Then reads it, and sets @p version to its own. */
bool horon_host_see_departures(const struct horon_host *host, int local_rank, uint32_t *version,
                               struct horon_departures *departures_out, bool *left_out);

/** Says why, unless a reason is there already, and rings everybody. There is one afterwards. */
void horon_host_post_abort(const struct horon_host *host, const struct horon_error *why);
/** @param job_size ranks that may be to blame. @return true and the reason, if one was posted */
bool horon_host_aborted(const struct horon_host *host, int job_size, struct horon_error *error);

#endif
