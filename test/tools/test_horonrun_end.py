# SPDX-License-Identifier: Apache-2.0
"""How jobs end: by a rank's failure, by a signal, by a kill; and that nothing is ever left."""

import contextlib
import fcntl
import os
import pathlib
import random
import signal
import subprocess
import sys
import termios

HERE = pathlib.Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "drift")]

import jobs  # noqa: E402
import tap  # noqa: E402

ROUNDS = 100 if os.environ.get("HORON_TEST_FULL") else 8

# Says "ready" and sleeps; around it a child, one in a session of its own, and a daemon.
FAMILY = (
    "sleep 1000 & setsid sleep 1000 & (setsid sh -c 'sleep 1000 & sleep 1000' &) ; "
    "echo ready; while :; do sleep 1000; done"
)
SLEEPS = 5  # of one family
STUBBORN = "trap '' TERM INT HUP; echo ready; while :; do sleep 1; done"


def family(*words, count=2):
    """A job of ranks with families, all of them up."""
    job = jobs.Job("-np", str(count), *words, "sh", "-c", FAMILY)
    job.wait_for_output(rb"ready", count)
    jobs.until(
        lambda: [jobs.command_line(pid) for pid in job.pids()].count(b"sleep\0001000\0")
        == SLEEPS * count,
        "all families are complete",
    )
    return job


def ranks_of(job):
    """Process numbers of the ranks, by rank."""
    agent = job.agent()
    ranks = {}
    for pid in job.pids():
        if jobs.parent_of(pid) != agent:
            continue
        for entry in jobs.environment_of(pid).split(b"\0"):
            if entry.startswith(b"HORON_RANK=") and FAMILY.encode() in jobs.command_line(pid):
                ranks[int(entry.partition(b"=")[2])] = pid
    return ranks


def test_first_failure_ends_the_job_and_gives_its_status():
    status, _, err = jobs.run(
        "-np", "4", "sh", "-c",
        'if [ $HORON_RANK = 2 ]; then echo "the reason" >&2; exit 41; fi; sleep 1000',
    )  # fmt: skip
    assert status == 41, err
    assert "rank 2 on " in err
    assert "exited with status 41" in err
    assert "horonrun:   | the reason" in err
    assert "ending the other 3 ranks" in err


def test_last_lines_of_the_culprit_are_repeated():
    code = "for i in $(seq 1 25); do echo line $i >&2; done; exit 3"
    status, _, err = jobs.run("-np", "1", "sh", "-c", code)
    assert status == 3
    repeated = [line for line in err.splitlines() if line.startswith("horonrun:   | ")]
    assert repeated == [f"horonrun:   | line {i}" for i in range(16, 26)]


def test_killed_rank_gives_128_and_its_signal():
    with family() as job:
        os.kill(ranks_of(job)[1], signal.SIGKILL)
        status, _, err = job.end()
        job.assert_nothing_left()
    assert status == 128 + signal.SIGKILL, err
    assert "rank 1 on " in err and "was killed by signal 9" in err
    hint = "horonrun did not send that signal; the kernel does when memory runs out (dmesg tells)"
    assert err.count(hint) == 1, err


def test_ignored_sigchld_is_not_inherited():
    code = "import os, signal, sys; signal.signal(signal.SIGCHLD, signal.SIG_IGN); "
    ignoring = jobs.python(code + "os.execvp(sys.argv[1], sys.argv[1:])")
    status, _, err = jobs.run("-np", "2", "sh", "-c", "exit 3", prefix=ignoring)
    assert status == 3, err


def test_all_ranks_well_is_0_and_leaves_no_daemon():
    status, _, err = jobs.run("-np", "3", "sh", "-c", "(setsid sleep 1000 &) ; exit 0")
    assert status == 0, err


def test_rank_that_ignores_sigterm_is_killed_after_the_grace():
    command = f"if [ $HORON_RANK = 1 ]; then sleep 0.1; exit 5; fi; {STUBBORN}"
    status, _, err = jobs.run("-np", "3", "--grace", "0.2", "sh", "-c", command)
    assert status == 5, err
    assert "had to be killed (SIGKILL)" in err


