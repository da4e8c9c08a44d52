/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Context: one rank's membership of one job, and everything that submits.
 *
 * Submitting keeps the GIL, as it never waits; so closing, which takes the handle away under the
 * GIL, cannot meet a submission. A thread that waits without the GIL is counted in `inside`;
 * close() lets them leave first (they look at `closing` between slices).
 *
 * A request owns its buffers until horon has ended it. One that Python drops earlier goes to the
 * context's limbo, which is swept at each submission.
 */
#include "_horon.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

/* ---- Limbo and waiters ---- */

void horon_py_context_sweep(struct horon_py_context *context)
{
    struct horon_py_limbo *done = NULL;
    struct horon_py_limbo **link = &context->limbo;
    while (*link) {
        struct horon_py_limbo *entry = *link;
        if (horon_test(entry->request, HORON_HOST_DONE) == HORON_IN_PROGRESS) {
            link = &entry->next;
            continue;
        }
        *link = entry->next;
        entry->next = done;
        done = entry;
    }
    while (done) { /* dropping a buffer may run any Python code, so the list is left alone first */
        struct horon_py_limbo *entry = done;
        done = entry->next;
        horon_release(entry->request);
        Py_XDECREF(entry->keep);
        PyMem_Free(entry);
    }
}

void horon_py_context_adopt(struct horon_py_context *context, horon_request_t *request,
                            PyObject *keep)
{
    if (!request || horon_test(request, HORON_HOST_DONE) != HORON_IN_PROGRESS) {
        horon_release(request);
        Py_XDECREF(keep);
        return;
    }
    struct horon_py_limbo *entry = PyMem_Malloc(sizeof *entry);
    if (!entry) { /* without memory to remember them, the buffers are kept for ever */
        horon_release(request);
        return;
    }
    entry->request = request;
    entry->keep = keep;
    entry->next = context->limbo;
    context->limbo = entry;
}

void horon_py_context_enter(struct horon_py_context *context)
{
    context->inside++;
}

void horon_py_context_leave(struct horon_py_context *context)
{
    if (--context->inside == 0 && context->closing)
        sem_post(&context->left);
}

/* ---- Life ---- */

static int text_list(PyObject *sequence, const char **list, Py_ssize_t list_max)
{
    Py_ssize_t n = PySequence_Size(sequence);
    if (n < 0 || n >= list_max) {
        if (!PyErr_Occurred())
            PyErr_SetString(PyExc_ValueError, "too many settings");
        return -1;
    }
    for (Py_ssize_t i = 0; i < n; i++) {
        PyObject *item = PySequence_GetItem(sequence, i);
        list[i] = item ? PyUnicode_AsUTF8AndSize(item, NULL) : NULL;
        Py_XDECREF(item); /* the sequence, a tuple, holds it */
        if (!list[i])
            return -1;
    }
    list[n] = NULL;
    return 0;
}

#define SETTINGS_MAX 64

/* horon_interrupted_fn_t: takes the GIL for a look at signals. Their handlers run on Python's main
 * thread only; an exception of one stays set, and joining ends. */
static int look_at_signals(void *arg)
{
    PyThreadState **released = arg;
    PyEval_RestoreThread(*released);
    int raised = PyErr_CheckSignals();
    *released = PyEval_SaveThread();
    return raised;
}

static horon_status_t join(horon_options_t *options, horon_context_t **handle)
{
    PyThreadState *released = PyEval_SaveThread();
    options->interrupted = look_at_signals;
    options->interrupted_arg = &released;
    horon_status_t status = horon_context_create(options, handle, NULL, 0);
    PyEval_RestoreThread(released);
    return status;
}

