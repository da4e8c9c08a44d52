/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The backend that stands on Gloo's wire: this rank is one of a full mesh of pairs, whose others
 * may be Gloo's own, torch's, or horons. It carries a job that has no other links: then it is the
 * only backend, since a peer that is no horon can agree on nothing. It takes operations in order,
 * as Gloo's callers make them; the n-th has Gloo's tag n. And messages (gloo_messages.c).
 *
 * Whatever fails closes all pairs: so the others hear of it, as Gloo's ranks tell each other.
 * A thread that sleeps is woken by one epoll over all pairs.
 */
#include "backend/gloo_state.h"

#include "address.h"
#include "alloc.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#define EVENTS_A_LOOK 16

#define BIT(phase) (1u << HORON_GLOO_##phase)
void horon_gloo_move_phase(struct horon_gloo_channel *channel, enum horon_gloo_phase to)
{
    static const unsigned legal[] = {
        [HORON_GLOO_IDLE] = BIT(BEGUN),
        [HORON_GLOO_BEGUN] = BIT(LEARNS) | BIT(MOVES),
        [HORON_GLOO_LEARNS] = BIT(MOVES),
        [HORON_GLOO_MOVES] = BIT(IDLE),
    };
    assert(legal[channel->phase] & 1u << to);
    channel->phase = to;
}

static const struct horon_gloo_channel *seen(const struct horon_backend_channel *base)
{
    return (const struct horon_gloo_channel *)(const void *)base;
}

/* ---- the mesh -------------------------------------------------------------------------------- */

void horon_gloo_close_mesh(struct horon_gloo_mesh *mesh)
{
    for (int rank = 0; mesh->pairs && rank < mesh->size; rank++) {
        horon_gloo_pair_destroy(mesh->pairs[rank]);
        mesh->pairs[rank] = NULL;
    }
}

/* A pair that has ended would be ready for ever: what waits for it is told by its move, and among
 * many such events one that tells of a message would not be found. */
static horon_status_t watch(struct horon_gloo_mesh *mesh, int rank, struct horon_error *error)
{
    const struct horon_gloo_pair *pair = mesh->pairs[rank];
    struct horon_link *link = horon_gloo_pair_link(pair);
    uint32_t *watched = &mesh->watched[rank];
    struct epoll_event event = {.data.u32 = (uint32_t)rank};
    if (!horon_gloo_pair_end(pair))
        event.events = EPOLLIN | (horon_gloo_pair_wants_room(pair) ? EPOLLOUT : 0);
    if (event.events == *watched)
        return HORON_OK;
    const int changed = event.events ? EPOLL_CTL_MOD : EPOLL_CTL_DEL;
    if (epoll_ctl(mesh->epoll_fd, *watched ? changed : EPOLL_CTL_ADD, link->ops->descriptor(link),
                  &event) != 0)
        return horon_error_set_errno(error, HORON_ERR_SYSTEM, errno,
                                     "a connection cannot be watched");
    *watched = event.events;
    return HORON_OK;
}

/* @param why  a predicate about the peer @p name, whose number in the job is @p rank */
static horon_status_t blame(const char *name, int rank, const struct horon_error *why,
                            struct horon_error *error)
{
    const char *what = why->text[0] ? why->text : "is gone";
    if (why->blame.cause == HORON_CAUSE_DIED)
        what = "ended the connection (it has left the job, exited, or was killed: Gloo's ranks do "
               "not say which)";
    horon_error_set(error, why->status, "%s %s", name, what);
    horon_error_blame(error, why->blame.cause, rank, -1);
    return why->status;
}

/* There is no team yet that would name a rank, so it is called as it will be. */
static horon_status_t blame_unnamed(struct horon_gloo_mesh *mesh, int rank,
                                    const struct horon_error *why, struct horon_error *error)
{
    struct horon_link *link = horon_gloo_pair_link(mesh->pairs[rank]);
    char at[HORON_ADDRESS_TEXT_BYTES], name[HORON_ADDRESS_TEXT_BYTES + 32];
    snprintf(name, sizeof name, "rank %d (%s)", rank,
             horon_address_end_text(link->ops->descriptor(link), true, at));
    return blame(name, rank, why, error);
}

static horon_status_t open_pair(struct horon_gloo_mesh *mesh, int rank, struct horon_link **link,
                                bool native, struct horon_error *error)
{
    struct horon_error why = {0};
    assert(!mesh->pairs[rank]);
    if (!*link)
        return HORON_OK; /* this rank */
    horon_status_t status = horon_gloo_pair_create(*link, native, &mesh->pairs[rank]);
    if (status != HORON_OK)
        return horon_error_set(error, status, "no memory for a pair");
    *link = NULL; /* the pair's */
    bool moved = false;
    status = horon_gloo_pair_move(mesh->pairs[rank], &moved, &why);
    return status == HORON_OK ? watch(mesh, rank, error) : blame_unnamed(mesh, rank, &why, error);
}

