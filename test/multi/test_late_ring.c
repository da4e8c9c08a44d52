/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A ring between two ranks of a host that is made after joining, of which one cannot take the
 * other's half: it is out of descriptors. The other one has the link by then.
 */
#undef NDEBUG
#include "multi/job.h"

#include <dlfcn.h>
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

/* As the kernel does where a process has as many descriptors as it may. */
ssize_t recvmsg(int fd, struct msghdr *message, int flags)
{
    ssize_t (*real)(int, struct msghdr *, int);
    *(void **)&real = dlsym(RTLD_NEXT, "recvmsg");
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
    sem_t *failed =
        mmap(NULL, sizeof *failed, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_ptr_not_equal(failed, MAP_FAILED);
    assert_int_equal(sem_init(failed, 1, 0), 0);
    job_run(3, NULL, lose_half, failed);
    munmap(failed, sizeof *failed);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ring_of_which_half_is_lost_fails_the_job),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
