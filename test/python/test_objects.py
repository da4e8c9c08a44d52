# SPDX-License-Identifier: Apache-2.0
"""Objects and plain data between ranks: what may travel, and what is refused."""

import enum
import math
import os
import pickle
import random
import re

import horon
import pytest
from horon import _horon, _objects, _plain, _world
from horon._names import named_items
from horon.exceptions import about_of

# ---- Plain data ----


class _Color(enum.IntEnum):
    RED = 3


PLAIN = (
    None,
    True,
    -(2**70),
    0.1,
    math.inf,
    "a\u20ac\0",
    [],
    (),
    {},
    [1, (2, [3.5, {"x": None, 4: (False,)}])],
    {"dict": {"tuple": 1}, "special": [2]},  # keys that look like the encoding's own
    {1: "a", "1": "b", None: 0, (1, "x"): 2},
)


@pytest.mark.parametrize("value", PLAIN, ids=repr)
def test_plain_data_comes_back_as_it_was(value):
    back = _plain.decode(_plain.encode(value))
    assert back == value and repr(back) == repr(value)


def test_plain_nan_and_order_come_back():
    assert math.isnan(_plain.decode(_plain.encode(math.nan)))
    assert list(_plain.decode(_plain.encode({"b": 1, "a": 2}))) == ["b", "a"]


def test_plain_numbers_of_enums_and_numpy_become_python_numbers():
    assert repr(_plain.decode(_plain.encode([_Color.RED]))) == "[3]"
    numpy = pytest.importorskip("numpy")
    values = [numpy.float32(0.5), numpy.int64(7), numpy.bool_(True), numpy.float64(0.1)]
    assert repr(_plain.decode(_plain.encode(values))) == "[0.5, 7, True, 0.1]"


@pytest.mark.parametrize("value", [object(), {1, 2}, b"x", 1j, print, [lambda: 0]], ids=repr)
def test_plain_refuses_what_it_cannot_give_back(value):
    with pytest.raises(TypeError, match="is no plain data"):
        _plain.encode(value)


def test_plain_refuses_numbers_wider_than_pythons():
    numpy = pytest.importorskip("numpy")
    with pytest.raises(TypeError, match=r"numpy\.longdouble is no plain data"):
        _plain.encode([numpy.longdouble(1)])


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"\xff",
        b'{"a":1,"b":2}',
        b'{"os.system":"x"}',
        b'{"special":1}',
        b'{"tuple":1}',
        b'{"dict":1}',
        b'{"dict":[1]}',
        b'{"dict":[[1,2,3]]}',
        b'{"dict":[[[],1]]}',
        b"[" * 100_000,
        pickle.dumps([1]),
    ],
    ids=lambda data: repr(data[:20]),
)
def test_plain_refuses_bytes_that_it_has_not_made(data):
    with pytest.raises(ValueError):
        _plain.decode(data)


# What a mutation puts in: what the encoding is made of, what is near it, and any bytes
PIECES = (
    *(bytes([byte]) for byte in b'[]{}:,"0-e.\\ \xff\x00'),
    *(
        b'{"dict":[',
        b'{"tuple":[',
        b'{"special":',
        b"null",
        b"NaN",
        b"1e999",
        b'"\\ud800"',
        b"[" * 99,
    ),
    *(b"[]", b"{}", b"[[1,2]]", b'"dict"', b'"tuple"', b'"special"', b'"other"'),
)
WORDS = re.compile(rb'"[^"]*"|[][{}:,]|[^][{}:,"]+')


def mutated(choose, data, other):
    """-> the bytes with one to three changes to words or to bytes: one put in, a run taken out,
    doubled, or made another encoding"""
    for _ in range(choose.randint(1, 3)):
        parts = WORDS.findall(data) if choose.random() < 0.7 else [bytes([b]) for b in data]
        first, last = sorted(choose.randint(0, len(parts)) for _ in range(2))
        if choose.random() < 0.7:
            last = first + 1
        middle = choose.choice(([choose.choice(PIECES)], [], 2 * parts[first:last], [other]))
        data = b"".join(parts[:first] + middle + parts[last:])
    return data


