/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What an engine hears: three ranks in one thread, on one to three hosts, run some operations of
 * all verbs, in some runs of a second team, too, or join behind them, and send each other messages,
 * while somebody between them
 * changes what one of them says. The first bytes choose places and operations; then each frame of
 * that rank draws from the script what becomes of it: it passes, is lost, said twice, damaged, cut,
 * exchanged, something is said before it, or memory that it shares is scribbled on. Whatever comes:
 * the others end every request once, with a reason if it failed; and if nothing was changed, all
 * succeed.
 */
#undef NDEBUG
#include "liar.h"

#include "engine/engine_state.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static uint64_t read_clock(void *arg)
{
    return ((const struct world *)arg)->now_ns;
}

static horon_status_t make_arenas(void *arg, struct horon_engine_team *team,
                                  struct horon_error *error)
{
    struct world *world = arg;
    return world->make_arenas(world, team, error);
}

static void make_engine(struct fuzz *fuzz, int rank)
{
    struct world_rank *self = &fuzz->world->ranks[rank];
    struct horon_link *links[RANKS] = {0};
    struct horon_error error = {0};
    fuzz_make_links(fuzz, rank, links);
    const struct horon_engine_options options = {
        .config = &fuzz->world->config,
        .topology = &self->topology,
        .host = &self->host,
        .links = links,
        .now_ns = read_clock,
        .now_arg = fuzz->world,
        .log = &fuzz->world->log,
        .ended = world_release,
        .release = world_release,
        .make_arenas = make_arenas,
        .arg = fuzz->world,
    };
    assert(horon_engine_create(&options, &self->engine, &error) == HORON_OK);
}

/* ---- Operations ------------------------------------------------------------------------------ */

static void *make_output(void *arg, uint64_t rows, size_t bytes)
{
    struct part *part = arg;
    (void)rows;
    assert(!part->output);
    if (bytes <= OUTPUT_BYTES_MAX) /* what a liar adds up to is more */
        part->output = malloc(bytes);
    return part->output;
}

static bool learns(const horon_descriptor_t *desc)
{
    return horon_verb_rows[desc->verb].ahead != HORON_AHEAD_NOTHING;
}

/* Rows of uneven numbers for each rank, of which some get none. @return how many in all */
static uint64_t fill_splits(const horon_descriptor_t *desc, int self, uint64_t splits[RANKS])
{
    uint64_t count = 0;
    for (int to = 0; to < RANKS; to++) {
        const uint64_t rows = desc->count / (uint64_t)(1 + (self + to) % RANKS);
        splits[to] = (self + 2 * to) % RANKS == 1 ? 0 : rows;
        count += splits[to];
    }
    return count;
}

/* What this rank gives; @p self its number in the team. */
static void set_input(horon_descriptor_t *desc, int self, bool odd, uint64_t splits[RANKS])
{
    const enum horon_ahead ahead = horon_verb_rows[desc->verb].ahead;
    if (ahead == HORON_AHEAD_ROWS)
        desc->count += (uint64_t)self;
    if (ahead == HORON_AHEAD_SPLITS && (desc->verb == HORON_ALLTOALL || desc->root == self)) {
        desc->count = fill_splits(desc, self, splits);
        desc->splits = splits;
    }
    if (!odd || desc->verb == HORON_BARRIER)
        return;
    desc->count++;
    splits[0]++;
}

/* Exactly as much as is needed: the sanitizer sees a byte beyond. */
static void allocate(horon_descriptor_t *desc, int rank, struct part *part)
{
    const size_t bytes = (size_t)desc->count * sizeof(float);
    part->src = malloc(bytes);
    part->dst = malloc(bytes);
    assert(part->src && part->dst);
    memset(part->src, rank, bytes);
    desc->src = part->src;
    desc->dst = learns(desc) ? NULL : part->dst;
    desc->dst_count = desc->count;
    desc->alloc = learns(desc) ? make_output : NULL;
    desc->alloc_arg = part;
}

static bool is_of_team(const struct fuzz *fuzz, int op)
{
    return fuzz->team && op % 2 == 1;
}

static const uint64_t counts[] = {1, 0, 7, 300, 1500, 3000};

/* A rank's number among those that carry out an operation; and the other way round. */
static int number_of(const struct fuzz *fuzz, int op, int rank)
{
    return is_of_team(fuzz, op) ? RANKS - 1 - rank : rank;
}

