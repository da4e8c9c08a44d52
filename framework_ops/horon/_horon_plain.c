/* SPDX-License-Identifier: Apache-2.0 */
/*
 * PlainTensors: how an operation begins on a framework's tensor that horon reads where it lies, in
 * one call and with nothing staged. Small operations cost what their calls cost, so the little that
 * the framework is asked for is asked from here.
 *
 * What this does not take it declines, and says nothing about: the way with staging comes after it,
 * takes or refuses everything, and knows the words. So nothing has happened when it declines.
 */
#include "_horon_request.h"
#include "_horon_set.h"

/* Of the framework, and owned. */
struct plain_tensors {
    PyObject_HEAD struct horon_py_state *state;
    PyObject *types;     /* a tuple: no tensor of another type is plain */
    PyObject *is_marked; /* (tensor) -> whether its elements mean something else than they are */
    PyObject *memory_of; /* (tensor) -> what keeps its elements where they are; or raises */
    PyObject *make_room; /* (tensor) -> another one like it; None: operations are in place */
    PyObject *changed;   /* (tensor) is told what horon writes in place; its result is dropped */
};

/* One operation that begins. Its request takes what is owned; deinit() drops the rest. */
struct beginning {
    horon_descriptor_t desc;
    uint64_t folded[HORON_NDIM_MAX];
    struct horon_py_tensor src, dst;
    PyObject *output; /* owned */
    PyObject *keep;   /* owned: what keeps the buffers */
};

/* @return 1 and 0 for yes and no, -1 with an exception */
static int ask(PyObject *function, PyObject *tensor)
{
    PyObject *answer = PyObject_CallFunctionObjArgs(function, tensor, NULL);
    const int yes = answer ? PyObject_IsTrue(answer) : -1;
    Py_XDECREF(answer);
    return yes;
}

/* The way with staging meets what was raised here again, and says what it is about.
 * @return 0, or -1: it is no error but an interruption */
static int decline_exception(void)
{
    if (!PyErr_ExceptionMatches(PyExc_Exception))
        return -1;
    PyErr_Clear();
    return 0;
}

static bool is_of(PyObject *types, PyObject *tensor)
{
    const PyObject *type = (PyObject *)Py_TYPE(tensor);
    for (Py_ssize_t i = 0; i < PyTuple_Size(types); i++)
        if (PyTuple_GetItem(types, i) == type)
            return true;
    return false;
}

/* Whether the numbers of a complex tensor are conjugated, the exchange API does not tell.
 * @return 1 described, 0 declined, -1 with an exception */
static int peek(struct horon_py_state *state, PyObject *object, struct horon_py_tensor *tensor)
{
    const int taken = horon_py_tensor_peek(state, object, tensor);
    const bool is_complex =
        taken == 1 && (tensor->dtype == HORON_COMPLEX64 || tensor->dtype == HORON_COMPLEX128);
    return is_complex ? 0 : taken;
}

/* What keeps the elements is taken before it is looked where they are, and nobody's code runs in
 * between: other threads may give the tensor other elements at any time later.
 * @return as peek() */
static int take_input(const struct plain_tensors *self, PyObject *tensor, struct beginning *one)
{
    if (!is_of(self->types, tensor))
        return 0;
    one->keep = PyObject_CallFunctionObjArgs(self->memory_of, tensor, NULL);
    if (!one->keep)
        return decline_exception();
    const int taken = peek(self->state, tensor, &one->src);
    if (taken != 1)
        return taken;
    const int marked = ask(self->is_marked, tensor);
    if (marked)
        return marked < 0 ? -1 : 0;
    horon_py_operation_set_input(&one->desc, &one->src, one->folded);
    return 1;
}

/* Behind take_input(). @return as peek() */
static int make_output(const struct plain_tensors *self, PyObject *tensor, struct beginning *one)
{
    if (self->make_room == Py_None) {
        one->output = Py_NewRef(tensor);
        one->desc.dst = one->src.data;
        return 1;
    }
    one->output = PyObject_CallFunctionObjArgs(self->make_room, tensor, NULL);
    PyObject *both = one->output ? PyTuple_Pack(2, one->keep, one->output) : NULL;
    if (!both)
        return -1;
    Py_DECREF(one->keep);
    one->keep = both;
    const int taken = peek(self->state, one->output, &one->dst);
    if (taken != 1)
        return taken;
    one->desc.dst = one->dst.data;
    return one->dst.count == one->src.count && one->dst.dtype == one->src.dtype;
}

static void deinit(struct beginning *one)
{
    Py_CLEAR(one->output);
    Py_CLEAR(one->keep);
}

/* @return a PlainHandle, or NULL with an exception */
static PyObject *submit(const struct plain_tensors *self, const struct horon_py_set *set,
                        struct beginning *one)
{
    struct horon_py_context *context = set->context;
    horon_request_t *handle = NULL;
    if (context->limbo)
        horon_py_context_sweep(context);
    if (!horon_py_is_open(context)) /* the framework's code may have closed it */
        return NULL;
    one->desc.process_set = set->id;
    const horon_status_t status = horon_submit(context->handle, &one->desc, &handle);
    if (status != HORON_OK)
        return horon_py_raise_refused(self->state, status, context->handle);
    PyObject *keep = one->keep;
    one->keep = NULL;
    PyObject *object = horon_py_request_new(context, self->state->plain_type, handle, keep);
    struct horon_py_request *request = (struct horon_py_request *)object;
    if (request) {
        request->size = set->size;
        request->result = Py_NewRef(one->output);
    }
    if (request && self->make_room == Py_None && ask(self->changed, one->output) < 0)
        Py_CLEAR(object); /* it goes on, and limbo keeps its buffers */
    return object;
}

