# SPDX-License-Identifier: Apache-2.0
"""SyncBatchNorm: normalisation over the batches of all ranks, as if they were one.

Forward, each rank gives its rows, means and squared distances from them, which every rank combines
alike, in double precision; backward, two sums a channel. Nothing but torch's tensor operations is
used, so it runs wherever a tensor lies.
"""

import torch
from torch.autograd.function import once_differentiable
from torch.nn.modules.batchnorm import _BatchNorm

from horon import _horon
from horon._names import operation_name
from horon._verbs import ALLGATHER, ALLREDUCE
from horon._world import Sum, global_process_set, ranks_beside, team_of
from horon.exceptions import HoronInternalError
from horon.torch.ops import _out
from horon.torch.staging import verbs


def _wide(tensor):
    """In the precision in which torch normalises: 16 bits are not enough for sums."""
    return tensor if tensor.dtype == torch.float64 else tensor.float()


def _but_channels(tensor):
    """The dimensions that a channel's elements lie in."""
    return [i for i in range(tensor.dim()) if i != 1]


def _per_channel(values, tensor):
    """Values of the channels as they are applied to a tensor."""
    return values.view(1, -1, *[1] * (tensor.dim() - 2))


# One for all layers, which meet in the order of their calls, that of the model. The rows of an
# allgather may change from call to call, and nothing has to be negotiated anew.
_FORWARD = operation_name("allgather", "sync_batch_norm", None)


def _backward_name(tensor):
    """One for each number of channels, on which ranks have agreed: nothing is negotiated anew."""
    return operation_name("allreduce", f"sync_batch_norm.{tensor.size(1)}", None)


def _host(*values):
    """What travels: little, and as exact as can be."""
    return torch.cat(values).to("cpu", torch.float64)


def _channels_differ(team, rank, other, channels):
    """channels: of the two ranks"""
    return HoronInternalError(
        f"'{_FORWARD}' failed: a SyncBatchNorm has {channels[0]} channels on rank {rank}, where "
        f"that of rank {other} has {channels[1]}",
        _horon.STATUSES["ERR_MISMATCH"],
        "DESCRIPTION",
        rank,
        other,
        host=team.hosts[team.ranks.index(rank)],
        name=_FORWARD,
    )


