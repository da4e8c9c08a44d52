/* SPDX-License-Identifier: Apache-2.0 */
/* What is counted of the runs of the simulation. */
#ifndef HORON_TEST_SIMULATION_OUTCOME_H
#define HORON_TEST_SIMULATION_OUTCOME_H

#include <stdbool.h>
#include <stdint.h>

/** What happened in a run, so that a test can see that it looked at something. */
struct sim_outcome {
    uint64_t hash, steps; /* of all events */
    int size;
    bool killed, killed_inside, left, disordered;
    unsigned well, cancelled, mismatched, failed; /* requests, by how they ended */
    unsigned replaced;                            /* memberships */
    unsigned rebound;        /* ends of other teams that went on with something in flight in one */
    unsigned links, refused; /* ends of links that were asked for; in vain */
    unsigned joined, absent; /* ranks that joined; operations that ended well without all */
    unsigned teams, team_well; /* teams that members made; their requests that ended well */
    unsigned sets, sets_failed, removed; /* what ranks added; in vain; and removed */
    /* Ends of messages that ended well; of the latter, beyond the eager quota, and when all had
     * joined that were sent before; and those that failed. */
    unsigned sent, received, received_long, received_late, messages_failed;
};

#endif
