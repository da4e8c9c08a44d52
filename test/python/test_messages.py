# SPDX-License-Identifier: Apache-2.0
"""Messages from rank to rank: arrays and torch tensors, tags, a pipeline, and what fails."""

import array
import os
import signal

import pytest

numpy = pytest.importorskip("numpy")
torch = pytest.importorskip("torch")

import horon  # noqa: E402
import horon.torch as hvd  # noqa: E402


def rank_ring():
    horon.init()
    rank, size = horon.rank(), horon.size()
    after, before = (rank + 1) % size, (rank - 1) % size
    for dtype in ("float32", "float16", "int64", "uint8", "complex64", "bool"):
        for shape in ((0,), (), (1,), (5, 3), (100003,)):
            mine = numpy.full(shape, rank + 1, dtype)
            got = numpy.zeros(shape, dtype)
            sent = horon.send_async(mine, after)
            assert horon.recv(got, before) is got
            assert sent.wait() is None
            assert (got == numpy.full(shape, before + 1, dtype)).all(), (dtype, shape)


@pytest.mark.parametrize("n", [2, 3, 5])
def test_arrays_go_round(run_ranks, n):
    run_ranks(n, rank_ring)


def test_without_shared_memory_too(run_ranks):
    run_ranks(3, rank_ring, HORON_SHM=0)


def rank_tags():
    """Both ends use another order; those of a tag keep theirs."""
    hvd.init()
    tags = [7, 0, 2**64 - 1, 3]
    if hvd.rank() == 0:
        handles = [
            hvd.send_async(torch.tensor([tag % 1000, i]), 1, tag=tag)
            for i in range(3)
            for tag in tags
        ]
    else:
        numbers = [torch.zeros(2, dtype=torch.int64) for _ in range(12)]
        handles = [
            hvd.recv_async(numbers[3 * k + i], 0, tag=tag)
            for k, tag in enumerate(reversed(tags))
            for i in range(3)
        ]
    results = [handle.wait() for handle in handles]
    if hvd.rank() == 1:
        wanted = [[tag % 1000, i] for tag in reversed(tags) for i in range(3)]
        assert [result.tolist() for result in results] == wanted


def test_tags_keep_their_own_order(run_ranks):
    run_ranks(2, rank_tags)


def rank_pipeline():
    """Stages of a model: activations forward, gradients back, beside an allreduce."""
    hvd.init()
    rank, size = hvd.rank(), hvd.size()
    torch.manual_seed(0)
    stages = [torch.nn.Linear(16, 16) for _ in range(size)]
    batches = [torch.randn(4, 16) for _ in range(6)]
    stage, inputs, outputs = stages[rank], [], []
    for i, batch in enumerate(batches):
        if rank > 0:
            batch = hvd.recv(torch.empty(4, 16), rank - 1, tag=i).requires_grad_()
        inputs.append(batch)
        outputs.append(stage(batch))
        if rank < size - 1:
            hvd.send_async(outputs[-1].detach(), rank + 1, tag=i)
    for i, output in reversed(list(enumerate(outputs))):
        if rank < size - 1:
            output.backward(hvd.recv(torch.empty(4, 16), rank + 1, tag=1000 + i))
        else:
            output.square().sum().backward()
        if rank > 0:
            hvd.send(inputs[i].grad, rank - 1, tag=1000 + i)
    assert hvd.allreduce(torch.ones(1), op=hvd.Sum).item() == size
    whole = torch.nn.Sequential(*(torch.nn.Linear(16, 16) for _ in range(size)))
    for layer, one in zip(whole, stages, strict=True):
        layer.load_state_dict(one.state_dict())
    for batch in reversed(batches):
        whole(batch).square().sum().backward()
    assert torch.allclose(stage.weight.grad, whole[rank].weight.grad, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("n", [2, 3])
def test_pipeline_trains_as_one_model(run_ranks, n):
    run_ranks(n, rank_pipeline)


def rank_set():
    """Ranks are the job's, in a process set as well."""
    horon.init(process_sets="dynamic")
    some = horon.add_process_set([1, 2])
    if horon.rank() == 1:
        horon.send(numpy.arange(3), 2, process_set=some)
        horon.send(numpy.arange(3) + 10, 2)
        with pytest.raises(ValueError):
            horon.send(numpy.arange(3), 0, process_set=some)
    elif horon.rank() == 2:
        assert horon.recv(numpy.zeros(3, int), 1).tolist() == [10, 11, 12]
        assert horon.recv(numpy.zeros(3, int), 1, process_set=some).tolist() == [0, 1, 2]
    horon.barrier()


def test_process_sets_have_messages_of_their_own(run_ranks):
    run_ranks(3, rank_set)


def rank_differ():
    horon.init()
    other = 1 - horon.rank()
    text = r"rank 0 .* sends 90000 float64 with tag 5, and rank 1 .* receives 3 float32"
    with pytest.raises(horon.HoronInternalError, match=text):
        if horon.rank() == 0:
            horon.send(numpy.zeros(90000), other, tag=5)
        else:
            horon.recv(numpy.zeros(3, "float32"), other, tag=5)
    if horon.rank() == 0:  # the job goes on
        horon.send(numpy.ones(2), 1)
    else:
        assert horon.recv(numpy.zeros(2), 0).sum() == 2
    assert horon.allreduce(1, op=horon.Sum) == 2


def test_ends_that_differ_are_told_in_words(run_ranks):
    run_ranks(2, rank_differ)


def rank_refused():
    horon.init()
    for call in (horon.send, horon.recv):
        with pytest.raises(ValueError, match="no message goes to itself"):
            call(numpy.zeros(1), horon.rank())
        with pytest.raises(ValueError):
            call(numpy.zeros(1), horon.size())
        for tag in (-1, 2**64):
            with pytest.raises(ValueError, match="tag"):
                call(numpy.zeros(1), 1 - horon.rank(), tag=tag)
        with pytest.raises(TypeError, match="refused: tag 'x' is no whole number"):
            call(numpy.zeros(1), 1 - horon.rank(), tag="x")
        with pytest.raises(TypeError, match="refused: rank 'x' is no whole number"):
            call(numpy.zeros(1), "x")
    with pytest.raises(TypeError):
        horon.recv(3.0, 1 - horon.rank())
    with pytest.raises(BufferError):
        horon.recv(memoryview(b"xyz"), 1 - horon.rank())
    with pytest.raises(ValueError, match=r"^recv was refused: the array is read-only"):
        horon.recv(numpy.broadcast_to(0.0, 3), 1 - horon.rank())
    if horon.rank() == 0:
        horon.send(3.5, 1)
    else:
        number = array.array("d", [0])
        horon.recv(number, 0)
        assert number[0] == 3.5


def test_what_cannot_be_sent_is_refused(run_ranks):
    run_ranks(2, rank_refused)


def rank_lost():
    horon.init()
    if horon.rank() == 1:
        horon.recv(numpy.zeros(1), 0)
        os.kill(os.getpid(), signal.SIGKILL)
    horon.send(numpy.zeros(1), 1)
    with pytest.raises(horon.HoronInternalError, match=r"rank 1 .* is gone"):
        horon.recv(numpy.zeros(1), 1)


def test_lost_rank_fails_its_messages(start_ranks):
    ranks = start_ranks(2, rank_lost)
    codes = ranks.wait()
    assert codes == [0, -signal.SIGKILL], ranks.logs()
