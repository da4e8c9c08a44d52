/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Request: one operation. It owns its buffers (`keep`) until horon has ended it, whatever Python
 * does with the object meanwhile.
 *
 * Waiting is cut into slices, so that a signal (Ctrl-C) or a shutdown by another thread is seen
 * between two of them; the GIL is free during each.
 *
 * The output of an allgather is the handle's. While Arrays lie over it, the request does not start
 * again, and release() gives handle and buffers away only with the last of them.
 */
#include "_horon_request.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#define SLICE_MS 100

PyObject *horon_py_request_new(struct horon_py_context *context, PyTypeObject *type,
                               horon_request_t *handle, PyObject *keep)
{
    allocfunc alloc = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    struct horon_py_request *request = (struct horon_py_request *)alloc(type, 0);
    if (!request) {
        horon_py_context_adopt(context, handle, keep);
        return NULL;
    }
    request->context = (struct horon_py_context *)Py_NewRef((PyObject *)context);
    request->handle = handle;
    request->keep = keep;
    return (PyObject *)request;
}

void horon_py_request_let_go(struct horon_py_request *request)
{
    horon_request_t *handle = request->handle;
    PyObject *keep = request->keep;
    request->handle = NULL;
    request->keep = NULL;
    if (handle)
        horon_py_context_adopt(request->context, handle, keep);
    else
        Py_XDECREF(keep);
}

void horon_py_request_return_output(struct horon_py_request *request)
{
    horon_request_t *handle = request->lent;
    PyObject *keep = request->keep;
    if (--request->arrays > 0 || !handle)
        return;
    request->lent = NULL;
    request->keep = NULL;
    horon_py_context_adopt(request->context, handle, keep);
}

/* What the collector finds in a cycle it clears, also what others hold, and torch's tensors free
 * their memory then. So it is not shown what an operation in flight reads or writes, and takes it
 * for something that is held from elsewhere. */
static int request_traverse(PyObject *self, visitproc visit, void *arg)
{
    struct horon_py_request *request = (struct horon_py_request *)self;
    Py_VISIT(Py_TYPE(self));
    Py_VISIT((PyObject *)request->context);
    if (!horon_py_is_in_flight(request->handle))
        Py_VISIT(request->keep);
    Py_VISIT(request->result);
    return 0;
}

/* Collecting a cycle may not take buffers from an operation in flight: limbo keeps them. */
static int request_clear(PyObject *self)
{
    struct horon_py_request *request = (struct horon_py_request *)self;
    horon_py_request_let_go(request);
    Py_CLEAR(request->result);
    return 0;
}

static void request_dealloc(PyObject *self)
{
    struct horon_py_request *request = (struct horon_py_request *)self;
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    horon_py_request_let_go(request);
    PyMem_Free(request->template);
    PyMem_Free(request->gathered);
    Py_XDECREF(request->result);
    Py_XDECREF((PyObject *)request->context);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(self);
    Py_DECREF(type);
}

bool horon_py_request_has_handle(struct horon_py_request *request)
{
    if (!request->handle)
        PyErr_SetString(PyExc_ValueError, request->template ? "the operation was never started"
                                                            : "the request was released");
    return request->handle != NULL;
}

/* The operation has ended: its buffers are Python's again. A prepared one may start once more, and
 * output() may lie in a buffer. Another thread may have begun the next run while this one waited
 * for the GIL: what is kept then is of that. */
static void see_end(struct horon_py_request *request)
{
    if (!request->prepared && !request->gathers_into && !horon_py_is_in_flight(request->handle))
        Py_CLEAR(request->keep);
}

static PyObject *raise_of(struct horon_py_request *request, horon_status_t status)
{
    horon_failure_t failure = HORON_FAILURE_INIT;
    /* in the child of a fork, or never started */
    if (horon_request_failure(request->handle, &failure) != HORON_OK)
        return horon_py_raise_refused(request->context->state, status, NULL);
    failure.status = status;
    return horon_py_raise_failed(request->context->state, &failure);
}

PyObject *horon_py_request_raise_waited_for(void)
{
    return PyErr_Format(PyExc_ValueError, "a thread waits for this request");
}

/* ---- Waiting ---- */

static int64_t now_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

/* None or seconds -> a deadline on now_ms(), or -1 for none. @return -1 with an exception */
static int parse_timeout(PyObject *timeout, int64_t *deadline_ms_out)
{
    *deadline_ms_out = -1;
    if (!timeout || timeout == Py_None)
        return 0;
    double seconds = PyFloat_AsDouble(timeout);
    if (PyErr_Occurred())
        return -1;
    if (isnan(seconds)) {
        PyErr_SetString(PyExc_ValueError, "the timeout is not a number of seconds");
        return -1;
    }
    if (seconds < 1e12) /* what is left of a limit may be below 0 */
        *deadline_ms_out = now_ms() + (seconds > 0 ? (int64_t)(seconds * 1000) : 0);
    return 0;
}

