/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sessions and their rounds; README.md says when a session is over, and when it fails. The answer
 * of a round is one letter that all share while they read it at their own pace. A failure is told
 * to all at once, also to those that do not wait for a round just now. Until it is known which of
 * the launch's ranks are in a selection, it hears of each that failed, as it may need any.
 */
#include "boot/store/server.h"

#include "alloc.h"
#include "boot/connect/acceptor.h"
#include "numbers.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define SESSIONS_OPEN_MAX 64 /* contexts that one process may hold or be about to create */

enum session_state { SESSION_JOINING = 0, SESSION_OVER, SESSION_FAILED };

struct horon_store_session {
    struct horon_store_server *server;
    struct horon_store_session *next;
    uint64_t index;
    int size; /* of the job */
    enum session_state state;
    uint32_t round;
    horon_status_t status;              /* once FAILED */
    struct horon_store_letter *failure; /* once FAILED; NULL: there was no memory for it */
    int count_in[HORON_MEMBER_STATES];
    struct horon_store_member members[]; /* [size] by rank */
};

static void session_move(struct horon_store_session *session, enum session_state to)
{
    static const unsigned legal[] = {[SESSION_JOINING] = 1u << SESSION_OVER | 1u << SESSION_FAILED,
                                     [SESSION_OVER] = 0,
                                     [SESSION_FAILED] = 0};
    assert(legal[session->state] & 1u << to);
    session->state = to;
}

static void member_move(struct horon_store_member *member, enum horon_member_state to)
{
    static const unsigned legal[] = {
        [HORON_MEMBER_NEVER] = 1u << HORON_MEMBER_HERE,
        [HORON_MEMBER_HERE] = 1u << HORON_MEMBER_WAITS | 1u << HORON_MEMBER_LEFT,
        [HORON_MEMBER_WAITS] = 1u << HORON_MEMBER_HERE | 1u << HORON_MEMBER_LEFT,
        [HORON_MEMBER_LEFT] = 0};
    assert(legal[member->state] & 1u << to);
    if (member->state == HORON_MEMBER_WAITS) {
        horon_free(member->blob);
        member->blob = NULL;
    }
    member->session->count_in[member->state]--;
    member->session->count_in[to]++;
    member->state = to;
}

static bool is_here(const struct horon_store_member *member)
{
    return member->state == HORON_MEMBER_HERE || member->state == HORON_MEMBER_WAITS;
}

static void free_session(struct horon_store_session *session)
{
    struct horon_store_session **at = &session->server->sessions;
    while (*at != session)
        at = &(*at)->next;
    *at = session->next;
    for (int r = 0; r < session->size; r++) {
        horon_store_stream_close(&session->members[r].stream);
        horon_free(session->members[r].blob);
    }
    horon_store_letter_drop(session->failure);
    horon_free(session);
}

static struct horon_store_session *find_session(struct horon_store_server *server, uint64_t index)
{
    struct horon_store_session **at = &server->sessions;
    int open = 0;
    for (; *at; at = &(*at)->next, open++)
        if ((*at)->index == index)
            return *at;
    if (open == SESSIONS_OPEN_MAX)
        return NULL;
    struct horon_store_session *session =
        horon_zalloc(1, sizeof *session + (size_t)server->size * sizeof session->members[0]);
    if (!session)
        return NULL;
    for (int r = 0; r < server->size; r++) {
        session->members[r].session = session;
        session->members[r].rank = r;
    }
    session->server = server;
    session->index = index;
    session->size = server->size;
    session->count_in[HORON_MEMBER_NEVER] = server->size;
    server->next_index = index + 1;
    *at = session;
    return session;
}

/* Without memory for the letter they run into their own limits. */
static void send_failure(struct horon_store_member *member)
{
    struct horon_store_session *session = member->session;
    if (member->state == HORON_MEMBER_WAITS)
        member_move(member, HORON_MEMBER_HERE);
    if (session->failure)
        horon_store_stream_send(&member->stream, session->failure);
}

/* @param whole its text says it all */
static void fail(struct horon_store_session *session, const struct horon_error *why, bool whole)
{
    session_move(session, SESSION_FAILED);
    session->status = why->status;
    session->failure = horon_store_failure_letter(why, whole);
    for (int r = 0; r < session->size; r++)
        if (is_here(&session->members[r]))
            send_failure(&session->members[r]);
}

