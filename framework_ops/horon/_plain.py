# SPDX-License-Identifier: Apache-2.0
"""Plain data as bytes that no reader has to trust: decoding makes data and runs nobody's code.

Plain are None, bool, int, float, str, lists, tuples and dicts of them, and the numbers of numpy and
of enums as Python's. It travels as JSON, in which a dict is {"dict": [[key, value], ...]}, a tuple
{"tuple": [...]}, and what an adapter adds {"special": ...}: keys keep their type and order.
"""

import json
import sys

BYTES_MAX = 1 << 28  # a state of a million small entries has half of it


def encode(value, special=None) -> bytes:
    """-> `value` as bytes. TypeError for what is not plain, ValueError for what is too large.

    special(value) gives the plain data that stands for a value, or NotImplemented.
    """
    data = json.dumps(_to_json(value, special), separators=(",", ":")).encode()
    if len(data) > BYTES_MAX:
        raise ValueError(f"the data has {len(data)} bytes, and at most {BYTES_MAX} travel")
    return data


def decode(data, special=None):
    """-> what encode() was given. ValueError if it gave no such bytes; may raise what special does.

    special(plain) gives back the value that encode()'s special has replaced.
    """
    if len(data) > BYTES_MAX:
        raise ValueError(f"the data has {len(data)} bytes, and at most {BYTES_MAX} travel")
    try:
        return _from_json(json.loads(bytes(data)), special)
    except RecursionError:
        raise ValueError("the data is nested too deeply") from None


def _to_json(value, special):
    if value is None or type(value) in (bool, int, float, str):
        return value
    replaced = NotImplemented if special is None else special(value)
    if replaced is not NotImplemented:
        return {"special": _to_json(replaced, None)}
    if isinstance(value, dict):
        return {"dict": [[_to_json(k, special), _to_json(v, special)] for k, v in value.items()]}
    if type(value) is list:
        return [_to_json(item, special) for item in value]
    if type(value) is tuple:
        return {"tuple": [_to_json(item, special) for item in value]}
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(value, (numpy.bool_, numpy.integer, numpy.floating)):
        value = value.item()  # a Python number, but for a longdouble
    for kind in (bool, int, float, str):
        if isinstance(value, kind):
            return kind(value)
    raise TypeError(f"{type(value).__module__}.{type(value).__qualname__} is no plain data")


def _from_json(value, special):
    if isinstance(value, list):
        return [_from_json(item, special) for item in value]
    if not isinstance(value, dict):
        return value
    if len(value) != 1:
        raise ValueError("the data is not what encode() makes")
    ((kind, content),) = value.items()
    if kind == "special" and special is not None:
        return special(_from_json(content, None))
    if kind == "tuple" and isinstance(content, list):
        return tuple(_from_json(item, special) for item in content)
    if kind == "dict" and isinstance(content, list):
        try:
            return {_from_json(k, special): _from_json(v, special) for k, v in content}
        except TypeError:  # no pairs, or a key that cannot be one
            raise ValueError("the data has a dict that is none") from None
    raise ValueError(f"the data has an unknown part {kind!r}")
