# SPDX-License-Identifier: Apache-2.0
"""horonrun --mpi: ranks that Open MPI's mpirun or MPICH's hydra starts, with horonrun above it and
beside each rank. What is wrong before a rank runs needs neither of them: scripts stand in."""

import contextlib
import os
import pathlib
import re
import shlex
import shutil
import signal
import sys
import tempfile

HERE = pathlib.Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "drift")]

import jobs  # noqa: E402
import launchers  # noqa: E402
import tap  # noqa: E402

SUM_ONCE = os.environ.get("SUM_ONCE")
BESIDE_MPI = os.environ.get("BESIDE_MPI")
LIBRARIES = {"mpirun": "libmpi.so.40", "mpiexec.hydra": "libmpich.so.12"}
OPEN_MPI = "mpirun (Open MPI) 4.1.4"
HYDRA = "HYDRA build details:\n    Version:      4.0.2"
# MPI itself loses memory.
LOSES = {"ASAN_OPTIONS": f"{os.environ.get('ASAN_OPTIONS', '')}:detect_leaks=0"}
RANK = "${PMI_RANK:-$OMPI_COMM_WORLD_RANK}"
WAIT = "exec tail -f /dev/null"


@contextlib.contextmanager
def that_says(version, does=""):
    """A program in place of mpirun, which says this of itself, and @p does that as a launcher."""
    with tempfile.TemporaryDirectory() as folder:
        program = pathlib.Path(folder, "mpirun")
        answer = f"[ \"$1\" = --version ] && printf '%s\\n' {shlex.quote(version)} && exit 0"
        program.write_text(f"#!/bin/sh\n{answer}\n{does}\n")
        program.chmod(0o755)
        yield str(program)


def by_both(size, *words, **env):
    """A job of each family, one after the other."""
    for program in LIBRARIES:
        with launchers.below_horonrun(program, "-np", str(size), *words, **env) as job:
            yield program, job


def ranks_in(out):
    places = re.findall(r"rank (\d+) of (\d+), local (\d+) of (\d+), hosts 1$", out, re.M)
    return sorted(places)


def test_mpi_ranks_meet():
    for size in (1, 3):
        for _, job in by_both(size, SUM_ONCE, "1009"):
            status, out, err = job.end()
            assert status == 0, (out, err)
            assert ranks_in(out) == [(str(i), str(size)) * 2 for i in range(size)], (out, err)
            assert re.search(rf"^horonrun: {size} ranks? by mpi\S+ \(.*\d\), /", err, re.M), err
            assert "job key" not in err, err  # there is one
            job.assert_nothing_left()


def test_mpi_places_of_another_job_are_forgotten():
    stale = {"RANK": "7", "WORLD_SIZE": "9", "PMI_RANK": "3", "PMI_SIZE": "4", "PMIX_RANK": "1"}
    stale |= {"OMPI_COMM_WORLD_RANK": "1", "HOROVOD_RANK": "1", "HORON_SIZE": "2"}
    for _, job in by_both(2, SUM_ONCE, "1009", **stale):
        status, out, err = job.end()
        assert status == 0, (out, err)
        assert ranks_in(out) == [("0", "2") * 2, ("1", "2") * 2], (out, err)


def test_mpi_words_of_the_command_reach_ranks_as_they_are():
    """A ":" ends a program's words on the command lines of both families."""
    words = ("a b", "$x", "", ":", "\\:", "\\\\:", "a:", ":b", "\\", "--np", "it's", 'x"y', "n\nl")
    show = "import os, sys; os.write(1, ascii(sys.argv[1:]).encode() + bytes([10]))"
    for _, job in by_both(2, sys.executable, "-c", show, *words):
        status, out, err = job.end()
        assert status == 0, (out, err)
        assert out.count(ascii(list(words))) == 2, (out, err)


def test_mpi_ranks_begin_and_end_mpi_themselves():
    for program, library in LIBRARIES.items():
        words = ("-np", "3", BESIDE_MPI, library, "jsibfsl")
        with launchers.below_horonrun(program, *words, **LOSES) as job:
            status, out, err = job.end()
        assert status == 0, (out, err)
        assert out.count("sum 3") == 6, (out, err)


