# SPDX-License-Identifier: Apache-2.0
"""Jobs over several hosts with a real sshd, in network namespaces."""

import contextlib
import os
import pathlib
import re
import signal
import sys
import tempfile

HERE = pathlib.Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "tools"), str(HERE.parent / "drift")]

import jobs  # noqa: E402
import netns  # noqa: E402
import tap  # noqa: E402

WHY_NOT = netns.why_not()
SUM_ONCE = os.environ.get("SUM_ONCE")
FAMILY = "(setsid sleep 1000 &) ; sleep 1000 & echo ready $HORON_RANK; while :; do sleep 1000; done"


def hosts(count=2, **more):
    if WHY_NOT:
        raise tap.Skip(WHY_NOT)
    return netns.Hosts(count, **more)


def job(net, *words, slots=(2, 2), addresses=None, **more):
    """A job started on host 0 over all hosts."""
    places = ",".join(
        f"{address}:{count}"
        for address, count in zip(addresses or net.addresses, slots, strict=True)
    )
    return jobs.Job(*net.ssh_words(), "-H", places, *words, prefix=net.inside(net.names[0]), **more)


def family(net, *words):
    started = job(net, *words, "sh", "-c", FAMILY)
    started.wait_for_output(rb"ready", 4)
    jobs.until(
        lambda: [jobs.command_line(pid) for pid in started.pids()].count(b"sleep\0001000\0") == 12,
        "all families are complete",
    )
    return started


def assert_only_sshd_left(net):
    for name in net.names:
        jobs.until(
            lambda name=name: all(
                b"sshd" in jobs.command_line(pid) for pid in net.pids(name) if jobs.is_alive(pid)
            ),
            f"only sshd is left on {name}",
        )


def processes(net, number, word):
    """Processes on a host whose command line holds @p word."""
    return [pid for pid in net.pids(net.names[number]) if word in jobs.command_line(pid)]


def test_ssh_ranks_run_on_all_hosts():
    with hosts(3) as net:
        before = net.bytes_received(2)
        code = (
            "ip -4 -o addr show eth0 | grep -o '10[.]77[.]0[.][0-9]*/' ; "
            "echo $HORON_RANK $HORON_SIZE $HORON_LOCAL_RANK $HORON_LOCAL_SIZE $GIVEN; pwd"
        )
        with job(net, "-x", "GIVEN=g", "sh", "-c", code, slots=(1, 2, 3), cwd="/usr") as one:
            status, out, err = one.end()
            one.assert_nothing_left()
        assert status == 0, err
        place = {0: (1, 0, 1), 1: (2, 0, 2), 2: (2, 1, 2), 3: (3, 0, 3), 4: (3, 1, 3), 5: (3, 2, 3)}
        for rank, (host, local_rank, local_size) in place.items():
            assert f"[{rank}]<stdout>:10.77.0.{host}/" in out, out
            assert f"[{rank}]<stdout>:{rank} 6 {local_rank} {local_size} g\n" in out, out
            assert f"[{rank}]<stdout>:/usr\n" in out, out
        assert net.bytes_received(2) > before + 1000
        assert_only_sshd_left(net)


PLACES = """
import os, re, socket
def listening(path):
    for line in open(path).read().splitlines()[1:]:
        words = line.split()
        if words[3] == "0A":
            yield words[1]
store = os.environ["HORON_STORE"]
assert store.startswith("tcp://"), store
for place in store[len("tcp://"):].split(","):
    host, port = re.fullmatch(r"\\[?(.*?)\\]?:(\\d+)", place).groups()
    try:
        socket.create_connection((host, int(port)), 5).close()
        print("reached", host, port)
    except OSError:
        print("not reached", host, port)
for path in "/proc/net/tcp", "/proc/net/tcp6":
    print("listening", *listening(path))
"""


def places(net, *words, **more):
    """@return what ranks 0 and 1, a host each, print of their store"""
    with job(net, *words, *jobs.python(PLACES), slots=(1, 1), **more) as one:
        status, out, err = one.end()
    assert status == 0, err
    return [re.findall(rf"^\[{rank}\]<stdout>:(.*)$", out, flags=re.MULTILINE) for rank in range(2)]


