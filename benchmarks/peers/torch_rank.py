# SPDX-License-Identifier: Apache-2.0
"""One rank's half of what the torch-side benchmarks share: a library reached through torch, and
the way ranks start together. The libraries: `gloo` (torch.distributed), `horon` (horon.torch), and
`optimizer`, which is horon.torch too, but gradients go as its DistributedOptimizer sends them.

The loop is horon-perf's: inputs rewritten by their owner, the library's barrier, a meeting in
shared memory, the clock, the call, the clock, the library's barrier; a call's time is the slowest
rank's.
"""

import gc
import mmap
import os
import statistics
import time

import torch

IN_PLACE = ("allreduce", "broadcast", "reduce")
WHOLE = (*IN_PLACE, "sendrecv", "barrier")  # tensors are not divided among the ranks
VERBS = (*WHOLE, "allgather", "alltoall", "gather", "scatter", "reducescatter")


class Library:
    """What the libraries have in common."""

    def exchange(self, tensors):
        """-> a function that sums each of {name: tensor}, all of them on their way at once"""

        def call():
            handles = [self.begin(tensor, name) for name, tensor in tensors.items()]
            for handle in handles:
                self.end(handle)

        return call

    def neighbours(self):
        """-> the rank that a sendrecv goes to, and the one that it comes from"""
        return (self.rank + 1) % self.size, (self.rank - 1) % self.size


class Gloo(Library):
    """torch.distributed over Gloo, as users run it."""

    name = "gloo"

    def __init__(self):
        import torch.distributed as dist

        self.dist = dist
        dist.init_process_group("gloo", init_method="env://")
        self.rank = dist.get_rank()
        self.size = dist.get_world_size()
        self.local_rank = int(os.environ.get("LOCAL_RANK", self.rank))
        self.version = f"torch {torch.__version__} + Gloo"

    def operation(self, verb, source, target, root):
        """-> a function that carries out a verb of IN_PLACE on source, another one from source to
        target, and gives the tensor with the result"""
        dist, is_root = self.dist, self.rank == root
        after, before = self.neighbours()
        parts = list(target.chunk(self.size)) if verb == "gather" and is_root else None
        shares = list(source.chunk(self.size)) if verb == "scatter" and is_root else None
        run = {
            "allreduce": lambda: dist.all_reduce(source),
            "broadcast": lambda: dist.broadcast(source, root),
            "reduce": lambda: dist.reduce(source, root),
            "allgather": lambda: dist.all_gather_into_tensor(target, source),
            "alltoall": lambda: dist.all_to_all_single(target, source),
            "gather": lambda: dist.gather(source, parts, dst=root),
            "scatter": lambda: dist.scatter(target, shares, src=root),
            "reducescatter": lambda: dist.reduce_scatter_tensor(target, source),
            "sendrecv": lambda: (dist.isend(source, after), dist.recv(target, before))[0].wait(),
            "barrier": dist.barrier,
        }[verb]
        result = source if verb in IN_PLACE else target

        def call():
            run()
            return result

        return call

    def begin(self, tensor, name):
        return self.dist.all_reduce(tensor, async_op=True)

    def end(self, handle):
        handle.wait()

    def barrier(self):
        self.dist.barrier()

    def share(self, value):
        box = [value]
        self.dist.broadcast_object_list(box, 0)
        return box[0]

    def maximum(self, values):
        tensor = torch.tensor(values, dtype=torch.float64)
        self.dist.all_reduce(tensor, op=self.dist.ReduceOp.MAX)
        return tensor.tolist()

    def close(self):
        self.dist.destroy_process_group()


