/* SPDX-License-Identifier: Apache-2.0 */
/* What a peer says of itself may be wrong; what the kernel says of it is not. */
#include "boot/host/process.h"

#include <poll.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

static bool ask(int socket, struct ucred *peer)
{
    socklen_t bytes = sizeof *peer;
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
    if (!ask(socket, &peer))
        snprintf(text, text_bytes, "a process");
    else if (peer.uid == geteuid())
        snprintf(text, text_bytes, "process %d", (int)peer.pid);
    else
        snprintf(text, text_bytes, "process %d of user %u", (int)peer.pid, (unsigned)peer.uid);
}
