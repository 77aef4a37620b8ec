"""A network whose weights are divided among the processes (FSDP2), for one that does not fit a single device.

Each block gathers its weights just before it runs and drops them after. Gradients come back sharded, summed over the
processes. What updates weight by weight (the ℓ₂ anchor, Adam, plain steps) works on shards as on whole weights; metrics
that mix weights (Fisher, K-FAC) do not, and are refused.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor

from famr.engine.distributed import Ranks
from famr.models import Classifier
from famr.models.layers import blocks


def shard(module: nn.Module, device: torch.device, ranks: Ranks) -> None:
    """Divide a network's weights among the processes, in place; block by block, so that it is nowhere whole.

    Args:
        module: The network, the same in every process.
        device: This process's device.
        ranks: The processes.
    """
    mesh = init_device_mesh(device.type, (ranks.size,))
    for part in (*blocks(module), module):
        if any(True for _ in part.parameters()):
            fully_shard(part, mesh=mesh, reshard_after_forward=True)
    for part in module.modules():
        if isinstance(part, FSDPModule):  # sums over processes, not means: each has its share of one gradient
            part.set_gradient_divide_factor(1.0)
            part.set_force_sum_reduction_for_comms(True)
    module.to(device)


@torch.no_grad()
def load_shards(module: nn.Module, original: nn.Module) -> None:
    """Give a sharded network the weights and buffers of a whole one.

    Args:
        module: The sharded network.
        original: The same network, whole.
    """
    for ours, theirs in zip(module.parameters(), original.parameters(), strict=True):
        assert isinstance(ours.data, DTensor)
        ours.copy_(distribute_tensor(theirs.to(ours.device), ours.data.device_mesh, ours.data.placements))
    _copy_buffers(module, original)


def sharded_copy(model: Classifier, device: torch.device, ranks: Ranks) -> Classifier:
    """A copy whose weights are divided among the processes; the model itself stays whole.

    Args:
        model: The model, the same in every process.
        device: This process's device.
        ranks: The processes.
    """
    copy = model.copy()
    shard(copy.module, device, ranks)
    return copy


@torch.no_grad()
def unshard(model: Classifier, original: Classifier) -> Classifier:
    """A whole copy of a sharded classifier in every process, where the original is; one tensor at a time.

    Args:
        model: The sharded classifier.
        original: The classifier that it was copied from.
    """
    whole = replace(original.copy(), labels=model.labels)
    whole.module.eval()
    for ours, theirs in zip(whole.module.parameters(), model.module.parameters(), strict=True):
        ours.copy_(_full(theirs))
    _copy_buffers(whole.module, model.module)
    return whole


def _copy_buffers(target: nn.Module, source: nn.Module) -> None:
    for ours, theirs in zip(target.buffers(), source.buffers(), strict=True):
        ours.copy_(theirs)


def _full(tensor: Tensor) -> Tensor:
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