def _gather(team, own):
    """-> the values of the ranks that have not joined, a row for each"""

    def rows(values, lengths):
        lengths = {rank: n for rank, n in zip(team.ranks, *lengths, strict=True) if n}
        first, length = next(iter(lengths.items()))
        for rank, n in lengths.items():
            if n != length:  # found by every rank
                raise _channels_differ(team, first, rank, (length // 2, n // 2))
        return values.view(len(lengths), length)

    return verbs.stage(team, ALLGATHER, _FORWARD, own).then_with_rows(rows).begin().wait()


def _statistics(team, tensor):
    """-> elements a channel, and the channels' means and variances, over all ranks"""
    wide = _wide(tensor.detach())
    channels = wide.size(1)
    count = wide.numel() // channels if channels else 0
    if count:
        var, mean = torch.var_mean(wide, _but_channels(wide), unbiased=False)
    else:  # this rank has none of the batch
        var, mean = wide.new_zeros(channels), wide.new_zeros(channels)
    rows = torch.tensor([count], dtype=torch.float64, device="cpu")
    rows = _gather(team, torch.cat([rows, _host(mean, var)]))
    counts, means, variances = rows.split([1, channels, channels], dim=1)
    total = counts.sum()
    mean = (means * counts).sum(0) / total
    var = ((variances + (means - mean).square()) * counts).sum(0) / total
    return int(total), mean.to(wide), var.to(wide)


class _Normalize(torch.autograd.Function):
    """(x - mean) * factor * weight + bias; mean and factor are those of all ranks' x."""

    @staticmethod
    def forward(ctx, x, weight, bias, mean, factor, total, team):
        ctx.save_for_backward(x, weight, mean, factor)
        ctx.others = (total, team)
        scale = factor if weight is None else factor * weight
        y = (_wide(x) - _per_channel(mean, x)) * _per_channel(scale, x)
        return (y if bias is None else y + _per_channel(bias, x)).to(x.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx, gradient):
        x, weight, mean, factor = ctx.saved_tensors
        total, team = ctx.others
        wide = _wide(gradient)
        normal = (_wide(x) - _per_channel(mean, x)) * _per_channel(factor, x)
        of_bias, of_weight = (one.sum(_but_channels(x)) for one in (wide, wide * normal))
        grad = None
        if ctx.needs_input_grad[0]:
            sums = _out(team, ALLREDUCE, _backward_name(x), _host(of_bias, of_weight), Sum) / total
            shift, slope = (_per_channel(one, x) for one in sums.to(wide).chunk(2))
            scale = factor if weight is None else factor * weight
            grad = ((wide - shift - normal * slope) * _per_channel(scale, x)).to(x.dtype)
        # a module may have one of the two without the other
        of_weight = of_weight if ctx.needs_input_grad[1] else None
        of_bias = of_bias if ctx.needs_input_grad[2] else None
        return grad, of_weight, of_bias, None, None, None, None


class SyncBatchNorm(_BatchNorm):
    """Batch normalisation over the batches of all ranks, whose rows may differ, none included.

    Equal to torch's BatchNorm over all of them together, for tensors of any device and number of
    dimensions. Gradients of weight and bias are those of this rank's rows, as a
    DistributedOptimizer takes them. Every rank calls it, forward and backward, as often as others.

    num_features: channels, the second dimension.
    eps: added to the variance.
    momentum: of the running statistics; None: they are plain averages.
    affine: whether there are weight and bias.
    track_running_stats: whether there are running statistics, with which evaluation normalises, on
        each rank for itself; without them it does as training does.
    process_set: whose ranks' batches are one; a rank outside of it has its own.
    """

    def __init__(
        self,
        num_features,
        eps=1e-5,
        momentum=0.1,
        affine=True,
        track_running_stats=True,
        process_set=global_process_set,
    ):
        super().__init__(num_features, eps, momentum, affine, track_running_stats)
        # the set of all ranks is not copied or saved with the module
        self.process_set = None if process_set is global_process_set else process_set

    def _check_input_dim(self, input):
        if not input.is_floating_point():
            raise ValueError(f"expected floating-point input (got {input.dtype})")
        if input.dim() < 2:
            raise ValueError(f"expected at least 2D input (got {input.dim()}D input)")
        if input.size(1) != self.num_features:
            raise ValueError(
                f"expected input with {self.num_features} channels (got {input.size(1)})"
            )

    def _track(self, total, mean, var):
        if self.running_mean is None or not self.track_running_stats:  # switched off for a while
            return
        momentum = self.momentum
        if self.num_batches_tracked is not None:
            self.num_batches_tracked.add_(1)
            if momentum is None:
                momentum = 1.0 / float(self.num_batches_tracked)
        unbiased = var * (total / (total - 1))
        for running, now in ((self.running_mean, mean), (self.running_var, unbiased)):
            running.lerp_(now.to(running), momentum)

    def forward(self, input):
        self._check_input_dim(input)
        own = not (self.training or self.running_mean is None)
        if own or not ranks_beside(self.process_set):
            return super().forward(input)
        team = team_of(self.process_set)
        total, mean, var = _statistics(team, input)
        if total <= 1:  # found by every rank
            raise ValueError(
                "expected more than 1 value per channel over all ranks when training, "
                f"got input size {list(input.shape)} here"
            )
        if self.training:
            self._track(total, mean, var)
        factor = torch.rsqrt(var + self.eps)
        return _Normalize.apply(input, self.weight, self.bias, mean, factor, total, team)
