/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which ranks can really share memory. Candidates (same kernel, same network namespace) try: each
 * connects to the lowest one, the leader, over an abstract unix socket and proves the key. Who
 * succeeds is of the leader's host; who does not is a host of its own. The connections go to
 * share.h, which does the rest.
 */
#ifndef HORON_BOOT_HOST_H
#define HORON_BOOT_HOST_H

#include "boot/auth.h"
#include "boot/boot.h"
#include "boot/pump.h"
#include "boot/share.h"

struct horon_host_meeting;

struct horon_host_meeting_options {
    struct horon_pump *pump; /* outlives the meeting, as do key, share and log */
    const struct horon_auth_key *key;
    struct horon_hello hello;     /* ours, with role HOST and the job */
    int leader;                   /* lowest candidate; ourselves if that is us */
    const char *leader_socket;    /* its abstract socket's name */
    const uint8_t *leader_member; /* [HORON_MEMBER_BYTES] */
    struct horon_share *share;    /* gets the connections */
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
 * @param listener from horon_host_listen(); the meeting's from now on
 */
horon_status_t horon_host_meeting_create(const struct horon_host_meeting_options *options,
                                         int listener, struct horon_host_meeting **meeting_out,
                                         struct horon_error *error);

/** @return the rank that leads our host: AGAIN while it is not known, else OK. Not reaching the
 * leader is no failure: we lead a host of our own then. */
horon_status_t horon_host_meeting_leader(const struct horon_host_meeting *meeting, int *leader_out);

/** NULL is a no-op. */
void horon_host_meeting_destroy(struct horon_host_meeting *meeting);

#endif
