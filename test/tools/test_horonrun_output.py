# SPDX-License-Identifier: Apache-2.0
"""What horonrun prints and writes: whole lines, prefixes, files, and what it tells about itself."""

import errno
import os
import pathlib
import pty
import re
import signal
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "drift")]

import jobs  # noqa: E402
import tap  # noqa: E402

WRITES_IN_PIECES = """
import os, random
rank = int(os.environ["HORON_RANK"])
random.seed(rank)
text = "".join(f"rank {rank} line {i} " + chr(65 + rank) * random.randrange(300) + "|\\n"
               for i in range(500)).encode()
while text:
    piece = random.randrange(1, 200)
    os.write(1, text[:piece])
    text = text[piece:]
"""


def test_output_lines_are_never_torn():
    status, out, err = jobs.run("-np", "7", *jobs.python(WRITES_IN_PIECES))
    assert status == 0, err
    seen = [0] * 7
    for line in out.splitlines():
        match = re.fullmatch(r"\[(\d)\]<stdout>:rank (\d) line (\d+) ([A-G]*)\|", line)
        assert match, f"torn: {line!r}"
        rank = int(match[1])
        assert match[2] == match[1]
        assert int(match[3]) == seen[rank], f"out of order: {line!r}"
        assert set(match[4]) <= {chr(65 + rank)}
        seen[rank] += 1
    assert seen == [500] * 7


def test_output_both_streams_to_one_file_stay_whole():
    code = """
import os
for i in range(300):
    os.write(1, b"out" * 3000); os.write(2, b"err" * 3000)
    os.write(1, b"\\n"); os.write(2, b"\\n")
"""
    with tempfile.TemporaryFile() as both:
        command = [jobs.HORONRUN, "-np", "3", *jobs.python(code)]
        pid = os.posix_spawn(
            command[0],
            command,
            jobs.CLEAN,
            file_actions=[
                (os.POSIX_SPAWN_DUP2, both.fileno(), 1),
                (os.POSIX_SPAWN_DUP2, both.fileno(), 2),
            ],
        )
        status = os.waitpid(pid, 0)[1]
        both.seek(0)
        lines = both.read().splitlines()
    whole = {
        f"[{rank}]<std{name}>:{name * 3000}".encode()
        for rank in range(3)
        for name in ("out", "err")
    }
    odd = [line for line in lines if line not in whole]
    assert not odd, (status, len(lines), odd[:5])
    assert (status, len(lines)) == (0, 1800)


def test_output_partial_line_is_printed_at_the_end():
    status, out, _ = jobs.run("-np", "2", "sh", "-c", "printf one; printf 'two\\nthree'")
    assert status == 0
    assert sorted(out.splitlines()) == [
        "[0]<stdout>:onetwo",
        "[0]<stdout>:three",
        "[1]<stdout>:onetwo",
        "[1]<stdout>:three",
    ]


def test_output_is_complete_though_its_reader_is_slow():
    code = "import os\nfor i in range(2000): os.write(1, b'x' * 4095 + b'\\n')"
    with jobs.Job("-np", "2", *jobs.python(code)) as job:
        # horonrun, guard, agent and two ranks, which soon wait in write()
        jobs.until(lambda: len(job.pids()) == 5, "both ranks run")
        status, out, err = job.end()
    assert status == 0, err
    assert len(out) == 2 * 2000 * (4096 + len("[0]<stdout>:"))


def test_output_without_reader_ends_the_job():
    """As SIGPIPE ends a program that runs alone: what nobody reads need not go on."""
    with jobs.Job("-np", "2", "sh", "-c", "while :; do echo y; done") as job:
        job.wait_for_output(rb"y")
        job.process.stdout.close()
        job.process.stdout = None
        _, err = job.process.communicate(timeout=jobs.DEADLINE)
        assert job.process.returncode == 128 + signal.SIGPIPE, err
        assert b"nobody reads standard output any more: ending" in err
        job.assert_nothing_left()


