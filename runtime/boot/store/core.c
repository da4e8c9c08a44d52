/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Each rank has a counter of the sessions it joined; its k-th connection joins session k. A session
 * is a row of slots; a round is complete when every slot holds a blob, and its answer is one buffer
 * that all members share while they drain it at their own pace. A member waits from its PUT to the
 * ALL, so at most one answer and one FAIL are on their way to it.
 *
 * A session is over when a round is complete that all said would be the last. Before that it fails
 * as a whole: when a rank leaves, says that it has failed, or has waited too long. A failure is
 * told to all at once, also to those that do not wait for a round just now, and to each that comes
 * later. It also fails if one of its ranks has ended before it came: as soon as that is known, and
 * another has come.
 */
#include "boot/store/core.h"

#include "alloc.h"
#include "codec.h"

#include <stdio.h>
#include <string.h>

#define SESSIONS_OPEN_MAX 64 /* contexts that one process may hold or be about to create */
#define LETTERS_MAX 2

/* Bytes on their way to members. */
struct letter {
    size_t references;
    size_t bytes;
    uint8_t data[];
};

/* A slot keeps the first three; the last follows from them and from who has ended. */
enum presence { PRESENCE_NEVER = 0, PRESENCE_HERE, PRESENCE_LEFT, PRESENCE_ENDED };

struct slot {
    struct horon_store_member *member; /* while here */
    enum presence presence;
    bool has_put, last;
    uint8_t *blob;
    uint32_t blob_bytes;
};

struct session {
    struct session *next;
    uint64_t index;
    int joined, left, put;
    uint32_t round;
    bool over;
    bool whole;                 /* failure.text says it all */
    struct horon_error failure; /* status OK: none */
    struct slot slots[];
};

struct horon_store_member {
    struct horon_store_core *core;
    struct session *session;
    int rank;
    void *user;
    struct horon_store_inbox inbox;
    uint64_t deadline_ns; /* while it waits; else UINT64_MAX */
    struct letter *letters[LETTERS_MAX];
    size_t sent; /* of letters[0] */
};

struct horon_store_core {
    int size;
    void (*wake)(void *user);
    horon_store_host_of_fn_t host_of; /* NULL: hosts are not known */
    void *host_arg;
    void (*describe_blame)(void *arg, char *text, size_t text_bytes); /* NULL: nobody to blame */
    void *blame_arg;
    uint64_t next_index;
    int open_sessions, full_sessions;
    struct session *sessions; /* oldest first */
    struct {
        uint64_t joins;
        bool ended; /* it joins no more */
    } ranks[];      /* [size] */
};

struct horon_store_core *horon_store_core_create(int size, void (*wake)(void *user))
{
    struct horon_store_core *core =
        horon_zalloc(1, sizeof *core + (size_t)size * sizeof core->ranks[0]);
    if (!core)
        return NULL;
    core->size = size;
    core->wake = wake;
    return core;
}

void horon_store_core_name_hosts(struct horon_store_core *core, horon_store_host_of_fn_t host_of,
                                 void *arg)
{
    core->host_of = host_of;
    core->host_arg = arg;
}

void horon_store_core_blame(struct horon_store_core *core,
                            void (*describe)(void *arg, char *text, size_t text_bytes), void *arg)
{
    core->describe_blame = describe;
    core->blame_arg = arg;
}

static void free_session(struct horon_store_core *core, struct session *session)
{
    struct session **at = &core->sessions;
    while (*at != session)
        at = &(*at)->next;
    *at = session->next;
    for (int r = 0; r < core->size; r++)
        horon_free(session->slots[r].blob);
    horon_free(session);
    core->open_sessions--;
}

void horon_store_core_destroy(struct horon_store_core *core)
{
    if (!core)
        return;
    while (core->sessions)
        free_session(core, core->sessions);
    horon_free(core);
}

