/* SPDX-License-Identifier: Apache-2.0 */
/* See sets.h. A proposal is its length, the newest team's number, and what all ranks must have
 * alike, which is compared as bytes. */
#include "coordinator/sets.h"

#include "alloc.h"
#include "numbers.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>

enum proposal {
    PROPOSAL_ADD = 1,
    PROPOSAL_REMOVE,
    PROPOSAL_MADE,
    PROPOSAL_PARTED,
    PROPOSAL_REFUSED
};

/* ---- the table ------------------------------------------------------------------------------ */

static horon_status_t grow(struct horon_sets *sets)
{
    const int32_t limit = sets->limit + 1 + sets->limit / 2;
    struct horon_set **table = horon_realloc(sets->table, (size_t)limit * sizeof *table);
    if (table)
        sets->table = table;
    uint64_t *freed_at = horon_realloc(sets->freed_at, (size_t)limit * sizeof *freed_at);
    if (freed_at)
        sets->freed_at = freed_at;
    if (!table || !freed_at)
        return HORON_ERR_MEMORY;
    for (; sets->limit < limit; sets->limit++) {
        table[sets->limit] = NULL;
        freed_at[sets->limit] = 0; /* never used: lower ones first */
    }
    return HORON_OK;
}

/* One that was used before goes before one that never was. @return -1: none is free */
static int32_t free_id(const struct horon_sets *sets)
{
    int32_t best = -1, unused = -1;
    for (int32_t id = 0; id < sets->limit; id++) {
        if (sets->table[id])
            continue;
        if (sets->freed_at[id] == 0)
            unused = unused < 0 ? id : unused;
        else if (best < 0 || sets->freed_at[id] < sets->freed_at[best])
            best = id;
    }
    return best >= 0 ? best : unused;
}

struct horon_set *horon_sets_make(struct horon_sets *sets, const int32_t *ranks, size_t count)
{
    struct horon_set *set = horon_alloc(sizeof *set + count * sizeof *ranks);
    if (!set || (free_id(sets) < 0 && grow(sets) != HORON_OK)) {
        horon_free(set);
        return NULL;
    }
    *set = (struct horon_set){.id = -1, .size = (int32_t)count};
    memcpy(set->ranks, ranks, count * sizeof *ranks);
    return set;
}

void horon_sets_enter(struct horon_sets *sets, struct horon_set *set)
{
    assert(set->id < 0);
    set->id = free_id(sets);
    assert(set->id >= 0 && set->id < sets->limit);
    sets->table[set->id] = set;
    sets->count++;
}

void horon_sets_remove(struct horon_sets *sets, struct horon_set *set)
{
    assert(set->id > 0); /* the job stays */
    assert(sets->table[set->id] == set);
    sets->table[set->id] = NULL;
    sets->freed_at[set->id] = ++sets->removals;
    sets->count--;
}

horon_status_t horon_sets_init(struct horon_sets *sets, int32_t job_size)
{
    assert(job_size >= 1);
    *sets = (struct horon_sets){.job_size = job_size};
    int32_t *ranks = horon_zalloc((size_t)job_size, sizeof *ranks);
    for (int32_t rank = 0; ranks && rank < job_size; rank++)
        ranks[rank] = rank;
    struct horon_set *job = ranks ? horon_sets_make(sets, ranks, (size_t)job_size) : NULL;
    horon_free(ranks);
    if (!job) {
        horon_sets_deinit(sets);
        return HORON_ERR_MEMORY;
    }
    horon_sets_enter(sets, job);
    assert(job->id == 0);
    return HORON_OK;
}

void horon_sets_deinit(struct horon_sets *sets)
{
    for (int32_t id = 0; sets->table && id < sets->limit; id++)
        horon_free(sets->table[id]);
    horon_free(sets->table);
    horon_free(sets->freed_at);
    *sets = (struct horon_sets){0};
}

struct horon_set *horon_sets_find(const struct horon_sets *sets, int32_t id)
{
    return id >= 0 && id < sets->limit ? sets->table[id] : NULL;
}

int32_t horon_set_find_rank(const struct horon_set *set, int32_t job_rank)
{
    for (int32_t i = 0; i < set->size; i++)
        if (set->ranks[i] == job_rank)
            return i;
    return -1;
}

