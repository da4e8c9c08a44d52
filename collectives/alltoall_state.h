/* SPDX-License-Identifier: Apache-2.0 */
/* Inside all-to-all: its state, and the runs between hosts. */
#ifndef HORON_ALLTOALL_STATE_H
#define HORON_ALLTOALL_STATE_H

#include "channel_state.h"
#include "exec/alike.h"
#include "exec/lent.h"
#include "exec/transfers.h"

/* What a rank tells one on another host first: the word ahead of a run. */
struct horon_alltoall_word {
    uint64_t rows;
    uint8_t data[]; /* all of the run, if there is room for it, which is always sent whole */
};

/* Of a run between this rank and one on another host. */
struct horon_alltoall_run {
    struct horon_alltoall_word *ahead; /* with the most room that it may have */
    struct horon_transfer announced;
    size_t room;              /* bytes of data that the word has room for, in this operation */
    struct horon_alike alike; /* those that went this way before, of whatever verb */
};

struct horon_alltoall_peer {
    int rank;
    struct horon_alltoall_run give, take;
};

/* What did not fit into the words ahead. */
struct horon_alltoall_rounds {
    struct horon_transfers transfers;
    uint64_t begun, ended, count; /* the latter is known once the output is placed */
};

/* What makes elements and bytes of rows. */
struct horon_alltoall_unit {
    uint64_t row_elements;
    size_t element_bytes; /* 1 << shift: nothing is divided */
    unsigned shift;
};

/* How far the operation is on this rank. On one host there is nobody to link with or to tell. */
enum horon_alltoall_reached {
    HORON_ALLTOALL_BEGUN,
    HORON_ALLTOALL_LINKED, /* to all on other hosts that a run is from or to: the words go out */
    HORON_ALLTOALL_PLACED, /* rows and take_at are known, and the output is there */
};

/* In the place of a rank. */
enum { HORON_ALLTOALL_EACH = -1 };

struct horon_alltoall {
    enum horon_alltoall_reached reached;
    int giver, taker; /* root, where it alone gives or gets, by the row of the verb; or EACH */
    struct horon_alltoall_unit unit;
    struct horon_alltoall_unit owed; /* of the operation that this rank has to settle */
    uint64_t owed_check;
    const uint8_t **from;        /* [local_size] rows for this rank, if they lie in small slots */
    bool *absent;                /* [local_size] in its pipeline have no part: see alltoall.c */
    const char *own;             /* what this rank gives */
    char *out;                   /* NULL: it has no room, and plays its part for the others */
    uint64_t *give_at, *take_at; /* [size + 1] first elements by rank, and the end */
    uint64_t *give_rows, *rows;  /* [size] that this rank gives each, and gets of each */
    uint64_t given;              /* rows that this rank gives its host */
    uint64_t most;               /* elements that a rank of this host gives another there at most */
    bool small;                  /* all that the ranks of the host give is in their small slots */
    bool reads;                  /* what they give is read where it lies */
    struct horon_lent lent;
    struct horon_alltoall_peer *peers; /* [peer_count] those on other hosts, in this rank's order */
    int peer_count;
    struct horon_alltoall_rounds rounds;
};

/** The only function that changes how far it is; asserts that the move is a legal one. */
void horon_alltoall_move(struct horon_alltoall *state, enum horon_alltoall_reached to);

static inline struct horon_alltoall *horon_alltoall_of(const struct horon_channel *channel)
{
    assert(channel->verb == &horon_alltoall_ops);
    return channel->state;
}

static inline int horon_alltoall_rank_here(const struct horon_team *team, int local)
{
    return team->host_ranks[team->host_first[team->host] + local];
}

/* Does the verb take anything of that rank? */
static inline bool horon_alltoall_takes_of(const struct horon_channel *channel, int rank)
{
    const struct horon_alltoall *state = horon_alltoall_of(channel);
    return state->giver == HORON_ALLTOALL_EACH || state->giver == rank;
}

/* Does the verb have that rank give any other one something? */
static inline bool horon_alltoall_gives_others(const struct horon_channel *channel, int rank)
{
    return horon_alltoall_takes_of(channel, rank) && horon_alltoall_of(channel)->taker != rank;
}

/* Does a run go from one to the other, be it of no rows? */
static inline bool horon_alltoall_gives(const struct horon_channel *channel, int from, int to)
{
    const int taker = horon_alltoall_of(channel)->taker;
    return horon_alltoall_takes_of(channel, from) && (taker == HORON_ALLTOALL_EACH || taker == to);
}

static inline uint64_t horon_alltoall_give_count(const struct horon_alltoall *state, int rank)
{
    return state->give_at[rank + 1] - state->give_at[rank];
}

static inline uint64_t horon_alltoall_take_count(const struct horon_alltoall *state, int rank)
{
    return state->take_at[rank + 1] - state->take_at[rank];
}

/* ---- the entry, in alltoall_entry.c ---- */

struct horon_alltoall_entry {
    const uint32_t *narrow; /* its words; or NULL, and the next has them */
    const uint64_t *wide;
    const uint8_t *rows; /* or the offer of them */
};

/** Elements of so many rows that somebody says; UINT64_MAX: more than memory can hold. */
uint64_t horon_alltoall_elements(const struct horon_alltoall_unit *unit, uint64_t rows);
struct horon_alltoall_entry horon_alltoall_entry_of(const struct horon_channel *channel,
                                                    struct horon_slot_head *head, int local);
static inline uint64_t horon_alltoall_word_of(const struct horon_alltoall_entry *entry, int word)
{
    return entry->narrow ? entry->narrow[word] : entry->wide[word];
}
/** Does all that a rank gives, so many rows, lie in its small slot? */
bool horon_alltoall_fits_slot(const struct horon_channel *channel,
                              const struct horon_alltoall_unit *unit, uint64_t rows);
/** Does a rank offer what it gives, if that is long? All read at the same time then. Where root
 * alone gets anything, it reads while the others look on: worth it with one other, see
 * may_be_read() in alltoall.c. */
bool horon_alltoall_offers(const struct horon_channel *channel);
/** For the verb's enter(). */
void horon_alltoall_enter(struct horon_channel *channel);

/* ---- runs between hosts, in alltoall_runs.c ---- */

/** Memory of the words ahead, and their places in it. */
size_t horon_alltoall_words_bytes(const struct horon_team *team);
void horon_alltoall_init_words(struct horon_alltoall *state, const struct horon_team *team,
                               void *memory);

/** Is there a run between this rank and @p peer? */
bool horon_alltoall_meets(const struct horon_channel *channel, int peer);
/** Once there is a link to each of them, sends the words ahead, and what needs not be asked for.
 * @return OK: done | IN_PROGRESS: a link is being made | an error */
horon_status_t horon_alltoall_begin_runs(struct horon_channel *channel, struct horon_error *error);
/** @return OK: all that give to this rank have told how much, and the state's rows say it |
 * IN_PROGRESS | an error */
horon_status_t horon_alltoall_learn_rows(struct horon_channel *channel, struct horon_error *error);
/** The output is placed: takes what came with the words, and counts the rounds of the rest. */
void horon_alltoall_count_rounds(struct horon_channel *channel);
/** @return OK: all is here and gone | IN_PROGRESS | an error */
horon_status_t horon_alltoall_move_runs(struct horon_channel *channel, struct horon_error *error);
/** Is a round under way that waits for job rank @p rank? */
bool horon_alltoall_waits_in_rounds(const struct horon_channel *channel, int rank);

#endif
