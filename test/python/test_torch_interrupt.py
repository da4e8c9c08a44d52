# SPDX-License-Identifier: Apache-2.0
"""A signal's handler that raises in the middle of a step: step() again goes on where it was.

Python runs handlers where a function is entered and where a call of C has returned. A profiler is
told of just these places, and can raise there: so each place inside horon has its turn.
"""

import os
import signal
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

import horon.torch as hvd  # noqa: E402
from horon import _gradients  # noqa: E402
from torch import nn  # noqa: E402

torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0)  # see test_torch_optimizer.py

HORON = str(Path(hvd.__file__).parents[1])


class Interrupter:
    """Raises KeyboardInterrupt, once, at the nth place in horon's files."""

    def __init__(self, nth):
        self.left = nth

    def __call__(self, frame, event, arg):
        if event in ("call", "c_return") and frame.f_code.co_filename.startswith(HORON):
            self.left -= 1
            if self.left == 0:
                raise KeyboardInterrupt

    def run(self, function):
        """Whether there was an nth place."""
        sys.setprofile(self)
        try:
            function()
        except KeyboardInterrupt:
            return True
        finally:
            sys.setprofile(None)
        return False


class Job:
    """A rank with two parameters, a sparse one if wanted, and gradients that all differ."""

    def __init__(self, passes=1, sparse=False, compression="none", **options):
        hvd.init()
        self.steps = 0
        self.passes = passes
        self.sparse = sparse
        self.model = nn.ModuleDict({"a": nn.Linear(2, 1, False), "b": nn.Linear(3, 1, False)})
        if sparse:
            self.model["table"] = nn.Embedding(3, 2, sparse=True)
        for p in self.model.parameters():
            nn.init.zeros_(p)
        self.optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD(self.model.parameters(), lr=1.0),
            self.model.named_parameters(),
            backward_passes_per_step=passes,
            compression=getattr(hvd.Compression, compression),
            **options,
        )

    def loss(self, rank):
        scale = (1 + rank) * 2.0 ** (self.steps % 5) / self.passes
        loss = sum(scale * self.model[name].weight.sum() for name in "ab")
        if self.sparse:
            loss = loss + scale * self.model["table"](torch.tensor([rank])).sum()
        return loss

    def backward(self, scaler=None):
        self.optimizer.zero_grad()
        for _ in range(self.passes):
            loss = self.loss(hvd.rank())
            (loss if scaler is None else scaler.scale(loss)).backward()

    def check(self):
        """The step has moved the parameters once, by the mean of the ranks' gradients."""
        size = hvd.size()
        scale = 2.0 ** (self.steps % 5)
        for name in "ab":
            weight = self.model[name].weight
            torch.testing.assert_close(
                weight.detach(), torch.full_like(weight, -scale * (1 + size) / 2)
            )
        if self.sparse:
            rows = self.model["table"].weight[:, 0].detach()
            want = [-scale * (1 + rank) / size if rank < size else 0.0 for rank in range(3)]
            torch.testing.assert_close(rows, torch.tensor(want))
        self.steps += 1
        with torch.no_grad():
            for p in self.model.parameters():
                p.zero_()


def is_there_more(interrupted):
    return hvd.broadcast(torch.tensor(interrupted), 0).item()


VARIANTS = [
    {},
    {"groups": 1},
    {"passes": 2},
    {"compression": "fp16"},
    {"compression": "fp16", "groups": 1, "passes": 2},
    {"sparse": True},
]


def rank_interrupted(options, call):
    """Rank 0 is interrupted at its nth place, for each n, and calls again."""
    job = Job(**options)
    nth, more = 0, True
    while more:
        nth += 1
        job.backward()
        function = getattr(job.optimizer, call)
        interrupted = hvd.rank() == 0 and Interrupter(nth).run(function)
        if interrupted or hvd.rank() > 0:
            function()
        if call == "synchronize":
            with job.optimizer.skip_synchronize():
                job.optimizer.step()
        job.check()
        more = is_there_more(interrupted)
    return nth


@pytest.mark.parametrize(
    "options, call",
    [(options, "step") for options in VARIANTS]
    + [({}, "synchronize"), (VARIANTS[4], "synchronize")],
    ids=str,
)
def test_step_is_taken_up_wherever_it_was_interrupted(run_ranks, options, call):
    assert run_ranks(2, rank_interrupted, options, call)[0] > 30


def test_step_of_three_ranks_is_taken_up(run_ranks):
    assert run_ranks(3, rank_interrupted, {"groups": 1}, "step")[0] > 30