static PyObject *context_tp_new(PyTypeObject *type, PyObject *args, PyObject *kwds)
{
    static char *names[] = {"rank", "size", "settings", NULL};
    int rank = -1, size = -1;
    PyObject *settings = NULL;
    const char *list[SETTINGS_MAX + 1];
    if (!PyArg_ParseTupleAndKeywords(args, kwds, "|iiO!", names, &rank, &size, &PyTuple_Type,
                                     &settings))
        return NULL;
    if (settings && text_list(settings, list, SETTINGS_MAX + 1) < 0)
        return NULL;
    allocfunc alloc = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    struct horon_py_context *context = (struct horon_py_context *)alloc(type, 0);
    if (!context)
        return NULL;
    context->state = PyType_GetModuleState(type);
    context->pid = (long)getpid();
    sem_init(&context->left, 0, 0);
    horon_options_t options = HORON_OPTIONS_INIT;
    options.rank = rank;
    options.size = size;
    options.settings = settings ? list : NULL;
    horon_status_t status = join(&options, &context->handle);
    if (status == HORON_OK) {
        context->size = horon_size(context->handle);
        return (PyObject *)context;
    }
    if (!PyErr_Occurred()) /* else a signal's handler has raised what it likes */
        horon_py_raise_refused(context->state, status, NULL);
    context->handle = NULL;
    Py_DECREF(context);
    return NULL;
}

static void wait_until_empty(struct horon_py_context *context)
{
    if (context->inside == 0 || context->pid != (long)getpid())
        return; /* a forked child has none of the waiting threads */
    int failed;
    Py_BEGIN_ALLOW_THREADS do failed = sem_wait(&context->left);
    while (failed && errno == EINTR)
        ;
    Py_END_ALLOW_THREADS
}

static void close_handle(struct horon_py_context *context, void (*destroy)(horon_context_t *))
{
    horon_context_t *handle = context->handle;
    if (!handle)
        return;
    context->handle = NULL; /* from here on nothing enters */
    context->closing = true;
    wait_until_empty(context);
    Py_BEGIN_ALLOW_THREADS destroy(handle);
    Py_END_ALLOW_THREADS horon_py_context_sweep(context); /* everything has ended now */
}

static PyObject *context_close(PyObject *self, PyObject *ignored)
{
    (void)ignored;
    close_handle((struct horon_py_context *)self, horon_context_destroy);
    Py_RETURN_NONE;
}

static PyObject *context_close_at_exit(PyObject *self, PyObject *ignored)
{
    (void)ignored;
    close_handle((struct horon_py_context *)self, horon_context_destroy_at_exit);
    Py_RETURN_NONE;
}

/* Beginning and ending a timeline wait for a disk. */
static PyObject *context_timeline(struct horon_py_context *context, const char *path, int cycles)
{
    horon_context_t *handle = context->handle;
    horon_status_t status;
    if (!handle)
        return horon_py_raise_closed(context->state, "horon has been shut down");
    horon_py_context_enter(context);
    Py_BEGIN_ALLOW_THREADS status =
        path ? horon_timeline_start(handle, path, cycles) : horon_timeline_stop(handle);
    Py_END_ALLOW_THREADS horon_py_context_leave(context);
    if (status != HORON_OK)
        return horon_py_raise_refused(context->state, status, handle);
    Py_RETURN_NONE;
}

static PyObject *context_start_timeline(PyObject *self, PyObject *args)
{
    PyObject *path = NULL; /* as the file system has it, without a 0 in it */
    int cycles = 0;
    if (!PyArg_ParseTuple(args, "O&|p", PyUnicode_FSConverter, &path, &cycles))
        return NULL;
    PyObject *none =
        context_timeline((struct horon_py_context *)self, PyBytes_AsString(path), cycles);
    Py_DECREF(path);
    return none;
}

static PyObject *context_stop_timeline(PyObject *self, PyObject *ignored)
{
    (void)ignored;
    return context_timeline((struct horon_py_context *)self, NULL, 0);
}

/* The context is never freed then: the others would hear of that before the process has ended. */
static PyObject *context_exit(PyObject *self, PyObject *reason)
{
    struct horon_py_context *context = (struct horon_py_context *)self;
    const char *text = PyUnicode_AsUTF8AndSize(reason, NULL);
    horon_context_t *handle = context->handle;
    if (!text)
        return NULL;
    if (!handle)
        Py_RETURN_NONE;
    Py_INCREF(self);
    horon_py_context_enter(context);
    Py_BEGIN_ALLOW_THREADS horon_context_exit(handle, text);
    Py_END_ALLOW_THREADS horon_py_context_leave(context);
    Py_RETURN_NONE;
}

