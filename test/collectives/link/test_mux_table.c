/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How a mux finds what is in flight: chains stay short however much that is, all of an operation is
 * in one place wherever that lies, and without memory for more places everything is still found.
 */
#include "transfers.h"

#include "link/mux_internal.h"

enum { MESSAGES = 20000, FEW = 300, PIECES = 5 };

static struct horon_transfer sends[MESSAGES], recvs[MESSAGES];
static bool refuses;

void *__real_horon_zalloc(size_t count, size_t bytes);
void *__wrap_horon_zalloc(size_t count, size_t bytes);

void *__wrap_horon_zalloc(size_t count, size_t bytes)
{
    return refuses ? NULL : __real_horon_zalloc(count, bytes);
}

static size_t longest_chain(const struct horon_mux_table *table)
{
    size_t longest = 0;
    for (size_t i = 0; i < horon_mux_bucket_count(table); i++) {
        size_t length = 0;
        for (int kind = 0; kind < HORON_MUX_POSTED_COUNT; kind++)
            for (const struct horon_transfer *item = table->buckets[i].posted[kind]; item;
                 item = item->next)
                length++;
        longest = length > longest ? length : longest;
    }
    return longest;
}

/* One of @p count operations each, both ways. */
static struct horon_mux *post_both_ways(struct mesh *mesh, int count)
{
    static uint8_t byte;
    const struct horon_mux_options options = mesh_options(100, 250);
    mesh_create_rings(mesh, 2, 1u << 16, &options);
    struct horon_mux *mux = mesh->mux[0][1];
    for (int i = 0; i < count; i++) {
        recvs[i] = transfer_of(2 * (uint64_t)i, 0, &byte, 1);
        sends[i] = transfer_of(2 * (uint64_t)i + 1, 0, &byte, 1);
        post_recv(mux, &recvs[i]);
        post_send(mux, &sends[i]);
    }
    return mux;
}

static void expect_all(const struct horon_mux *mux, int count)
{
    assert_int_equal(mux->table.count, 2 * (size_t)count);
    for (int i = 0; i < count; i++) {
        assert_ptr_equal(horon_mux_find_transfer(&mux->table, HORON_MUX_RECVS, &recvs[i].id),
                         &recvs[i]);
        assert_ptr_equal(horon_mux_find_transfer(&mux->table, HORON_MUX_SENDS, &sends[i].id),
                         &sends[i]);
        assert_null(horon_mux_find_transfer(&mux->table, HORON_MUX_SENDS, &recvs[i].id));
    }
}

static void test_mux_table_chains_are_short_however_many_messages_fly(void **state)
{
    struct mesh mesh;
    (void)state;
    struct horon_mux *mux = post_both_ways(&mesh, MESSAGES);
    expect_all(mux, MESSAGES);
    assert_in_range(longest_chain(&mux->table), 1, 8);
    for (int i = 0; i < MESSAGES; i++) {
        horon_mux_forget(mux, sends[i].id.channel, sends[i].id.sequence);
        horon_mux_forget(mux, recvs[i].id.channel, recvs[i].id.sequence);
    }
    assert_int_equal(mux->table.count, 0);
    assert_int_equal(longest_chain(&mux->table), 0);
    mesh_destroy(&mesh);
}

static void test_mux_table_without_memory_to_grow_finds_all(void **state)
{
    struct mesh mesh;
    (void)state;
    struct horon_mux *mux = post_both_ways(&mesh, 1);
    refuses = true;
    for (int i = 1; i < FEW; i++) {
        recvs[i] = transfer_of(2 * (uint64_t)i, 0, NULL, 1);
        sends[i] = transfer_of(2 * (uint64_t)i + 1, 0, noise, 1);
        post_recv(mux, &recvs[i]);
        post_send(mux, &sends[i]);
    }
    refuses = false;
    assert_int_equal(mux->table.bits, HORON_MUX_BITS_MIN);
    expect_all(mux, FEW);
    mesh_destroy(&mesh);
}

/* Those of one, among many others: what the peer says about it is compared with each. */
static void test_mux_table_pieces_of_an_operation_stay_together(void **state)
{
    static uint8_t byte;
    struct mesh mesh;
    struct horon_transfer pieces[PIECES];
    (void)state;
    struct horon_mux *mux = post_both_ways(&mesh, 1);
    for (uint64_t tag = 0; tag < PIECES; tag++) {
        pieces[tag] = transfer_of(1u << 20, tag, &byte, 1);
        post_recv(mux, &pieces[tag]);
        for (int i = 1; i < FEW; i++) {
            recvs[i] = transfer_of(1000 * (tag + 1) + (uint64_t)i, 0, &byte, 1);
            post_recv(mux, &recvs[i]);
        }
        for (int i = 1; i < FEW && tag + 1 < PIECES; i++)
            horon_mux_forget(mux, recvs[i].id.channel, recvs[i].id.sequence);
    }
    assert_true(mux->table.bits > HORON_MUX_BITS_MIN);
    horon_mux_compare_posted(&mux->table, &pieces[2].id, 1, 7);
    for (int tag = 0; tag < PIECES; tag++)
        assert_int_equal(pieces[tag].status, HORON_ERR_MISMATCH);
    assert_int_equal(recvs[1].status, HORON_OK);
    horon_mux_forget(mux, pieces[0].id.channel, pieces[0].id.sequence);
    assert_int_equal(mux->table.count, 2 + FEW - 1);
    mesh_destroy(&mesh);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_mux_table_chains_are_short_however_many_messages_fly),
        cmocka_unit_test(test_mux_table_without_memory_to_grow_finds_all),
        cmocka_unit_test(test_mux_table_pieces_of_an_operation_stay_together),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