def test_mpi_variables_and_key_stand_on_no_command_line():
    """Nor in the environment of the rank itself, which has the key as a descriptor."""
    show = f"{jobs.SHOW_KEY}; echo own=$OWN,$HORON_JOB_KEY,$HORON_FUSION_BYTES; {WAIT}"
    options = ("-x", "OWN=a-secret", "--fusion-bytes", "4m", "sh", "-c", show)
    for _, job in by_both(2, *options, HORON_JOB_KEY="a key for this test alone"):
        said = job.wait_for_output(rb"own=(.*)", 2)
        assert said == [b"a-secret,,4m"] * 2, said
        assert job.out.count(b"key=a key for this test alone.") == 2, job.out
        lines = [jobs.command_line(pid) for pid in job.pids()]
        own = [line for line in lines if b"--rank-of-mpi" in line]
        assert len(own) >= 3, lines  # the launcher's and those of the ranks
        for line in lines:
            assert b"for this test" not in line, line
            assert b"a-secret" not in line or b"horonrun\0--mpi\0" in line, line
        job.process.send_signal(signal.SIGTERM)
        assert job.end()[0] == 128 + signal.SIGTERM
        job.assert_nothing_left()


def test_mpi_other_hosts_get_variables_and_no_secret_by_ssh():
    show = "echo [$OWN] [${HORON_JOB_KEY_FILE%:*}]"
    with jobs.ssh_that('echo "$@" >> $folder/called; ' + jobs.RUN_HERE) as (ssh, folder):
        # Of ssh's words the host is the first that is no option: MPI's launchers know no "--".
        text = (folder / "ssh").read_text()
        here = 'while [ "$1" != 192.0.2.7 ]; do shift; done; shift; exec sh -c "$*"'
        (folder / "ssh").write_text(text.replace(jobs.RUN_HERE, here))
        options = (*ssh, "-p", "2222", "-H", f"{jobs.ELSEWHERE}:2", "sh", "-c", show)
        for _, job in by_both(2, *options, OWN="a-secret"):
            status, out, err = job.end()
            assert status == 0, (out, err)
            assert out.count("[a-secret] [fd]") == 2, (out, err)
            called = (folder / "called").read_text()
            (folder / "called").unlink()
            assert "-p 2222" in called, called
            assert "a-secret" not in called and "HORON_JOB_KEY" not in called, called


def test_mpi_rank_that_fails_is_named_and_ends_the_others():
    for how, code, told in (
        ("exit 7", 7, "exited with status 7"),
        ("kill -KILL $$", 137, r"was killed by signal 9 \(Killed\)"),
        ("exec /no/such/program", 127, "exited with status 127"),
    ):
        script = f"if [ {RANK} = 1 ]; then {how}; fi; {WAIT}"
        for _, job in by_both(3, "sh", "-c", script):
            status, out, err = job.end()
            job.assert_nothing_left()
            assert status == code, (status, out, err)
            assert re.search(rf"horonrun: rank 1 on \S+ \(process \d+\) {told}", err), err
            assert not re.search("horonrun: rank [02]", err), err  # those were ended
            assert re.search(rf"^horonrun: mpi.*exited with status {code}; command: sh", err, re.M)


def test_mpi_survivors_go_on_where_the_launcher_lets_them():
    script = f"if [ {RANK} = 1 ]; then kill -KILL $$; fi; read word < $FIFO; echo $word"
    words = ("-np", "2", "--keep-survivors", "sh", "-c", script)
    with tempfile.TemporaryDirectory() as folder:
        fifo = pathlib.Path(folder, "fifo")
        os.mkfifo(fifo)
        with launchers.below_horonrun("mpiexec.hydra", *words, FIFO=str(fifo)) as job:
            told = job.process.stderr.readline() + job.process.stderr.readline()
            assert b"horonrun: rank 1 on" in told, told
            fifo.write_text("goes-on\n")
            status, out, err = job.end()
    assert status == 137 and "goes-on" in out, (status, out, err)


def test_mpi_missing_command_is_told():
    for _, job in by_both(2, "no-such-command"):
        status, out, err = job.end()
        assert status == 127, (status, out, err)
        assert "cannot run no-such-command: No such file" in err, err


def test_mpi_input_goes_to_rank_0_alone():
    for program in LIBRARIES:
        with launchers.below_horonrun(program, "-np", "2", "cat", "/dev/stdin") as job:
            status, out, err = job.end()
        assert status == 0 and not out, (program, out, err)


def test_mpi_input_that_is_closed_is_empty():
    closed = ("sh", "-c", 'exec "$@" <&-', "sh")
    for program in LIBRARIES:
        with launchers.below_horonrun(program, "-np", "2", "cat", prefix=closed) as job:
            status, out, err = job.end()
        assert status == 0 and not out, (program, out, err)


