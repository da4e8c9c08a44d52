/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ports for tests. They lie below those that the kernel hands out, so no program that asks for any
 * port gets one between this look and its use; and tests that run side by side look at different
 * ones. A port where a connection was closed a moment ago counts as taken: a test that holds a port
 * binds it without SO_REUSEADDR, so that no other program can listen there.
 */
#ifndef HORON_TEST_FREE_PORT_H
#define HORON_TEST_FREE_PORT_H

#include <errno.h>
#include <netinet/in.h>
#include <stdbool.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#define FREE_PORT_FIRST 10000
#define FREE_PORT_COUNT 22000
#define FREE_PORTS_OF_A_TEST 64

static inline bool port_is_free_at(const struct sockaddr *address, socklen_t bytes)
{
    const int fd = socket(address->sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return errno == EAFNOSUPPORT;
    const bool is_free = bind(fd, address, bytes) == 0 || errno == EADDRNOTAVAIL;
    close(fd);
    return is_free;
}

static inline bool port_is_free(int port)
{
    const struct sockaddr_in ip4 = {.sin_family = AF_INET,
                                    .sin_addr = {htonl(INADDR_LOOPBACK)},
                                    .sin_port = htons((uint16_t)port)};
    const struct sockaddr_in6 ip6 = {.sin6_family = AF_INET6,
                                     .sin6_addr = IN6ADDR_LOOPBACK_INIT,
                                     .sin6_port = htons((uint16_t)port)};
    return port_is_free_at((const struct sockaddr *)&ip4, sizeof ip4) &&
           port_is_free_at((const struct sockaddr *)&ip6, sizeof ip6);
}

/* @return one that is free on the loopback, as is the next one; another at each call */
static inline int free_port(void)
{
    static int taken;
    for (int tries = 0; tries < FREE_PORT_COUNT; tries++, taken += 2) {
        const int port =
            FREE_PORT_FIRST + (getpid() * FREE_PORTS_OF_A_TEST + taken) % FREE_PORT_COUNT;
        if (!port_is_free(port) || !port_is_free(port + 1))
            continue;
        taken += 2;
        return port;
    }
    abort();
}

/* @return a socket that is bound to a port of the loopback and does not listen, to be closed:
 * connections there are refused, and no other program can listen */
static inline int hold_port(int port)
{
    const struct sockaddr_in address = {.sin_family = AF_INET,
                                        .sin_addr = {htonl(INADDR_LOOPBACK)},
                                        .sin_port = htons((uint16_t)port)};
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0 || bind(fd, (const struct sockaddr *)&address, sizeof address) != 0)
        abort();
    return fd;
}

#endif
