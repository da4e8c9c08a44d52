/* SPDX-License-Identifier: Apache-2.0 */
/* The backends of this build, and those of a context from the first to open to the last to close.
 */
#include "backend/backends.h"

#include <stdio.h>
#include <string.h>

const struct horon_backend *const horon_backends[] = {&horon_backend_native, &horon_backend_mpi};
const size_t horon_backend_count = sizeof horon_backends / sizeof horon_backends[0];
const struct horon_backend *const horon_backends_among_gloo[] = {&horon_backend_gloo};

/* ---- which, and in what order ---------------------------------------------------------------- */

static bool is_there(const struct horon_backends *backends, const struct horon_backend *backend)
{
    for (size_t i = 0; i < backends->count; i++)
        if (backends->tables[i] == backend)
            return true;
    return false;
}

static void add(struct horon_backends *backends, const struct horon_backend *backend)
{
    assert(backends->count < HORON_BACKENDS_MAX);
    backends->tables[backends->count++] = backend;
}

static const struct horon_backend *find(const struct horon_backend *const *tables, size_t count,
                                        const char *name, size_t bytes)
{
    for (size_t i = 0; i < count; i++)
        if (strncmp(tables[i]->name, name, bytes) == 0 && !tables[i]->name[bytes])
            return tables[i];
    return NULL;
}

static void name(const struct horon_backend *const *tables, size_t count, const char *separator,
                 char *text, size_t text_bytes)
{
    text[0] = 0;
    for (size_t i = 0; i < count; i++)
        horon_text_add(text, text_bytes, separator, "%s", tables[i]->name);
}

void horon_backends_name(const struct horon_backends *backends, char *text, size_t text_bytes)
{
    name(backends->tables, backends->count, ",", text, text_bytes);
}

static horon_status_t refuse_unknown(const struct horon_backend *const *tables, size_t count,
                                     const char *word, size_t bytes, struct horon_error *error)
{
    char known[128];
    if (bytes == 0)
        return horon_error_set(error, HORON_ERR_CONFIG,
                               "HORON_BACKEND has an empty name: leave out the comma beside it");
    if (tables == horon_backends_among_gloo &&
        find(horon_backends, horon_backend_count, word, bytes))
        return horon_error_set(error, HORON_ERR_CONFIG,
                               "HORON_BACKEND names \"%.*s\", and among Gloo's ranks "
                               "(HORON_GLOO_STORE) there is no backend but gloo: leave one of the "
                               "two out",
                               (int)bytes, word);
    name(tables, count, ", ", known, sizeof known);
    return horon_error_set(error, HORON_ERR_CONFIG,
                           "HORON_BACKEND names \"%.*s\", which is no backend here: there are %s "
                           "(gloo with HORON_GLOO_STORE, and nothing else then)",
                           (int)bytes, word, known);
}

const char *horon_backends_order_among_gloo(const char *setting)
{
    return strcmp(setting, horon_backend_native.name) == 0 ? NULL : setting;
}

/* Without those that are usable everywhere a job could not even agree on what else it uses. */
horon_status_t horon_backends_order(struct horon_backends *backends,
                                    const struct horon_backend *const *tables, size_t count,
                                    const char *order, struct horon_error *error)
{
    assert(count <= HORON_BACKENDS_MAX);
    *backends = (struct horon_backends){.level = order ? HORON_LOG_WARN : HORON_LOG_INFO};
    for (const char *word = order; word; word = strchr(word, ',') ? strchr(word, ',') + 1 : NULL) {
        const size_t bytes = strcspn(word, ",");
        const struct horon_backend *backend = find(tables, count, word, bytes);
        if (!backend)
            return refuse_unknown(tables, count, word, bytes, error);
        if (is_there(backends, backend))
            return horon_error_set(error, HORON_ERR_CONFIG, "HORON_BACKEND names \"%s\" twice",
                                   backend->name);
        add(backends, backend);
    }
    for (size_t i = 0; i < count; i++) {
        const bool wanted = !order || (tables[i]->caps & HORON_BACKEND_EVERYWHERE);
        if (wanted && !is_there(backends, tables[i]))
            add(backends, tables[i]);
    }
    return HORON_OK;
}

