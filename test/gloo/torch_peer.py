# SPDX-License-Identifier: Apache-2.0
"""Ranks that are torch.distributed's, with Gloo: forked by one process that has imported torch,
which takes longer than all that they do.

At "start RANK SIZE STORE SCRIPT OUT LIMIT" it starts such a rank, whose operations may take so many
seconds; says "started OUT PID", and once that has ended "ended OUT STATUS". STORE is c10d-file:PATH
or tcp://HOST:PORT, or the same by variables: env://HOST:PORT. A rank does the steps of the script
as script.h says and tells OUT what came out. Then it holds its connections, until "end OUT" comes.
SCRIPT_LIBRARY names script.c, as a library."""

import contextlib
import ctypes
import datetime
import os
import signal
import sys
import threading
import warnings

import torch
import torch.distributed as dist

DTYPES = {
    "u8": torch.uint8,
    "i8": torch.int8,
    "i32": torch.int32,
    "i64": torch.int64,
    "f16": torch.float16,
    "bf16": torch.bfloat16,
    "f32": torch.float32,
    "f64": torch.float64,
    "bool": torch.bool,
    "c32": torch.complex32,
    "c64": torch.complex64,
    "c128": torch.complex128,
}
OPS = {
    "sum": dist.ReduceOp.SUM,
    "product": dist.ReduceOp.PRODUCT,
    "min": dist.ReduceOp.MIN,
    "max": dist.ReduceOp.MAX,
    "and": dist.ReduceOp.BAND,
    "or": dist.ReduceOp.BOR,
    "xor": dist.ReduceOp.BXOR,
}
warnings.filterwarnings("ignore", message="ComplexHalf")  # c32, which moves and adds well
reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
library = ctypes.CDLL(os.environ["SCRIPT_LIBRARY"])
library.script_seed.restype = library.script_hash.restype = ctypes.c_uint64
library.script_rows.restype = ctypes.c_size_t


def rows(count, giver, taker=0):
    return library.script_rows(ctypes.c_size_t(count), giver, taker)


class Step:
    """One line of a script."""

    def __init__(self, number, text):
        words = text.split()
        self.line = number
        self.later = words[0] == "+"
        words = words[self.later :]
        self.times = int(words[0][1:]) if words[0][0] == "x" else 0
        words = words[self.times > 0 :] + ["0"] * 7
        self.kept = {}  # inputs of what is done again
        self.verb, self.dtype, self.op = words[:3]
        self.count, self.root, self.to, self.slot = map(int, words[3:7])

    def empty(self, count):
        return torch.zeros(count, dtype=DTYPES[self.dtype.rstrip("!")])

    def filled(self, count, rank):
        if self.times and count in self.kept:
            return self.kept[count]
        tensor = self.empty(count)
        library.script_fill_values(
            self.dtype.encode(),
            ctypes.c_uint64(library.script_seed(self.line, rank)),
            ctypes.c_void_p(tensor.data_ptr()),
            ctypes.c_size_t(count),
        )
        self.kept[count] = tensor
        return tensor


