# SPDX-License-Identifier: Apache-2.0
"""The process's own membership of the job: init, shutdown, rank and friends.

The C ABI knows no process-wide state; scripts written for one rank a process expect it, so it is
kept here, in one place. All adapters of this package share it.
"""

import atexit
import reprlib
import sys
import threading
import warnings
from collections import Counter
from collections.abc import Iterable
from enum import IntEnum

from horon import _horon, _names
from horon._selection import address_of, is_communicator, rank_of, ranks_setting
from horon.exceptions import NotInitializedError, describe

__all__ = [
    "Adasum",
    "Average",
    "BitAnd",
    "BitOr",
    "BitXor",
    "Max",
    "Min",
    "ProcessSet",
    "Product",
    "ReduceOp",
    "Sum",
    "add_process_set",
    "ccl_built",
    "cross_rank",
    "cross_size",
    "cuda_built",
    "ddl_built",
    "global_process_set",
    "gloo_built",
    "gloo_enabled",
    "init",
    "is_homogeneous",
    "is_initialized",
    "local_rank",
    "local_size",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "process_set_by_id",
    "rank",
    "remove_process_set",
    "rocm_built",
    "shutdown",
    "size",
    "start_timeline",
    "stop_timeline",
]


class ReduceOp(IntEnum):
    """How an allreduce combines the ranks' values; the numbers are Horovod's.

    Adasum is of floating-point numbers. BitAnd, BitOr and BitXor are of integers and booleans, and
    Horovod has none of them.
    """

    Average = _horon.AVERAGE
    Sum = _horon.SUM
    Adasum = _horon.ADASUM
    Min = _horon.MIN
    Max = _horon.MAX
    Product = _horon.PRODUCT
    BitAnd = _horon.BIT_AND
    BitOr = _horon.BIT_OR
    BitXor = _horon.BIT_XOR


Average = ReduceOp.Average
Sum = ReduceOp.Sum
Adasum = ReduceOp.Adasum
Min = ReduceOp.Min
Max = ReduceOp.Max
Product = ReduceOp.Product
BitAnd = ReduceOp.BitAnd
BitOr = ReduceOp.BitOr
BitXor = ReduceOp.BitXor


class ProcessSet:
    """Some of the job's ranks, which carry out operations together once it has been added.

    init() or add_process_set() adds it; it has an id, equal on all ranks, until it is removed or
    horon is shut down. Then it may be added again.
    """

    mpi_comm = None

    def __init__(self, ranks_or_comm):
        """A communicator, of which Horovod's name speaks, is refused."""
        if not isinstance(ranks_or_comm, Iterable):
            raise ValueError(f"a process set is made of a list of ranks, not of {ranks_or_comm!r}")
        self._ranks = sorted(rank_of(rank, "a process set is made of") for rank in ranks_or_comm)
        self._team = None  # what operations on it are submitted to; None: this rank is outside
        self._joins = []  # the join that was begun and whose end was not seen, as a handler raised
        self.process_set_id = None

    @property
    def ranks(self) -> list[int]:
        return list(self._ranks)

    def included(self) -> bool:
        """Whether this rank is one of its ranks, whether the set has been added or not."""
        return rank() in self._ranks

    def size(self) -> int | None:
        """How many ranks it has; None if it has not been added."""
        return None if self.process_set_id is None else len(self._ranks)

    def rank(self) -> int | None:
        """This process's number in it; None if it has not been added."""
        return None if self.process_set_id is None else self._member().rank

    def __deepcopy__(self, memo):
        """It stays the one that was added, also for the copy of a module that refers to it."""
        return self

    def __reduce__(self):
        """Its ranks are what is left of it in a file; the rest belongs to this job."""
        return _process_set_of, (self._ranks,)

    def _member(self):
        if self.process_set_id is None:
            raise ValueError(f"{self} has not been added, or was removed")
        if self._team is None:
            raise ValueError(f"rank {rank()} is no member of {self}")
        return self._team

    def _added(self, set_id):
        _names.restart(set_id)
        self._team = context().team(set_id) if rank() in self._ranks else None
        self.process_set_id = set_id
        _process_sets[set_id] = self

    def _removed(self):
        self._team = self.process_set_id = None
        self._joins.clear()

    def __str__(self):
        return (
            f"ProcessSet(process_set_id={self.process_set_id}, ranks={self.ranks}, "
            f"mpi_comm={self.mpi_comm})"
        )