def test_output_that_cannot_be_written_is_told_and_no_success():
    for words in (["-np", "2", "echo", "hi"], ["--help"], ["--version"], ["--check-build"]):
        with open("/dev/full", "w") as full:
            done = subprocess.run(
                [jobs.HORONRUN, *words],
                stdout=full,
                stderr=subprocess.PIPE,
                text=True,
                env=jobs.CLEAN,
                timeout=jobs.DEADLINE,
                check=False,
            )
        assert done.returncode == 1, (words, done)
        assert (
            done.stderr.count("horonrun: standard output") == 1 and "No space left" in done.stderr
        ), (words, done)


def limited(kilobytes, *words, out=None):
    """Runs horonrun, of whose files none may grow beyond that. @return (status, out, err)"""
    with tempfile.TemporaryFile() as kept:
        done = subprocess.run(
            ["bash", "-c", f'ulimit -f {kilobytes}; exec "$@"', "bash", jobs.HORONRUN, *words],
            stdout=out or kept,
            stderr=subprocess.PIPE,
            env=jobs.CLEAN,
            timeout=jobs.DEADLINE,
            check=False,
        )
        kept.seek(0)
        return done.returncode, kept.read().decode(), done.stderr.decode()


def test_output_beyond_a_limit_of_files_is_told_and_no_success():
    """As a full disk; and not the end of horonrun by SIGXFSZ."""
    status, out, err = limited(8, "-np", "2", "seq", "1", "4000")
    assert (status, len(out)) == (1, 8 << 10), err
    assert err.count("standard output cannot be written, its rest is lost: File too large") == 1


def test_ranks_are_ended_by_a_limit_of_files_as_without_horonrun():
    with tempfile.TemporaryDirectory() as folder:
        words = ("dd", "if=/dev/zero", "bs=16k", "count=1", f"of={folder}/file")
        status, _, err = limited(8, "-np", "1", *words)
    assert status == 128 + signal.SIGXFSZ, (status, err)
    assert f"was killed by signal {signal.SIGXFSZ.value} " in err


def test_output_streams_keep_their_sides():
    status, out, err = jobs.run("-np", "1", "sh", "-c", "echo left; echo right >&2")
    assert (status, out, err) == (0, "[0]<stdout>:left\n", "[0]<stderr>:right\n")


def test_output_style_follows_the_flags():
    _, out, _ = jobs.run("-np", "1", "--color", "always", "echo", "x")
    assert out == "\033[31m[0]<stdout>:\033[0mx\n"
    _, out, _ = jobs.run("-np", "1", "--no-prefix", "echo", "x")
    assert out == "x\n"
    _, out, _ = jobs.run("-np", "1", "--prefix-output-with-timestamp", "echo", "x")
    assert re.fullmatch(r"\w{3} \w{3} [ \d]\d \d\d:\d\d:\d\d \d{4}\[0\]<stdout>:x\n", out), out


def on_terminal(*words, env=None):
    """(what a terminal as standard output shows, standard error, which is none) of a job."""
    ours, its = pty.openpty()
    with subprocess.Popen(
        [jobs.HORONRUN, *words],
        stdin=subprocess.DEVNULL,
        stdout=its,
        stderr=subprocess.PIPE,
        env={**jobs.CLEAN, **(env or {})},
    ) as process:
        os.close(its)
        shown = b""
        try:
            while piece := os.read(ours, 4096):
                shown += piece
        except OSError as error:  # how Linux says that nobody has the other end any more
            assert error.errno == errno.EIO, error
        _, err = process.communicate(timeout=jobs.DEADLINE)
    os.close(ours)
    assert process.returncode == 0, err
    return shown.decode().replace("\r\n", "\n"), err.decode()


