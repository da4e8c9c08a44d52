# SPDX-License-Identifier: Apache-2.0
"""Starting ranks from a test.

A test calls `run_ranks(n, function, *args)`: n processes run the function (named rank_*) and give
its return values back as a list. They are forked from pytest, which has imported the framework
already and has never initialised horon, and they meet through a file store, so that no launcher
stands between a failure and its text. test_launch.py starts scripts as users do.
"""

import atexit
import os
import pickle
import secrets
import select
import shutil
import signal
import sys
import time
import traceback
from pathlib import Path

import pytest

LAUNCHER_VARIABLES = (
    "RANK",
    "WORLD_SIZE",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
)
FOREIGN_PREFIXES = ("HORON_", "HOROVOD_", "SLURM_", "OMPI_", "PMI_", "PMIX_")
# Of what must happen: only a hang reaches it. On a busy machine torch takes a minute to start.
LIMIT_SECONDS = 150

needs_full = pytest.mark.skipif(
    not os.environ.get("HORON_TEST_FULL"), reason="takes minutes: tools/check --full runs it"
)


def clean_environment():
    """The environment without what a launcher around the tests may have left in it."""
    return {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(FOREIGN_PREFIXES) and name not in LAUNCHER_VARIABLES
    }


class Rank:
    """One forked process; `code` is its exit status once it has ended, -signal if killed."""

    def __init__(self, directory, rank, env, function, args):
        self.log = directory / f"log.{rank}"
        self.result = directory / f"result.{rank}"
        self.code = None
        sys.stdout.flush()
        sys.stderr.flush()
        self.pid = os.fork()
        if self.pid == 0:
            self._be(env, function, args)
        self.pidfd = os.pidfd_open(self.pid)

    def _be(self, env, function, args):
        code = 1
        try:
            os.setsid()
            signal.signal(signal.SIGINT, signal.default_int_handler)
            log = os.open(self.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            os.dup2(log, 1)
            os.dup2(log, 2)
            sys.stdout = sys.stderr = os.fdopen(1, "w", buffering=1, closefd=False)
            os.environ.clear()
            os.environ.update(env)
            atexit._clear()  # what pytest left
            if "torch" in sys.modules:  # which read OMP_NUM_THREADS before this rank was forked
                sys.modules["torch"].set_num_threads(1)
            self.result.write_bytes(pickle.dumps(function(*args)))
            if "horon" in sys.modules:
                sys.modules["horon"].shutdown()  # exit() would; this process ends without it
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            atexit._run_exitfuncs()
            sys.stdout.flush()
            os._exit(code)

    def wait(self, end):
        """Whether it has ended by the time `end`."""
        left = max(0, end - time.monotonic())
        if self.code is None and select.select([self.pidfd], [], [], left)[0]:
            self.code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
            os.close(self.pidfd)
        return self.code is not None

    def kill(self):
        if self.code is None:
            os.killpg(self.pid, signal.SIGKILL)
            self.wait(time.monotonic() + LIMIT_SECONDS)


class Ranks:
    """A job of forked ranks; kill() leaves none."""

    def __init__(self, directory, n, function, args, settings):
        (directory / "store").mkdir(mode=0o700)
        env = clean_environment()
        env.update(
            {
                "HORON_SIZE": str(n),
                "HORON_JOB_KEY": secrets.token_hex(16),
                "HORON_STORE": f"file:{directory / 'store'}",
            }
        )
        env.update({name: str(value) for name, value in settings.items()})
        self.ranks = [
            Rank(directory, rank, {**env, "HORON_RANK": str(rank)}, function, args)
            for rank in range(n)
        ]

    def wait(self, limit=LIMIT_SECONDS):
        """Exit status of each rank; if one is still there at the limit, the test fails."""
        end = time.monotonic() + limit
        late = [i for i, rank in enumerate(self.ranks) if not rank.wait(end)]
        self.kill()
        if late:
            pytest.fail(f"ranks {late} did not end in {limit} s\n{self.logs()}", pytrace=False)
        return [rank.code for rank in self.ranks]

    def logs(self):
        return "\n".join(
            f"---- rank {i} ----\n{rank.log.read_text(errors='replace')}"
            for i, rank in enumerate(self.ranks)
            if rank.log.exists()
        )

    def result(self, rank):
        return pickle.loads(self.ranks[rank].result.read_bytes())

    def results(self, limit=LIMIT_SECONDS):
        codes = self.wait(limit)
        if any(codes):
            pytest.fail(f"exit status of the ranks: {codes}\n{self.logs()}", pytrace=False)
        return [self.result(rank) for rank in range(len(self.ranks))]

    def kill(self):
        for rank in self.ranks:
            rank.kill()


@pytest.fixture
def start_ranks(tmp_path):
    """start_ranks(n, function, *args, **settings) -> Ranks, running."""
    started = []

    def start(n, function, *args, **settings):
        directory = tmp_path / f"job{len(started)}"
        directory.mkdir()
        started.append(Ranks(directory, n, function, args, settings))
        return started[-1]

    yield start
    for ranks in started:
        ranks.kill()


@pytest.fixture
def run_ranks(start_ranks):
    """run_ranks(n, function, *args, **settings) -> what each rank returned; fails if one failed."""

    def run(n, function, *args, **settings):
        return start_ranks(n, function, *args, **settings).results()

    return run


@pytest.fixture(scope="session")
def horonrun():
    """The launcher: HORONRUN, or the one beside the Python that runs the tests."""
    beside = Path(sys.executable).with_name("horonrun")
    path = os.environ.get("HORONRUN") or (str(beside) if beside.exists() else None)
    path = path or shutil.which("horonrun")
    if path is None:
        pytest.skip("no horonrun: set HORONRUN, or install the package")
    return path
