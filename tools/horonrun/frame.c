/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Frames between horonrun and an agent, and the one large message: what to run. Lengths are checked
 * before they allocate. Not here: descriptors (channel.c) and what the messages do (agent.c,
 * job.c).
 */
#include "frame.h"

#include "alloc.h"
#include "codec.h"
#include "hosts.h"

#include <signal.h>

horon_status_t horonrun_frame_peek(const char *bytes, size_t count, struct horonrun_frame *frame)
{
    if (count < HORONRUN_FRAME_HEAD_BYTES)
        return HORON_AGAIN;
    struct horon_reader in = horon_reader_over(bytes, count);
    uint32_t body_bytes = horon_read_u32(&in);
    uint8_t type = horon_read_u8(&in);
    if (body_bytes > HORONRUN_FRAME_BODY_MAX)
        return HORON_ERR_PROTO;
    if (count - HORONRUN_FRAME_HEAD_BYTES < body_bytes)
        return HORON_AGAIN;
    *frame = (struct horonrun_frame){.type = type,
                                     .body = bytes + HORONRUN_FRAME_HEAD_BYTES,
                                     .body_bytes = body_bytes,
                                     .bytes = HORONRUN_FRAME_HEAD_BYTES + body_bytes};
    return HORON_OK;
}

horon_status_t horonrun_frame_skip_greeting(const char *bytes, size_t count, size_t *skip_out)
{
    const size_t greeting_bytes = strlen(HORONRUN_GREETING);
    const char *found = count ? memmem(bytes, count, HORONRUN_GREETING, greeting_bytes) : NULL;
    if (found) {
        *skip_out = (size_t)(found - bytes) + greeting_bytes;
        return HORON_OK;
    }
    return count > HORONRUN_GREETING_SKIP_MAX ? HORON_ERR_PROTO : HORON_AGAIN;
}

bool horonrun_frame_append(struct horonrun_bytes *to, uint8_t type, const void *body, size_t bytes)
{
    uint8_t head[HORONRUN_FRAME_HEAD_BYTES];
    struct horon_writer out = horon_writer_over(head, sizeof head);
    horon_write_u32(&out, (uint32_t)bytes);
    horon_write_u8(&out, type);
    if (bytes > HORONRUN_FRAME_BODY_MAX || !horonrun_bytes_reserve(to, sizeof head + bytes))
        return false;
    return horonrun_bytes_append(to, head, sizeof head) && horonrun_bytes_append(to, body, bytes);
}

static bool put_u32(struct horonrun_bytes *to, uint32_t value)
{
    uint8_t raw[4];
    struct horon_writer out = horon_writer_over(raw, sizeof raw);
    horon_write_u32(&out, value);
    return horonrun_bytes_append(to, raw, sizeof raw);
}

static bool put_string(struct horonrun_bytes *to, const char *text)
{
    size_t bytes = strlen(text);
    return bytes <= HORONRUN_FRAME_BODY_MAX && put_u32(to, (uint32_t)bytes) &&
           horonrun_bytes_append(to, text, bytes);
}

static bool put_strings(struct horonrun_bytes *to, char *const *strings)
{
    uint32_t count = 0;
    while (strings[count])
        count++;
    bool ok = put_u32(to, count);
    for (uint32_t i = 0; i < count && ok; i++)
        ok = put_string(to, strings[i]);
    return ok;
}

bool horonrun_work_encode(const struct horonrun_work *work, struct horonrun_bytes *to)
{
    bool ok = put_u32(to, (uint32_t)work->hosts);
    for (int i = 0; i < work->hosts && ok; i++)
        ok = put_u32(to, (uint32_t)work->host_ranks[i]);
    return ok && put_u32(to, (uint32_t)work->host) && put_u32(to, work->remote) &&
           put_u32(to, (uint32_t)work->interrupt) && put_u32(to, (uint32_t)work->terminate) &&
           put_string(to, work->directory) && put_strings(to, work->command) &&
           put_strings(to, work->environment);
}