static int compare_ranks(const void *a, const void *b)
{
    const int32_t one = *(const int32_t *)a, other = *(const int32_t *)b;
    return (one > other) - (one < other);
}

horon_status_t horon_sets_check(const struct horon_sets *sets, int32_t *ranks, size_t count,
                                struct horon_error *error)
{
    if (count == 0)
        return horon_error_set(error, HORON_ERR_INVALID, "a process set has one rank at least");
    qsort(ranks, count, sizeof *ranks, compare_ranks);
    for (size_t i = 0; i < count; i++) {
        if (ranks[i] < 0 || ranks[i] >= sets->job_size)
            return horon_error_set(error, HORON_ERR_INVALID, "%d is no rank of 0..%d",
                                   (int)ranks[i], (int)sets->job_size - 1);
        if (i > 0 && ranks[i] == ranks[i - 1])
            return horon_error_set(error, HORON_ERR_INVALID, "rank %d is twice in the process set",
                                   (int)ranks[i]);
    }
    for (int32_t id = 0; id < sets->limit; id++) {
        const struct horon_set *set = sets->table[id];
        if (set && (size_t)set->size == count &&
            memcmp(set->ranks, ranks, count * sizeof *ranks) == 0)
            return horon_error_set(error, HORON_ERR_INVALID,
                                   "process set %d has the same ranks already", (int)id);
    }
    return HORON_OK;
}

/* ---- proposals ------------------------------------------------------------------------------ */

/* Length, newest team, and what ranks may say differently. */
#define HEAD_BYTES 9
static_assert(HEAD_BYTES + 8 + HORON_ERROR_WIRE_BYTES_MAX <= HORON_REFUSAL_BYTES_MAX, "it fits");

size_t horon_proposal_bytes_max(int32_t job_size)
{
    const size_t with_ranks = HEAD_BYTES + 8 + 8 + HORON_SETS_BACKENDS_BYTES + 4 * (size_t)job_size;
    return with_ranks > HORON_REFUSAL_BYTES_MAX ? with_ranks : HORON_REFUSAL_BYTES_MAX;
}

static void begin(struct horon_writer *out, const struct horon_sets *sets, enum proposal kind,
                  uint8_t said)
{
    assert(out->used == 0);
    horon_write_u32(out, 0); /* the length, at the end */
    horon_write_u32(out, sets->newest_team);
    horon_write_u8(out, said);
    horon_write_u8(out, (uint8_t)kind);
}

static void end(struct horon_writer *out)
{
    struct horon_writer length = horon_writer_over(out->bytes, out->limit);
    assert(out->ok); /* there is room for the longest */
    assert(out->used > HEAD_BYTES);
    horon_write_u32(&length, (uint32_t)out->used);
}

void horon_proposal_add(struct horon_writer *out, const struct horon_sets *sets,
                        const int32_t *ranks, size_t count, const char *backends)
{
    const size_t bytes = strlen(backends);
    assert(bytes < HORON_SETS_BACKENDS_BYTES);
    begin(out, sets, PROPOSAL_ADD, 0);
    horon_write_u8(out, (uint8_t)bytes);
    horon_write_bytes(out, backends, bytes);
    for (size_t i = 0; i < count; i++)
        horon_write_u32(out, (uint32_t)ranks[i]);
    end(out);
}

void horon_proposal_remove(struct horon_writer *out, const struct horon_sets *sets, int32_t id)
{
    begin(out, sets, PROPOSAL_REMOVE, 0);
    horon_write_u32(out, (uint32_t)id);
    end(out);
}

void horon_proposal_made(struct horon_writer *out, const struct horon_sets *sets)
{
    begin(out, sets, PROPOSAL_MADE, 0);
    end(out);
}

void horon_proposal_parted(struct horon_writer *out, const struct horon_sets *sets, uint8_t said)
{
    begin(out, sets, PROPOSAL_PARTED, said);
    end(out);
}

void horon_proposal_refuse(struct horon_writer *out, const struct horon_sets *sets,
                           const struct horon_error *why)
{
    begin(out, sets, PROPOSAL_REFUSED, 0);
    horon_error_write(out, why);
    end(out);
}

/* What all must have alike, of one rank. */
struct content {
    const uint8_t *bytes;
    size_t byte_count;
};

