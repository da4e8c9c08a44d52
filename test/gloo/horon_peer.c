/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A rank that is horon's among those of Gloo, which its environment says where to find: does the
 * steps of a script by horon.h, and tells what came out of each. `horon_peer RANK SIZE SCRIPT OUT`.
 * Beside what script.h says it knows what must be refused there: named, set, join. It leaves when
 * it has done all, and does not wait for the others as the ranks of the other kinds do. 3: an
 * operation failed, or the creation; as is said in OUT.
 */
#include "script.h"

#include <horon/horon.h>

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { WORKS_MAX = 4096, ROWS = 10 };

/* A step in flight. */
struct work {
    struct script_step step;
    size_t inputs, outputs;
    char *in, *out;
    uint64_t rows[SCRIPT_RANKS_MAX];
    horon_descriptor_t desc;
    horon_request_t *request;
};

struct rank {
    horon_context_t *ctx;
    int rank, size;
    FILE *out;
    struct work works[WORKS_MAX];
    int n_works;
};

struct word {
    const char *word;
    uint32_t value;
};

static const struct word verbs[] = {
    {"barrier", HORON_BARRIER},
    {"broadcast", HORON_BROADCAST},
    {"reduce", HORON_REDUCE},
    {"allreduce", HORON_ALLREDUCE},
    {"allgather", HORON_ALLGATHER},
    {"gather", HORON_GATHER},
    {"scatter", HORON_SCATTER},
    {"alltoall", HORON_ALLTOALL},
    {"send", HORON_SEND},
    {"recv", HORON_RECV},
    {"reducescatter", HORON_REDUCESCATTER},
    {"allgatherv", HORON_ALLGATHER},
    {"gatherv", HORON_GATHER},
    {"alltoallv", HORON_ALLTOALL},
    {NULL, 0},
};

static const struct word dtypes[] = {
    {"u8", HORON_UINT8},
    {"i8", HORON_INT8},
    {"u16", HORON_UINT16},
    {"i16", HORON_INT16},
    {"u32", HORON_UINT32},
    {"i32", HORON_INT32},
    {"u64", HORON_UINT64},
    {"i64", HORON_INT64},
    {"f16", HORON_FLOAT16},
    {"f32", HORON_FLOAT32},
    {"bf16", HORON_BFLOAT16},
    {"f64", HORON_FLOAT64},
    {"bool", HORON_BOOL},
    {"c32", HORON_FLOAT16},
    {"c64", HORON_COMPLEX64},
    {"c128", HORON_COMPLEX128},
    {NULL, 0},
};

static const struct word ops[] = {
    {"sum", HORON_SUM},     {"product", HORON_PRODUCT}, {"min", HORON_MIN},     {"max", HORON_MAX},
    {"and", HORON_BIT_AND}, {"or", HORON_BIT_OR},       {"xor", HORON_BIT_XOR}, {NULL, 0},
};

static uint32_t look_up(const struct word *words, const char *word)
{
    for (; words->word; words++)
        if (strlen(words->word) == strcspn(word, "!") &&
            strncmp(words->word, word, strlen(words->word)) == 0)
            return words->value;
    return 0;
}

static void give_up(struct rank *me, int line, horon_status_t status, const char *text)
{
    fprintf(me->out, "%d failed %s: %s\n", line, horon_status_text(status), text);
    fflush(me->out);
    _exit(3);
}

static void *memory(size_t bytes)
{
    void *made = malloc(bytes > 0 ? bytes : 1);
    if (!made)
        _exit(4);
    return made;
}

/* Says what each rank gives, where that differs. */
static void tell_rows(struct work *work, int rank, int size)
{
    const bool all = script_is(&work->step, "alltoallv");
    if (!all && !script_is(&work->step, "allgatherv"))
        return;
    for (int i = 0; i < size; i++)
        work->rows[i] = script_rows(work->step.count, all ? rank : i, all ? i : 0);
    work->desc.splits = work->rows;
}

