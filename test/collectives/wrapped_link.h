/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A link that changes what goes through it, as one that enciphers will: bytes are taken into frames
 * with a head and a sum, and each byte is changed by its place in the stream. So the link inside
 * carries more bytes than were given, a frame may be held half on either side, and what was read
 * may be known to be there when the link inside is empty.
 */
#ifndef HORON_TEST_COLLECTIVES_WRAPPED_LINK_H
#define HORON_TEST_COLLECTIVES_WRAPPED_LINK_H

#include "link/link.h"

/** @param inside the wrapped link's from here on. Both ends must be wrapped. */
struct horon_link *wrapped_link_create(struct horon_link *inside);

#define WRAPPED_SECRET_BYTES 32
/** Likewise, and what is sent is changed by a secret that the other end must have to receive. */
struct horon_link *wrapped_link_create_with(struct horon_link *inside, const uint8_t *send_secret,
                                            const uint8_t *receive_secret);

#endif