/* ---- Rounds ---- */

static struct horon_store_letter *answer_letter(const struct horon_store_session *session)
{
    struct horon_writer out;
    const int size = session->size;
    size_t bytes = 4;
    for (int r = 0; r < size; r++)
        bytes += 4 + session->members[r].blob_bytes;
    struct horon_store_letter *letter = horon_store_letter_create(HORON_STORE_ALL, bytes, &out);
    if (!letter)
        return NULL;
    horon_write_u32(&out, session->round);
    for (int r = 0; r < size; r++) {
        horon_write_u32(&out, session->members[r].blob_bytes);
        horon_write_bytes(&out, session->members[r].blob, session->members[r].blob_bytes);
    }
    assert(out.ok);
    return letter;
}

static bool read_error(const struct horon_store_session *session, const void *blob, size_t bytes,
                       struct horon_error *why_out)
{
    struct horon_reader in = horon_reader_over(blob, bytes);
    horon_error_read(&in, session->size, why_out);
    return horon_reader_finished(&in);
}

/* @return has a rank put an error, which ends the session? */
static bool fail_for_put(struct horon_store_session *session)
{
    struct horon_error why;
    const struct horon_store_member *member = session->members;
    const struct horon_store_member *const end = member + session->size;
    while (member < end && member->put != HORON_STORE_PUT_FAILED)
        member++;
    if (member == end || !read_error(session, member->blob, member->blob_bytes, &why))
        return false;
    fail(session, &why, true);
    return true;
}

static void complete_round(struct horon_store_session *session)
{
    struct horon_error no_memory;
    if (fail_for_put(session))
        return;
    struct horon_store_letter *letter = answer_letter(session);
    bool last = true;
    if (!letter) {
        horon_error_set(&no_memory, HORON_ERR_MEMORY, "the store is out of memory");
        fail(session, &no_memory, false);
        return;
    }
    session->round++;
    for (int r = 0; r < session->size; r++) {
        struct horon_store_member *member = &session->members[r];
        last = last && member->put == HORON_STORE_PUT_LAST;
        member_move(member, HORON_MEMBER_HERE);
        horon_store_stream_send(&member->stream, letter);
    }
    if (last)
        session_move(session, SESSION_OVER);
    horon_store_letter_drop(letter);
}

static horon_status_t take_put(struct horon_store_member *member, struct horon_reader *in)
{
    struct horon_store_session *session = member->session;
    struct horon_error why;
    const uint8_t put = horon_read_u8(in);
    const uint32_t round = horon_read_u32(in);
    const size_t bytes = in->limit - in->used;
    const void *blob = horon_read_view(in, bytes);
    if (!in->ok || put > HORON_STORE_PUT_FAILED || bytes > HORON_STORE_BLOB_BYTES_MAX ||
        member->state == HORON_MEMBER_WAITS || round != session->round ||
        (put == HORON_STORE_PUT_FAILED && !read_error(session, blob, bytes, &why)))
        return HORON_ERR_PROTO;
    uint8_t *copy = horon_alloc(bytes);
    if (!copy)
        return HORON_ERR_MEMORY;
    memcpy(copy, blob, bytes);
    member->blob = copy;
    member->blob_bytes = (uint32_t)bytes;
    member->put = (enum horon_store_put)put;
    member_move(member, HORON_MEMBER_WAITS);
    if (session->count_in[HORON_MEMBER_WAITS] == session->size)
        complete_round(session);
    return HORON_OK;
}

static horon_status_t take_failure(struct horon_store_member *member, struct horon_reader *in)
{
    struct horon_error why;
    bool whole;
    if (!horon_store_failure_read(in, member->session->size, &why, &whole))
        return HORON_ERR_PROTO;
    fail(member->session, &why, whole);
    return HORON_OK;
}

/* ---- Which ranks are missing ---- */

/* What is the matter with a rank that others wait for. */
enum fate { FATE_LEFT = 0, FATE_FAILED, FATE_ENDED, FATE_ABSENT, FATE_IDLE, FATES };

