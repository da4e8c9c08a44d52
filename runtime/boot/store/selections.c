/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Jobs of some of the ranks of a launch. The server of a launcher has a further one for each, told
 * apart by mark and size, and hands it those that prove its mark. Which ranks of the launch they
 * are each of them says first (RANKS). What the launcher knows of its ranks is passed on by that;
 * until it is known such a job may need any rank, and hears of each that failed.
 */
#include "boot/store/server.h"

#include "alloc.h"
#include "boot/identity/selection.h"

/* Lists of ranks in one launch; they are kept, for ranks may join again. So many may be in any, and
 * in a larger one as many as it has ranks: each two may be a job, and be parted anew once. */
#define SELECTIONS_LEAST 256

static bool has_room(const struct horon_store_server *server)
{
    const int most = server->size > SELECTIONS_LEAST ? server->size : SELECTIONS_LEAST;
    return server->selection_count < most;
}

struct horon_store_server *horon_store_server_select(struct horon_store_server *server,
                                                     const struct horon_hello *hello)
{
    if (server->options.self.hello.rank >= 0 || hello->job == 0)
        return server;
    for (struct horon_store_server *selection = server->selections; selection;
         selection = selection->next)
        if (selection->options.self.hello.job == hello->job && selection->size == (int)hello->size)
            return selection;
    struct horon_store_server_options options = server->options;
    options.self.hello.size = hello->size;
    options.self.hello.job = hello->job;
    options.host_of = NULL; /* it knows ranks by the launch's numbers */
    struct horon_store_server *selection =
        has_room(server) ? horon_store_server_create(&options) : NULL;
    if (!selection)
        return NULL;
    selection->launch = server;
    selection->next = server->selections;
    server->selections = selection;
    server->selection_count++;
    return selection;
}

horon_status_t horon_store_selection_know(struct horon_store_server *selection, const char *list)
{
    const struct horon_store_server *launch = selection->launch;
    if (!launch || selection->places)
        return HORON_OK;
    const int size = launch->size;
    int *places = horon_alloc((size_t)size * sizeof *places);
    if (!places)
        return HORON_ERR_MEMORY;
    if (horon_ranks_parse(list, size, places) != selection->size) {
        horon_free(places);
        return HORON_ERR_PROTO;
    }
    selection->places = places;
    for (int rank = 0; rank < size; rank++)
        if (places[rank] >= 0)
            selection->ranks[places[rank]].end = launch->ranks[rank].end;
    horon_store_server_review(selection);
    return HORON_OK;
}

/* @return the number there of a rank of the launch; -1: it is none of them, or that is not known */
static int place_of(const struct horon_store_server *selection, int rank)
{
    const bool known = selection->places && rank >= 0 && rank < selection->launch->size;
    return known ? selection->places[rank] : -1;
}

static void fail_selection(struct horon_store_server *selection, const struct horon_error *why)
{
    struct horon_error theirs = *why;
    theirs.blame.rank = place_of(selection, why->blame.rank);
    horon_store_server_fail(selection, &theirs);
}

void horon_store_selections_ended(struct horon_store_server *server, int rank,
                                  const struct horon_error *why)
{
    for (struct horon_store_server *selection = server->selections; selection;
         selection = selection->next) {
        const int place = place_of(selection, rank);
        if (place >= 0)
            selection->ranks[place].end = server->ranks[rank].end;
        if (why && (place >= 0 || !selection->places))
            fail_selection(selection, why);
        horon_store_server_review(selection);
    }
}

void horon_store_selections_fail(struct horon_store_server *server, const struct horon_error *why)
{
    for (struct horon_store_server *selection = server->selections; selection;
         selection = selection->next)
        fail_selection(selection, why);
}
