/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Transfers as point-to-point operations will have them: matched by (team, tag), outside any order
 * of operations, posted at any time on either side. The n-th message of a tag between two ranks has
 * the sequence (tag, n), so each is an operation of its own: one is given up without the others.
 */
#include "transfers.h"

enum { TAGS = 7, EACH = 30, TEAMS = 2, COUNT = TAGS * EACH * TEAMS, BYTES_MAX = 3000 };

struct message {
    struct horon_transfer send, recv;
    uint8_t *from, *to;
    bool given_up;
};

static struct horon_transfer_id id_of(uint32_t team, uint32_t tag, uint32_t nth)
{
    return (struct horon_transfer_id){.channel = 100 + team, .sequence = (uint64_t)tag << 32 | nth};
}

static void make_messages(struct message *messages, struct seeded *random)
{
    for (int i = 0; i < COUNT; i++) {
        struct message *message = &messages[i];
        const size_t bytes = (size_t)seeded_below(random, BYTES_MAX);
        *message = (struct message){.from = malloc(bytes + 1), .to = malloc(bytes + 1)};
        fill(message->from, bytes, (uint64_t)i);
        const struct horon_transfer both = {.id = id_of((uint32_t)(i % TEAMS),
                                                        (uint32_t)(i / TEAMS % TAGS) * 1000003u,
                                                        (uint32_t)(i / TEAMS / TAGS)),
                                            .bytes = bytes,
                                            .check = 5};
        message->send = message->recv = both;
        message->send.data = message->from;
        message->recv.data = message->to;
    }
}

static void shuffle(int *order, struct seeded *random)
{
    for (int i = 0; i < COUNT; i++)
        order[i] = i;
    for (int i = COUNT - 1; i > 0; i--) {
        const int other = (int)seeded_below(random, (uint64_t)i + 1), kept = order[i];
        order[i] = order[other];
        order[other] = kept;
    }
}

static void give_up(struct mesh *mesh, struct message *message)
{
    message->given_up = true;
    for (int i = 0; i < 2; i++)
        horon_mux_forget(mesh->mux[i][!i], message->send.id.channel, message->send.id.sequence);
}

static void play(uint64_t seed, bool wrapped)
{
    static struct message messages[COUNT];
    int sends[COUNT], recvs[COUNT];
    struct mesh mesh;
    struct seeded random = seeded_from(seed);
    const struct horon_mux_options options = mesh_options(1000, 8000);
    if (wrapped)
        mesh_create_wrapped(&mesh, 2, 256, &options);
    else
        mesh_create_rings(&mesh, 2, 256, &options);
    make_messages(messages, &random);
    shuffle(sends, &random);
    shuffle(recvs, &random);
    for (int s = 0, r = 0; s < COUNT || r < COUNT;) {
        if (s < COUNT && (r == COUNT || seeded_below(&random, 2)))
            post_send(mesh.mux[0][1], &messages[sends[s++]].send);
        else
            post_recv(mesh.mux[1][0], &messages[recvs[r++]].recv);
        if (seeded_below(&random, 3) == 0)
            mesh_progress_any(&mesh, &random);
    }
    for (int i = 0; i < 5; i++) {
        struct message *message = &messages[seeded_below(&random, COUNT)];
        if (!message->given_up && !message->send.done && !message->recv.done)
            give_up(&mesh, message);
    }
    do
        mesh_settle(&mesh);
    while (horon_mux_wants_write(mesh.mux[0][1]) || horon_mux_wants_write(mesh.mux[1][0]));
    for (int i = 0; i < COUNT; i++) {
        struct message *message = &messages[i];
        assert_int_equal(message->recv.done, !message->given_up);
        if (!message->given_up)
            check_filled(message->to, message->recv.bytes, (uint64_t)i);
        free(message->from);
        free(message->to);
    }
    mesh_destroy(&mesh);
}

static void test_tagged_transfers_match_whatever_the_order(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 40; seed++)
        play(seed, seed % 4 == 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tagged_transfers_match_whatever_the_order),
    };
    return cmocka_run_group_tests(tests, make_noise, NULL);
}
