/* SPDX-License-Identifier: Apache-2.0 */
/* What is done, is done for all ranks at once, when the last of them has come. */
#undef NDEBUG
#include "fake.h"

#include "log.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

static struct fake *fake_of(const struct horon_backend *backend)
{
    return (struct fake *)(uintptr_t)backend;
}

static struct fake_channel *channel_of(struct horon_backend_channel *base)
{
    return (struct fake_channel *)(void *)base;
}

static horon_status_t fake_open(const struct horon_backend *backend,
                                const struct horon_backend_settings *settings,
                                const struct horon_log *log,
                                struct horon_backend_context **context_out,
                                struct horon_error *error)
{
    struct fake *fake = fake_of(backend);
    (void)settings;
    if (fake->absent)
        return horon_error_set(error, HORON_ERR_UNSUPPORTED, "%s", fake->absent);
    struct fake_context *context = calloc(1, sizeof *context);
    assert(context);
    const uint32_t version = fake->versions[fake->opened++ % FAKE_RANKS_MAX];
    context->base = (struct horon_backend_context){
        .backend = backend, .version = version ? version : 1, .thread = pthread_self()};
    context->log = log;
    context->number = fake->opened - 1;
    *context_out = &context->base;
    return HORON_OK;
}

static void fake_leave(struct horon_backend_context *base, bool in_peace)
{
    const struct fake_context *context = (const struct fake_context *)(const void *)base;
    if (!in_peace)
        fake_of(base->backend)->disturbed |= 1u << context->number;
}

static void fake_close(struct horon_backend_context *base)
{
    if (!base)
        return;
    struct fake_context *context = (struct fake_context *)(void *)base;
    if (context->base.gave_up)
        HORON_LOG_INFO(context->log, "backend %s is left at work", base->backend->name);
    fake_of(base->backend)->closed++;
    free(context);
}

static bool fake_usable(const struct horon_backend_context *context, const struct horon_team *team,
                        char *why, size_t why_bytes)
{
    const struct fake *fake = fake_of(context->backend);
    if (!fake->refuses || (fake->refused && !(fake->refused >> team->rank & 1)))
        return true;
    snprintf(why, why_bytes, "%s", fake->refuses);
    return false;
}

static bool fake_has(const struct horon_backend *backend, uint32_t version,
                     const struct horon_signature *agreed)
{
    const struct fake *fake = fake_of(backend);
    assert(version >= 1);
    return !(fake->lacks >> agreed->verb & 1) && !(fake->lacks_dtype >> agreed->dtype & 1) &&
           !(fake->lacks_memory >> agreed->memory & 1) &&
           (version >= 2 || !(fake->since_2 >> agreed->verb & 1));
}

static int fake_preference(const struct horon_backend *backend,
                           const struct horon_signature *agreed, uint64_t bytes)
{
    const struct fake *fake = fake_of(backend);
    (void)agreed;
    return fake->prefers_from && bytes >= fake->prefers_from;
}

/* What the channel of a rank has to say: a word of its own, and one that rank 0 makes up for all.
 */
static uint64_t word_of(const struct fake_lane *lane, int rank, uint32_t word)
{
    if (word == 1)
        return rank == 0 ? (uint64_t)(uintptr_t)lane : 0;
    return 1000 + (uint64_t)rank;
}

static horon_status_t fake_create(struct horon_backend_context *context,
                                  const struct horon_channel_options *options,
                                  const struct horon_team *team, struct horon_host *host,
                                  int device, uint64_t *address,
                                  struct horon_backend_channel **channel_out)
{
    struct fake *fake = fake_of(context->backend);
    struct fake_lane *lane = &fake->lanes[options->channel % FAKE_LANES_MAX];
    (void)host;
    if (fake->making[team->rank]++ < fake->makes)
        return HORON_IN_PROGRESS;
    if (fake->unmade >> team->rank & 1)
        return HORON_ERR_SYSTEM;
    struct fake_channel *channel = calloc(1, sizeof *channel);
    assert(channel);
    assert(team->size <= FAKE_RANKS_MAX);
    assert(!lane->channels[team->rank]);
    channel->base.backend = context->backend;
    channel->context = (struct fake_context *)(void *)context;
    channel->fake = fake;
    channel->lane = lane;
    channel->team = team;
    channel->device = device;
    channel->bell = fake->rings ? eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK) : -1;
    channel->connected = context->backend->caps & HORON_BACKEND_EVERYWHERE;
    for (uint32_t word = 0; word < fake->base.address_words; word++) {
        assert(address[word] == 0);
        address[word] = word_of(lane, team->rank, word);
    }
    lane->channels[team->rank] = channel;
    lane->size = team->size;
    *channel_out = &channel->base;
    return HORON_OK;
}