def addresses_of(lines, start="reached"):
    return [line.split()[1] for line in lines if line.startswith(start + " ")]


def test_ssh_store_is_reached_at_all_addresses_first_where_ssh_came_from():
    with hosts() as net:
        for addresses, seen, other in (
            (net.addresses, "10.77.0.1", "fd77::1"),
            ([f"[{address}]" for address in net.addresses6], "fd77::1", "10.77.0.1"),
        ):
            here, there = places(net, addresses=addresses)
            assert addresses_of(here) == ["127.0.0.1"], here
            assert addresses_of(there) == [seen, other], there


def test_ssh_store_addresses_that_lead_nowhere_are_passed_over():
    """Host 0 is seen by an address that host 1 can reach, and has two that it cannot."""
    tap.need(SUM_ONCE, "the rank program is not built (SUM_ONCE)")
    with hosts() as net:
        netns.ip("-n", net.names[0], "addr", "add", "10.99.0.1/32", "dev", "eth0")
        netns.ip("-n", net.names[1], "route", "add", "unreachable", "10.99.0.0/24")
        _, there = places(net)
        assert addresses_of(there) == ["10.77.0.1", "fd77::1"], there
        assert [line for line in there if "not reached 10.99.0.1" in line], there
        with job(net, "--interfaces", "10.99.0.0/24,fd77::/64", SUM_ONCE, "1000") as one:
            status, _, err = one.end()
        assert status == 0, err


def test_ssh_store_keeps_to_interfaces_and_ports():
    wanted = ("--interfaces", "fd77::/64", "--port-range", "5100-5103")
    with hosts() as net:
        here, there = places(net, *wanted)
        assert addresses_of(there) == ["fd77::1"], there
        port = int(there[0].split()[2])
        assert 5100 <= port <= 5103
        sockets = {
            place
            for line in here
            if line.startswith("listening ")
            for place in line.split()[1:]
            if int(place.rpartition(":")[2], 16) == port
        }
        at = {place.rpartition(":")[0] for place in sockets}
        assert at == {"0100007F", "000077FD000000000000000001000000"}, (
            at
        )  # ::1 of fd77 and 127.0.0.1
        code = "echo $HORON_INTERFACES $HORON_PORT_RANGE"
        with job(net, *wanted, "sh", "-c", code, slots=(1, 1)) as one:
            status, out, err = one.end()
        assert status == 0, err
        assert out.count("fd77::/64 5100-5103") == 2, out
        with job(net, "--interfaces", "eth9", "true") as one:
            status, _, err = one.end()
        assert status == 1
        assert "HORON_INTERFACES=eth9 matches no" in err and "10.77.0.1" in err, err


def test_ssh_sums_cross_the_links():
    count = 1000003
    tap.need(SUM_ONCE, "the rank program is not built (SUM_ONCE)")
    with hosts(3) as net:
        before = [net.bytes_received(number) for number in range(3)]
        with job(net, SUM_ONCE, str(count), slots=(1, 2, 3)) as one:
            status, out, err = one.end()
            one.assert_nothing_left()
        assert status == 0, err
        for rank, (local, local_size) in enumerate(
            [(0, 1), (0, 2), (1, 2), (0, 3), (1, 3), (2, 3)]
        ):
            assert f"rank {rank} of 6, local {local} of {local_size}, hosts 3" in out, out
        for number in range(3):  # at least what a host cannot compute by itself
            assert net.bytes_received(number) - before[number] > 4 * count
        assert_only_sshd_left(net)