/* @return as peek() */
static int parse_numbers(PyObject *const *args, Py_ssize_t nargs, horon_descriptor_t *desc)
{
    if (horon_py_operation_parse_numbers(args, nargs, desc) < 0)
        return decline_exception();
    return horon_py_verb_row(desc->verb)->output == HORON_PY_OUTPUT_LIKE_INPUT;
}

enum { BEGIN_TEAM, BEGIN_VERB, BEGIN_NAME, BEGIN_TENSOR, BEGIN_COUNT = 8 };

static PyObject *begin(PyObject *object, PyObject *const *args, Py_ssize_t nargs)
{
    const struct plain_tensors *self = (struct plain_tensors *)object;
    if (nargs != BEGIN_COUNT)
        return PyErr_Format(PyExc_TypeError, "begin() takes %d arguments", BEGIN_COUNT);
    struct horon_py_set set;
    if (!horon_py_set_of(self->state, args[BEGIN_TEAM], &set))
        return NULL;
    PyObject *const numbers[] = {
        [ARG_VERB] = args[BEGIN_VERB],           [ARG_NAME] = args[BEGIN_NAME],
        [ARG_SRC] = args[BEGIN_TENSOR],          [ARG_DST] = args[BEGIN_TENSOR],
        [ARG_REDOP] = args[BEGIN_TENSOR + 1],    [ARG_ROOT] = args[BEGIN_TENSOR + 2],
        [ARG_PRESCALE] = args[BEGIN_TENSOR + 3], [ARG_POSTSCALE] = args[BEGIN_TENSOR + 4]};
    struct beginning one;
    one.desc = (horon_descriptor_t)HORON_DESCRIPTOR_INIT;
    one.output = one.keep = NULL;
    int taken = parse_numbers(numbers, sizeof numbers / sizeof numbers[0], &one.desc);
    if (taken == 1)
        taken = take_input(self, args[BEGIN_TENSOR], &one);
    if (taken == 1)
        taken = make_output(self, args[BEGIN_TENSOR], &one);
    PyObject *handle = NULL;
    if (taken == 1)
        handle = submit(self, &set, &one);
    else if (taken == 0)
        handle = Py_NewRef(Py_None);
    deinit(&one);
    return handle;
}

/* ---- The type ---- */

static PyObject *tp_new(PyTypeObject *type, PyObject *args, PyObject *kwds)
{
    static char *names[] = {"types", "is_marked", "memory_of", "make_room", "changed", NULL};
    PyObject *types, *is_marked, *memory_of, *make_room, *changed;
    if (!PyArg_ParseTupleAndKeywords(args, kwds, "O!OOOO", names, &PyTuple_Type, &types, &is_marked,
                                     &memory_of, &make_room, &changed))
        return NULL;
    allocfunc alloc = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    struct plain_tensors *self = (struct plain_tensors *)alloc(type, 0);
    if (!self)
        return NULL;
    self->state = PyType_GetModuleState(type);
    self->types = Py_NewRef(types);
    self->is_marked = Py_NewRef(is_marked);
    self->memory_of = Py_NewRef(memory_of);
    self->make_room = Py_NewRef(make_room);
    self->changed = Py_NewRef(changed);
    return (PyObject *)self;
}

static int tp_traverse(PyObject *object, visitproc visit, void *arg)
{
    struct plain_tensors *self = (struct plain_tensors *)object;
    Py_VISIT(Py_TYPE(object));
    Py_VISIT(self->types);
    Py_VISIT(self->is_marked);
    Py_VISIT(self->memory_of);
    Py_VISIT(self->make_room);
    Py_VISIT(self->changed);
    return 0;
}

static int tp_clear(PyObject *object)
{
    struct plain_tensors *self = (struct plain_tensors *)object;
    Py_CLEAR(self->types);
    Py_CLEAR(self->is_marked);
    Py_CLEAR(self->memory_of);
    Py_CLEAR(self->make_room);
    Py_CLEAR(self->changed);
    return 0;
}

static void tp_dealloc(PyObject *object)
{
    PyTypeObject *type = Py_TYPE(object);
    PyObject_GC_UnTrack(object);
    tp_clear(object);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(object);
    Py_DECREF(type);
}

static PyMethodDef methods[] = {
    {"begin", (PyCFunction)(void (*)(void))begin, METH_FASTCALL,
     "begin(team, verb, name, tensor, redop, root, prescale, postscale) -> PlainHandle, or None:\n"
     "the tensor, or an argument, needs the way with staging. team: a Context or a Team."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot slots[] = {
    {Py_tp_doc, "A framework's tensors that horon takes where they lie; all arguments are needed:\n"
                "types, is_marked(tensor), memory_of(tensor), make_room(tensor) or None for in\n"
                "place, changed(tensor)."},
    {Py_tp_new, tp_new},
    {Py_tp_dealloc, tp_dealloc},
    {Py_tp_traverse, tp_traverse},
    {Py_tp_clear, tp_clear},
    {Py_tp_methods, methods},
    {0, NULL},
};

PyType_Spec horon_py_plain_tensors_spec = {
    .name = "horon.PlainTensors",
    .basicsize = sizeof(struct plain_tensors),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = slots,
};
