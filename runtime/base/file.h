/* SPDX-License-Identifier: Apache-2.0 */
/* Small files, read whole. */
#ifndef HORON_BASE_FILE_H
#define HORON_BASE_FILE_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

/** Reads @p fd from its beginning, wherever others stopped to read: it may be shared.
 * @return bytes, @p room if there may be more; or -1 with errno */
ssize_t horon_file_read(int fd, void *into, size_t room);

/** Reads the text at @p path, cut to fit, with a final 0.
 * @return its length; 0 if it is empty or cannot be read. Closed in what this process starts. */
size_t horon_file_read_text(const char *path, char *text, size_t text_bytes);

/** @return the decimal number right behind @p key in the text at @p path, of which the first 4 KiB
 * are read; -1: there is none */
long horon_file_read_number(const char *path, const char *key);

/** Does the system write a core file of a process? Such a process runs no more, but it ends, and
 * its descriptors are closed, only when that is done, which may take minutes. */
bool horon_file_says_dumping(long pid);

#endif