/* All ranks' channels are there: each has said its address. */
static horon_status_t fake_connect(struct horon_backend_channel *base, const uint64_t *addresses,
                                   bool *moved_out, struct horon_error *error)
{
    struct fake_channel *channel = channel_of(base);
    const uint32_t words = channel->fake->base.address_words;
    assert(!channel->connected);
    assert(!channel->aborted);
    for (int rank = 0; rank < channel->team->size; rank++) {
        assert(channel->lane->channels[rank]);
        for (uint32_t word = 0; word < words; word++)
            assert(addresses[(uint32_t)rank * words + word] == word_of(channel->lane, rank, word));
    }
    channel->fake->connecting++;
    *moved_out = true;
    if (channel->turns++ < channel->fake->connects)
        return HORON_IN_PROGRESS;
    if (channel->fake->unconnected >> channel->team->rank & 1)
        return horon_error_set(error, HORON_ERR_SYSTEM, "no way to the other ranks");
    channel->turns = 0;
    channel->connected = true;
    return HORON_OK;
}

static struct fake_device *device_of(const struct fake *fake, int rank)
{
    return fake->devices ? &fake->devices[fake->device_of[rank]] : NULL;
}

/* Has this rank launched the operation, and is it at work on its device? */
static bool works(const struct fake *fake, const struct fake_lane *lane, int rank)
{
    const struct fake_channel *channel = lane->channels[rank];
    const struct fake_device *device = device_of(fake, rank);
    if (!channel || channel->aborted || channel->begun <= lane->done)
        return false;
    return !device || device->queue[0] == lane;
}

static void leave_device(struct fake_device *device)
{
    memmove(device->queue, device->queue + 1, sizeof device->queue - sizeof device->queue[0]);
    device->queued--;
}

static size_t bytes_of(const struct horon_operation *op)
{
    return (size_t)op->count * horon_dtype_bytes((horon_dtype_t)op->agreed.dtype);
}

static void gather(const struct horon_operation *op, unsigned char *out)
{
    const size_t element = horon_dtype_bytes((horon_dtype_t)op->agreed.dtype);
    for (size_t i = 0; i < op->part_count; i++) {
        const size_t bytes = (size_t)op->parts[i].count * element;
        if (bytes)
            memcpy(out, op->parts[i].src, bytes);
        out += bytes;
    }
}

static void scatter(const struct horon_operation *op, const unsigned char *in)
{
    const size_t element = horon_dtype_bytes((horon_dtype_t)op->agreed.dtype);
    for (size_t i = 0; i < op->part_count; i++) {
        const size_t bytes = (size_t)op->parts[i].count * element;
        if (bytes && op->parts[i].dst)
            memcpy(op->parts[i].dst, in, bytes);
        in += bytes;
    }
}

static void add(const struct horon_operation *op, const unsigned char *in, unsigned char *sum)
{
    const uint64_t *words = (const uint64_t *)(const void *)in;
    uint64_t *highest = (uint64_t *)(void *)sum;
    for (uint64_t i = 0; i < op->count; i++) {
        if (op->agreed.dtype == HORON_FLOAT32) {
            ((float *)(void *)sum)[i] += ((const float *)(const void *)in)[i];
        } else if (op->agreed.dtype == HORON_UINT64) { /* which ranks tell each other */
            assert(op->agreed.redop == HORON_MAX);
            highest[i] = words[i] > highest[i] ? words[i] : highest[i];
        } else {
            assert(op->agreed.dtype == HORON_UINT8);
            sum[i] = (unsigned char)(sum[i] + in[i]);
        }
    }
}

static void divide(const struct horon_operation *op, int size, unsigned char *sum)
{
    const float givers = (float)(op->givers ? op->givers : (uint32_t)size);
    assert(op->agreed.dtype == HORON_FLOAT32);
    for (uint64_t i = 0; i < op->count; i++)
        ((float *)(void *)sum)[i] /= givers;
}

/* The operation that all ranks have launched, at once for all. */
static void carry_out(struct fake *fake, struct fake_lane *lane)
{
    const uint64_t place = lane->done % FAKE_LAUNCHED_MAX;
    const struct horon_operation *first = lane->channels[0]->ops[place];
    const size_t bytes = bytes_of(first);
    unsigned char *in = calloc(1, bytes + 1), *sum = calloc(1, bytes + 1);
    assert(in && sum);
    for (int rank = 0; rank < lane->size; rank++) {
        const struct horon_operation *op = lane->channels[rank]->ops[place];
        assert(op->count == first->count);
        if (horon_verb_is_rooted(horon_verb_of(&op->agreed)) && op->agreed.root != rank)
            continue;
        gather(op, in);
        if (horon_verb_is_rooted(horon_verb_of(&op->agreed)))
            memcpy(sum, in, bytes);
        else
            add(op, in, sum);
    }
    if (horon_verb_reduces(horon_verb_of(&first->agreed)) && first->agreed.redop == HORON_AVERAGE)
        divide(first, lane->size, sum);
    for (int rank = 0; rank < lane->size; rank++) {
        scatter(lane->channels[rank]->ops[place], sum);
        if (device_of(fake, rank))
            leave_device(device_of(fake, rank));
        if (lane->channels[rank]->bell >= 0)
            assert(eventfd_write(lane->channels[rank]->bell, 1) == 0);
    }
    free(in);
    free(sum);
    lane->done++;
}

