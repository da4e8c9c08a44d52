# SPDX-License-Identifier: Apache-2.0
"""Trains a small convolutional network on handwritten digits, on as many ranks as were started.

    horonrun -np 2 python framework_ops/examples/torch_mnist.py
    horonrun -np 2 python framework_ops/examples/torch_mnist.py --data DIR   # MNIST's IDX files

Without --data it takes the 1,797 digits that scikit-learn ships. Rank r of n trains on every n-th
sample; gradients are averaged over the ranks while backward still runs. At the end, when the others
have left, rank 0 does the same training alone, with batches n times as large, and compares speed,
accuracy and parameters. Ranks of a host share its cores; the one process has them all. Parameters
differ by what float32 rounds otherwise in a batch that is cut, and more once a maximum or a ReLU
has decided otherwise for it; so they do without horon.
"""

import argparse
import gzip
import math
import os
import sys
import time
import zlib
from pathlib import Path

# Threads of torch's that spin while they wait take the core from the one they wait for, as soon as
# anything else runs on this machine: a process of several threads then crawls.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import horon.torch as hvd
import torch
from torch import nn
from torch.nn.functional import cross_entropy

TEST_SHARE = 5  # every fifth of scikit-learn's digits is for the test
IDX_BYTES = b"\0\0\x08"  # begins an IDX file of bytes; the number of dimensions follows


