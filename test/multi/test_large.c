/* SPDX-License-Identifier: Apache-2.0 */
/*
 * More than 2^31 elements, and more than 2^32 bytes, through the ABI in two processes. What fits is
 * real memory, in place. For what does not, a buffer is a short piece of memory mapped again and
 * again: its length in pages is a prime, so that an offset cut to 32 bits meets another value.
 */
#undef NDEBUG
#include "multi/job.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#define MANY (((uint64_t)1 << 31) + 7)
#define PIECE_BYTES ((uint64_t)4096 * 4099) /* 16 MiB and a bit; 4099 is prime */

static uint64_t available_bytes(void)
{
    char line[128];
    unsigned long long kib = 0;
    FILE *file = fopen("/proc/meminfo", "r");
    while (file && fgets(line, sizeof line, file))
        if (sscanf(line, "MemAvailable: %llu", &kib) == 1)
            break;
    if (file)
        fclose(file);
    return kib * 1024;
}

static void need_memory(uint64_t bytes)
{
    if (available_bytes() >= bytes + ((uint64_t)2 << 30))
        return;
    print_message("SKIP: needs %llu GiB and two to spare; %llu GiB are available\n",
                  (unsigned long long)(bytes >> 30), (unsigned long long)(available_bytes() >> 30));
    skip();
}

static void *map_bytes(uint64_t bytes)
{
    int flags = MAP_NORESERVE | MAP_PRIVATE | MAP_ANONYMOUS;
    void *base = mmap(NULL, bytes, PROT_READ | PROT_WRITE, flags, -1, 0);
    return base == MAP_FAILED ? NULL : base;
}

/* Lays one piece of memory over [bytes] at @p base, over and over. */
static bool lay_pieces(uint8_t *base, uint64_t bytes)
{
    int piece = memfd_create("test", MFD_CLOEXEC), access = PROT_READ | PROT_WRITE;
    if (!base || piece < 0 || ftruncate(piece, (off_t)PIECE_BYTES) != 0)
        return false;
    for (uint64_t at = 0; at < bytes; at += PIECE_BYTES) {
        uint64_t length = bytes - at < PIECE_BYTES ? bytes - at : PIECE_BYTES;
        if (mmap(base + at, length, access, MAP_SHARED | MAP_FIXED, piece, 0) == MAP_FAILED)
            return false;
    }
    close(piece);
    return true;
}

static void *map_kind(uint64_t bytes, bool pieces)
{
    void *base = map_bytes(bytes);
    return !pieces || lay_pieces(base, bytes) ? base : NULL;
}

/* The value of a byte of rank 0; other ranks add their number. It repeats with the pieces. */
static uint8_t byte_at(uint64_t at, bool pieces)
{
    uint64_t place = pieces ? at % PIECE_BYTES : at;
    return (uint8_t)((place * 0x9e3779b97f4a7c15u) >> 58);
}

struct kind {
    bool pieces;
    horon_verb_t verb; /* of those that one function runs */
    horon_dtype_t dtype;
    uint64_t count;
};

static bool runs_well(horon_context_t *ctx, const horon_descriptor_t *desc,
                      struct job_report *report)
{
    report->status = horon_run(ctx, desc, -1, report->text, sizeof report->text);
    return report->status == HORON_OK;
}

static void fill_bytes(uint8_t *data, uint64_t bytes, bool pieces, int rank)
{
    for (uint64_t i = 0; i < bytes && (!pieces || i < PIECE_BYTES); i++)
        data[i] = (uint8_t)(byte_at(i, pieces) + rank);
}

/* Are these what lies from @p first on in an input? In pieces each byte stands for all that lie
 * there: the last that was written counts. */
static bool bytes_are(const uint8_t *data, uint64_t first, uint64_t bytes, bool pieces, int times,
                      int plus)
{
    for (uint64_t i = 0; i < bytes && (!pieces || i < PIECE_BYTES); i++)
        if (data[i] != (uint8_t)(byte_at(first + i, pieces) * times + plus))
            return false;
    return true;
}