static int64_t slice_ms(int64_t deadline_ms)
{
    if (deadline_ms < 0)
        return SLICE_MS;
    int64_t left = deadline_ms - now_ms();
    return left < 0 ? 0 : left < SLICE_MS ? left : SLICE_MS;
}

static horon_status_t wait_a_slice(struct horon_py_context *context, horon_request_t *handle,
                                   int64_t limit_ms)
{
    horon_status_t status;
    horon_py_context_enter(context);
    Py_BEGIN_ALLOW_THREADS status = horon_wait(handle, HORON_HOST_DONE, limit_ms);
    Py_END_ALLOW_THREADS horon_py_context_leave(context);
    if (status == HORON_ERR_TIMEOUT) /* the wait's limit, or the operation's? */
        status = horon_test(handle, HORON_HOST_DONE);
    return status;
}

/* A shorter wait is one of many: to find out what an operation waits for takes as long. */
#define POLL_MS 50

/* The limit has passed. @return IN_PROGRESS with an exception that says what the operation waits
 * for; or its status, as it has ended meanwhile */
static horon_status_t raise_late(struct horon_py_context *context, horon_request_t *handle)
{
    horon_failure_t failure = HORON_FAILURE_INIT;
    horon_status_t refused;
    horon_py_context_enter(context);
    Py_BEGIN_ALLOW_THREADS refused = horon_request_failure(handle, &failure);
    Py_END_ALLOW_THREADS horon_py_context_leave(context);
    if (refused == HORON_OK)
        return horon_test(handle, HORON_HOST_DONE);
    horon_py_raise_refused(context->state, HORON_ERR_TIMEOUT, NULL);
    return HORON_IN_PROGRESS;
}

/* Waits for @p request to end. @return its status, with no exception set; or IN_PROGRESS with one:
 * the limit has passed, a signal handler raised, or another thread shut horon down. */
static horon_status_t wait_for_end(struct horon_py_request *request, int64_t deadline_ms)
{
    struct horon_py_context *context = request->context;
    horon_request_t *handle = request->handle;
    const bool polls = deadline_ms >= 0 && deadline_ms - now_ms() < POLL_MS;
    horon_status_t status = horon_test(handle, HORON_HOST_DONE);
    request->waiters++; /* also while a signal's handler runs, which may be any Python code */
    while (status == HORON_IN_PROGRESS) {
        if (context->closing) { /* before it enters: close() waits for those inside */
            horon_py_raise_closed(context->state,
                                  "horon was shut down by another thread during the wait");
            break;
        }
        status = wait_a_slice(context, handle, slice_ms(deadline_ms));
        if (status != HORON_IN_PROGRESS || PyErr_CheckSignals() < 0)
            break;
        if (deadline_ms >= 0 && now_ms() >= deadline_ms && !context->closing) {
            if (polls)
                horon_py_raise_late("the operation is still in flight");
            else
                status = raise_late(context, handle);
            break;
        }
    }
    request->waiters--;
    return status;
}

/* wait(timeout=None); the values of @p names, a tuple or NULL, follow the others of @p args. */
static PyObject *request_wait(PyObject *self, PyObject *const *args, Py_ssize_t nargs,
                              PyObject *names)
{
    struct horon_py_request *request = (struct horon_py_request *)self;
    const Py_ssize_t n_names = names ? PyTuple_Size(names) : 0;
    int64_t deadline_ms;
    if (nargs + n_names > 1 ||
        (n_names && PyUnicode_CompareWithASCIIString(PyTuple_GetItem(names, 0), "timeout") != 0))
        return PyErr_Format(PyExc_TypeError, "wait() takes at most a timeout");
    if (parse_timeout(nargs + n_names ? args[0] : NULL, &deadline_ms) < 0 ||
        !horon_py_request_has_handle(request)) /* to read a number may run any Python code */
        return NULL;
    horon_status_t status = wait_for_end(request, deadline_ms);
    if (status == HORON_IN_PROGRESS)
        return NULL;
    see_end(request);
    if (status != HORON_OK)
        return raise_of(request, status);
    return Py_NewRef(request->result ? request->result : Py_None);
}

/* As a handle of Horovod's sparse allreduce, which is a function. */
static PyObject *request_call(PyObject *self, PyObject *args, PyObject *named)
{
    if (PyTuple_Size(args) != 0 || (named && PyDict_Size(named) != 0))
        return PyErr_Format(PyExc_TypeError, "a handle is called without arguments");
    return request_wait(self, NULL, 0, NULL);
}