static enum fate fate_of(const struct horon_store_session *session, int rank)
{
    static const enum fate of_state[] = {[HORON_MEMBER_HERE] = FATE_IDLE,
                                         [HORON_MEMBER_WAITS] = FATES, /* it is well */
                                         [HORON_MEMBER_LEFT] = FATE_LEFT},
                           of_absent[] = {[HORON_RANK_LIVES] = FATE_ABSENT,
                                          [HORON_RANK_ENDED] = FATE_ENDED,
                                          [HORON_RANK_FAILED] = FATE_FAILED};
    const enum horon_member_state state = session->members[rank].state;
    return state == HORON_MEMBER_NEVER ? of_absent[session->server->ranks[rank].end]
                                       : of_state[state];
}

/* What the owner knows; of one that it does not know yet, where it came from. */
static const char *host_of(const struct horon_store_member *member,
                           char text[HORON_ADDRESS_TEXT_BYTES])
{
    const struct horon_store_server_options *options = &member->session->server->options;
    const char *host = options->host_of ? options->host_of(options->host_arg, member->rank) : NULL;
    if (host || member->from.bytes == 0)
        return host;
    if (horon_address_is_here(&member->from) && gethostname(text, HORON_ADDRESS_TEXT_BYTES) == 0)
        return text;
    return horon_address_host_text(&member->from, text);
}

/* The ranks of one fate as they are told. Ranks of a host follow one another. */
struct listing {
    int count, lowest;
    char ranks[256]; /* "3, 5-7" */
    char hosts[160]; /* " on node1, node2", or "" */
};

static struct listing list(const struct horon_store_session *session, enum fate fate)
{
    struct listing listing = {.lowest = -1};
    char last[HORON_ADDRESS_TEXT_BYTES] = "", buffer[HORON_ADDRESS_TEXT_BYTES];
    int first = -1; /* of a range */
    for (int r = 0; r <= session->size; r++) {
        const bool in = r < session->size && fate_of(session, r) == fate;
        if (!in && first >= 0)
            horon_text_add(listing.ranks, sizeof listing.ranks, ", ",
                           first == r - 1 ? "%d" : "%d-%d", first, r - 1);
        first = !in ? -1 : first < 0 ? r : first;
        if (in && listing.count++ == 0)
            listing.lowest = r;
        const char *host = in ? host_of(&session->members[r], buffer) : NULL;
        if (!host || strcmp(last, host) == 0)
            continue;
        horon_text_add(listing.hosts, sizeof listing.hosts, ", ", "%s%s",
                       listing.hosts[0] ? "" : " on ", host);
        snprintf(last, sizeof last, "%s", host);
    }
    return listing;
}

/* Why others may not have come: they were refused, or they are at another store. */
static void explain(const struct horon_store_server *server, char *text, size_t text_bytes)
{
    if (!server->acceptor) /* nobody could come */
        return;
    horon_acceptor_explain(server->acceptor, text, text_bytes);
    if (server->port != server->wanted_port && server->wanted_port)
        horon_text_add(text, text_bytes, "; ",
                       "the store is at port %d, as %d was taken: by another rank 0 of this job?",
                       server->port, server->wanted_port);
}

/* @param end of the fates that matter
 * @param absent what is the matter with those that are not here
 * @return the lowest of the first fate; -1: none is missing */
static int describe_missing(const struct horon_store_session *session, enum fate end,
                            const char *absent, char *text, size_t text_bytes)
{
    const char *const fates[] = {[FATE_LEFT] = "left while joining",
                                 [FATE_FAILED] = "failed without joining",
                                 [FATE_ENDED] = "ended with status 0 without joining",
                                 [FATE_ABSENT] = absent,
                                 [FATE_IDLE] = "came but went no further"};
    bool explained = false; /* the others may yet come */
    char blame[400] = "";
    int missing = -1;
    for (enum fate fate = 0; fate < end && !(explained && fate > FATE_ENDED); fate++) {
        const struct listing listing = list(session, fate);
        if (listing.count == 0)
            continue;
        missing = missing < 0 ? listing.lowest : missing;
        horon_text_add(text, text_bytes, "; ", "%s %s%s %s", listing.count == 1 ? "rank" : "ranks",
                       listing.ranks, listing.hosts, fates[fate]);
        explained = explained || fate == FATE_FAILED || fate == FATE_ENDED;
        if (fate == FATE_ABSENT)
            explain(session->server, blame, sizeof blame);
    }
    if (blame[0])
        horon_text_add(text, text_bytes, "; ", "%s", blame);
    return missing;
}

