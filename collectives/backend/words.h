/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A few words that the ranks of a team tell each other about an operation of another backend: all
 * get the highest of each. They travel on a channel that every rank can use, as an operation of its
 * own that shows the other one's check: ranks that have begun different operations notice.
 */
#ifndef HORON_BACKEND_WORDS_H
#define HORON_BACKEND_WORDS_H

#include "backend/backend.h"

/** All zero at first, and used again. */
struct horon_words {
    struct horon_backend_channel *channel;
    uint64_t *words; /* [limit] this rank's; then the highest of all */
    size_t limit;
    struct horon_part part;
    struct horon_operation op;
    bool flying;
};

/** Makes room for @p count words, and sets them to 0. @return OK | ERR_MEMORY */
horon_status_t horon_words_clear(struct horon_words *words, size_t count);
/** Likewise for the rows of all ranks that they tell ahead of an operation, each rank's in words of
 * its own, and puts this rank's there. @return how many words; 0: no memory */
size_t horon_words_put_rows(struct horon_words *words, const struct horon_operation *op,
                            const struct horon_team *team);
/** Begins with what stands there. @param op  ahead of which they are told; it stays until all have.
 * NULL: of none in particular, and @p check is theirs */
void horon_words_begin(struct horon_words *words, size_t count, const struct horon_operation *op,
                       uint64_t check);
/** @return OK, all have told | IN_PROGRESS | what the channel failed with */
horon_status_t horon_words_advance(struct horon_words *words, bool *moved_out,
                                   struct horon_error *error);
/** As horon_channel_waits_for(). */
bool horon_words_wait_for(const struct horon_words *words, int rank);
void horon_words_abort(struct horon_words *words);
void horon_words_deinit(struct horon_words *words);

#endif