class Net(nn.Module):
    """Two convolutions and two linear layers, for square grey images."""

    def __init__(self, side):
        super().__init__()
        kernel = 5 if side >= 16 else 3
        after = ((side - kernel + 1) // 2 - kernel + 1) // (2 if side >= 16 else 1)
        self.features = nn.Sequential(
            nn.Conv2d(1, 32, kernel),
            nn.MaxPool2d(2),
            nn.ReLU(),
            nn.Conv2d(32, 64, kernel),
            nn.MaxPool2d(2) if side >= 16 else nn.Identity(),
            nn.ReLU(),
        )
        self.classes = nn.Sequential(
            nn.Flatten(), nn.Linear(64 * after * after, 128), nn.ReLU(), nn.Linear(128, 10)
        )

    def forward(self, images):
        return self.classes(self.features(images))


# ---- Data: images [n, 1, side, side] float32 and labels [n] int64, for training and test ----


def load_sklearn_digits():
    try:
        from sklearn.datasets import load_digits
    except ImportError:
        sys.exit(
            "scikit-learn, which brings the digits, is not installed: pip install "
            "scikit-learn, or pass --data DIR with MNIST's IDX files"
        )
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16 - 0.3
    labels = torch.tensor(digits.target, dtype=torch.int64)
    test = torch.arange(len(labels)) % TEST_SHARE == 0
    return (images[~test], labels[~test]), (images[test], labels[test])


def refuse(path, what):
    sys.exit(
        f"{path} {what}\n--data takes a folder with MNIST's four IDX files, gzipped or not; "
        "fetch them anew, or leave it out and train on the digits that scikit-learn ships"
    )


def read_bytes(directory, stem):
    """-> the path and the content of a file, which may be gzipped."""
    for path, opener in ((directory / stem, open), (directory / f"{stem}.gz", gzip.open)):
        try:
            with opener(path, "rb") as file:
                return path, file.read()
        except (FileNotFoundError, NotADirectoryError):
            continue
        except (OSError, EOFError, zlib.error) as error:
            refuse(path, f"cannot be read: {error}")
    return refuse(directory, f"holds neither {stem} nor {stem}.gz")


def read_idx(directory, stem, ndim):
    """-> the path of an IDX file, and its bytes as a tensor of `ndim` dimensions."""
    path, data = read_bytes(directory, stem)
    if not (IDX_BYTES + bytes([ndim])).startswith(data[:4]):
        refuse(path, f"is no IDX file of bytes in {ndim} dimensions: it begins with {data[:4]}")
    header = 4 + 4 * ndim
    if len(data) < header:
        refuse(path, f"is cut: it ends within its header, after {len(data)} bytes")
    shape = [int.from_bytes(data[at : at + 4], "big") for at in range(4, header, 4)]
    there = len(data) - header
    if there != math.prod(shape):
        announced = " x ".join(map(str, shape))
        refuse(path, f"is cut or damaged: it announces {announced} bytes and holds {there}")
    if not there:
        refuse(path, "is empty")
    return path, torch.frombuffer(bytearray(data[header:]), dtype=torch.uint8).reshape(shape)


def load_mnist(directory):
    def load(part):
        images_path, images = read_idx(directory, f"{part}-images-idx3-ubyte", 3)
        labels_path, labels = read_idx(directory, f"{part}-labels-idx1-ubyte", 1)
        if images.shape[1:] != (28, 28):
            refuse(images_path, f"has images of {list(images.shape[1:])} pixels, not of 28 x 28")
        if len(images) != len(labels):
            refuse(images_path, f"has {len(images)} images, but {labels_path} {len(labels)} labels")
        if labels.max() > 9:
            refuse(labels_path, f"has a label {labels.max()}; digits are 0 to 9")
        images = (images.to(torch.float32).unsqueeze(1) / 255 - 0.13) / 0.31
        return images, labels.to(torch.int64)

    return load("train"), load("t10k")


def load_data(args):
    train_data, test_data = load_mnist(args.data) if args.data else load_sklearn_digits()
    if len(train_data[1]) < args.joined:
        sys.exit(
            f"{len(train_data[1])} images are fewer than the {args.joined} of one step of all "
            "ranks; fewer ranks or a smaller --batch take fewer"
        )
    return train_data, test_data


# ---- Training ----


def joined_batches(n, batch, epochs, seed):
    """The samples of each step, for all ranks together; the same on every rank."""
    generator = torch.Generator().manual_seed(seed)
    for _ in range(epochs):
        order = torch.randperm(n, generator=generator)
        for start in range(0, n - batch + 1, batch):
            yield order[start : start + batch]


class Progress:
    """A line that says how it goes, rewritten on a terminal and else printed now and then."""

    def __init__(self, label, steps, shown):
        self.label = label
        self.steps = steps
        self.shown = shown
        self.rewrite = sys.stdout.isatty()
        self.every = max(1, steps // (100 if self.rewrite else 8))
        self.start = time.perf_counter()
        self.end = None
        self.images = 0
        self.waited = 0.0  # seconds spent waiting for communication

    def step(self, step, images, loss):
        self.images += images
        if not self.shown or (step % self.every and step != self.steps):
            return
        text = (
            f"{self.label}: step {step:4d}/{self.steps}  loss {loss:.4f}  "
            f"{self.rate():7.0f} images/s  waiting {self.waiting():4.1f} %"
        )
        end = "\r" if self.rewrite and step != self.steps else "\n"
        print(text, end=end, flush=True)

    def seconds(self):
        return (self.end or time.perf_counter()) - self.start

    def rate(self):
        return self.images / self.seconds()

    def waiting(self):
        return 100 * self.waited / self.seconds()


def train(model, optimizer, data, args, share, shares, label, shown):
    """Trains on every `shares`-th sample of each joined batch, beginning with `share`'s."""
    images, labels = data
    steps = len(labels) // args.joined * args.epochs
    progress = Progress(label, steps, shown)
    batches = joined_batches(len(labels), args.joined, args.epochs, args.seed)
    for step, batch in enumerate(batches, 1):
        mine = batch[share::shares]
        optimizer.zero_grad()
        loss = cross_entropy(model(images[mine]), labels[mine])
        loss.backward()
        if shares > 1:  # step() alone does this, too, but would not tell us for how long it waited
            before = time.perf_counter()
            optimizer.synchronize()
            progress.waited += time.perf_counter() - before
            with optimizer.skip_synchronize():
                optimizer.step()
        else:
            optimizer.step()
        progress.step(step, args.joined, loss.item())
    progress.end = time.perf_counter()
    return progress


def make(args, side):
    torch.manual_seed(args.seed)
    model = Net(side)
    return model, torch.optim.SGD(model.parameters(), lr=args.lr, momentum=args.momentum)


@torch.no_grad()
def hits(model, data, share, shares):
    """How many of its share of the test samples are recognised."""
    images, labels = data
    mine = torch.arange(share, len(labels), shares)
    return sum((model(images[part]).argmax(1) == labels[part]).sum() for part in mine.split(1000))


def percent(found, data):
    return 100 * found.item() / len(data[1])


def count(n, word):
    return f"{n} {word}" if n == 1 else f"{n} {word}s"


def cores_and_share():
    """How many cores this rank may use, and how many are left to it by ranks that may, too.

    torch would start a thread a core in each rank, and ranks of one host would get in each other's
    way.
    """
    mine = os.sched_getaffinity(0)
    places = hvd.allgather_object((os.uname().nodename, mine))
    sharing = sum(host == os.uname().nodename and bool(cores & mine) for host, cores in places)
    return len(mine), max(1, len(mine) // sharing)


def compare(args, train_data, test_data, model, progress, summary):
    """Does the same work in this process alone, and says how it compares."""
    alone, optimizer = make(args, train_data[0].shape[-1])
    torch.set_num_threads(args.cores)
    done = train(alone, optimizer, train_data, args, 0, 1, "one process", True)
    away = max(
        (a - b).abs().max().item()
        for a, b in zip(model.parameters(), alone.parameters(), strict=True)
    )
    print(
        f"one process of {count(args.cores, 'thread')}: {done.rate():.0f} images/s, "
        f"test accuracy {percent(hits(alone, test_data, 0, 1), test_data):.2f} %"
    )
    print(
        f"{summary}, {progress.rate() / done.rate():.2f} times as fast; "
        f"parameters differ by at most {away:.1e}"
    )


def positive(text):
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is not above 0")
    return number


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, help="directory of MNIST's IDX files, gzipped or not")
    parser.add_argument("--epochs", type=positive, help="passes over the data (digits 20, MNIST 2)")
    parser.add_argument("--batch", type=positive, default=32, help="samples a rank and step")
    parser.add_argument("--lr", type=float, default=0.02)
    parser.add_argument("--momentum", type=float, default=0.9)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--compare",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="train once more in one process and compare (default)",
    )
    return parser.parse_args()


def main():
    args = parse_arguments()
    hvd.init()
    rank, size = hvd.rank(), hvd.size()
    shown = rank == 0
    args.joined = args.batch * size
    args.cores, share = cores_and_share()
    torch.set_num_threads(share)
    train_data, test_data = load_data(args)
    if args.epochs is None:
        args.epochs = 2 if args.data else 20
    if shown:
        print(
            f"{count(size, 'rank')} on {count(hvd.cross_size(), 'host')}, torch with "
            f"{count(share, 'thread')} a rank of {count(args.cores, 'core')}; "
            f"{len(train_data[1])} images to train on, {len(test_data[1])} to test with",
            flush=True,
        )

    model, optimizer = make(args, train_data[0].shape[-1])
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)

    progress = train(model, optimizer, train_data, args, rank, size, "training", shown)
    found = hvd.allreduce(hits(model, test_data, rank, size), op=hvd.Sum, name="hits")
    hvd.shutdown()
    if not shown:
        return
    accuracy = f"test accuracy {percent(found, test_data):.2f} %"
    print(
        f"{accuracy}, {progress.rate():.0f} images/s, {progress.waited:.2f} s of "
        f"{progress.seconds():.2f} s spent waiting for communication",
        flush=True,
    )
    if args.compare and size > 1:
        threads = count(share, "thread")
        summary = f"{size} ranks of {threads}: {progress.rate():.0f} images/s, {accuracy}"
        compare(args, train_data, test_data, model, progress, summary)


if __name__ == "__main__":
    main()