/* @return a copy, or NULL with in->ok telling whether memory was lacking or bytes */
static char *get_string(struct horon_reader *in)
{
    uint32_t bytes = horon_read_u32(in);
    const char *view = horon_read_view(in, bytes);
    if (!view || memchr(view, 0, bytes)) {
        in->ok = false;
        return NULL;
    }
    char *copy = horon_zalloc((size_t)bytes + 1, 1);
    if (copy)
        memcpy(copy, view, bytes);
    return copy;
}

static char **get_strings(struct horon_reader *in)
{
    uint32_t count = horon_read_u32(in);
    if (!in->ok || count > (in->limit - in->used) / 4) { /* each has a length of 4 bytes */
        in->ok = false;
        return NULL;
    }
    char **strings = horon_zalloc((size_t)count + 1, sizeof *strings);
    for (uint32_t i = 0; strings && i < count; i++) {
        strings[i] = get_string(in);
        if (!strings[i]) {
            horonrun_strings_free(strings);
            return NULL;
        }
    }
    return strings;
}

/* Takes no more ranks than there may be. */
static void get_hosts(struct horon_reader *in, struct horonrun_work *work)
{
    const uint32_t hosts = horon_read_u32(in);
    if (!in->ok || hosts > (in->limit - in->used) / 4) {
        in->ok = false;
        return;
    }
    work->hosts = (int)hosts;
    work->host_ranks = horon_zalloc((size_t)hosts + 1, sizeof *work->host_ranks);
    for (int i = 0; i < work->hosts && in->ok; i++) {
        const uint32_t ranks = horon_read_u32(in);
        if (ranks == 0 || ranks > HORONRUN_SLOTS_MAX ||
            (int)ranks > HORONRUN_RANKS_MAX - work->size) {
            in->ok = false;
            return;
        }
        if (work->host_ranks)
            work->host_ranks[i] = (int)ranks;
        work->size += (int)ranks;
    }
}

/* Where the agent's own host stands among them. */
static void take_place(struct horonrun_work *work)
{
    work->first_rank = 0;
    for (int i = 0; i < work->host; i++)
        work->first_rank += work->host_ranks[i];
    work->ranks = work->host_ranks[work->host];
}

horon_status_t horonrun_work_decode(struct horonrun_work *work, const char *body, size_t bytes)
{
    struct horon_reader in = horon_reader_over(body, bytes);
    *work = (struct horonrun_work){0};
    get_hosts(&in, work);
    const uint32_t host = horon_read_u32(&in);
    work->remote = horon_read_u32(&in) != 0;
    const uint32_t interrupt = horon_read_u32(&in), terminate = horon_read_u32(&in);
    work->directory = get_string(&in);
    work->command = in.ok ? get_strings(&in) : NULL;
    work->environment = in.ok ? get_strings(&in) : NULL;
    if (!horon_reader_finished(&in))
        return HORON_ERR_PROTO;
    if (!work->host_ranks || !work->directory || !work->command || !work->environment)
        return HORON_ERR_MEMORY;
    if (host >= (uint32_t)work->hosts || !work->command[0] || interrupt >= NSIG ||
        terminate >= NSIG)
        return HORON_ERR_PROTO;
    work->interrupt = (int)interrupt;
    work->terminate = (int)terminate;
    work->host = (int)host;
    take_place(work);
    return HORON_OK;
}

void horonrun_work_deinit(struct horonrun_work *work)
{
    horon_free(work->host_ranks);
    horon_free(work->directory);
    horonrun_strings_free(work->command);
    horonrun_strings_free(work->environment);
    *work = (struct horonrun_work){0};
}

bool horonrun_strings_add(char ***list, const char *text)
{
    size_t count = 0;
    while (*list && (*list)[count])
        count++;
    char *copy = horon_strdup(text);
    char **grown = copy ? horon_realloc(*list, (count + 2) * sizeof *grown) : NULL;
    if (!grown) {
        horon_free(copy);
        return false;
    }
    grown[count] = copy;
    grown[count + 1] = NULL;
    *list = grown;
    return true;
}

void horonrun_strings_free(char **strings)
{
    for (size_t i = 0; strings && strings[i]; i++) {
        explicit_bzero(strings[i], strlen(strings[i])); /* one may be the job key */
        horon_free(strings[i]);
    }
    horon_free(strings);
}
