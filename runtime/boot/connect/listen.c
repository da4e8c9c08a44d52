/* SPDX-License-Identifier: Apache-2.0 */
/* All sockets of a listener have one port: others are told one, and a firewall opens one. */
#include "boot/connect/listen.h"

#include "boot/connect/handshake.h"
#include "host/process.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <sys/socket.h>
#include <unistd.h>

#define PORT_TRIES 16 /* of ports that are free at one address and taken at another */

/* @return false, with errno */
static bool add_listener(struct horon_listeners *listeners, struct horon_address *address)
{
    assert(listeners->count <= HORON_ADDRESSES_MAX);
    horon_fds_hold(listeners->noted);
    const int fd = horon_fds_note(listeners->noted, horon_address_listen(address));
    if (fd >= 0)
        listeners->fds[listeners->count++] = fd;
    return fd >= 0;
}

/* Of datagrams, which none sends: a connection to it asks nobody and leaves nothing behind. */
static int sign_socket(int port, struct horon_address *name)
{
    char text[32];
    snprintf(text, sizeof text, "horon.port.%d", port);
    horon_address_abstract(text, name);
    return socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
}

/* @return false, with errno, EADDRINUSE if another has it: of the port at another address */
static bool put_sign(struct horon_listeners *listeners, int port)
{
    struct horon_address name;
    assert(!listeners->has_sign);
    horon_fds_hold(listeners->noted);
    listeners->sign = horon_fds_note(listeners->noted, sign_socket(port, &name));
    if (listeners->sign < 0)
        return false;
    listeners->has_sign = bind(listeners->sign, &name.any, name.bytes) == 0;
    const int why = errno;
    if (!listeners->has_sign)
        close(listeners->sign);
    errno = why;
    return listeners->has_sign;
}

bool horon_port_has_sign(int port, const struct horon_fds *fds)
{
    struct horon_address name;
    horon_fds_hold(fds);
    int fd = sign_socket(port, &name);
    const bool has = fd >= 0 && connect(fd, &name.any, name.bytes) == 0;
    horon_fd_close(&fd);
    horon_fds_release(fds);
    return has;
}

/* @param port 0: any; updated with the one it got
 * @return false, with errno, EADDRINUSE if the port is taken at one of them */
static bool listen_at_port(const struct horon_addresses *addresses, int *port,
                           struct horon_listeners *listeners)
{
    const int before = listeners->count;
    int why = EADDRNOTAVAIL;
    for (int i = 0; i < addresses->count && why != EADDRINUSE; i++) {
        struct horon_address address = addresses->items[i];
        horon_address_set_port(&address, *port);
        if (add_listener(listeners, &address))
            *port = horon_address_port(&address);
        else
            why = errno; /* perhaps a machine without IPv6 */
    }
    const bool listens = why != EADDRINUSE && listeners->count > before;
    if (listens && (!listeners->named || put_sign(listeners, *port)))
        return true;
    why = listens ? errno : why;
    horon_listeners_close(listeners, before);
    errno = why;
    return false;
}

int horon_listeners_add(const struct horon_addresses *addresses, int first, int last, int start,
                        struct horon_listeners *listeners)
{
    const int tries = first ? last - first + 1 : PORT_TRIES;
    errno = EADDRINUSE;
    for (int i = 0; i < tries && errno == EADDRINUSE; i++) {
        int port = first ? first + (start + i) % tries : 0;
        if (listen_at_port(addresses, &port, listeners))
            return port;
    }
    return -1;
}

horon_status_t horon_listeners_open(struct horon_listeners *listeners,
                                    const struct horon_config *config, bool key_given, int rank,
                                    char told[HORON_ADDRESSES_TEXT_BYTES],
                                    struct horon_error *error)
{
    int first, last;
    struct horon_addresses here, at;
    horon_status_t status =
        horon_addresses_of_machine(config->interfaces, !key_given, &here, error);
    if (status == HORON_OK)
        status = horon_port_range_parse(config->port_range, &first, &last, error);
    if (status != HORON_OK)
        return status;
    at = here;
    if (key_given && !config->interfaces[0])
        horon_addresses_everywhere(&at);
    const int port = horon_listeners_add(&at, first, last, rank, listeners);
    if (port < 0 && first && errno == EADDRINUSE)
        return horon_error_set(error, HORON_ERR_CONFIG, "no port of HORON_PORT_RANGE=%s is free",
                               config->port_range);
    if (port < 0)
        return horon_error_set_errno(error, HORON_ERR_SYSTEM, errno, "this rank cannot listen");
    for (int i = 0; i < here.count; i++)
        horon_address_set_port(&here.items[i], port);
    horon_addresses_write(&here, told, HORON_ADDRESSES_TEXT_BYTES);
    return HORON_OK;
}

void horon_listeners_close(struct horon_listeners *listeners, int kept)
{
    while (listeners->count > kept)
        close(listeners->fds[--listeners->count]);
    if (listeners->has_sign)
        close(listeners->sign);
    listeners->has_sign = false;
}

/* Without pidfds deaths could not be seen: sharing memory would not be safe. */
horon_status_t horon_listeners_open_on_host(struct horon_listeners *listeners, int rank, char *name,
                                            size_t name_bytes, const struct horon_log *log,
                                            struct horon_error *error)
{
    uint64_t random[2];
    struct horon_address address;
    horon_status_t status = horon_random(random, sizeof random, error);
    if (status != HORON_OK)
        return status;
    snprintf(name, name_bytes, "horon-%d-%016" PRIx64 "%016" PRIx64, rank, random[0], random[1]);
    horon_address_abstract(name, &address);
    const int pidfd = horon_process_open_self();
    if (pidfd >= 0)
        close(pidfd);
    if (pidfd >= 0 && add_listener(listeners, &address))
        return HORON_OK;
    HORON_LOG_WARN(log, "no shared memory: no %s (%s)", pidfd < 0 ? "pidfd" : "unix socket",
                   strerrordesc_np(errno));
    name[0] = 0;
    return HORON_OK;
}
