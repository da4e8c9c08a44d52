/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a coordinator knows. Words:
 *
 *  - seat: a place that contributes to a tensor here: 0 is the rank itself, i its i-th child
 *    with all ranks below that.
 *  - entry: what this rank knows of one name, hot and cold details by the same index.
 *  - round: one use of a name, from its first contribution to the batch that ends it.
 *  - base: what the round's contributions are compared with: the agreed description (what the
 *    cache has) or a fresh one.
 *  - dissent: a contribution that differs from the base, or that failed further down.
 *
 * Every hop of the tree is first-in first-out, and a rank starts no round before the batch of its
 * last one has passed all its ancestors: so two rounds of a name never meet on a rank.
 *
 * What comes later has its place: a learned schedule is a state of the coordinator in which
 * submissions are compared with a list instead of being reported.
 */
#ifndef HORON_COORDINATOR_STATE_H
#define HORON_COORDINATOR_STATE_H

#include "coordinator/entry.h"

/* Names that only peers speak of: as many as INFLIGHT_MAX can let a peer have, far above any model,
 * and bounds what one that went astray can make this rank allocate. */
#define COORD_FOREIGN_NAMES_MAX (1u << 20)
/* Mismatches in flight: one a name and child at most; beyond it the texts are left out. */
#define COORD_DISSENT_TEXTS_MAX (1u << 16)

/* Kinds that are known by their number, so that a step of known tensors compares what it touches
 * anyway. A model has few: of further ones the descriptions are compared. */
#define COORD_KINDS_MAX 16

struct coord_handle {
    uint64_t version; /* the agreed version that signature was last found equal to */
    uint32_t entry;   /* COORD_NONE: free */
    uint32_t next_free;
    bool grouped; /* so says the signature */
    struct horon_signature signature;
};

/* Messages to one peer, each after its length in 4 bytes. Those before `open` are sealed. */
struct coord_outbox {
    uint8_t *bytes;
    size_t capacity, used, open, taken;
};

struct coord_seat {
    int rank;
    uint64_t seen; /* batches that the child had passed when it sent its last message */
    struct coord_outbox out;
};

/* An id of the cache. What it meant before is kept until all children have passed the change, so
 * that a report under way is understood as it was meant. */
struct coord_slot {
    uint64_t since;   /* batches that a sender must have passed to mean `entry` */
    uint64_t retired; /* number of the newest retired meaning, if that is not released yet */
    uint32_t entry;   /* or COORD_NONE */
    uint32_t lru_prev, lru_next; /* root: by last decision; the list's ends are at [capacity] */
};

struct coord_retired {
    uint64_t from, to; /* batches passed by a sender that meant it: from <= seen < to */
    uint64_t older;    /* number of the one before it in the slot */
    uint32_t entry;
};

struct coord_group {
    uint64_t hash;
    uint32_t size;
    uint32_t whole, failed, split; /* members that are WHOLE; those of them that failed; and so */
    uint32_t first, last;          /* members in order of readiness */
    uint32_t next;                 /* in its bucket, or among the free */
};

/* A batch that the root forms. */
struct coord_forming {
    uint64_t bytes; /* payload */
    size_t cost;    /* bytes of its record, at most */
    uint32_t first, last;
    uint32_t last_id;
    bool failed;
    const struct horon_signature *kind; /* of its tensors, unless failed */
    struct coord_reason *reason;        /* if failed; owned */
};

/* A batch for the caller. */
struct coord_decided {
    uint64_t sequence;
    horon_status_t status;
    struct coord_reason *reason; /* owned; NULL: what the status says */
    struct horon_absent *absent; /* owned, on a rank that has joined; else NULL */
    int joined;                  /* no batch: this rank has joined; or -1 */
    uint64_t ordered;            /* in-order operations that it has done */
    size_t first, count;
};

/* What is known of a rank and the join. */
enum coord_join_state {
    COORD_JOIN_NOT,
    COORD_JOIN_TOLD, /* it is below this one and said so */
    COORD_JOIN_KNOWN /* the root has said so */
};

struct horon_coordinator {
    int rank, size;
    uint64_t fusion_bytes;
    const char *const *rank_names;
    horon_status_t broken; /* what ended it; nothing is done any more */

    uint32_t seat_count; /* 1 + children */
    uint32_t words;      /* 64-bit words of a set of seats */
    struct coord_seat *seats;
    uint32_t *seat_of; /* [size] or COORD_NONE */
    int parent;        /* -1: root */
    struct coord_outbox up;
    uint32_t next_out; /* where next_message() goes on: 0 the parent, i seat i */

    /* entries: all arrays have entry_capacity places, so that the queues below never overflow */
    struct coord_entry *entries;
    struct coord_cold *cold;
    uint64_t *have;    /* [words] each: seats that have it */
    uint64_t *asked;   /* [words] each: seats that took it back and wait for the confirmation */
    uint32_t *whole;   /* entries that became WHOLE, in that order */
    uint32_t *recalls; /* entries that became RECALLED */
    uint32_t entry_capacity, entry_used, entry_free;
    uint32_t whole_count, recall_count;
    uint32_t *buckets; /* [entry_capacity], a power of two: by hash of the name */
    size_t foreign_names, foreign_names_max;
    size_t dissent_texts;
    struct horon_signature kinds[COORD_KINDS_MAX]; /* one of each kind */
    uint8_t kind_count;
    uint64_t version; /* the last one given to an agreed description */
    size_t pending;   /* entries with own */
    uint32_t search;  /* where the last search by token ended */

    struct coord_handle *handles;
    size_t handle_capacity;
    uint32_t handle_used, handle_free;

    /* cache */
    struct coord_slot *slots; /* [slot_capacity + 1] */
    uint32_t slot_capacity, slot_used;
    struct coord_retired *retired; /* numbers retired_first.. at [0..] after retired_gone */
    size_t retired_capacity, retired_gone, retired_count;
    uint64_t retired_first;

    uint64_t sequence; /* decisions passed here */

    /* join.c */
    uint64_t *joined_seats; /* [words]: seats all of whose ranks have joined */
    uint32_t joined_seat_count;
    int joined_count; /* ranks that are KNOWN to have joined */
    uint8_t *joined;  /* [size] enum coord_join_state */

    /* root: groups and batches being formed */
    struct coord_group *groups; /* [entry_capacity]: no more groups than WHOLE entries */
    uint32_t *group_buckets;    /* [entry_capacity], a power of two */
    uint32_t group_used, group_free;
    struct coord_forming *forming;
    size_t forming_capacity, forming_count;
    uint8_t *scratch; /* [COORD_RECORD_BYTES_MAX] */

    /* for the caller */
    struct coord_decided *decided;
    size_t decided_capacity, decided_count, decided_taken;
    struct horon_signature batch_first;       /* of the kind of the newest batch's first tensor */
    const struct horon_signature *batch_kind; /* in `kinds`: that kind, if it is known and may be
                                               * fused; else NULL */
    uint64_t *tokens;
    size_t token_capacity, token_count;
    struct coord_reason *taken_reason;
    struct horon_absent *taken_absent;

    /* groups of this rank that failing batches met, to be withdrawn after them */
    struct coord_broken_group {
        uint64_t hash;
        uint32_t size;
        struct coord_reason *reason;
    } * broken_groups;
    size_t broken_group_capacity, broken_group_count;
};

#endif
