/* SPDX-License-Identifier: Apache-2.0 */
/* Files of /proc come in parts, however large the room is; so all are read until their end. */
#include "file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

ssize_t horon_file_read(int fd, void *into, size_t room)
{
    size_t used = 0;
    while (used < room) {
        const ssize_t got = pread(fd, (char *)into + used, room - used, (off_t)used);
        if (got == 0)
            break;
        if (got > 0)
            used += (size_t)got;
        else if (errno != EINTR)
            return -1;
    }
    return (ssize_t)used;
}

size_t horon_file_read_text(const char *path, char *text, size_t text_bytes)
{
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    const ssize_t got = fd < 0 ? 0 : horon_file_read(fd, text, text_bytes - 1);
    const size_t used = got > 0 ? (size_t)got : 0;
    if (fd >= 0)
        close(fd);
    text[used] = 0;
    return used;
}

long horon_file_read_number(const char *path, const char *key)
{
    char text[4096];
    horon_file_read_text(path, text, sizeof text);
    const char *at = strstr(text, key);
    return at ? strtol(at + strlen(key), NULL, 10) : -1;
}

bool horon_file_says_dumping(long pid)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%ld/status", pid);
    return horon_file_read_number(path, "\nCoreDumping:\t") == 1;
}
