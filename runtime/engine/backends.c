/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The options in the backends' own words. A job among Gloo's ranks has one backend: the option
 * BACKEND then stands as it does by default, or names that one.
 */
#include "engine/backends.h"

#include "codec.h"
#include "engine/backend_names.h"
#include "engine/messages.h"

/* What there is to choose from, and the order that is wanted of it. */
struct offer {
    const struct horon_backend *const *tables; /* [count] */
    size_t count;
    const char *order; /* NULL: as they stand */
};

static struct offer offer_of(bool among_gloo, const struct horon_config *config)
{
    if (among_gloo)
        return (struct offer){.tables = horon_backends_among_gloo,
                              .count = 1,
                              .order = horon_backends_order_among_gloo(config->backend)};
    return (struct offer){
        .tables = horon_backends, .count = horon_backend_count, .order = config->backend};
}

static horon_status_t order_of(bool among_gloo, const struct horon_config *config,
                               struct horon_backends *backends, struct horon_error *error)
{
    const struct offer offer = offer_of(among_gloo, config);
    return horon_backends_order(backends, offer.tables, offer.count, offer.order, error);
}

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
    return order_of(config->gloo_store[0], config, backends, error);
}

horon_status_t horon_engine_check_names(const struct horon_config *config,
                                        struct horon_error *error)
{
    struct horon_backends ignored;
    struct horon_error why;
    if (order_of(true, config, &ignored, &why) == HORON_OK)
        return HORON_OK;
    return horon_engine_order_backends(config, &ignored, error);
}

horon_status_t horon_engine_open_backends(struct horon_engine *engine, struct horon_error *error)
{
    const struct horon_engine_options *options = &engine->options;
    const struct offer offer = offer_of(options->gloo_era != 0, options->config);
    struct horon_backend_settings settings =
        horon_engine_backend_settings(options->config, &options->launcher, options->topology->size);
    settings.context = options->arg;
    settings.posted = options->posted;
    settings.landed = options->landed;
    settings.in_flight = &engine->in_flight;
    settings.gloo_links = options->links;
    settings.gloo_e1 = options->gloo_era == 1;
    settings.order = offer.order;
    if (options->backends)
        return horon_backends_open(&engine->backends, options->backends, options->backend_count,
                                   NULL, options->log, error);
    return horon_backends_open(&engine->backends, offer.tables, offer.count, &settings,
                               options->log, error);
}

void horon_engine_say_gave_up(struct horon_engine *engine)
{
    uint8_t bytes[16];
    struct horon_engine_team *job = engine->job;
    if (engine->said_gave_up || !horon_backends_gave_up(&engine->backends))
        return;
    engine->said_gave_up = true;
    struct horon_writer out =
        horon_team_begin_message(job->id, bytes, sizeof bytes, HORON_CONTROL_GAVE_UP);
    for (int rank = 0; rank < engine->options.topology->size; rank++)
        if (rank != engine->options.topology->rank)
            horon_team_send_control(job, rank, &out);
}
