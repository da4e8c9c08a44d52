/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which ranks can really share memory. Candidates (same kernel, same network namespace)
 * try: each connects to the lowest one, the leader, over an abstract unix socket and proves the
 * key. Who succeeds is of the leader's host; who does not is a host of its own. share.h does the
 * rest.
 */
#ifndef HORON_BOOT_HOST_H
#define HORON_BOOT_HOST_H

#include "boot/auth.h"
#include "boot/boot.h"
#include "boot/pump.h"

struct horon_host;

struct horon_host_options {
    struct horon_pump *pump; /* outlives the host, as do key and log */
    const struct horon_auth_key *key;
    struct horon_hello hello;     /* ours, with role HOST and the job */
    int leader;                   /* lowest candidate; ourselves if that is us */
    const char *leader_socket;    /* its abstract socket's name */
    const uint8_t *leader_member; /* [HORON_MEMBER_BYTES] */
    const struct horon_log *log;
};

/**
 * Listens at an abstract unix socket of a random name, before anybody knows who will lead.
 * @param name [name_bytes] the name, to be put on our card; "" if this process cannot share memory
 * @return OK, *fd_out is the caller's; -1 with "" | ERR_SYSTEM
 */
horon_status_t horon_host_listen(int rank, char *name, size_t name_bytes, int *fd_out,
                                 struct horon_fds *fds, const struct horon_log *log,
                                 struct horon_error *error);

/**
 * Starts to meet the leader, or, as leader, the others.
 * @param listener from horon_host_listen(); the host's from now on
 */
horon_status_t horon_host_create(const struct horon_host_options *options, int listener,
                                 struct horon_host **host_out, struct horon_error *error);

/** @return the rank that leads our host: AGAIN while it is not known, else OK. Not reaching the
 * leader is no failure: we lead a host of our own then. */
horon_status_t horon_host_leader(const struct horon_host *host, int *leader_out);

/** @return OK, all ranks of our host are here | AGAIN, turn the pump: some have yet to be accepted
 * | ERR_SYSTEM, one was let in but cannot be kept */
horon_status_t horon_host_complete(const struct horon_host *host,
                                   const struct horon_topology *topology,
                                   struct horon_error *error);

/** Hands over the proven connection to a rank of our host, non-blocking, and for the leader the
 * pidfd of its process. -1 for one that is not connected to us. */
void horon_host_take(struct horon_host *host, int rank, int *socket_out, int *pidfd_out);

/** Closes what was not taken. NULL is a no-op. */
void horon_host_destroy(struct horon_host *host);

#endif