static struct session *find_session(struct horon_store_core *core, uint64_t index)
{
    struct session **at = &core->sessions;
    for (; *at; at = &(*at)->next)
        if ((*at)->index == index)
            return *at;
    if (core->open_sessions == SESSIONS_OPEN_MAX)
        return NULL;
    struct session *session =
        horon_zalloc(1, sizeof *session + (size_t)core->size * sizeof session->slots[0]);
    if (!session)
        return NULL;
    session->index = index;
    core->next_index = index + 1;
    core->open_sessions++;
    *at = session;
    return session;
}

static struct letter *letter_create(size_t bytes)
{
    struct letter *letter = horon_alloc(sizeof *letter + bytes);
    if (!letter)
        return NULL;
    letter->references = 0;
    letter->bytes = bytes;
    return letter;
}

static void letter_drop(struct letter *letter)
{
    if (letter && --letter->references == 0)
        horon_free(letter);
}

/* The member no longer waits: it gets this. A member that was told to end is told nothing more. */
static void deliver(struct horon_store_member *member, struct letter *letter)
{
    int place = member->letters[0] ? 1 : 0;
    member->deadline_ns = UINT64_MAX;
    if (member->letters[place])
        return;
    letter->references++;
    member->letters[place] = letter;
    member->core->wake(member->user);
}

static struct letter *failure_letter(const struct session *session)
{
    const struct horon_error *failure = &session->failure;
    const size_t text_bytes = strlen(failure->text);
    struct letter *letter = letter_create(4 + 6 + text_bytes);
    if (!letter)
        return NULL;
    struct horon_writer out = horon_writer_over(letter->data, letter->bytes);
    horon_write_u32(&out, (uint32_t)(6 + text_bytes));
    horon_write_u8(&out, HORON_STORE_FAIL);
    horon_write_u8(&out, session->whole);
    horon_write_u32(&out, (uint32_t)failure->status);
    horon_write_bytes(&out, failure->text, text_bytes);
    return letter;
}

static void clear_put(struct slot *slot)
{
    horon_free(slot->blob);
    slot->blob = NULL;
    slot->blob_bytes = 0;
    slot->has_put = slot->last = false;
}

/* Tells @p only, or all who are here. Without memory for the text they run into their own limits.
 */
static void tell_failure(struct horon_store_core *core, struct session *session,
                         const struct horon_store_member *only)
{
    struct letter *letter = failure_letter(session);
    if (!letter)
        return;
    letter->references = 1;
    for (int r = 0; r < core->size; r++) {
        struct slot *slot = &session->slots[r];
        if (!slot->member || (only && slot->member != only))
            continue;
        clear_put(slot);
        deliver(slot->member, letter);
    }
    session->put = 0; /* no round will be complete any more */
    letter_drop(letter);
}

static struct letter *answer_letter(const struct horon_store_core *core,
                                    const struct session *session)
{
    size_t bytes = 5;
    for (int r = 0; r < core->size; r++)
        bytes += 4 + session->slots[r].blob_bytes;
    struct letter *letter = letter_create(4 + bytes);
    if (!letter)
        return NULL;
    struct horon_writer out = horon_writer_over(letter->data, letter->bytes);
    horon_write_u32(&out, (uint32_t)bytes);
    horon_write_u8(&out, HORON_STORE_ALL);
    horon_write_u32(&out, session->round);
    for (int r = 0; r < core->size; r++) {
        horon_write_u32(&out, session->slots[r].blob_bytes);
        horon_write_bytes(&out, session->slots[r].blob, session->slots[r].blob_bytes);
    }
    return letter;
}

static void complete_round(struct horon_store_core *core, struct session *session)
{
    struct letter *letter = answer_letter(core, session);
    if (!letter) {
        horon_error_set(&session->failure, HORON_ERR_MEMORY, "the store is out of memory");
        tell_failure(core, session, NULL);
        return;
    }
    letter->references = 1;
    session->round++;
    session->put = 0;
    session->over = true;
    for (int r = 0; r < core->size; r++) {
        struct slot *slot = &session->slots[r];
        session->over = session->over && slot->last;
        clear_put(slot);
        deliver(slot->member, letter);
    }
    letter_drop(letter);
}