def test_plain_refuses_mutations_or_understands_them():
    """Of any bytes comes plain data, which can be told again, or a ValueError, and nothing else."""
    choose = random.Random(7)
    valid = [_plain.encode(value) for value in PLAIN]
    refused = 0
    for _ in range(20_000):
        data = mutated(choose, choose.choice(valid), choose.choice(valid))
        try:
            value = _plain.decode(data)
        except ValueError:
            refused += 1
        except Exception as error:
            pytest.fail(f"{data!r}: {error!r}")
        else:
            assert repr(_plain.decode(_plain.encode(value))) == repr(value), data
    assert 1000 < refused < 19_000, "the mutations are all alike"


def test_plain_data_is_bounded(monkeypatch):
    monkeypatch.setattr(_plain, "BYTES_MAX", 10)
    for function, value in ((_plain.encode, "x" * 20), (_plain.decode, b"x" * 20)):
        with pytest.raises(ValueError, match="at most 10 travel"):
            function(value)


# ---- Between ranks ----


def assert_about(error, status, cause, rank, other_rank, name):
    """What it says to programs, as the library's own exceptions do."""
    status, host = _horon.STATUSES[status], _world.context().hosts[rank]
    assert about_of(error) == (status, cause, rank, other_rank, host, name)


class _Trap:
    """Unpickling it ends the process."""

    def __reduce__(self):
        return os._exit, (66,)


def rank_plain_from_a_liar():
    """Rank 0 sends a pickle where plain data is expected, as somebody on the way might."""
    horon.init()
    codec = _objects._Plain()
    if horon.rank() == 0:
        codec.dump = lambda value, file: pickle.dump(_Trap(), file)
        _objects._broadcast(horon._world.context(), codec, None, 0, "plain")
    else:
        with pytest.raises(ValueError, match="the data of rank 0 cannot be read here") as caught:
            _objects._broadcast(horon._world.context(), codec, None, 0, "plain")
        assert_about(caught.value, "ERR_INVALID", "ARGUMENT", 1, 0, "plain")


def test_plain_data_runs_no_code(run_ranks):
    run_ranks(2, rank_plain_from_a_liar)


def rank_refused():
    horon.init()
    for call in (horon.broadcast_object, horon.allgather_object):
        with pytest.raises(ValueError, match="the setting OBJECTS is refuse"):
            call({"a": 1})
    assert horon.allreduce(1.0, op=horon.Sum) == horon.size()
    return _objects.allgather_plain(horon._world.context(), horon.rank(), "still")


def test_objects_are_refused_by_setting(run_ranks):
    assert run_ranks(2, rank_refused, HORON_OBJECTS="refuse") == [{0: 0, 1: 1}] * 2


def rank_other_setting():
    with pytest.raises(ValueError, match=r"OBJECTS=refuse on rank 0 .*OBJECTS=pickle on rank 1"):
        horon.init(settings={"OBJECTS": ("refuse", "pickle")[int(os.environ["HORON_RANK"])]})


def test_ranks_agree_whether_objects_are_refused(run_ranks):
    run_ranks(2, rank_other_setting)


def rank_without_memory(victim):
    """Rank `victim` has no room for what the root sends."""
    horon.init()
    if horon.rank() == victim:

        def room(size):
            raise MemoryError

        _objects._room = room
    with pytest.raises(MemoryError, match=rf"rank {victim}: no memory for \d+ bytes") as caught:
        horon.broadcast_object([1] * 1000, 0, name="o")
    assert_about(caught.value, "ERR_MEMORY", "RESOURCE", victim, None, "broadcast_object.o.room")
    assert horon.allreduce(1.0, op=horon.Sum) == horon.size()  # nobody is left behind


def test_a_rank_without_memory_for_an_object_fails_on_all(run_ranks):
    run_ranks(3, rank_without_memory, 1)


def rank_with_hardly_an_address():
    """A size that a sender made up ends in an error, not in an allocation."""
    horon.init()
    if horon.rank() == 0:

        class Huge(bytes):
            def __len__(self):
                return 2**62

        data = Huge(b"x")
    else:
        data = b""
    with pytest.raises(MemoryError, match=f"rank 1: no memory for {2**62} bytes"):
        _objects._broadcast_bytes(horon._world.context(), "huge", data, 0)


def test_a_size_beyond_memory_fails_on_all(run_ranks):
    run_ranks(2, rank_with_hardly_an_address)