/* What they may have differently, of all of them. */
struct said {
    uint32_t newest; /* team, the highest */
    uint8_t bits;    /* that all say */
};

static struct content read_proposal(struct horon_reader *in, struct said *said)
{
    struct content content = {0};
    const uint32_t bytes = horon_read_u32(in), team = horon_read_u32(in);
    const uint8_t bits = horon_read_u8(in);
    in->ok &= bytes > HEAD_BYTES;
    if (!in->ok)
        return content;
    content.byte_count = bytes - HEAD_BYTES;
    content.bytes = horon_read_view(in, content.byte_count);
    said->newest = team > said->newest ? team : said->newest;
    said->bits &= bits;
    return content;
}

/* May ranks propose these two in one meeting? In the first one they say what they are asked for, in
 * the second whether they could do it; a rank may refuse in either. */
static bool may_meet(uint8_t first, uint8_t other)
{
    static const unsigned legal[] = {
        [PROPOSAL_ADD] = 1u << PROPOSAL_ADD | 1u << PROPOSAL_REMOVE | 1u << PROPOSAL_REFUSED,
        [PROPOSAL_REMOVE] = 1u << PROPOSAL_ADD | 1u << PROPOSAL_REMOVE | 1u << PROPOSAL_REFUSED,
        [PROPOSAL_MADE] = 1u << PROPOSAL_MADE | 1u << PROPOSAL_REFUSED,
        [PROPOSAL_PARTED] = 1u << PROPOSAL_PARTED,
        [PROPOSAL_REFUSED] = 1u << PROPOSAL_REFUSED /* which ends the meeting */};
    return first <= PROPOSAL_REFUSED && other <= PROPOSAL_REFUSED && legal[first] & 1u << other;
}

/* Cut where there is no room. */
static void describe(const struct content *content, char *text, size_t text_bytes)
{
    struct horon_reader in = horon_reader_over(content->bytes, content->byte_count);
    const uint8_t kind = horon_read_u8(&in);
    if (kind == PROPOSAL_REMOVE) {
        snprintf(text, text_bytes, "removes process set %d", (int)horon_read_u32(&in));
        return;
    }
    const size_t bytes = kind == PROPOSAL_ADD ? horon_read_u8(&in) : 0;
    const char *backends = bytes ? (const char *)horon_read_view(&in, bytes) : NULL;
    size_t used = (size_t)snprintf(text, text_bytes, "adds a process set%s%.*s of ranks",
                                   backends ? " by " : "", backends ? (int)bytes : 0,
                                   backends ? backends : "");
    for (bool first = true; kind == PROPOSAL_ADD && in.used < in.limit; first = false) {
        const int rank = (int)horon_read_u32(&in);
        if (used + 24 > text_bytes) {
            snprintf(text + used, text_bytes - used, ", ...");
            return;
        }
        used += (size_t)snprintf(text + used, text_bytes - used, first ? " %d" : ", %d", rank);
    }
}

static horon_status_t differ(const struct content *first, const struct content *other, int rank,
                             const char *const *rank_names, struct horon_error *error)
{
    char theirs[320], ours[320];
    describe(first, ours, sizeof ours);
    describe(other, theirs, sizeof theirs);
    horon_error_set(error, HORON_ERR_MISMATCH, "%.100s %s, and %.100s %s", rank_names[0], ours,
                    rank_names[rank], theirs);
    horon_error_blame(error, HORON_CAUSE_ORDER, 0, rank);
    return HORON_ERR_MISMATCH;
}

static horon_status_t read_refusal(const struct content *content, int32_t size, int rank,
                                   const char *name, struct horon_error *error)
{
    struct horon_reader in = horon_reader_over(content->bytes, content->byte_count);
    struct horon_error theirs;
    (void)horon_read_u8(&in);
    horon_error_read(&in, size, &theirs);
    if (!horon_reader_finished(&in))
        return horon_error_set(error, HORON_ERR_PROTO, "%s refuses, and gives no reason", name);
    horon_error_set(error, theirs.status, "%.100s: %.900s", name, theirs.text);
    error->blame = theirs.blame;
    if (error->blame.rank < 0)
        error->blame.rank = rank;
    return theirs.status;
}