/* Who never came and has ended is not waited for. */
static enum presence presence_of(const struct horon_store_core *core, const struct session *session,
                                 int rank)
{
    const enum presence presence = session->slots[rank].presence;
    return presence == PRESENCE_NEVER && core->ranks[rank].ended ? PRESENCE_ENDED : presence;
}

static bool is_marked(const struct horon_store_core *core, const struct session *session, int rank,
                      enum presence presence)
{
    return rank < core->size && presence_of(core, session, rank) == presence &&
           !session->slots[rank].has_put;
}

/* Writes " on node1, node2" where they are. Ranks of a host follow one another. */
static void list_hosts(const struct horon_store_core *core, const struct session *session,
                       enum presence presence, char *text, size_t text_bytes)
{
    const char *last = NULL;
    size_t used = 0;
    text[0] = 0;
    for (int r = 0; r < core->size && core->host_of; r++) {
        const char *host =
            is_marked(core, session, r, presence) ? core->host_of(core->host_arg, r) : NULL;
        if (!host || (last && strcmp(last, host) == 0) || used >= text_bytes)
            continue;
        used +=
            (size_t)snprintf(text + used, text_bytes - used, "%s%s", last ? ", " : " on ", host);
        last = host;
    }
}

/* Writes "3, 5-7" of the ranks that @p presence and no blob mark. @return how many they are */
static int list_ranks(const struct horon_store_core *core, const struct session *session,
                      enum presence presence, char *text, size_t text_bytes)
{
    int count = 0, first = -1;
    size_t used = 0;
    text[0] = 0;
    for (int r = 0; r <= core->size; r++) {
        const bool in = is_marked(core, session, r, presence);
        count += in;
        if (in && first < 0)
            first = r;
        if (in || first < 0)
            continue;
        if (used < text_bytes)
            used += (size_t)snprintf(text + used, text_bytes - used,
                                     first == r - 1 ? "%s%d" : "%s%d-%d", used ? ", " : "", first,
                                     r - 1);
        first = -1;
    }
    return count;
}

/* With ERR_PEER_LOST those who are here are not to blame, whatever they are at. */
static void fail_for_missing(struct horon_store_core *core, struct session *session,
                             horon_status_t status)
{
    static const struct {
        enum presence presence;
        const char *text;
    } kinds[] = {{PRESENCE_LEFT, "left while joining"},
                 {PRESENCE_ENDED, "ended with status 0 without joining"},
                 {PRESENCE_NEVER, "never came"},
                 {PRESENCE_HERE, "came but went no further"}};
    char text[HORON_ERROR_TEXT_BYTES - 128] = "";
    const size_t kind_count = status == HORON_ERR_PEER_LOST ? 3 : 4;
    char blame[400] = "";
    for (size_t i = 0; i < kind_count; i++) {
        char list[256], hosts[160];
        size_t used = strlen(text);
        int count = list_ranks(core, session, kinds[i].presence, list, sizeof list);
        list_hosts(core, session, kinds[i].presence, hosts, sizeof hosts);
        if (count)
            snprintf(text + used, sizeof text - used, "%s%s %s%s %s", used ? "; " : "",
                     count == 1 ? "rank" : "ranks", list, hosts, kinds[i].text);
        if (count && kinds[i].presence == PRESENCE_ENDED)
            break; /* the others may yet come */
        if (count && kinds[i].presence == PRESENCE_NEVER && core->describe_blame)
            core->describe_blame(core->blame_arg, blame, sizeof blame);
    }
    const size_t used = strlen(text);
    if (blame[0])
        snprintf(text + used, sizeof text - used, "; %s", blame);
    horon_error_set(&session->failure, status, "of %d ranks, %s", core->size, text);
    tell_failure(core, session, NULL);
}

/* Who has ended joins no session that it was not in: the others need not wait. */
static void fail_for_ended(struct horon_store_core *core, struct session *session)
{
    bool lacks = false;
    if (session->over || session->failure.status != HORON_OK)
        return;
    for (int r = 0; r < core->size && !lacks; r++)
        lacks = presence_of(core, session, r) == PRESENCE_ENDED;
    if (lacks)
        fail_for_missing(core, session, HORON_ERR_PEER_LOST);
}