/* Of a reduce rank 1 is root, and the other has no output. */
static void sum_bytes(horon_context_t *ctx, void *arg, struct job_report *report)
{
    const struct kind *kind = arg;
    const bool gets = kind->verb == HORON_ALLREDUCE || horon_rank(ctx) == 1;
    uint8_t *in = map_kind(kind->count, kind->pieces);
    uint8_t *out = kind->pieces ? map_kind(kind->count, true) : in;
    RANK_MUST(in && out);
    fill_bytes(in, kind->count, kind->pieces, horon_rank(ctx));
    horon_descriptor_t desc = job_sum("many", NULL, kind->count, 0);
    desc.verb = kind->verb;
    desc.dtype = HORON_UINT8;
    desc.root = kind->verb == HORON_REDUCE ? 1 : 0;
    desc.src = in;
    desc.dst = gets ? out : NULL;
    if (!runs_well(ctx, &desc, report))
        return;
    RANK_MUST(!gets || bytes_are(out, 0, kind->count, kind->pieces, 2, 1));
}

static void allreduce_floats(horon_context_t *ctx, void *arg, struct job_report *report)
{
    const struct kind *kind = arg;
    const uint64_t in_piece = PIECE_BYTES / sizeof(float);
    float *in = map_kind(kind->count * sizeof(float), true);
    float *out = map_kind(kind->count * sizeof(float), true);
    RANK_MUST(in && out);
    for (uint64_t i = 0; i < in_piece; i++)
        in[i] = (float)(i % 1048573) + (float)horon_rank(ctx);
    horon_descriptor_t desc = job_sum("many", NULL, kind->count, HORON_IN_ORDER);
    desc.src = in;
    desc.dst = out;
    if (!runs_well(ctx, &desc, report))
        return;
    for (uint64_t i = 0; i < in_piece; i++)
        RANK_MUST(out[i] == 2 * (float)(i % 1048573) + 1);
}

static void broadcast_bytes(horon_context_t *ctx, void *arg, struct job_report *report)
{
    const struct kind *kind = arg;
    uint8_t *data = map_kind(kind->count, kind->pieces);
    RANK_MUST(data);
    if (horon_rank(ctx) == 1)
        fill_bytes(data, kind->count, kind->pieces, 1);
    horon_descriptor_t desc = job_sum("many", NULL, kind->count, 0);
    desc.verb = HORON_BROADCAST;
    desc.dtype = HORON_UINT8;
    desc.root = 1;
    desc.src = desc.dst = data;
    if (!runs_well(ctx, &desc, report))
        return;
    RANK_MUST(bytes_are(data, 0, kind->count, kind->pieces, 1, 1));
}

/* Ranks give unlike rows; the block of each rank in the output has pieces of its own. Of a gather
 * rank 0 is root: what crosses over goes behind its own. */
static void gather_bytes(horon_context_t *ctx, void *arg, struct job_report *report)
{
    const struct kind *kind = arg;
    const uint64_t whole = (kind->count + PIECE_BYTES - 1) / PIECE_BYTES * PIECE_BYTES;
    const uint64_t counts[2] = {kind->pieces ? whole : kind->count / 2, kind->count};
    const int rank = horon_rank(ctx);
    const bool gets = kind->verb == HORON_ALLGATHER || rank == 0;
    uint8_t *in = map_kind(counts[rank], kind->pieces);
    uint8_t *out = map_bytes(counts[0] + counts[1]);
    RANK_MUST(in && out);
    if (kind->pieces)
        RANK_MUST(lay_pieces(out, counts[0]) && lay_pieces(out + counts[0], counts[1]));
    fill_bytes(in, counts[rank], kind->pieces, rank);
    horon_descriptor_t desc = job_sum("many", NULL, counts[rank], 0);
    desc.verb = kind->verb;
    desc.dtype = HORON_UINT8;
    desc.src = in;
    desc.dst = gets ? out : NULL;
    desc.dst_count = gets ? counts[0] + counts[1] : 0;
    if (!runs_well(ctx, &desc, report))
        return;
    RANK_MUST(!gets || bytes_are(out, 0, counts[0], kind->pieces, 1, 0));
    RANK_MUST(!gets || bytes_are(out + counts[0], 0, counts[1], kind->pieces, 1, 1));
}

/* In pieces. Rank 0 keeps some rows and gives many, rank 1 gives many and keeps some: those that it
 * keeps lie behind 2^32 in its input and in its output. */