/* The state of the requests' module, which is the one of any of them. */
bool horon_py_is_request(PyObject *object, PyTypeObject *type)
{
    if (PyObject_TypeCheck(object, type))
        return true;
    PyErr_SetString(PyExc_TypeError, "not a horon.Request");
    return false;
}

/* Waits for all, also after a failure, so that every buffer is free when it returns; then raises
 * the first failure. */
PyObject *horon_py_wait_all(PyObject *module, PyObject *const *args, Py_ssize_t nargs)
{
    struct horon_py_state *state = PyModule_GetState(module);
    int64_t deadline_ms;
    if (nargs < 1 || nargs > 2 || !PyList_Check(args[0]))
        return PyErr_Format(PyExc_TypeError, "wait_all(list of requests, timeout=None)");
    if (parse_timeout(nargs > 1 ? args[1] : NULL, &deadline_ms) < 0)
        return NULL;
    struct horon_py_request *failed = NULL;
    horon_status_t failure = HORON_OK;
    for (Py_ssize_t i = 0; i < PyList_Size(args[0]); i++) {
        PyObject *item = Py_NewRef(PyList_GetItem(args[0], i));
        struct horon_py_request *request = (struct horon_py_request *)item;
        horon_status_t status = HORON_IN_PROGRESS;
        if (horon_py_is_request(item, state->request_type) && horon_py_request_has_handle(request))
            status = wait_for_end(request, deadline_ms);
        if (status == HORON_IN_PROGRESS) {
            Py_DECREF(item);
            Py_XDECREF((PyObject *)failed);
            return NULL;
        }
        see_end(request);
        if (status != HORON_OK && !failed) {
            failed = request;
            failure = status;
            Py_INCREF(item);
        }
        Py_DECREF(item);
    }
    if (!failed)
        Py_RETURN_NONE;
    raise_of(failed, failure);
    Py_DECREF((PyObject *)failed);
    return NULL;
}

static PyObject *request_test(PyObject *self, PyObject *ignored)
{
    (void)ignored;
    struct horon_py_request *request = (struct horon_py_request *)self;
    if (!horon_py_request_has_handle(request))
        return NULL;
    horon_status_t status = horon_test(request->handle, HORON_HOST_DONE);
    if (status != HORON_IN_PROGRESS)
        see_end(request);
    return PyBool_FromLong(status != HORON_IN_PROGRESS);
}

/* ---- The rest ---- */

static PyObject *request_cancel(PyObject *self, PyObject *ignored)
{
    (void)ignored;
    struct horon_py_request *request = (struct horon_py_request *)self;
    if (!horon_py_request_has_handle(request))
        return NULL;
    return PyBool_FromLong(horon_cancel(request->handle) == HORON_OK);
}

static PyObject *request_release(PyObject *self, PyObject *ignored)
{
    (void)ignored;
    struct horon_py_request *request = (struct horon_py_request *)self;
    if (request->waiters)
        return horon_py_request_raise_waited_for();
    if (!request->arrays) {
        horon_py_request_let_go(request);
    } else if (request->handle) {
        request->lent = request->handle;
        request->handle = NULL;
    }
    Py_RETURN_NONE;
}

/* output() -> (Array, rows): what an allgather gave. The array keeps this request alive. */
static PyObject *request_output(PyObject *self, PyObject *ignored)
{
    (void)ignored;
    struct horon_py_request *request = (struct horon_py_request *)self;
    struct horon_py_context *context = request->context;
    if (!horon_py_request_has_handle(request))
        return NULL;
    if (!request->gathered)
        return PyErr_Format(PyExc_ValueError,
                            "only what the ranks decide the size of is an output");
    int32_t size = request->size;
    uint64_t *rows = PyMem_Calloc((size_t)size, sizeof *rows);
    PyObject *list = PyTuple_New(size);
    PyObject *array = NULL;
    PyObject *result = NULL;
    void *data = NULL;
    uint64_t count = 0;
    if (!rows || !list) {
        PyErr_NoMemory();
        goto done;
    }
    const horon_status_t status = horon_request_output(request->handle, &data, &count, rows);
    if (status != HORON_OK) {
        horon_py_raise_refused(context->state, status, context->handle);
        goto done;
    }
    const struct horon_py_tensor *input = request->gathered;
    const int32_t ndim = input->ndim ? input->ndim : 1;
    uint64_t shape[HORON_PY_NDIM_MAX];
    memcpy(shape, input->shape, (size_t)ndim * sizeof shape[0]);
    shape[0] = 0;
    for (int32_t i = 0; i < size; i++) {
        PyObject *number = PyLong_FromUnsignedLongLong(rows[i]);
        if (!number || PyTuple_SetItem(list, i, number) < 0)
            goto done;
        shape[0] += rows[i];
    }
    array = horon_py_array_over(context->state, data, input->dtype, ndim, shape, request);
    if (array)
        result = PyTuple_Pack(2, array, list);
done:
    PyMem_Free(rows);
    Py_XDECREF(list);
    Py_XDECREF(array);
    return result;
}