horon_status_t horon_store_core_join(struct horon_store_core *core, int rank, void *user,
                                     struct horon_store_member **member_out)
{
    if (rank < 0 || rank >= core->size)
        return HORON_ERR_INVALID;
    struct session *session = find_session(core, core->ranks[rank].joins);
    if (!session)
        return HORON_ERR_PROTO;
    struct horon_store_member *member = horon_zalloc(1, sizeof *member);
    if (!member)
        return HORON_ERR_MEMORY;
    member->core = core;
    member->session = session;
    member->rank = rank;
    member->user = user;
    member->inbox.limit = HORON_STORE_PUT_BYTES - 4 + HORON_STORE_BLOB_BYTES_MAX;
    member->deadline_ns = UINT64_MAX;
    session->slots[rank].member = member;
    session->slots[rank].presence = PRESENCE_HERE;
    core->ranks[rank].joins++;
    if (++session->joined == core->size)
        core->full_sessions++;
    *member_out = member;
    if (session->failure.status != HORON_OK)
        tell_failure(core, session, member);
    else
        fail_for_ended(core, session);
    return HORON_OK;
}

static horon_status_t take_put(struct horon_store_member *member, struct horon_reader *in,
                               uint64_t now_ns)
{
    struct session *session = member->session;
    struct slot *slot = &session->slots[member->rank];
    const uint8_t last = horon_read_u8(in);
    const uint32_t round = horon_read_u32(in);
    const uint32_t wait_ms = horon_read_u32(in);
    const uint32_t bytes = (uint32_t)(in->limit - in->used);
    const void *blob = horon_read_view(in, bytes);
    if (!in->ok || last > 1 || slot->has_put || session->over ||
        (session->failure.status == HORON_OK && round != session->round))
        return HORON_ERR_PROTO;
    slot->blob = horon_alloc(bytes);
    if (!slot->blob)
        return HORON_ERR_MEMORY;
    memcpy(slot->blob, blob, bytes);
    slot->blob_bytes = bytes;
    slot->has_put = true;
    slot->last = last;
    if (wait_ms != HORON_STORE_NO_LIMIT)
        member->deadline_ns = now_ns + (uint64_t)wait_ms * 1000000u;
    if (session->failure.status != HORON_OK)
        tell_failure(member->core, session, member);
    else if (++session->put == member->core->size)
        complete_round(member->core, session);
    return HORON_OK;
}

static horon_status_t take_abort(struct horon_store_member *member, struct horon_reader *in)
{
    struct session *session = member->session;
    const uint32_t number = horon_read_u32(in);
    const size_t bytes = in->limit - in->used;
    const char *text = horon_read_view(in, bytes);
    if (!in->ok || (int32_t)number >= 0 || bytes == 0 || bytes >= HORON_ERROR_TEXT_BYTES ||
        memchr(text, 0, bytes) || session->over)
        return HORON_ERR_PROTO;
    if (session->failure.status != HORON_OK) {
        tell_failure(member->core, session, member);
        return HORON_OK;
    }
    horon_error_set(&session->failure, horon_status_from_peer(number), "%.*s", (int)bytes, text);
    session->whole = true;
    tell_failure(member->core, session, NULL);
    return HORON_OK;
}

static horon_status_t take_frame(struct horon_store_member *member, uint64_t now_ns)
{
    struct horon_reader in = horon_reader_over(member->inbox.body, member->inbox.used);
    const uint8_t type = horon_read_u8(&in);
    if (type == HORON_STORE_PUT)
        return take_put(member, &in, now_ns);
    return type == HORON_STORE_ABORT ? take_abort(member, &in) : HORON_ERR_PROTO;
}

horon_status_t horon_store_core_feed(struct horon_store_member *member, const uint8_t *in,
                                     size_t bytes, uint64_t now_ns)
{
    while (bytes) {
        size_t taken;
        horon_status_t status = horon_store_inbox_feed(&member->inbox, in, bytes, &taken);
        in += taken;
        bytes -= taken;
        if (status == HORON_OK)
            status = take_frame(member, now_ns);
        if (status < 0)
            return status;
    }
    return HORON_OK;
}

