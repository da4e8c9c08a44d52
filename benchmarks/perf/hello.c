/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The smallest program that uses horon, and what it costs. Not installed: `benchmarks/figures` runs
 * it.
 *
 *     horon-hello                 joins, sums one number once, ends: how long a start takes
 *     horon-hello idle SECONDS    joins, sums once, sleeps; says the CPU it used while asleep
 *     horon-hello late SECONDS    the last rank comes SECONDS late to a sum; the others say the CPU
 *                                 they used while they waited
 *     horon-hello memory BYTES    sums BYTES three ways, and 1000 small tensors; says how much
 *                                 memory horon holds
 *     horon-hello starts N        starts N prepared operations, one by one and as one; says how
 *                                 long each start took
 *
 * Each rank prints one line of JSON. Sleeping here is what is measured, not a way to synchronise.
 */
#include <horon/horon.h>

#include <errno.h>
#include <inttypes.h>
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

/* As many tensors as a large model has; horon keeps about 2 KB for each that is prepared. */
#define MEMORY_OPERATIONS 1000

static double clock_s(clockid_t clock)
{
    struct timespec now;
    clock_gettime(clock, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static void sleep_s(double seconds)
{
    struct timespec left = {.tv_sec = (time_t)seconds,
                            .tv_nsec = (long)((seconds - (double)(time_t)seconds) * 1e9)};
    while (nanosleep(&left, &left) != 0 && errno == EINTR) {}
}

static int sum(horon_context_t *context, float *data, uint64_t count, uint32_t flags,
               const char *name)
{
    char why[HORON_ERROR_TEXT_BYTES] = "";
    horon_descriptor_t desc = HORON_DESCRIPTOR_INIT;
    desc.verb = HORON_ALLREDUCE;
    desc.dtype = HORON_FLOAT32;
    desc.redop = HORON_SUM;
    desc.flags = flags;
    desc.name = name;
    desc.src = desc.dst = data;
    desc.count = count;
    const horon_status_t status = horon_run(context, &desc, -1, why, sizeof why);
    if (status != HORON_OK) {
        fprintf(stderr, "horon-hello: %s: %s\n", horon_status_text(status), why);
        return -1;
    }
    return 0;
}

/* One number, so that whatever is made at first use is there. */
static int sum_ones(horon_context_t *context)
{
    float one = 1.0f;
    if (sum(context, &one, 1, HORON_IN_ORDER, NULL) != 0) {
        return -1;
    }
    if (one != (float)horon_size(context)) {
        fprintf(stderr, "horon-hello: the sum of ones is %f\n", (double)one);
        return -1;
    }
    return 0;
}

static int idle(horon_context_t *context, double seconds)
{
    float one = 1.0f;
    if (sum(context, &one, 1, 0, "idle") != 0 || sum_ones(context) != 0) {
        return -1;
    }
    sleep_s(0.2); /* let the threads come to rest */
    const double before = clock_s(CLOCK_PROCESS_CPUTIME_ID);
    sleep_s(seconds);
    const double used = clock_s(CLOCK_PROCESS_CPUTIME_ID) - before;
    printf("{\"rank\": %" PRId32 ", \"seconds\": %g, \"cpu_s\": %.6f}\n", horon_rank(context),
           seconds, used);
    return sum_ones(context);
}

static int late(horon_context_t *context, double seconds)
{
    const int is_late = horon_rank(context) == horon_size(context) - 1;
    float one = 1.0f;
    for (int i = 0; i < 2; i++) {
        if (sum_ones(context) != 0) {
            return -1;
        }
    }
    if (is_late) {
        sleep_s(seconds);
    }
    const double start = clock_s(CLOCK_MONOTONIC);
    const double before = clock_s(CLOCK_PROCESS_CPUTIME_ID);
    if (sum(context, &one, 1, HORON_IN_ORDER, NULL) != 0) {
        return -1;
    }
    const double used = clock_s(CLOCK_PROCESS_CPUTIME_ID) - before;
    const double waited = clock_s(CLOCK_MONOTONIC) - start;
    printf("{\"rank\": %" PRId32 ", \"late\": %s, \"waited_s\": %.3f, \"cpu_s\": %.6f}\n",
           horon_rank(context), is_late ? "true" : "false", waited, used);
    return 0;
}

/* Prints, for each shared mapping of this process, which file it is and how much of it is mapped.
 */
static void print_shared(void)
{
    FILE *const maps = fopen("/proc/self/maps", "re");
    char line[512];
    const char *separator = "";
    while (maps != NULL && fgets(line, sizeof line, maps) != NULL) {
        uint64_t begin = 0;
        uint64_t end = 0;
        uint64_t inode = 0;
        char mode[8] = "";
        char file[128] = "";
        if (sscanf(line, "%" SCNx64 "-%" SCNx64 " %7s %*x %*s %" SCNu64 " %127s", &begin, &end,
                   mode, &inode, file) == 5 &&
            strchr(mode, 's') != NULL &&
            (strncmp(file, "/memfd:", 7) == 0 || strncmp(file, "/dev/shm", 8) == 0 ||
             strncmp(file, "/dev/zero", 9) == 0)) {
            printf("%s[%" PRIu64 ", %" PRIu64 "]", separator, inode, end - begin);
            separator = ", ";
        }
    }
    if (maps != NULL) {
        fclose(maps);
    }
}

static size_t heap_bytes(void)
{
    const struct mallinfo2 info = mallinfo2();
    return info.uordblks + info.hblkhd;
}

static horon_request_t **prepare_many(horon_context_t *context, float *data, size_t n)
{
    horon_request_t **const requests = calloc(n, sizeof *requests);
    for (size_t i = 0; requests != NULL && i < n; i++) {
        char name[32];
        snprintf(name, sizeof name, "tensor %zu", i);
        horon_descriptor_t desc = HORON_DESCRIPTOR_INIT;
        desc.dtype = HORON_FLOAT32;
        desc.name = name;
        desc.src = desc.dst = &data[4 * i];
        desc.count = 4;
        if (horon_prepare(context, &desc, &requests[i]) != HORON_OK) {
            fprintf(stderr, "horon-hello: %s\n", horon_last_error(context));
            return NULL;
        }
    }
    return requests;
}

static int memory(horon_context_t *context, uint64_t bytes, size_t heap_before)
{
    const uint64_t count = bytes / sizeof(float);
    float *const data =
        mmap(NULL, bytes + 1, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (data == MAP_FAILED) {
        fprintf(stderr, "horon-hello: no memory for the tensor\n");
        return -1;
    }
    if (sum_ones(context) != 0 || sum(context, data, count, HORON_IN_ORDER, NULL) != 0 ||
        sum(context, data, count, 0, "large") != 0 || sum(context, data, count, 0, "large") != 0) {
        return -1;
    }
    const size_t n = count / 4 < MEMORY_OPERATIONS ? (size_t)(count / 4) : MEMORY_OPERATIONS;
    horon_request_t **const requests = prepare_many(context, data, n);
    for (int run = 0; run < 3; run++) {
        if (requests == NULL || horon_start_all(requests, n, NULL) != HORON_OK ||
            horon_wait_all(requests, n, HORON_HOST_DONE, -1) != HORON_OK) {
            return -1;
        }
    }
    const size_t heap = heap_bytes();
    printf("{\"rank\": %" PRId32 ", \"bytes\": %" PRIu64 ", \"heap\": %zu, \"shared\": [",
           horon_rank(context), bytes, heap > heap_before ? heap - heap_before : 0);
    print_shared();
    printf("]}\n");
    for (size_t i = 0; i < n; i++) {
        horon_release(requests[i]);
    }
    free((void *)requests);
    munmap(data, bytes + 1);
    return sum_ones(context);
}

static int compare_doubles(const void *left, const void *right)
{
    const double a = *(const double *)left;
    const double b = *(const double *)right;
    return (a > b) - (a < b);
}

/* CPU time of the calling thread, and time on the wall: where ranks and their progress threads are
 * more than the cores, one of the latter may come in between. */
struct cost {
    double cpu_s, wall_s;
};

static struct cost cost_since(struct cost begin)
{
    return (struct cost){.cpu_s = clock_s(CLOCK_THREAD_CPUTIME_ID) - begin.cpu_s,
                         .wall_s = clock_s(CLOCK_MONOTONIC) - begin.wall_s};
}

/* The ranks' sums of what was started are waited for outside the time. */
static int starts(horon_context_t *context, size_t n)
{
    enum { WARM_UP = 5, ROUNDS = 101 };
    double cpu[2][ROUNDS], wall[2][ROUNDS];
    float *const data = calloc(4 * n, sizeof *data);
    horon_request_t **const requests = data != NULL ? prepare_many(context, data, n) : NULL;
    if (requests == NULL || n == 0) {
        free((void *)requests);
        free(data);
        return -1;
    }
    for (int round = -2 * WARM_UP; round < 2 * ROUNDS; round++) {
        const int as_one = round & 1;
        horon_status_t status = HORON_OK;
        if (sum_ones(context) != 0) {
            return -1;
        }
        const struct cost begin = cost_since((struct cost){0, 0});
        if (as_one) {
            status = horon_start_all(requests, n, NULL);
        }
        for (size_t i = 0; i < n && !as_one && status == HORON_OK; i++) {
            status = horon_start(requests[i]);
        }
        const struct cost cost = cost_since(begin);
        if (status != HORON_OK || horon_wait_all(requests, n, HORON_HOST_DONE, -1) != HORON_OK) {
            fprintf(stderr, "horon-hello: %s\n", horon_last_error(context));
            return -1;
        }
        if (round >= 0) {
            cpu[as_one][round / 2] = cost.cpu_s * 1e9 / (double)n;
            wall[as_one][round / 2] = cost.wall_s * 1e9 / (double)n;
        }
    }
    for (int way = 0; way < 2; way++) {
        qsort(cpu[way], ROUNDS, sizeof cpu[way][0], compare_doubles);
        qsort(wall[way], ROUNDS, sizeof wall[way][0], compare_doubles);
    }
    printf("{\"rank\": %" PRId32 ", \"start_ns\": %.1f, \"start_wall_ns\": %.1f, "
           "\"start_all_ns\": %.1f, \"start_all_wall_ns\": %.1f}\n",
           horon_rank(context), cpu[0][ROUNDS / 2], wall[0][ROUNDS / 2], cpu[1][ROUNDS / 2],
           wall[1][ROUNDS / 2]);
    for (size_t i = 0; i < n; i++) {
        horon_release(requests[i]);
    }
    free((void *)requests);
    free(data);
    return sum_ones(context);
}

int main(int argc, char **argv)
{
    const char *const what = argc > 1 ? argv[1] : "";
    const double number = argc > 2 ? strtod(argv[2], NULL) : 0.0;
    const size_t heap_before = heap_bytes();
    horon_context_t *context = NULL;
    char why[HORON_ERROR_TEXT_BYTES] = "";
    if (horon_context_create(NULL, &context, why, sizeof why) != HORON_OK) {
        fprintf(stderr, "horon-hello: %s\n", why);
        return 3;
    }
    int result = -1;
    if (strcmp(what, "idle") == 0) {
        result = idle(context, number);
    } else if (strcmp(what, "late") == 0) {
        result = late(context, number);
    } else if (strcmp(what, "memory") == 0) {
        result = memory(context, (uint64_t)number, heap_before);
    } else if (strcmp(what, "starts") == 0) {
        result = starts(context, (size_t)number);
    } else if (argc == 1) {
        result = sum_ones(context);
    } else {
        fprintf(stderr,
                "horon-hello: idle SECONDS, late SECONDS, memory BYTES, starts N, or nothing\n");
    }
    horon_context_destroy(context);
    return result == 0 ? 0 : 1;
}
