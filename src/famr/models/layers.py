"""The one module that knows a network's structure: its head, its blocks, the input of its head, the order of calls."""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from famr.errors import RequestError
from famr.models.classifier import Architecture, Classifier, eval_mode

DOMINANT = 0.9
"""A child with this share of the weights is a wrapper: the blocks are inside it."""

LinearCall = tuple[str, nn.Linear, Tensor]
"""Name of a linear layer, the layer, and its input."""


def blocks(module: nn.Module) -> Iterator[nn.Module]:
    """The members of the outermost `ModuleList`s and `Sequential`s: the blocks of a ViT, the stages of a ResNet.

    Args:
        module: Any network.

    Yields:
        Each member that has parameters, in registration order.

    >>> net = nn.ModuleDict({"stem": nn.Linear(2, 2), "body": nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))})
    >>> len(list(blocks(net)))
    2
    """
    for child in module.children():
        if isinstance(child, (nn.ModuleList, nn.Sequential)) and len(child) > 1:
            yield from (member for member in child if any(True for _ in member.parameters()))
        else:
            yield from blocks(child)


def call_order(module: nn.Module, forward: Callable[[], object]) -> dict[str, int]:
    """Rank of each parameter by the first call of the innermost submodule it belongs to.

    Args:
        module: The network.
        forward: Runs one forward pass of it.

    Returns:
        Rank by parameter name; 0 for a parameter whose submodules are never called.
    """
    order: dict[nn.Module, int] = {}

    def note(part: nn.Module, _inputs: object) -> None:
        order.setdefault(part, len(order))

    handles = [part.register_forward_pre_hook(note) for part in module.modules()]
    try:
        with torch.no_grad():
            forward()
    finally:
        for handle in handles:
            handle.remove()

    def rank(name: str) -> int:
        parts = name.split(".")[:-1]
        within = [module.get_submodule(".".join(parts[:depth])) for depth in range(len(parts) + 1)]
        return max(order.get(part, 0) for part in within)

    return {name: rank(name) for name, _ in module.named_parameters()}


def late_parameters(module: nn.Module, forward: Callable[[], object], share: float, head: bool) -> list[str]:
    """Names of the parameters of the last `share` of the layers, with or without the head.

    Editing few, late layers retains more accuracy: a change in an early layer propagates through the whole network,
    where no per-layer metric predicts it. Freezing the head rules out forgetting by a mere change of its bias.

    Args:
        module: The network; only parameters with `requires_grad` count.
        forward: Runs one forward pass of it, which gives the order of the layers.
        share: Share of the layers with a weight matrix, from the head backwards, in (0, 1].
        head: Whether the last layer may change too. A network that is only a head always may.

    Returns:
        Parameter names in registration order.
    """
    rank = call_order(module, forward)
    free = [name for name, parameter in module.named_parameters() if parameter.requires_grad]
    weights = sorted((name for name in free if module.get_parameter(name).ndim >= 2), key=rank.__getitem__)
    if not weights:
        return free
    head_rank = rank[weights[-1]]
    body = [name for name in weights if rank[name] != head_rank]
    if not body or share >= 1:
        return [name for name in free if head or not body or rank[name] != head_rank]
    first = rank[body[len(body) - max(1, math.floor(share * len(body)))]]
    return [name for name in free if rank[name] >= first and (head or rank[name] != head_rank)]


@contextmanager
def train_only(module: nn.Module, names: Container[str]) -> Iterator[None]:
    """Set `requires_grad` for the named parameters alone; the previous flags return on exit.

    Args:
        module: The network.
        names: Names of the parameters that may change.
    """
    before = {name: parameter.requires_grad for name, parameter in module.named_parameters()}
    for name, parameter in module.named_parameters():
        parameter.requires_grad_(name in names)
    try:
        yield
    finally:
        for name, parameter in module.named_parameters():
            parameter.requires_grad_(before[name])


def trainable(module: nn.Module) -> list[nn.Parameter]:
    """θ: every parameter with `requires_grad`.

    Args:
        module: The network.

    Raises:
        RequestError: There is none.
    """
    parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]
    if not parameters:
        raise RequestError("The network has no trainable parameters.", fix="Set requires_grad on some of them.")
    return parameters


@torch.no_grad()
def head_name(classifier: Classifier) -> str:
    """Name of the last linear layer that a forward pass calls.

    Args:
        classifier: A network that ends in a linear layer with one output per class.

    Raises:
        RequestError: The network ends otherwise.
    """
    with eval_mode(classifier.module), last_linear_call(classifier.module) as calls:
        return head_call(calls, classifier.logits(blank_image(classifier)), classifier.spec)[0]


def head_of(classifier: Classifier) -> nn.Linear:
    """The last linear layer that a forward pass calls.

    Args:
        classifier: A network that ends in a linear layer with one output per class.

    Raises:
        RequestError: The network ends otherwise.
    """
    head = classifier.module.get_submodule(head_name(classifier))
    assert isinstance(head, nn.Linear)  # head_name considers linear layers only
    return head