static horon_status_t open_mesh(struct horon_gloo_mesh *mesh,
                                const struct horon_backend_settings *settings,
                                struct horon_error *error)
{
    const int size = settings->launched;
    horon_status_t status = HORON_OK;
    assert(size >= 1);
    mesh->size = size;
    mesh->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    mesh->pairs = horon_zalloc((size_t)size, sizeof *mesh->pairs);
    mesh->watched = horon_zalloc((size_t)size, sizeof *mesh->watched);
    if (!mesh->pairs || !mesh->watched)
        return HORON_ERR_MEMORY;
    if (mesh->epoll_fd < 0)
        return horon_error_set_errno(error, HORON_ERR_SYSTEM, errno,
                                     "no descriptor to watch connections with");
    for (int rank = 0; rank < size && status == HORON_OK; rank++)
        status = open_pair(mesh, rank, &settings->gloo_links[rank], settings->gloo_native, error);
    return status;
}

horon_status_t horon_gloo_lost(const struct horon_gloo_channel *channel, int rank,
                               const struct horon_error *why, struct horon_error *error)
{
    return blame(channel->team->rank_names[rank], horon_team_job_rank(channel->team, rank), why,
                 error);
}

horon_status_t horon_gloo_mesh_move(struct horon_gloo_channel *channel, int rank, bool *moved_out,
                                    struct horon_error *error)
{
    struct horon_gloo_mesh *mesh = &channel->context->mesh;
    struct horon_error why;
    assert(rank >= 0);
    assert(rank < mesh->size);
    assert(mesh->pairs[rank]); /* a mesh that was closed watches nothing */
    horon_error_clear(&why);
    horon_status_t status = horon_gloo_pair_move(mesh->pairs[rank], moved_out, &why);
    if (status != HORON_OK)
        return horon_gloo_lost(channel, rank, &why, error);
    channel->context->base.is_mixed |= horon_gloo_pair_is_foreign(mesh->pairs[rank]);
    return watch(mesh, rank, error);
}

horon_status_t horon_gloo_look(struct horon_gloo_channel *channel, bool *moved_out,
                               struct horon_error *error)
{
    struct epoll_event events[EVENTS_A_LOOK];
    const struct horon_gloo_mesh *mesh = &channel->context->mesh;
    horon_status_t status = HORON_OK;
    for (int rank = 0; mesh->silent && rank < mesh->size && status == HORON_OK; rank++)
        if (mesh->pairs[rank] && horon_gloo_pair_end(mesh->pairs[rank])) /* no socket tells of it */
            status = horon_gloo_mesh_move(channel, rank, moved_out, error);
    for (int left = mesh->size; left > 0 && status == HORON_OK; left -= EVENTS_A_LOOK) {
        const int count = epoll_wait(mesh->epoll_fd, events, EVENTS_A_LOOK, 0);
        for (int i = 0; i < count && status == HORON_OK; i++)
            status = horon_gloo_mesh_move(channel, (int)events[i].data.u32, moved_out, error);
        if (count < EVENTS_A_LOOK || *moved_out) /* then there is another look */
            break;
    }
    return status;
}

horon_status_t horon_gloo_differs(const struct horon_gloo_channel *channel, int rank,
                                  uint64_t bytes, uint64_t expected, struct horon_error *error)
{
    horon_error_set(error, HORON_ERR_MISMATCH,
                    "%s sent %llu bytes in %s where %s expects %llu: all ranks must call the same "
                    "operations in the same order, with the same sizes",
                    channel->team->rank_names[rank], (unsigned long long)bytes,
                    horon_verb_name((horon_verb_t)channel->op->agreed.verb),
                    channel->team->rank_names[channel->team->rank], (unsigned long long)expected);
    horon_error_blame_both(error, HORON_CAUSE_ORDER,
                           horon_team_job_rank(channel->team, channel->team->rank),
                           horon_team_job_rank(channel->team, rank));
    return HORON_ERR_MISMATCH;
}

/* ---- of a context ---------------------------------------------------------------------------- */

/* By their connections others hear of it. */
static void gloo_leave(struct horon_backend_context *base, bool in_peace)
{
    (void)in_peace;
    horon_gloo_close_mesh(&((struct horon_gloo_context *)(void *)base)->mesh);
}