def rank_interrupted_backward(options):
    """Interrupted in backward, a rank has not all gradients: ranks are in step, and equal."""
    job = Job(**options)
    job.backward()
    job.optimizer.step()  # all ranks know now what is sparse
    job.check()
    nth, more = 0, True
    while more:
        nth += 1
        if hvd.rank() == 0:
            interrupted = Interrupter(nth).run(job.backward)
        else:
            interrupted = False
            job.backward()
        job.optimizer.step()
        weights = torch.cat([p.detach().reshape(-1) for p in job.model.parameters()])
        assert hvd.allgather(weights[None]).unique(dim=0).shape[0] == 1, nth
        with torch.no_grad():
            for p in job.model.parameters():
                p.zero_()
        job.backward()
        job.optimizer.step()
        job.check()
        more = is_there_more(interrupted)
    return nth


@pytest.mark.parametrize("options", [{}, VARIANTS[4]], ids=str)
def test_ranks_stay_in_step_if_backward_is_interrupted(run_ranks, options):
    assert run_ranks(2, rank_interrupted_backward, options)[0] > 5


def rank_interrupted_failure(options):
    """The step fails on rank 1, so on all: also on rank 0, which was interrupted."""
    job = Job(**options)
    nth, more = 0, True
    while more:
        nth += 1
        job.backward()
        if hvd.rank() == 1:
            job.model["b"].weight.grad.mul_(2)
            with pytest.raises(RuntimeError, match="changed after backward"):
                job.optimizer.step()
            interrupted = False
        else:
            interrupted = False
            with pytest.raises(hvd.HoronInternalError, match=r"failed on rank 1: .* was changed"):
                interrupted = Interrupter(nth).run(job.optimizer.step)
                job.optimizer.step()
        job.backward()
        job.optimizer.step()
        job.check()
        more = is_there_more(interrupted)
    return nth


@pytest.mark.parametrize("options", VARIANTS[:2], ids=str)
def test_failed_step_fails_wherever_it_was_interrupted(run_ranks, options):
    assert run_ranks(2, rank_interrupted_failure, options)[0] > 30


def rank_interrupted_difference():
    """The step fails on both ranks, as groups differ: also on rank 0, which was interrupted."""
    hvd.init()
    _gradients.LOOK_S = 0.005  # what meets nobody has each step wait for so long
    job = Job(groups=1 + hvd.rank())
    nth, more = 0, True
    while more:
        nth += 1
        job.backward()
        interrupted = False
        with pytest.raises(hvd.HoronInternalError, match="another group"):
            if hvd.rank() == 0:
                interrupted = Interrupter(nth).run(job.optimizer.step)
            job.optimizer.step()
        more = is_there_more(interrupted)
    return nth


def test_step_of_groups_that_differ_fails_wherever_it_was_interrupted(run_ranks):
    assert run_ranks(2, rank_interrupted_difference)[0] > 30


def rank_interrupted_scaling():
    job = Job()
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    nth, more = 0, True
    while more:
        nth += 1
        job.backward(scaler)
        interrupted = hvd.rank() == 0 and Interrupter(nth).run(job.optimizer.synchronize)
        if interrupted or hvd.rank() > 0:
            job.optimizer.synchronize()
        scaler.unscale_(job.optimizer)
        with job.optimizer.skip_synchronize():
            scaler.step(job.optimizer)
        scaler.update()
        job.check()
        more = is_there_more(interrupted)


needs_scaler = pytest.mark.skipif(
    not hasattr(torch, "amp") or not hasattr(torch.amp, "GradScaler"), reason="old torch"
)


@needs_scaler
def test_scaled_step_is_taken_up_wherever_it_was_interrupted(run_ranks):
    run_ranks(2, rank_interrupted_scaling)


# ---- Signals ----


def raise_in_exchange(signum, frame):
    """And not once the step is taken: calling step() again would be another one."""
    while frame is not None:
        if frame.f_code.co_filename.startswith(HORON + "/_gradients.py"):
            raise KeyboardInterrupt
        frame = frame.f_back


def rank_signalled(options, go):
    """The other rank does not step before this one was interrupted in its wait for it."""
    job = Job(**options)
    signal.signal(signal.SIGALRM, raise_in_exchange)
    for _ in range(5):
        job.backward()
        if hvd.rank() > 0:
            os.read(go[0], 1)
            job.optimizer.step()
        else:
            with pytest.raises(KeyboardInterrupt):
                signal.setitimer(signal.ITIMER_REAL, 0.01, 0.01)
                job.optimizer.step()
            signal.setitimer(signal.ITIMER_REAL, 0)
            os.write(go[1], b"!")
            job.optimizer.step()
        job.check()


@pytest.mark.parametrize("options", VARIANTS, ids=str)
def test_step_that_a_signal_interrupts_is_taken_up(run_ranks, options):
    go = os.pipe()
    run_ranks(2, rank_signalled, options, go)


