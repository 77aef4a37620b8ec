"""Early and late layers of a network: a proxy shares the early ones with the original and has its own late ones."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

import torch
from torch import Tensor, nn

from famr.errors import CheckpointError
from famr.models import Classifier
from famr.models.classifier import eval_mode
from famr.models.layers import blank_image, late_parameters
from famr.models.weights import tensors_digest


@torch.no_grad()
def late_layers(model: Classifier, share: float) -> tuple[str, ...]:
    """Names of the parameters of the last `share` of the layers, the head among them.

    Args:
        model: Any classifier with preprocessing.
        share: Share of the layers with a weight matrix, in (0, 1].
    """
    with eval_mode(model.module):
        blank = blank_image(model)
        return tuple(late_parameters(model.module, lambda: model.module(blank), share, head=True))


def late_state(module: nn.Module, names: Collection[str]) -> dict[str, Tensor]:
    """The tensors of the late layers: their parameters, and the buffers beside them, such as those of BatchNorm.

    Args:
        module: The network.
        names: Parameters of the late layers.

    Returns:
        The network's own tensors by name; not copies.
    """
    owners = {name.rpartition(".")[0] for name in names}
    buffers = {name for name, _ in module.named_buffers() if name.rpartition(".")[0] in owners}
    return {name: tensor for name, tensor in module.state_dict().items() if name in {*names, *buffers}}


@torch.no_grad()
def with_late_state(model: Classifier, state: Mapping[str, Tensor], where: str = "late layers") -> Classifier:
    """A copy of a model with other late layers.

    Args:
        model: Has the early layers.
        state: Tensors by name, of any floating type.
        where: What they are, for the error.

    Raises:
        CheckpointError: They do not fit the network.
    """
    copy = model.copy()
    own = copy.module.state_dict()
    for name, tensor in state.items():
        if name not in own or own[name].shape != tensor.shape:
            expected = tuple(own[name].shape) if name in own else "no such tensor"
            raise CheckpointError(
                "The layers do not fit the network.",
                where=f"{where}, {name}: {tuple(tensor.shape)}, expected {expected}",
                fix="Use layers of the same architecture.",
            )
        own[name].copy_(tensor)
    return copy


def early_digest(module: nn.Module, names: Iterable[str]) -> str:
    """SHA-256 of the names, types, shapes and bytes of all tensors but those of the late layers.

    Args:
        module: The network.
        names: Parameters of the late layers.
    """
    late = late_state(module, frozenset(names))
    return tensors_digest({name: tensor for name, tensor in module.state_dict().items() if name not in late})


@torch.no_grad()
def redrawn(model: Classifier, names: Collection[str], seed: int) -> Classifier:
    """A copy whose late layers are drawn at random, as at the start of a training from scratch.

    A layer draws its weights as its own library does. Where that is not known, the entries of a tensor are permuted,
    which keeps their scale and nothing else.

    Args:
        model: Is not changed.
        names: Parameters of the late layers.
        seed: Of the draws.
    """
    copy = model.copy()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        outputs = model.class_count()
        try:
            fresh = None if outputs is None else model.architecture.build(outputs).state_dict()
        except CheckpointError:  # only the caller has the code of a bare module
            fresh = None
        if fresh is not None:
            return with_late_state(copy, {name: fresh[name] for name in late_state(copy.module, names)})
        for owner in {name.rpartition(".")[0] for name in names}:
            module = copy.module.get_submodule(owner)
            if callable(draw := getattr(module, "reset_parameters", None)):
                draw()
                continue
            for parameter in module.parameters(recurse=False):
                parameter.copy_(parameter.flatten()[torch.randperm(parameter.numel())].view_as(parameter))
    return copy