/* @return of how many ranks they are; 0: they make no sense */
static int32_t count_proposals(const void *bytes, size_t byte_count, struct said *said_out)
{
    struct horon_reader in = horon_reader_over(bytes, byte_count);
    int32_t count = 0;
    *said_out = (struct said){.bits = UINT8_MAX};
    for (; in.ok && !horon_reader_finished(&in); count++)
        (void)read_proposal(&in, said_out);
    return in.ok ? count : 0;
}

uint8_t horon_proposals_said(const void *bytes, size_t byte_count)
{
    struct said said;
    return count_proposals(bytes, byte_count, &said) > 0 ? said.bits : 0;
}

/* Those that have joined propose nothing; which ones they are is not known here, nor, therefore,
 * which of the others proposes what. */
static horon_status_t all_but_joined(const struct horon_sets *sets, int32_t proposals,
                                     struct horon_error *error)
{
    horon_error_set(error, HORON_ERR_MISMATCH,
                    "%d of the %d ranks have joined, and process sets are changed by all",
                    (int)(sets->job_size - proposals), (int)sets->job_size);
    error->blame.cause = HORON_CAUSE_JOINED;
    return error->status;
}

horon_status_t horon_proposals_decide(const struct horon_sets *sets, const void *bytes,
                                      size_t byte_count, const char *const *rank_names,
                                      uint32_t *newest_out, struct horon_error *error)
{
    struct horon_reader in = horon_reader_over(bytes, byte_count);
    struct content first = {0};
    horon_status_t status = HORON_OK;
    struct said said;
    const int32_t proposals = count_proposals(bytes, byte_count, &said);
    if (proposals > 0 && proposals < sets->job_size)
        return all_but_joined(sets, proposals, error);
    for (int32_t rank = 0; rank < sets->job_size; rank++) {
        const struct content content = read_proposal(&in, &said);
        if (in.ok && rank == 0)
            first = content;
        if (!in.ok || !may_meet(first.bytes[0], content.bytes[0]))
            return horon_error_set(error, HORON_ERR_PROTO,
                                   "%s proposes no change of process sets that makes sense",
                                   rank_names[rank]);
        if (content.bytes[0] == PROPOSAL_REFUSED)
            return read_refusal(&content, sets->job_size, rank, rank_names[rank], error);
        const bool same = content.byte_count == first.byte_count &&
                          memcmp(content.bytes, first.bytes, first.byte_count) == 0;
        if (!same && status == HORON_OK)
            status = differ(&first, &content, rank, rank_names, error);
    }
    if (status == HORON_OK && said.newest >= HORON_SETS_TEAM_MAX)
        status = horon_error_set(error, HORON_ERR_UNSUPPORTED, "there have been %u process sets",
                                 (unsigned)said.newest);
    if (status == HORON_OK)
        *newest_out = said.newest;
    return status;
}

/* ---- the option ----------------------------------------------------------------------------- */

horon_status_t horon_sets_parse(const struct horon_sets *sets, const char **at, int32_t *ranks,
                                size_t *count_out, char *backends, struct horon_error *error)
{
    const int bytes = (int)strcspn(*at, ";"), listed = (int)strcspn(*at, "@;");
    const int count = horon_numbers_parse(*at, (size_t)listed, sets->job_size, ranks);
    if (count < 1)
        return horon_error_set(error, HORON_ERR_CONFIG,
                               "'%.*s' is no list of ranks of 0..%d, each once, such as 0,2,4-7",
                               bytes, *at, (int)sets->job_size - 1);
    int32_t *next = ranks; /* the places are not needed, and are passed before they are lost */
    for (int32_t rank = 0; rank < sets->job_size; rank++)
        if (ranks[rank] >= 0)
            *next++ = rank;
    const int named = bytes - listed; /* with the @ */
    if (named == 1 || named > HORON_SETS_BACKENDS_BYTES)
        return horon_error_set(error, HORON_ERR_CONFIG,
                               "'%.*s' does not say which backends, such as @mpi", bytes, *at);
    snprintf(backends, HORON_SETS_BACKENDS_BYTES, "%.*s", named ? named - 1 : 0, *at + listed + 1);
    *at += bytes;
    *at += **at == ';';
    *count_out = (size_t)count;
    return HORON_OK;
}