def rank_watched(go):
    """As a watchdog does it: its exception has the class of those that a limit of horon's has."""

    def raise_late(signum, frame):
        raise TimeoutError("the step takes too long")

    job = Job()
    signal.signal(signal.SIGALRM, raise_late)
    for call in (job.optimizer.step, job.optimizer.synchronize):
        job.backward()
        if hvd.rank() > 0:
            os.read(go[0], 1)
        else:
            with pytest.raises(TimeoutError, match="takes too long"):
                signal.setitimer(signal.ITIMER_REAL, 0.3)
                call()
            os.write(go[1], b"!")
        job.optimizer.step()
        job.check()


def test_step_ends_by_a_watchdogs_timeout_and_is_taken_up(run_ranks):
    run_ranks(2, rank_watched, os.pipe())


def rank_signalled_often(options):
    """Three times a step, wherever this rank is by then."""
    job = Job(**options)
    signal.signal(signal.SIGALRM, raise_in_exchange)
    for delay in range(1, 60):
        job.backward()
        timers = [delay * 2e-5, delay * 1e-5, delay * 3e-5, 0] if hvd.rank() == 0 else [0]
        for timer in timers:
            try:
                signal.setitimer(signal.ITIMER_REAL, timer)
                job.optimizer.step()
                break
            except KeyboardInterrupt:
                pass
        signal.setitimer(signal.ITIMER_REAL, 0)
        job.check()


@pytest.mark.parametrize("options", [{}, VARIANTS[4], {"sparse": True}], ids=str)
def test_step_that_is_interrupted_again_and_again_is_taken_up(run_ranks, options):
    run_ranks(2, rank_signalled_often, options)


# ---- Joins ----


def rank_interrupted_join(own):
    """Rank 0 is interrupted at its nth place, for each n, and calls again. Ranks had not as many
    operations without a name before, and these meet after."""
    hvd.init(process_sets=[own] if own else None)
    own = own or hvd.global_process_set
    nth, more = 0, True
    while more:
        nth += 1
        interrupted = False
        if own.included():
            for _ in range(hvd.rank()):
                hvd.allreduce(torch.ones(1), process_set=own)
            if hvd.rank() == 0:
                interrupted = Interrupter(nth).run(lambda: hvd.join(process_set=own))
            if interrupted or hvd.rank() > 0:
                assert hvd.join(process_set=own) in own.ranks
            assert hvd.allreduce(torch.ones(1), op=hvd.Sum, process_set=own).item() == 2
        more = is_there_more(interrupted)
    return nth


@pytest.mark.parametrize("n, own", [(2, None), (3, hvd.ProcessSet([0, 1]))], ids=str)
def test_join_is_taken_up_wherever_it_was_interrupted(run_ranks, n, own):
    assert run_ranks(n, rank_interrupted_join, own)[0] > 3


def rank_leaves_a_join():
    """What was begun in a job that is over is none of the next one."""
    hvd.init(size=1, rank=0)
    hvd.global_process_set._joins = ["of another job"]
    hvd.shutdown()
    hvd.init(size=1, rank=0)
    assert hvd.join() == 0


def test_shutdown_forgets_a_join(run_ranks):
    run_ranks(1, rank_leaves_a_join)


# ---- Updates ----


class Interrupted(torch.optim.SGD):
    """Updates some parameters and is interrupted."""

    error = None

    def step(self, closure=None):
        if closure is not None:
            closure()
        if self.error is not None:
            error, self.error = self.error, None
            with torch.no_grad():
                self.param_groups[0]["params"][0].add_(1.0)
            raise error
        return super().step()


def rank_interrupted_update(error, closure):
    hvd.init()
    p = {"p": nn.Parameter(torch.ones(2))}
    optimizer = hvd.DistributedOptimizer(Interrupted(p.values(), lr=1.0), p.items())
    if hvd.rank() == 0:
        optimizer.error = error

    def backward():
        (p["p"].sum() * (1 + hvd.rank())).backward()

    if not closure:
        backward()
    arguments = (backward,) if closure else ()
    if hvd.rank() == 0:
        with pytest.raises(type(error)):
            optimizer.step(*arguments)
        if isinstance(error, Exception):  # the user's own: the gradients are not exchanged again
            if not closure:
                optimizer.step()
        else:
            with pytest.raises(RuntimeError, match=r"interrupted.*broadcast_parameters"):
                optimizer.step(*arguments)
    else:
        optimizer.step(*arguments)
    hvd.broadcast_parameters(p, 1)
    optimizer.zero_grad()
    if not closure:
        backward()
    optimizer.step(*arguments)
    torch.testing.assert_close(p["p"].detach(), torch.full((2,), 1 - 2 * 1.5))


@pytest.mark.parametrize("error", [KeyboardInterrupt(), ValueError()], ids=repr)
@pytest.mark.parametrize("closure", [False, True])
def test_update_that_was_interrupted_is_told(run_ranks, error, closure):
    run_ranks(2, rank_interrupted_update, error, closure)
