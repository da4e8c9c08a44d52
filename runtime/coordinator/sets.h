/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The process sets of a job, as all its ranks know them: ids, and the ranks in each. And how ranks
 * come to the same table: for each change every rank writes a proposal; each reads those of all,
 * and decides by itself what all others decide. A rank that cannot do what it is asked for proposes
 * a refusal, so that all fail alike and nobody waits.
 *
 * Ids are used again, the one that is free for the longest time first, as Horovod does; the number
 * of a set's team never is. Pure: no clock, no links; the caller keeps threads apart.
 */
#ifndef HORON_COORDINATOR_SETS_H
#define HORON_COORDINATOR_SETS_H

#include "codec.h"
#include "status.h"

/** Numbers of teams go up to here. */
#define HORON_SETS_TEAM_MAX ((UINT32_C(1) << 30) - 1)

struct horon_set {
    int32_t id;
    struct horon_context_team *team; /* the caller's; NULL: this rank is outside of it */
    int32_t size;
    int32_t ranks[]; /* [size] of the job, in ascending order */
};

struct horon_sets {
    int32_t job_size;
    struct horon_set **table; /* [limit] by id; NULL: it is free. The first is the job */
    uint64_t *freed_at;       /* [limit] count of removals when it became free */
    int32_t limit, count;
    uint64_t removals;
    uint32_t newest_team; /* the highest number of a team so far */
};

/** With the job in it. @return OK | ERR_MEMORY: there is nothing to deinit */
horon_status_t horon_sets_init(struct horon_sets *sets, int32_t job_size);
/** All zero is a no-op. */
void horon_sets_deinit(struct horon_sets *sets);

/** @return NULL: there is no set of this id */
struct horon_set *horon_sets_find(const struct horon_sets *sets, int32_t id);
/** @return the place of a rank of the job in a set, or -1 */
int32_t horon_set_find_rank(const struct horon_set *set, int32_t job_rank);

/** Sorts @p ranks [count] and says whether there may be a set of them.
 * @return OK | ERR_INVALID, with the reason */
horon_status_t horon_sets_check(const struct horon_sets *sets, int32_t *ranks, size_t count,
                                struct horon_error *error);
/** A set of ranks that were checked, and room for it in the table; the caller frees it with
 * horon_free() unless it enters. @return NULL: no memory */
struct horon_set *horon_sets_make(struct horon_sets *sets, const int32_t *ranks, size_t count);
/** Puts it into the table, where it gets its id. */
void horon_sets_enter(struct horon_sets *sets, struct horon_set *set);
/** Takes a set out of the table; the caller frees it with horon_free(). */
void horon_sets_remove(struct horon_sets *sets, struct horon_set *set);

/* ---- proposals ------------------------------------------------------------------------------ */

/** Bytes of the longest refusal: length, newest team, what ranks say differently, kind, reason. */
#define HORON_REFUSAL_BYTES_MAX (17 + HORON_ERROR_WIRE_BYTES_MAX)
/** Room for the names of a set's backends, or for what the option says of them. */
#define HORON_SETS_BACKENDS_BYTES 64
/** Bytes of the longest one. */
size_t horon_proposal_bytes_max(int32_t job_size);
/** To add a set of ranks that were checked, with the names of its backends, or "" if they are the
 * job's; to remove one; that the change is made here; that nothing of the set begins here any more;
 * that it cannot be. */
void horon_proposal_add(struct horon_writer *out, const struct horon_sets *sets,
                        const int32_t *ranks, size_t count, const char *backends);
void horon_proposal_remove(struct horon_writer *out, const struct horon_sets *sets, int32_t id);
void horon_proposal_made(struct horon_writer *out, const struct horon_sets *sets);
/** @param said  bits that ranks may say differently, as horon_proposals_said() has them */
void horon_proposal_parted(struct horon_writer *out, const struct horon_sets *sets, uint8_t said);
void horon_proposal_refuse(struct horon_writer *out, const struct horon_sets *sets,
                           const struct horon_error *why);

/**
 * Reads the proposals of all ranks, one after another, and nothing behind them.
 * @param rank_names [job size] "rank 3 (host-b)"
 * @param newest_out the highest number of a team on any rank; set on OK only
 * @return OK, all propose the same | what the lowest rank that refuses says, behind its name |
 *         ERR_MISMATCH, with the first two ranks that differ | ERR_UNSUPPORTED, there have been too
 *         many sets | ERR_PROTO
 */
horon_status_t horon_proposals_decide(const struct horon_sets *sets, const void *bytes,
                                      size_t byte_count, const char *const *rank_names,
                                      uint32_t *newest_out, struct horon_error *error);
/** Of proposals that are all the same: the bits that all ranks say. */
uint8_t horon_proposals_said(const void *bytes, size_t byte_count);

/**
 * Reads one set of a list as the option PROCESS_SETS has it: "0,2,4-7;1,3@mpi".
 * @param at       where it begins; moved to where the next one does, or the end
 * @param ranks    [job size] room
 * @param backends [HORON_SETS_BACKENDS_BYTES] what stands behind the @; "": nothing
 * @return OK | ERR_CONFIG
 */
horon_status_t horon_sets_parse(const struct horon_sets *sets, const char **at, int32_t *ranks,
                                size_t *count_out, char *backends, struct horon_error *error);

#endif
