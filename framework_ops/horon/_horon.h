/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the files of the extension share. Everything here runs with the GIL held unless it says
 * otherwise, and no Python object is ever touched from a thread of horon's.
 */
#ifndef HORON_PY_H
#define HORON_PY_H

#include <Python.h>

#include "_horon_dlpack.h"

#include <horon/horon.h>
#include <semaphore.h>
#include <stdbool.h>

/* State of the module; there is one a module object, and none that is the process's. */
struct horon_py_state {
    PyTypeObject *context_type;
    PyTypeObject *request_type;
    PyTypeObject *plain_type; /* PlainHandle, a request, too */
    PyTypeObject *plain_tensors_type;
    PyTypeObject *array_type;
    PyTypeObject *team_type;
    PyObject *internal_error;    /* horon.exceptions.HoronInternalError */
    PyTypeObject *exchange_type; /* the last type that offered the exchange API, or NULL */
    const struct dlpack_exchange *exchange;
};

/* What the buffer protocol allows; horon's own limit is HORON_NDIM_MAX. */
#define HORON_PY_NDIM_MAX 64

/* A tensor as horon sees it: C-contiguous host memory. */
struct horon_py_tensor {
    void *data;
    uint32_t dtype; /* horon_dtype_t */
    int32_t ndim;
    uint64_t count;
    bool readonly;
    PyObject *keep; /* owned: keeps data alive; NULL for a bare address */
    /* [ndim] are set; dimensions beyond the last are multiplied into it */
    uint64_t shape[HORON_PY_NDIM_MAX];
};

/* What decides how large the output of a verb is. */
enum horon_py_output {
    HORON_PY_OUTPUT_NONE,       /* there is no output, and no input */
    HORON_PY_OUTPUT_LIKE_INPUT, /* as large as the input; may be in place */
    HORON_PY_OUTPUT_ROWS,       /* the ranks' rows: known only when all have met */
    HORON_PY_OUTPUT_SHARE       /* this rank's share of the input's rows */
};

/* What the binding knows of a verb. */
struct horon_py_verb {
    const char *constant; /* its name in the module */
    enum horon_py_output output;
};

/* One operation as Python describes it, and what it keeps. desc.shape points into src or folded. */
struct horon_py_operation {
    horon_descriptor_t desc;
    const struct horon_py_verb *verb;
    PyObject *keep; /* owned */
    PyObject *into; /* borrowed: the list that takes the request; or NULL */
    struct horon_py_tensor src, dst;
    uint64_t folded[HORON_NDIM_MAX];
    uint64_t *splits; /* owned, or NULL */
};

/* Places of the positional arguments that describe an operation. */
enum {
    ARG_VERB,
    ARG_NAME,
    ARG_SRC,
    ARG_DST,
    ARG_REDOP,
    ARG_ROOT,
    ARG_PRESCALE,
    ARG_POSTSCALE,
    ARG_FLAGS,
    ARG_DTYPE,
    ARG_SHAPE,
    ARG_KEEP,
    ARG_SPLITS,
    ARG_TAG,
    ARG_INTO,
    ARG_COUNT
};

struct horon_py_context {
    PyObject_HEAD struct horon_py_state
        *state;              /* the module outlives its types, and they their objects */
    horon_context_t *handle; /* NULL once closed */
    int32_t size;            /* ranks of the job, also once closed */
    long pid;   /* of the process that made it; a forked child has none of its threads */
    int inside; /* threads that wait in horon without the GIL */
    bool closing;
    sem_t left; /* posted when the last of them leaves a context that is closing */
    struct horon_py_limbo *limbo;
};

/* Makes the exception for @p failure, with its data as attributes, and returns NULL. */
PyObject *horon_py_raise_failed(struct horon_py_state *state, const horon_failure_t *failure);
/* Likewise for the call that has just returned @p status, whose arguments may be wrong. @p handle
 * is NULL for a context that is gone, or was not made. */
PyObject *horon_py_raise_refused(struct horon_py_state *state, horon_status_t status,
                                 const horon_context_t *handle);