HEARS = """
import os, signal, sys
rank = os.environ.get("PMI_RANK") or os.environ["OMPI_COMM_WORLD_RANK"]
def heard(signo, frame):
    os.write(1, f"rank {rank} heard {int(signo)}\\n".encode())
    sys.exit(0) if signo == signal.%s else None
signal.signal(signal.SIGINT, heard)
signal.signal(signal.SIGTERM, heard)
os.write(1, b"ready\\n")
while True:
    signal.pause()
"""


def end_by(signo, last, *options):
    """Of each family: what two ranks hear, which end at signal @p last, when horonrun gets it."""
    for _, job in by_both(2, *options, *jobs.python(HEARS % last.name)):
        job.wait_for_output(b"ready", 2)
        job.process.send_signal(signo)
        status, out, err = job.end()
        assert status == 128 + signo, (status, out, err)
        assert "ending all ranks (once more: at once)" in err, err
        assert "had to be killed" not in err or "60" not in options, err
        assert "horonrun: rank" not in err, err  # they were asked to
        job.assert_nothing_left()
        yield sorted(re.findall(r"rank (\d) heard (\d+)", out))


def test_mpi_ctrl_c_reaches_ranks_as_sigint_once():
    for heard in end_by(signal.SIGINT, signal.SIGINT, "--grace", "60"):
        assert heard == [("0", "2"), ("1", "2")], heard


def test_mpi_rank_that_goes_on_after_ctrl_c_is_asked_to_end():
    for heard in end_by(signal.SIGINT, signal.SIGTERM, "--grace", "2"):
        assert heard == [("0", "15"), ("0", "2"), ("1", "15"), ("1", "2")], heard


def test_mpi_sigterm_reaches_ranks_as_sigterm_once():
    for heard in end_by(signal.SIGTERM, signal.SIGTERM, "--grace", "60"):
        assert heard == [("0", "15"), ("1", "15")], heard


def test_mpi_second_ctrl_c_ends_all_at_once():
    hears = jobs.python(HEARS % "SIGKILL")
    for _, job in by_both(2, "--grace", "600", *hears):
        job.wait_for_output(b"ready", 2)
        job.process.send_signal(signal.SIGINT)
        job.wait_for_output(rb"heard 2", 2)
        job.process.send_signal(signal.SIGINT)
        status, out, err = job.end()
        job.assert_nothing_left()
        assert status == 130, (status, out, err)


def test_mpi_kill_of_horonrun_leaves_nothing():
    for _, job in by_both(2, "sh", "-c", f"echo ready; {WAIT}"):
        job.wait_for_output(b"ready", 2)
        job.process.kill()
        jobs.until(lambda job=job: not job.pids(), "all processes were gone")


LEAVES = """
import subprocess
quiet = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)
subprocess.Popen(["tail", "-f", "/dev/null"], start_new_session=True, **quiet)
"""


def test_mpi_what_a_rank_leaves_behind_is_ended():
    for _, job in by_both(2, *jobs.python(LEAVES)):
        status, out, err = job.end()
        assert status == 0, (status, out, err)
        job.assert_nothing_left()


def test_mpi_what_a_rank_leaves_behind_on_another_host_is_ended_there():
    with jobs.Job("--rank-of-mpi", *jobs.python(LEAVES)) as job:
        assert job.process.wait(jobs.DEADLINE) == 0
        job.assert_nothing_left()


def test_mpi_launcher_that_fails_at_once_is_told():
    with that_says(OPEN_MPI, "echo no slots >&2; exit 3") as program:
        status, out, err = jobs.run("--mpi", "--mpirun", program, "-np", "2", "true")
    assert status == 3 and not out, (status, out, err)
    assert "no slots" in err, err
    assert re.search(r"mpirun \(Open MPI 4.1.4\) \(process \d+\) exited with status 3", err), err


def words_of(version, *options):
    """What a launcher gets that says this of itself."""
    with that_says(version, 'for word in "$@"; do printf "<%s>" "$word"; done') as program:
        status, out, err = jobs.run("--mpi", "--mpirun", program, *options, "prog", "-np", "9")
    assert status == 0, (status, out, err)
    assert re.search(r"<[^>]*/horonrun><--rank-of-mpi>(<--alone>)?<prog><-np><9>$", out), out
    return out


