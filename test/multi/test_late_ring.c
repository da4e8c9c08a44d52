/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A ring between two ranks of a host that is made after joining, of which one cannot take the
 * other's half: it is out of descriptors. The other one has the link by then, or waits, and is told
 * also where the socket takes nothing at first.
 */
#undef NDEBUG
#include "multi/job.h"

#include <dlfcn.h>
#include <errno.h>
#include <semaphore.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

static atomic_bool loses; /* the next descriptor that is passed to this process */
static atomic_bool full;  /* the socket, to the next note without descriptors */
static atomic_bool deaf;  /* to all that comes */
static atomic_bool bare;  /* of memory, when it is asked for next */
static atomic_bool cut;   /* the socket, when the next descriptor is passed on */
static sem_t *passed_on;  /* a descriptor of this process */

/* As the kernel does where a process has as many descriptors as it may. */
ssize_t recvmsg(int fd, struct msghdr *message, int flags)
{
    ssize_t (*real)(int, struct msghdr *, int);
    *(void **)&real = dlsym(RTLD_NEXT, "recvmsg");
    if (atomic_load(&deaf)) {
        errno = EAGAIN;
        return -1;
    }
    const ssize_t got = real(fd, message, flags);
    struct cmsghdr *passed = got > 0 && message->msg_controllen > 0 ? CMSG_FIRSTHDR(message) : NULL;
    if (passed && passed->cmsg_type == SCM_RIGHTS && atomic_exchange(&loses, false)) {
        int lost;
        memcpy(&lost, CMSG_DATA(passed), sizeof lost);
        close(lost);
        message->msg_controllen = 0;
        message->msg_flags |= MSG_CTRUNC;
    }
    return got;
}

/* As the kernel does while the other side reads nothing. */
ssize_t sendmsg(int fd, const struct msghdr *message, int flags)
{
    ssize_t (*real)(int, const struct msghdr *, int);
    const struct iovec *first = message->msg_iov;
    *(void **)&real = dlsym(RTLD_NEXT, "sendmsg");
    if (message->msg_iovlen == 1 && message->msg_controllen == 0 && first->iov_len > 4 &&
        memcmp(first->iov_base, "NOTE", 4) == 0 && atomic_exchange(&full, false)) {
        errno = EAGAIN;
        return -1;
    }
    if (message->msg_controllen > 0 && atomic_exchange(&cut, false)) {
        errno = EPIPE;
        return -1;
    }
    const ssize_t sent = real(fd, message, flags);
    if (sent > 0 && message->msg_controllen > 0 && passed_on)
        sem_post(passed_on);
    return sent;
}

int memfd_create(const char *name, unsigned flags)
{
    int (*real)(const char *, unsigned);
    *(void **)&real = dlsym(RTLD_NEXT, "memfd_create");
    if (atomic_exchange(&bare, false)) {
        errno = ENFILE;
        return -1;
    }
    return real(name, flags);
}

/* For the ranks of a job, to be unmapped. */
static sem_t *shared_semaphores(int count)
{
    const size_t bytes = (size_t)count * sizeof(sem_t);
    sem_t *sems = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_ptr_not_equal(sems, MAP_FAILED);
    for (int i = 0; i < count; i++)
        assert_int_equal(sem_init(&sems[i], 1, 0), 0);
    return sems;
}

static void lose_half(horon_context_t *ctx, void *arg, struct job_report *report)
{
    sem_t *failed = arg;
    const int rank = horon_rank(ctx);
    int32_t word = 0;
    horon_descriptor_t desc = HORON_DESCRIPTOR_INIT;
    desc.verb = rank == 0 ? HORON_BARRIER : rank == 1 ? HORON_RECV : HORON_SEND;
    desc.dtype = HORON_INT32;
    desc.root = rank == 0 ? 0 : 3 - rank;
    desc.src = desc.dst = &word;
    desc.count = rank > 0;
    atomic_store(&loses, rank == 1);
    while (rank == 2 && sem_wait(failed) != 0)
        ; /* rank 1 passes its half first */
    const horon_status_t status = horon_run(ctx, &desc, 60000, report->text, sizeof report->text);
    if (rank == 1)
        sem_post(failed);
    RANK_MUST(status < 0 && status != HORON_ERR_TIMEOUT);
    RANK_MUST(strstr(report->text, "rank 1 ("));
    RANK_MUST(strstr(report->text, "descriptor"));
    RANK_MUST(!strstr(report->text, "(null)")); /* hosts have names */
}

static void test_ring_of_which_half_is_lost_fails_the_job(void **state)
{
    (void)state;
    sem_t *failed = shared_semaphores(1);
    job_run(3, NULL, lose_half, failed);
    munmap(failed, sizeof *failed);
}

static horon_status_t pass(horon_context_t *ctx, horon_verb_t verb, int32_t peer, int32_t *word,
                           struct job_report *report)
{
    horon_descriptor_t desc = HORON_DESCRIPTOR_INIT;
    desc.verb = verb;
    desc.dtype = HORON_INT32;
    desc.root = peer;
    desc.src = desc.dst = word;
    desc.count = verb != HORON_BARRIER;
    return horon_run(ctx, &desc, 10000, report->text, sizeof report->text);
}