/* Of a context that this process has shut down. */
PyObject *horon_py_raise_closed(struct horon_py_state *state, const char *text);
/** A TimeoutError: the limit of a wait has passed. @return NULL */
PyObject *horon_py_raise_late(const char *text);

/* Describes any tensor-like object; -1 with an exception. @p tensor->keep is the caller's then. If
 * not @p kept, its framework keeps the elements where they are, or refuses (a conjugated one). */
int horon_py_tensor_from_object(struct horon_py_state *state, PyObject *object, bool writable,
                                bool kept, struct horon_py_tensor *tensor);
/* The quick way of DLPack's exchange API: 1 described (keep borrowed: NULL), 0 not that way (not
 * contiguous, not in host memory), -1 exception. */
int horon_py_tensor_peek(struct horon_py_state *state, PyObject *object,
                         struct horon_py_tensor *tensor);
/* No tensor. The shape, of which most is never used, stays as it is. */
void horon_py_tensor_init(struct horon_py_tensor *tensor);
void horon_py_tensor_copy(struct horon_py_tensor *to, const struct horon_py_tensor *from);
/* Sets shape and ndim of @p desc. What horon has no dimensions for is multiplied into its last one,
 * so ranks agree that have other dimensions there but as many elements. @p folded is used by
 * @p desc then, else the shape of @p tensor. */
void horon_py_tensor_fold(const struct horon_py_tensor *tensor, uint64_t folded[HORON_NDIM_MAX],
                          horon_descriptor_t *desc);
/* Sets shape and count from a Python int (one dimension) or a sequence; -1 with an exception. */
int horon_py_tensor_set_shape(struct horon_py_tensor *tensor, PyObject *shape);

/* Fills one dtype's PEP 3118 format; for bfloat16 and fp8 unsigned integers of that width. */
const char *horon_py_format(uint32_t dtype);
/* DLPack's code of a horon dtype. */
uint8_t horon_py_dlpack_code(uint32_t dtype);

struct horon_py_request;
/* An Array over @p data, the output of @p owner (borrowed here): it keeps the request alive, and
 * the output where it is. */
PyObject *horon_py_array_over(struct horon_py_state *state, void *data, uint32_t dtype,
                              int32_t ndim, const uint64_t *shape, struct horon_py_request *owner);
int horon_py_array_describe(PyObject *array, struct horon_py_tensor *tensor);

/* @return the row of a verb, and what the module calls a reduction, by Python's numbers; or NULL */
const struct horon_py_verb *horon_py_verb_row(uint32_t verb);
const char *horon_py_redop_constant(int number);

/* Fills in what is no buffer; -1 with an exception. desc->name lives as long as args[ARG_NAME]. */
int horon_py_operation_parse_numbers(PyObject *const *args, Py_ssize_t nargs,
                                     horon_descriptor_t *desc);
/* What follows from the input: its place and size, and factors of float32, which are rounded to
 * that, as Horovod does. @p folded: see horon_py_tensor_fold() */
void horon_py_operation_set_input(horon_descriptor_t *desc, const struct horon_py_tensor *src,
                                  uint64_t folded[HORON_NDIM_MAX]);
struct horon_py_set;
/* -1 with an exception, and nothing to deinit. */
int horon_py_operation_init(struct horon_py_operation *op, const struct horon_py_set *set,
                            PyObject *const *args, Py_ssize_t nargs);
void horon_py_operation_deinit(struct horon_py_operation *op);

/* Does horon read or write its buffers? NULL: no. */
bool horon_py_is_in_flight(horon_request_t *request);
/* Frees what ended meanwhile of the requests that were dropped in flight. */
void horon_py_context_sweep(struct horon_py_context *context);
/* Takes a request that may be in flight, with what it keeps. */
void horon_py_context_adopt(struct horon_py_context *, horon_request_t *request, PyObject *keep);
/* Around every call that waits without the GIL. */
void horon_py_context_enter(struct horon_py_context *context);
void horon_py_context_leave(struct horon_py_context *context);

extern PyType_Spec horon_py_context_spec;
extern PyType_Spec horon_py_request_spec;
extern PyType_Spec horon_py_plain_spec;
extern PyType_Spec horon_py_plain_tensors_spec;
extern PyType_Spec horon_py_array_spec;

#endif
