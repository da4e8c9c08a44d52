/* SPDX-License-Identifier: Apache-2.0 */
/* The backends of this build, and those of a context from the first to open to the last to close.
 */
#include "backend/backend.h"
#include "log.h"

const struct horon_backend *const horon_backends[] = {&horon_backend_native};
const size_t horon_backend_count = sizeof horon_backends / sizeof horon_backends[0];

horon_status_t horon_backends_open(struct horon_backends *backends,
                                   const struct horon_backend *const *tables, size_t count,
                                   const struct horon_log *log, struct horon_error *error)
{
    assert(count <= HORON_BACKENDS_MAX);
    *backends = (struct horon_backends){.tables = tables, .count = count};
    for (size_t i = 0; i < count; i++) {
        const struct horon_backend *backend = tables[i];
        struct horon_error why = {0};
        const horon_status_t status = backend->open(backend, log, &backends->contexts[i], &why);
        assert(backend->launched_max >= 1);
        assert((backends->contexts[i] != NULL) == (status == HORON_OK));
        if (status == HORON_OK) {
            assert(backends->contexts[i]->backend == backend);
            assert(backends->contexts[i]->version >= 1);
            continue;
        }
        if (!why.text[0])
            horon_error_set(&why, status, "%s", horon_status_text(status));
        if (status == HORON_ERR_MEMORY || (backend->caps & HORON_BACKEND_EVERYWHERE)) {
            horon_backends_close(backends);
            return horon_error_set(error, status, "backend %s: %s", backend->name, why.text);
        }
        HORON_LOG_INFO(log, "backend %s is not used: %s", backend->name, why.text);
    }
    return HORON_OK;
}

void horon_backends_close(struct horon_backends *backends)
{
    for (size_t i = 0; i < backends->count; i++)
        backends->tables[i]->close(backends->contexts[i]);
    *backends = (struct horon_backends){0};
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
