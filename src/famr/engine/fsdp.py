"""A network whose weights lie in parts on the ranks (FSDP2), for one that does not fit a single device.

Each block has its weights gathered just before it runs, and gives them up after. A gradient comes back in the same
parts, added up over the ranks. What is pulled weight by weight (the ℓ₂ anchor, Adam, plain steps) works on parts as on
wholes; metrics that mix weights (Fisher, K-FAC) do not, and are refused.
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


def spread(module: nn.Module, device: torch.device, ranks: Ranks) -> None:
    """Divide a network's weights among the ranks, in place; block by block, so that it is nowhere whole."""
    mesh = init_device_mesh(device.type, (ranks.size,))
    for part in (*blocks(module), module):
        if any(True for _ in part.parameters()):
            fully_shard(part, mesh=mesh, reshard_after_forward=True)
    for part in module.modules():
        if isinstance(part, FSDPModule):  # sums over ranks, not means: each has its share of one gradient
            part.set_gradient_divide_factor(1.0)
            part.set_force_sum_reduction_for_comms(True)
    module.to(device)


@torch.no_grad()
def restore(module: nn.Module, original: nn.Module) -> None:
    """Give a network in parts the weights of a whole one."""
    for ours, theirs in zip(module.parameters(), original.parameters(), strict=True):
        assert isinstance(ours.data, DTensor)
        ours.copy_(distribute_tensor(theirs.to(ours.device), ours.data.device_mesh, ours.data.placements))


def spread_copy(model: Classifier, device: torch.device, ranks: Ranks) -> Classifier:
    """A copy whose weights are divided among the ranks; the model itself stays whole."""
    copy = model.copy()
    spread(copy.module, device, ranks)
    return copy


@torch.no_grad()
def made_whole(model: Classifier, original: Classifier) -> Classifier:
    """The same classifier with whole weights, on every rank, where the original's are; one tensor at a time."""
    whole = replace(original.copy(), labels=model.labels)
    for ours, theirs in zip(whole.module.parameters(), model.module.parameters(), strict=True):
        ours.copy_(_full(theirs))
    return whole


def _full(tensor: Tensor) -> Tensor:
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
