# SPDX-License-Identifier: Apache-2.0
"""Operations that begin again and again with the same tensors, and operations in order.

What _verbs.py stages is new with each call. A prepared operation uses its tensors where they lie,
so each start costs little more than the C ABI's own.
"""

from horon import _horon, _verbs
from horon._names import operation_name
from horon._staging import check_sign
from horon._world import Average, global_process_set, resolve_op, team_of

_VERBS = {verb.name: verb for verb in vars(_verbs).values() if isinstance(verb, _verbs.Verb)}
_MESSAGES = (_verbs.SEND, _verbs.RECV)
_WRITERS = (_verbs.RECV, _verbs.BROADCAST)  # which read nothing, but for the root of a broadcast


def _name_of(verb, name, in_order, process_set):
    """-> what the operation is called; a message has no name, one in order need not have any, and
    a barrier has none if it gets none: it meets barrier()"""
    if verb in _MESSAGES or (not name and (in_order or verb is _verbs.BARRIER)):
        return None
    return operation_name(verb.name, name, process_set)


def prepare(
    verb,
    src=None,
    dst=None,
    name=None,
    in_order=False,
    op=Average,
    root_rank=None,
    process_set=global_process_set,
    prescale_factor=1.0,
    postscale_factor=1.0,
    splits=None,
    tag=0,
):
    """Prepares one operation -> the Request of it, that start() begins as often as it has ended.

    verb: "allreduce", "barrier" or another verb's name. src, dst: what is read and written at each
    start: contiguous arrays, buffers or DLPack tensors, torch's too. Autograd is not told, so of a
    tensor with requires_grad its detach() is given. dst may be src where the result has its size.
    Without dst the result is where Request.output() says: of verbs whose ranks decide together how
    many rows come. A rank that gets nothing, as with reduce all but the root, has none. What is
    received, or broadcast by another rank, needs no src.

    in_order: every rank of the process set starts its operations in order in the same sequence, so
    that they are not negotiated, and a name is optional. Else the name is that of the verb's own
    function. root_rank is a rank of the job, of send and recv the other one; None is the first of
    the process set.
    """
    if verb not in _VERBS:
        raise ValueError(f"{verb!r} is no verb: {', '.join(sorted(_VERBS))} are")
    verb = _VERBS[verb]
    name, team = _name_of(verb, name, in_order, process_set), team_of(process_set)
    flags = _horon.IN_ORDER if in_order else 0
    root = 0 if root_rank is None else _verbs.root_of(team, verb, name, root_rank)
    for tensor in (src, dst):
        check_sign(tensor)
    if src is None and verb in _WRITERS and root != team.rank:
        src = dst  # which tells size and dtype
    splits = _verbs.splits_of(team, verb, name, splits)
    numbers = (resolve_op(op, None), root, prescale_factor, postscale_factor, flags)
    return team.prepare(verb.code, name, src, dst, *numbers, None, None, None, splits, tag)
