/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The key-value space of PMIx, which Open MPI's mpirun and Slurm have. Its library is found at run
 * time. What a process has put can be got by any other one that names it, once it is committed; a
 * request that comes before waits for it, and so nobody has to meet in a barrier.
 *
 * The library counts its users: an MPI of the same process may begin and end while this holds on to
 * it. After the last end nobody can begin again, so this one's comes when the process exits.
 *
 * Source: the PMIx standard, version 4.1; types as its header's, which have not changed since
 * version 3.
 */
#include "boot/identity/identity.h"
#include "boot/identity/space.h"

#include "alloc.h"
#include "clock.h"
#include "numbers.h"

#include <assert.h>
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define LIBRARY "libpmix.so.2"
#define HELD "horon.held"
#define PAUSE_NS 2000000 /* before the launcher is asked again */

/* ---- as in pmix_common.h -------------------------------------------------------------------- */

#define PMIX_SUCCESS 0
#define PMIX_TIMEOUT (-24)
#define PMIX_NOT_FOUND (-46)
#define PMIX_TYPE_BOOL 1
#define PMIX_TYPE_STRING 3
#define PMIX_TYPE_UINT32 14
#define PMIX_RANK_WILDCARD (UINT32_MAX - 1) /* what belongs to all of a job */
#define PMIX_JOB_SIZE "pmix.job.size"
#define PMIX_SCOPE_GLOBAL 3

struct pmix_proc {
    char space[256];
    uint32_t rank;
};

struct pmix_value {
    uint16_t type;
    union {
        bool flag;
        char *text;
        uint32_t number;
        void *largest[3];
    } is;
};

struct pmix_info {
    char key[512];
    uint32_t flags;
    struct pmix_value value;
};

typedef void (*pmix_got_fn)(int status, struct pmix_value *value, void *arg);

struct pmix {
    int (*init)(struct pmix_proc *own, struct pmix_info *info, size_t infos);
    int (*finalize)(const struct pmix_info *info, size_t infos);
    int (*put)(uint8_t scope, const char *key, struct pmix_value *value);
    int (*commit)(void);
    int (*get_later)(const struct pmix_proc *proc, const char *key, const struct pmix_info *info,
                     size_t infos, pmix_got_fn got, void *arg);
    const char *(*text)(int status);
};

/* @return false: it lacks one, which dlerror() names */
static bool find_calls(void *library, struct pmix *pmix)
{
    const struct {
        const char *name;
        void *call_out; /* a pointer to a function */
    } calls[] = {
        {"PMIx_Init", &pmix->init},        {"PMIx_Finalize", &pmix->finalize},
        {"PMIx_Put", &pmix->put},          {"PMIx_Commit", &pmix->commit},
        {"PMIx_Get_nb", &pmix->get_later}, {"PMIx_Error_string", &pmix->text},
    };
    for (size_t i = 0; i < sizeof calls / sizeof calls[0]; i++) {
        void *const address = dlsym(library, calls[i].name);
        if (!address)
            return false;
        memcpy(calls[i].call_out, &address, sizeof address);
    }
    return true;
}

static struct pmix calls_of(const struct horon_space *space)
{
    struct pmix pmix;
    const bool found = find_calls(space->library, &pmix);
    assert(found); /* open() has looked */
    (void)found;
    return pmix;
}

static horon_status_t check(const struct pmix *pmix, int code, const char *what,
                            struct horon_error *error)
{
    if (code == PMIX_SUCCESS)
        return HORON_OK;
    return horon_error_set(error, HORON_ERR_SYSTEM, "the launcher (PMIx), %s: %s", what,
                           pmix->text(code));
}

/* What is wanted of the launcher, and what to do without. */
struct want {
    const char *what, *other;
};