/* What reduces takes a complex number for two, as torch does; and "c32", which torch calls
 * complex32 and horon has no word for, is two float16 of every verb. */
static void take_apart(struct work *work)
{
    const uint32_t verb = work->desc.verb;
    const bool halves = strcmp(work->step.dtype, "c32") == 0;
    if (!halves && verb != HORON_ALLREDUCE && verb != HORON_REDUCE && verb != HORON_REDUCESCATTER)
        return;
    if (!halves && work->desc.dtype != HORON_COMPLEX64 && work->desc.dtype != HORON_COMPLEX128)
        return;
    if (!halves)
        work->desc.dtype = work->desc.dtype == HORON_COMPLEX64 ? HORON_FLOAT32 : HORON_FLOAT64;
    work->desc.count *= 2;
    work->desc.dst_count *= 2;
    for (int i = 0; i < SCRIPT_RANKS_MAX && work->desc.splits; i++)
        work->rows[i] *= 2;
}

static void make(struct work *work, const struct script_step *step, int rank, int size)
{
    const size_t bytes = script_element(step);
    *work = (struct work){.step = *step,
                          .inputs = script_inputs(step, rank, size),
                          .outputs = script_outputs(step, rank, size)};
    work->in = memory(work->inputs * bytes);
    work->out = memory((work->outputs + 1) * bytes); /* no room would be no output */
    script_fill(step, rank, work->in, work->inputs);
    work->desc = (horon_descriptor_t)HORON_DESCRIPTOR_INIT;
    work->desc.verb = look_up(verbs, step->verb);
    work->desc.dtype = look_up(dtypes, step->dtype);
    work->desc.redop = look_up(ops, step->op);
    const bool message = !script_is_collective(step);
    work->desc.flags = message ? 0 : HORON_IN_ORDER;
    work->desc.root = script_is(step, "send") ? step->to : step->root;
    work->desc.tag = step->slot;
    work->desc.src = work->in;
    work->desc.dst = work->out;
    work->desc.count =
        script_is(step, "recv") || script_is(step, "broadcast") ? work->step.count : work->inputs;
    work->desc.dst_count = work->outputs + 1;
    tell_rows(work, rank, size);
    take_apart(work);
    if (script_is(step, "allreduce") && step->line % 2 == 1) {
        memcpy(work->out, work->in, work->inputs * bytes);
        work->desc.src = work->out;
    }
}

static void finish(struct rank *me, struct work *work)
{
    if (work->request) {
        const horon_status_t status = horon_wait(work->request, HORON_HOST_DONE, -1);
        if (status != HORON_OK)
            give_up(me, work->step.line, status, horon_request_error(work->request));
        horon_release(work->request);
    }
    const uint64_t hash = script_hash(work->out, work->outputs * script_element(&work->step));
    fprintf(me->out, "%d %016lx\n", work->step.line, (unsigned long)hash);
    free(work->in);
    free(work->out);
}

static void wait_all(struct rank *me)
{
    for (int i = 0; i < me->n_works; i++)
        finish(me, &me->works[i]);
    me->n_works = 0;
    fflush(me->out);
}

static bool concerns(const struct rank *me, const struct script_step *step)
{
    const bool sends = script_is(step, "send");
    return script_is_collective(step) || me->rank == (sends ? step->root : step->to);
}

static void must_run(struct rank *me, struct work *work)
{
    char why[HORON_ERROR_TEXT_BYTES] = "";
    const horon_status_t status = horon_run(me->ctx, &work->desc, -1, why, sizeof why);
    if (status != HORON_OK)
        give_up(me, work->step.line, status, why);
}

