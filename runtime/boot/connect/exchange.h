/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A key exchange between two that know the same secret: SPAKE2 (RFC 9382) over P-256. Each sends
 * one share; what both then compute is known to nobody else, and differs if the secrets do. Pure.
 */
#ifndef HORON_BOOT_CONNECT_EXCHANGE_H
#define HORON_BOOT_CONNECT_EXCHANGE_H

#include "status.h"

#include <stdint.h>

#define HORON_SCALAR_BYTES 32
#define HORON_SEED_BYTES 48  /* makes a scalar that is even to within 2^-128 */
#define HORON_POINT_BYTES 65 /* uncompressed */

enum horon_side { HORON_SIDE_CONNECTOR = 0, HORON_SIDE_ACCEPTOR = 1 };

/** The secret as the exchange needs it: what hides the share of each side. */
struct horon_exchange_masks {
    uint8_t of[2][HORON_POINT_BYTES];
};

/** @param seed drawn from the secret alone. @return OK | ERR_SYSTEM, libcrypto lacks the curve */
horon_status_t horon_exchange_masks(const uint8_t seed[HORON_SEED_BYTES],
                                    struct horon_exchange_masks *masks_out);

/** @param seed random, never used twice. @param scalar_out to be kept secret, and wiped
 * @return OK | ERR_SYSTEM */
horon_status_t horon_exchange_begin(const struct horon_exchange_masks *masks, enum horon_side side,
                                    const uint8_t seed[HORON_SEED_BYTES],
                                    uint8_t scalar_out[HORON_SCALAR_BYTES],
                                    uint8_t share_out[HORON_POINT_BYTES]);

/** @param side ours. @return OK | ERR_PROTO, @p theirs is no share | ERR_SYSTEM */
horon_status_t horon_exchange_end(const struct horon_exchange_masks *masks, enum horon_side side,
                                  const uint8_t scalar[HORON_SCALAR_BYTES],
                                  const uint8_t theirs[HORON_POINT_BYTES],
                                  uint8_t shared_out[HORON_POINT_BYTES]);

#endif
