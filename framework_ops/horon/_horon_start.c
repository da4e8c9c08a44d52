/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How requests that are prepared begin, again and again: start(), start_all(), and start_on(), the
 * way of an optimizer's hook: the same operation step after step, on a tensor that usually lies
 * where it lay. If it does, the prepared request is started; if not, it is prepared anew.
 */
#include "_horon_request.h"

#include <string.h>

static PyObject *refuse(struct horon_py_request *request, horon_status_t status)
{
    struct horon_py_context *context = request->context;
    return horon_py_raise_refused(context->state, status, context->handle);
}

/* A start frees the output of the one before. An operation of Context.operation() has let its
 * tensor go when it ended, and only start_on() gives it one. */
static bool may_start(struct horon_py_request *request)
{
    if (request->template) {
        PyErr_SetString(PyExc_ValueError, "start_on() begins what Context.operation() has made");
        return false;
    }
    if (!horon_py_request_has_handle(request))
        return false;
    if (request->arrays)
        PyErr_SetString(PyExc_ValueError,
                        "the output of this request is in use: it can start again once no array "
                        "that output() gave is left");
    return request->arrays == 0;
}

bool horon_py_request_may_go_into(PyObject *into)
{
    if (!into || PyList_Check(into))
        return true;
    PyErr_SetString(PyExc_TypeError, "into is a list of requests");
    return false;
}

/* @p into, unless it is NULL, holds the request from the start on, whatever Python runs next.
 * @return false with an exception, and nothing started */
static bool start_into(struct horon_py_request *request, PyObject *into)
{
    if (into && PyList_Append(into, (PyObject *)request) < 0)
        return false;
    horon_status_t status = horon_start(request->handle);
    if (status == HORON_OK)
        return true;
    if (into)
        PyList_SetSlice(into, PyList_Size(into) - 1, PyList_Size(into), NULL);
    refuse(request, status);
    return false;
}

PyObject *horon_py_request_start(PyObject *self, PyObject *const *args, Py_ssize_t nargs)
{
    struct horon_py_request *request = (struct horon_py_request *)self;
    PyObject *into = nargs > 0 ? args[0] : NULL;
    if (nargs > 1)
        return PyErr_Format(PyExc_TypeError, "start(into=None)");
    if (!horon_py_request_may_go_into(into) || !may_start(request) || !start_into(request, into))
        return NULL;
    Py_RETURN_NONE;
}

PyObject *horon_py_start_all(PyObject *module, PyObject *requests)
{
    struct horon_py_state *state = PyModule_GetState(module);
    if (!PyList_Check(requests))
        return PyErr_Format(PyExc_TypeError, "start_all(list of requests)");
    Py_ssize_t n = PyList_Size(requests);
    if (n == 0)
        Py_RETURN_NONE;
    horon_request_t **handles = PyMem_Calloc((size_t)n, sizeof *handles);
    if (!handles)
        return PyErr_NoMemory();
    bool good = true;
    for (Py_ssize_t i = 0; good && i < n; i++) {
        PyObject *item = PyList_GetItem(requests, i);
        good = horon_py_is_request(item, state->request_type) &&
               may_start((struct horon_py_request *)item);
        if (good)
            handles[i] = ((struct horon_py_request *)item)->handle;
    }
    size_t started = 0;
    horon_status_t status =
        good ? horon_start_all(handles, (size_t)n, &started) : HORON_ERR_INVALID;
    PyMem_Free(handles);
    if (!good)
        return NULL;
    if (status != HORON_OK)
        return refuse((struct horon_py_request *)PyList_GetItem(requests, (Py_ssize_t)started),
                      status);
    Py_RETURN_NONE;
}

static bool same_place(const struct horon_py_tensor *a, const struct horon_py_tensor *b)
{
    return a->data == b->data && a->dtype == b->dtype && a->ndim == b->ndim &&
           memcmp(a->shape, b->shape, (size_t)a->ndim * sizeof a->shape[0]) == 0;
}

static horon_status_t prepare_again(struct horon_py_request *request,
                                    const struct horon_py_tensor *tensor)
{
    horon_descriptor_t desc = request->template->desc;
    desc.dst = tensor->data;
    uint64_t folded[HORON_NDIM_MAX];
    horon_py_operation_set_input(&desc, tensor, folded);
    horon_request_t *handle = NULL;
    horon_status_t status = horon_prepare(request->context->handle, &desc, &handle);
    if (status != HORON_OK)
        return status;
    horon_py_request_let_go(request);
    request->handle = handle;
    horon_py_tensor_copy(&request->template->tensor, tensor);
    return HORON_OK;
}

/* start_on(tensor, into, keep) -> bool: in place. False: this tensor cannot be described without a
 * copy, and nothing was started. */
PyObject *horon_py_request_start_on(PyObject *self, PyObject *const *args, Py_ssize_t nargs)
{
    struct horon_py_request *request = (struct horon_py_request *)self;
    struct horon_py_context *context = request->context;
    struct horon_py_tensor tensor;
    PyObject *into = nargs > 1 && args[1] != Py_None ? args[1] : NULL;
    if (nargs < 1 || nargs > 3)
        return PyErr_Format(PyExc_TypeError, "start_on(tensor, into=None, keep=tensor)");
    if (!request->template)
        return PyErr_Format(PyExc_ValueError, "start_on() is for Context.operation()");
    if (!horon_py_request_may_go_into(into))
        return NULL;
    if (!context->handle)
        return horon_py_raise_closed(context->state, "horon has been shut down");
    if (horon_py_is_in_flight(request->handle))
        return PyErr_Format(PyExc_ValueError, "%s is in flight", request->template->name);
    int taken = horon_py_tensor_peek(context->state, args[0], &tensor);
    if (taken <= 0)
        return taken < 0 ? NULL : Py_NewRef(Py_False);
    if (context->limbo)
        horon_py_context_sweep(context);
    horon_status_t status = HORON_OK;
    if (!request->handle || !same_place(&tensor, &request->template->tensor)) {
        if (request->waiters) /* it has ended, but they still look at the handle */
            return horon_py_request_raise_waited_for();
        status = prepare_again(request, &tensor);
    }
    if (status != HORON_OK)
        return refuse(request, status);
    if (!start_into(request, into))
        return NULL;
    PyObject *old = request->keep;
    request->keep = Py_NewRef(args[nargs > 2 ? 2 : 0]);
    Py_XDECREF(old);
    Py_RETURN_TRUE;
}
