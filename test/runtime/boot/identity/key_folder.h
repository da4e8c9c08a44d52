/* SPDX-License-Identifier: Apache-2.0 */
/* A folder of a test's own, for the file of a key; to be made and removed around each test. */
#ifndef HORON_TEST_KEY_FOLDER_H
#define HORON_TEST_KEY_FOLDER_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char folder[32], path[96]; /* path: of the key of this user */

static inline int make_folder(void **state)
{
    (void)state;
    strcpy(folder, "/tmp/horon-test-XXXXXX");
    if (!mkdtemp(folder))
        return -1;
    snprintf(path, sizeof path, "%s/horon.user.%u.key", folder, (unsigned)geteuid());
    return 0;
}

static inline int remove_folder(void **state)
{
    (void)state;
    unlink(path);
    return rmdir(folder); /* and nothing else was left in it */
}

#endif
