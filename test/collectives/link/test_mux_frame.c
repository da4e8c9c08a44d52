/* SPDX-License-Identifier: Apache-2.0 */
/* The codec of frame headers: what is written is read back, and what a peer may not say is refused.
 */
#include "../worlds.h"

#include "link/mux_frame.h"

#include <string.h>

static const struct horon_mux_frame_limits limits = {
    .generation = 7, .control_bytes_max = 1000, .peer_name = "rank 3 (host-b)"};

static struct horon_mux_frame data_frame(void)
{
    return (struct horon_mux_frame){
        .type = HORON_MUX_DATA,
        .flags = HORON_MUX_FLAG_EAGER,
        .generation = 7,
        .body_bytes = 0x00010203,
        .channel = 0x11121314,
        .sequence = 0x2122232425262728,
        .tag = 0x3132333435363738,
        .check = 0xf1f2f3f4f5f6f7f8,
        .bytes = 0x4142434445464748,
        .offset = 0x0142434445464748,
        .returned_bytes = 0x61626364,
        .returned_transfers = 0x71727374,
    };
}

/* All of its transfer. */
static struct horon_mux_frame announcing_frame(void)
{
    struct horon_mux_frame frame = data_frame();
    frame.flags = HORON_MUX_FLAG_EAGER | HORON_MUX_FLAG_ANNOUNCES;
    frame.tag = 0x5b;
    frame.bytes = frame.body_bytes;
    frame.offset = 0;
    return frame;
}

static horon_status_t decode(const struct horon_mux_frame *frame, struct horon_mux_frame *out,
                             struct horon_error *error)
{
    uint8_t header[HORON_MUX_HEADER_BYTES];
    horon_mux_frame_encode(frame, header);
    return horon_mux_frame_decode(header, &limits, out, error);
}

static void header_refused(const uint8_t *header, const char *why)
{
    struct horon_mux_frame out = {0};
    struct horon_error error = {0};
    assert_int_equal(horon_mux_frame_decode(header, &limits, &out, &error), HORON_ERR_PROTO);
    assert_non_null(strstr(error.text, "rank 3 (host-b)"));
    if (!strstr(error.text, why))
        fail_msg("expected \"%s\" in \"%s\"", why, error.text);
    assert_int_equal(out.type, 0); /* set on success only */
}

static void refused(struct horon_mux_frame frame, const char *why)
{
    uint8_t header[HORON_MUX_HEADER_BYTES];
    horon_mux_frame_encode(&frame, header);
    header_refused(header, why);
}

static void test_mux_frame_encoded_is_decoded_to_the_same(void **state)
{
    (void)state;
    const struct horon_mux_frame frames[] = {data_frame(), announcing_frame()};
    for (size_t i = 0; i < 2; i++) {
        const struct horon_mux_frame frame = frames[i];
        struct horon_mux_frame out;
        memset(&out, 0, sizeof out);
        assert_int_equal(decode(&frame, &out, NULL), HORON_OK);
        assert_int_equal(out.type, frame.type);
        assert_int_equal(out.flags, frame.flags);
        assert_int_equal(out.generation, frame.generation);
        assert_int_equal(out.body_bytes, frame.body_bytes);
        assert_int_equal(out.channel, frame.channel);
        assert_int_equal(out.sequence, frame.sequence);
        assert_int_equal(out.tag, frame.tag);
        assert_int_equal(out.check, frame.check);
        assert_int_equal(out.bytes, frame.bytes);
        assert_int_equal(out.offset, frame.offset);
        assert_int_equal(out.returned_bytes, frame.returned_bytes);
        assert_int_equal(out.returned_transfers, frame.returned_transfers);
    }
}

