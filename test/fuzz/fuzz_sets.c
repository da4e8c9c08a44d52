/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What ranks say when process sets are added and removed, and the list of the option. A script
 * changes a table of sets as its rank is asked to; in each round all ranks but one propose the
 * same, and the last says anything: that as well, another proposal, the same with bytes changed, or
 * bytes of the script. Whatever comes: what is decided says why, the numbers of teams only grow,
 * and the table holds what was agreed on and nothing else.
 */
#undef NDEBUG
#include "coordinator/sets.h"

#include "alloc.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

enum { JOB = 5, LIST_BYTES_MAX = 60 };

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t byte_count);

struct script {
    const uint8_t *bytes;
    size_t left;
};

struct fuzz {
    struct horon_sets sets;
    struct script script;
    uint8_t *answers; /* [limit] of all ranks, one after another */
    size_t limit, used;
};

static const char *const rank_names[JOB] = {"rank 0 (a)", "rank 1 (a)", "rank 2 (b)", "rank 3 (b)",
                                            "rank 4 (c)"};

static uint8_t next_byte(struct script *script)
{
    if (script->left == 0)
        return 0;
    script->left--;
    return *script->bytes++;
}

static struct horon_writer room(struct fuzz *fuzz)
{
    return horon_writer_over(fuzz->answers + fuzz->used, horon_proposal_bytes_max(JOB));
}

/* What is proposed, by a byte: to add the ranks of its bits, to remove, to refuse, to confirm. */
static void propose(struct fuzz *fuzz, uint8_t what, const int32_t *ranks, size_t count)
{
    struct horon_writer out = room(fuzz);
    struct horon_error refusal;
    horon_error_set(&refusal, HORON_ERR_MEMORY, "no memory");
    if (what < 128)
        horon_proposal_add(&out, &fuzz->sets, ranks, count, what & 1 ? "native" : "");
    else if (what < 224)
        horon_proposal_remove(&out, &fuzz->sets, what & 7);
    else if (what < 240)
        horon_proposal_made(&out, &fuzz->sets);
    else
        horon_proposal_refuse(&out, &fuzz->sets, &refusal);
    assert(out.ok);
    fuzz->used += out.used;
}

/* As it stands in the script. @return does the script say what all say? */
static bool say_anything(struct fuzz *fuzz, uint8_t what, const int32_t *ranks, size_t count)
{
    struct script *script = &fuzz->script;
    const size_t begin = fuzz->used;
    const uint8_t how = next_byte(script);
    size_t bytes = next_byte(script);
    if (how % 4 == 0) {
        propose(fuzz, what, ranks, count);
        return true;
    }
    if (how % 4 == 1) {
        propose(fuzz, (uint8_t)bytes, ranks, 1 + how % count);
        return false;
    }
    if (how % 4 == 2) {
        propose(fuzz, what, ranks, count);
        fuzz->answers[begin + bytes % (fuzz->used - begin)] ^=
            (uint8_t)(1 + next_byte(script) % 255);
        return false;
    }
    bytes = bytes < script->left ? bytes : script->left;
    memcpy(fuzz->answers + begin, script->bytes, bytes);
    script->bytes += bytes;
    script->left -= bytes;
    fuzz->used += bytes;
    return false;
}

static void change(struct fuzz *fuzz, uint8_t what, const int32_t *ranks, size_t count)
{
    struct horon_set *set = horon_sets_find(&fuzz->sets, what & 7);
    if (what < 128) {
        set = horon_sets_make(&fuzz->sets, ranks, count);
        assert(set);
        horon_sets_enter(&fuzz->sets, set);
        assert(horon_sets_find(&fuzz->sets, set->id) == set);
        assert(horon_set_find_rank(set, ranks[count - 1]) == (int32_t)count - 1);
    } else if (what < 224 && set && set->id > 0) {
        horon_sets_remove(&fuzz->sets, set);
        assert(!horon_sets_find(&fuzz->sets, set->id));
        horon_free(set);
    }
}

/* All ranks say something, the last one anything. */
static void meet(struct fuzz *fuzz)
{
    const uint8_t what = next_byte(&fuzz->script), liar = next_byte(&fuzz->script);
    int32_t ranks[JOB] = {0};
    struct horon_error error = {0};
    uint32_t newest = UINT32_MAX;
    size_t count = 0;
    bool honest = true;
    for (int32_t rank = JOB - 1; rank >= 0; rank--)
        if (what >> rank & 1)
            ranks[count++] = rank;
    const bool valid = horon_sets_check(&fuzz->sets, ranks, count, &error) == HORON_OK;
    if (what < 128 && !valid) {
        assert(error.text[0]);
        return;
    }
    fuzz->used = 0;
    for (int rank = 0; rank < JOB; rank++)
        if (rank == liar % (JOB + 1))
            honest = say_anything(fuzz, what, ranks, count ? count : 1);
        else
            propose(fuzz, what, ranks, count ? count : 1);
    /* exactly: the sanitizer sees a byte beyond */
    uint8_t *bytes = malloc(fuzz->used);
    assert(bytes);
    memcpy(bytes, fuzz->answers, fuzz->used);
    error = (struct horon_error){0};
    const horon_status_t status =
        horon_proposals_decide(&fuzz->sets, bytes, fuzz->used, rank_names, &newest, &error);
    free(bytes);
    assert(status == error.status);
    assert(status == HORON_OK ? newest < HORON_SETS_TEAM_MAX : error.text[0] && status < 0);
    assert(status == HORON_OK || newest == UINT32_MAX);
    assert(!honest || (status == HORON_OK) == (what < 240));
    if (status != HORON_OK)
        return;
    assert(newest >= fuzz->sets.newest_team);
    if (newest < HORON_SETS_TEAM_MAX / 2) /* else there are too many at once */
        fuzz->sets.newest_team = newest + 1;
    change(fuzz, what, ranks, count);
}

static void parse(struct fuzz *fuzz)
{
    char list[LIST_BYTES_MAX + 1] = "";
    int32_t ranks[JOB];
    size_t count = 0, bytes = next_byte(&fuzz->script) % LIST_BYTES_MAX;
    bytes = bytes < fuzz->script.left ? bytes : fuzz->script.left;
    memcpy(list, fuzz->script.bytes, bytes);
    fuzz->script.bytes += bytes;
    fuzz->script.left -= bytes;
    for (const char *at = list; *at;) {
        const char *before = at;
        char backends[HORON_SETS_BACKENDS_BYTES];
        struct horon_error error = {0};
        const horon_status_t status =
            horon_sets_parse(&fuzz->sets, &at, ranks, &count, backends, &error);
        assert(status == HORON_OK || (status == HORON_ERR_CONFIG && error.text[0]));
        if (status != HORON_OK)
            return;
        assert(at > before && at <= list + strlen(list));
        assert(count >= 1 && count <= JOB);
        assert(strlen(backends) < sizeof backends);
        for (size_t i = 0; i < count; i++)
            assert(ranks[i] >= 0 && ranks[i] < JOB);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t byte_count)
{
    struct fuzz fuzz = {.script = {.bytes = bytes, .left = byte_count}};
    fuzz.limit = JOB * (horon_proposal_bytes_max(JOB) + 256);
    fuzz.answers = malloc(fuzz.limit);
    if (!fuzz.answers || horon_sets_init(&fuzz.sets, JOB) != HORON_OK)
        abort();
    while (fuzz.script.left > 0)
        if (next_byte(&fuzz.script) % 8)
            meet(&fuzz);
        else
            parse(&fuzz);
    horon_sets_deinit(&fuzz.sets);
    free(fuzz.answers);
    return 0;
}