static void look(struct fake *fake, struct fake_lane *lane)
{
    for (;;) {
        for (int rank = 0; rank < lane->size; rank++)
            if (!works(fake, lane, rank))
                return;
        carry_out(fake, lane);
    }
}

static void fake_begin(struct horon_backend_channel *base, const struct horon_operation *op)
{
    struct fake_channel *channel = channel_of(base);
    struct fake *fake = channel->fake;
    struct fake_device *device = device_of(fake, channel->team->rank);
    const int launched = (int)(channel->begun - channel->ended) + 1;
    assert(channel->connected);
    assert(op->device == channel->device);
    assert(!channel->aborted);
    assert(launched <= fake->base.launched_max);
    if (launched > fake->begun_most)
        fake->begun_most = launched;
    channel->ops[channel->begun++ % FAKE_LAUNCHED_MAX] = op;
    if (device) {
        assert(device->queued < FAKE_LAUNCHED_MAX);
        device->queue[device->queued++] = channel->lane;
    }
}

/* Is it the root of an operation that needs nothing more of it? */
static bool has_given(const struct fake_channel *channel)
{
    const struct horon_operation *op = channel->ops[channel->ended % FAKE_LAUNCHED_MAX];
    return channel->fake->roots_end_first && horon_verb_is_rooted(horon_verb_of(&op->agreed)) &&
           op->agreed.root == channel->team->rank;
}

static horon_status_t fake_advance(struct horon_backend_channel *base, bool *moved_out,
                                   struct horon_error *error)
{
    struct fake_channel *channel = channel_of(base);
    struct fake *fake = channel->fake;
    assert(!channel->aborted);
    assert(channel->ended < channel->begun);
    if (fake->dies_on == channel->team->rank && fake->dies_at == channel->ended)
        return horon_error_set(error, HORON_ERR_SYSTEM, "the device of backend %s is gone",
                               fake->base.name);
    look(fake, channel->lane);
    if (channel->lane->done <= channel->ended && !has_given(channel))
        return HORON_IN_PROGRESS;
    *moved_out = true;
    if (channel->turns++ < fake->delay)
        return HORON_IN_PROGRESS;
    channel->turns = 0;
    channel->ended++;
    return HORON_OK;
}

static void fake_abort(struct horon_backend_channel *base)
{
    assert(!channel_of(base)->aborted);
    channel_of(base)->aborted = true;
    channel_of(base)->context->base.gave_up = true;
}

static bool fake_waits_for(struct horon_backend_channel *base, int rank)
{
    const struct fake_channel *channel = channel_of(base);
    const struct fake_channel *other = channel->lane->channels[rank];
    assert(!channel->aborted);
    if (!channel->connected)
        return rank != channel->team->rank && !other->connected;
    return rank != channel->team->rank && other->begun <= channel->ended;
}

static void fake_explain(const struct horon_backend_channel *base, char *text, size_t text_bytes)
{
    const struct fake_channel *channel = (const struct fake_channel *)(const void *)base;
    assert(!channel->aborted);
    if (!channel->connected)
        snprintf(text, text_bytes, "it connects");
    else
        snprintf(text, text_bytes, "%llu operations are done", (unsigned long long)channel->ended);
}

static bool fake_keeps_inputs(const struct horon_backend_channel *base)
{
    const struct fake_channel *channel = (const struct fake_channel *)(const void *)base;
    assert(!channel->aborted && channel->begun > channel->ended);
    return channel->lane->done <= channel->ended;
}

static int fake_descriptor(const struct horon_backend_channel *base)
{
    const struct fake_channel *channel = (const struct fake_channel *)(const void *)base;
    assert(!channel->aborted);
    return channel->bell;
}

static uint64_t fake_interval_ns(const struct horon_backend_channel *base)
{
    const struct fake_channel *channel = (const struct fake_channel *)(const void *)base;
    assert(!channel->aborted);
    return channel->bell < 0 ? FAKE_INTERVAL_NS : 0;
}

static void fake_destroy(struct horon_backend_channel *base)
{
    if (!base)
        return;
    struct fake_channel *channel = channel_of(base);
    channel->fake->unsettled += base->unsettled;
    channel->lane->channels[channel->team->rank] = NULL;
    if (channel->bell >= 0)
        close(channel->bell);
    free(channel);
}

void fake_init(struct fake *fake, const char *name, uint32_t caps)
{
    *fake = (struct fake){
        .base =
            {
                .name = name,
                .caps = caps,
                .launched_max = 1,
                .open = fake_open,
                .leave = fake_leave,
                .close = fake_close,
                .usable = fake_usable,
                .has = fake_has,
                .preference = fake_preference,
                .create = fake_create,
                .connect = fake_connect,
                .begin = fake_begin,
                .advance = fake_advance,
                .abort = fake_abort,
                .waits_for = fake_waits_for,
                .explain = fake_explain,
                .keeps_inputs = fake_keeps_inputs,
                .descriptor = fake_descriptor,
                .interval_ns = fake_interval_ns,
                .destroy = fake_destroy,
            },
        .lacks = ~(1u << HORON_ALLREDUCE | 1u << HORON_BROADCAST | 1u << HORON_BARRIER),
        .dies_on = -1,
    };
}