static PyObject *request_get_error(PyObject *self, void *closure)
{
    (void)closure;
    struct horon_py_request *request = (struct horon_py_request *)self;
    const char *text = request->handle ? horon_request_error(request->handle) : "";
    return PyUnicode_DecodeUTF8(text, (Py_ssize_t)strlen(text), "replace");
}

static PyObject *request_get_status(PyObject *self, void *closure)
{
    (void)closure;
    struct horon_py_request *request = (struct horon_py_request *)self;
    if (!horon_py_request_has_handle(request))
        return NULL;
    return PyLong_FromLong(horon_test(request->handle, HORON_HOST_DONE));
}

static PyObject *request_get_joined(PyObject *self, void *closure)
{
    (void)closure;
    struct horon_py_request *request = (struct horon_py_request *)self;
    return horon_py_request_has_handle(request)
               ? PyLong_FromLong(horon_request_joined(request->handle))
               : NULL;
}

static PyObject *request_get_join_last(PyObject *self, void *closure)
{
    (void)closure;
    struct horon_py_request *request = (struct horon_py_request *)self;
    return horon_py_request_has_handle(request) ? PyLong_FromLong(horon_join_last(request->handle))
                                                : NULL;
}

static PyMethodDef methods[] = {
    {"start", (PyCFunction)(void (*)(void))horon_py_request_start, METH_FASTCALL,
     "start(into=None): begins a prepared operation; into: as for Context.submit()."},
    {"start_on", (PyCFunction)(void (*)(void))horon_py_request_start_on, METH_FASTCALL,
     "start_on(tensor, into=None, keep=tensor) -> bool: begins an operation in place on a tensor,\n"
     "or says that it cannot. keep: an object that keeps the tensor's elements where they are."},
    {"test", request_test, METH_NOARGS, "Whether it has ended, well or not."},
    {"wait", (PyCFunction)(void (*)(void))request_wait, METH_FASTCALL | METH_KEYWORDS,
     "wait(timeout=None): until it has ended; raises what went wrong. Seconds."},
    {"cancel", request_cancel, METH_NOARGS,
     "Asks to withdraw it; wait() tells how it ended. False: it is not in flight."},
    {"release", request_release, METH_NOARGS,
     "Gives it back; in flight it runs on, and what output() gave stays."},
    {"output", request_output, METH_NOARGS, "output() -> (Array, rows of each rank)."},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef members[] = {
    {"error", request_get_error, NULL, "Why it failed, or ''.", NULL},
    {"status", request_get_status, NULL, "Status code; 1 is in progress.", NULL},
    {"joined", request_get_joined, NULL, "Ranks that had joined and gave nothing to it.", NULL},
    {"join_last", request_get_join_last, NULL, "Of a join: the rank that joined last, or -1.",
     NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot slots[] = {
    {Py_tp_doc, "One submitted or prepared operation; made by a Context."},
    {Py_tp_dealloc, request_dealloc},
    {Py_tp_traverse, request_traverse},
    {Py_tp_clear, request_clear},
    {Py_tp_methods, methods},
    {Py_tp_getset, members},
    {0, NULL},
};

PyType_Spec horon_py_request_spec = {
    .name = "horon.Request",
    .basicsize = sizeof(struct horon_py_request),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_IMMUTABLETYPE |
             Py_TPFLAGS_DISALLOW_INSTANTIATION | Py_TPFLAGS_BASETYPE,
    .slots = slots,
};

static PyMethodDef plain_methods[] = {
    {"poll", request_test, METH_NOARGS, "Whether it has ended, well or not."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot plain_slots[] = {
    {Py_tp_doc,
     "What PlainTensors.begin() has begun: wait(), and a call, give what it has written."},
    {Py_tp_dealloc, request_dealloc},
    {Py_tp_traverse, request_traverse},
    {Py_tp_clear, request_clear},
    {Py_tp_call, request_call},
    {Py_tp_methods, plain_methods},
    {0, NULL},
};

PyType_Spec horon_py_plain_spec = {
    .name = "horon.PlainHandle",
    .basicsize = sizeof(struct horon_py_request),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_IMMUTABLETYPE |
             Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .slots = plain_slots,
};