/* One rank sends to the next. @return false: @p self is the third, which does not take part */
static bool describe_message(const struct fuzz *fuzz, int op, int self, horon_descriptor_t *desc)
{
    const uint8_t what = fuzz->what[op];
    const int from = (what >> 6) % RANKS, to = (from + 1) % RANKS;
    if (self != from && self != to)
        return false;
    desc->verb = self == from ? HORON_SEND : HORON_RECV;
    desc->root = self == from ? to : from;
    desc->tag = what >> 2 & 1;
    desc->count = counts[(what >> 3) % 6];
    return true;
}

static void submit_message(struct fuzz *fuzz, int rank, int op)
{
    const int self = number_of(fuzz, op, rank);
    const bool odd = fuzz->whose[op] >> (4 + rank) & 1;
    struct part *part = &fuzz->parts[op][rank];
    horon_descriptor_t desc = HORON_DESCRIPTOR_INIT;
    fuzz->differs |= odd;
    if (!describe_message(fuzz, op, self, &desc))
        return;
    desc.count += odd;
    desc.dtype = HORON_FLOAT32;
    desc.process_set = is_of_team(fuzz, op);
    fuzz->differs |= !fuzz->pipes[rank][number_of(fuzz, op, desc.root)];
    allocate(&desc, rank, part);
    part->request = is_of_team(fuzz, op) ? world_team_submit(fuzz->team, self, &desc)
                                         : world_submit(fuzz->world, rank, &desc);
}

static void submit(struct fuzz *fuzz, int rank, int op)
{
    const uint8_t what = fuzz->what[op], whose = fuzz->whose[op];
    const int self = number_of(fuzz, op, rank);
    const bool odd = whose >> (4 + rank) & 1; /* no liar is needed for ranks that differ */
    const unsigned verb = (what & 3u) + (whose & 8 ? 4u : 0u) + (whose & 128 ? 5u : 0u);
    char name[] = {(char)('a' + op), 0};
    struct part *part = &fuzz->parts[op][rank];
    uint64_t splits[RANKS] = {0};
    horon_descriptor_t desc = HORON_DESCRIPTOR_INIT;
    if (verb >= HORON_SEND) {
        submit_message(fuzz, rank, op);
        return;
    }
    desc.verb = verb;
    desc.dtype = HORON_FLOAT32;
    desc.redop = HORON_SUM;
    desc.flags = what & 4 ? HORON_IN_ORDER : 0;
    desc.name = desc.verb == HORON_BARRIER ? NULL : name;
    desc.count = desc.verb == HORON_BARRIER ? 0 : counts[(what >> 3) % 6];
    desc.root = horon_verb_is_rooted(&horon_verb_rows[desc.verb]) ? (what >> 6) % RANKS : 0;
    desc.process_set = is_of_team(fuzz, op);
    fuzz->differs |= odd;
    set_input(&desc, self, odd, splits);
    allocate(&desc, rank, part);
    part->request = is_of_team(fuzz, op) ? world_team_submit(fuzz->team, self, &desc)
                                         : world_submit(fuzz->world, rank, &desc);
}

/* @param late  of the last rank to make the team, and of it only; else what may be at once */
static void submit_all(struct fuzz *fuzz, bool late)
{
    for (int op = 0; op < fuzz->ops; op++)
        for (int rank = 0; rank < RANKS; rank++) {
            if ((rank == 0 && is_of_team(fuzz, op)) != late)
                continue;
            if (fuzz->whose[op] >> rank & 1)
                fuzz->differs = true; /* that rank does not take part */
            else
                submit(fuzz, rank, op);
        }
}

static void draw_operations(struct fuzz *fuzz)
{
    fuzz->ops = 1 + next_byte(&fuzz->script) % OPS_MAX;
    for (int op = 0; op < fuzz->ops; op++) {
        fuzz->what[op] = next_byte(&fuzz->script);
        fuzz->whose[op] = next_byte(&fuzz->script);
    }
}

static void join_all(struct fuzz *fuzz)
{
    fuzz->differs = true; /* what is in order cannot end without a rank */
    for (int rank = 0; rank < RANKS; rank++)
        fuzz->joins[rank] =
            world_join(fuzz->world, rank, horon_engine_job(fuzz->world->ranks[rank].engine));
}