static int context_traverse(PyObject *self, visitproc visit, void *arg)
{
    struct horon_py_context *context = (struct horon_py_context *)self;
    Py_VISIT(Py_TYPE(self));
    for (struct horon_py_limbo *entry = context->limbo; entry; entry = entry->next)
        Py_VISIT(entry->keep);
    return 0;
}

static void context_dealloc(PyObject *self)
{
    struct horon_py_context *context = (struct horon_py_context *)self;
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    close_handle(context, horon_context_destroy);
    sem_destroy(&context->left);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(self);
    Py_DECREF(type);
}

/* ---- Submitting ---- */

static bool is_open(struct horon_py_context *context)
{
    if (!context->handle)
        horon_py_raise_closed(context->state, "horon has been shut down");
    return context->handle != NULL;
}

/* The request takes the kept objects from the operation. */
static PyObject *wrap_request(struct horon_py_context *context, struct horon_py_operation *op,
                              horon_request_t *handle)
{
    PyObject *keep = op->keep;
    op->keep = NULL;
    PyObject *object = horon_py_request_new(context, handle, &op->src, keep);
    struct horon_py_request *request = (struct horon_py_request *)object;
    if (request) {
        request->gathers = op->verb->output == HORON_PY_OUTPUT_ROWS;
        request->gathers_into = request->gathers && op->desc.dst;
    }
    if (request && op->into && PyList_Append(op->into, object) < 0)
        Py_CLEAR(object);
    return object;
}

typedef horon_status_t (*begin_fn)(horon_context_t *, const horon_descriptor_t *,
                                   horon_request_t **);

static PyObject *begin(PyObject *self, PyObject *const *args, Py_ssize_t nargs, begin_fn function)
{
    struct horon_py_context *context = (struct horon_py_context *)self;
    struct horon_py_operation op;
    if (context->limbo)
        horon_py_context_sweep(context);
    if (!is_open(context) || horon_py_operation_init(&op, context, args, nargs) < 0)
        return NULL;
    PyObject *request = NULL;
    horon_request_t *handle = NULL;
    horon_status_t status = function(context->handle, &op.desc, &handle);
    if (status == HORON_OK)
        request = wrap_request(context, &op, handle);
    else
        horon_py_raise_refused(context->state, status, context->handle);
    horon_py_operation_deinit(&op);
    return request;
}

static PyObject *context_submit(PyObject *self, PyObject *const *args, Py_ssize_t nargs)
{
    return begin(self, args, nargs, horon_submit);
}

/* As submit() if src and dst can be described without a copy and without being managed, else None:
 * one call that an adapter tries before it looks at a tensor itself. */
static PyObject *context_submit_plain(PyObject *self, PyObject *const *args, Py_ssize_t nargs)
{
    struct horon_py_context *context = (struct horon_py_context *)self;
    struct horon_py_tensor tensor;
    for (Py_ssize_t i = ARG_SRC; i <= ARG_DST && i < nargs; i++) {
        if (args[i] == Py_None || (i == ARG_DST && args[ARG_DST] == args[ARG_SRC]))
            continue;
        int taken = horon_py_tensor_peek(context->state, args[i], &tensor);
        if (taken != 1)
            return taken < 0 ? NULL : Py_NewRef(Py_None);
    }
    return begin(self, args, nargs, horon_submit);
}

static PyObject *context_prepare(PyObject *self, PyObject *const *args, Py_ssize_t nargs)
{
    PyObject *request = begin(self, args, nargs, horon_prepare);
    if (request)
        ((struct horon_py_request *)request)->prepared = true;
    return request;
}

/* Describing a tensor may run any Python code, so @p group is a tuple that nobody else can change.
 * @return 0, or -1 with an exception; n_out operations were parsed either way */
