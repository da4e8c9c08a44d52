/* SPDX-License-Identifier: Apache-2.0 */
/* Socket addresses: text, resolution, those of this machine, and listening on them. */
#ifndef HORON_BASE_ADDRESS_H
#define HORON_BASE_ADDRESS_H

#include "status.h"

#include <netinet/in.h>
#include <stdbool.h>
#include <stddef.h>
#include <sys/socket.h>
#include <sys/un.h>

/** Longest text of a host with its port, final 0 included: DNS allows a name 253 bytes. */
#define HORON_ADDRESS_TEXT_BYTES 260
#define HORON_ADDRESS_BITS_MAX 128 /* of IPv6 */
/** Addresses of one machine that are used at most; more are left out. */
#define HORON_ADDRESSES_MAX 32
/** Room for the text of so many, final 0 included. */
#define HORON_ADDRESSES_TEXT_BYTES 2048

struct horon_address {
    union {
        struct sockaddr any;
        struct sockaddr_in v4;
        struct sockaddr_in6 v6;
        struct sockaddr_un local; /* an abstract name */
    };
    socklen_t bytes;
};

struct horon_addresses {
    int count;
    struct horon_address items[HORON_ADDRESSES_MAX];
};

/** Reads a numeric IPv4 or IPv6 address (brackets allowed). @return false if it is none. */
bool horon_address_parse(const char *text, int port, struct horon_address *address);

/** Cuts "HOST:PORT" or "[HOST]:PORT", of @p bytes. @return false: neither, or no port 1-65535 */
bool horon_address_cut(const char *text, size_t bytes, char host[HORON_ADDRESS_TEXT_BYTES],
                       int *port_out);

/** The abstract unix socket @p name (its bytes, without the leading 0). */
void horon_address_abstract(const char *name, struct horon_address *address);

int horon_address_port(const struct horon_address *address);
void horon_address_set_port(struct horon_address *address, int port);
bool horon_address_is_loopback(const struct horon_address *address);
bool horon_address_is_link_local(const struct horon_address *address);
/** Same family, IPv4 or IPv6, and the same first @p bits (at most all) of the address. */
bool horon_address_agrees(const struct horon_address *a, const struct horon_address *b, int bits);
/** Likewise all of it: the same, whatever the port. */
bool horon_address_same_host(const struct horon_address *a, const struct horon_address *b);

/** "10.1.0.3:4000", "[::1]:4000", "socket horon-..." . @return @p text */
const char *horon_address_text(const struct horon_address *address,
                               char text[HORON_ADDRESS_TEXT_BYTES]);
/** Likewise without the port. */
const char *horon_address_host_text(const struct horon_address *address,
                                    char text[HORON_ADDRESS_TEXT_BYTES]);

/** With the port, of one end of a connected socket, this one or the one @p there. "?": not known */
const char *horon_address_end_text(int socket, bool there, char text[HORON_ADDRESS_TEXT_BYTES]);

/** Is a connected socket its own other end? A connection that leads to a port where nobody listens
 * meets itself, if the kernel gives it that port. */
bool horon_address_is_to_itself(int socket);

/** Adds it, unless it is there already, with that port, or there is no room. */
void horon_addresses_add(struct horon_addresses *addresses, const struct horon_address *address);

/** Writes them as ranks and files tell them: "10.1.0.3:4000,[::1]:4000". */
void horon_addresses_write(const struct horon_addresses *addresses, char *text, size_t text_bytes);
/** Reads that. @return false: it is no such list, or of too many */
bool horon_addresses_read(const char *text, struct horon_addresses *addresses);

/**
 * All addresses of @p host, a name or a numeric address. Blocks: as long as the resolver does;
 * resolve.h has a limit.
 * @return OK, at least one | ERR_CONFIG, the name is unknown
 */
horon_status_t horon_addresses_resolve(const char *host, int port,
                                       struct horon_addresses *addresses,
                                       struct horon_error *error);

/**
 * The addresses of this machine's interfaces that are up, loopback last, IPv6 link-local ones left
 * out (another machine cannot use them without knowing its own interface).
 * @param spec "" for all, or interface names, addresses and CIDR prefixes, comma separated
 * @param loopback_only leave out all others
 * @return OK, at least one | ERR_CONFIG, spec matches nothing; says what there is | ERR_SYSTEM
 */
horon_status_t horon_addresses_of_machine(const char *spec, bool loopback_only,
                                          struct horon_addresses *addresses,
                                          struct horon_error *error);

/** To listen at: all addresses of this machine, those of IPv6 too where there are. */
void horon_addresses_everywhere(struct horon_addresses *addresses);

/** @return is it one of this machine's, or loopback? */
bool horon_address_is_here(const struct horon_address *address);

/** @return of how many of them @p is says true: horon_address_is_loopback(), say */
int horon_addresses_count(const struct horon_addresses *addresses,
                          bool (*is)(const struct horon_address *address));

/** Reads "FIRST-LAST" or "PORT"; "" is 0-0, any. @return OK | ERR_CONFIG, and 0-0 */
horon_status_t horon_port_range_parse(const char *text, int *first_out, int *last_out,
                                      struct horon_error *error);

/**
 * Binds a close-on-exec, non-blocking stream socket and listens; IPv6 takes no IPv4 with it.
 * @param address port 0: any; updated with the one it got
 * @return a descriptor, or -1 with errno
 */
int horon_address_listen(struct horon_address *address);

#endif
