/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Finds descendants in one pass over /proc and signals each through a pidfd, after a second look at
 * its start time: a number that was given to another process meanwhile is left alone. The tree is
 * closed because we are a subreaper; a process that forks while we look is found in the next round.
 */
#include "tree.h"

#include "alloc.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

struct process {
    pid_t pid, parent;
    unsigned long long started; /* clock ticks since boot */
    bool dead;                  /* a zombie: there is nothing left to signal */
    bool below;                 /* of us, and not spared */
};

struct processes {
    struct process *at;
    size_t count, limit;
};

void horonrun_tree_adopt(void)
{
    prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0);
}

/* Reads /proc/PID/stat. The name in parentheses may hold anything, so fields count from the last ).
 * */
static bool read_process(pid_t pid, struct process *process)
{
    char path[64], text[1024];
    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return false;
    ssize_t bytes = read(fd, text, sizeof text - 1);
    close(fd);
    if (bytes <= 0)
        return false;
    text[bytes] = 0;
    const char *field = strrchr(text, ')');
    if (!field || !field[1])
        return false;
    *process = (struct process){.pid = pid, .dead = field[2] == 'Z' || field[2] == 'X'};
    for (int number = 2; field && number <= 22; number++) {
        if (number == 4)
            process->parent = (pid_t)strtol(field, NULL, 10);
        if (number == 22)
            process->started = strtoull(field, NULL, 10);
        field = strchr(field + 1, ' ');
    }
    return true;
}

static bool add(struct processes *all, const struct process *process)
{
    if (all->count == all->limit) {
        size_t limit = all->limit ? 2 * all->limit : 256;
        struct process *at = horon_realloc(all->at, limit * sizeof *at);
        if (!at)
            return false;
        all->at = at;
        all->limit = limit;
    }
    all->at[all->count++] = *process;
    return true;
}

static void read_all(struct processes *all)
{
    DIR *directory = opendir("/proc");
    if (!directory)
        return;
    for (struct dirent *entry; (entry = readdir(directory));) {
        char *end;
        long pid = strtol(entry->d_name, &end, 10);
        struct process process;
        if (*end || pid <= 0 || !read_process((pid_t)pid, &process))
            continue;
        if (!add(all, &process))
            break;
    }
    closedir(directory);
}

static bool is_spared(pid_t pid, const pid_t *spared, size_t spared_count)
{
    for (size_t i = 0; i < spared_count; i++)
        if (spared[i] == pid)
            return true;
    return false;
}

static int compare_pid(const void *a, const void *b)
{
    pid_t left = ((const struct process *)a)->pid, right = ((const struct process *)b)->pid;
    return (left > right) - (left < right);
}

static bool parent_is_below(const struct processes *all, pid_t parent)
{
    struct process key = {.pid = parent};
    const struct process *found = bsearch(&key, all->at, all->count, sizeof key, compare_pid);
    return found && found->below;
}

/* Numbers wrap around, so a parent may stand behind its child: repeat until nothing changes. */
static void mark_below(struct processes *all, const pid_t *spared, size_t spared_count)
{
    const pid_t self = getpid();
    qsort(all->at, all->count, sizeof *all->at, compare_pid);
    for (bool changed = true; changed;) {
        changed = false;
        for (size_t i = 0; i < all->count; i++) {
            struct process *process = &all->at[i];
            if (process->below || is_spared(process->pid, spared, spared_count))
                continue;
            if (process->parent == self || parent_is_below(all, process->parent))
                process->below = changed = true;
        }
    }
}

static bool send_to(const struct process *process, int signo)
{
    int fd = (int)syscall(SYS_pidfd_open, process->pid, 0);
    if (fd < 0)
        return errno == ENOSYS && kill(process->pid, signo) == 0;
    struct process now;
    bool same = read_process(process->pid, &now) && now.started == process->started;
    bool sent = same && syscall(SYS_pidfd_send_signal, fd, signo, NULL, 0) == 0;
    close(fd);
    return sent;
}

int horonrun_tree_signal(int signo, const pid_t *spared, size_t spared_count, pid_t *pids,
                         size_t limit)
{
    struct processes all = {0};
    int sent = 0;
    read_all(&all);
    if (all.count)
        mark_below(&all, spared, spared_count);
    for (size_t i = 0; i < all.count; i++) {
        if (!all.at[i].below || all.at[i].dead || !send_to(&all.at[i], signo))
            continue;
        if (pids && (size_t)sent < limit)
            pids[sent] = all.at[i].pid;
        sent++;
    }
    horon_free(all.at);
    return sent;
}
