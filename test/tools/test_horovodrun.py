# SPDX-License-Identifier: Apache-2.0
"""horon's ranks under horovodrun --gloo: they meet through its HTTP server, real or a stand-in."""

import collections
import importlib.machinery
import os
import pathlib
import re
import signal
import socket
import sys
import tempfile

HERE = pathlib.Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "drift")]

import jobs  # noqa: E402
import rendezvous  # noqa: E402
import tap  # noqa: E402
import tree  # noqa: E402

SUM_ONCE = os.environ.get("SUM_ONCE")
COUNT = "1009"
ONE_HOST = [("node0", 3)]
TWO_HOSTS = [("node0", 2), ("node1", 2)]


def end_all(ranks):
    """@return the outputs of all, and their errors; none of them failed"""
    ended = [rank.end() for rank in ranks]
    for rank in ranks:
        rank.assert_nothing_left()
    assert all(status == 0 for status, _, _ in ended), ended
    return [out for _, out, _ in ended], [err for _, _, err in ended]


def keys_of(server):
    """What horon has left: its only scope."""
    scopes = [scope for scope, keys in server.scopes.items() if keys]
    assert len(scopes) == 1, scopes
    assert re.fullmatch("horon[.][0-9a-f]{16}", scopes[0]), scopes
    return server.scopes[scopes[0]]


def sums(hosts, server, **env):
    with rendezvous.horovodrun(SUM_ONCE, COUNT, hosts=hosts, port=server.port, **env) as ranks:
        outs, errs = end_all(ranks)
    for rank, out in enumerate(outs):
        assert out.startswith(f"rank {rank} of {len(outs)},"), outs
    return errs


def test_ranks_of_one_host_meet_and_tell_no_key():
    with rendezvous.serve() as server:
        errs = sums(ONE_HOST, server)
    assert keys_of(server)["horon"].startswith(b"1,.,127.0.0.1:"), server.scopes
    assert "not heeded" not in "".join(errs), errs  # what horovodrun sets for all


def test_gloo_means_horons_own_links_and_a_word_of_the_users_counts():
    """horovodrun --gloo says so for every job, whose user has not asked for it."""
    asked = {}, {"HOROVOD_CPU_OPERATIONS": "mpi"}, {"HORON_BACKEND": "mpi"}
    for env, warnings in zip(asked, (0, 1, 1), strict=True):
        with rendezvous.serve() as server:
            errs = sums(ONE_HOST, server, HORON_JOB_KEY="a key for this test alone", **env)
        told = [err.count("warn: backend mpi is not used") for err in errs]
        assert told == [warnings] * 3, (env, errs)
        assert "".join(errs).count("warn: ") == sum(told), (env, errs)


def test_ranks_of_several_hosts_meet_by_a_fresh_key_and_one_warns():
    with rendezvous.serve() as server:
        errs = sums(TWO_HOSTS, server)
    assert re.match(b"1,[0-9a-f]{64},", keys_of(server)["horon"]), server.scopes
    warned = [err.count("authenticates nobody") for err in errs]
    assert warned == [1, 0, 0, 0], errs


def test_ranks_with_a_key_of_the_users_keep_it():
    with rendezvous.serve() as server:
        errs = sums(TWO_HOSTS, server, HORON_JOB_KEY="a key for this test alone")
    assert keys_of(server)["horon"].startswith(b"1,-,"), server.scopes
    assert "authenticates nobody" not in "".join(errs), errs


