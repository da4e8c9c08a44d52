/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The store behind the handshake: three ranks of one server, and two of a selection that it has,
 * each saying anything, joining, leaving and running out of time as a script tells; and, chosen by
 * the first byte, the decoders of a rank: the answer of a round, a profile, addresses. Whatever
 * comes: no more memory than what came, and a member gets whole frames only.
 */
#undef NDEBUG

#include "boot/profile.h"
#include "boot/store/server.h"
#include "boot/store/store.h"
#include "boot/store/stream.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

enum { RANKS = 3, SELECTED = 2, STEPS_MAX = 400 };
enum { WHATS = 8, SELECTED_FROM = 9 * RANKS * WHATS }; /* of a step's first byte */

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

/* Reads what the server has for a rank; frames must be well formed. */
static void read_letter(struct horon_store_member *member, int size)
{
    struct horon_store_letter **letters = member->stream.letters, *letter = letters[0];
    if (!letter)
        return;
    struct horon_reader in = horon_reader_over(letter->data, letter->bytes);
    assert(horon_read_u32(&in) == letter->bytes - 4);
    const uint8_t type = horon_read_u8(&in);
    if (type == HORON_STORE_FAIL) {
        struct horon_error why;
        bool whole;
        assert(horon_store_failure_read(&in, size, &why, &whole));
        assert(why.blame.rank < size);
    } else {
        assert(type == HORON_STORE_ALL);
        horon_read_u32(&in); /* the round */
        assert(horon_blobs_are_whole(in, size));
    }
    horon_store_letter_drop(letter);
    memmove(letters, letters + 1, (HORON_STORE_LETTERS_MAX - 1) * sizeof *letters);
    letters[HORON_STORE_LETTERS_MAX - 1] = NULL;
}

static void leave(struct horon_store_member **member)
{
    if (*member)
        horon_store_server_leave(*member);
    *member = NULL;
}

static horon_status_t take(struct horon_store_member *member, uint8_t type, const uint8_t *body,
                           size_t bytes)
{
    struct horon_reader in = horon_reader_over(body, bytes);
    return member->stream.take(member->stream.arg, type, &in);
}

/* A frame that is good but for what the script says, so that rounds are completed often. */
static horon_status_t put(struct horon_store_member *member, uint8_t round, uint8_t length)
{
    uint8_t body[HORON_STORE_PUT_BYTES + 255];
    struct horon_writer out = horon_writer_over(body, sizeof body);
    horon_write_u8(&out, round > 2 ? HORON_STORE_PUT_LAST : HORON_STORE_PUT_MORE);
    horon_write_u32(&out, round);
    memset(body + out.used, length, length);
    return take(member, HORON_STORE_PUT, body, out.used + length);
}

/* As the server makes one for a rank that proves the mark of such a job. */
static struct horon_store_server *add_selection(struct horon_store_server *core)
{
    struct horon_store_server_options options = core->options;
    options.self.hello.size = SELECTED;
    options.self.hello.job = 1;
    struct horon_store_server *selection = horon_store_server_create(&options);
    assert(selection && !core->selections);
    selection->launch = core;
    core->selections = selection;
    core->selection_count = 1;
    return selection;
}

static void play_server(const uint8_t *data, size_t bytes)
{
    struct horon_store_member *all[RANKS + SELECTED] = {NULL};
    const struct horon_store_server_options options = {.self.hello.size = RANKS};
    struct horon_store_server *core = horon_store_server_create(&options);
    const struct horon_error why = {.status = HORON_ERR_PEER_LOST, .text = "the launcher says so"};
    assert(core);
    struct horon_store_server *selection = add_selection(core);
    for (int step = 0; step < STEPS_MAX && bytes >= 3; step++) {
        struct horon_store_server *server = data[0] < SELECTED_FROM ? core : selection;
        struct horon_store_member **members = server == core ? all : all + RANKS;
        const int rank = data[0] % server->size;
        const int what = data[0] / server->size % WHATS;
        const uint8_t a = data[1], b = data[2];
        horon_status_t status = HORON_OK;
        data += 3;
        bytes -= 3;
        if (!members[rank] && horon_store_server_join(server, rank, &members[rank]) != HORON_OK)
            break;
        struct horon_store_member *member = members[rank];
        if (what <= 2) {
            status = put(member, a % 4, b);
        } else if (what == 3) { /* a frame of the script */
            const size_t part = a < bytes ? a : bytes;
            uint8_t *copy = malloc(part + 1);
            assert(copy);
            memcpy(copy, data, part);
            status = take(member, b % 6, copy, part);
            free(copy);
            data += part;
            bytes -= part;
        } else if (what == 4) {
            read_letter(member, server->size);
        } else if (what == 5) {
            status = take(member, HORON_STORE_LATE, NULL, 0);
        } else if (what == 6) {
            leave(&members[rank]);
        } else if (b == 7) {
            horon_store_server_tell(core, -1, &why);
        } else if (b == 8) {
            horon_store_server_tell(core, a % RANKS, a & 64 ? &why : NULL);
        }
        if (status < 0)
            leave(&members[rank]);
    }
    for (int i = 0; i < RANKS + SELECTED; i++)
        leave(&all[i]);
    horon_store_server_destroy(core);
}

static void decode_blobs(const uint8_t *data, size_t bytes)
{
    struct horon_blobs blobs = {NULL, horon_reader_over(data, bytes)};
    size_t sum = 0;
    if (!horon_blobs_are_whole(blobs.in, RANKS))
        return;
    for (int r = 0; r < RANKS; r++)
        sum += 4 + horon_blobs_next(&blobs).limit;
    assert(sum == bytes);
}

static void decode_profile(const uint8_t *data, size_t bytes)
{
    struct horon_profile *profile = calloc(2, sizeof *profile);
    struct horon_reader in = horon_reader_over(data, bytes);
    struct horon_error error;
    assert(profile);
    if (horon_profile_decode(&in, profile)) {
        assert(strlen(profile->name) < sizeof profile->name);
        assert(strlen(profile->socket) < sizeof profile->socket);
        assert(in.used == strlen(profile->addresses) + 1 +
                              (size_t)((const uint8_t *)profile->addresses - data));
        profile[1].settings = "A=1\n";
        horon_profile_check_settings(profile, profile + 1, 1, &error);
    }
    free(profile);
}

static void decode_addresses(const uint8_t *data, size_t bytes)
{
    struct horon_addresses addresses;
    char *copy = malloc(bytes + 1);
    assert(copy);
    memcpy(copy, data, bytes);
    copy[bytes] = 0;
    const bool read = horon_addresses_read(copy, &addresses);
    free(copy);
    assert(!read || addresses.count <= HORON_ADDRESSES_MAX);
    for (int i = 0; read && i < addresses.count; i++) {
        char text[HORON_ADDRESS_TEXT_BYTES];
        horon_address_text(&addresses.items[i], text);
        horon_address_is_loopback(&addresses.items[i]);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    static void (*const parts[])(const uint8_t *, size_t) = {play_server, play_server, decode_blobs,
                                                             decode_profile, decode_addresses};
    if (bytes > 0)
        parts[data[0] % (sizeof parts / sizeof parts[0])](data + 1, bytes - 1);
    return 0;
}