class _GlobalProcessSet(ProcessSet):
    """All ranks of the job: what there is to know about it, the context knows."""

    def __init__(self):
        self.process_set_id = 0
        self._joins = []

    def __reduce__(self):
        return "global_process_set"

    @property
    def ranks(self) -> list[int]:
        return list(range(size())) if is_initialized() else []

    def included(self) -> bool:
        return True

    def size(self) -> int:
        return size()

    def rank(self) -> int:
        return rank()


global_process_set = _GlobalProcessSet()

_context = None
_given = {}  # what the init() that made it was given, by name
_process_sets = {}  # by id: those that were added here
_joining = threading.Lock()  # threads that call init() at once join once


def init(comm=None, process_sets=None, *, rank=-1, size=-1, settings=None):
    """Joins the job. Every rank calls it; a second call does nothing until shutdown(), and raises
    ValueError if it asks for something else than what is in force. (Settings are compared as text:
    "1m" is the "1m" of the first call, or what the job makes of it, "1048576".)

    Which rank this process is, the environment says (horonrun, Slurm, PMI, Open MPI, torchrun or
    Horovod variables; with none, it is a world of one), unless `rank` and `size` say so. `settings`
    maps names of the option table to values and goes before the environment.

    `comm`: a list of some of the ranks that were started, which are the job then, numbered in this
    order. Each of them gives this list; the others may be jobs of their own, or none. ValueError
    on a rank that is not in it. Or a communicator of mpi4py, whose ranks are the job: all of them
    give it, and it stays the program's.

    `process_sets`: ProcessSets that are added at once, the same on all ranks; or "dynamic", as
    Horovod needs it for add_process_set().

    Waits for the other ranks; Ctrl-C, or any exception of a signal's handler, ends that, and the
    other ranks that wait are told. init() may be called again then.
    """
    global _context, _given
    named = {name.removeprefix("HORON_"): value for name, value in (settings or {}).items()}
    communicator = comm if is_communicator(comm) else None
    asked = {**ranks_setting(None if communicator is not None else comm), **named}
    process_sets = _list_process_sets(process_sets)
    if process_sets == "dynamic":
        process_sets = []
        asked.setdefault("DYNAMIC_PROCESS_SETS", 1)
    kept = {name: value for name, value in asked.items() if name != "JOB_KEY"}  # a secret is not
    given = {"rank": rank, "size": size, "process_sets": process_sets, "settings": kept}
    given["communicator"] = communicator
    pairs = tuple(f"{name}={value}" for name, value in {**_static(process_sets), **asked}.items())
    with _joining:
        context = _context  # another thread may be in shutdown()
        if context is not None:
            _check_in_force(context, **given)
            return
        _context = _horon.Context(
            rank=rank, size=size, settings=pairs, mpi_comm=address_of(communicator)
        )
        _given = given
        _names.restart()
        try:
            _find_process_sets(process_sets)
        except BaseException:
            shutdown()
            raise
        atexit.unregister(_leave_at_exit)
        atexit.register(_leave_at_exit)
        if _is_child():
            from multiprocessing.util import Finalize

            Finalize(None, _leave_child, exitpriority=0)


def _check_in_force(context, rank, size, process_sets, settings, communicator):
    """Raises if a second init() asks for something else than what the first one has made."""
    wrong = []
    for name, here, wanted in (("rank", context.rank, rank), ("size", context.size, size)):
        if wanted >= 0 and wanted not in (here, _given[name]):
            wrong.append(f"{name} is {here}, not {wanted}")
    for name, wanted in settings.items():
        here = context.setting(name)
        if str(wanted) in (here, str(_given["settings"].get(name))):
            continue
        if name != "RANKS" or here or {name: wanted} != ranks_setting(range(context.size)):
            wrong.append(f"{name} is {reprlib.repr(here)}, not {reprlib.repr(str(wanted))}")
    if communicator is not None and communicator != _given["communicator"]:
        wrong.append("comm is another communicator, or none")
    known = [s.ranks for s in _given["process_sets"]]
    for one in process_sets:
        if one.ranks not in known and one.ranks not in _get_process_set_ids_and_ranks().values():
            wrong.append(f"no process set has the ranks {reprlib.repr(one.ranks)}")
    if wrong:
        raise ValueError(
            "horon has been initialized, and another init() before shutdown() cannot change it: "
            + "; ".join(wrong)
        )


_SETTING_CHARACTERS_MAX = 1000  # of one that goes to the extension