static bool turn(struct fuzz *fuzz)
{
    bool moved = false;
    for (int rank = 0; rank < RANKS; rank++) {
        moved |= horon_engine_progress(fuzz->world->ranks[rank].engine);
        for (int peer = 0; peer < RANKS; peer++) {
            moved |= fuzz_carry(fuzz, rank, peer);
            moved |= fuzz_carry(fuzz, peer, rank);
        }
    }
    fuzz->world->now_ns += 1000;
    return moved;
}

static void check_ended(const struct fuzz *fuzz, bool must_succeed)
{
    for (int op = 0; op < fuzz->ops; op++)
        for (int rank = 0; rank < RANKS; rank++) {
            const struct horon_request *request = fuzz->parts[op][rank].request;
            if (!request)
                continue;
            const bool ended = atomic_load(&request->state) == HORON_REQUEST_ENDED;
            assert(ended || !must_succeed);
            if (!ended)
                continue;
            assert(request->status == HORON_OK || request->status < 0);
            assert(request->status == HORON_OK || request->error_text);
            assert(request->status == HORON_OK || !must_succeed);
        }
    for (int rank = 0; rank < RANKS; rank++) {
        const char *text = "";
        const struct horon_engine *engine = fuzz->world->ranks[rank].engine;
        const horon_status_t status = world_failure(engine, &text);
        assert(engine->job->failed ? status < 0 && text[0] : status == HORON_OK);
    }
}

static void turn_until_quiet(struct fuzz *fuzz)
{
    int quiet = 0;
    for (int i = 0; i < TURNS_MAX && quiet < QUIET_TURNS; i++)
        quiet = turn(fuzz) ? 0 : quiet + 1;
}

static void play(struct fuzz *fuzz, bool joins, bool one_leaves)
{
    draw_operations(fuzz);
    submit_all(fuzz, false);
    if (joins)
        join_all(fuzz);
    if (fuzz->team) { /* one member makes it when the others have said much to it */
        turn_until_quiet(fuzz);
        world_team_add(fuzz->team, RANKS - 1);
        submit_all(fuzz, true);
    }
    turn_until_quiet(fuzz);
    check_ended(fuzz, !fuzz->lied && !fuzz->differs);
    if (one_leaves) {
        horon_engine_leave(fuzz->world->ranks[(fuzz->liar + 1) % RANKS].engine);
        for (int i = 0; i < QUIET_TURNS; i++)
            turn(fuzz);
        check_ended(fuzz, false);
    }
}

static void end(struct fuzz *fuzz)
{
    for (int rank = 0; rank < RANKS; rank++)
        horon_engine_leave(fuzz->world->ranks[rank].engine); /* ends what is in flight */
    for (int op = 0; op < fuzz->ops; op++)
        for (int rank = 0; rank < RANKS; rank++) {
            struct part *part = &fuzz->parts[op][rank];
            assert(!part->request || atomic_load(&part->request->state) == HORON_REQUEST_ENDED);
            world_release(part->request);
            free(part->src);
            free(part->dst);
            free(part->output);
        }
    for (int rank = 0; rank < RANKS; rank++)
        world_release(fuzz->joins[rank]);
    if (fuzz->team)
        world_team_destroy(fuzz->team);
    world_destroy(fuzz->world);
    fuzz_free_pipes(fuzz);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    static const int shapes[][RANKS] = {{1, 1, 1}, {2, 1}, {1, 2}, {3}};
    static const int host_counts[] = {3, 2, 2, 1};
    static const char *const settings[] = {"SHM_CHUNK_BYTES=4096", "SHM_SMALL_BYTES=512",
                                           "NET_EAGER_BYTES=200",  "NET_CHUNK_BYTES=4096",
                                           "CACHE_ENTRIES=3",      NULL};
    struct fuzz fuzz = {.script = {.bytes = data, .left = bytes}};
    const uint8_t place = next_byte(&fuzz.script);
    const int shape = place & 3;
    fuzz.liar = (place >> 2) % RANKS;
    fuzz.world = world_create_bare(shapes[shape], host_counts[shape], settings, 1);
    fuzz_make_pipes(&fuzz);
    if (shape == 0 && place & 32) /* with links between all of them */
        fuzz.team = world_team_create(fuzz.world, 1, (const int[]){2, 1, 0}, RANKS);
    for (int rank = 0; rank < RANKS; rank++)
        make_engine(&fuzz, rank);
    for (int member = 0; fuzz.team && member < RANKS - 1; member++)
        world_team_add(fuzz.team, member);
    play(&fuzz, place & 64, place & 128);
    end(&fuzz);
    return 0;
}
