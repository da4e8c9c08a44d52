/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Team: a process set that this rank is a member of. It takes operations as Context does, which is
 * the team of all ranks, and tells rank and size there. And the methods of Context that all ranks
 * of the job call to add and remove process sets.
 */
#include "_horon_set.h"

struct horon_py_team_object {
    PyObject_HEAD struct horon_py_set set; /* its context is owned */
    int32_t rank;
    PyObject *ranks; /* owned: a tuple of ranks of the job */
};

static struct horon_py_set *set_of(PyObject *self)
{
    return &((struct horon_py_team_object *)self)->set;
}

bool horon_py_set_of(struct horon_py_state *state, PyObject *team, struct horon_py_set *set_out)
{
    if (Py_TYPE(team) == state->team_type) {
        *set_out = *set_of(team);
        return true;
    }
    if (Py_TYPE(team) == state->context_type) {
        *set_out = horon_py_job_of(team);
        return true;
    }
    PyErr_SetString(PyExc_TypeError, "neither a horon.Context nor a horon.Team");
    return false;
}

/* ---- Process sets of a context ---- */

/* @return what the ranks of a set are, as a tuple */
static PyObject *ranks_of(const horon_context_t *handle, int32_t id)
{
    int32_t size = horon_process_set_size(handle, id);
    int32_t *ranks = PyMem_Calloc(size > 0 ? (size_t)size : 1, sizeof *ranks);
    if (!ranks)
        return PyErr_NoMemory();
    PyObject *tuple = NULL;
    if (horon_process_set_ranks(handle, id, ranks, size) != size || size < 0)
        PyErr_Format(PyExc_ValueError, "process set %d does not exist", (int)id);
    else
        tuple = PyTuple_New(size);
    for (int32_t i = 0; tuple && i < size; i++) {
        PyObject *rank = PyLong_FromLong(ranks[i]);
        if (!rank || PyTuple_SetItem(tuple, i, rank) < 0)
            Py_CLEAR(tuple);
    }
    PyMem_Free(ranks);
    return tuple;
}

/* @return [*n_out] ranks, to be freed with PyMem_Free(); NULL with an exception */
static int32_t *parse_ranks(PyObject *sequence, Py_ssize_t *n_out)
{
    PyObject *list = PySequence_List(sequence);
    if (!list)
        return NULL;
    *n_out = PyList_Size(list);
    int32_t *ranks = PyMem_Calloc(*n_out ? (size_t)*n_out : 1, sizeof *ranks);
    if (!ranks)
        PyErr_NoMemory();
    for (Py_ssize_t i = 0; ranks && i < *n_out; i++) {
        long rank = PyLong_AsLong(PyList_GetItem(list, i));
        if ((rank == -1 && PyErr_Occurred()) || rank < INT32_MIN || rank > INT32_MAX) {
            if (!PyErr_Occurred())
                PyErr_Format(PyExc_ValueError, "%ld is no rank", rank);
            PyMem_Free(ranks);
            ranks = NULL;
        } else {
            ranks[i] = (int32_t)rank;
        }
    }
    Py_DECREF(list);
    return ranks;
}

PyObject *horon_py_add_process_set(PyObject *self, PyObject *arguments)
{
    struct horon_py_context *context = (struct horon_py_context *)self;
    horon_process_set_options_t options = HORON_PROCESS_SET_OPTIONS_INIT;
    PyObject *sequence;
    Py_ssize_t n = 0;
    if (!PyArg_ParseTuple(arguments, "O|z", &sequence, &options.backend))
        return NULL;
    int32_t id = 0, *ranks = parse_ranks(sequence, &n);
    if (!ranks || !horon_py_is_open(context)) {
        PyMem_Free(ranks);
        return NULL;
    }
    horon_status_t status;
    horon_py_context_enter(context);
    Py_BEGIN_ALLOW_THREADS status =
        horon_process_set_add_with(context->handle, ranks, (size_t)n, &options, -1, &id);
    Py_END_ALLOW_THREADS horon_py_context_leave(context);
    PyMem_Free(ranks);
    if (status != HORON_OK)
        return horon_py_raise_refused(context->state, status, context->handle);
    return PyLong_FromLong(id);
}