/* With ERR_PEER_LOST the ranks that are here are not to blame, whatever they do. */
static void fail_for_missing(struct horon_store_session *session, horon_status_t status)
{
    char text[HORON_ERROR_TEXT_BYTES - 32] = "";
    const int missing = describe_missing(session, status == HORON_ERR_PEER_LOST ? FATE_IDLE : FATES,
                                         "never came", text, sizeof text);
    struct horon_error why;
    horon_error_set(&why, status, "of %d ranks, %s", session->size, text);
    horon_error_blame(&why, HORON_CAUSE_ABSENT, missing, -1);
    fail(session, &why, false);
}

bool horon_store_server_awaits(const struct horon_store_server *server, char *text,
                               size_t text_bytes)
{
    const struct horon_store_session *session = server->sessions;
    char missing[HORON_ERROR_TEXT_BYTES - 32] = "";
    while (session && (session->state != SESSION_JOINING || !session->count_in[HORON_MEMBER_WAITS]))
        session = session->next;
    if (!session ||
        describe_missing(session, FATES, "did not come yet", missing, sizeof missing) < 0)
        return false;
    snprintf(text, text_bytes, "of %d ranks, %s", session->size, missing);
    return true;
}

/* A member that is answered, or told of a failure, may have sent it before. */
static horon_status_t take_late(struct horon_store_member *member, struct horon_reader *in)
{
    (void)in;
    if (member->state == HORON_MEMBER_WAITS)
        fail_for_missing(member->session, HORON_ERR_TIMEOUT);
    return HORON_OK;
}

/* A rank that has ended joins no session that it was not in: the others need not wait. */
static void review(struct horon_store_server *server)
{
    for (struct horon_store_session *session = server->sessions; session; session = session->next)
        if (session->state == SESSION_JOINING &&
            (list(session, FATE_ENDED).count > 0 || list(session, FATE_FAILED).count > 0))
            fail_for_missing(session, HORON_ERR_PEER_LOST);
}

/* As HORON_RANKS says them. One list is enough, and what is no selection needs none. */
static horon_status_t take_ranks(struct horon_store_member *member, struct horon_reader *in)
{
    struct horon_store_server *selection = member->session->server;
    const struct horon_store_server *launch = selection->launch;
    const size_t bytes = in->limit - in->used;
    const char *list = horon_read_view(in, bytes);
    if (bytes == 0 || strnlen(list, bytes) != bytes - 1)
        return HORON_ERR_PROTO;
    if (!launch || selection->places)
        return HORON_OK;
    int *places = horon_alloc((size_t)launch->size * sizeof *places);
    if (!places)
        return HORON_ERR_MEMORY;
    if (horon_numbers_parse(list, bytes - 1, launch->size, places) != selection->size) {
        horon_free(places);
        return HORON_ERR_PROTO;
    }
    selection->places = places;
    for (int rank = 0; rank < launch->size; rank++)
        if (places[rank] >= 0)
            selection->ranks[places[rank]].end = launch->ranks[rank].end;
    review(selection);
    return HORON_OK;
}

static horon_status_t take_frame(void *arg, uint8_t type, struct horon_reader *body)
{
    struct horon_store_member *member = arg;
    static horon_status_t (*const takes[])(struct horon_store_member *, struct horon_reader *) = {
        [HORON_STORE_PUT] = take_put,
        [HORON_STORE_FAIL] = take_failure,
        [HORON_STORE_LATE] = take_late,
        [HORON_STORE_RANKS] = take_ranks};
    const enum session_state state = member->session->state;
    assert(is_here(member));
    if (type >= sizeof takes / sizeof takes[0] || !takes[type])
        return HORON_ERR_PROTO;
    if (state == SESSION_OVER)
        return type == HORON_STORE_LATE ? HORON_OK : HORON_ERR_PROTO;
    return state == SESSION_FAILED ? HORON_OK /* it was on its way before */
                                   : takes[type](member, body);
}

/* ---- Coming and going ---- */

static void stream_ended(void *arg, horon_status_t why)
{
    (void)why;
    horon_store_server_leave(arg);
}