def test_rank_may_end_in_its_own_way_within_the_grace():
    command = (
        "if [ $HORON_RANK = 0 ]; then read line; exit 9; fi; "
        "trap 'echo saved; exit 0' TERM; echo ready; while :; do sleep 0.05; done"
    )
    words = ("-np", "2", "--grace", "30", "sh", "-c", command)
    with jobs.Job(*words, stdin=subprocess.PIPE) as job:
        job.wait_for_output(rb"ready")
        job.process.stdin.close()
        job.process.stdin = None
        status, out, err = job.end()
        job.assert_nothing_left()
    assert status == 9, err
    assert "[1]<stdout>:saved\n" in out


def test_signals_end_the_job_with_128_and_their_number():
    for signo in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        with family() as job:
            job.process.send_signal(signo)
            status, _, err = job.end()
            job.assert_nothing_left()
        assert status == 128 + signo, (signo, status, err)
        assert "ending all ranks" in err


# A rank that takes long to clean up once it is interrupted, and is not disturbed. It sleeps by
# bits: Python hears of a signal that comes just before a call only when that returns.
CLEANS_UP = """
import os, sys, time
try:
    os.write(1, b"ready\\n")
    while True:
        time.sleep(0.01)
except KeyboardInterrupt:
    os.write(1, b"interrupted\\n")
    sys.stdin.read()
finally:
    os.write(1, b"cleaned up\\n")
"""