/* Rank 1 loses the half of rank 2 before it has made its own. */
static void refuse_half(horon_context_t *ctx, void *arg, struct job_report *report)
{
    sem_t *failed = arg;
    const int rank = horon_rank(ctx);
    int32_t word = 7 * (rank == 2);
    atomic_store(&loses, rank == 1);
    atomic_store(&full, rank == 1);
    RANK_MUST(pass(ctx, HORON_BARRIER, 0, &word, report) == HORON_OK);
    if (rank == 2) {
        RANK_MUST(pass(ctx, HORON_SEND, 1, &word, report) == HORON_ERR_SYSTEM);
        RANK_MUST(strstr(report->text, "it could not make its part"));
        sem_post(failed);
        RANK_MUST(pass(ctx, HORON_SEND, 1, &word, report) == HORON_OK);
    }
    while (rank == 1 && sem_wait(failed) != 0)
        ;
    if (rank == 1) {
        RANK_MUST(!atomic_load(&loses) && !atomic_load(&full));
        RANK_MUST(pass(ctx, HORON_RECV, 2, &word, report) == HORON_OK);
        RANK_MUST(word == 7);
    }
    RANK_MUST(pass(ctx, HORON_BARRIER, 0, &word, report) == HORON_OK);
}

static void test_ring_that_is_refused_behind_a_full_socket_is_told(void **state)
{
    (void)state;
    sem_t *failed = shared_semaphores(1);
    job_run(3, NULL, refuse_half, failed);
    munmap(failed, sizeof *failed);
}

/* Rank 1 cannot make its half, and says so, when that of rank 2 is on its way already. */
static void cross_halves(horon_context_t *ctx, void *arg, struct job_report *report)
{
    sem_t *sems = arg, *has_passed = &sems[0], *has_failed = &sems[1];
    const int32_t members[] = {1, 2};
    const int rank = horon_rank(ctx);
    int32_t word = 7 * (rank == 2), set;
    RANK_MUST(horon_process_set_add(ctx, members, 2, -1, &set) == HORON_OK); /* for the socket */
    atomic_store(&deaf, rank == 1);
    RANK_MUST(pass(ctx, HORON_BARRIER, 0, &word, report) == HORON_OK);
    passed_on = rank == 2 ? has_passed : NULL;
    if (rank == 1) {
        while (sem_wait(has_passed) != 0)
            ;
        atomic_store(&bare, true);
        RANK_MUST(pass(ctx, HORON_RECV, 2, &word, report) == HORON_ERR_SYSTEM);
        RANK_MUST(!atomic_load(&bare));
        atomic_store(&deaf, false);
        while (sem_wait(has_failed) != 0)
            ;
        RANK_MUST(pass(ctx, HORON_RECV, 2, &word, report) == HORON_OK);
        RANK_MUST(word == 7);
    }
    if (rank == 2) {
        RANK_MUST(pass(ctx, HORON_SEND, 1, &word, report) == HORON_ERR_SYSTEM);
        sem_post(has_failed);
        RANK_MUST(pass(ctx, HORON_SEND, 1, &word, report) == HORON_OK);
    }
    RANK_MUST(pass(ctx, HORON_BARRIER, 0, &word, report) == HORON_OK);
}

static void test_ring_that_is_refused_while_its_half_comes_is_made_anew(void **state)
{
    (void)state;
    sem_t *sems = shared_semaphores(2);
    job_run(3, NULL, cross_halves, sems);
    munmap(sems, 2 * sizeof *sems);
}

/* As if rank 1 had been killed just before it is passed a half: that is known by the socket first.
 */
static void cut_socket(horon_context_t *ctx, void *arg, struct job_report *report)
{
    sem_t *joined = arg;
    const int32_t members[] = {1, 2};
    const int rank = horon_rank(ctx);
    int32_t word = 0, set;
    RANK_MUST(horon_process_set_add(ctx, members, 2, -1, &set) == HORON_OK); /* for the socket */
    if (rank != 2)
        sem_post(joined);
    for (int others = 0; rank == 2 && others < 2;) /* a barrier ends here before it ends there */
        others += sem_wait(joined) == 0;
    atomic_store(&cut, rank == 2);
    const horon_verb_t verb = rank == 2 ? HORON_SEND : HORON_BARRIER;
    RANK_MUST(pass(ctx, verb, rank == 2, &word, report) == HORON_ERR_PEER_LOST);
    RANK_MUST(strstr(report->text, "rank 1 ("));
    RANK_MUST(!atomic_load(&cut));
}

static void test_ring_whose_half_cannot_be_passed_on_names_the_rank_that_is_gone(void **state)
{
    (void)state;
    sem_t *joined = shared_semaphores(1);
    job_run(3, NULL, cut_socket, joined);
    munmap(joined, sizeof *joined);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ring_of_which_half_is_lost_fails_the_job),
        cmocka_unit_test(test_ring_that_is_refused_behind_a_full_socket_is_told),
        cmocka_unit_test(test_ring_that_is_refused_while_its_half_comes_is_made_anew),
        cmocka_unit_test(test_ring_whose_half_cannot_be_passed_on_names_the_rank_that_is_gone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
