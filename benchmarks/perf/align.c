/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The memory is an unlinked memfd of rank 0, which the others open through /proc/PID/fd: it has no
 * name that could stay behind, whatever is killed. A random token in it proves that a rank opened
 * the right one. Ranks on other hosts (or in containers that hide /proc) cannot; if any cannot,
 * none uses it.
 *
 * The barrier counts arrivals; the last one resets the count and moves the generation on. A rank
 * that waits looks a number of times, then yields the core at each look, so that more ranks than
 * cores still meet. It never sleeps: waking up would cost more than what is measured. Ranks that
 * have nothing to do sleep from the start: the library's own waiting yields the core for a while
 * first, and some hundred calls of others may be over by then.
 */
#include "align.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <linux/futex.h>
#include <sched.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define SPINS 20000u
#define PATIENCE_S 60
#define LINE 64
#define NOEXEC_SEAL 0x8u /* MFD_NOEXEC_SEAL, which older headers lack */

struct perf_align_shared {
    _Alignas(LINE) uint64_t token[2];
    _Alignas(LINE) _Atomic uint32_t arrived;
    _Alignas(LINE) _Atomic uint32_t generation;
    _Alignas(LINE) _Atomic uint32_t rests; /* a futex */
};

/* What rank 0 tells the others. */
struct invitation {
    int64_t pid, fd;
    uint64_t token[2]; /* zero: rank 0 has no memory to offer */
};

static struct perf_align_shared *map(int fd)
{
    void *const at =
        mmap(NULL, sizeof(struct perf_align_shared), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    return at != MAP_FAILED ? at : NULL;
}

/* With vm.memfd_noexec=2 the kernel refuses one that does not say so; before 6.3 it knows no such
 * word. */
static int make_memory(void)
{
    const int fd = memfd_create("horon-perf", MFD_CLOEXEC | NOEXEC_SEAL);
    return fd < 0 && errno == EINVAL ? memfd_create("horon-perf", MFD_CLOEXEC) : fd;
}

static void offer(struct perf_align *align, struct invitation *invitation)
{
    align->fd = make_memory();
    if (align->fd < 0 || ftruncate(align->fd, sizeof(struct perf_align_shared)) != 0 ||
        getrandom(invitation->token, sizeof invitation->token, 0) !=
            (ssize_t)sizeof invitation->token) {
        memset(invitation, 0, sizeof *invitation);
        return;
    }
    align->shared = map(align->fd);
    if (align->shared == NULL) {
        memset(invitation, 0, sizeof *invitation);
        return;
    }
    memcpy(align->shared->token, invitation->token, sizeof invitation->token);
    invitation->pid = getpid();
    invitation->fd = align->fd;
}

static void accept_offer(struct perf_align *align, const struct invitation *invitation)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%" PRId64 "/fd/%" PRId64, invitation->pid, invitation->fd);
    const int fd = open(path, O_RDWR | O_CLOEXEC);
    struct stat status;
    if (fd < 0) {
        return;
    }
    if (fstat(fd, &status) == 0 && status.st_size == (off_t)sizeof(struct perf_align_shared)) {
        align->shared = map(fd);
    }
    close(fd);
    if (align->shared != NULL &&
        memcmp(align->shared->token, invitation->token, sizeof invitation->token) != 0) {
        perf_align_close(align);
    }
}

int perf_align_open(struct perf_align *align, struct perf_peer *peer, int32_t set, int size)
{
    struct invitation invitation;
    memset(&invitation, 0, sizeof invitation);
    *align = (struct perf_align){.peer = peer, .fd = -1, .set = set, .size = size};
    if (sysconf(_SC_NPROCESSORS_ONLN) >= size) {
        align->spins = SPINS; /* ranks that meet in memory share these cores */
    }
    if (peer->rank == 0) {
        offer(align, &invitation);
    }
    if (peer->ops->share(peer, &invitation, sizeof invitation) != 0) {
        return -1;
    }
    if (peer->rank != 0 && (invitation.token[0] | invitation.token[1]) != 0) {
        accept_offer(align, &invitation);
    }
    double without = align->shared == NULL ? 1.0 : 0.0;
    if (peer->ops->maximum(peer, &without, 1) != 0) {
        return -1;
    }
    if (without > 0.0) {
        perf_align_close(align);
    }
    return 0;
}

void perf_align_close(struct perf_align *align)
{
    if (align->shared != NULL) {
        munmap(align->shared, sizeof *align->shared);
        align->shared = NULL;
    }
    if (align->fd >= 0) {
        close(align->fd);
        align->fd = -1;
    }
}

static time_t seconds_now(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
    return now.tv_sec;
}

static int meet_in_memory(struct perf_align *align)
{
    struct perf_align_shared *const shared = align->shared;
    const uint32_t generation = atomic_load_explicit(&shared->generation, memory_order_acquire);
    const uint32_t before = atomic_fetch_add_explicit(&shared->arrived, 1, memory_order_acq_rel);
    if (before + 1 == (uint32_t)align->size) {
        atomic_store_explicit(&shared->arrived, 0, memory_order_relaxed);
        atomic_store_explicit(&shared->generation, generation + 1, memory_order_release);
        return 0;
    }
    time_t until = 0;
    for (uint64_t looks = 0;; looks++) {
        if (atomic_load_explicit(&shared->generation, memory_order_acquire) != generation) {
            return 0;
        }
        if (looks < align->spins) {
            continue;
        }
        sched_yield();
        if (looks % 4096 == 0) {
            until = until == 0 ? seconds_now() + PATIENCE_S : until;
            if (seconds_now() > until) {
                break;
            }
        }
    }
    snprintf(align->peer->error, sizeof align->peer->error,
             "a rank did not come to the starting line within %d s", PATIENCE_S);
    return -1;
}

int perf_align_meet(struct perf_align *align)
{
    struct perf_peer *const peer = align->peer;
    if (peer->ops->barrier(peer, align->set) != 0) {
        return -1;
    }
    return align->shared != NULL ? meet_in_memory(align) : peer->ops->barrier(peer, align->set);
}

void perf_align_end_rest(struct perf_align *align)
{
    if (align->shared != NULL) {
        atomic_fetch_add(&align->shared->rests, 1);
        syscall(SYS_futex, &align->shared->rests, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
    }
}

void perf_align_rest(struct perf_align *align)
{
    while (align->shared != NULL && atomic_load(&align->shared->rests) == align->rests) {
        syscall(SYS_futex, &align->shared->rests, FUTEX_WAIT, align->rests, NULL, NULL, 0);
    }
    align->rests++;
}