def test_ssh_workers_of_horovod_meet_at_the_rendezvous_of_horonrun():
    """They ask as Horovod's do: test/tools/test_horonrun_gloo.py has the order of that."""
    code = 'echo at $HOROVOD_GLOO_RENDEZVOUS_ADDR via $HOROVOD_GLOO_IFACE.; exec "$@"'
    worker = [sys.executable, "-S", "-E", str(HERE.parent / "tools" / "horovod_worker.py"), "1"]
    with hosts(3) as net:
        words = ("--gloo", "--network-interface", "eth0", "sh", "-c", code, "-", *worker)
        # the interface is one of the hosts', and unknown where this test runs
        with job(net, *words, slots=(1, 2, 1)) as one:
            status, out, err = one.end()
            one.assert_nothing_left()
        assert status == 0, (out, err)
        assert out.count("at 10.77.0.1 via eth0.") == 4, out
        for scope in "global", "local_10.77.0.2", "cross_0":
            assert f"DELETE /{scope}/1\n" in out, out
        assert_only_sshd_left(net)


def test_ssh_killed_rank_elsewhere_ends_the_job():
    tap.need(SUM_ONCE, "the rank program is not built (SUM_ONCE)")
    with hosts() as net:
        with job(net, SUM_ONCE, "1000", "-1") as one:
            one.wait_for_output(rb"rank \d of 4", 4)
            victim = processes(net, 1, SUM_ONCE.encode() + b"\0")[0]
            os.kill(victim, signal.SIGKILL)
            status, _, err = one.end()
            one.assert_nothing_left()
        assert status == 128 + signal.SIGKILL, err
        assert re.search(r"rank [23] on 10\.77\.0\.2 .* was killed by signal 9", err), err
        assert_only_sshd_left(net)


def test_ssh_chatty_login_shell_is_no_harm():
    chatter = "ForceCommand sh -c 'echo Welcome to this host; eval \"$SSH_ORIGINAL_COMMAND\"'"
    with hosts(sshd_more=chatter) as net:
        with job(net, "echo", "hello") as one:
            status, out, err = one.end()
    assert status == 0, err
    assert "Welcome" not in out
    assert out.count("hello") == 4


def test_ssh_failure_elsewhere_ends_the_job():
    with hosts() as net:
        code = "if [ $HORON_RANK = 3 ]; then echo reason >&2; exit 42; fi; sleep 1000"
        with job(net, "sh", "-c", code) as one:
            status, _, err = one.end()
            one.assert_nothing_left()
        assert_only_sshd_left(net)
    assert status == 42, err
    assert "rank 3 on 10.77.0.2" in err
    assert "|" in err and "reason" in err


def test_ssh_cause_elsewhere_is_told_rather_than_its_victim():
    """The victim prints nothing of it; ranks of both hosts are processes of one machine."""
    tap.need(SUM_ONCE, "the rank program is not built (SUM_ONCE)")
    with hosts() as net, tempfile.TemporaryDirectory() as folder:
        code = (
            f'if [ $HORON_RANK = 0 ]; then echo $$ > "$1/new"; mv "$1/new" "$1/it"; '
            f"exec {SUM_ONCE} 1 -1 2> /dev/null; fi; {SUM_ONCE} 1 3; "
            'while kill -0 $(cat "$1/it") 2> /dev/null; do :; done; exit 42'
        )
        with job(net, "sh", "-c", code, "sh", folder, slots=(1, 1)) as one:
            status, _, err = one.end()
            one.assert_nothing_left()
        assert_only_sshd_left(net)
    assert status == 42, err
    assert re.search(r"rank 1 on 10\.77\.0\.2 .* exited with status 42; ", err), err


def test_ssh_interrupt_ends_all_hosts():
    with hosts() as net:
        with family(net) as one:
            one.process.send_signal(signal.SIGINT)
            status, _, err = one.end()
            one.assert_nothing_left()
        assert_only_sshd_left(net)
    assert status == 130, err


def test_ssh_killed_horonrun_leaves_nothing_anywhere_nor_do_agents_killed_with_it():
    for words in ((), (b"horon-agent",), (b"horon-guard",)):
        with hosts() as net:
            with family(net) as one:
                with_it = [
                    pid for at in (0, 1) for word in words for pid in processes(net, at, word)
                ]
                assert len(with_it) == 2 * len(words), with_it
                for victim in (one.process.pid, *with_it):
                    with contextlib.suppress(ProcessLookupError):  # it was faster
                        os.kill(victim, signal.SIGKILL)
                jobs.until(lambda one=one: not one.pids(), "nothing of the job is left")
            assert_only_sshd_left(net)