def test_requests_are_the_golden_ones():
    """In a rank's order; how often one asks for what is not there yet is chance."""
    sizes = {"global": 4, "local_node0": 2, "local_node1": 2, "cross_0": 2, "cross_1": 2}
    with rendezvous.serve(sizes=sizes) as server:
        server.scopes["global"]["rank_0"] = b"as Horovod has left it"
        sums(TWO_HOSTS, server)
    assert server.scopes.pop("global") == {"rank_0": b"as Horovod has left it"}
    assert not server.finished
    keys = keys_of(server)
    assert keys.keys() == {"horon", *(f"horon.{rank}" for rank in range(4))}, keys
    asked = collections.Counter()
    for method, path in server.log:
        asked[method, path.split("/")[2]] += 1
    assert {key for method, key in asked if method == "PUT"} == keys.keys(), asked
    assert all(count == 1 for (method, _), count in asked.items() if method == "PUT"), asked
    assert all(asked["GET", f"horon.{rank}"] == 1 for rank in range(4)), asked
    assert asked["GET", "horon"] >= 4, asked
    assert {method for method, _ in asked} == {"PUT", "GET"}, asked
    marks = [path.split("/")[2] for _, path in server.log if "horon.0" in path.split("/")[2]]
    assert marks == ["horon.0", "horon.0"], server.log
    first = [method for method, path in server.log if path.endswith(("/horon", "/horon.0"))]
    assert first[0] == "GET", server.log


def test_jobs_at_once_do_not_meet():
    with rendezvous.serve() as one, rendezvous.serve() as other:
        more = {"hosts": TWO_HOSTS, "port": one.port}
        with rendezvous.horovodrun(SUM_ONCE, COUNT, **more) as ranks:
            sums(ONE_HOST, other)
            end_all(ranks)


def test_a_job_of_some_of_the_ranks_has_a_scope_of_its_own():
    with rendezvous.serve() as server:
        more = {"hosts": TWO_HOSTS, "port": server.port}
        with (
            rendezvous.horovodrun(SUM_ONCE, COUNT, HORON_RANKS="0,2", **more) as low,
            rendezvous.horovodrun(SUM_ONCE, COUNT, HORON_RANKS="1,3", **more) as high,
        ):
            outs, _ = end_all([low[0], high[1], low[2], high[3]])
    assert [out.split(",")[0] for out in outs] == [f"rank {r} of 2" for r in (0, 0, 1, 1)], outs
    assert len([scope for scope, keys in server.scopes.items() if keys]) == 2, server.scopes


def test_program_that_a_rank_starts_does_not_wait_in_its_place():
    with rendezvous.serve() as server:
        words = (COUNT, "1", f"{SUM_ONCE} {COUNT} 1")
        more = {"hosts": ONE_HOST, "port": server.port, "HORON_START_TIMEOUT": "1h"}
        with rendezvous.horovodrun(SUM_ONCE, *words, **more) as ranks:
            ended = [rank.end() for rank in ranks]
    for rank, (status, _, err) in enumerate(ended):
        assert status != 0, ended
        assert f"rank {rank} has joined already: process" in err, ended


def fails(port, told, hosts=ONE_HOST, **env):
    """All ranks fail, and each says this."""
    with rendezvous.horovodrun(SUM_ONCE, COUNT, hosts=hosts, port=port, **env) as ranks:
        ended = [rank.end() for rank in ranks]
    for status, _, err in ended:
        assert status == 1, ended
        assert told in err, ended
        assert f"127.0.0.1:{port}" in err, ended


def test_server_that_is_gone_is_named():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        fails(free.getsockname()[1], "Connection refused")


def test_server_that_never_answers_is_named():
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen(64)
        fails(silent.getsockname()[1], "does not answer", HORON_START_TIMEOUT="300ms")


class Broken(rendezvous.Handler):
    def do_GET(self):
        self.answer(500)

    do_PUT = do_GET


def test_server_that_fails_is_named():
    with rendezvous.serve(Broken) as server:
        fails(server.port, "it answers with the error 500")


class Huge(Broken):
    def do_GET(self):
        self.send_response(200)
        self.send_header("Content-Length", str(1 << 40))
        self.end_headers()


def test_server_that_says_too_much_is_named():
    with rendezvous.serve(Huge) as server:
        fails(server.port, f"it answers with {1 << 40} bytes")


def test_rank_0_that_never_comes_is_missed():
    script = '[ $HOROVOD_RANK != 0 ] || exit 0; exec "$@"'
    words = ("/bin/sh", "-c", script, "-", SUM_ONCE, COUNT)
    with rendezvous.serve() as server:
        more = {"hosts": ONE_HOST, "port": server.port, "HORON_START_TIMEOUT": "300ms"}
        with rendezvous.horovodrun(*words, **more) as ranks:
            ended = [rank.end() for rank in ranks]
    assert [status for status, _, _ in ended] == [0, 1, 1], ended
    for _, _, err in ended[1:]:
        assert "rank 0 has not said where to meet" in err, ended