horon_status_t horon_store_server_join(struct horon_store_server *server, int rank,
                                       struct horon_store_member **member_out)
{
    if (rank < 0 || rank >= server->size)
        return HORON_ERR_INVALID;
    struct horon_store_session *session = find_session(server, server->ranks[rank].joins);
    if (!session)
        return HORON_ERR_PROTO;
    struct horon_store_member *member = &session->members[rank];
    member_move(member, HORON_MEMBER_HERE);
    member->stream = (struct horon_store_stream){.pump = server->options.self.pump,
                                                 .take = take_frame,
                                                 .ended = stream_ended,
                                                 .arg = member,
                                                 .inbox.limit = HORON_STORE_PUT_BYTES +
                                                                HORON_STORE_BLOB_BYTES_MAX};
    server->ranks[rank].joins++;
    server->full_sessions += session->count_in[HORON_MEMBER_NEVER] == 0;
    *member_out = member;
    if (session->state == SESSION_FAILED)
        send_failure(member);
    else
        review(server);
    return HORON_OK;
}

void horon_store_server_leave(struct horon_store_member *member)
{
    struct horon_store_session *session = member->session;
    horon_store_stream_close(&member->stream);
    member_move(member, HORON_MEMBER_LEFT);
    if (session->state == SESSION_JOINING)
        fail_for_missing(session, HORON_ERR_PEER_LOST);
    if (session->count_in[HORON_MEMBER_LEFT] == session->size)
        free_session(session);
}

struct horon_store_member *horon_store_server_find(struct horon_store_server *server, int rank)
{
    for (struct horon_store_session *session = server->sessions; session; session = session->next)
        if (is_here(&session->members[rank]))
            return &session->members[rank];
    return NULL;
}

void horon_store_server_dismiss(struct horon_store_member *member, const struct horon_error *why)
{
    if (member->session->state == SESSION_JOINING)
        fail(member->session, why, true);
}

static void fail_all(struct horon_store_server *server, const struct horon_error *why)
{
    const struct horon_store_session *newest = server->sessions;
    while (newest && newest->next)
        newest = newest->next;
    if (!newest || newest->state == SESSION_OVER) /* the next that somebody joins */
        find_session(server, server->next_index);
    for (struct horon_store_session *session = server->sessions; session; session = session->next)
        if (session->state == SESSION_JOINING)
            fail(session, why, true);
}

/* @return the number there of a rank of the launch; -1: it is none of them, or that is not known */
static int place_of(const struct horon_store_server *selection, int rank)
{
    const bool known = selection->places && rank >= 0 && rank < selection->launch->size;
    return known ? selection->places[rank] : -1;
}

/* What an owner says, of one rank or (-1) of all, is told to the selections that it may concern. */
void horon_store_server_tell(struct horon_store_server *server, int rank,
                             const struct horon_error *why)
{
    if (rank >= server->size) /* it is no rank of the job */
        return;
    if (rank >= 0)
        server->ranks[rank].end = why ? HORON_RANK_FAILED : HORON_RANK_ENDED;
    if (why)
        fail_all(server, why);
    review(server);
    for (struct horon_store_server *selection = server->selections; selection;
         selection = selection->next) {
        const int place = place_of(selection, rank);
        struct horon_error theirs = why ? *why : (struct horon_error){0};
        theirs.blame.rank = place_of(selection, theirs.blame.rank);
        if (rank < 0 || place >= 0 || !selection->places)
            horon_store_server_tell(selection, place, why ? &theirs : NULL);
    }
}

bool horon_store_server_busy(const struct horon_store_server *server)
{
    for (const struct horon_store_session *session = server->sessions; session;
         session = session->next)
        for (int r = 0; r < server->size; r++)
            if (horon_store_stream_busy(&session->members[r].stream))
                return true;
    return false;
}

bool horon_store_server_has_news(const struct horon_store_server *server)
{
    for (const struct horon_store_session *session = server->sessions; session;
         session = session->next)
        if (session->state == SESSION_FAILED && session->status != HORON_ERR_TIMEOUT &&
            session->count_in[HORON_MEMBER_NEVER] > 0)
            return true;
    return false;
}

void horon_store_server_destroy(struct horon_store_server *server)
{
    if (!server)
        return;
    horon_acceptor_destroy(server->acceptor);
    while (server->selections) {
        struct horon_store_server *selection = server->selections;
        server->selections = selection->next;
        horon_store_server_destroy(selection);
    }
    while (server->sessions)
        free_session(server->sessions);
    if (server->slow.active)
        horon_pump_untimer(server->options.self.pump, &server->slow);
    horon_free(server->places);
    horon_free(server);
}