def test_output_is_coloured_on_a_terminal():
    words = ("-np", "1", *jobs.python("import sys; print('out'); print('err', file=sys.stderr)"))
    clean = {"NO_COLOR": ""}
    plain, coloured = "[0]<stdout>:out\n", r"\033\[\d+m\[0\]<stdout>:\033\[0mout"
    out, err = on_terminal(*words, env=clean)
    assert re.fullmatch(coloured, out.strip()), out
    assert err == "[0]<stderr>:err\n", err  # a pipe
    out, err = on_terminal("--color", "auto", *words, env=clean)
    assert re.fullmatch(coloured, out.strip()), out
    out, err = on_terminal("--color", "always", *words, env={"NO_COLOR": "1"})
    assert re.fullmatch(coloured, out.strip()), out
    assert "\033[" in err, err
    for options, env in (((), {"NO_COLOR": "1"}), (("--color", "never"), clean)):
        out, err = on_terminal(*options, *words, env=env)
        assert out == plain, out
        assert err == "[0]<stderr>:err\n", err


def test_output_files_hold_the_raw_streams():
    with tempfile.TemporaryDirectory() as folder:
        target = pathlib.Path(folder, "a", "b")
        command = ("sh", "-c", "echo out $HORON_RANK; printf 'err\\r%s' $HORON_RANK >&2")
        status, out, _ = jobs.run("-np", "11", "--output-filename", str(target), *command)
        assert status == 0
        assert "[10]<stdout>:out 10\n" in out
        names = sorted(path.name for path in target.iterdir())
        assert names == [f"rank.{rank:02d}" for rank in range(11)]
        for rank in range(11):
            place = target / f"rank.{rank:02d}"
            assert (place / "stdout").read_text() == f"out {rank}\n"
            assert (place / "stderr").read_bytes() == f"err\r{rank}".encode()
        jobs.run("-np", "2", "--output-filename", str(target), "true")
        assert (target / "rank.1" / "stdout").read_text() == ""


def test_output_files_that_cannot_be_written_are_named():
    status, _, err = jobs.run("-np", "2", "--output-filename", "/proc/nothing", "true")
    assert status == 1
    assert "/proc/nothing/rank.0" in err


def test_output_file_beyond_a_limit_is_told_and_no_success():
    with tempfile.TemporaryDirectory() as folder:
        words = ("-np", "2", "-o", folder, "sh", "-c")
        code = "[ $HORON_RANK = 0 ] || seq 1 4000; seq 1 10 >&2"
        status, _, err = limited(8, *words, code, out=subprocess.DEVNULL)
        own = [line for line in err.splitlines() if line.startswith("horonrun: ")]
        full, rest = pathlib.Path(folder, "rank.1", "stdout"), []
        assert (status, len(full.read_bytes())) == (1, 8 << 10), (status, err)
        assert f"horonrun: {full} cannot be written, its rest is lost: File too large" in own, err
        for path in pathlib.Path(folder).glob("rank.*/*"):
            rest += [] if path == full or path.match("rank.0/stdout") else [path.read_text()]
        assert rest == ["".join(f"{i}\n" for i in range(1, 11))] * 2
        assert len([line for line in own if str(full) in line]) == 1, err


def test_files_do_not_follow_links():
    with tempfile.TemporaryDirectory() as folder:
        place = pathlib.Path(folder)
        treasure = place / "treasure"
        treasure.write_text("weights")
        victim = place / "victim"
        victim.mkdir()
        for number, plant in enumerate(("top", "directory", "file", "pipe")):
            out = place / str(number)
            if plant == "top":
                out.symlink_to(victim)
            else:
                out.mkdir()
            if plant == "directory":
                (out / "rank.0").symlink_to(place)
            if plant in ("file", "pipe"):
                (out / "rank.0").mkdir()
            if plant == "file":
                (out / "rank.0" / "stdout").symlink_to(treasure)
            if plant == "pipe":
                os.mkfifo(out / "rank.0" / "stdout")
            for given in (str(out), f"{out}/", f"{out}//"):
                status, _, err = jobs.run("-np", "1", "-o", given, "echo", "hello")
                assert status == 1, (plant, err)
                assert "cannot write" in err, (plant, err)
        assert not list(victim.iterdir())
        assert treasure.read_text() == "weights"
        assert not (place / "stdout").exists()