static int parse_group(struct horon_py_context *context, PyObject *group,
                       struct horon_py_operation *ops, horon_descriptor_t *descs, Py_ssize_t n,
                       Py_ssize_t *n_out)
{
    for (*n_out = 0; *n_out < n; ++*n_out) {
        PyObject *item = PyTuple_GetItem(group, *n_out);
        PyObject *args[ARG_COUNT];
        Py_ssize_t nargs = item && PyTuple_Check(item) ? PyTuple_Size(item) : 0;
        for (Py_ssize_t i = 0; i < nargs && i < ARG_COUNT; i++)
            args[i] = PyTuple_GetItem(item, i);
        if (horon_py_operation_init(&ops[*n_out], context, args, nargs) < 0)
            return -1;
        descs[*n_out] = ops[*n_out].desc;
        /* a copied descriptor still points at the shape inside ops, which stays where it is */
    }
    return 0;
}

static PyObject *wrap_group(struct horon_py_context *context, struct horon_py_operation *ops,
                            horon_request_t **handles, Py_ssize_t n)
{
    PyObject *list = PyList_New(n);
    for (Py_ssize_t i = 0; i < n; i++) {
        PyObject *request = wrap_request(context, &ops[i], handles[i]);
        if (!list || !request || PyList_SetItem(list, i, request) < 0) {
            Py_CLEAR(list);
            if (request)
                Py_DECREF(request);
        }
    }
    return list;
}

