/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ports for tests. They lie below those that the kernel hands out, so no program that asks for any
 * port gets one between this look and its use. Tests that run side by side have blocks of their
 * own, by names that live in the same network namespace as the ports: one that another test took
 * between look and use gave it that one's ranks, which have the same key. A block ends with ports
 * that nobody gets, as ranks may look for rank 0 at a row of ports. A process gets its first block
 * before main(), so that its count of descriptors stays, and the next where one is used up.
 *
 * A port where a connection was closed a moment ago counts as taken: a test that holds a port binds
 * it without SO_REUSEADDR, so that no other program can listen there.
 */
#ifndef HORON_TEST_FREE_PORT_H
#define HORON_TEST_FREE_PORT_H

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#define FREE_PORT_FIRST 10000
#define FREE_PORT_BLOCKS 156 /* up to where tests that start hydra have theirs */
#define FREE_PORT_BLOCK 64
#define FREE_PORT_GIVEN 48 /* of a block */

static struct {
    int name; /* of its block: a socket; -1: it has none */
    int block, used;
    pid_t process;
} free_ports = {.name = -1};

/* @return a socket that has the block's name; -1: another process has it, with errno */
static inline int take_port_block(int block)
{
    struct sockaddr_un name = {.sun_family = AF_UNIX};
    const size_t bytes =
        (size_t)snprintf(name.sun_path + 1, sizeof name.sun_path - 1, "horon.test.ports.%d", block);
    const int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    const size_t length = offsetof(struct sockaddr_un, sun_path) + 1 + bytes;
    if (fd < 0)
        abort();
    if (bind(fd, (const struct sockaddr *)&name, (socklen_t)length) == 0)
        return fd;
    close(fd);
    return -1;
}

/* The next block that nobody has, in place of this one; a child leaves its parent's alone. */
__attribute__((constructor)) static inline void next_port_block(void)
{
    const pid_t process = getpid();
    const int first = free_ports.process == process ? free_ports.block + 1 : process;
    for (int i = 0; i < FREE_PORT_BLOCKS; i++) {
        const int block = (first + i) % FREE_PORT_BLOCKS, name = take_port_block(block);
        if (name < 0)
            continue;
        if (free_ports.name >= 0 && dup3(name, free_ports.name, O_CLOEXEC) >= 0)
            close(name);
        else
            free_ports.name = name;
        free_ports.block = block;
        free_ports.used = 0;
        free_ports.process = process;
        return;
    }
    abort();
}

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
    for (int tries = 0; tries < FREE_PORT_BLOCKS * FREE_PORT_GIVEN; tries++) {
        if (free_ports.process != getpid() || free_ports.used == FREE_PORT_GIVEN)
            next_port_block();
        const int port = FREE_PORT_FIRST + free_ports.block * FREE_PORT_BLOCK + free_ports.used;
        free_ports.used += 2;
        if (port_is_free(port) && port_is_free(port + 1))
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
