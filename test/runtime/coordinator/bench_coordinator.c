/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What negotiation costs in CPU: steps of known tensors, submitted by handle on every rank,
 * negotiated and decided. Prints nanoseconds a tensor and rank, for the whole step and for its
 * parts. Not a test.
 *
 *     bench_coordinator [tensors] [steps]
 */
#undef NDEBUG
#include "tree.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum part { SUBMIT, RUN, TAKE, PARTS };

static double now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e9 + (double)now.tv_nsec;
}

static struct tree tree;

/* One step; adds to the parts' times. @return batches on rank 0 */
static size_t step(uint32_t **handles, const uint32_t *order, uint32_t tensors, double *times)
{
    double t0 = now_ns();
    for (int rank = 0; rank < tree.size; rank++)
        for (uint32_t i = 0; i < tensors; i++) {
            uint32_t pick = order[i];
            horon_status_t status =
                horon_coordinator_submit_handle(tree.ranks[rank], handles[rank][pick], pick);
            assert(status == HORON_OK);
        }
    double t1 = now_ns();
    horon_status_t status = tree_run(&tree);
    assert(status == HORON_OK);
    double t2 = now_ns();
    size_t batches = 0;
    uint64_t sum = 0;
    for (int rank = 0; rank < tree.size; rank++) {
        struct horon_batch batch;
        while (horon_coordinator_next_batch(tree.ranks[rank], &batch)) {
            batches += rank == 0;
            for (size_t i = 0; i < batch.count; i++)
                sum += batch.tokens[i];
        }
    }
    assert(sum == (uint64_t)tree.size * tensors * (tensors - 1) / 2);
    times[SUBMIT] += t1 - t0;
    times[RUN] += t2 - t1;
    times[TAKE] += now_ns() - t2;
    return batches;
}

static int compare_doubles(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void measure(int size, uint32_t tensors, int steps, bool shuffled)
{
    tree_init(&tree, size, TREE_STAR, tensors, 1 << 20, 1);
    uint32_t *handles[TREE_SIZE_MAX], *order = malloc(tensors * sizeof *order);
    double *medians = malloc((size_t)steps * sizeof *medians);
    assert(order && medians);
    for (uint32_t i = 0; i < tensors; i++)
        order[i] = i;
    for (int rank = 0; rank < size; rank++) {
        handles[rank] = malloc(tensors * sizeof *handles[rank]);
        assert(handles[rank]);
        for (uint32_t i = 0; i < tensors; i++) {
            struct horon_operation tensor = tree_tensor(1024, "module.layer.%u.weight", i);
            horon_status_t status = tree_intern(tree.ranks[rank], &tensor, &handles[rank][i]);
            assert(status == HORON_OK);
        }
    }
    double first[PARTS] = {0}, sums[PARTS] = {0};
    step(handles, order, tensors, first);
    size_t batches = 0;
    size_t bytes_before = tree.sent_bytes;
    uint64_t random = 7;
    for (int i = 0; i < steps; i++) {
        for (uint32_t j = tensors; shuffled && j > 1; j--) {
            uint32_t k = (uint32_t)tree_below(&random, j), kept = order[j - 1];
            order[j - 1] = order[k];
            order[k] = kept;
        }
        double parts[PARTS] = {0};
        batches = step(handles, order, tensors, parts);
        medians[i] = parts[SUBMIT] + parts[RUN] + parts[TAKE];
        for (int part = 0; part < PARTS; part++)
            sums[part] += parts[part];
    }
    qsort(medians, (size_t)steps, sizeof *medians, compare_doubles);
    double each = (double)tensors * size;
    printf("np %d, %u tensors%s: %.1f ns a tensor and rank (median; submit %.1f, negotiate %.1f, "
           "take %.1f), first step %.0f; %zu batches, %zu bytes a step\n",
           size, tensors, shuffled ? " in random order" : "", medians[steps / 2] / each,
           sums[SUBMIT] / each / steps, sums[RUN] / each / steps, sums[TAKE] / each / steps,
           (first[SUBMIT] + first[RUN] + first[TAKE]) / each, batches,
           (tree.sent_bytes - bytes_before) / (size_t)steps);
    for (int rank = 0; rank < size; rank++)
        free(handles[rank]);
    free(order);
    free(medians);
    tree_deinit(&tree);
}

int main(int argc, char **argv)
{
    uint32_t tensors = argc > 1 ? (uint32_t)strtoul(argv[1], NULL, 10) : 1000;
    int steps = argc > 2 ? atoi(argv[2]) : 500;
    for (int size = 1; size <= 4; size *= 2) {
        measure(size, tensors, steps, false);
        measure(size, tensors, steps, true);
    }
    return 0;
}