def _list_process_sets(process_sets):
    """-> "dynamic", or a list of ProcessSets"""
    if isinstance(process_sets, str):
        if process_sets.lower() != "dynamic":
            raise ValueError(
                f'process_sets is a list of process sets or "dynamic": {process_sets!r}'
            )
        return "dynamic"
    process_sets = [
        one if isinstance(one, ProcessSet) else ProcessSet(one) for one in process_sets or ()
    ]
    for i, one in enumerate(process_sets):
        if one is global_process_set or one.ranks in [other.ranks for other in process_sets[:i]]:
            raise ValueError(f"entry {i} of process_sets is a duplicate: {one}")
    return process_sets


def _static(process_sets):
    """-> the settings by which all ranks agree on them while they join"""
    text = ";".join(",".join(map(str, one.ranks)) for one in process_sets)
    return {"PROCESS_SETS": text} if 0 < len(text) <= _SETTING_CHARACTERS_MAX else {}


def _find_process_sets(process_sets):
    """Gives those that the job has to their objects; adds those that no setting had room for."""
    known = {ranks: set_id for set_id, ranks in _context.process_sets().items()}
    for one in process_sets:
        set_id = known.pop(tuple(one.ranks), None)
        if set_id == 0:
            raise ValueError(f"a process set is a duplicate, of the set of all ranks: {one}")
        one._added(_context.add_process_set(one.ranks) if set_id is None else set_id)
    for ranks, set_id in known.items():  # of the environment
        if set_id != 0:
            ProcessSet(ranks)._added(set_id)


def add_process_set(process_set, backend=None) -> ProcessSet:
    """Adds a process set, or one of the ranks in a list, and returns it. `backend` says what
    carries its operations, of what the setting BACKEND names for the job: "mpi", or "native".

    Every rank of the job calls this, with the same ranks and backend; so it does for all that is
    added and removed, in the same order. ValueError if there is one of these ranks.
    """
    if not isinstance(process_set, ProcessSet):
        process_set = ProcessSet(process_set)
    if process_set.process_set_id is not None:
        raise ValueError(f"{process_set} has been added")
    process_set._added(context().add_process_set(process_set.ranks, backend))
    return process_set


def _no_process_set(value):
    return ValueError(f"a process set is needed, as add_process_set() returns, not {value!r}")


def remove_process_set(process_set) -> bool:
    """Removes a process set, as every rank of the job does. What is pending on it fails.

    Returns whether there was one to remove: the set of all ranks stays. ValueError if it is no
    ProcessSet, its id for example: process_set_by_id() has it.
    """
    if not isinstance(process_set, ProcessSet):
        raise _no_process_set(process_set)
    if process_set is global_process_set or process_set.process_set_id is None:
        return False
    set_id = process_set.process_set_id
    context().remove_process_set(set_id)
    _process_sets.pop(set_id, process_set)._removed()
    process_set._removed()
    return True


def process_set_by_id(set_id) -> ProcessSet:
    """-> the process set with this id, which was added here"""
    if set_id == 0:
        return global_process_set
    if set_id not in _process_sets:
        raise ValueError(f"no process set has the id {set_id}")
    return _process_sets[set_id]


def _process_set_of(ranks):
    """-> the process set of these ranks that was added here; else a new one, that may be added"""
    added = (one for one in _process_sets.values() if one.ranks == ranks)
    return next(added, None) or ProcessSet(ranks)


def _get_process_set_ids_and_ranks():
    """As Horovod's `_basics` have it."""
    return {set_id: list(ranks) for set_id, ranks in context().process_sets().items()}


def _forget_process_sets():
    while _process_sets:
        _process_sets.popitem()[1]._removed()


def shutdown():
    """Leaves the job. What is still pending fails, here and on ranks that need this one."""
    global _context
    context, _context = _context, None
    global_process_set._joins.clear()
    _forget_process_sets()
    if context is not None:
        context.close()


_EXIT_CHARACTERS_MAX = 300  # of an exception that ends the process, for the other ranks


def _exit_saying(error):
    """The context stays, and ends with the process: others hear of the error, not that it left."""
    reason = describe(error).splitlines()[0].strip()
    _context.exit(reason[:_EXIT_CHARACTERS_MAX].encode(errors="replace").decode())


def _leave_at_exit():
    """Python keeps in sys what an exception has ended it with; the status of sys.exit() is known to
    the process alone, and not yet."""
    global _context
    error = getattr(sys, "last_value", None)
    if _context is None:
        return
    if error is not None and not hasattr(sys, "ps1") and not sys.flags.interactive:
        _exit_saying(error)
        return
    context, _context = _context, None
    context.close_at_exit()