def test_mpi_hosts_and_options_are_written_as_each_family_takes_them():
    asked = ("-H", "a:2,b:3", "-np", "4", "--ssh", "ssh -F x")
    for version, *wanted in (
        (OPEN_MPI, "<-np><4>", "<-H><a:2,b:2>", "<--map-by><slot>", "<--tag-output>"),
        (OPEN_MPI, "<--mca><plm_rsh_agent><ssh -F x>", "<-x><HORON_JOB_KEY>"),
        (OPEN_MPI.replace("4.1.4", "5.0.11"), "<-H><a:2,b:2>", "<--output><tag>"),
        (OPEN_MPI.replace("4.1.4", "5.0.11"), "<--prtemca><plm_ssh_agent><ssh -F x>"),
        (HYDRA, "<-np><4>", "<-hosts><a:2,b:2>", "<-prepend-rank>", "<-genvlist><"),
    ):
        said = words_of(version, *asked)
        assert all(word in said for word in wanted), (wanted, said)
        assert "oversubscribe" not in said.lower(), said  # the slots are the user's


def test_mpi_args_are_words_and_go_before_what_horonrun_would_say():
    args = """--bind-to core  -x "A B" --map-by 'ppr:1:node'"""
    said = words_of(OPEN_MPI, "-np", "2", "--mpi-args", args, "--no-prefix")
    assert "<--bind-to><core><-x><A B><--map-by><ppr:1:node><" in said, said
    assert said.count("<--bind-to>") == said.count("<--map-by>") == 1, said
    assert "<--oversubscribe>" in said and "<--tag-output>" not in said, said
    said = words_of(HYDRA, "-np", "2", "--mpi-args=-disable-auto-cleanup")
    assert "<--rank-of-mpi><--alone><prog>" in said, said


def test_mpi_args_may_be_long():
    hosts = ",".join(f"node{i:04d}.example.org" for i in range(1000))
    said = words_of(HYDRA, "-np", "2", f"--mpi-args=-hosts {hosts} -q")
    assert f"<-hosts><{hosts}><-q>" in said, said


def test_mpi_options_that_launchers_do_not_know_are_theirs_to_refuse():
    for _, job in by_both(2, "--mpi-args=--no-such-option", "true"):
        status, out, err = job.end()
        assert status not in (0, 2), (status, out, err)
        assert "no-such-option" in err or "nosuchoption" in err.replace("-", ""), err


def test_mpi_names_of_many_variables_go_to_hydra_without_a_list():
    """A word of a command line has 128 KiB at most."""
    many = {f"ONE_OF_MANY_VARIABLES_{i:04d}": "x" for i in range(6000)}
    does = 'printf "<%s>" "$@"; echo; env | grep -c ONE_OF; true'
    with that_says(HYDRA, does) as program:
        words = ("--mpi", "--mpirun", program, "-np", "2", "true")
        status, out, err = jobs.run(*words, env=many)
        assert status == 0 and "<-genvall><" in out and "genvlist" not in out, (status, out, err)
        assert "6000" in out.splitlines(), out
        status, out, err = jobs.run(*words)
    assert status == 0 and "<-genvlist><" in out and "genvall" not in out, (status, out, err)


# Becomes a program with entries in its environment that are no variables.
NO_VARIABLES = """
import ctypes, os, sys
kept = [f"{name}={value}".encode() for name, value in os.environ.items()]
entries = [b"PMI_NOTHING", b"NOTHING", *kept, None]
words = [word.encode() for word in sys.argv[1:]] + [None]
listed = [(ctypes.c_char_p * len(some))(*some) for some in (words, entries)]
ctypes.CDLL(None).execve(words[0], *listed)
"""


def test_mpi_entries_of_the_environment_that_are_no_variables_stay_here():
    with that_says(OPEN_MPI, "tr '\\0' '\\n' < /proc/self/environ") as program:
        words = (jobs.HORONRUN, "--mpi", "--mpirun", program, "-np", "1", "true")
        job = jobs.Job("-c", NO_VARIABLES, *words, program=sys.executable, env={"STAYS": "1"})
        with job:
            status, out, err = job.end()
    assert status == 0 and "STAYS=1" in out, (status, out, err)
    assert "NOTHING" not in out, out


