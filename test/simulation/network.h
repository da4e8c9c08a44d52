/* SPDX-License-Identifier: Apache-2.0 */
/* The network between the hosts of a simulation, and rings on a host that are made later. */
#ifndef HORON_TEST_SIMULATION_NETWORK_H
#define HORON_TEST_SIMULATION_NETWORK_H

#include "simulation/simulation.h"

struct sim_network *sim_network_create(struct simulation *sim);
void sim_network_destroy(struct sim_network *network);
/** @p rank's end of the link between hosts; or on one host, where it has none from the start. */
struct horon_link *sim_network_link(struct sim_network *network, int rank, int peer);
/** Are the two on different hosts? */
bool sim_network_crosses(const struct sim_network *network, int rank, int peer);
bool sim_network_has_end(const struct sim_network *network, int rank, int peer);
/** After a turn of @p rank: what it wrote is on its way, what it made room for comes in. */
void sim_network_turned(struct sim_network *network, int rank);
void sim_network_deliver(struct sim_network *network, int from, int to);
/** Could @p rank read from @p peer, or write to it, at once? */
bool sim_network_readable(const struct sim_network *network, int rank, int peer);
bool sim_network_writable(const struct sim_network *network, int rank, int peer);
/** @p rank, which leaves, takes no more connections: what it has not taken is closed. */
void sim_network_refuse(struct sim_network *network, int rank, int peer);
/** The process of @p rank is gone: what it had sent arrives in part or whole, then its end. */
void sim_network_kill(struct sim_network *network, int rank);

#endif