static void gloo_close(struct horon_backend_context *base)
{
    struct horon_gloo_context *context = (struct horon_gloo_context *)(void *)base;
    if (!context)
        return;
    horon_gloo_close_mesh(&context->mesh);
    if (context->mesh.epoll_fd >= 0)
        close(context->mesh.epoll_fd);
    horon_free(context->mesh.pairs);
    horon_free(context->mesh.watched);
    horon_free(context);
}

/* A peer may lie behind: what went to it eagerly is in this system still, or in its socket. */
static size_t gloo_undelivered(struct horon_backend_context *base)
{
    const struct horon_gloo_mesh *mesh = &((struct horon_gloo_context *)(void *)base)->mesh;
    size_t left = 0;
    for (int rank = 0; rank < mesh->size; rank++) {
        struct horon_error unheard = {0}; /* its end stands in the pair */
        bool moved = false;
        if (!mesh->pairs[rank])
            continue;
        (void)horon_gloo_pair_move(mesh->pairs[rank], &moved, &unheard);
        left += horon_gloo_pair_undelivered(mesh->pairs[rank]);
    }
    return left;
}

static void gloo_check(struct horon_backend_context *base)
{
    struct horon_gloo_mesh *mesh = &((struct horon_gloo_context *)(void *)base)->mesh;
    for (int rank = 0; rank < mesh->size; rank++)
        if (mesh->pairs[rank] && horon_gloo_pair_check(mesh->pairs[rank]))
            mesh->silent = true;
}

static horon_status_t gloo_open(const struct horon_backend *backend,
                                const struct horon_backend_settings *settings,
                                const struct horon_log *log,
                                struct horon_backend_context **context_out,
                                struct horon_error *error)
{
    (void)log;
    if (!settings->gloo_links)
        return horon_error_set(error, HORON_ERR_UNSUPPORTED, "HORON_GLOO_STORE is not set");
    struct horon_gloo_context *context = horon_zalloc(1, sizeof *context);
    if (!context)
        return HORON_ERR_MEMORY;
    context->base = (struct horon_backend_context){.backend = backend, .version = 1};
    context->e1 = settings->gloo_e1;
    const horon_status_t status = open_mesh(&context->mesh, settings, error);
    if (status == HORON_OK)
        *context_out = &context->base;
    else
        gloo_close(&context->base);
    return status;
}

/* ---- the choice ------------------------------------------------------------------------------ */

static bool gloo_usable(const struct horon_backend_context *base, const struct horon_team *team,
                        char *why, size_t why_bytes)
{
    (void)why, (void)why_bytes;
    return ((const struct horon_gloo_context *)(const void *)base)->mesh.size == team->size;
}

/* Of which gloo_run.c has code. */
static const bool verbs[HORON_VERB_COUNT] = {
    [HORON_ALLREDUCE] = true, [HORON_BROADCAST] = true,     [HORON_ALLGATHER] = true,
    [HORON_BARRIER] = true,   [HORON_ALLTOALL] = true,      [HORON_GATHER] = true,
    [HORON_SCATTER] = true,   [HORON_REDUCESCATTER] = true, [HORON_REDUCE] = true};

static bool gloo_has(const struct horon_backend *backend, uint32_t version,
                     const struct horon_signature *agreed)
{
    (void)backend, (void)version;
    return verbs[agreed->verb] && horon_backend_fits_host(agreed);
}

/* ---- of a lane ------------------------------------------------------------------------------- */

static void gloo_destroy(struct horon_backend_channel *base)
{
    struct horon_gloo_channel *channel = horon_gloo_channel_of(base);
    if (!channel)
        return;
    if (channel->phase != HORON_GLOO_IDLE || channel->carried) /* pairs know its messages */
        horon_gloo_close_mesh(&channel->context->mesh);
    horon_gloo_forget_messages(channel);
    horon_free(channel->rows);
    horon_free(channel->give_at);
    horon_free(channel->flights);
    horon_free(channel->work.at);
    horon_free(channel->two.at);
    horon_free(channel);
}