class Horon(Library):
    """horon.torch, by name."""

    name = "horon"

    def __init__(self):
        import horon.torch as hvd

        self.hvd = hvd
        hvd.init()
        self.rank = hvd.rank()
        self.size = hvd.size()
        self.local_rank = hvd.local_rank()
        self.version = f"horon.torch {hvd.__version__}, torch {torch.__version__}"

    def operation(self, verb, source, target, root):
        """As Gloo's; what is not in place has an output of its own, as users have it."""
        hvd, name = self.hvd, "tensor"
        after, before = self.neighbours()

        def sendrecv():
            sent = hvd.send_async(source, after)
            hvd.recv(target, before)
            hvd.synchronize(sent)
            return target

        return {
            "allreduce": lambda: hvd.allreduce_(source, name=name, op=hvd.Sum),
            "broadcast": lambda: hvd.broadcast_(source, root, name=name),
            "reduce": lambda: hvd.reduce(source, root, name=name, op=hvd.Sum),
            "allgather": lambda: hvd.allgather(source, name=name),
            "alltoall": lambda: hvd.alltoall(source, name=name),
            "gather": lambda: hvd.gather(source, root, name=name),
            "scatter": lambda: hvd.scatter(source, root, name=name),
            "reducescatter": lambda: hvd.reducescatter(source, name=name, op=hvd.Sum),
            "sendrecv": sendrecv,
            "barrier": hvd.barrier,
        }[verb]

    def begin(self, tensor, name):
        return self.hvd.allreduce_async_(tensor, name=name, op=self.hvd.Sum)

    def end(self, handle):
        self.hvd.synchronize(handle)

    def barrier(self):
        self.hvd.barrier()

    def share(self, value):
        return self.hvd.broadcast_object(value, 0)

    def maximum(self, values):
        tensor = torch.tensor(values, dtype=torch.float64)
        return self.hvd.allreduce(tensor, name="maximum", op=self.hvd.Max).tolist()

    def close(self):
        self.hvd.shutdown()


class HoronOptimizer(Horon):
    """The same tensors as the gradients of parameters: what autograd would call once it has one is
    called here, so that no backward pass is in the time."""

    def exchange(self, tensors):
        parameters = {name: torch.nn.Parameter(torch.zeros_like(t)) for name, t in tensors.items()}
        for name, parameter in parameters.items():
            parameter.grad = tensors[name]
        optimizer = self.hvd.DistributedOptimizer(
            torch.optim.SGD(parameters.values(), lr=0.0), parameters.items(), op=self.hvd.Sum
        )

        def call():
            for parameter in parameters.values():
                for hook in parameter._post_accumulate_grad_hooks.values():
                    hook(parameter)
            optimizer.synchronize()

        return call


LIBRARIES = {"gloo": Gloo, "horon": Horon, "optimizer": HoronOptimizer}


class Meeting:
    """A barrier in an unlinked piece of memory: a word a rank, each written by its owner only.

    Rank 0 makes a memfd; the others open it through /proc, so no name can stay behind. Waiting
    yields the core at each look."""

    def __init__(self, library):
        self.library = library
        self.turn = 0
        bytes_needed = 64 * library.size
        path = None
        if library.rank == 0:
            fd = os.memfd_create("horon-bench")
            os.ftruncate(fd, bytes_needed)
            path = f"/proc/{os.getpid()}/fd/{fd}"
        path = library.share(path)
        if library.rank != 0:
            fd = os.open(path, os.O_RDWR)
        self.memory = mmap.mmap(fd, bytes_needed)
        self.words = memoryview(self.memory).cast("Q")
        library.barrier()
        os.close(fd)

    def meet(self):
        self.library.barrier()
        self.turn += 1
        words, turn = self.words, self.turn
        words[8 * self.library.rank] = turn
        deadline = None
        for other in range(self.library.size):
            while words[8 * other] < turn:
                os.sched_yield()
                if deadline is None:
                    deadline = time.monotonic() + 60
                elif time.monotonic() > deadline:
                    raise SystemExit(f"rank {other} did not come to the starting line")


def open_library(name, pin):
    """Joins the job with one thread a rank, bound to a core if asked."""
    torch.set_num_threads(1)
    library = LIBRARIES[name]()
    if pin:
        allowed = sorted(os.sched_getaffinity(0))
        core = allowed[library.local_rank % len(allowed)]
        for thread in os.listdir("/proc/self/task"):
            try:
                os.sched_setaffinity(int(thread), {core})
            except ProcessLookupError:
                pass
    return library, Meeting(library)


def timed(library, meeting, prepare, call, iterations, warmup):
    """Runs prepare() and call() warmup + iterations times. Returns the slowest rank's times, us.

    What was imported is put beyond the collector's reach: looking through all of torch takes a
    fraction of a second, and would fall into whatever call comes when it is due."""
    gc.collect()
    gc.freeze()
    times = []
    for _ in range(warmup + iterations):
        prepare()
        meeting.meet()
        start = time.perf_counter()
        call()
        times.append((time.perf_counter() - start) * 1e6)
        library.barrier()  # or a rank that is done takes a shared core while another's clock runs
    return library.maximum(times[warmup:])


def summary(times):
    return {
        "time_us": statistics.median(times),
        "min_us": min(times),
        "max_us": max(times),
        "iterations": len(times),
        "all_us": [round(us, 1) for us in times],
    }