def _is_child():
    """Whether multiprocessing has made this process; most of those end by _exit()."""
    process = sys.modules.get("multiprocessing.process")
    return process is not None and process.parent_process() is not None


def _leave_child():
    """Called when the function of a process of multiprocessing has ended, by an exception or not"""
    error = sys.exc_info()[1]
    atexit.unregister(_leave_at_exit)
    if _context is None:
        return
    if error is None or (isinstance(error, SystemExit) and not error.code):
        shutdown()
    else:
        _exit_saying(error)


def is_initialized() -> bool:
    return _context is not None


def context():
    """The process's horon.Context; raises if init() was not called."""
    if _context is None:
        closed = _horon.STATUSES["ERR_CLOSED"]
        raise NotInitializedError("horon has not been initialized; use hvd.init().", closed)
    return _context


def team_of(process_set):
    """-> what an operation on this process set is submitted to; it has rank and size there."""
    if process_set is global_process_set or process_set is None or process_set == 0:
        return context()
    if isinstance(process_set, ProcessSet):
        return process_set._member()
    raise _no_process_set(process_set)


def ranks_beside(process_set) -> bool:
    """Whether a process set has this rank and others; one that it is outside of has nothing to do
    with it."""
    is_added = isinstance(process_set, ProcessSet) and process_set.process_set_id is not None
    if is_added and not process_set.included():
        return False
    return team_of(process_set).size > 1


def rank() -> int:
    """This process's rank, 0..size()-1."""
    return context().rank


def place_of_this_rank():
    """-> this rank and its host, for an exception; None and "" outside of a job"""
    here = _context
    return (None, "") if here is None else (here.rank, here.hosts[here.rank])


def size() -> int:
    """How many ranks the job has."""
    return context().size


def local_rank() -> int:
    """Rank among the ranks of this host."""
    return context().local_rank


def local_size() -> int:
    """How many ranks this host has."""
    return context().local_size


def cross_rank() -> int:
    """Rank among the ranks with this local rank, in order of hosts."""
    return context().cross_rank


def cross_size() -> int:
    """How many ranks have this local rank."""
    return context().cross_size


def start_timeline(file_path, mark_cycles=False):
    """Writes what happens to operations to a file, as a Chrome trace, until stop_timeline().

    Rank 0 writes; with %r in the path, which stands for the rank, every rank does. The file is
    whole JSON at any time. `mark_cycles` adds CYCLE_START marks: when negotiated batches are taken
    up. The option TIMELINE (HOROVOD_TIMELINE, too) does the same from init() on.
    """
    context().start_timeline(file_path, mark_cycles)


def stop_timeline():
    """Ends the timeline, which shutdown() does, too; does nothing if there is none."""
    context().stop_timeline()


def is_homogeneous() -> bool:
    """Whether every host has as many ranks as the others."""
    return len(set(Counter(context().host_ids).values())) == 1


def mpi_enabled() -> bool:
    """Whether the setting BACKEND names MPI, which then may carry operations."""
    return is_initialized() and "mpi" in context().setting("BACKEND").split(",")


def mpi_built() -> bool:
    return _horon.feature("mpi")


def mpi_threads_supported() -> bool:
    if not mpi_enabled():
        raise ValueError("horon does not use MPI here")
    return True


def gloo_enabled() -> bool:
    """Whether horon needs no MPI to join ranks and move data: always."""
    return True


def gloo_built() -> bool:
    return True


def nccl_built() -> int:
    return int(_horon.feature("nccl"))


def cuda_built() -> bool:
    return _horon.feature("cuda")


def ddl_built() -> bool:
    return False


def ccl_built() -> bool:
    return False


def rocm_built() -> bool:
    return False


def warn(text, category=UserWarning):
    """Warns of the line of the application that has called this package."""
    frame, level = sys._getframe(1), 2
    while frame.f_back and frame.f_globals["__name__"].partition(".")[0] == "horon":
        frame, level = frame.f_back, level + 1
    warnings.warn(text, category, stacklevel=level)


def resolve_op(op, average) -> ReduceOp:
    """The reduction meant by `op` and Horovod's old `average` flag; Average if neither is given."""
    if average is None and op.__class__ is ReduceOp:
        return op
    if op is None:
        if average is None:
            return Average
        warn("average= is deprecated, use op=", DeprecationWarning)
        return Average if average else Sum
    if average is not None:
        raise ValueError("The op parameter supersedes average. Please provide only one of them.")
    return ReduceOp(op)
