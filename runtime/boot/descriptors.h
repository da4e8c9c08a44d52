/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How many descriptors this process may have. Each step of joining asks before it begins, so that a
 * rank which cannot go on says what is lacking, and the others hear it. The soft limit is raised as
 * far as a step needs and the hard limit lets it, and no further: select() of some other part of
 * the program knows only those below 1024.
 */
#ifndef HORON_BOOT_DESCRIPTORS_H
#define HORON_BOOT_DESCRIPTORS_H

#include "status.h"

/**
 * Sees to it that this process can open @p count more.
 * @param purpose what they are for, as in "sharing memory with 7 ranks"
 * @return OK, or it cannot be known | ERR_SYSTEM, saying the limit, what is in use, what is needed
 */
horon_status_t horon_descriptors_need(int count, const char *purpose, struct horon_error *error);

#endif
