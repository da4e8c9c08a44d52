# SPDX-License-Identifier: Apache-2.0
"""What horon's ranks are measured by: Gloo of 2022 and torch's, old and new, give the same bits,
those of no other operation, and a rank of theirs that dies ends the others."""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parent))

import ranks
import scripts
import tap


def both_know(line):
    """Not float16 with all that it can be. Their NaNs differ; and Gloo of 2022 takes the bits of
    one float16 for a number where it compares it with another, and leaves a result out if the bits
    that were there before are, as a number, equal to it: one of some ten thousand."""
    return "bf16" not in line and "f16!" not in line and line.split()[0] not in scripts.NOT_TORCH


def common(size):
    lines = filter(both_know, [*scripts.moves("gloo", size), *scripts.reductions("gloo", size)])
    types = set(scripts.TORCH_DTYPES)
    return [line for line in lines if line == "barrier" or line.split()[1].rstrip("!") in types]


def test_gloo_and_torch_give_the_same_bits():
    for size in scripts.SIZES:
        script = common(size)
        assert len(script) > 80, len(script)
        found = [ranks.results([kind] * size, script) for kind in ("gloo", "torch")]
        assert found[0] == found[1], ranks.difference(*found, script)


def test_gloo_and_old_torch_give_the_same_bits():
    size = 3
    found = [ranks.results([kind] * size, common(size)) for kind in ("gloo", "old-torch")]
    assert found[0] == found[1], ranks.difference(*found, common(size))


def test_messages_of_gloo_and_torch_are_the_same():
    found = [ranks.results([kind] * 2, scripts.messages()) for kind in ("gloo", "torch")]
    assert found[0] == found[1]


def exact(line):
    """Whether the order of operands does not show, and horon's own links know it."""
    words = line.split()
    floats = "f" in words[1] and words[0] in scripts.REDUCE if len(words) > 1 else False
    return not floats and words[0] != "allgatherv"


def test_horon_alone_gives_the_same_bits():
    """Over links of its own: the steps are done by horon.h as they are by Gloo's calls."""
    for size in scripts.SIZES:
        script = list(
            filter(exact, [*scripts.moves("gloo", size), *scripts.reductions("gloo", size)])
        )
        assert len(script) > 80, len(script)
        wanted = ranks.results(["gloo"] * size, script)
        told = ranks.native_results(size, script)
        assert told == wanted, ranks.difference(told, wanted, script)


def test_each_line_has_a_result_of_its_own():
    """Neither counts nor roots, types nor reductions could be mistaken unseen."""
    script = [line for line in common(3) if "1009" in line or "1013" in line]
    hashes = [line.split()[1] for line in ranks.results(["gloo"] * 3, script)[0][:-1]]
    empty = ranks.results(["gloo"], ["barrier"])[0][0].split()[1]
    hashes = [found for found in hashes if found != empty]  # of a rank that is no root
    assert len(hashes) > 50, len(hashes)
    assert len(hashes) == len(set(hashes)), len(hashes) - len(set(hashes))


def test_a_rank_that_dies_ends_those_that_send_to_it():
    """At once. Where Gloo has a part of a message it goes on awaiting the rest, up to its limit. It
    may have come whole on a busy machine; another one, of which the other end never hears, has
    not."""
    another = {0: "+ send u8 - 8388608 1 0 4", 1: "+ recv u8 - 8388608 1 0 4"}
    for kind, dies in ("gloo", 0), ("torch", 0), ("gloo", 1):
        message = ["+ recv u8 - 67108864 1 0 3", another[dies], "barrier"]
        script = [*message, "+ send u8 - 67108864 1 0 3", f"die - - 0 {dies}", "wait"]
        env = {"PEER_TIMEOUT_S": "10"} if dies else {}
        with ranks.team([kind] * 2, script, peer_env=env) as job:
            statuses = job.end()
            told = job.told(1 - dies)
        assert (statuses[dies], statuses[1 - dies]) == (-9, 3), (kind, statuses, told)
        assert told[-1].startswith("failed"), told


try:
    tap.run(dict(vars()))
finally:
    ranks.end_torches()
