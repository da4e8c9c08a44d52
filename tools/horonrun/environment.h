/* SPDX-License-Identifier: Apache-2.0 */
/* Lists of "NAME=value": what ranks get. */
#ifndef HORONRUN_ENVIRONMENT_H
#define HORONRUN_ENVIRONMENT_H

#include "frame.h"

/** @return the value of @p name in a NULL-ended list, or NULL. A view into the list. */
const char *horonrun_environment_find(char *const *list, const char *name);

/** Sets NAME=value in a heap list, replacing. @return false: out of memory */
bool horonrun_environment_set(char ***list, const char *name, const char *value);

/** Removes NAME, and wipes its value, if it is there. */
void horonrun_environment_remove(char **list, const char *name);

/** The same of an entry of a list, whose place the next one takes. */
void horonrun_environment_remove_at(char **entry);

/** A copy on the heap; free with horonrun_strings_free(). NULL: out of memory. */
char **horonrun_environment_copy(char *const *list);

/**
 * What of horonrun's environment goes to another host: all but what describes this login and this
 * machine. A copy, as above.
 */
char **horonrun_environment_copy_for_remote(char *const *list);

/** Has NAME=value one of these names? NULL-ended; one that ends in * stands for all that begin so.
 */
bool horonrun_environment_matches(const char *entry, const char *const *names);

/** Adds this process's variables that the list lacks. @return false: out of memory */
bool horonrun_environment_add_own(char ***list);

/** Does horonrun itself set this variable of ranks? @param text "NAME" or "NAME=value" */
bool horonrun_environment_is_reserved(const char *text);

/**
 * The environment of local rank @p index of @p work: its list, then HORON_RANK, HORON_SIZE,
 * HORON_LOCAL_RANK, HORON_LOCAL_SIZE, the same for Horovod's users with its CROSS_RANK and
 * CROSS_SIZE, and HORON_FAILURE_FILE unless @p failure_fd is -1. One block: horon_free() it; the
 * work must outlive it.
 */
char **horonrun_environment_of_rank(const struct horonrun_work *work, int index, int failure_fd);

#endif
