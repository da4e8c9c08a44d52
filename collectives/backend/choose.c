/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which backend carries an operation. All ranks must choose alike without asking each other, so
 * this looks at nothing but its arguments: what all ranks have agreed on.
 */
#include "backend/backends.h"
#include "backend/compose.h"

bool horon_backend_fits_host(const struct horon_signature *agreed)
{
    return agreed->memory != HORON_MEMORY_CUDA &&
           (!horon_verb_reduces(horon_verb_of(agreed)) ||
            horon_reduce_supported((horon_dtype_t)agreed->dtype, (horon_redop_t)agreed->redop));
}

bool horon_backend_is_kept_from(const struct horon_backend_terms *terms,
                                const struct horon_backend *backend,
                                const struct horon_signature *agreed)
{
    return terms->deterministic && horon_verb_reduces(horon_verb_of(agreed)) &&
           !(backend->caps & HORON_BACKEND_KEEPS_TREE);
}

static bool may_take(const struct horon_backend_terms *terms, const struct horon_backend *backend,
                     const struct horon_signature *agreed)
{
    if (horon_backend_is_kept_from(terms, backend, agreed))
        return false;
    return terms->in_order || !(backend->caps & HORON_BACKEND_IN_ORDER_ONLY);
}

static bool has_what_it_is_made_of(const struct horon_backend *backend, uint32_t version,
                                   const struct horon_signature *agreed)
{
    struct horon_signature made;
    return horon_signature_compose(agreed, &made) && backend->has(backend, version, &made);
}

struct horon_backend_choice horon_backend_choose(const struct horon_backend_terms *terms,
                                                 const struct horon_signature *agreed,
                                                 uint64_t bytes)
{
    struct horon_backend_choice choice = {.backend = -1};
    uint32_t passed_over = 0;
    int highest = 0;
    assert(terms->count <= HORON_BACKENDS_MAX);
    for (size_t i = 0; i < terms->count; i++) {
        const struct horon_backend *backend = terms->backends[i];
        const uint32_t version = terms->versions[i];
        if (!version)
            continue;
        const bool has = backend->has(backend, version, agreed);
        const bool composes = !has && has_what_it_is_made_of(backend, version, agreed);
        if ((!has && !composes) || !may_take(terms, backend, agreed)) {
            passed_over |= 1u << i;
            continue;
        }
        const int preference =
            backend->preference ? backend->preference(backend, agreed, bytes) : 0;
        if (choice.backend >= 0 && preference <= highest)
            continue;
        highest = preference;
        choice = (struct horon_backend_choice){
            .backend = (int)i, .composed = composes, .passed_over = passed_over};
    }
    if (choice.backend < 0)
        choice.passed_over = passed_over;
    return choice;
}