const uint8_t *horon_store_core_out(const struct horon_store_member *member, size_t *bytes_out)
{
    const struct letter *letter = member->letters[0];
    *bytes_out = letter ? letter->bytes - member->sent : 0;
    return letter ? letter->data + member->sent : NULL;
}

void horon_store_core_sent(struct horon_store_member *member, size_t bytes)
{
    member->sent += bytes;
    if (!member->letters[0] || member->sent < member->letters[0]->bytes)
        return;
    letter_drop(member->letters[0]);
    member->letters[0] = member->letters[1];
    member->letters[1] = NULL;
    member->sent = 0;
}

void horon_store_core_leave(struct horon_store_member *member)
{
    struct horon_store_core *core = member->core;
    struct session *session = member->session;
    struct slot *slot = &session->slots[member->rank];
    if (slot->has_put)
        session->put--;
    horon_free(slot->blob);
    *slot = (struct slot){.presence = PRESENCE_LEFT};
    session->left++;
    letter_drop(member->letters[0]);
    letter_drop(member->letters[1]);
    horon_store_inbox_deinit(&member->inbox);
    horon_free(member);
    if (!session->over && session->failure.status == HORON_OK)
        fail_for_missing(core, session, HORON_ERR_PEER_LOST);
    if (session->left == core->size)
        free_session(core, session);
}

uint64_t horon_store_core_expire(struct horon_store_core *core, uint64_t now_ns)
{
    uint64_t next_ns = UINT64_MAX;
    for (struct session *session = core->sessions; session; session = session->next) {
        for (int r = 0; r < core->size; r++) {
            const struct horon_store_member *member = session->slots[r].member;
            if (!member || member->deadline_ns == UINT64_MAX)
                continue;
            if (member->deadline_ns <= now_ns)
                fail_for_missing(core, session, HORON_ERR_TIMEOUT);
            else if (member->deadline_ns < next_ns)
                next_ns = member->deadline_ns;
        }
    }
    return next_ns;
}

void horon_store_core_fail(struct horon_store_core *core, horon_status_t status, const char *text)
{
    const struct session *newest = core->sessions;
    while (newest && newest->next)
        newest = newest->next;
    if (!newest || newest->over) /* the next that somebody joins */
        find_session(core, core->next_index);
    for (struct session *session = core->sessions; session; session = session->next) {
        if (session->failure.status != HORON_OK || session->over)
            continue;
        horon_error_set(&session->failure, status, "%s", text);
        session->whole = true;
        tell_failure(core, session, NULL);
    }
}

void horon_store_core_ended(struct horon_store_core *core, int rank)
{
    if (rank < 0 || rank >= core->size)
        return;
    core->ranks[rank].ended = true;
    for (struct session *session = core->sessions; session; session = session->next)
        fail_for_ended(core, session);
}

void horon_store_core_dismiss(struct horon_store_member *member, horon_status_t status,
                              const char *text)
{
    struct session *session = member->session;
    if (session->failure.status == HORON_OK) {
        horon_error_set(&session->failure, status, "%s", text);
        session->whole = true;
    }
    tell_failure(member->core, session, member);
}

bool horon_store_core_has_news(const struct horon_store_core *core)
{
    for (const struct session *session = core->sessions; session; session = session->next) {
        const horon_status_t status = session->failure.status;
        if (status != HORON_OK && status != HORON_ERR_TIMEOUT && session->joined < core->size)
            return true;
    }
    return false;
}

int horon_store_core_full_sessions(const struct horon_store_core *core)
{
    return core->full_sessions;
}

bool horon_store_core_joined(const struct horon_store_core *core, int rank)
{
    const struct session *newest = core->sessions;
    while (newest && newest->next)
        newest = newest->next;
    if (!newest) /* all sessions there were are over */
        return core->next_index > 0 && rank >= 0 && rank < core->size;
    return rank >= 0 && rank < core->size && newest->slots[rank].presence != PRESENCE_NEVER;
}