def test_mpi_launcher_is_a_file_that_can_be_run():
    with that_says(OPEN_MPI, "echo found") as program, tempfile.TemporaryDirectory() as folder:
        pathlib.Path(folder, "mpirun").mkdir()  # a folder, too, may be "executed"
        own = str(pathlib.Path(program).parent)
        path = {"PATH": f"{folder}:{own}:{os.environ['PATH']}"}
        status, out, err = jobs.run("--mpi", "-np", "1", "true", env=path)
        assert status == 0 and "found" in out, (status, out, err)
        for name in ("", f"{folder}/mpirun", folder):
            status, out, err = jobs.run("--mpi", "--mpirun", name, "-np", "1", "true", env=path)
            assert status == 2 and f"--mpirun {name}: no such program" in err, (status, out, err)
        junk = pathlib.Path(folder, "junk")
        junk.write_text("#!/no/such/interpreter\n")
        junk.chmod(0o755)
        status, out, err = jobs.run("--mpi", "--mpirun", str(junk), "-np", "1", "true", env=path)
    assert status == 2 and f'it says "{junk}: No such file' in err, (status, out, err)


def test_mpi_launcher_leaves_nothing_of_what_it_was_asked():
    starts = "tail -f /dev/null > /dev/null 2>&1 &\necho srun 22.05"
    with that_says("", "exit 99") as program:
        pathlib.Path(program).write_text(f"#!/bin/sh\n{starts}\n")
        with jobs.Job("--mpi", "--mpirun", program, "-np", "1", "true") as job:
            status, out, err = job.end()
            job.assert_nothing_left()
    assert status == 2 and 'it says "srun 22.05"' in err, (status, out, err)


def test_mpi_open_mpi_is_known_by_its_other_names():
    """It says so of itself as mpiexec, orterun and mpirun.openmpi."""
    for name, end in (("mpiexec", ""), ("mpirun.openmpi", "\n\nReport bugs to x")):
        with that_says(f"{name} (OpenRTE) 4.1.4{end}", "exit 0") as program:
            status, out, err = jobs.run("--mpi", "--mpirun", program, "-np", "2", "true")
        assert status == 0 and "mpirun (Open MPI 4.1.4)" in err, (status, out, err)
    for name in ("mpiexec.openmpi", "mpirun.openmpi"):
        if shutil.which(name):
            with launchers.below_horonrun(name, "-np", "2", SUM_ONCE, "1009") as job:
                status, out, err = job.end()
            assert status == 0 and len(ranks_in(out)) == 2, (name, out, err)


def test_mpi_launcher_of_no_known_family_is_refused():
    with that_says("srun 22.05") as program:
        status, out, err = jobs.run("--mpi", "--mpirun", program, "-np", "2", "true")
    assert status == 2 and not out, (status, out, err)
    assert "neither Open MPI's nor MPICH's" in err and 'it says "srun 22.05"' in err, err


def test_mpi_without_a_launcher_is_refused():
    for options, told in (
        ((), "neither mpirun nor mpiexec"),
        (("--mpirun", "x"), "x: no such"),
    ):
        status, out, err = jobs.run("--mpi", *options, "-np", "2", "true", env={"PATH": "/none"})
        assert status == 2 and told in err, (status, out, err)


def test_mpi_options_without_a_meaning_are_refused_by_name():
    for version, words, told in (
        (OPEN_MPI, ["--output-filename", "x"], "--output-filename means nothing with --mpi"),
        (OPEN_MPI, ["--color", "always"], "--color means nothing"),
        (OPEN_MPI, ["--gloo"], "--gloo means nothing with --mpi: give one of the two"),
        (OPEN_MPI, ["--keep-survivors"], "--keep-survivors means nothing"),
        (OPEN_MPI, ["-H", "me@a:2"], "host me@a: with --mpi only a name"),
        (OPEN_MPI, ["-H", "[::1]:2"], "host ::1: with --mpi only a name"),
        (OPEN_MPI, ["-H", "localhost:1,127.0.0.1:1"], "localhost and 127.0.0.1 are both this"),
        (OPEN_MPI, ["-H", "a:1"], "-np 2 is more than the 1 slot"),
        (OPEN_MPI, ["--mpi-args", "-x 'a"], "--mpi-args: a quote in it does not end"),
        (HYDRA, ["--prefix-output-with-timestamp"], "--prefix-output-with-timestamp means"),
    ):
        with that_says(version, "exit 99") as program:
            words = ["--mpi", "--mpirun", program, "-np", "2", *words, "true"]
            status, out, err = jobs.run(*words)
        assert status == 2 and told in err, (words, status, out, err)


def test_mpi_options_without_mpi_are_told():
    status, _, err = jobs.run("--mpi-args", "-q", "-np", "1", "true")
    assert status == 0 and "--mpi-args is ignored: without --mpi" in err, (status, err)
    status, _, err = jobs.run("--mpirun", "mpirun", "-np", "1", "true")
    assert status == 2 and "--mpirun means nothing without --mpi" in err, (status, err)


tap.run(dict(vars()))