def blank_image(classifier: Classifier, count: int = 1) -> Tensor:
    """Zeros of the shape, device and dtype that a classifier takes.

    Args:
        classifier: Any classifier with preprocessing.
        count: Images of the batch.

    Returns:
        (count, channels, height, width).
    """
    preprocessing, parameter = classifier.require_preprocessing(), next(classifier.module.parameters())
    size = (count, preprocessing.channels, *preprocessing.crop)
    return torch.zeros(size, device=parameter.device, dtype=parameter.dtype)


@contextmanager
def last_linear_call(module: nn.Module) -> Iterator[list[LinearCall]]:
    """Record the most recent call of a linear layer, for as long as the context lasts.

    Args:
        module: The network.

    Yields:
        A list with that one call; empty before the first.
    """
    calls: list[LinearCall] = []
    names = {part: name for name, part in module.named_modules() if isinstance(part, nn.Linear)}

    def note(layer: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        assert isinstance(layer, nn.Linear)
        calls[:] = [(names[layer], layer, inputs[0])]

    handles = [part.register_forward_pre_hook(note) for part in names]
    try:
        yield calls
    finally:
        for handle in handles:
            handle.remove()


def head_call(calls: list[LinearCall], logits: Tensor, spec: str) -> tuple[str, Tensor]:
    """Name of the head and its input (images, width), from `last_linear_call` after one forward pass.

    Args:
        calls: The list that `last_linear_call` yields.
        logits: What the forward pass returned, (images, classes).
        spec: The model, for the error.

    Raises:
        RequestError: The last linear layer does not make the logits.
    """
    if calls:
        name, layer, features = calls[0]
        if layer.out_features == logits.shape[1] and features.shape == (len(logits), layer.in_features):
            return name, features
    raise RequestError(
        "The network does not end in a linear layer with one output per class.",
        where=spec,
        fix="Use a classifier with a linear head.",
    )


def head_tensors(architecture: Architecture) -> set[str]:
    """Names of the head's tensors: those whose shape depends on the number of classes.

    Args:
        architecture: Is built twice, with 2 and with 3 classes.
    """
    with torch.random.fork_rng(devices=[]):
        two, three = (architecture.build(classes).state_dict() for classes in (2, 3))
    return {name for name, tensor in two.items() if tensor.shape != three[name].shape}


@torch.no_grad()
def block_names(classifier: Classifier) -> tuple[str, ...]:
    """Names of the blocks in the order of their calls: a ViT's encoder blocks, a ResNet's stem and stages.

    From the top, every child that holds nearly all weights is entered. A submodule inside it with weight matrices whose
    output has one row per image is a block; one that only groups others is entered too. Neither the head nor
    normalisation around the blocks is a block.

    Args:
        classifier: Any classifier with preprocessing.

    Returns:
        Names as in `module.named_modules()`.

    Raises:
        RequestError: The network does not end in a linear layer.
    """
    called: dict[nn.Module, int] = {}
    blank = blank_image(classifier, 2)

    def note(part: nn.Module, _inputs: object, output: object) -> None:
        first = output[0] if isinstance(output, (tuple, list)) else output
        if isinstance(first, Tensor) and first.ndim >= 2 and len(first) == len(blank):
            called.setdefault(part, len(called))

    module = classifier.module
    handles = [part.register_forward_hook(note) for part in module.modules()]
    try:
        with eval_mode(module):
            classifier.logits(blank)
    finally:
        for handle in handles:
            handle.remove()
    inside = module
    while (wrapper := _dominant(inside)) is not None:
        inside = wrapper
    names = {part: layer for layer, part in module.named_modules()}
    parts = sorted(_called_parts(inside, called), key=called.__getitem__)
    return tuple(names[part] for part in parts if names[part] != head_name(classifier))


def _called_parts(module: nn.Module, called: Container[nn.Module]) -> list[nn.Module]:
    """The outermost called submodules that hold weights."""
    parts: list[nn.Module] = []
    for part in module.children():
        if _has_matrices(part):
            parts += [part] if part in called else _called_parts(part, called)
    return parts


def _dominant(module: nn.Module) -> nn.Module | None:
    """The child that holds nearly all weights, if several submodules with weights are inside it."""
    total = sum(parameter.numel() for parameter in module.parameters())
    for child in module.children():
        count = sum(parameter.numel() for parameter in child.parameters())
        parts = [part for part in child.children() if _has_matrices(part)]
        if count >= DOMINANT * total and (len(parts) > 1 or _dominant(child) is not None):
            return child
    return None


def _has_matrices(module: nn.Module) -> bool:
    """Whether a submodule holds more than biases and scales."""
    return any(parameter.ndim >= 2 for parameter in module.parameters())
