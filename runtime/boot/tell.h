/* SPDX-License-Identifier: Apache-2.0 */
/* What joining tells at debug: who this rank is, and how it came to be connected. */
#ifndef HORON_BOOT_TELL_H
#define HORON_BOOT_TELL_H

#include "boot/joining.h"

/** Once the identity is found: by what, where ranks meet, and where the key comes from. */
void horon_tell_identity(const struct horon_joining *j);

/** Once all have joined: memory, each link, and how long each phase took. */
void horon_tell_joined(const struct horon_joining *j);

#endif
