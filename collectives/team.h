/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A team: the ranks that carry out operations together, where each of them is, and how it is
 * reached. The whole job is one team; a process set is another. Plain tables and pure questions.
 */
#ifndef HORON_TEAM_H
#define HORON_TEAM_H

#include "link/mux.h"

/** The ranks that take part, as tables; owner: the caller; must outlive the channel. */
struct horon_team {
    uint32_t generation; /* of the membership whose ranks these are */
    int rank, size;
    int host_count, host;       /* hosts, and the one of this rank */
    int local_rank, local_size; /* on this host */
    int segments;               /* slices of a chunk: as many as the largest host has ranks */
    /* Has a machine more of its ranks than cores? All of them say the same. */
    bool crowded;
    const int *host_of;              /* [size] */
    const int *local_rank_of;        /* [size] */
    const int *host_first;           /* [host_count + 1] into host_ranks */
    const int *host_ranks;           /* [size] */
    const int *ranks;                /* [size] their ranks in the job; NULL: it is the job */
    const char *const *rank_names;   /* [size] "rank 3 (host-b)" */
    struct horon_mux *const *mux_of; /* [size] data links to other hosts, else NULL */
    /* Asks for a link to a rank of another host; not all are there from the beginning.
     * @return OK, mux_of has it | AGAIN, it is under way: ask again | why there will be none */
    horon_status_t (*connect)(void *arg, int rank, struct horon_error *error);
    void *connect_arg;
};

static inline int horon_team_job_rank(const struct horon_team *team, int rank)
{
    return team->ranks ? team->ranks[rank] : rank;
}

#endif
