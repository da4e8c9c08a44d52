# SPDX-License-Identifier: Apache-2.0
"""The example with --data: it trains on IDX files as MNIST's; what is wrong with others it says."""

import gzip
import importlib.util
import subprocess
import sys

import pytest
from conftest import LIMIT_SECONDS, clean_environment
from test_launch import EXAMPLE, output_of_example

pytest.importorskip("torch", reason="PyTorch is not installed")

COUNTS = {"train": 67, "t10k": 31}
SIDE = 28
IMAGES, LABELS = "train-images-idx3-ubyte", "train-labels-idx1-ubyte"
ARGUMENTS = ("--epochs", "1", "--batch", "16", "--no-compare", "--data")


def idx(shape, content, kind=8):
    """An IDX file, as the page of MNIST tells it: a magic number, big-endian sizes, bytes."""
    header = bytes([0, 0, kind, len(shape)])
    return header + b"".join(n.to_bytes(4, "big") for n in shape) + content


def image(label):
    """A bar whose place is the digit."""
    rows = (b"\xff" if 2 * label <= row < 2 * label + 3 else b"\x00" for row in range(SIDE))
    return b"".join(pixel * SIDE for pixel in rows)


def write_digits(directory, compress=bytes, suffix=""):
    for part, n in COUNTS.items():
        labels = bytes(i % 10 for i in range(n))
        images = idx((n, SIDE, SIDE), b"".join(map(image, labels)))
        for stem, data in (("images-idx3", images), ("labels-idx1", idx((n,), labels))):
            (directory / f"{part}-{stem}-ubyte{suffix}").write_bytes(compress(data))


@pytest.fixture
def digits(tmp_path):
    write_digits(tmp_path)
    return tmp_path


