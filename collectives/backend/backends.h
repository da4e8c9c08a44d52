/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The backends of a context, from the first to open to the last to close, and the choice between
 * them: which one carries an operation is a pure function of what all ranks know (choose.c).
 */
#ifndef HORON_BACKENDS_H
#define HORON_BACKENDS_H

#include "backend/backend.h"
#include "log.h"

/** More than anybody has; bits of a mask. */
#define HORON_BACKENDS_MAX 8

/** The backends of a context. */
struct horon_backends {
    const struct horon_backend *tables[HORON_BACKENDS_MAX]; /* [count] in order of preference */
    size_t count;
    bool left;               /* horon_backends_leave() was called */
    horon_log_level_t level; /* of lines about one that is not used */
    struct horon_backend_context *contexts[HORON_BACKENDS_MAX]; /* NULL: it could not be opened */
};

/** The order of the one that there is among Gloo's ranks, for the functions below. The setting's
 * default names what is not there, and stands for nothing said.
 * @param setting the setting BACKEND. @return it, or NULL */
const char *horon_backends_order_among_gloo(const char *setting);
/** Puts those that are wanted in their order; none is opened. The arguments are as below.
 * @return OK | ERR_CONFIG */
horon_status_t horon_backends_order(struct horon_backends *backends,
                                    const struct horon_backend *const *tables, size_t count,
                                    const char *order, struct horon_error *error);
/** Begins what those that are wanted begin on all ranks together, in their order. To be asked again
 * as in the table. @return likewise | ERR_CONFIG, the order is wrong */
horon_status_t horon_backends_prepare(const struct horon_backend *const *tables, size_t count,
                                      const struct horon_backend_settings *settings,
                                      struct horon_error *error);
/** The context has failed before it was ready. @param tables [count] as at the begin */
void horon_backends_give_up(const struct horon_backend *const *tables, size_t count,
                            const void *context, const struct horon_log *log);
/** Opens all that are wanted and can be; a line is logged for each that cannot.
 * @param tables [count] those that there are; they and @p log must outlive it
 * @param settings NULL: all, and nothing else is set
 * @return OK | ERR_MEMORY | ERR_CONFIG, a setting is wrong | what one that is usable everywhere
 * failed with */
horon_status_t horon_backends_open(struct horon_backends *backends,
                                   const struct horon_backend *const *tables, size_t count,
                                   const struct horon_backend_settings *settings,
                                   const struct horon_log *log, struct horon_error *error);
/** Those of a context that an order names, for one team of it: what is open there, and stays its.
 * @param order as the setting's; NULL: all of them, as they stand
 * @return OK | ERR_INVALID, it names one that is not among them, or one twice */
horon_status_t horon_backends_pick(const struct horon_backends *of, const char *order,
                                   struct horon_backends *picked, struct horon_error *error);
/** Their names in their order, comma separated. @param text cut to fit */
void horon_backends_name(const struct horon_backends *backends, char *text, size_t text_bytes);
/** Has each leave, once its channels are gone, as in the table; again is a no-op. */
void horon_backends_leave(struct horon_backends *backends, bool in_peace);
/** Leaves, too. All zero is a no-op. @param in_peace  as in the table */
void horon_backends_close(struct horon_backends *backends, bool in_peace);
/** The sum of what they have undelivered, as in the table. */
size_t horon_backends_undelivered(const struct horon_backends *backends);
/** Has any of them on this rank? Owner only. */
bool horon_backends_gave_up(const struct horon_backends *backends);
/** Has each check its ranks, as in the table. */
void horon_backends_check(const struct horon_backends *backends);
/** Logs that one is not used, and why: @p what goes before it. What the lanes and process sets of a
 * context say alike in turn is one line. Owner only. */
void horon_backends_unused(const struct horon_backends *backends, const struct horon_log *log,
                           const struct horon_backend *backend, const char *what, const char *why);
/** Logs that one does not carry an operation of a verb, and which does: one line of a context for
 * each of both. @param by  NULL: none @param why  behind it, or "". Owner only. */
void horon_backends_passed_over(const struct horon_backends *backends, const struct horon_log *log,
                                const struct horon_backend *backend,
                                const struct horon_signature *agreed,
                                const struct horon_backend *by, const char *why);
/** Is the calling thread one that a backend needs to move its operations? Thread: any. */
bool horon_backends_need_thread(const struct horon_backends *backends);
/** Are some of the job's ranks none of horon's? Owner only. */
bool horon_backends_are_mixed(const struct horon_backends *backends);
/** Do all take operations in order alone, so that nothing can be negotiated? Thread: any. */
bool horon_backends_in_order_only(const struct horon_backends *backends);
/** Does any that is open carry an operation? As their `has`. Thread: any. */
bool horon_backends_have(const struct horon_backends *backends,
                         const struct horon_signature *agreed);

struct horon_backend_choice {
    int backend;          /* number in the array; -1: none carries it */
    bool composed;        /* from another verb of the backend: horon_composed_init() */
    uint32_t passed_over; /* mask of those before it that lack the verb, or may not take it */
};

/** What all ranks know besides the operation. */
struct horon_backend_terms {
    const struct horon_backend *const *backends; /* [count] in order of preference */
    size_t count;
    uint32_t versions[HORON_BACKENDS_MAX]; /* the lowest of all ranks; 0: not all can use it */
    bool deterministic; /* the setting: sums follow the tree, or the backend does not get them */
    bool in_order;      /* the lane is that of operations in order */
};

/** Does the setting keep an operation from a backend, which may have it? */
bool horon_backend_is_kept_from(const struct horon_backend_terms *terms,
                                const struct horon_backend *backend,
                                const struct horon_signature *agreed);
/** Which backend carries an operation: the most preferred of those that have the verb or, in host
 * memory, the one of which it can be composed. Pure. @param bytes as in `preference` */
struct horon_backend_choice horon_backend_choose(const struct horon_backend_terms *terms,
                                                 const struct horon_signature *agreed,
                                                 uint64_t bytes);

/** Tells which backend carries which verbs, at which sizes; a line for each backend, and one for
 * what none carries. @param text cut to fit */
void horon_backends_carry(const struct horon_backend_terms *terms, horon_memory_t memory,
                          char *text, size_t text_bytes);

#endif