class _Speechless(Exception):
    def __str__(self):
        raise ZeroDivisionError


class _Refusing:
    def __reduce__(self):
        raise _Speechless


def rank_refusing_without_a_text():
    horon.init()
    mine = _Refusing() if horon.rank() == 0 else 1
    with pytest.raises(
        pickle.PicklingError, match=r"rank 0 cannot pickle its object: _Speechless$"
    ) as caught:
        horon.allgather_object(mine, name="refusing")
    name = "allgather_object.refusing"
    assert_about(caught.value, "ERR_INVALID", "ARGUMENT", 0, None, name)


def test_an_error_without_a_text_keeps_no_rank_waiting(run_ranks):
    run_ranks(2, rank_refusing_without_a_text)


class _Loud(Exception):
    def __str__(self):
        return "\x1b]0;name\x07 \x9b1m \u00e4\n\tend"


class _RefusingLoudly:
    def __reduce__(self):
        raise _Loud


def rank_refusing_loudly():
    horon.init()
    mine = _RefusingLoudly() if horon.rank() == 0 else 1
    with pytest.raises(pickle.PicklingError) as caught:
        horon.allgather_object(mine)
    return str(caught.value)


def test_what_another_rank_says_commands_no_terminal(run_ranks):
    for text in run_ranks(2, rank_refusing_loudly):
        assert text.endswith("its object: _Loud: ?]0;name? ?1m \u00e4\n\tend")


# ---- States: plain data, and tensors beside it ----


class _Codec:
    """The length stands for an array."""

    def __init__(self):
        self.tensors = []

    def to_plain(self, value):
        numpy = pytest.importorskip("numpy")
        if not isinstance(value, numpy.ndarray):
            return NotImplemented
        self.tensors.append(value)
        return len(value)

    def from_plain(self, length):
        numpy = pytest.importorskip("numpy")
        if length > 5:
            raise ValueError("no room")
        self.tensors.append(numpy.zeros(length))
        return self.tensors[-1]


def rank_state():
    numpy = pytest.importorskip("numpy")
    from horon._arrays import _verbs

    horon.init()
    rank, size = horon.rank(), horon.size()
    every = horon.global_process_set
    mine = {"a": numpy.arange(3.0), "b": [numpy.ones(1), "text"]} if rank == 1 else None
    state = _objects.broadcast_state(_verbs, mine, 1, "state", _Codec(), every)
    assert state["a"].tolist() == [0, 1, 2] and state["b"] == [numpy.ones(1), "text"]
    large = numpy.zeros(6) if rank == 1 else None
    with pytest.raises(ValueError, match=r"^'large.ready' failed: rank 0: .*no room") as caught:
        _objects.broadcast_state(_verbs, large, 1, "large", _Codec(), every)
    assert_about(caught.value, "ERR_INVALID", "ARGUMENT", 0, None, "large.ready")

    team = horon._world.context()

    def difference(value, of_root):
        return "" if value == of_root else f"it has {value}, not {of_root}"

    assert _objects.compare(team, [1, "a"], 1, "same", "", difference) == [1, "a"]
    wants = "; ".join(f"rank {r}: it has {r}, not 1" for r in range(size) if r != 1)
    with pytest.raises(ValueError, match=f"^'other' failed: {wants}$") as caught:
        _objects.compare(team, rank, 1, "other", "", difference)
    assert_about(caught.value, "ERR_MISMATCH", "DESCRIPTION", 0, 1, "other")
    with pytest.raises(ValueError, match=r"^'wrong' failed: rank 1: why\?$") as caught:
        _objects.compare(team, 0, 1, "wrong", "why\x9b" * (rank == 1), difference)
    assert_about(caught.value, "ERR_INVALID", "ARGUMENT", 1, None, "wrong")


@pytest.mark.parametrize("n", [2, 3])
def test_states_are_the_roots_or_all_ranks_raise(run_ranks, n):
    pytest.importorskip("numpy")
    run_ranks(n, rank_state)


def test_items_without_a_name_are_numbered():
    assert named_items({"b": 1, "a": 2}, "x") == [("a", 2), ("b", 1)]
    assert named_items([("b", 1), 2], "x") == [("b", 1), ("x.1", 2)]
