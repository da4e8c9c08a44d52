/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A rank that shares memory with others of its host, which send any notes with any descriptors over
 * real unix sockets: the first byte chooses whether it leads and how many others there are, the
 * rest is a script. Whatever comes: what is taken as shared memory is sealed and of the agreed
 * size, a failure has a reason, and in the end no descriptor is left open.
 */
#undef NDEBUG

#include "boot/share.h"
#include "codec.h"
#include "host/memory.h"
#include "host/note.h"

#include <assert.h>
#include <fcntl.h>
#include <poll.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

enum { HOST_SIZE_MAX = 3, FDS_MAX = 128, FDS_IN_NOTE_MAX = 5, STEPS_MAX = 60 };
enum { ARENA_BYTES = 8192, CONTROL_BYTES = 4096, LOOSE_MAX = 32 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

struct script {
    const uint8_t *bytes;
    size_t left;
};

struct fuzz {
    struct horon_pump pump;
    struct horon_boot boot;
    struct horon_share *share;
    int me, host_size;
    int ends[HOST_SIZE_MAX]; /* the others' sides of the sockets; -1: none, or closed */
    int loose[LOOSE_MAX];    /* memory that was sent and is not sealed */
    int loose_count;
};

static uint8_t next_byte(struct script *script)
{
    if (script->left == 0)
        return 0;
    script->left--;
    return *script->bytes++;
}

/* Which of the first descriptors are open. */
static void look_at_fds(struct pollfd fds[FDS_MAX])
{
    for (int i = 0; i < FDS_MAX; i++)
        fds[i] = (struct pollfd){.fd = i};
    assert(poll(fds, FDS_MAX, 0) >= 0);
}

static int make_memory(size_t bytes, int seals)
{
    int fd = memfd_create("fuzz", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    assert(fd >= 0);
    assert(ftruncate(fd, (off_t)bytes) == 0);
    assert(fcntl(fd, F_ADD_SEALS, seals) == 0);
    return fd;
}

static int some_fd(uint8_t what)
{
    enum { GOOD = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL };
    switch (what % 8) {
    case 0:
    case 1:
        return make_memory(ARENA_BYTES, GOOD);
    case 2:
        return make_memory(CONTROL_BYTES, GOOD);
    case 3:
        return make_memory(ARENA_BYTES, F_SEAL_GROW);
    case 4:
        return make_memory(ARENA_BYTES, GOOD | F_SEAL_WRITE);
    case 5:
        return make_memory(0, GOOD);
    case 6:
        return open("/dev/null", O_RDWR | O_CLOEXEC);
    default:
        return eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    }
}

static void send_message(int socket, const void *bytes, size_t byte_count, const int *fds,
                         size_t fd_count)
{
    _Alignas(struct cmsghdr) char control[CMSG_SPACE(FDS_IN_NOTE_MAX * sizeof(int))] = {0};
    struct iovec vector = {.iov_base = (void *)(uintptr_t)bytes, .iov_len = byte_count};
    struct msghdr message = {.msg_iov = &vector, .msg_iovlen = 1};
    if (fd_count) {
        message.msg_control = control;
        message.msg_controllen = CMSG_SPACE(fd_count * sizeof(int));
        struct cmsghdr *rights = CMSG_FIRSTHDR(&message);
        rights->cmsg_level = SOL_SOCKET;
        rights->cmsg_type = SCM_RIGHTS;
        rights->cmsg_len = CMSG_LEN(fd_count * sizeof(int));
        memcpy(CMSG_DATA(rights), fds, fd_count * sizeof(int));
    }
    if (byte_count)
        (void)sendmsg(socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
}

/* A note that is right but for what the script says, in one message or two. */
static void say_note(struct fuzz *fuzz, int from, struct script *script)
{
    const uint8_t what = next_byte(script), count = next_byte(script), cut = next_byte(script);
    uint8_t raw[HORON_NOTE_BYTES];
    int fds[FDS_IN_NOTE_MAX];
    const size_t fd_count = count % (FDS_IN_NOTE_MAX + 1);
    struct horon_writer out = horon_writer_over(raw, sizeof raw);
    horon_write_u32(&out, what & 64 && what & 128 ? 7 : 0x45544f4e);
    horon_write_u32(&out, what == 255);
    horon_write_u32(&out, what >> 2 & 7);
    horon_write_u32(&out, count & 128 ? count >> 3 & 7 : (uint32_t)fd_count);
    horon_write_u64(&out, what & 32 && what & 64 ? cut : ARENA_BYTES);
    for (size_t i = 0; i < fd_count; i++) {
        fds[i] = some_fd(next_byte(script));
        assert(fds[i] >= 0);
    }
    if (fd_count && fuzz->loose_count < LOOSE_MAX && fcntl(fds[0], F_GET_SEALS) == F_SEAL_GROW)
        fuzz->loose[fuzz->loose_count++] = fcntl(fds[0], F_DUPFD_CLOEXEC, 0);
    const size_t first = cut & 1 ? 1 + cut / 2 % (sizeof raw - 1) : sizeof raw;
    send_message(fuzz->ends[from], raw, first, fds, fd_count);
    send_message(fuzz->ends[from], raw + first, sizeof raw - first, fds, cut & 2 ? fd_count : 0);
    for (size_t i = 0; i < fd_count; i++)
        close(fds[i]);
}

static void say_bytes(struct fuzz *fuzz, int from, struct script *script)
{
    size_t bytes = next_byte(script) % 64;
    bytes = bytes < script->left ? bytes : script->left;
    send_message(fuzz->ends[from], script->bytes, bytes, NULL, 0);
    script->bytes += bytes;
    script->left -= bytes;
}

/* What it sends must be good notes, whatever it was told. */
static void hear(struct fuzz *fuzz, int at)
{
    struct horon_note note;
    struct horon_error error = {0};
    horon_status_t status;
    while ((status = horon_note_receive(fuzz->ends[at], &note, &error)) == HORON_OK) {
        assert(note.bytes == ARENA_BYTES);
        assert(note.local_rank != (uint32_t)at);
        assert(note.fd_count == (note.local_rank == 0 ? 4 : 3));
        horon_note_close(&note);
    }
    assert(status == HORON_AGAIN || status == HORON_ERR_PEER_LOST);
}

static void hang_up(struct fuzz *fuzz, int at)
{
    close(fuzz->ends[at]);
    fuzz->ends[at] = -1;
}

/* The others take back what they can. */
static void check(const struct fuzz *fuzz)
{
    struct horon_error error = {0};
    const horon_status_t status = horon_share_state(fuzz->share, &error);
    assert(status == HORON_OK || status == HORON_AGAIN || error.text[0]);
    for (int i = 0; i < fuzz->loose_count; i++)
        assert(ftruncate(fuzz->loose[i], 0) == 0);
    for (int i = 0; i < fuzz->host_size; i++) {
        const struct horon_map *arena = &fuzz->boot.local[i].arena;
        assert(status != HORON_OK || arena->base);
        if (arena->base)
            ((volatile uint8_t *)arena->base)[ARENA_BYTES - 1] = 1;
    }
    assert(status != HORON_OK || fuzz->boot.control.base);
    if (fuzz->boot.control.base)
        ((volatile uint8_t *)fuzz->boot.control.base)[CONTROL_BYTES - 1] = 1;
}

static void play(struct fuzz *fuzz, struct script *script)
{
    for (int step = 0; step < STEPS_MAX && script->left > 0; step++) {
        const uint8_t what = next_byte(script);
        const int from = fuzz->me ? 0 : 1 + (what >> 3) % (fuzz->host_size - 1);
        if (fuzz->ends[from] < 0)
            continue;
        switch (what & 7) {
        case 0:
            say_bytes(fuzz, from, script);
            break;
        case 1:
            hear(fuzz, from);
            break;
        case 2:
            horon_pump_turn(&fuzz->pump, 0);
            break;
        case 3:
            if (what & 128)
                hang_up(fuzz, from);
            break;
        default:
            say_note(fuzz, from, script);
        }
    }
    for (int turn = 0; turn < 8 && horon_pump_turn(&fuzz->pump, 0) == HORON_OK; turn++)
        ;
    check(fuzz);
}

static bool begin(struct fuzz *fuzz, uint8_t place)
{
    static const int leader_of[HOST_SIZE_MAX];
    static const char names[HOST_SIZE_MAX][64] = {"a", "a", "a"};
    struct horon_error error = {0};
    *fuzz = (struct fuzz){.host_size = 2 + (place >> 1 & 1)};
    fuzz->me = place & 1 ? fuzz->host_size - 1 : 0;
    horon_boot_init(&fuzz->boot);
    assert(horon_pump_init(&fuzz->pump, &error) == HORON_OK);
    assert(horon_topology_init(&fuzz->boot.topology, fuzz->me, fuzz->host_size, leader_of, names,
                               &error) == HORON_OK);
    const struct horon_share_options options = {.pump = &fuzz->pump,
                                                .boot = &fuzz->boot,
                                                .control_bytes = CONTROL_BYTES,
                                                .arena_bytes = ARENA_BYTES,
                                                .group_ranks = fuzz->host_size};
    if (horon_share_create(&options, &fuzz->share, &error) != HORON_OK)
        return false;
    for (int i = 0; i < fuzz->host_size; i++) {
        int pair[2];
        fuzz->ends[i] = -1;
        if (i == fuzz->me || (fuzz->me != 0 && i != 0))
            continue;
        assert(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair) == 0);
        fuzz->boot.local[i].socket = pair[0];
        horon_share_connected(fuzz->share, i);
        fuzz->ends[i] = pair[1];
    }
    return true;
}

static void end(struct fuzz *fuzz)
{
    horon_share_destroy(fuzz->share);
    for (int i = 0; i < fuzz->host_size; i++)
        if (fuzz->ends[i] >= 0)
            hang_up(fuzz, i);
    for (int i = 0; i < fuzz->loose_count; i++)
        close(fuzz->loose[i]);
    horon_boot_deinit(&fuzz->boot);
    horon_pump_deinit(&fuzz->pump);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    struct script script = {.bytes = data, .left = bytes};
    struct pollfd before[FDS_MAX], after[FDS_MAX];
    struct fuzz fuzz;
    look_at_fds(before);
    if (begin(&fuzz, next_byte(&script)))
        play(&fuzz, &script);
    end(&fuzz);
    look_at_fds(after);
    for (int i = 0; i < FDS_MAX; i++)
        assert((before[i].revents & POLLNVAL) == (after[i].revents & POLLNVAL));
    return 0;
}