PyObject *horon_py_remove_process_set(PyObject *self, PyObject *number)
{
    struct horon_py_context *context = (struct horon_py_context *)self;
    long id = PyLong_AsLong(number);
    if ((id == -1 && PyErr_Occurred()) || !horon_py_is_open(context))
        return NULL;
    if (id < INT32_MIN || id > INT32_MAX)
        return PyErr_Format(PyExc_ValueError, "process set %ld does not exist", id);
    horon_status_t status;
    horon_py_context_enter(context);
    Py_BEGIN_ALLOW_THREADS status = horon_process_set_remove(context->handle, (int32_t)id, -1);
    Py_END_ALLOW_THREADS horon_py_context_leave(context);
    if (status != HORON_OK)
        return horon_py_raise_refused(context->state, status, context->handle);
    Py_RETURN_NONE;
}

PyObject *horon_py_process_sets(PyObject *self, PyObject *ignored)
{
    struct horon_py_context *context = (struct horon_py_context *)self;
    (void)ignored;
    if (!horon_py_is_open(context))
        return NULL;
    int32_t count = horon_process_set_ids(context->handle, NULL, 0);
    if (count < 0)
        return horon_py_raise_refused(context->state, HORON_ERR_FORKED, context->handle);
    int32_t *ids = PyMem_Calloc((size_t)count, sizeof *ids);
    PyObject *all = ids ? PyDict_New() : PyErr_NoMemory();
    int32_t known = all ? horon_process_set_ids(context->handle, ids, count) : 0;
    for (int32_t i = 0; all && i < count && i < known; i++) {
        PyObject *id = PyLong_FromLong(ids[i]), *ranks = ranks_of(context->handle, ids[i]);
        if (!id || !ranks || PyDict_SetItem(all, id, ranks) < 0)
            Py_CLEAR(all);
        Py_XDECREF(id);
        Py_XDECREF(ranks);
    }
    PyMem_Free(ids);
    return all;
}

PyObject *horon_py_team(PyObject *self, PyObject *number)
{
    struct horon_py_context *context = (struct horon_py_context *)self;
    long id = PyLong_AsLong(number);
    if ((id == -1 && PyErr_Occurred()) || !horon_py_is_open(context))
        return NULL;
    if (id < INT32_MIN || id > INT32_MAX)
        return PyErr_Format(PyExc_ValueError, "process set %ld does not exist", id);
    PyObject *ranks = ranks_of(context->handle, (int32_t)id);
    const int32_t rank = horon_process_set_rank(context->handle, (int32_t)id);
    if (ranks && rank < 0) {
        PyErr_Format(PyExc_ValueError, "rank %d is no member of process set %ld",
                     (int)horon_rank(context->handle), id);
        Py_CLEAR(ranks);
    }
    if (!ranks)
        return NULL;
    PyTypeObject *type = context->state->team_type;
    allocfunc alloc = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    struct horon_py_team_object *team = (struct horon_py_team_object *)alloc(type, 0);
    if (!team) {
        Py_DECREF(ranks);
        return NULL;
    }
    team->set.context = (struct horon_py_context *)Py_NewRef(self);
    team->set.id = (int32_t)id;
    team->set.size = (int32_t)PyTuple_Size(ranks);
    team->rank = rank;
    team->ranks = ranks;
    return (PyObject *)team;
}

/* ---- A team ---- */

static int team_traverse(PyObject *self, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(self));
    Py_VISIT((PyObject *)set_of(self)->context);
    return 0;
}

static void team_dealloc(PyObject *self)
{
    struct horon_py_team_object *team = (struct horon_py_team_object *)self;
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    Py_XDECREF((PyObject *)team->set.context);
    Py_XDECREF(team->ranks);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(self);
    Py_DECREF(type);
}

static PyObject *team_submit(PyObject *self, PyObject *const *args, Py_ssize_t nargs)
{
    return horon_py_submit(set_of(self), args, nargs);
}

static PyObject *team_prepare(PyObject *self, PyObject *const *args, Py_ssize_t nargs)
{
    return horon_py_prepare(set_of(self), args, nargs);
}