@pytest.fixture(scope="module")
def example():
    spec = importlib.util.spec_from_file_location("torch_mnist", EXAMPLE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def refusal(example, directory):
    """What it says as it ends; the folder's name is left out."""
    with pytest.raises(SystemExit) as caught:
        example.load_mnist(directory)
    text = str(caught.value)
    assert "--data takes a folder with MNIST's four IDX files" in text
    return text.replace(f"{directory}/", "").replace(str(directory), "DIR").splitlines()[0]


def test_idx_files_are_trained_on(start_ranks, digits):
    out = output_of_example(start_ranks, 2, *ARGUMENTS, str(digits))
    assert "67 images to train on, 31 to test with" in out
    assert "test accuracy" in out and "step    2/2" in out, out


def test_gzipped_files_hold_the_same(example, digits, tmp_path):
    packed = tmp_path / "packed"
    packed.mkdir()
    write_digits(packed, gzip.compress, ".gz")
    for plain, unpacked in zip(example.load_mnist(digits), example.load_mnist(packed), strict=True):
        for one, other in zip(plain, unpacked, strict=True):
            assert (one == other).all() and one.dtype == other.dtype
    (images, labels), _ = example.load_mnist(packed)
    assert images.shape == (67, 1, SIDE, SIDE) and labels.tolist() == [i % 10 for i in range(67)]
    assert images[3, 0, 6].tolist() == pytest.approx([(1 - 0.13) / 0.31] * SIDE)
    assert images[3, 0, 9].tolist() == pytest.approx([-0.13 / 0.31] * SIDE)


@pytest.mark.parametrize("kept", [*range(5), 15, 16, 17, 16 + 67 * SIDE * SIDE - 1])
def test_cut_file_is_refused(example, digits, kept):
    path = digits / IMAGES
    path.write_bytes(path.read_bytes()[:kept])
    if kept < 16:
        wanted = f"{IMAGES} is cut: it ends within its header, after {kept} bytes"
    else:
        wanted = (
            f"{IMAGES} is cut or damaged: it announces 67 x 28 x 28 bytes and holds {kept - 16}"
        )
    assert refusal(example, digits) == wanted


@pytest.mark.parametrize(
    ("stem", "data", "wanted"),
    [
        (
            IMAGES,
            b"<!DOCTYPE html>",
            "no IDX file of bytes in 3 dimensions: it begins with b'<!DO'",
        ),
        (IMAGES, idx((1,), b"a"), "no IDX file of bytes in 3 dimensions: it begins with"),
        (LABELS, idx((67,), bytes(4 * 67), 12), "no IDX file of bytes in 1 dimensions"),
        (LABELS, idx((67,), bytes(68)), "cut or damaged: it announces 67 bytes and holds 68"),
        (LABELS, idx((66,), bytes(66)), f"{IMAGES} has 67 images, but {LABELS} 66 labels"),
        (LABELS, idx((67,), b"\x0a" * 67), f"{LABELS} has a label 10; digits are 0 to 9"),
        (LABELS, idx((0,), b""), f"{LABELS} is empty"),
        (IMAGES, idx((67, 0, 28), b""), f"{IMAGES} is empty"),
        (IMAGES, idx((67, 8, 9), bytes(67 * 72)), "has images of [8, 9] pixels, not of 28 x 28"),
    ],
    ids=[
        "page",
        "dimensions",
        "type",
        "longer",
        "fewer-labels",
        "label",
        "no-label",
        "no-image",
        "shape",
    ],
)
def test_wrong_content_is_refused(example, digits, stem, data, wanted):
    (digits / stem).write_bytes(data)
    assert wanted in refusal(example, digits)


def test_files_that_are_missing_are_named(example, digits):
    (digits / "t10k-labels-idx1-ubyte").unlink()
    stem = "t10k-labels-idx1-ubyte"
    assert refusal(example, digits) == f"DIR holds neither {stem} nor {stem}.gz"
    for no_folder in (digits / "nowhere", digits / LABELS):
        assert refusal(example, no_folder) == f"DIR holds neither {IMAGES} nor {IMAGES}.gz"


def test_files_that_cannot_be_unpacked_are_told(example, tmp_path):
    write_digits(tmp_path, gzip.compress, ".gz")
    path = tmp_path / f"{IMAGES}.gz"
    whole = path.read_bytes()
    damaged = whole[:40] + bytes(40) + whole[80:]
    for data, cause in (
        (whole[: len(whole) // 2], "Compressed file ended before"),
        (whole[:-4], "Compressed file ended before"),
        (b"<!DOCTYPE html>", "Not a gzipped file"),
        (damaged, ""),
        (whole[:5], "Compressed file ended before"),
    ):
        path.write_bytes(data)
        assert refusal(example, tmp_path).startswith(f"{IMAGES}.gz cannot be read: {cause}")
    path.unlink()
    path.mkdir()
    assert f"{IMAGES}.gz cannot be read: [Errno 21]" in refusal(example, tmp_path)


def test_user_sees_the_cause_and_no_traceback(horonrun, digits):
    path = digits / IMAGES
    path.write_bytes(path.read_bytes()[:3])
    done = subprocess.run(
        [horonrun, "-np", "2", sys.executable, EXAMPLE, "--data", digits],
        env=clean_environment(), capture_output=True, text=True, timeout=LIMIT_SECONDS, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert f"{path} is cut: it ends within its header, after 3 bytes" in done.stderr
    assert "Traceback" not in done.stdout + done.stderr, done.stderr


def test_too_few_images_for_a_step_are_refused(example, digits, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["torch_mnist.py", "--data", str(digits), "--batch", "68"])
    arguments = example.parse_arguments()
    arguments.joined = 68
    with pytest.raises(SystemExit, match="67 images are fewer than the 68 of one step"):
        example.load_data(arguments)
    arguments.joined = 67
    assert len(example.load_data(arguments)[0][1]) == 67


@pytest.mark.parametrize("flag", ["--epochs", "--batch"])
def test_nothing_to_train_on_is_refused(example, monkeypatch, capsys, flag):
    monkeypatch.setattr(sys, "argv", ["torch_mnist.py", flag, "0"])
    with pytest.raises(SystemExit):
        example.parse_arguments()
    assert f"argument {flag}: 0 is not above 0" in capsys.readouterr().err
