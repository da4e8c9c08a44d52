/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The options in the backends' own words. A job among Gloo's ranks has one backend: the option
 * BACKEND then stands as it does by default, or names that one.
 */
#include "engine/backends.h"

#include "engine/backend_names.h"

struct horon_backend_settings horon_engine_backend_settings(const struct horon_config *config,
                                                            const struct horon_launcher *launcher,
                                                            int size)
{
    return (struct horon_backend_settings){
        .order = config->backend,
        .mpi_library = config->mpi_library,
        .mpi_serialized = config->mpi_serialized != 0,
        .launcher = *launcher,
        .launched = size,
        .gloo_native = config->gloo_native != 0,
    };
}

horon_status_t horon_engine_order_backends(const struct horon_config *config,
                                           struct horon_backends *backends,
                                           struct horon_error *error)
{
    const bool gloo = config->gloo_store[0];
    const char *setting = config->backend;
    return horon_backends_order(backends, gloo ? horon_backends_among_gloo : horon_backends,
                                gloo ? 1 : horon_backend_count,
                                gloo ? horon_backends_order_among_gloo(setting) : setting, error);
}

horon_status_t horon_engine_check_names(const struct horon_config *config,
                                        struct horon_error *error)
{
    struct horon_backends ignored;
    struct horon_error why;
    if (!config->gloo_store[0] && horon_backends_order(&ignored, horon_backends_among_gloo, 1,
                                                       config->backend, &why) == HORON_OK)
        return HORON_OK;
    return horon_engine_order_backends(config, &ignored, error);
}

horon_status_t horon_engine_open_backends(struct horon_engine *engine, struct horon_error *error)
{
    const struct horon_engine_options *options = &engine->options;
    struct horon_backend_settings settings =
        horon_engine_backend_settings(options->config, &options->launcher, options->topology->size);
    settings.posted = options->posted;
    settings.landed = options->landed;
    settings.in_flight = &engine->in_flight;
    settings.gloo_links = options->links;
    settings.gloo_e1 = options->gloo_era == 1;
    if (options->gloo_era)
        settings.order = horon_backends_order_among_gloo(settings.order);
    if (options->backends)
        return horon_backends_open(&engine->backends, options->backends, options->backend_count,
                                   NULL, options->log, error);
    return horon_backends_open(
        &engine->backends, options->gloo_era ? horon_backends_among_gloo : horon_backends,
        options->gloo_era ? 1 : horon_backend_count, &settings, options->log, error);
}
