/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What backends there are, and what each would carry in a job whose ranks all find what this
 * process finds. Nothing is opened: MPI is not begun. The choice is the one that ranks make
 * (collectives/backend/choose.c), so there is no second list to keep.
 */
#include "carriers.h"

#include "backend/backends.h"
#include "config.h"
#include "engine/backends.h"
#include "found.h"
#include "machine.h"

#include <string.h>

static void print_backend(FILE *to, const char *name)
{
    struct horon_found found;
    horon_found_backend(&found, name);
    horon_info_row(to, name, "%s%s", found.yes ? "" : "no: ", found.text);
}

void horon_info_print_backends(FILE *to)
{
    for (size_t i = 0; i < horon_backend_count; i++)
        print_backend(to, horon_backends[i]->name);
    print_backend(to, horon_backends_among_gloo[0]->name);
    if (!horon_feature("nccl"))
        print_backend(to, "nccl");
}

static horon_status_t load(struct horon_config *config, const char *name, struct horon_error *error)
{
    enum horon_config_origin origin;
    return horon_config_load_row(config, horon_config_find(name, strlen(name)), &origin, error);
}

/* One line more if what is in order goes elsewhere. */
static void print_choices(FILE *to, struct horon_backend_terms *terms)
{
    char named[2048], in_order[2048];
    horon_backends_carry(terms, HORON_MEMORY_HOST, named, sizeof named);
    terms->in_order = true;
    horon_backends_carry(terms, HORON_MEMORY_HOST, in_order, sizeof in_order);
    const bool same = strcmp(named, in_order) == 0;
    horon_info_row(to, same ? "host memory" : "by name", "%s", named);
    if (!same)
        horon_info_row(to, "in order", "%s", in_order);
}

void horon_info_print_carriers(FILE *to)
{
    struct horon_config config = {0};
    struct horon_backends backends;
    struct horon_error error = {0};
    if (load(&config, "BACKEND", &error) != HORON_OK ||
        load(&config, "DETERMINISTIC", &error) != HORON_OK ||
        load(&config, "GLOO_STORE", &error) != HORON_OK ||
        horon_engine_order_backends(&config, &backends, &error) != HORON_OK) {
        horon_info_row(to, "host memory", "%s", error.text);
        return;
    }
    struct horon_backend_terms terms = {.backends = backends.tables,
                                        .count = backends.count,
                                        .deterministic = config.deterministic,
                                        .in_order = config.gloo_store[0]};
    for (size_t i = 0; i < backends.count; i++) {
        struct horon_found found;
        horon_found_backend(&found, backends.tables[i]->name);
        terms.versions[i] = found.yes;
    }
    print_choices(to, &terms);
    horon_info_row(to, "", "%s: send recv", config.gloo_store[0] ? "gloo" : "links");
    horon_info_row(to, "CUDA memory", "nothing: not in this horon");
}