static void exchange_bytes(horon_context_t *ctx, void *arg, struct job_report *report)
{
    const struct kind *kind = arg;
    const int rank = horon_rank(ctx), few = 3 * 4096; /* outputs are laid in whole pages */
    const uint64_t many = (kind->count + PIECE_BYTES - 1) / PIECE_BYTES * PIECE_BYTES;
    const uint64_t given[2][2] = {{(uint64_t)few, many}, {kind->count, 5}}; /* [from][to] */
    const uint64_t in_bytes = given[rank][0] + given[rank][1];
    const uint64_t out_bytes = given[0][rank] + given[1][rank];
    uint8_t *in = map_kind(in_bytes, true), *out = map_bytes(out_bytes);
    RANK_MUST(in && out);
    RANK_MUST(lay_pieces(out, given[0][rank]));
    RANK_MUST(lay_pieces(out + given[0][rank], given[1][rank]));
    fill_bytes(in, in_bytes, true, rank);
    horon_descriptor_t desc = job_sum("many", NULL, in_bytes, 0);
    desc.verb = HORON_ALLTOALL;
    desc.dtype = HORON_UINT8;
    desc.splits = given[rank];
    desc.src = in;
    desc.dst = out;
    desc.dst_count = out_bytes;
    if (!runs_well(ctx, &desc, report))
        return;
    for (int from = 0; from < 2; from++) {
        const uint64_t first = rank ? given[from][0] : 0;
        const uint8_t *block = out + (from ? given[0][rank] : 0);
        RANK_MUST(bytes_are(block, first, given[from][rank], true, 1, from));
    }
}

/* Rank 0 is root, and what it gives rank 1 lies behind its own. */
static void scatter_bytes(horon_context_t *ctx, void *arg, struct job_report *report)
{
    const struct kind *kind = arg;
    const int rank = horon_rank(ctx);
    const uint64_t given[2] = {kind->count + 5, kind->count}, all = given[0] + given[1];
    uint8_t *in = map_kind(all, kind->pieces), *out = map_kind(given[rank], kind->pieces);
    RANK_MUST(in && out);
    if (rank == 0)
        fill_bytes(in, all, kind->pieces, 1);
    horon_descriptor_t desc = job_sum("many", NULL, rank ? 0 : all, 0);
    desc.verb = HORON_SCATTER;
    desc.dtype = HORON_UINT8;
    desc.splits = rank ? NULL : given;
    desc.src = rank ? NULL : in;
    desc.dst = out;
    desc.dst_count = given[rank];
    if (!runs_well(ctx, &desc, report))
        return;
    RANK_MUST(bytes_are(out, rank ? given[0] : 0, given[rank], kind->pieces, 1, 1));
}

static void message_bytes(horon_context_t *ctx, void *arg, struct job_report *report)
{
    const struct kind *kind = arg;
    const int rank = horon_rank(ctx);
    uint8_t *data = map_kind(kind->count, kind->pieces);
    RANK_MUST(data);
    if (rank == 0)
        fill_bytes(data, kind->count, kind->pieces, 1);
    horon_descriptor_t desc = HORON_DESCRIPTOR_INIT;
    desc.verb = rank ? HORON_RECV : HORON_SEND;
    desc.dtype = HORON_UINT8;
    desc.root = 1 - rank;
    desc.src = desc.dst = data;
    desc.count = kind->count;
    if (!runs_well(ctx, &desc, report))
        return;
    RANK_MUST(bytes_are(data, 0, kind->count, kind->pieces, 1, 1));
}

/* Of two ranks rank 0 gets a row more than half, in place: at the front, which is where its own
 * lie, and rank 1 where its own do. In pieces they are apart. */
static void share_bytes(horon_context_t *ctx, void *arg, struct job_report *report)
{
    const struct kind *kind = arg;
    const int rank = horon_rank(ctx);
    const uint64_t first = rank ? kind->count - kind->count / 2 : 0;
    const uint64_t share = rank ? kind->count / 2 : kind->count - kind->count / 2;
    uint8_t *in = map_kind(kind->count, kind->pieces);
    uint8_t *out = kind->pieces ? map_kind(share, true) : in + first;
    RANK_MUST(in && out);
    fill_bytes(in, kind->count, kind->pieces, rank);
    horon_descriptor_t desc = job_sum("many", NULL, kind->count, 0);
    desc.verb = HORON_REDUCESCATTER;
    desc.dtype = HORON_UINT8;
    desc.src = in;
    desc.dst = out;
    desc.dst_count = share;
    if (!runs_well(ctx, &desc, report))
        return;
    RANK_MUST(bytes_are(out, first, share, kind->pieces, 2, 1));
}

