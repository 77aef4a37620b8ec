"""The anchors that a method asks for, taken from retained images or from those given."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

import torch
from torch import Tensor, nn

from famr.anchors import AnchorTerm, FisherAnchor, FunctionAnchor, KFACAnchor, L2Anchor
from famr.anchors.fisher import fisher_diagonal
from famr.anchors.kfac import Spectra, covered, kfac_factors
from famr.data import Images
from famr.data.loaders import (
    Batches,
    LabelledImages,
    evaluation_batch_size,
    evaluation_batches,
    gradient_batch_size,
    image_batches,
    loader_batches,
    order,
)
from famr.data.splits import Splits, sample_per_class
from famr.engine.distributed import ALONE, Ranks
from famr.engine.finite import name_bad_images
from famr.errors import RequestError
from famr.models.classifier import logits_of
from famr.models.layers import trainable
from famr.unlearn.forget_loss import ForgetLoss
from famr.unlearn.sketch import Sketch


def starting_weights(module: nn.Module, original: nn.Module | None) -> list[Tensor]:
    """θ₀ of the weights that may change: the original's own where they lie on the same device, else copies."""
    known = {} if original is None else dict(original.named_parameters())
    names = {weight: name for name, weight in module.named_parameters()}

    def start(weight: nn.Parameter) -> Tensor:
        own = known.get(names[weight], weight)
        alike = own is not weight and (own.device, own.dtype) == (weight.device, weight.dtype)
        return own.detach() if alike else weight.detach().clone()

    return [start(weight) for weight in trainable(module)]


def anchors_for(
    loss: ForgetLoss,
    splits: Splits | None,
    given: Images | Iterable[LabelledImages] | None,
    sketch: Sketch | None,
    seed: int,
    original: nn.Module | None = None,
) -> list[AnchorTerm]:
    """One anchor for the weights, ℓ₂, Fisher or K-FAC, and one for the answers where its strength is not zero.

    `original`: whose weights the network begins with, if it stays as it is for as long as the anchors are used.
    """
    method = loss.method
    source = given if given is not None or splits is None else splits.retain
    start = starting_weights(loss.model.module, original)
    strength = method.settled_strength
    held = [AnchorTerm(L2Anchor(start), strength)]
    if method.anchor != "l2" and sketch is not None:
        held = [AnchorTerm(from_sketch(loss, start, sketch), strength)]
    elif method.anchor != "l2":
        images = _required(source, method.anchor)
        if isinstance(images, Images):
            images = images.take(order(len(images), seed)[: method.fisher_images])
        batches = _passes(loss, images, gradient_batch_size(loss.a_step))
        with name_bad_images(images.ids if isinstance(images, Images) else None):
            held = [AnchorTerm(_fisher_anchor(loss, start, batches, seed), strength)]
    if method.function_strength:
        images = _required(source, "function")
        if isinstance(images, Images):
            assert method.function_images is not None
            images = sample_per_class(images, method.function_images, seed)
        size = method.images_a_step(len(images)) if isinstance(images, Images) else method.batch_size
        if isinstance(images, Images) and loss.front is not None:
            at_once = (size, evaluation_batch_size(loss.device, size))
            prepared = loss.model.require_preprocessing()
            batches, whole = (loss.front.passes(images, prepared, each, loss.device) for each in at_once)
        else:
            batches, whole = _passes(loss, images, size, loss.ranks), None
            if isinstance(images, Images):
                whole = evaluation_batches(images, loss.model.require_preprocessing(), loss.device, loss.ranks, size)
        held.append(AnchorTerm(FunctionAnchor(loss.logits, batches, seed, loss.ranks, whole), method.function_strength))
    return held


def _fisher_anchor(loss: ForgetLoss, start: list[Tensor], batches: Batches, seed: int) -> FisherAnchor | KFACAnchor:
    """The Fisher information of the original on these images: its diagonal, or a Kronecker product a layer."""
    module, draws = loss.model.module, torch.Generator().manual_seed(seed)
    if loss.method.anchor == "fisher":
        return FisherAnchor(start, fisher_diagonal(module, logits_of, batches(None), draws))
    layers, diagonals = kfac_factors(module, logits_of, batches(None), draws)
    rest = fisher_diagonal(module, logits_of, batches(None), draws, covered(layers) | diagonals.keys())
    return KFACAnchor(start, layers, [diagonals.get(place, each) for place, each in enumerate(rest)])


def from_sketch(loss: ForgetLoss, start: list[Tensor], sketch: Sketch) -> FisherAnchor | KFACAnchor:
    """The same anchors from statistics that were taken earlier, for the weights that may change."""
    edited = [name for name, parameter in loss.model.module.named_parameters() if parameter.requires_grad]
    diagonals = dict(zip(sketch.names, sketch.diagonal, strict=True))
    diagonal = [diagonals[name].to(loss.device) for name in edited]
    if loss.method.anchor == "fisher":
        return FisherAnchor(start, diagonal)
    place = {sketch.names.index(name): now for now, name in enumerate(edited)}
    layers = [
        _among(layer.to(loss.device), place)
        for layer in sketch.layers
        if layer.weight in place and (layer.bias is None or layer.bias in place)
    ]
    held = covered(layers)
    rest = [torch.zeros_like(f) if now in held else f for now, f in enumerate(diagonal)]
    return KFACAnchor(start, layers, rest)


def _among(layer: Spectra, place: Mapping[int, int]) -> Spectra:
    """The same layer where fewer weights may change, which have other places then."""
    return replace(layer, weight=place[layer.weight], bias=None if layer.bias is None else place[layer.bias])


def _passes(loss: ForgetLoss, images: Images | Iterable[LabelledImages], size: int, ranks: Ranks = ALONE) -> Batches:
    if isinstance(images, Images):
        return image_batches(images, loss.model.require_preprocessing(), size, loss.device, ranks)
    return loader_batches(images, loss.device, ranks)


def _required(source: Images | Iterable[LabelledImages] | None, anchor: str) -> Images | Iterable[LabelledImages]:
    if source is None:
        raise RequestError(
            f"The {anchor} anchor needs retained images, or others like them.",
            where="anchor",
            fix="Give the whole data, a sketch (famr sketch), or use the l2 anchor.",
        )
    return source
