/* SPDX-License-Identifier: Apache-2.0 */
/* What a rank knows of one name. The words are told in state.h. */
#ifndef HORON_COORDINATOR_ENTRY_H
#define HORON_COORDINATOR_ENTRY_H

#include "coordinator/signature.h"

#define COORD_NONE UINT32_MAX

/* Of the name of another tensor, in a text. */
#define COORD_OTHER_SHOWN 64

/* Why tensors fail, kept: no longer than its text. Ranks are those of the team. */
struct coord_reason {
    struct horon_blame blame;
    char text[];
};

/* What a seat says of a tensor that failed further down. */
struct coord_failure {
    const struct horon_error *why;
    bool split; /* ranks disagree about its group: it may never be complete */
};

struct coord_dissent {
    struct coord_dissent *next;
    struct coord_reason *reason; /* owned; NULL also if too many are kept */
    uint32_t seat;
    bool below; /* it failed below the seat; else its signature differs from the base */
    bool split; /* below the seat, ranks disagree about the group */
    struct horon_signature signature;
};

enum coord_state {
    COORD_IDLE,      /* no seat has it */
    COORD_GATHERING, /* some seats have it */
    COORD_WHOLE,     /* all have it; the parent does not know yet. Root: it may be decided */
    COORD_REPORTED,  /* the parent knows */
    COORD_RECALLED,  /* the parent was asked to forget it and has not answered */
};
#define COORD_STATE_COUNT 5

/* Hot: all that a step of known tensors touches. */
struct coord_entry {
    uint64_t token;        /* of this rank's own submission */
    uint64_t version;      /* of the agreed description; 0: there is none */
    uint64_t agreed_bytes; /* payload by the agreed description */
    uint32_t id;           /* in the cache, or COORD_NONE */
    uint32_t missing;      /* seats that do not have it */
    uint32_t next;         /* in a batch being formed, or among the free */
    uint32_t group;        /* root, while WHOLE: the group it belongs to, or COORD_NONE */
    uint32_t holds;        /* handles and retired ids that keep it */
    uint32_t plan;         /* root: the id that the batch being encoded gives it */
    uint8_t state;         /* enum coord_state */
    bool own;              /* submitted here */
    bool as_agreed;        /* the base is the agreed description */
    bool failed;           /* there are dissents */
    bool split;            /* some of them about the group */
    bool queued;           /* stands in `whole`, maybe no longer rightly */
    bool placed;           /* root: is in a batch being formed */
    bool grouped;          /* the agreed description names a group */
    bool foreign;          /* only peers have spoken of it */
    bool asked_about;      /* there is an inquiry */
    bool own_grouped;      /* this rank said that it is one of a group */
    uint8_t kind;          /* of the agreed description: its place in `kinds`, if it has one */
};
static_assert(sizeof(struct coord_entry) == 64, "a cache line");

/* What is known of a rank and a tensor that others wait for; each replaces those before it. */
enum coord_answer_state {
    COORD_UNHEARD, /* it was asked, and its parent has nothing of it */
    COORD_LACKS,   /* it has not submitted it */
    COORD_HAS,     /* it has, and waits itself for a rank below */
};
#define COORD_ANSWER_STATE_COUNT 3

struct coord_answer {
    int rank;
    uint8_t state;                     /* enum coord_answer_state */
    char other[COORD_OTHER_SHOWN + 1]; /* LACKS: a name, cut, that it waits for instead; or "" */
};

struct coord_cold {
    char *name;
    size_t name_bytes;
    uint64_t hash;
    uint32_t hash_next; /* in its bucket */
    uint32_t group_prev, group_next;
    struct horon_signature agreed, fresh;
    struct coord_dissent *dissents;
    uint64_t own_group_hash; /* what this rank said, whatever the base is */
    uint32_t own_group_size;
    struct coord_inquiry *inquiry;
    struct coord_reason
        *reason; /* why this rank withdraws it: a failed group; NULL: it was asked to */
};

#endif