def test_ssh_killed_agent_guard_or_connection_leaves_nothing():
    for word in (b"horon-agent", b"horon-guard", b"sshd: root", b"ssh\0-F"):
        with hosts() as net:
            with family(net) as one:
                place = 0 if word.startswith(b"ssh\0") else 1
                victims = processes(net, place, word)
                assert victims, f"no {word!r}"
                os.kill(victims[-1], signal.SIGKILL)
                status, _, err = one.end()
                jobs.until(lambda one=one: not one.pids(), "nothing of the job is left")
            assert_only_sshd_left(net)
        assert status == 1, (word, err)
        assert "10.77.0.2" in err, (word, err)


def test_ssh_key_is_on_no_command_line():
    with hosts() as net:
        code = f"{jobs.SHOW_KEY}; sleep 1000"
        with job(net, "sh", "-c", code) as one:
            keys = set(one.wait_for_output(rb"key=([0-9a-f]{64})\.", 4))
            assert len(keys) == 1
            key = keys.pop()
            assert not [pid for pid in jobs.all_pids() if key in jobs.command_line(pid)]
            one.process.terminate()
            status, _, err = one.end()
        assert status == 143
        assert key.decode() not in err


def test_ssh_unplugged_host_is_named_and_ends_itself():
    with hosts() as net:
        with family(net) as one:
            net.unplug(1)
            status, _, err = one.end()
            left = [pid for pid in one.pids() if pid not in net.pids(net.names[1])]
            assert not left, left
            jobs.until(lambda: not one.pids(), "the unplugged host's processes have ended")
        assert status == 1, err
        assert "10.77.0.2" in err, err


def test_ssh_hosts_of_one_test_outlive_those_of_another():
    with contextlib.ExitStack() as stack:
        with hosts(1):
            net = stack.enter_context(hosts())
        with job(net, "true") as one:
            status, _, err = one.end()
    assert status == 0, err


def test_ssh_unusable_hosts_are_named():
    with hosts() as net:
        with job(net, "true", addresses=["10.77.0.1", "10.77.0.99"]) as one:
            status, _, err = one.end()
        assert status == 1
        assert "host 10.77.0.99 cannot be used: ssh" in err, err
        assert "10.77.0.99: ssh: connect to host" in err, err
        with job(net, "--remote-horonrun", "/nowhere/horonrun", "true") as one:
            status, _, err = one.end()
        assert status == 1
        # ssh's exit status and the end of its output race; the shell's own words come with both
        assert "10.77.0.2: bash: line 1: /nowhere/horonrun" in err, err
        assert "host 10.77.0.2 cannot be used: ssh" in err, err
        with job(net, "no-such-command") as one:
            status, _, err = one.end()
        assert status == 127
        assert "command not found: no-such-command" in err
        assert_only_sshd_left(net)


def test_ssh_host_that_is_not_known_is_refused():
    """horonrun accepts no host key for the user: the job's key goes there."""
    with hosts() as net:
        net.check_host_keys("ask")  # ssh's own default
        with job(net, "--verbose", "true") as one:
            status, _, err = one.end()
        assert status == 1
        assert "Host key verification failed" in err, err
        told = re.search(r"^horonrun: variables for other hosts:(( \w+)+)$", err, re.M)
        assert {"PATH", "HORON_JOB_KEY"} <= set(told[1].split()), err


def test_ssh_host_that_never_answers_meets_the_start_timeout():
    with hosts(sshd_more="ForceCommand sleep 1000") as net:
        with job(net, "--start-timeout", "1s", "true") as one:
            status, _, err = one.end()
            one.assert_nothing_left()
        assert status == 1
        assert "--start-timeout" in err and "missing: 10.77.0.2" in err, err


tap.run(dict(vars()))
