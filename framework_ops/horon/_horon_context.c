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
#include "_horon_set.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

/* ---- Limbo and waiters ---- */

/* A request that was dropped in flight: horon uses its buffers until it ends. */
struct horon_py_limbo {
    struct horon_py_limbo *next;
    horon_request_t *request;
    PyObject *keep;
};

bool horon_py_is_in_flight(horon_request_t *request)
{
    return request && horon_test(request, HORON_HOST_DONE) == HORON_IN_PROGRESS;
}

void horon_py_context_sweep(struct horon_py_context *context)
{
    struct horon_py_limbo *done = NULL;
    struct horon_py_limbo **link = &context->limbo;
    while (*link) {
        struct horon_py_limbo *entry = *link;
        if (horon_py_is_in_flight(entry->request)) {
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
    if (!horon_py_is_in_flight(request)) {
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
    static char *names[] = {"rank", "size", "settings", "mpi_comm", NULL};
    int rank = -1, size = -1;
    PyObject *settings = NULL, *mpi_comm = NULL;
    const char *list[SETTINGS_MAX + 1];
    if (!PyArg_ParseTupleAndKeywords(args, kwds, "|iiO!O!", names, &rank, &size, &PyTuple_Type,
                                     &settings, &PyLong_Type, &mpi_comm))
        return NULL;
    const void *communicator = mpi_comm ? PyLong_AsVoidPtr(mpi_comm) : NULL;
    if (PyErr_Occurred())
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
    options.mpi_comm = communicator;
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
        if (!horon_py_is_in_flight(entry->request)) /* see request_traverse() */
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

bool horon_py_is_open(struct horon_py_context *context)
{
    if (!context->handle)
        horon_py_raise_closed(context->state, "horon has been shut down");
    return context->handle != NULL;
}

struct horon_py_set horon_py_job_of(PyObject *object)
{
    struct horon_py_context *context = (struct horon_py_context *)object;
    return (struct horon_py_set){.context = context, .id = 0, .size = context->size};
}

static PyObject *context_submit(PyObject *self, PyObject *const *args, Py_ssize_t nargs)
{
    const struct horon_py_set job = horon_py_job_of(self);
    return horon_py_submit(&job, args, nargs);
}

static PyObject *context_prepare(PyObject *self, PyObject *const *args, Py_ssize_t nargs)
{
    const struct horon_py_set job = horon_py_job_of(self);
    return horon_py_prepare(&job, args, nargs);
}

static PyObject *context_submit_group(PyObject *self, PyObject *group)
{
    const struct horon_py_set job = horon_py_job_of(self);
    return horon_py_submit_group(&job, group);
}

static PyObject *context_join(PyObject *self, PyObject *into)
{
    const struct horon_py_set job = horon_py_job_of(self);
    return horon_py_join(&job, into);
}

static PyObject *context_operation(PyObject *self, PyObject *args)
{
    const struct horon_py_set job = horon_py_job_of(self);
    return horon_py_operation_of(&job, args);
}

/* ---- Questions ---- */

typedef int32_t (*ask_fn)(const horon_context_t *);

/* One getter for all: the closure points at the function's pointer. */
static PyObject *context_get_number(PyObject *self, void *closure)
{
    struct horon_py_context *context = (struct horon_py_context *)self;
    if (!horon_py_is_open(context))
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
    if (!horon_py_is_open(context))
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

PyObject *horon_py_setting(struct horon_py_context *context, PyObject *name)
{
    const char *row = PyUnicode_AsUTF8AndSize(name, NULL);
    char text[HORON_ERROR_TEXT_BYTES];
    if (!row || !horon_py_is_open(context))
        return NULL;
    if (horon_setting(context->handle, row, text, sizeof text) != HORON_OK)
        return PyErr_Format(PyExc_ValueError, "no setting is called %R", name);
    return PyUnicode_DecodeUTF8(text, (Py_ssize_t)strlen(text), "replace");
}

static PyObject *context_setting(PyObject *self, PyObject *name)
{
    return horon_py_setting((struct horon_py_context *)self, name);
}

/* A rank's number in the job, as Team.place() tells it in a process set: itself. */
static PyObject *context_place(PyObject *self, PyObject *rank)
{
    (void)self;
    return Py_NewRef(rank);
}

static PyObject *rank_itself(const horon_context_t *handle, int32_t rank)
{
    (void)handle;
    return PyLong_FromLong(rank);
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
static ask_of_rank_fn ask_rank_itself = rank_itself;

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
    {"ranks", context_get_tuple, NULL, "Each rank.", &ask_rank_itself},
    {"closed", context_get_closed, NULL, "Whether close() was called.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

#define FASTCALL(function) (PyCFunction)(void (*)(void))(function), METH_FASTCALL

static PyMethodDef methods[] = {
    {"submit", FASTCALL(context_submit),
     "submit(verb, name, src, dst, redop=SUM, root=0, prescale=1.0, postscale=1.0, flags=0,\n"
     "dtype=None, shape=None, keep=None, splits=None, tag=0, into=None) -> Request. src and dst\n"
     "are tensors or addresses. splits: rows for each rank. tag: of a message. into: a list that\n"
     "gets the request as soon as the operation has begun, so that a signal's handler that raises\n"
     "before submit() has returned loses nothing."},
    {"prepare", FASTCALL(context_prepare), "As submit(), but Request.start() begins it."},
    {"submit_group", context_submit_group, METH_O,
     "submit_group([arguments of submit, ...]) -> [Request, ...]; begun together."},
    {"join", context_join, METH_O,
     "join(into) -> Request: this rank has no more data; it ends once all have joined. into: a\n"
     "list that it is appended to."},
    {"operation", context_operation, METH_VARARGS,
     "operation(verb, name, redop=SUM, root=0, prescale=1.0, postscale=1.0, flags=0) -> Request\n"
     "whose start_on(tensor) begins it in place."},
    {"setting", context_setting, METH_O, "setting(name) -> its value here, as text."},
    {"place", context_place, METH_O, "place(rank) -> its number in the job: itself."},
    {"add_process_set", horon_py_add_process_set, METH_VARARGS,
     "add_process_set(ranks, backend=None) -> its id; every rank of the job calls it."},
    {"remove_process_set", horon_py_remove_process_set, METH_O,
     "remove_process_set(id): every rank of the job calls it."},
    {"process_sets", horon_py_process_sets, METH_NOARGS, "process_sets() -> {id: ranks}"},
    {"team", horon_py_team, METH_O,
     "team(id) -> the Team of a process set that this rank is a member of."},
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
    {Py_tp_doc,
     "Context(rank=-1, size=-1, settings=(), mpi_comm=0): one rank's membership of one job.\n"
     "mpi_comm: where a handle of MPI's lies."},
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