static void begin(struct rank *me, const struct script_step *step)
{
    if (!concerns(me, step))
        return;
    if (me->n_works == WORKS_MAX)
        _exit(4);
    struct work *work = &me->works[me->n_works];
    make(work, step, me->rank, me->size);
    if (!step->later) {
        must_run(me, work);
        finish(me, work);
        return;
    }
    const horon_status_t status = horon_submit(me->ctx, &work->desc, &work->request);
    if (status != HORON_OK)
        give_up(me, step->line, status, horon_last_error(me->ctx));
    me->n_works++;
}

static double now_us(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e6 + (double)now.tv_nsec * 1e-3;
}

static int compare(const void *a, const void *b)
{
    const double left = *(const double *)a, right = *(const double *)b;
    return (left > right) - (left < right);
}

/* Of ten rows of calls, a tenth of which come before; as peer.cc. */
static void take_time(struct rank *me, const struct script_step *step)
{
    struct work work;
    double rows[ROWS + 1];
    make(&work, step, me->rank, me->size);
    const long row = step->times < ROWS ? 1 : step->times / ROWS;
    fprintf(me->out, "%d begins\n", step->line);
    fflush(me->out);
    for (int i = 0; i <= ROWS; i++) {
        const double start = now_us();
        for (long j = 0; j < row; j++)
            must_run(me, &work);
        rows[i] = (now_us() - start) / (double)row;
    }
    qsort(rows + 1, ROWS, sizeof *rows, compare);
    fprintf(me->out, "%d time %.3f\n", step->line, (rows[ROWS / 2] + rows[ROWS / 2 + 1]) / 2);
    free(work.in);
    free(work.out);
}

/* What Gloo knows nothing of. */
static void must_be_refused(struct rank *me, const struct script_step *step)
{
    horon_request_t *request = NULL;
    horon_status_t status = HORON_OK;
    if (script_is(step, "named")) {
        horon_descriptor_t desc = HORON_DESCRIPTOR_INIT;
        desc.verb = HORON_BARRIER;
        desc.name = "a name";
        status = horon_submit(me->ctx, &desc, &request);
    } else if (script_is(step, "set")) {
        const int32_t ranks[] = {0};
        int32_t id = 0;
        status = horon_process_set_add(me->ctx, ranks, 1, 1000, &id);
    } else if (script_is(step, "join")) {
        status = horon_join(me->ctx, 0, &request);
    } else {
        give_up(me, step->line, HORON_ERR_INVALID, "no such step");
    }
    fprintf(me->out, "%d refused %s: %s\n", step->line, horon_status_text(status),
            horon_last_error(me->ctx));
}

static void follow(struct rank *me, FILE *script)
{
    struct script_step step;
    int line = 0;
    while (script_next(script, &line, &step))
        if (step.times > 0)
            take_time(me, &step);
        else if (script_is(&step, "wait"))
            wait_all(me);
        else if (script_is(&step, "die"))
            step.root == me->rank ? (void)raise(SIGKILL) : (void)0;
        else if (script_is_collective(&step) || script_is(&step, "send") ||
                 script_is(&step, "recv"))
            begin(me, &step);
        else
            must_be_refused(me, &step);
    wait_all(me);
}

int main(int argc, char **argv)
{
    static struct rank me;
    FILE *script = argc == 5 ? fopen(argv[3], "r") : NULL;
    me.out = argc == 5 ? fopen(argv[4], "w") : NULL;
    if (!script || !me.out) {
        fprintf(stderr, "usage: horon_peer RANK SIZE SCRIPT OUT\n");
        return 2;
    }
    me.rank = atoi(argv[1]);
    me.size = atoi(argv[2]);
    horon_options_t options = HORON_OPTIONS_INIT;
    options.rank = me.rank;
    options.size = me.size;
    char why[HORON_ERROR_TEXT_BYTES] = "";
    const horon_status_t status = horon_context_create(&options, &me.ctx, why, sizeof why);
    if (status != HORON_OK)
        give_up(&me, 0, status, why);
    follow(&me, script);
    horon_context_destroy(me.ctx);
    fprintf(me.out, "done\n");
    fclose(me.out);
    fclose(script);
    return 0;
}
