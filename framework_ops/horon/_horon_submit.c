/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How operations begin, on the job and on process sets alike: submit(), prepare(), submit_group()
 * and operation() of Context and Team.
 */
#include "_horon_request.h"
#include "_horon_set.h"

#include <string.h>

/* For output(). @return false with an exception */
static bool note_input(struct horon_py_request *request, const struct horon_py_operation *op)
{
    request->gathers_into = op->desc.dst;
    request->gathered = PyMem_Malloc(sizeof *request->gathered);
    if (!request->gathered) {
        PyErr_NoMemory();
        return false;
    }
    horon_py_tensor_copy(request->gathered, &op->src);
    request->gathered->keep = NULL;
    return true;
}

/* The request takes the kept objects from the operation. */
static PyObject *wrap_request(const struct horon_py_set *set, struct horon_py_operation *op,
                              horon_request_t *handle)
{
    PyObject *keep = op->keep;
    op->keep = NULL;
    PyObject *object =
        horon_py_request_new(set->context, set->context->state->request_type, handle, keep);
    struct horon_py_request *request = (struct horon_py_request *)object;
    if (request)
        request->size = set->size;
    if (request && op->verb->output == HORON_PY_OUTPUT_ROWS && !note_input(request, op))
        Py_CLEAR(object);
    if (object && op->into && PyList_Append(op->into, object) < 0)
        Py_CLEAR(object);
    return object;
}

typedef horon_status_t (*begin_fn)(horon_context_t *, const horon_descriptor_t *,
                                   horon_request_t **);

static PyObject *begin(const struct horon_py_set *set, PyObject *const *args, Py_ssize_t nargs,
                       begin_fn function)
{
    struct horon_py_context *context = set->context;
    struct horon_py_operation op;
    if (context->limbo)
        horon_py_context_sweep(context);
    if (!horon_py_is_open(context) || horon_py_operation_init(&op, set, args, nargs) < 0)
        return NULL;
    op.desc.process_set = set->id;
    PyObject *request = NULL;
    horon_request_t *handle = NULL;
    horon_status_t status = function(context->handle, &op.desc, &handle);
    if (status == HORON_OK)
        request = wrap_request(set, &op, handle);
    else
        horon_py_raise_refused(context->state, status, context->handle);
    horon_py_operation_deinit(&op);
    return request;
}

PyObject *horon_py_submit(const struct horon_py_set *set, PyObject *const *args, Py_ssize_t nargs)
{
    return begin(set, args, nargs, horon_submit);
}

PyObject *horon_py_prepare(const struct horon_py_set *set, PyObject *const *args, Py_ssize_t nargs)
{
    PyObject *request = begin(set, args, nargs, horon_prepare);
    if (request)
        ((struct horon_py_request *)request)->prepared = true;
    return request;
}

/* Describing a tensor may run any Python code, so @p group is a tuple that nobody else can change.
 * @return 0, or -1 with an exception; n_out operations were parsed either way */
static int parse_group(const struct horon_py_set *set, PyObject *group,
                       struct horon_py_operation *ops, horon_descriptor_t *descs, Py_ssize_t n,
                       Py_ssize_t *n_out)
{
    for (*n_out = 0; *n_out < n; ++*n_out) {
        PyObject *item = PyTuple_GetItem(group, *n_out);
        PyObject *args[ARG_COUNT];
        Py_ssize_t nargs = item && PyTuple_Check(item) ? PyTuple_Size(item) : 0;
        for (Py_ssize_t i = 0; i < nargs && i < ARG_COUNT; i++)
            args[i] = PyTuple_GetItem(item, i);
        if (horon_py_operation_init(&ops[*n_out], set, args, nargs) < 0)
            return -1;
        ops[*n_out].desc.process_set = set->id;
        descs[*n_out] = ops[*n_out].desc;
        /* a copied descriptor still points at the shape inside ops, which stays where it is */
    }
    return 0;
}

static PyObject *wrap_group(const struct horon_py_set *set, struct horon_py_operation *ops,
                            horon_request_t **handles, Py_ssize_t n)
{
    PyObject *list = PyList_New(n);
    for (Py_ssize_t i = 0; i < n; i++) {
        PyObject *request = wrap_request(set, &ops[i], handles[i]);
        if (!list || !request || PyList_SetItem(list, i, request) < 0) {
            Py_CLEAR(list);
            if (request)
                Py_DECREF(request);
        }
    }
    return list;
}

