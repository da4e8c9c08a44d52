/* SPDX-License-Identifier: Apache-2.0 */
/* A run of fuzz_engine, and the links between its ranks, one of which lies. */
#ifndef HORON_FUZZ_LIAR_H
#define HORON_FUZZ_LIAR_H

#include "world/teams.h"

enum { RANKS = 3, OPS_MAX = 6, RING_BYTES = 16384, TURNS_MAX = 300, QUIET_TURNS = 4 };
enum { FRAME_BYTES_MAX = 32768, OUTPUT_BYTES_MAX = 1 << 20 };

struct script {
    const uint8_t *bytes;
    size_t left;
};

/* One direction of a link: what @p from said, and what the other will hear of it. */
struct pipe {
    struct horon_ring *said, *heard; /* NULL: no link */
    struct horon_link *tap;          /* this side of said[from][to] and heard[to][from] */
    uint8_t in[FRAME_BYTES_MAX], out[FRAME_BYTES_MAX];
    size_t in_bytes, out_bytes;
    uint8_t last[512]; /* the last short frame, to be said again */
    size_t last_bytes;
    bool ended;
};

/* An operation as one rank sees it. */
struct part {
    struct horon_request *request;
    float *src, *dst;
    void *output; /* of a verb that learns how much comes */
};

struct fuzz {
    struct world *world;
    struct script script;
    int liar;
    bool lied, differs;
    struct pipe *pipes[RANKS][RANKS];
    struct world_team *team; /* NULL: the job alone */
    struct horon_request *joins[RANKS];
    struct part parts[OPS_MAX][RANKS];
    uint8_t what[OPS_MAX], whose[OPS_MAX];
    int ops;
};

static inline uint8_t next_byte(struct script *script)
{
    if (script->left == 0)
        return 0;
    script->left--;
    return *script->bytes++;
}

/** Links of all ranks that have one, before there are engines. */
void fuzz_make_pipes(struct fuzz *fuzz);
/** Makes @p links [RANKS] of a rank. */
void fuzz_make_links(struct fuzz *fuzz, int rank, struct horon_link **links);
void fuzz_free_pipes(struct fuzz *fuzz);
/** Carries what one rank says to another, or what the script makes of it.
 * @return did anything move? */
bool fuzz_carry(struct fuzz *fuzz, int from, int to);

#endif
