/* SPDX-License-Identifier: Apache-2.0 */
/* Notes with descriptors over a socket pair: whole, in a row, wrong, with too many. */
#undef NDEBUG
#include "host/note.h"

#include "../boot/boots.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

static int ends[2], fds_before;
static int fails_with; /* the next sendmsg(); 0: it does not */

ssize_t __real_sendmsg(int socket, const struct msghdr *message, int flags);
ssize_t __wrap_sendmsg(int socket, const struct msghdr *message, int flags);
ssize_t __wrap_sendmsg(int socket, const struct msghdr *message, int flags)
{
    if (!fails_with)
        return __real_sendmsg(socket, message, flags);
    errno = fails_with;
    fails_with = 0;
    return -1;
}

static int open_pair(void **state)
{
    (void)state;
    fds_before = count_fds();
    return socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends);
}

static int close_pair(void **state)
{
    (void)state;
    close(ends[0]);
    close(ends[1]);
    return count_fds() == fds_before ? 0 : -1; /* each test leaves nothing open */
}

static void test_note_keeps_its_descriptors(void **state)
{
    struct horon_error error = {0};
    struct horon_note got;
    int events[HORON_NOTE_FDS_MAX];
    (void)state;
    for (int i = 0; i < HORON_NOTE_FDS_MAX; i++)
        events[i] = eventfd((unsigned)(10 + i), EFD_CLOEXEC);
    for (int count = 1; count <= HORON_NOTE_FDS_MAX; count++) {
        struct horon_note note = {
            .local_rank = (uint32_t)count, .bytes = UINT64_MAX, .fd_count = count};
        memcpy(note.fds, events, sizeof events);
        assert_int_equal(horon_note_send(ends[0], &note, &error), HORON_OK);
    }
    for (int count = 1; count <= HORON_NOTE_FDS_MAX; count++) {
        assert_int_equal(horon_note_receive(ends[1], &got, &error), HORON_OK);
        assert_int_equal(got.local_rank, count);
        assert_true(got.bytes == UINT64_MAX);
        assert_int_equal(got.fd_count, count);
        uint64_t value = 0;
        assert_int_equal(read(got.fds[count - 1], &value, sizeof value), sizeof value);
        assert_int_equal(value, 10 + count - 1); /* read once: the last of each is another */
        assert_true(fcntl(got.fds[0], F_GETFD) & FD_CLOEXEC);
        horon_note_close(&got);
    }
    assert_int_equal(horon_note_receive(ends[1], &got, &error), HORON_AGAIN);
    for (int i = 0; i < HORON_NOTE_FDS_MAX; i++)
        close(events[i]);
}

static void test_note_hang_up_is_a_lost_peer(void **state)
{
    struct horon_error error = {0};
    struct horon_note note;
    (void)state;
    shutdown(ends[0], SHUT_RDWR);
    assert_int_equal(horon_note_receive(ends[1], &note, &error), HORON_ERR_PEER_LOST);
    const struct horon_note mine = {.local_rank = 1, .fds = {ends[0]}, .fd_count = 1};
    assert_int_equal(horon_note_send(ends[1], &mine, &error), HORON_ERR_PEER_LOST);
}

/* The process at the other end lives, unless its socket is closed. */
static void test_note_that_cannot_be_sent_says_whether_its_peer_is_gone(void **state)
{
    static const struct {
        int why;
        horon_status_t status;
    } rows[] = {{EAGAIN, HORON_AGAIN},           {ETOOMANYREFS, HORON_IN_PROGRESS},
                {ENOBUFS, HORON_IN_PROGRESS},    {ENOMEM, HORON_IN_PROGRESS},
                {EPIPE, HORON_ERR_PEER_LOST},    {ECONNRESET, HORON_ERR_PEER_LOST},
                {ENOTCONN, HORON_ERR_PEER_LOST}, {EPERM, HORON_ERR_SYSTEM}};
    const struct horon_note mine = {.local_rank = 1, .fds = {ends[0]}, .fd_count = 1};
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct horon_error error = {0};
        fails_with = rows[i].why;
        assert_int_equal(horon_note_send(ends[1], &mine, &error), rows[i].status);
    }
}

static void test_note_bytes_that_are_no_note_are_refused(void **state)
{
    const uint8_t junk[HORON_NOTE_BYTES] = {1, 2, 3};
    struct horon_error error = {0};
    struct horon_note note;
    (void)state;
    for (size_t bytes = 1; bytes <= sizeof junk; bytes++) {
        assert_int_equal(send(ends[0], junk, bytes, 0), bytes);
        assert_int_equal(horon_note_receive(ends[1], &note, &error), HORON_ERR_PROTO);
        assert_int_equal(horon_note_receive(ends[1], &note, &error), HORON_AGAIN);
    }
}

/* A note that says one descriptor and brings none; then more than anybody may send. */
static void test_note_wrong_number_of_descriptors_is_refused(void **state)
{
    struct horon_error error = {0};
    struct horon_note note = {.local_rank = 1, .fds = {ends[0]}, .fd_count = 1};
    uint8_t raw[HORON_NOTE_BYTES];
    (void)state;
    assert_int_equal(horon_note_send(ends[0], &note, &error), HORON_OK);
    assert_int_equal(recv(ends[1], raw, sizeof raw, 0), sizeof raw); /* its descriptor is lost */
    assert_int_equal(send(ends[0], raw, sizeof raw, 0), sizeof raw);
    assert_int_equal(horon_note_receive(ends[1], &note, &error), HORON_ERR_PROTO);

    _Alignas(struct cmsghdr) char control[CMSG_SPACE(40 * sizeof(int))] = {0};
    struct iovec vector = {.iov_base = raw, .iov_len = sizeof raw};
    struct msghdr message = {.msg_iov = &vector,
                             .msg_iovlen = 1,
                             .msg_control = control,
                             .msg_controllen = sizeof control};
    struct cmsghdr *rights = CMSG_FIRSTHDR(&message);
    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = CMSG_LEN(40 * sizeof(int));
    for (size_t i = 0; i < 40; i++)
        memcpy(CMSG_DATA(rights) + i * sizeof(int), &ends[0], sizeof(int));
    assert_int_equal(sendmsg(ends[0], &message, 0), sizeof raw);
    assert_int_equal(horon_note_receive(ends[1], &note, &error), HORON_ERR_SYSTEM);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_note_keeps_its_descriptors, open_pair, close_pair),
        cmocka_unit_test_setup_teardown(test_note_hang_up_is_a_lost_peer, open_pair, close_pair),
        cmocka_unit_test_setup_teardown(test_note_that_cannot_be_sent_says_whether_its_peer_is_gone,
                                        open_pair, close_pair),
        cmocka_unit_test_setup_teardown(test_note_bytes_that_are_no_note_are_refused, open_pair,
                                        close_pair),
        cmocka_unit_test_setup_teardown(test_note_wrong_number_of_descriptors_is_refused, open_pair,
                                        close_pair),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
