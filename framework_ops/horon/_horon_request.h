/* SPDX-License-Identifier: Apache-2.0 */
/* Request, and what its files share. */
#ifndef HORON_PY_REQUEST_H
#define HORON_PY_REQUEST_H

#include "_horon.h"

/* What start() of an operation with moving buffers needs to prepare it anew. */
struct horon_py_template {
    horon_descriptor_t desc;
    struct horon_py_tensor tensor; /* the last that it was prepared on; its keep is NULL */
    char name[HORON_NAME_BYTES_MAX + 1];
};

struct horon_py_request {
    PyObject_HEAD struct horon_py_context *context; /* owned */
    horon_request_t *handle;            /* NULL: released, or an operation not started yet */
    PyObject *keep;                     /* owned: buffers in use; NULL once the end was seen */
    PyObject *result;                   /* owned, of a PlainHandle: what wait() gives; or NULL */
    struct horon_py_tensor *gathered;   /* owned: the input, if output() has rows; or NULL */
    struct horon_py_template *template; /* not NULL: made by Context.operation() */
    int32_t size;                       /* ranks that take part */
    int waiters;                        /* calls of wait(), also while a signal's handler runs */
    int arrays;                         /* alive, over the output */
    horon_request_t *lent;              /* released, but its output is an array's; or NULL */
    bool prepared;
    bool gathers_into; /* keep has its output: the caller gave dst */
};

/* A new Request, or PlainHandle, by its @p type; takes handle and keep also when it fails. */
PyObject *horon_py_request_new(struct horon_py_context *context, PyTypeObject *type,
                               horon_request_t *handle, PyObject *keep);
/* @return whether @p into, which takes begun requests, is a list or NULL; else with an exception */
bool horon_py_request_may_go_into(PyObject *into);
/* One of the arrays over its output is gone. */
void horon_py_request_return_output(struct horon_py_request *request);

/* _horon.start_all(requests) and _horon.wait_all(requests, timeout=None). */
PyObject *horon_py_start_all(PyObject *module, PyObject *requests);
PyObject *horon_py_wait_all(PyObject *module, PyObject *const *args, Py_ssize_t nargs);

/* ---- Of _horon_request.c, for _horon_start.c ---- */

/* Gives handle and buffers away; the operation may be in flight. */
void horon_py_request_let_go(struct horon_py_request *request);
/* @return false, with an exception, for one that was released, or never started */
bool horon_py_request_has_handle(struct horon_py_request *request);
/* @return false, with an exception, for another object */
bool horon_py_is_request(PyObject *object, PyTypeObject *type);
/* The handle may not go while a thread is in wait(). @return NULL */
PyObject *horon_py_request_raise_waited_for(void);

/* ---- Of _horon_start.c: Request's methods ---- */

PyObject *horon_py_request_start(PyObject *self, PyObject *const *args, Py_ssize_t nargs);
PyObject *horon_py_request_start_on(PyObject *self, PyObject *const *args, Py_ssize_t nargs);

#endif
