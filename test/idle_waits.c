/* SPDX-License-Identifier: Apache-2.0 */
/* See idle_waits.h. The library's own calls come here, those of others do not. */
#include "idle_waits.h"

#include <linux/futex.h>
#include <sched.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <sys/syscall.h>
#include <unistd.h>

int __real_sched_yield(void);
int __wrap_sched_yield(void);
ssize_t __real_write(int fd, const void *bytes, size_t count);
ssize_t __wrap_write(int fd, const void *bytes, size_t count);
long __real_syscall(long number, ...);
long __wrap_syscall(long number, ...);

static _Thread_local struct {
    int left; /* idle looks; 0: none are counted */
    bool slept, busy;
    void (*enough)(void *arg);
    void *arg;
} waiter;

void idle_waits_count(int wanted, void (*enough)(void *arg), void *arg)
{
    waiter.left = wanted;
    waiter.slept = waiter.busy = false;
    waiter.enough = enough;
    waiter.arg = arg;
}

int __wrap_sched_yield(void)
{
    waiter.busy = true;
    return __real_sched_yield();
}

ssize_t __wrap_write(int fd, const void *bytes, size_t count) /* a bell is rung so */
{
    waiter.busy = true;
    return __real_write(fd, bytes, count);
}

static void note_sleep(void)
{
    const bool idle = waiter.slept && !waiter.busy;
    waiter.slept = true;
    waiter.busy = false;
    if (idle && waiter.left > 0 && --waiter.left == 0)
        waiter.enough(waiter.arg);
}

/* Takes as many values as a call may have, like the C library's, though fewer were passed. */
__attribute__((no_sanitize("address"))) long __wrap_syscall(long number, ...)
{
    long values[6];
    va_list list;
    va_start(list, number);
    for (int i = 0; i < 6; i++)
        values[i] = va_arg(list, long);
    va_end(list);
    if (number == SYS_futex && (values[1] & FUTEX_CMD_MASK) == FUTEX_WAIT)
        note_sleep();
    return __real_syscall(number, values[0], values[1], values[2], values[3], values[4], values[5]);
}