static void test_mux_frame_has_the_layout_of_the_header_file(void **state)
{
    (void)state;
    const struct horon_mux_frame frame = data_frame();
    uint8_t header[HORON_MUX_HEADER_BYTES];
    assert_int_equal(horon_mux_frame_encode(&frame, header), sizeof header);
    assert_int_equal(horon_mux_frame_header_bytes(header), sizeof header);
    static const uint8_t expected[HORON_MUX_HEADER_BYTES] = {
        0x48, 0x6f, 2,    1,    7,    0,    0,    0,    0x03, 0x02, 0x01, 0,    0x14,
        0x13, 0x12, 0x11, 0x28, 0x27, 0x26, 0x25, 0x24, 0x23, 0x22, 0x21, 0x38, 0x37,
        0x36, 0x35, 0x34, 0x33, 0x32, 0x31, 0xf8, 0xf7, 0xf6, 0xf5, 0xf4, 0xf3, 0xf2,
        0xf1, 0x48, 0x47, 0x46, 0x45, 0x44, 0x43, 0x42, 0x41, 0x48, 0x47, 0x46, 0x45,
        0x44, 0x43, 0x42, 0x01, 0x64, 0x63, 0x62, 0x61, 0x74, 0x73, 0x72, 0x71};
    assert_memory_equal(header, expected, sizeof expected);
}

static void test_mux_frame_that_announces_has_the_short_layout(void **state)
{
    (void)state;
    const struct horon_mux_frame frame = announcing_frame();
    uint8_t header[HORON_MUX_HEADER_BYTES];
    static const uint8_t expected[HORON_MUX_SHORT_HEADER_BYTES] = {
        0x48, 0x6f, 8,    0x5b, 7,    0,    0,    0,    0x03, 0x02, 0x01, 0,    0x14, 0x13,
        0x12, 0x11, 0x28, 0x27, 0x26, 0x25, 0x24, 0x23, 0x22, 0x21, 0xf8, 0xf7, 0xf6, 0xf5,
        0xf4, 0xf3, 0xf2, 0xf1, 0x64, 0x63, 0x62, 0x61, 0x74, 0x73, 0x72, 0x71};
    assert_int_equal(horon_mux_frame_encode(&frame, header), sizeof expected);
    assert_int_equal(horon_mux_frame_header_bytes(header), sizeof expected);
    assert_memory_equal(header, expected, sizeof expected);
}

static void test_mux_frame_short_beyond_a_bound_is_refused(void **state)
{
    (void)state;
    uint8_t header[HORON_MUX_HEADER_BYTES] = {0};
    struct horon_mux_frame frame = announcing_frame();
    frame.generation = 8;
    refused(frame, "generation 8");
    frame = announcing_frame();
    frame.bytes = frame.body_bytes = (uint32_t)HORON_MUX_BODY_BYTES_MAX + 1;
    refused(frame, "too long a piece of data");
    frame = announcing_frame();
    horon_mux_frame_encode(&frame, header);
    header[1]++;
    header_refused(header, "no frame");
}

static void test_mux_frame_without_magic_is_refused(void **state)
{
    (void)state;
    struct horon_error error = {0};
    struct horon_mux_frame out;
    uint8_t header[HORON_MUX_HEADER_BYTES] = "HTTP/1.1 200 OK";
    assert_int_equal(horon_mux_frame_decode(header, &limits, &out, &error), HORON_ERR_PROTO);
    assert_string_equal(error.text, "rank 3 (host-b) sent bytes that are no frame");
}