def test_rank_that_dies_fails_the_others():
    with rendezvous.serve() as server:
        more = {"hosts": ONE_HOST, "port": server.port}
        with rendezvous.horovodrun(SUM_ONCE, COUNT, "-1", **more) as ranks:
            for rank in ranks:
                rank.wait_for_output(rb"rank \d of 3")
            ranks[1].process.kill()
            ended = [rank.end() for rank in ranks]
    assert [status for status, _, _ in ended] == [1, -signal.SIGKILL, 1], ended
    assert "rank 1" in ended[0][2], ended


def test_ctrl_c_ends_a_rank_that_waits_for_the_server():
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen(64)
        more = {"hosts": ONE_HOST, "port": silent.getsockname()[1], "HORON_START_TIMEOUT": "1h"}
        with rendezvous.horovodrun(SUM_ONCE, COUNT, **more) as ranks:
            for _ in ranks:
                silent.accept()
            for rank in ranks:
                rank.process.send_signal(signal.SIGINT)
            ended = [rank.end() for rank in ranks]
    assert all(status == -signal.SIGINT for status, _, _ in ended), ended


# ---- The real one --------------------------------------------------------------------------------

# Where tools/setup has put it. The Python that runs this may have one, too.
HOROVOD = os.environ.get("HORON_TEST_HOROVOD", str(tree.ROOT / ".venv" / "horovod"))

# Told the folder as a word: in PYTHONPATH it would be the ranks', too.
LAUNCH = """
import os, sys
sys.path.insert(0, sys.argv[1])
from horovod.runner import gloo_run
from horovod.runner.common.util import settings, timeout

def main():
    hosts, *command = sys.argv[2:]
    size = sum(int(host.split(":")[1]) for host in hosts.split(","))
    wanted = settings.Settings(
        verbose=0, num_proc=size, hosts=hosts, start_timeout=timeout.Timeout(60, ""), key=b"",
        run_func_mode=False, nics={"lo"}, elastic=False)
    run = gloo_run._exec_command_fn(wanted)
    gloo_run.launch_gloo(command, run, wanted, ["lo"], dict(os.environ), "127.0.0.1")

if __name__ == "__main__":
    main()
"""


def launch_gloo(folder, hosts, *command, **env):
    """A job of the real launcher of Horovod's, which needs no extension that was built."""
    words = "horovod", "psutil", "cloudpickle", "yaml"
    path = [HOROVOD, *sys.path]
    missing = [word for word in words if not importlib.machinery.PathFinder.find_spec(word, path)]
    missing = ", ".join(missing)
    tap.need(not missing, f"no launcher of Horovod (tools/setup horovod): no {missing}")
    tap.need(None not in command, "the rank program is not built")
    program = pathlib.Path(folder, "launch.py")
    program.write_text(LAUNCH)
    return jobs.Job(str(program), HOROVOD, hosts, *command, program=sys.executable, env=env)


def test_real_launcher_runs_a_horon_program():
    with tempfile.TemporaryDirectory() as folder:
        for hosts, size in ("localhost:3", 3), ("localhost:2,127.0.0.1:2", 4):
            with launch_gloo(folder, hosts, SUM_ONCE, COUNT) as job:
                status, out, err = job.end()
                job.assert_nothing_left()
            assert status == 0, (out, err)
            told = sorted(re.findall(rf"rank (\d) of {size}, local \d of {size}, hosts 1", out))
            assert told == [str(rank) for rank in range(size)], (out, err)


def test_real_launcher_ends_the_job_when_a_rank_dies():
    script = f"[ $HOROVOD_RANK = 1 ] && kill -9 $$; exec {SUM_ONCE} {COUNT} -1"
    with tempfile.TemporaryDirectory() as folder:
        with launch_gloo(folder, "localhost:3", "sh", "-c", script) as job:
            status, out, err = job.end()
            jobs.until(lambda: not job.pids(), "all of the job has ended")
        assert status != 0, (out, err)


tap.run(dict(vars()))