/* @return as open() */
static horon_status_t begin(struct horon_space *space, const struct want *want,
                            struct horon_error *error)
{
    struct pmix pmix;
    struct pmix_proc own;
    assert(!space->library);
    space->library = dlopen(LIBRARY, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (!space->library || !find_calls(space->library, &pmix))
        return horon_error_set(error, HORON_ERR_CONFIG,
                               "%s would be told by PMIx, and its library cannot be used (%s): "
                               "install it, or %s",
                               want->what, dlerror(), want->other);
    const int code = pmix.init(&own, NULL, 0);
    if (code != PMIX_SUCCESS) /* such as in a container that its sockets do not lead into */
        return horon_error_set(error, HORON_ERR_CONFIG,
                               "%s would be told by PMIx, and the launcher is out of reach (%s): "
                               "%s",
                               want->what, pmix.text(code), want->other);
    own.space[sizeof own.space - 1] = 0;
    snprintf(space->name, sizeof space->name, "%s", own.space);
    if (own.rank == (uint32_t)space->rank)
        return HORON_OK;
    (void)space->calls->end_at_exit(space, error); /* the library has begun */
    return horon_error_set(error, HORON_ERR_CONFIG,
                           "the launcher (PMIx) has this process as rank %u, and its variables as "
                           "rank %d: %s",
                           own.rank, space->rank, want->other);
}

static horon_status_t pmix_open(struct horon_space *space, struct horon_error *error)
{
    const struct want place = {.what = "where ranks meet that are on several hosts",
                               .other = "set MASTER_ADDR and MASTER_PORT, or "
                                        "HORON_STORE=tcp://HOST:PORT with an address of rank 0"};
    return begin(space, &place, error);
}

static horon_status_t pmix_put(struct horon_space *space, const char *key, const char *value,
                               struct horon_error *error)
{
    const struct pmix pmix = calls_of(space);
    char copy[HORON_SPACE_VALUE_BYTES];
    struct pmix_value text = {.type = PMIX_TYPE_STRING, .is.text = copy};
    assert(strlen(value) < sizeof copy);
    snprintf(copy, sizeof copy, "%s", value);
    const int code = pmix.put(PMIX_SCOPE_GLOBAL, key, &text); /* it keeps a copy of its own */
    explicit_bzero(copy, sizeof copy);
    return check(&pmix, code, "does not take what ranks meet by", error);
}

/* ---- getting -------------------------------------------------------------------------------- */

/* Of the thread that waits, and of the library's, which may answer after that one has gone. */
struct answer {
    pthread_mutex_t lock; /* guards all below */
    pthread_cond_t come;
    int users;
    bool there;
    int code;
    char value[HORON_SPACE_VALUE_BYTES];
    /* what is asked: the library reads it until it answers */
    struct pmix_proc whose;
    char key[sizeof((struct pmix_info *)NULL)->key];
    struct pmix_info only_here;
};

/* With its lock, which it releases. */
static void leave(struct answer *answer)
{
    assert(answer->users > 0);
    const bool last = --answer->users == 0;
    pthread_mutex_unlock(&answer->lock);
    if (!last)
        return;
    pthread_cond_destroy(&answer->come);
    pthread_mutex_destroy(&answer->lock);
    explicit_bzero(answer->value, sizeof answer->value);
    horon_free(answer);
}

/* Thread: the library's. */
static void on_got(int code, struct pmix_value *value, void *arg)
{
    struct answer *answer = arg;
    pthread_mutex_lock(&answer->lock);
    answer->there = true;
    answer->code = code;
    if (code == PMIX_SUCCESS && value && value->type == PMIX_TYPE_STRING && value->is.text &&
        strlen(value->is.text) < sizeof answer->value)
        snprintf(answer->value, sizeof answer->value, "%s", value->is.text);
    else if (code == PMIX_SUCCESS && value && value->type == PMIX_TYPE_UINT32)
        snprintf(answer->value, sizeof answer->value, "%u", value->is.number);
    pthread_cond_signal(&answer->come);
    leave(answer);
}

static struct answer *begin_answer(const struct horon_space *space, uint32_t rank, const char *key)
{
    pthread_condattr_t clock;
    struct answer *answer = horon_zalloc(1, sizeof *answer);
    if (!answer)
        return NULL;
    answer->users = 2;
    answer->whose.rank = rank;
    static_assert(sizeof answer->whose.space == sizeof space->name, "the name of a space fits");
    memcpy(answer->whose.space, space->name, sizeof space->name);
    assert(strlen(key) < sizeof answer->key);
    snprintf(answer->key, sizeof answer->key, "%s", key);
    answer->only_here = (struct pmix_info){.key = "pmix.optional",
                                           .value = {.type = PMIX_TYPE_BOOL, .is.flag = true}};
    pthread_mutex_init(&answer->lock, NULL);
    pthread_condattr_init(&clock);
    pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
    pthread_cond_init(&answer->come, &clock);
    pthread_condattr_destroy(&clock);
    return answer;
}

/* With its lock. @return OK, it has come | as horon_space_may_wait() */
static horon_status_t wait_for_answer(const struct horon_space *space, struct answer *answer,
                                      struct horon_error *error)
{
    while (!answer->there) {
        const horon_status_t status = horon_space_may_wait(space, error);
        if (status != HORON_OK)
            return status;
        uint64_t until = horon_clock_ns() + HORON_SPACE_SLICE_NS;
        until = until < space->deadline_ns ? until : space->deadline_ns;
        const struct timespec then = {.tv_sec = (time_t)(until / 1000000000u),
                                      .tv_nsec = (long)(until % 1000000000u)};
        pthread_cond_timedwait(&answer->come, &answer->lock, &then);
    }
    return HORON_OK;
}

/* @param here  only what this process knows is asked for
 * @return as get() of the space */
static horon_status_t ask(const struct horon_space *space, uint32_t rank, const char *key,
                          bool here, char value[HORON_SPACE_VALUE_BYTES], struct horon_error *error)
{
    const struct pmix pmix = calls_of(space);
    struct answer *answer = begin_answer(space, rank, key);
    if (!answer)
        return horon_error_set(error, HORON_ERR_MEMORY, "no memory to ask the launcher (PMIx)");
    horon_status_t status = HORON_OK;
    const int asked = pmix.get_later(&answer->whose, answer->key, here ? &answer->only_here : NULL,
                                     here, on_got, answer);
    pthread_mutex_lock(&answer->lock);
    if (asked != PMIX_SUCCESS) { /* and it does not answer any more */
        answer->users--;
        answer->code = asked;
    } else {
        status = wait_for_answer(space, answer, error);
    }
    if (status == HORON_OK && answer->code == PMIX_SUCCESS && !answer->value[0])
        status = horon_error_set(error, HORON_ERR_PROTO,
                                 "the launcher (PMIx) gives no text for %s of rank %u", key, rank);
    else if (status == HORON_OK && (answer->code == PMIX_NOT_FOUND || answer->code == PMIX_TIMEOUT))
        status = HORON_AGAIN;
    else if (status == HORON_OK)
        status = check(&pmix, answer->code, "asked for what it tells ranks", error);
    if (status == HORON_OK)
        memcpy(value, answer->value, sizeof answer->value);
    leave(answer);
    return status;
}

static horon_status_t pmix_get(struct horon_space *space, int rank, const char *key,
                               char value[HORON_SPACE_VALUE_BYTES], struct horon_error *error)
{
    return ask(space, (uint32_t)rank, key, true, value, error);
}

/* It mostly answers when there is something. Open MPI 4.1 says at once now and then that there is
 * nothing, if the other process has just begun, and after two seconds that they have passed. */
static horon_status_t pmix_await(struct horon_space *space, int rank, const char *key,
                                 char value[HORON_SPACE_VALUE_BYTES], struct horon_error *error)
{
    const struct pmix pmix = calls_of(space);
    const struct timespec pause = {.tv_nsec = PAUSE_NS};
    horon_status_t status = check(&pmix, pmix.commit(), "does not show it to others", error);
    while (status == HORON_OK) {
        const horon_status_t asked = ask(space, (uint32_t)rank, key, false, value, error);
        if (asked != HORON_AGAIN)
            return asked;
        status = horon_space_may_wait(space, error);
        nanosleep(&pause, NULL);
    }
    return status;
}

/* ---- the end -------------------------------------------------------------------------------- */

/* The first use of this process lasts until it exits. */
static void pmix_close(struct horon_space *space)
{
    (void)calls_of(space).finalize(NULL, 0);
}

struct ending {
    int (*finalize)(const struct pmix_info *info, size_t infos);
    pid_t process;
};

static void end_at_exit(int status, void *arg)
{
    struct ending *ending = arg;
    if (status == 0 && getpid() == ending->process)
        (void)ending->finalize(NULL, 0);
    horon_free(ending);
}

static horon_status_t pmix_end_at_exit(const struct horon_space *space, struct horon_error *error)
{
    struct ending *ending = horon_zalloc(1, sizeof *ending);
    if (ending) {
        *ending = (struct ending){.finalize = calls_of(space).finalize, .process = getpid()};
        if (on_exit(end_at_exit, ending) == 0)
            return HORON_OK;
    }
    horon_free(ending);
    return horon_error_set(error, HORON_ERR_MEMORY, "no memory for what the launcher is told");
}

/* ---- the size ------------------------------------------------------------------------------- */

/* A mark of this process's own says that an earlier call holds on to the space. */
horon_status_t horon_space_pmix_size(struct horon_space *space, int *size_out,
                                     struct horon_error *error)
{
    const struct want size = {.what = "how many ranks there are",
                              .other = "give PMIX_SIZE to all ranks, as prterun does with "
                                       "-x PMIX_SIZE=N"};
    char value[HORON_SPACE_VALUE_BYTES];
    struct horon_error ignored;
    horon_status_t status = begin(space, &size, error);
    if (status != HORON_OK)
        return status;
    const bool is_held = pmix_get(space, space->rank, HELD, value, &ignored) == HORON_OK;
    status = ask(space, PMIX_RANK_WILDCARD, PMIX_JOB_SIZE, true, value, error);
    if (status == HORON_ERR_TIMEOUT)
        horon_error_set(error, status, "the launcher does not answer (PMIx), asked for %s: %s",
                        size.what, size.other);
    if (status == HORON_AGAIN)
        snprintf(value, sizeof value, "nothing");
    if ((status == HORON_OK || status == HORON_AGAIN) &&
        !horon_number_parse(value, 1, HORON_BOOT_SIZE_MAX, size_out))
        status = horon_error_set(error, HORON_ERR_PROTO,
                                 "the launcher (PMIx) gives %s as " PMIX_JOB_SIZE ": %s", value,
                                 size.other);
    if (is_held)
        pmix_close(space);
    else if (pmix_end_at_exit(space, &ignored) == HORON_OK)
        (void)pmix_put(space, HELD, "1", &ignored);
    return status;
}

const struct horon_space_calls horon_space_pmix = {
    .name = "PMIx",
    .missing = HORON_SPACE_LAUNCHED_MISSING,
    .begins_at_open = true,
    .waits_for_one = true,
    .open = pmix_open,
    .put = pmix_put,
    .get = pmix_get,
    .await = pmix_await,
    .end_at_exit = pmix_end_at_exit,
    .close = pmix_close,
};