static horon_status_t gloo_create(struct horon_backend_context *base,
                                  const struct horon_channel_options *options,
                                  const struct horon_team *team, struct horon_host *host,
                                  int device, uint64_t *address,
                                  struct horon_backend_channel **channel_out)
{
    struct horon_gloo_context *context = (struct horon_gloo_context *)(void *)base;
    const size_t size = (size_t)team->size;
    struct horon_gloo_channel *channel = horon_zalloc(1, sizeof *channel);
    (void)options, (void)host, (void)device, (void)address;
    assert(context->mesh.size == team->size); /* it is usable */
    if (!channel)
        return HORON_ERR_MEMORY;
    channel->base.backend = base->backend;
    channel->context = context;
    channel->team = team;
    channel->last_carried = &channel->carried;
    channel->rows = horon_zalloc(size, sizeof *channel->rows);
    channel->give_at = horon_zalloc(2 * (size + 1), sizeof *channel->give_at);
    channel->flights = horon_zalloc(size + 1, sizeof *channel->flights);
    if (!channel->rows || !channel->give_at || !channel->flights) {
        gloo_destroy(&channel->base);
        return HORON_ERR_MEMORY;
    }
    channel->take_at = channel->give_at + size + 1;
    channel->has_descriptor = !context->watched;
    context->watched = true;
    *channel_out = &channel->base;
    return HORON_OK;
}

static horon_status_t gloo_connect(struct horon_backend_channel *base, const uint64_t *addresses,
                                   bool *moved_out, struct horon_error *error)
{
    (void)base, (void)addresses, (void)moved_out, (void)error;
    return HORON_OK; /* the mesh was connected before the context was there */
}

static void gloo_begin(struct horon_backend_channel *base, const struct horon_operation *op)
{
    struct horon_gloo_channel *channel = horon_gloo_channel_of(base);
    horon_gloo_move_phase(channel, HORON_GLOO_BEGUN);
    channel->op = op;
    channel->element_bytes = horon_dtype_bytes((horon_dtype_t)op->agreed.dtype);
    channel->tag++;
    channel->plan.steps = 0;
}

static horon_status_t gloo_advance(struct horon_backend_channel *base, bool *moved_out,
                                   struct horon_error *error)
{
    struct horon_gloo_channel *channel = horon_gloo_channel_of(base);
    horon_status_t status = HORON_OK;
    assert(channel->phase != HORON_GLOO_IDLE);
    if (channel->phase != HORON_GLOO_BEGUN)
        status = horon_gloo_look(channel, moved_out, error);
    if (status == HORON_OK)
        status = horon_gloo_run(channel, moved_out, error);
    if (status == HORON_OK)
        horon_gloo_move_phase(channel, HORON_GLOO_IDLE);
    return status;
}

/* Nobody touches the operation's memory any more, and its other ranks hear that this one has given
 * up. */
static void gloo_abort(struct horon_backend_channel *base)
{
    horon_gloo_close_mesh(&horon_gloo_channel_of(base)->context->mesh);
}

static bool gloo_waits_for(struct horon_backend_channel *base, int rank)
{
    return horon_gloo_awaits(horon_gloo_channel_of(base), rank);
}

static void gloo_explain(const struct horon_backend_channel *base, char *text, size_t text_bytes)
{
    const struct horon_gloo_channel *channel = seen(base);
    text[0] = 0;
    if (channel->phase == HORON_GLOO_LEARNS)
        snprintf(text, text_bytes, "ranks tell by Gloo how much they give");
    else if (channel->phase == HORON_GLOO_MOVES)
        snprintf(text, text_bytes, "%llu of %llu steps among Gloo's ranks are done",
                 (unsigned long long)channel->over, (unsigned long long)channel->plan.steps);
}

/* In place the plan works on memory of the channel. */
static bool gloo_keeps_inputs(const struct horon_backend_channel *base)
{
    (void)base;
    return true;
}

static int gloo_descriptor(const struct horon_backend_channel *base)
{
    return seen(base)->has_descriptor ? seen(base)->context->mesh.epoll_fd : -1;
}

static uint64_t gloo_interval_ns(const struct horon_backend_channel *base)
{
    (void)base;
    return 0;
}

const struct horon_backend horon_backend_gloo = {
    .name = "gloo",
    .caps = HORON_BACKEND_ANY_THREAD | HORON_BACKEND_EVERYWHERE | HORON_BACKEND_IN_ORDER_ONLY,
    .launched_max = 1,
    .messages = &horon_gloo_messages,
    .open = gloo_open,
    .leave = gloo_leave,
    .close = gloo_close,
    .undelivered = gloo_undelivered,
    .check = gloo_check,
    .usable = gloo_usable,
    .has = gloo_has,
    .create = gloo_create,
    .connect = gloo_connect,
    .begin = gloo_begin,
    .advance = gloo_advance,
    .abort = gloo_abort,
    .waits_for = gloo_waits_for,
    .explain = gloo_explain,
    .keeps_inputs = gloo_keeps_inputs,
    .descriptor = gloo_descriptor,
    .interval_ns = gloo_interval_ns,
    .destroy = gloo_destroy,
};