static void run_job(const char *what, const char *shared, job_work_fn_t work, struct kind kind)
{
    const char *const settings[] = {shared, "STALL_WARN=0", NULL};
    struct timespec begin, end;
    struct job job;
    clock_gettime(CLOCK_MONOTONIC, &begin);
    job_start(&job, 2, settings, work, &kind);
    for (int rank = 0; rank < 2; rank++) {
        struct job_report report = {0};
        int got = job_report_of(&job, rank, 1500000, &report);
        if (got != 0 || report.status != HORON_OK)
            print_error("rank %d: got %d, status %d: %s\n", rank, got, report.status, report.text);
        assert_int_equal(got, 0);
        assert_int_equal(report.status, HORON_OK);
    }
    assert_int_equal(job_end(&job, 60000), 0);
    clock_gettime(CLOCK_MONOTONIC, &end);
    print_message("%s of %llu elements, %s: %ld s\n", what, (unsigned long long)kind.count, shared,
                  (long)(end.tv_sec - begin.tv_sec));
}

static void test_large_allreduce_in_place_is_right(void **state)
{
    (void)state;
    need_memory(2 * MANY);
    run_job("allreduce u8", "SHM=1", sum_bytes, (struct kind){.dtype = HORON_UINT8, .count = MANY});
}

static void test_large_reducescatter_in_place_is_right(void **state)
{
    (void)state;
    need_memory(2 * MANY);
    run_job("reducescatter u8", "SHM=1", share_bytes,
            (struct kind){.dtype = HORON_UINT8, .count = MANY});
}

static void test_large_allgather_is_right(void **state)
{
    (void)state;
    const uint64_t rows = ((uint64_t)3 << 29) + 5; /* half as many on rank 0: over 2^31 in all */
    need_memory(9 * rows / 2);
    run_job("allgather u8", "SHM=1", gather_bytes,
            (struct kind){.verb = HORON_ALLGATHER, .dtype = HORON_UINT8, .count = rows});
}

/* More than 2^32 bytes of everything. */
static void large_in_pieces(const char *shared)
{
    const struct kind floats = {.pieces = true, .dtype = HORON_FLOAT32, .count = MANY};
    const struct kind bytes = {.pieces = true, .dtype = HORON_UINT8, .count = 2 * MANY};
    struct kind of_verb = bytes;
    run_job("allreduce f32", shared, allreduce_floats, floats);
    run_job("allreduce u8", shared, sum_bytes, bytes);
    of_verb.verb = HORON_REDUCE;
    run_job("reduce u8", shared, sum_bytes, of_verb);
    run_job("broadcast u8", shared, broadcast_bytes, bytes);
    of_verb.verb = HORON_ALLGATHER;
    run_job("allgather u8", shared, gather_bytes, of_verb);
    of_verb.verb = HORON_GATHER;
    run_job("gather u8", shared, gather_bytes, of_verb);
    run_job("scatter u8", shared, scatter_bytes, bytes);
    run_job("alltoall u8", shared, exchange_bytes, bytes);
    run_job("reducescatter u8", shared, share_bytes, bytes);
    run_job("message u8", shared, message_bytes, bytes);
}

static void test_large_in_pieces_over_memory_is_right(void **state)
{
    (void)state;
    large_in_pieces("SHM=1");
}

static void test_large_in_pieces_over_sockets_is_right(void **state)
{
    (void)state;
    large_in_pieces("SHM=0");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_large_allreduce_in_place_is_right),
        cmocka_unit_test(test_large_reducescatter_in_place_is_right),
        cmocka_unit_test(test_large_allgather_is_right),
        cmocka_unit_test(test_large_in_pieces_over_memory_is_right),
        cmocka_unit_test(test_large_in_pieces_over_sockets_is_right),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
