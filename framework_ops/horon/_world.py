# SPDX-License-Identifier: Apache-2.0
"""The process's own membership of the job: init, shutdown, rank and friends.

The C ABI knows no process-wide state; scripts written for one rank a process expect it, so it is
kept here, in one place. All adapters of this package share it.
"""

import atexit
import sys
import threading
import warnings
from collections import Counter
from enum import IntEnum

from horon import _horon, _names
from horon.exceptions import describe

__all__ = [
    "Adasum",
    "Average",
    "Max",
    "Min",
    "ProcessSet",
    "Product",
    "ReduceOp",
    "Sum",
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
    "rank",
    "rocm_built",
    "shutdown",
    "size",
    "start_timeline",
    "stop_timeline",
]


class ReduceOp(IntEnum):
    """How an allreduce combines the ranks' values; the numbers are Horovod's.

    Adasum has its name and number, so that scripts can be read; it is refused when it is used.
    """

    Average = _horon.AVERAGE
    Sum = _horon.SUM
    Adasum = _horon.ADASUM
    Min = _horon.MIN
    Max = _horon.MAX
    Product = _horon.PRODUCT


Average = ReduceOp.Average
Sum = ReduceOp.Sum
Adasum = ReduceOp.Adasum
Min = ReduceOp.Min
Max = ReduceOp.Max
Product = ReduceOp.Product


class ProcessSet:
    """Some of the job's ranks. Only the set of all ranks, `global_process_set`, exists."""

    process_set_id = 0

    def included(self) -> bool:
        return True

    def size(self) -> int:
        return size()

    def rank(self) -> int:
        return rank()

    @property
    def ranks(self) -> list[int]:
        return list(range(size()))


global_process_set = ProcessSet()

_context = None
_joining = threading.Lock()  # threads that call init() at once join once


def init(comm=None, process_sets=None, *, rank=-1, size=-1, settings=None):
    """Joins the job. Every rank calls it; a second call does nothing until shutdown().

    Which rank this process is, the environment says (horonrun, Slurm, PMI, Open MPI, torchrun or
    Horovod variables; with none, it is a world of one), unless `rank` and `size` say so. `settings`
    maps names of the option table to values and goes before the environment.

    Waits for the other ranks; Ctrl-C, or any exception of a signal's handler, ends that, and the
    other ranks that wait are told. init() may be called again then.
    """
    global _context
    if comm is not None and comm != []:
        raise ValueError("init() takes no communicator: horon joins the job that its launcher made")
    if process_sets:
        raise ValueError("process sets other than the set of all ranks do not exist")
    pairs = tuple(f"{name}={value}" for name, value in (settings or {}).items())
    with _joining:
        if _context is not None:
            return
        _context = _horon.Context(rank=rank, size=size, settings=pairs)
        _names.restart()
        atexit.unregister(_leave_at_exit)
        atexit.register(_leave_at_exit)
        if _is_child():
            from multiprocessing.util import Finalize

            Finalize(None, _leave_child, exitpriority=0)


def shutdown():
    """Leaves the job. What is still pending fails, here and on ranks that need this one."""
    global _context
    context, _context = _context, None
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
    """The process's horon.Context; ValueError if init() was not called."""
    if _context is None:
        raise ValueError("horon has not been initialized; use hvd.init().")
    return _context


def team_of(process_set):
    """-> what an operation on this process set is submitted to; it has rank and size there."""
    if process_set is not None and process_set != 0 and process_set is not global_process_set:
        raise ValueError("process sets other than the set of all ranks do not exist")
    return context()


def rank() -> int:
    """This process's rank, 0..size()-1."""
    return context().rank


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
    """Whether operations may go through an MPI library."""
    return _horon.feature("mpi")


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