PyObject *horon_py_submit_group(const struct horon_py_set *set, PyObject *group)
{
    struct horon_py_context *context = set->context;
    if (!PyList_Check(group))
        return PyErr_Format(PyExc_TypeError, "a group is a list of tuples");
    if (context->limbo)
        horon_py_context_sweep(context);
    if (!horon_py_is_open(context))
        return NULL;
    PyObject *members = PyList_AsTuple(group);
    if (!members)
        return NULL;
    Py_ssize_t n = PyTuple_Size(members);
    size_t slots = n ? (size_t)n : 1;
    struct horon_py_operation *ops = PyMem_Calloc(slots, sizeof *ops);
    horon_descriptor_t *descs = PyMem_Calloc(slots, sizeof *descs);
    horon_request_t **handles = PyMem_Calloc(slots, sizeof *handles);
    PyObject *list = NULL;
    Py_ssize_t parsed = 0;
    if (!ops || !descs || !handles) {
        PyErr_NoMemory();
    } else if (parse_group(set, members, ops, descs, n, &parsed) == 0) {
        horon_status_t status =
            n ? horon_submit_group(context->handle, descs, (size_t)n, handles) : HORON_OK;
        if (status == HORON_OK)
            list = wrap_group(set, ops, handles, n);
        else
            horon_py_raise_refused(context->state, status, context->handle);
    }
    for (Py_ssize_t i = 0; i < parsed; i++)
        horon_py_operation_deinit(&ops[i]);
    PyMem_Free(handles);
    PyMem_Free(descs);
    PyMem_Free(ops);
    Py_DECREF(members);
    return list;
}

PyObject *horon_py_operation_of(const struct horon_py_set *set, PyObject *args)
{
    struct horon_py_context *context = set->context;
    horon_descriptor_t desc = HORON_DESCRIPTOR_INIT;
    PyObject *all[ARG_COUNT] = {[ARG_SRC] = Py_None, [ARG_DST] = Py_None};
    Py_ssize_t given = PyTuple_Size(args) + (ARG_REDOP - ARG_SRC); /* no buffers among them */
    if (!PyArg_ParseTuple(args, "OU|OOOOO", &all[ARG_VERB], &all[ARG_NAME], &all[ARG_REDOP],
                          &all[ARG_ROOT], &all[ARG_PRESCALE], &all[ARG_POSTSCALE],
                          &all[ARG_FLAGS]) ||
        horon_py_operation_parse_numbers(all, given, &desc) < 0)
        return NULL;
    if (horon_py_verb_row(desc.verb)->output != HORON_PY_OUTPUT_LIKE_INPUT)
        return PyErr_Format(PyExc_ValueError, "%s cannot be done in place",
                            horon_verb_name((horon_verb_t)desc.verb));
    if (strlen(desc.name) > HORON_NAME_BYTES_MAX)
        return PyErr_Format(PyExc_ValueError, "a name has at most %d bytes", HORON_NAME_BYTES_MAX);
    struct horon_py_template *template = PyMem_Calloc(1, sizeof *template);
    if (!template)
        return PyErr_NoMemory();
    memcpy(template->name, desc.name, strlen(desc.name) + 1);
    template->desc = desc;
    template->desc.name = template->name;
    template->desc.process_set = set->id;
    PyObject *request = horon_py_request_new(context, context->state->request_type, NULL, NULL);
    if (request)
        ((struct horon_py_request *)request)->template = template;
    else
        PyMem_Free(template);
    return request;
}

/* @p into, a list, holds the request when this returns, whatever a signal's handler does then. */
PyObject *horon_py_join(const struct horon_py_set *set, PyObject *into)
{
    struct horon_py_context *context = set->context;
    horon_request_t *handle = NULL;
    if (!horon_py_request_may_go_into(into) || !horon_py_is_open(context))
        return NULL;
    horon_status_t status = horon_join(context->handle, set->id, &handle);
    if (status != HORON_OK)
        return horon_py_raise_refused(context->state, status, context->handle);
    PyObject *request = horon_py_request_new(context, context->state->request_type, handle, NULL);
    if (request && PyList_Append(into, request) < 0)
        Py_CLEAR(request);
    return request;
}
