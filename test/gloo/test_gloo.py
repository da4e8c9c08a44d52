# SPDX-License-Identifier: Apache-2.0
"""horon as a rank among those of Gloo: the bits of what comes out are those of a job that is all
Gloo's, whatever ranks are horon's; deaths; and what is refused there."""

import functools
import itertools
import pathlib
import re
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parent))

import ranks
import scripts
from ranks import jobs, tap

sys.path.insert(0, str(ranks.HERE.parent.parent / "benchmarks"))
from harness import free_port


def mixed(size, peer):
    """The kinds of each rank: horon first, in the middle, last, as two, and as all."""
    places = {(0,), (size // 2,), (size - 1,), (0, size - 1), tuple(range(size))}
    places = sorted(places, key=lambda own: (len(own), own))
    return [["horon" if i in own else peer for i in range(size)] for own in places]


@functools.cache
def reference(peer, size, script):
    """What the ranks tell of @p script where all of them are Gloo's."""
    return ranks.results([peer] * size, script)


def check(peer, size, script, kinds=None, **more):
    script = tuple(script)
    wanted = reference(peer, size, script)
    for kind in kinds or mixed(size, peer):
        told = ranks.results(kind, script, like=peer, **more)
        wrong = ranks.difference(told, wanted, script)
        assert not wrong, f"{kind}: {wrong}"


def test_each_verb_and_root_beside_gloo():
    for size in scripts.SIZES:
        check("gloo", size, scripts.moves("gloo", size))


def test_each_verb_and_root_beside_torch():
    for size in scripts.SIZES:
        check("torch", size, scripts.moves("torch", size))


def test_the_lowest_rank_of_horon_warns_once_a_job():
    warns = r"horon rank (\d) .* warn: .*is linked with ranks of Gloo at 127.0.0.1, which all"
    for line in "gloo horon horon", "torch horon horon", "horon gloo horon":
        kinds = line.split()
        with ranks.team(kinds, ["barrier"]) as job:
            assert job.end() == [0, 0, 0], (kinds, job.said())
            assert re.findall(warns, job.said()) == [str(kinds.index("horon"))], job.said()


def test_each_reduction_beside_gloo():
    for size in scripts.SIZES:
        check("gloo", size, scripts.reductions("gloo", size))


def test_each_reduction_beside_torch():
    for size in scripts.SIZES:
        check("torch", size, scripts.reductions("torch", size))


def test_what_torch_alone_has():
    for size in scripts.SIZES:
        check("torch", size, scripts.of_only_torch(size))


def test_sizes_around_a_segment():
    for peer in "gloo", "torch":
        for size in scripts.SIZES:
            kinds = mixed(size, peer)
            check(peer, size, scripts.around_segments(size), [kinds[1], kinds[-1]])


def test_forty_megabytes():
    count = 10_000_019
    script = [f"allreduce f32 sum {count}", f"reduce f32 product {count} 1"]
    script += [f"broadcast f32 - {count} 2", f"allgather u8 - {count}", f"alltoallv u8 - {count}"]
    check("gloo", 3, script, [["gloo", "horon", "gloo"], ["horon"] * 3])
    check("torch", 3, script, [["torch", "horon", "torch"], ["horon", "torch", "horon"]])
    script = [line if "broadcast" not in line else f"broadcast f32 - {count} 1" for line in script]
    check("torch", 2, script, [["torch", "horon"], ["horon", "torch"]])
    check("torch", 5, script[:3], [["horon", "torch", "torch", "horon", "torch"]])


def test_stores_of_torch():
    """Over TCP, which rank 0 serves, be it torch's or horon's; a file is what the others use."""
    script = ["allreduce f32 sum 1009", "barrier", "allgather f64 - 11"]
    for kinds in mixed(3, "torch"):
        check("torch", 3, script, [kinds], store=f"tcp://127.0.0.1:{free_port()}")


def test_each_verb_and_reduction_beside_old_torch():
    for size in scripts.SIZES:
        script = scripts.moves("old-torch", size), scripts.reductions("old-torch", size)
        check("old-torch", size, itertools.chain(*script))


def test_stores_of_old_torch():
    """Whose wire differs, and in which ranks wait for each other once more."""
    script = ["allreduce f32 sum 1009", "barrier", "allgather f64 - 11"]
    for size in scripts.SIZES:
        for kinds in mixed(size, "old-torch"):
            for method in "tcp", "env":
                store = f"{method}://127.0.0.1:{free_port()}"
                check("old-torch", size, script, [kinds], store=store)


def test_operations_side_by_side():
    """Two tags at once, and twenty, which torch carries out by two threads."""
    script = ["+ allreduce f32 sum 1000003", "+ allreduce f64 max 300007", "wait"]
    for i in range(10):
        script += [f"+ allreduce f32 sum {10007 * i + 1}", f"+ allgather i32 - {1009 * (10 - i)}"]
    script += ["wait", "barrier"]
    for peer in "gloo", "torch":
        for size in 2, 3:
            check(peer, size, script)


def test_messages():
    """Of each size both ways, the receive before and after the send; a thousand slots; one slot in
    order; beside collectives on the same pairs."""
    check_messages("gloo", "torch")


def test_messages_of_old_torch():
    check_messages("old-torch")


def check_messages(*peers):
    for peer in peers:
        for size in 2, 3:
            check(peer, size, scripts.messages())


def failures(kinds, script, kill=None, line=None, like=None):
    """Runs a job that fails: rank @p kill is killed once all have begun @p line, or kills itself.
    Gloo that has a part of a message awaits the rest up to its limit, which is shorter here.
    @return the statuses and what each rank told"""
    everybody = range(len(kinds))
    with ranks.team(kinds, script, like=like, peer_env={"PEER_TIMEOUT_S": "15"}) as job:
        if kill is not None:
            begun = f"{line} begins"
            jobs.until(
                lambda: all(begun in job.told(rank) for rank in everybody),
                f"all of {kinds} have begun line {line}",
            )
            job.kill(kill)
        statuses = job.end()
        return statuses, [job.told(rank) for rank in everybody]


def assert_ends(kinds, script, dies, **more):
    """@p dies is killed and all others fail, also what they begin after that. Of horon's, the first
    to fail names it, and ends; the next may name either. So it is where another kind fails first,
    and ends, which names none."""
    statuses, told = failures(kinds, script, **more)
    last = {rank: told[rank][-1] for rank in range(len(kinds)) if rank != dies}
    assert statuses == [-9 if rank == dies else 3 for rank in range(len(kinds))], (statuses, told)
    assert all("failed" in line for line in last.values()), (kinds, last)
    own = {rank: line for rank, line in last.items() if kinds[rank] == "horon"}
    for rank, line in own.items():
        told = r" a rank of the job is gone: .* (?:failed|was refused): rank (\d) "
        named = re.search(told, line)
        assert named and int(named[1]) != rank, (kinds, own)
    if own and len(own) == len(last):
        assert any(f"rank {dies}" in line for line in own.values()), (kinds, own)


def test_a_rank_that_dies_in_an_allreduce():
    script = ["allreduce f32 sum 1009", "x100000 allreduce f32 sum 4000037"]
    for kinds in ["horon", "gloo"], ["horon", "gloo", "horon"], ["gloo", "horon", "gloo"]:
        assert_ends(kinds, script, 1, kill=1, line=2)


def test_a_rank_that_dies_in_a_barrier():
    """In one of many, or before it comes to the one in which the others wait."""
    script = ["allreduce f32 sum 1009", f"{OVER_AND_OVER} barrier"]
    for kinds in ["horon", "gloo"], ["horon", "gloo", "horon"], ["horon", "horon", "horon"]:
        for dies in 0, 1:
            assert_ends(kinds, script, dies, kill=dies, line=2, like="gloo")
            assert_ends(kinds, ["barrier", f"die - - 0 {dies}", "barrier"], dies, like="gloo")


def test_a_rank_that_dies_in_a_message():
    """Of 64 MiB, which has its credit: the rank that sends it, or the one that receives it. It may
    have come whole on a busy machine; another one, of which the other end never hears, has not. It
    is shorter: while it is made the others wait at the barrier, and not for ever."""
    script = ["+ recv u8 - 67108864 1 0 3", "ANOTHER", "barrier", "+ send u8 - 67108864 1 0 3"]
    another = {0: "+ send u8 - 8388608 1 0 4", 1: "+ recv u8 - 8388608 1 0 4"}
    for peer in "gloo", "torch":
        for kinds in ["horon", peer], [peer, "horon"], ["horon", "horon"]:
            for dies in 0, 1:
                like = None if peer in kinds else peer
                script[1] = another[dies]
                steps = [*script, f"die - - 0 {dies}", "wait"]
                assert_ends(kinds, steps, dies, like=like)


OVER_AND_OVER = "x1000000000"  # none gets to the end
LARGE = {
    "broadcast": "broadcast f32 - 4000037 0",
    "allgather": "allgather f32 - 1000003",
    "reduce": "reduce f32 sum 4000037 0",
    "gather": "gather f32 - 1000003 0",
    "scatter": "scatter f32 - 1000003 0",
    "alltoall": "alltoall f32 - 1000003",
    "alltoallv": "alltoallv f32 - 500009",
    "reducescatter": "reducescatter f32 sum 1000003",
    "allreduce": "allreduce f32 sum 4000037",
}


def test_a_rank_that_dies_beside_torch():
    """In the middle of each verb, over and over until it is killed: torch's rank or horon's, the
    root of the verbs that have one or another rank."""
    two, three = ("horon", "torch"), ("torch", "horon", "torch")
    jobs_of_all = (two, 1), (two[::-1], 1), (three, 0), (three, 1), (("horon", "torch", "horon"), 1)
    for verb, step in {**LARGE, "barrier": "barrier"}.items():
        script = ["allreduce f32 sum 1009", f"{OVER_AND_OVER} {step}"]
        for kinds, dies in jobs_of_all:
            assert_ends(list(kinds), script, dies, kill=dies, line=2)
        if verb in ("allreduce", "alltoall"):
            kinds = ["torch", "horon", "torch", "torch", "horon"]
            for dies in 1, 2:
                assert_ends(kinds, script, dies, kill=dies, line=2)


def test_a_rank_that_dies_beside_old_torch():
    script = ["allreduce f32 sum 1009", f"x100000 {LARGE['allreduce']}"]
    for kinds in ["horon", "old-torch"], ["old-torch", "horon", "old-torch"]:
        for dies in 0, 1:
            assert_ends(kinds, script, dies, kill=dies, line=2)


def test_what_gloo_knows_nothing_of_is_refused():
    """And leaves the job as it was."""
    script = ["barrier", "named", "set", "join", "allreduce i32 sum 1009"]
    told = ranks.results(["horon", "horon"], script)
    for lines in told:
        for number, line in enumerate(lines[1:4], 2):
            refused = r"refused (not supported|an argument is not valid): .*Gloo"
            assert re.match(f"{number} {refused}", line), lines
    assert told[0][4] == told[1][4]


def test_another_backend_than_gloo_is_refused():
    for words, refused in ("gloo", False), ("native", False), ("mpi", True), ("gloo,mpi", True):
        with ranks.team(["horon"], ["barrier"], horon_env={"HORON_BACKEND": words}) as job:
            job.end()
            told = job.told(0)
        named = any('HORON_BACKEND names "mpi"' in line for line in told)
        assert named == refused == (" failed " in told[-1]), (words, told)


def test_an_era_that_the_others_are_not_of():
    """Told by what they have published, or by name."""
    for kinds, era in (["horon", "torch"], "e1"), (["gloo", "horon"], "e3"), (["horon"], "e2"):
        with ranks.team(kinds, ["barrier"], horon_env={"HORON_GLOO_ERA": era}) as job:
            own = kinds.index("horon")
            jobs.until(lambda j=job, r=own: j.has_ended(r), "horon's rank gives up")
            told = job.told(own)
        assert re.search(f"failed a setting is not valid: .*{era}", told[-1]), (kinds, told)


try:
    tap.run(dict(vars()))
finally:
    ranks.end_torches()
