/* SPDX-License-Identifier: Apache-2.0 */
/* What a peer says of itself may be wrong; what the kernel says of it is not. */
#include "host/process.h"

#include "file.h"

#include <assert.h>
#include <linux/capability.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

static bool ask(int socket, struct ucred *peer)
{
    socklen_t bytes = sizeof *peer;
    assert(socket >= 0); /* a caller that lost it would take the peer for a stranger */
    return getsockopt(socket, SOL_SOCKET, SO_PEERCRED, peer, &bytes) == 0;
}

bool horon_process_is_our_user(int socket)
{
    struct ucred peer;
    return ask(socket, &peer) && peer.uid == geteuid();
}

pid_t horon_process_number(int socket)
{
    struct ucred peer;
    return ask(socket, &peer) && peer.uid == geteuid() ? peer.pid : 0;
}

/* A path that was cut would be that of no file, which may_trace() takes for an older system. */
static void write_path(char *path, size_t path_bytes, const char *proc, const char *name)
{
    const int bytes = snprintf(path, path_bytes, "%s/%s", proc, name);
    assert(bytes > 0);
    assert((size_t)bytes < path_bytes);
}

/* Where it is set to 1 or 2, it asks for this capability; there is nothing to ask beyond. */
static bool may_trace(const char *proc)
{
    char path[256], text[4096];
    write_path(path, sizeof path, proc, "sys/kernel/yama/ptrace_scope");
    if (horon_file_read_text(path, text, sizeof text) == 0 || text[0] == '0')
        return true;
    const bool asks = text[0] == '1' || text[0] == '2';
    write_path(path, sizeof path, proc, "self/status");
    if (!asks || horon_file_read_text(path, text, sizeof text) == 0)
        return false;
    const char *line = strstr(text, "CapEff:");
    return line && strtoull(line + strlen("CapEff:"), NULL, 16) >> CAP_SYS_PTRACE & 1;
}

/* A process may always read itself, unless the system call is not there or is filtered. */
bool horon_process_may_read_others(const char *proc)
{
    char from = 1, to = 0;
    const struct iovec lies = {&from, 1}, into = {&to, 1};
    return prctl(PR_GET_DUMPABLE) == 1 && process_vm_readv(getpid(), &into, 1, &lies, 1, 0) == 1 &&
           may_trace(proc);
}

int horon_process_open_self(void)
{
    return (int)syscall(SYS_pidfd_open, getpid(), 0);
}

/* A process that has ended can be sent signals until its parent has asked. */
bool horon_process_awaits_parent(int pidfd)
{
    struct pollfd end = {.fd = pidfd, .events = POLLIN};
    return poll(&end, 1, 0) == 1 && end.revents & POLLIN &&
           syscall(SYS_pidfd_send_signal, pidfd, 0, NULL, 0) == 0;
}

void horon_process_name(int socket, char *text, size_t text_bytes)
{
    struct ucred peer;
    int bytes;
    if (!ask(socket, &peer))
        bytes = snprintf(text, text_bytes, "a process");
    else if (peer.uid == geteuid())
        bytes = snprintf(text, text_bytes, "process %d", (int)peer.pid);
    else
        bytes =
            snprintf(text, text_bytes, "process %d of user %u", (int)peer.pid, (unsigned)peer.uid);
    assert(bytes > 0);
    assert((size_t)bytes < text_bytes); /* half a number is that of another process */
}
