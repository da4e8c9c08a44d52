/* SPDX-License-Identifier: Apache-2.0 */
/* See duo.h. The ranks meet through a file store in a fresh directory. */
#undef NDEBUG
#include "multi/duo.h"

#include "context_state.h"
#include "engine/engine_state.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

static const struct duo *latest; /* that was made */

static void hear(void *arg, horon_log_level_t level, const char *text)
{
    struct duo_heard *heard = arg;
    pthread_mutex_lock(&heard->lock);
    heard->lines++;
    if (level > heard->worst)
        heard->worst = level;
    size_t used = strlen(heard->all);
    snprintf(heard->all + used, sizeof heard->all - used, "%s\n", text);
    pthread_cond_broadcast(&heard->more);
    pthread_mutex_unlock(&heard->lock);
}

static struct timespec deadline_from_now(void)
{
    struct timespec end;
    clock_gettime(CLOCK_REALTIME, &end);
    end.tv_sec += DUO_DEADLINE_S;
    return end;
}

void duo_wait_to_hear(struct duo *duo, const char *word)
{
    struct duo_heard *heard = &duo->heard;
    struct timespec end = deadline_from_now();
    int late = 0;
    pthread_mutex_lock(&heard->lock);
    while (!strstr(heard->all, word) && !late)
        late = pthread_cond_timedwait(&heard->more, &heard->lock, &end);
    pthread_mutex_unlock(&heard->lock);
    if (late)
        fail_msg("'%s' was not logged, but: %s", word, heard->all);
}

static void *make_one(void *arg)
{
    struct duo_maker *maker = arg;
    horon_options_t options = HORON_OPTIONS_INIT;
    options.rank = maker->rank;
    options.size = 2;
    options.settings = maker->duo->settings;
    options.log_fn = hear;
    options.log_arg = &maker->duo->heard;
    maker->status = horon_context_create(&options, &maker->duo->ctx[maker->rank], maker->text,
                                         sizeof maker->text);
    return NULL;
}

void duo_make(struct duo *duo, const char *const *settings)
{
    int count = 0;
    memset(duo, 0, sizeof *duo);
    latest = duo;
    pthread_mutex_init(&duo->heard.lock, NULL);
    pthread_cond_init(&duo->heard.more, NULL);
    snprintf(duo->folder, sizeof duo->folder, "/tmp/horon-test-XXXXXX");
    assert_non_null(mkdtemp(duo->folder));
    snprintf(duo->store, sizeof duo->store, "STORE=file:%s", duo->folder);
    duo->settings[count++] = duo->store;
    duo->settings[count++] = "JOB_KEY=a key for this test alone";
    for (; settings && *settings; settings++) {
        assert_true(count < DUO_SETTINGS_MAX + 2);
        duo->settings[count++] = *settings;
    }
    for (int rank = 0; rank < 2; rank++) {
        duo->makers[rank].duo = duo;
        duo->makers[rank].rank = rank;
        assert_int_equal(
            pthread_create(&duo->makers[rank].thread, NULL, make_one, &duo->makers[rank]), 0);
    }
    for (int rank = 0; rank < 2; rank++) {
        pthread_join(duo->makers[rank].thread, NULL);
        if (duo->makers[rank].status != HORON_OK)
            fail_msg("rank %d: %s", rank, duo->makers[rank].text);
    }
}

void duo_end(struct duo *duo)
{
    char command[64];
    latest = NULL;
    for (int rank = 0; rank < 2; rank++)
        horon_context_destroy(duo->ctx[rank]);
    snprintf(command, sizeof command, "rm -rf %s", duo->folder);
    assert_int_equal(system(command), 0);
    pthread_mutex_destroy(&duo->heard.lock);
    pthread_cond_destroy(&duo->heard.more);
}

horon_descriptor_t duo_sum(const char *name, float *data)
{
    horon_descriptor_t desc = HORON_DESCRIPTOR_INIT;
    desc.name = name;
    desc.dtype = HORON_FLOAT32;
    desc.count = 1;
    desc.src = desc.dst = data;
    return desc;
}

horon_request_t *duo_submit(horon_context_t *ctx, const char *name, float *data)
{
    horon_request_t *request = NULL;
    horon_descriptor_t desc = duo_sum(name, data);
    if (horon_submit(ctx, &desc, &request) != HORON_OK)
        fail_msg("%s", horon_last_error(ctx));
    return request;
}

/* Which thread was to look, and for what? A wait that is never over is most often a wake-up that
 * was lost, and then this is all that is left of it. */
static void show_rank(const horon_context_t *ctx, int rank)
{
    const struct horon_rank_line *line = horon_host_line(&ctx->host, ctx->host.local_rank);
    print_message("rank %d: token %u, wake %x, wants %x, urgent %d, late bell %d, waiters %u, "
                  "links watched %d, posts %d, posted %u, landed %u\n",
                  rank, atomic_load(&ctx->token), atomic_load(&line->wake),
                  atomic_load(&line->wants), atomic_load(&line->urgent),
                  atomic_load(&ctx->late_bell.set), atomic_load(&ctx->waiters),
                  !atomic_load(&ctx->disarmed), horon_engine_has_post(ctx->engine),
                  atomic_load(&ctx->posted), atomic_load(&ctx->landed));
}

void duo_expect_end(horon_request_t *request, horon_status_t status)
{
    const horon_status_t ended =
        horon_wait(request, HORON_HOST_DONE, DUO_DEADLINE_S * (int64_t)1000);
    for (int rank = 0; rank < 2 && ended == HORON_ERR_TIMEOUT; rank++)
        if (latest && latest->ctx[rank])
            show_rank(latest->ctx[rank], rank);
    assert_int_equal(ended, status);
    horon_release(request);
}

int duo_socket(horon_context_t *ctx, int peer)
{
    const struct horon_link *link = horon_mux_link(ctx->engine->membership->mux_of[peer]);
    assert_non_null(link);
    return link->ops->descriptor(link);
}