def test_what_horonrun_says_does_not_speak_to_the_terminal():
    words = r"printf 'a\033]0;evil\007b\302\233c\n' >&2; exit 3"
    status, _, err = jobs.run("-np", "2", "--no-prefix", "sh", "-c", words)
    assert status == 3
    own = [line for line in err.splitlines() if line.startswith("horonrun: ")]
    assert any("a?]0;evil?b??c" in line for line in own), own
    assert not [line for line in own if "\x1b" in line or "\x07" in line or "\x9b" in line], own


def test_ranks_get_their_place_and_environment():
    status, out, err = jobs.run(
        "-np", "3", "-x", "GIVEN=a b", "-x", "TAKEN", "-x", "NOT_THERE", "--fusion-bytes", "7m",
        "sh", "-c",
        "echo $HORON_RANK $HORON_SIZE $HORON_LOCAL_RANK $HORON_LOCAL_SIZE:$GIVEN:$TAKEN:"
        "${NOT_THERE-unset}:$HORON_FUSION_BYTES:$HORON_STORE:${HORON_JOB_KEY-unset}:"
        f"$({jobs.SHOW_KEY})",
        env={"TAKEN": "t", "HORON_RANK": "9"},
    )  # fmt: skip
    assert status == 0
    assert err == (
        "horonrun: warning: -x NOT_THERE: no variable of that name is set here\n"
        "horonrun: warning: set here, but horonrun sets it for the ranks itself: HORON_RANK\n"
    )
    keys = set()
    for rank, line in enumerate(sorted(out.splitlines())):
        match = re.fullmatch(
            rf"\[{rank}\]<stdout>:{rank} 3 {rank} 3:a b:t:unset:7m:"
            r"tcp://127\.0\.0\.1:\d+:unset:key=([0-9a-f]{64})\.",
            line,
        )
        assert match, line
        keys.add(match[1])
    assert len(keys) == 1
    assert out.count("\n") == 3


def test_ranks_get_settings_and_exports_whole():
    """A setting may be as long as HORON_CONFIG_TEXT_BYTES lets it be."""
    sets = ";".join(["0,1"] * 256)
    assert len(sets) == 1023
    name, text = "N" * 300, "t" * 5000
    show = f'echo "[$HORON_PROCESS_SETS] [${name}]"'
    options = ("--no-prefix", "--process-sets", sets, "-x", f"{name}={text}")
    status, out, err = jobs.run("-np", "1", *options, "bash", "-c", show)
    assert status == 0, err
    assert out == f"[{sets}] [{text}]\n", (len(out), err)


def test_standard_input_goes_to_rank_0_alone():
    with tempfile.TemporaryFile() as text:
        text.write(b"hello\n")
        text.seek(0)
        command = ("sh", "-c", 'read x && echo "got $x" || echo end')
        status, out, _ = jobs.run("-np", "3", *command, stdin=text)
    assert status == 0
    assert sorted(out.splitlines()) == [
        "[0]<stdout>:got hello",
        "[1]<stdout>:end",
        "[2]<stdout>:end",
    ]


def test_standard_input_that_is_closed_is_empty():
    closed = ("sh", "-c", 'exec "$@" <&-', "sh")
    status, out, err = jobs.run("-np", "2", "readlink", "/proc/self/fd/0", prefix=closed)
    assert status == 0, (out, err)
    assert sorted(out.splitlines()) == [f"[{i}]<stdout>:/dev/null" for i in (0, 1)], out


