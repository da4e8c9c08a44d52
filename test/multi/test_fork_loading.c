/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A process that forks while another thread of it loads MPI's library, which may take long: the
 * child has that thread's locks without the thread, and a context of its own all the same. The
 * library is one that is not there, and looked for until the fork has begun. What the fork does not
 * wait for may be anywhere in that thread, as in the memory of a sanitizer, whose locks no child
 * gets free: so it stands still from there on until there is the child.
 */
#undef NDEBUG
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <assert.h>
#include <dlfcn.h>
#include <horon/horon.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdbool.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHILD_S 30 /* only a child that hangs takes so long */

static const char file[] = "/nowhere/libmpi.so";

static sem_t loads, let, forked;
static _Thread_local bool forks, is_loader;
static pthread_mutex_t *_Atomic awaited; /* by the fork */

void *__real_dlopen(const char *name, int flags);
void *__wrap_dlopen(const char *name, int flags);
int __real_pthread_mutex_lock(pthread_mutex_t *lock);
int __wrap_pthread_mutex_lock(pthread_mutex_t *lock);
int __real_pthread_mutex_unlock(pthread_mutex_t *lock);
int __wrap_pthread_mutex_unlock(pthread_mutex_t *lock);

void *__wrap_dlopen(const char *name, int flags)
{
    if (name && strcmp(name, file) == 0) {
        sem_post(&loads);
        sem_wait(&let);
    }
    return __real_dlopen(name, flags);
}

/* What the fork waits for may be what the thread has that loads. */
int __wrap_pthread_mutex_lock(pthread_mutex_t *lock)
{
    if (forks && pthread_mutex_trylock(lock) == 0)
        return 0;
    if (forks) {
        awaited = lock;
        sem_post(&let);
    }
    return __real_pthread_mutex_lock(lock);
}

int __wrap_pthread_mutex_unlock(pthread_mutex_t *lock)
{
    const bool stands = is_loader && awaited == lock;
    const int status = __real_pthread_mutex_unlock(lock);
    if (stands) {
        awaited = NULL;
        sem_wait(&forked);
    }
    return status;
}

static void live(const char *const *settings)
{
    horon_context_t *ctx;
    horon_options_t options = HORON_OPTIONS_INIT;
    options.rank = 0;
    options.size = 1;
    options.settings = settings;
    assert(horon_context_create(&options, &ctx, NULL, 0) == HORON_OK);
    horon_context_destroy(ctx);
}

static void *load(void *arg)
{
    static const char *const settings[] = {"HORON_BACKEND=mpi,native",
                                           "HORON_MPI_LIBRARY=/nowhere/libmpi.so", NULL};
    (void)arg;
    is_loader = true;
    live(settings);
    return NULL;
}

static void test_fork_while_mpi_is_loaded_leaves_the_child_a_context(void **state)
{
    static const char *const settings[] = {"HORON_BACKEND=native", NULL};
    pthread_t thread;
    int status = -1;
    (void)state;
    assert_int_equal(pthread_create(&thread, NULL, load, NULL), 0);
    sem_wait(&loads);
    forks = true;
    const pid_t child = fork();
    forks = false;
    if (child == 0) {
        alarm(CHILD_S);
        live(settings);
        _exit(0);
    }
    sem_post(&forked);
    sem_post(&let);
    assert_true(child > 0);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    pthread_join(thread, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_fork_while_mpi_is_loaded_leaves_the_child_a_context),
    };
    sem_init(&loads, 0, 0);
    sem_init(&let, 0, 0);
    sem_init(&forked, 0, 0);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