static struct horon_backend_context *context_of(const struct horon_backends *backends,
                                                const struct horon_backend *backend)
{
    for (size_t i = 0; i < backends->count; i++)
        if (backends->tables[i] == backend)
            return backends->contexts[i];
    return NULL;
}

void horon_backends_unused(const struct horon_backends *backends, const struct horon_log *log,
                           const struct horon_backend *backend, const char *what, const char *why)
{
    struct horon_backend_context *context = context_of(backends, backend);
    char told[256];
    snprintf(told, sizeof told, "%s%s", what, why);
    if (context && strcmp(context->told, told) == 0)
        return;
    if (context)
        memcpy(context->told, told, sizeof told);
    HORON_LOG_AT(log, backends->level, "backend %s is not used: %s%s", backend->name, what, why);
}

bool horon_backends_gave_up(const struct horon_backends *backends)
{
    bool did = false;
    for (size_t i = 0; i < backends->count && !did; i++)
        did = backends->contexts[i] && backends->contexts[i]->gave_up;
    return did;
}

void horon_backends_passed_over(const struct horon_backends *backends, const struct horon_log *log,
                                const struct horon_backend *backend,
                                const struct horon_signature *agreed,
                                const struct horon_backend *by, const char *why)
{
    struct horon_backend_context *context = context_of(backends, backend);
    static_assert(HORON_VERB_COUNT <= 32, "a bit each");
    if (!context || context->passed_over >> agreed->verb & 1)
        return;
    context->passed_over |= 1u << agreed->verb;
    HORON_LOG_AT(log, backends->level, "backend %s does not carry %s of %s%s: %s does",
                 backend->name, horon_verb_of(agreed)->name,
                 horon_dtype_name((horon_dtype_t)agreed->dtype), why, by ? by->name : "none");
}

/* ---- beginning ------------------------------------------------------------------------------- */

horon_status_t horon_backends_prepare(const struct horon_backend *const *tables, size_t count,
                                      const struct horon_backend_settings *settings,
                                      struct horon_error *error)
{
    struct horon_backends wanted;
    struct horon_error why = {0};
    horon_status_t status = horon_backends_order(&wanted, tables, count, settings->order, error);
    for (size_t i = 0; i < wanted.count && status == HORON_OK; i++) {
        if (!wanted.tables[i]->prepare)
            continue;
        status = wanted.tables[i]->prepare(settings, &why);
        if (status != HORON_OK)
            horon_error_set(error, status, "backend %s: %s", wanted.tables[i]->name,
                            why.text[0] ? why.text : horon_status_text(status));
    }
    return status;
}

void horon_backends_give_up(const struct horon_backend *const *tables, size_t count,
                            const void *context, const struct horon_log *log)
{
    for (size_t i = 0; i < count; i++)
        if (tables[i]->give_up)
            tables[i]->give_up(context, log);
}

/* ---- opening --------------------------------------------------------------------------------- */

static horon_status_t open_one(struct horon_backends *backends, size_t index,
                               const struct horon_backend_settings *settings,
                               const struct horon_log *log, struct horon_error *error)
{
    const struct horon_backend *backend = backends->tables[index];
    struct horon_error why = {0};
    const horon_status_t status =
        backend->open(backend, settings, log, &backends->contexts[index], &why);
    assert(backend->launched_max >= 1);
    assert((backends->contexts[index] != NULL) == (status == HORON_OK));
    if (status == HORON_OK) {
        assert(backends->contexts[index]->backend == backend);
        assert(backends->contexts[index]->version >= 1);
        return HORON_OK;
    }
    if (!why.text[0])
        horon_error_set(&why, status, "%s", horon_status_text(status));
    if (status == HORON_ERR_MEMORY || status == HORON_ERR_CONFIG ||
        (backend->caps & HORON_BACKEND_EVERYWHERE)) {
        if (log && log->rank >= 0)
            horon_error_set(error, status, "rank %d (%s): backend %s: %s", log->rank, log->host,
                            backend->name, why.text);
        else
            horon_error_set(error, status, "backend %s: %s", backend->name, why.text);
        horon_error_blame(error, why.blame.cause, why.blame.rank, why.blame.other_rank);
        return status;
    }
    horon_backends_unused(backends, log, backend, "", why.text);
    return HORON_OK;
}