class Rank:
    """The verbs: each begins one and returns its work, and a function that gives its output."""

    def __init__(self, rank, size):
        self.rank, self.size = rank, size

    def barrier(self, step):
        return dist.barrier(async_op=True), None

    def broadcast(self, step):
        at_root = self.rank == step.root
        tensor = step.filled(step.count, self.rank) if at_root else step.empty(step.count)
        return dist.broadcast(tensor, step.root, async_op=True), tensor

    def allreduce(self, step):
        tensor = step.filled(step.count, self.rank)
        return dist.all_reduce(tensor, OPS[step.op], async_op=True), tensor

    def reduce(self, step):
        tensor = step.filled(step.count, self.rank)
        work = dist.reduce(tensor, step.root, OPS[step.op], async_op=True)
        return work, tensor if self.rank == step.root else None

    def allgather(self, step):
        out = [step.empty(step.count) for _ in range(self.size)]
        tensor = step.filled(step.count, self.rank)
        return dist.all_gather(out, tensor, async_op=True), out

    def gather(self, step):
        tensor = step.filled(step.count, self.rank)
        if self.rank != step.root:
            return dist.gather(tensor, None, step.root, async_op=True), None
        out = [step.empty(step.count) for _ in range(self.size)]
        return dist.gather(tensor, out, step.root, async_op=True), out

    def scatter(self, step):
        out = step.empty(step.count)
        if self.rank != step.root:
            return dist.scatter(out, None, step.root, async_op=True), out
        whole = step.filled(step.count * self.size, self.rank)
        chunks = [whole[i * step.count : (i + 1) * step.count] for i in range(self.size)]
        return dist.scatter(out, chunks, step.root, async_op=True), out

    def alltoall(self, step):
        out = step.empty(step.count * self.size)
        tensor = step.filled(step.count * self.size, self.rank)
        return dist.all_to_all_single(out, tensor, async_op=True), out

    def alltoallv(self, step):
        gives = [rows(step.count, self.rank, i) for i in range(self.size)]
        takes = [rows(step.count, i, self.rank) for i in range(self.size)]
        out, tensor = step.empty(sum(takes)), step.filled(sum(gives), self.rank)
        return dist.all_to_all_single(out, tensor, takes, gives, async_op=True), out

    def reducescatter(self, step):
        out = step.empty(step.count)
        tensor = step.filled(step.count * self.size, self.rank)
        return reduce_scatter(out, tensor, OPS[step.op], async_op=True), out

    def send(self, step):
        if self.rank != step.root:
            return None
        tensor = step.filled(step.count, self.rank)
        return dist.isend(tensor, step.to, tag=step.slot), None

    def recv(self, step):
        if self.rank != step.to:
            return None
        tensor = step.empty(step.count)
        return dist.irecv(tensor, step.root, tag=step.slot), tensor


def hash_of(output):
    if output is None:
        output = torch.zeros(0)
    if isinstance(output, list):
        output = torch.cat(output)
    n = output.numel() * output.element_size()
    return library.script_hash(ctypes.c_void_p(output.data_ptr()), ctypes.c_size_t(n))


def finish(begun, out):
    for step, (work, output) in begun:
        work.wait()
        print(step.line, f"{hash_of(output):016x}", file=out)
    begun.clear()
    out.flush()


def follow(rank, lines, out):
    begun = []
    for number, text in enumerate(lines, 1):
        if text.startswith("#"):
            continue
        step = Step(number, text)
        if step.verb == "wait":
            finish(begun, out)
        elif step.verb == "die":
            if step.root == rank.rank:
                os.kill(os.getpid(), signal.SIGKILL)
        elif step.times:
            print(step.line, "begins", file=out, flush=True)
            for _ in range(step.times):
                getattr(rank, step.verb)(step)[0].wait()
        else:
            work = getattr(rank, step.verb)(step)
            if work:
                begun.append((step, work))
            if not step.later and work:
                finish(begun[-1:], out)
                begun.pop()
    finish(begun, out)


def take_part(rank, size, store, script, out_path, limit_s, end):
    """@return the status of a rank; holds its connections until @p end, a descriptor, ends"""
    method = store.replace("c10d-file:", "file://")
    if store.startswith("env://"):
        method = "env://"
        os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = store[len(method) :].split(":")
    with open(script) as lines, open(out_path, "w") as out:
        place = {"rank": rank, "world_size": size, "timeout": datetime.timedelta(seconds=limit_s)}
        try:
            dist.init_process_group("gloo", init_method=method, **place)
            follow(Rank(rank, size), lines, out)
        except Exception as error:
            print("failed", " ".join(str(error).split()), file=out)
            return 3
        print("done", file=out)
    os.read(end, 1)
    return 0


def say(*words):
    """A whole line by one call, which other threads cannot break."""
    os.write(1, (" ".join(map(str, words)) + "\n").encode())


def start(rank, size, store, script, out_path, limit_s, held):
    """Forks a rank. @p held: of each rank that runs, what ends its wait once it is closed"""
    end, ours = os.pipe()
    held[out_path] = ours
    pid = os.fork()
    if pid == 0:
        status = 4
        try:
            for descriptor in held.values():
                os.close(descriptor)
            place = (int(rank), int(size))
            status = take_part(*place, store, script, out_path, int(limit_s), end)
        finally:
            os._exit(status)
    os.close(end)
    say("started", out_path, pid)

    def tell_end():
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        with contextlib.suppress(BrokenPipeError):
            say("ended", out_path, status)

    threading.Thread(target=tell_end).start()


def main():
    torch.set_num_threads(1)
    held = {}
    for line in sys.stdin:
        command, *words = line.split()
        if command == "start":
            start(*words, held)
        else:
            os.close(held.pop(words[0]))


main()