def test_slips_are_refused_with_status_2():
    for words, wanted in (
        (["--fusion-byte", "3", "true"], "the nearest is --fusion-bytes"),
        (["-np", "2", "--fusion-bytes", "many", "true"], "is not a size"),
        (["-np", "3", "-H", "localhost:2", "true"], "more than the 2 slots"),
        (["-H", "localhost:1,127.0.0.1:1", "true"], "are both this machine"),
        (["-H", "localhost", "--hostfile", "f", "true"], "not both"),
        (["--hostfile", "/nowhere", "true"], "/nowhere"),
        (["true"], "how many ranks?"),
        (["-np", "2"], "what is to be run?"),
        ([], "what is to be run?"),
        (["-np", "2", "--job-key", "k", "true"], "horonrun sets HORON_JOB_KEY itself"),
    ):
        status, out, err = jobs.run(*words)
        assert status == 2, (words, status, err)
        assert wanted in err, (words, err)
        assert out == ""


def test_too_few_descriptors_are_told_before_anything_runs():
    limit = ("sh", "-c", 'ulimit -n 8; exec "$@"', "sh")
    status, _, err = jobs.run("-np", "4", "true", prefix=limit)
    assert status == 2, err
    assert "may have 8 files open (ulimit -Hn), and this job takes 28 of horonrun" in err
    status, out, err = jobs.run(
        "-np", "4", "echo", "hi", prefix=(*limit[:2], limit[2].replace("8", "28"), "sh")
    )
    assert (status, out.count("hi")) == (0, 4), err


def test_wrong_variables_are_named():
    status, _, err = jobs.run("-np", "1", "true", env={"HORON_FUSION_BYTES": "many"})
    assert status == 2
    assert "HORON_FUSION_BYTES=many" in err
    for names, wanted in (
        ("native,foo", 'names "foo", which is no backend here: there are native, mpi'),
        ("mpi,mpi", 'names "mpi" twice'),
    ):
        status, _, err = jobs.run("-np", "2", "true", env={"HORON_BACKEND": names})
        assert status == 2 and err.startswith(f"horonrun: HORON_BACKEND {wanted}"), err
        assert err.count("HORON_BACKEND") == 1, err
    status, _, err = jobs.run("-np", "1", "true", env={"HORON_FUSION_BYTE": "1m"})
    assert status == 0
    assert "warning: HORON_FUSION_BYTE is set but means nothing" in err


def test_variables_that_horonrun_sets_itself_are_named_once():
    given = {"HORON_STORE": "tcp://10.0.0.1:5", "HORON_SIZE": "7", "HORON_JOB_KEY": "5" * 32}
    status, _, err = jobs.run("-np", "1", "true", env=given)
    assert status == 0, err
    assert err == (
        "horonrun: warning: set here, but horonrun sets it for the ranks itself: "
        "HORON_STORE, HORON_SIZE\n"
    )


def test_horonrun_within_a_rank_does_not_warn_of_what_the_outer_one_set():
    status, out, err = jobs.run(
        "-np", "1", jobs.HORONRUN, "-np", "2", "sh", "-c", "echo $HORON_SIZE"
    )
    assert (status, out.count(":2\n"), err) == (0, 2, "")


def test_commands_that_cannot_run_are_named():
    status, _, err = jobs.run("-np", "2", "no-such-command-here")
    assert status == 127, err
    assert "command not found: no-such-command-here" in err
    status, _, err = jobs.run("-np", "2", "/nowhere/prog")
    assert status == 127, err
    assert "/nowhere/prog" in err
    status, _, err = jobs.run("-np", "2", "/dev/null")
    assert status == 126, err


def test_horonrun_tells_about_itself():
    status, out, _ = jobs.run("--version")
    assert status == 0 and re.fullmatch(r"horonrun \(horon\) \d+\.\d+\.\d+\n", out)
    status, out, _ = jobs.run("--help")
    assert status == 0
    for flag in ("-np", "--hostfile", "--output-filename", "--fusion-bytes", "--start-timeout"):
        assert flag in out
    assert "--job-key" not in out
    status, out, _ = jobs.run("--check-build")
    assert status == 0
    for word in ("Available Frameworks:", "[X] TCP", "NCCL", "MPI"):
        assert word in out
    status, _, err = jobs.run("-np", "2", "--verbose", "true")
    assert status == 0
    assert re.search(r"rank 1 runs on \S+ as process \d+", err)


tap.run(dict(vars()))