horon_status_t horon_backends_open(struct horon_backends *backends,
                                   const struct horon_backend *const *tables, size_t count,
                                   const struct horon_backend_settings *settings,
                                   const struct horon_log *log, struct horon_error *error)
{
    static const struct horon_backend_settings nothing = {.mpi_library = ""};
    settings = settings ? settings : &nothing;
    horon_status_t status = horon_backends_order(backends, tables, count, settings->order, error);
    for (size_t i = 0; i < backends->count && status == HORON_OK; i++)
        status = open_one(backends, i, settings, log, error);
    if (status != HORON_OK)
        horon_backends_close(backends, false);
    return status;
}

horon_status_t horon_backends_pick(const struct horon_backends *of, const char *order,
                                   struct horon_backends *picked, struct horon_error *error)
{
    struct horon_error why = {0};
    char known[128];
    if (horon_backends_order(picked, of->tables, of->count, order, &why) != HORON_OK) {
        horon_backends_name(of, known, sizeof known);
        return horon_error_set(error, HORON_ERR_INVALID,
                               "a process set cannot have the backends \"%.100s\": the setting "
                               "BACKEND gives the job %s, and each is named once",
                               order, known);
    }
    picked->level = of->level;
    for (size_t i = 0; i < picked->count; i++)
        for (size_t k = 0; k < of->count; k++)
            if (of->tables[k] == picked->tables[i])
                picked->contexts[i] = of->contexts[k];
    return HORON_OK;
}

void horon_backends_leave(struct horon_backends *backends, bool in_peace)
{
    for (size_t i = 0; i < backends->count && !backends->left; i++)
        if (backends->contexts[i] && backends->tables[i]->leave)
            backends->tables[i]->leave(backends->contexts[i], in_peace);
    backends->left = true;
}

void horon_backends_close(struct horon_backends *backends, bool in_peace)
{
    horon_backends_leave(backends, in_peace);
    for (size_t i = 0; i < backends->count; i++)
        backends->tables[i]->close(backends->contexts[i]);
    *backends = (struct horon_backends){0};
}

bool horon_backends_need_thread(const struct horon_backends *backends)
{
    for (size_t i = 0; i < backends->count; i++) {
        const struct horon_backend_context *context = backends->contexts[i];
        if (context && context->is_bound && pthread_equal(context->thread, pthread_self()))
            return true;
    }
    return false;
}

bool horon_backends_are_mixed(const struct horon_backends *backends)
{
    bool mixed = false;
    for (size_t i = 0; i < backends->count && !mixed; i++)
        mixed = backends->contexts[i] && backends->contexts[i]->is_mixed;
    return mixed;
}

size_t horon_backends_undelivered(const struct horon_backends *backends)
{
    size_t bytes = 0;
    for (size_t i = 0; i < backends->count; i++)
        if (backends->contexts[i] && backends->tables[i]->undelivered)
            bytes += backends->tables[i]->undelivered(backends->contexts[i]);
    return bytes;
}

void horon_backends_check(const struct horon_backends *backends)
{
    for (size_t i = 0; i < backends->count; i++)
        if (backends->contexts[i] && backends->tables[i]->check)
            backends->tables[i]->check(backends->contexts[i]);
}

bool horon_backends_in_order_only(const struct horon_backends *backends)
{
    bool only = true;
    for (size_t i = 0; i < backends->count && only; i++)
        only = backends->tables[i]->caps & HORON_BACKEND_IN_ORDER_ONLY;
    return only;
}

bool horon_backends_have(const struct horon_backends *backends,
                         const struct horon_signature *agreed)
{
    for (size_t i = 0; i < backends->count; i++) {
        const struct horon_backend_context *context = backends->contexts[i];
        if (context && context->backend->has(context->backend, context->version, agreed))
            return true;
    }
    return false;
}
