# SPDX-License-Identifier: Apache-2.0
"""Which of the ranks that were started are the job: what init(comm=...) takes."""

import operator
import sys
from collections.abc import Iterable


def rank_of(number, what):
    """-> the rank, a whole number of Python's or numpy's. what: how the text of the error begins"""
    try:
        return operator.index(number)
    except TypeError:
        raise ValueError(f"{what} ranks, which are whole numbers: {number!r}") from None


def is_communicator(comm):
    mpi = sys.modules.get("mpi4py.MPI")  # which has been imported where there is one
    return mpi is not None and isinstance(comm, mpi.Comm)


def address_of(communicator):
    """-> where the handle lies of a communicator of mpi4py; 0 of None"""
    return 0 if communicator is None else sys.modules["mpi4py.MPI"]._addressof(communicator)


def ranks_setting(comm):
    """-> the setting by which only the ranks of this list are the job; none is all of them"""
    if comm is None:
        return {}
    if not isinstance(comm, Iterable):
        raise ValueError(f"comm is a list of ranks, or a communicator of mpi4py: {comm!r}")
    runs = []  # lists of ranks at equal steps
    for rank in comm:
        rank = rank_of(rank, "comm is a list of")
        run = runs[-1] if runs else []
        step = run[1] - run[0] if len(run) > 1 else 0  # 0: any will do
        if run and (rank == run[-1] + step if step else rank > run[0]):
            run.append(rank)
        else:
            runs.append([rank])
    return {"RANKS": ",".join(_run_text(run) for run in runs)} if runs else {}


def _run_text(run):
    """-> "3", "3,7", "3-7" or "3-7:2" """
    step = run[1] - run[0] if len(run) > 1 else 1
    if (len(run) < 3 and step > 1) or len(run) == 1:
        return ",".join(map(str, run))
    return f"{run[0]}-{run[-1]}" + (f":{step}" if step > 1 else "")