static void test_mux_frame_beyond_a_bound_is_refused(void **state)
{
    (void)state;
    struct horon_mux_frame frame = data_frame();
    frame.generation = 8;
    refused(frame, "generation 8");
    frame = data_frame();
    frame.type = 0;
    refused(frame, "unknown type");
    frame.type = HORON_MUX_TAKEN + 2; /* the next one is that of a short header */
    refused(frame, "unknown type");
    frame = data_frame();
    frame.flags = 4;
    refused(frame, "unknown flags");
    for (uint8_t flags = 2; flags < 4; flags++) { /* one that announces has a short header */
        uint8_t header[HORON_MUX_HEADER_BYTES];
        frame = data_frame();
        horon_mux_frame_encode(&frame, header);
        header[3] = flags;
        header_refused(header, "unknown flags");
    }
    frame.bytes = frame.body_bytes;
    frame.offset = 1;
    refused(frame, "beyond the end");
    frame = data_frame();
    frame.body_bytes = (uint32_t)HORON_MUX_BODY_BYTES_MAX + 1;
    refused(frame, "too long a piece of data");
    frame = data_frame();
    frame.offset = frame.bytes + 1;
    refused(frame, "beyond the end");
    frame = data_frame();
    frame.offset = frame.bytes - frame.body_bytes + 1;
    refused(frame, "beyond the end");
    frame = data_frame();
    frame.offset = UINT64_MAX; /* offset + body_bytes would overflow */
    refused(frame, "beyond the end");
    frame = data_frame();
    frame.body_bytes = 0;
    refused(frame, "without data");
    frame =
        (struct horon_mux_frame){.type = HORON_MUX_CONTROL, .generation = 7, .body_bytes = 1001};
    refused(frame, "too long a control message");
    frame.body_bytes = 1000;
    frame.flags = 1;
    refused(frame, "unknown flags");
    for (uint8_t type = HORON_MUX_CREDIT; type <= HORON_MUX_TAKEN; type++) {
        if (type == HORON_MUX_LOAN)
            continue;
        frame = (struct horon_mux_frame){.type = type, .generation = 7, .body_bytes = 1};
        refused(frame, "a body where none belongs");
        frame.body_bytes = 0;
        frame.flags = 1;
        refused(frame, "unknown flags");
    }
    for (uint32_t body = 0; body < 2 * HORON_MUX_LOAN_BYTES; body++) {
        frame = (struct horon_mux_frame){
            .type = HORON_MUX_LOAN, .generation = 7, .body_bytes = body, .bytes = 100};
        if (body != HORON_MUX_LOAN_BYTES)
            refused(frame, "a loan of another form");
        frame.flags = 1;
        refused(frame, "unknown flags");
    }
}

static void test_mux_frame_loan_has_the_layout_of_the_header_file(void **state)
{
    (void)state;
    const struct horon_mux_loan loan = {.at = 0x0102030405060708, .stamp = 0x1112131415161718};
    uint8_t body[HORON_MUX_LOAN_BYTES];
    static const uint8_t expected[HORON_MUX_LOAN_BYTES] = {0x08, 0x07, 0x06, 0x05, 0x04, 0x03,
                                                           0x02, 0x01, 0x18, 0x17, 0x16, 0x15,
                                                           0x14, 0x13, 0x12, 0x11};
    horon_mux_loan_encode(&loan, body);
    assert_memory_equal(body, expected, sizeof expected);
    const struct horon_mux_loan read = horon_mux_loan_decode(body);
    assert_memory_equal(&read, &loan, sizeof loan);
}

static void test_mux_frame_at_its_bound_is_taken(void **state)
{
    (void)state;
    struct horon_mux_frame out;
    struct horon_mux_frame frame = data_frame();
    frame.body_bytes = (uint32_t)HORON_MUX_BODY_BYTES_MAX;
    assert_int_equal(decode(&frame, &out, NULL), HORON_OK);
    frame.offset = frame.bytes - frame.body_bytes;
    assert_int_equal(decode(&frame, &out, NULL), HORON_OK);
    frame.offset = frame.bytes = frame.body_bytes = 0; /* nothing, and yet a meeting */
    assert_int_equal(decode(&frame, &out, NULL), HORON_OK);
    frame =
        (struct horon_mux_frame){.type = HORON_MUX_CONTROL, .generation = 7, .body_bytes = 1000};
    assert_int_equal(decode(&frame, &out, NULL), HORON_OK);
    frame = (struct horon_mux_frame){
        .type = HORON_MUX_LOAN, .generation = 7, .body_bytes = HORON_MUX_LOAN_BYTES};
    assert_int_equal(decode(&frame, &out, NULL), HORON_OK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_mux_frame_encoded_is_decoded_to_the_same),
        cmocka_unit_test(test_mux_frame_has_the_layout_of_the_header_file),
        cmocka_unit_test(test_mux_frame_that_announces_has_the_short_layout),
        cmocka_unit_test(test_mux_frame_short_beyond_a_bound_is_refused),
        cmocka_unit_test(test_mux_frame_without_magic_is_refused),
        cmocka_unit_test(test_mux_frame_beyond_a_bound_is_refused),
        cmocka_unit_test(test_mux_frame_loan_has_the_layout_of_the_header_file),
        cmocka_unit_test(test_mux_frame_at_its_bound_is_taken),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