def ignore_keys():
    """As the shell of a script has what it starts with &."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGQUIT, signal.SIG_IGN)


def lets_ranks_clean_up(**popen):
    words = ("-np", "2", "--grace", "1000", *jobs.python(CLEANS_UP))
    with jobs.Job(*words, stdin=subprocess.PIPE, **popen) as job:
        job.wait_for_output(rb"ready", 2)
        job.process.send_signal(signal.SIGINT)
        job.wait_for_output(rb"interrupted", 2)
        job.process.stdin.close()
        job.process.stdin = None
        status, out, err = job.end()
        job.assert_nothing_left()
    assert status == 130, err
    assert out.count("cleaned up") == 2, out
    assert "had to be killed" not in err, err


def test_interrupt_lets_ranks_clean_up():
    lets_ranks_clean_up()


def test_interrupt_of_a_background_job_lets_ranks_clean_up():
    lets_ranks_clean_up(preexec_fn=ignore_keys)


# A rank that says so when it hears SIGUSR1.
ANSWERS = "trap 'echo heard' USR1; echo ready; while :; do sleep 0.01; done"


def goes_on_after(hit, **popen):
    """The job goes on after hit(job), which returns once the signal was sent."""
    with jobs.Job("-np", "2", "sh", "-c", ANSWERS, **popen) as job:
        job.wait_for_output(rb"ready", 2)
        hit(job)
        job.process.send_signal(signal.SIGUSR1)  # whose number is higher, so it comes after it
        job.wait_for_output(rb"heard", 2)
        job.process.terminate()
        status, _, err = job.end()
        job.assert_nothing_left()
    assert status == 143, (status, err)


def test_hangup_under_nohup_is_ignored():
    goes_on_after(
        lambda job: job.process.send_signal(signal.SIGHUP),
        preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN),
    )


def test_keys_of_the_terminal_are_not_for_a_background_job():
    master, terminal = os.openpty()

    def start():
        os.setsid()
        fcntl.ioctl(terminal, termios.TIOCSCTTY, 0)
        ignore_keys()

    def press(job):
        os.write(master, b"\x03")
        echo = b""
        while b"^C" not in echo:  # which the terminal writes once it has sent the signal
            echo += os.read(master, 100)

    with contextlib.ExitStack() as stack:
        for fd in (master, terminal):
            stack.callback(os.close, fd)
        goes_on_after(press, stdin=terminal, preexec_fn=start)


def test_second_interrupt_ends_the_job_at_once():
    with jobs.Job("-np", "2", "--grace", "1000", "sh", "-c", STUBBORN) as job:
        job.wait_for_output(rb"ready", 2)
        job.process.send_signal(signal.SIGINT)
        line = job.process.stderr.readline()
        assert b"ending all ranks" in line, line
        job.process.send_signal(signal.SIGINT)
        status, _, err = job.end()
        job.assert_nothing_left()
    assert status == 130, err


def test_killed_horonrun_leaves_nothing():
    with family() as job:
        job.process.kill()
        jobs.until(lambda: not job.pids(), f"nothing is left, but {job.pids()}")


def test_killed_horonrun_ends_the_grace_that_it_gave():
    with jobs.Job("-np", "1", "--grace", "86400", "sh", "-c", STUBBORN) as job:
        job.wait_for_output(rb"ready")
        job.process.send_signal(signal.SIGINT)
        line = b""
        while b"ending all ranks" not in line:
            line = job.process.stderr.readline()
            assert line
        job.process.kill()
        job.end()
        jobs.until(lambda: not job.pids(), "all is gone")


def test_killed_agent_leaves_nothing():
    with family() as job:
        os.kill(job.agent(), signal.SIGKILL)
        status, _, err = job.end()
        job.assert_nothing_left()
    assert status == 1, err
    assert "its agent was killed by signal 9" in err


def test_killed_guard_leaves_nothing():
    with family() as job:
        os.kill(job.guard(), signal.SIGKILL)
        status, _, err = job.end()
        job.assert_nothing_left()
    assert status == 1, err
    assert "its agent's guard was killed by signal 9" in err


def test_stopped_guard_hinders_nobody():
    with family() as job:
        os.kill(job.guard(), signal.SIGSTOP)
        job.process.terminate()
        assert job.end()[0] == 143
        job.assert_nothing_left()


def test_kill_by_name_leaves_nothing():
    """A kill of all processes called horonrun leaves agent and guard, which have other names, and
    so do terminals."""
    with family() as job:
        name = pathlib.Path(f"/proc/{job.process.pid}/comm").read_text()
        for pid, called in ((job.agent(), "horon-agent\n"), (job.guard(), "horon-guard\n")):
            assert pathlib.Path(f"/proc/{pid}/comm").read_text() == called != name
            assert b"horonrun" not in jobs.command_line(pid)
            assert os.getsid(pid) != os.getsid(job.process.pid)


def test_killing_anybody_leaves_nothing():
    seed = random.randrange(1 << 32)
    chance = random.Random(seed)
    for number in range(ROUNDS):
        with family() as job:
            pillars = [job.process.pid, job.guard(), job.agent(), *ranks_of(job).values()]
            victim = chance.choice(job.pids())
            name = jobs.command_line(victim)
            os.kill(victim, signal.SIGKILL)
            if victim not in pillars:  # a rank goes on without its helper: then end the job
                job.process.send_signal(signal.SIGTERM)
            status = job.end()[0]
            jobs.until(lambda job=job: not job.pids(), f"nothing is left (seed {seed}, {number})")
            assert status != 0, f"seed {seed}, round {number}: {name!r}"


def test_key_is_on_no_command_line():
    with jobs.Job("-np", "2", "sh", "-c", f"{jobs.SHOW_KEY}; sleep 1000") as job:
        keys = set(job.wait_for_output(rb"key=([0-9a-f]{64})\.", 2))
        assert len(keys) == 1
        key = keys.pop()
        assert not [pid for pid in jobs.all_pids() if key in jobs.command_line(pid)]
        job.process.terminate()
        _, _, err = job.end()
    assert key.decode() not in err


def state_of(pid):
    return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def test_stopping_horonrun_stops_the_ranks_and_back():
    with family() as job:
        ranks = list(ranks_of(job).values())
        job.process.send_signal(signal.SIGTSTP)
        jobs.until(
            lambda: {state_of(pid) for pid in [*ranks, job.process.pid]} == {"T"}, "all are stopped"
        )
        job.process.send_signal(signal.SIGCONT)
        jobs.until(
            lambda: "T" not in {state_of(pid) for pid in [*ranks, job.process.pid]}, "all go on"
        )
        job.process.terminate()
        assert job.end()[0] == 143
        job.assert_nothing_left()


def test_stopped_ranks_are_ended():
    with family() as job:
        for pid in ranks_of(job).values():
            os.kill(pid, signal.SIGSTOP)
        job.process.terminate()
        assert job.end()[0] == 143
        job.assert_nothing_left()


def test_many_ranks_come_and_go():
    status, out, err = jobs.run("-np", "64", "sh", "-c", "echo $HORON_RANK")
    assert status == 0, err
    assert sorted(int(line.partition(":")[2]) for line in out.splitlines()) == list(range(64))


tap.run(dict(vars()))
