/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Surviving fork(). The child of a fork has the parent's memory but none of its threads; its copies
 * of the sockets would hide the parent's death from other hosts. So the child closes every
 * descriptor of every context at once and marks the contexts, and each later call fails with a
 * named error. A context stands in the list before it has its first socket: another thread may fork
 * while it joins, for as long as that takes.
 *
 * fork() knows no handle, so this needs a list of the process, as little else does (the stores of
 * boot/gloo/hash_store.c, and the MPI library). It is guarded by `lock`, which is held across the
 * fork so that the child sees a whole list. So is MPI's, which each context takes at its end:
 * before the list's, as a thread that loads the library has it for long.
 */
#include "context_state.h"

#include "backend/mpi_begin.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* guards the two below */
static struct horon_context *contexts;
static bool installed;

static void before_fork(void)
{
    horon_mpi_fork_hold();
    pthread_mutex_lock(&lock);
}

static void in_parent(void)
{
    pthread_mutex_unlock(&lock);
    horon_mpi_fork_release();
}

static void in_child(void)
{
    for (struct horon_context *ctx = contexts; ctx; ctx = ctx->fork_next) {
        horon_life_move(&ctx->life, HORON_LIFE_FORKED);
        horon_boot_close_in_child(&ctx->boot);
        horon_loop_close_in_child(ctx->loop);
        horon_late_bell_close(ctx);
        horon_poller_close_in_child(ctx->poller);
        horon_recording_close_in_child(ctx);
    }
    contexts = NULL;
    pthread_mutex_unlock(&lock);
    horon_mpi_fork_release();
}

static void install(void)
{
    installed = installed || pthread_atfork(before_fork, in_parent, in_child) == 0;
}

/* A program that has begun MPI may fork before it has a context, and make one in the child. Without
 * memory the first context does it. */
__attribute__((constructor)) static void install_early(void)
{
    install();
}

horon_status_t horon_fork_register(struct horon_context *ctx)
{
    pthread_mutex_lock(&lock);
    install();
    const horon_status_t status = installed ? HORON_OK : HORON_ERR_MEMORY;
    if (status == HORON_OK) {
        ctx->fork_next = contexts;
        contexts = ctx;
    }
    pthread_mutex_unlock(&lock);
    return status;
}

void horon_fork_hold(void)
{
    pthread_mutex_lock(&lock);
}

void horon_fork_release(void)
{
    pthread_mutex_unlock(&lock);
}

void horon_fork_unregister(struct horon_context *ctx)
{
    pthread_mutex_lock(&lock);
    for (struct horon_context **link = &contexts; *link; link = &(*link)->fork_next) {
        if (*link == ctx) {
            *link = ctx->fork_next;
            break;
        }
    }
    pthread_mutex_unlock(&lock);
}