static PyObject *team_submit_group(PyObject *self, PyObject *group)
{
    return horon_py_submit_group(set_of(self), group);
}

static PyObject *team_operation(PyObject *self, PyObject *args)
{
    return horon_py_operation_of(set_of(self), args);
}

static PyObject *team_join(PyObject *self, PyObject *into)
{
    return horon_py_join(set_of(self), into);
}

static PyObject *team_setting(PyObject *self, PyObject *name)
{
    return horon_py_setting(set_of(self)->context, name);
}

static PyObject *team_place(PyObject *self, PyObject *rank)
{
    const struct horon_py_team_object *team = (struct horon_py_team_object *)self;
    Py_ssize_t place = PySequence_Index(team->ranks, rank);
    if (place >= 0)
        return PyLong_FromSsize_t(place);
    if (PyErr_ExceptionMatches(PyExc_ValueError)) {
        PyErr_Clear();
        PyErr_Format(PyExc_ValueError, "rank %R is no member of process set %d", rank,
                     (int)team->set.id);
    }
    return NULL;
}

static PyObject *team_get_rank(PyObject *self, void *closure)
{
    (void)closure;
    return PyLong_FromLong(((struct horon_py_team_object *)self)->rank);
}

static PyObject *team_get_size(PyObject *self, void *closure)
{
    (void)closure;
    return PyLong_FromLong(set_of(self)->size);
}

static PyObject *team_get_ranks(PyObject *self, void *closure)
{
    (void)closure;
    return Py_NewRef(((struct horon_py_team_object *)self)->ranks);
}

static PyObject *team_get_hosts(PyObject *self, void *closure)
{
    const struct horon_py_team_object *team = (struct horon_py_team_object *)self;
    PyObject *all = PyObject_GetAttrString((PyObject *)team->set.context, "hosts");
    PyObject *hosts = all ? PyTuple_New(team->set.size) : NULL;
    (void)closure;
    for (int32_t i = 0; hosts && i < team->set.size; i++) {
        PyObject *host = PyObject_GetItem(all, PyTuple_GetItem(team->ranks, i));
        if (!host || PyTuple_SetItem(hosts, i, host) < 0)
            Py_CLEAR(hosts);
    }
    Py_XDECREF(all);
    return hosts;
}

static PyObject *team_get_closed(PyObject *self, void *closure)
{
    (void)closure;
    return PyBool_FromLong(set_of(self)->context->handle == NULL);
}

static PyGetSetDef members[] = {
    {"rank", team_get_rank, NULL, "This rank's number in the process set.", NULL},
    {"size", team_get_size, NULL, "Ranks of the process set.", NULL},
    {"ranks", team_get_ranks, NULL, "The job's rank of each.", NULL},
    {"hosts", team_get_hosts, NULL, "Name of each one's host.", NULL},
    {"closed", team_get_closed, NULL, "Whether the context was closed.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

#define FASTCALL(function) (PyCFunction)(void (*)(void))(function), METH_FASTCALL

static PyMethodDef methods[] = {
    {"submit", FASTCALL(team_submit), "As Context.submit(); root is a number in the process set."},
    {"prepare", FASTCALL(team_prepare), "As Context.prepare()."},
    {"submit_group", team_submit_group, METH_O, "As Context.submit_group()."},
    {"operation", team_operation, METH_VARARGS, "As Context.operation()."},
    {"join", team_join, METH_O, "As Context.join(), for the process set."},
    {"setting", team_setting, METH_O, "As Context.setting()."},
    {"place", team_place, METH_O, "place(rank of the job) -> its number in the process set."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot slots[] = {
    {Py_tp_doc, "A process set that this rank is a member of; Context.team() makes it."},
    {Py_tp_dealloc, team_dealloc},
    {Py_tp_traverse, team_traverse},
    {Py_tp_methods, methods},
    {Py_tp_getset, members},
    {0, NULL},
};

PyType_Spec horon_py_team_spec = {
    .name = "horon.Team",
    .basicsize = sizeof(struct horon_py_team_object),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_IMMUTABLETYPE |
             Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .slots = slots,
};