static PyObject *context_submit_group(PyObject *self, PyObject *group)
{
    struct horon_py_context *context = (struct horon_py_context *)self;
    if (!PyList_Check(group))
        return PyErr_Format(PyExc_TypeError, "a group is a list of tuples");
    if (!is_open(context))
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
    } else if (parse_group(context, members, ops, descs, n, &parsed) == 0) {
        horon_status_t status =
            n ? horon_submit_group(context->handle, descs, (size_t)n, handles) : HORON_OK;
        if (status == HORON_OK)
            list = wrap_group(context, ops, handles, n);
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

/* operation(verb, name, redop, root, prescale, postscale, flags): buffers come with start_on(). */
static PyObject *context_operation(PyObject *self, PyObject *args)
{
    struct horon_py_context *context = (struct horon_py_context *)self;
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
    static const struct horon_py_tensor none;
    PyObject *request = horon_py_request_new(context, NULL, &none, NULL);
    if (request)
        ((struct horon_py_request *)request)->template = template;
    else
        PyMem_Free(template);
    return request;
}

/* ---- Questions ---- */

typedef int32_t (*ask_fn)(const horon_context_t *);

/* One getter for all: the closure points at the function's pointer. */
static PyObject *context_get_number(PyObject *self, void *closure)
{
    struct horon_py_context *context = (struct horon_py_context *)self;
    if (!is_open(context))
        return NULL;
    return PyLong_FromLong((*(ask_fn *)closure)(context->handle));
}

typedef PyObject *(*ask_of_rank_fn)(const horon_context_t *, int32_t rank);

static PyObject *host_of(const horon_context_t *handle, int32_t rank)
{
    return PyLong_FromLong(horon_host_of(handle, rank));
}

static PyObject *host_name_of(const horon_context_t *handle, int32_t rank)
{
    const char *name = horon_host_name(handle, horon_host_of(handle, rank));
    return PyUnicode_DecodeFSDefault(name ? name : "");
}

/* A tuple with what the closure's function says of each rank. */
static PyObject *context_get_tuple(PyObject *self, void *closure)
{
    struct horon_py_context *context = (struct horon_py_context *)self;
    if (!is_open(context))
        return NULL;
    int32_t size = horon_size(context->handle);
    PyObject *tuple = PyTuple_New(size);
    for (int32_t rank = 0; tuple && rank < size; rank++) {
        PyObject *item = (*(ask_of_rank_fn *)closure)(context->handle, rank);
        if (!item || PyTuple_SetItem(tuple, rank, item) < 0)
            Py_CLEAR(tuple);
    }
    return tuple;
}

static PyObject *context_setting(PyObject *self, PyObject *name)
{
    struct horon_py_context *context = (struct horon_py_context *)self;
    const char *row = PyUnicode_AsUTF8AndSize(name, NULL);
    char text[HORON_ERROR_TEXT_BYTES];
    if (!row || !is_open(context))
        return NULL;
    if (horon_setting(context->handle, row, text, sizeof text) != HORON_OK)
        return PyErr_Format(PyExc_ValueError, "no setting is called %R", name);
    return PyUnicode_DecodeUTF8(text, (Py_ssize_t)strlen(text), "replace");
}

static PyObject *context_get_closed(PyObject *self, void *closure)
{
    (void)closure;
    return PyBool_FromLong(((struct horon_py_context *)self)->handle == NULL);
}

static ask_fn ask_rank = horon_rank;
static ask_fn ask_size = horon_size;
static ask_fn ask_local_rank = horon_local_rank;
static ask_fn ask_local_size = horon_local_size;
static ask_fn ask_cross_rank = horon_cross_rank;
static ask_fn ask_cross_size = horon_cross_size;
static ask_of_rank_fn ask_host_of = host_of;
static ask_of_rank_fn ask_host_name_of = host_name_of;

static PyGetSetDef members[] = {
    {"rank", context_get_number, NULL, "This rank, 0..size-1.", &ask_rank},
    {"size", context_get_number, NULL, "Ranks of the job.", &ask_size},
    {"local_rank", context_get_number, NULL, "Rank among those of this host.", &ask_local_rank},
    {"local_size", context_get_number, NULL, "Ranks of this host.", &ask_local_size},
    {"cross_rank", context_get_number, NULL, "Rank among those of this local rank.",
     &ask_cross_rank},
    {"cross_size", context_get_number, NULL, "Ranks that have this local rank.", &ask_cross_size},
    {"hosts", context_get_tuple, NULL, "Name of each rank's host.", &ask_host_name_of},
    {"host_ids", context_get_tuple, NULL, "Number of each rank's host.", &ask_host_of},
    {"closed", context_get_closed, NULL, "Whether close() was called.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

#define FASTCALL(function) (PyCFunction)(void (*)(void))(function), METH_FASTCALL

static PyMethodDef methods[] = {
    {"submit", FASTCALL(context_submit),
     "submit(verb, name, src, dst, redop=SUM, root=0, prescale=1.0, postscale=1.0, flags=0,\n"
     "dtype=None, shape=None, keep=None, splits=None, into=None) -> Request. src and dst are\n"
     "tensors or addresses. splits: rows for each rank. into: a list that gets the request as\n"
     "soon as the operation has begun, so that a signal's handler that raises before submit() has\n"
     "returned loses nothing."},
    {"submit_plain", FASTCALL(context_submit_plain),
     "As submit(), or None if src or dst is not a plain tensor that tells its address quickly."},
    {"prepare", FASTCALL(context_prepare), "As submit(), but Request.start() begins it."},
    {"submit_group", context_submit_group, METH_O,
     "submit_group([arguments of submit, ...]) -> [Request, ...]; begun together."},
    {"operation", context_operation, METH_VARARGS,
     "operation(verb, name, redop=SUM, root=0, prescale=1.0, postscale=1.0, flags=0) -> Request\n"
     "whose start_on(tensor) begins it in place."},
    {"setting", context_setting, METH_O, "setting(name) -> its value here, as text."},
    {"start_timeline", context_start_timeline, METH_VARARGS,
     "start_timeline(path, mark_cycles=False): writes what happens to operations as a Chrome\n"
     "trace, on rank 0, or with %r in path, which stands for the rank, on each."},
    {"stop_timeline", context_stop_timeline, METH_NOARGS, "Ends it, if there is one."},
    {"exit", context_exit, METH_O,
     "exit(reason): tells the other ranks why this process exits, which it then should."},
    {"close", context_close, METH_NOARGS, "Leaves the job; pending requests fail."},
    {"close_at_exit", context_close_at_exit, METH_NOARGS,
     "Likewise, when the process exits: its status is told to the other ranks if it is not 0."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot slots[] = {
    {Py_tp_doc, "Context(rank=-1, size=-1, settings=()): one rank's membership of one job."},
    {Py_tp_new, context_tp_new},
    {Py_tp_dealloc, context_dealloc},
    {Py_tp_traverse, context_traverse},
    {Py_tp_methods, methods},
    {Py_tp_getset, members},
    {0, NULL},
};

PyType_Spec horon_py_context_spec = {
    .name = "horon.Context",
    .basicsize = sizeof(struct horon_py_context),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = slots,
};
