"""The sketch: what an anchor needs of the training data, taken once, so that a later request needs none of it.

Fisher information (its diagonal, and a Kronecker product a layer) and how sure the model is of held-out images. A
sketch belongs to one set of weights and says so by their digest.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from famr.anchors.fisher import fisher_diagonal
from famr.anchors.kfac import SPECTRA, Spectra, kfac_factors
from famr.data import Data
from famr.data.loaders import EVALUATION_BATCH, image_batches, order
from famr.engine.devices import deterministic, pick_device
from famr.engine.finite import name_bad_images
from famr.engine.inference import on_device, predict
from famr.errors import CheckpointError, RequestError
from famr.models import Classifier
from famr.models.classifier import eval_mode, logits_of
from famr.models.weights import apply_umask
from famr.unlearn.forget_loss import HeldOut


@dataclass(frozen=True, eq=False)
class Sketch:
    """Statistics of a model on its training data; no image and no answer to a single image is in it."""

    weights_sha256: str
    images: int
    """How many training images the Fisher information was taken from."""
    held_out: HeldOut | None
    """How the model answers held-out images; None where there were none."""
    class_counts: Sequence[int]
    """How many training images there are of each class: so a later request can tell whole classes from samples."""
    names: Sequence[str]
    """The parameters, in the order of `diagonal` and of the places in `layers`."""
    diagonal: Sequence[Tensor]
    layers: Sequence[Spectra]
    """In eigenvectors, so that a later request need not find them."""

    def check(self, model: Classifier) -> None:
        """Refuse a model with other weights than those the sketch was taken of."""
        if model.digest() != self.weights_sha256:
            raise CheckpointError(
                "The sketch was taken of other weights than this model's.",
                where=f"sketch of {self.weights_sha256[:16]}…, model {model.digest()[:16]}…",
                fix="Take a sketch of this model with `famr sketch`.",
            )

    def covers_classes(self, labels: Tensor) -> bool:
        """Whether forget images with these labels are whole classes: as many of each as the model was trained on."""
        if bool((labels < 0).any()):
            return False
        counts = torch.bincount(labels, minlength=len(self.class_counts)).tolist()
        return all(count >= known for count, known in zip(counts, self.class_counts, strict=True) if count)

    def save(self, file: Path) -> None:
        """Write it as safetensors: tensors only, the rest as text in the header."""
        from safetensors.torch import save_file

        tensors = {f"diagonal.{place}": tensor.contiguous() for place, tensor in enumerate(self.diagonal)}
        for place, layer in enumerate(self.layers):
            tensors |= {f"{name}.{place}": getattr(layer, name).contiguous() for name in SPECTRA}
        held_out = None
        if self.held_out is not None:
            held_out = {"entropy": self.held_out.entropy, "entropy_when_wrong": self.held_out.entropy_when_wrong}
            if self.held_out.margins is not None:
                tensors["held_out.margins"] = self.held_out.margins.contiguous()
        facts = {
            "weights_sha256": self.weights_sha256,
            "images": self.images,
            "held_out": held_out,
            "class_counts": list(self.class_counts),
            "names": list(self.names),
            "layers": [(layer.weight, layer.bias) for layer in self.layers],
        }
        save_file(tensors, str(file), metadata={"famr_sketch": json.dumps(facts)})
        apply_umask(file)

    @classmethod
    def load(cls, file: Path) -> Sketch:
        """Read what `save` wrote."""
        from safetensors import SafetensorError, safe_open

        try:
            with safe_open(str(file), framework="pt") as stored:
                facts = json.loads(stored.metadata()["famr_sketch"])
                tensors = {name: stored.get_tensor(name) for name in stored.keys()}  # noqa: SIM118
            held_out = facts["held_out"]
            count = sum(name.startswith("diagonal.") for name in tensors)
            return cls(
                weights_sha256=facts["weights_sha256"],
                images=facts["images"],
                held_out=None if held_out is None else HeldOut(margins=tensors.get("held_out.margins"), **held_out),
                class_counts=facts["class_counts"],
                names=facts["names"],
                diagonal=[tensors[f"diagonal.{place}"] for place in range(count)],
                layers=[
                    Spectra(weight, bias, **{name: tensors[f"{name}.{place}"] for name in SPECTRA})
                    for place, (weight, bias) in enumerate(facts["layers"])
                ],
            )
        except (OSError, SafetensorError, KeyError, TypeError, ValueError) as error:
            raise CheckpointError(
                "This is no sketch, or a damaged one, or one of an earlier version.",
                where=str(file),
                fix="Take one with `famr sketch`.",
            ) from error


def take_sketch(
    model: Classifier, data: Data, *, images: int = 1000, seed: int = 0, device: str | None = None
) -> Sketch:
    """Take the statistics of a trained model on some of its training images and all held-out ones."""
    if images < 1:
        raise RequestError(f"`images` must be at least 1, got {images!r}.", where="famr.take_sketch")
    place = pick_device(device or "auto")
    model = model.copy()  # gradients are taken of one that keeps nothing between two passes
    some = data.train.take(order(len(data.train), seed)[:images])
    batches = image_batches(some, model.require_preprocessing(), EVALUATION_BATCH, place)
    held_out = None
    if data.test is not None:
        said = HeldOut.of(predict(model, data.test, place))
        in_order = None if said.margins is None else said.margins.sort().values  # no longer image by image
        held_out = replace(said, margins=in_order)
    with deterministic(seed), on_device(model.module, place), eval_mode(model.module), name_bad_images(some.ids):
        draws = torch.Generator().manual_seed(seed)
        diagonal = fisher_diagonal(model.module, logits_of, batches(None), draws)
        layers, _ = kfac_factors(model.module, logits_of, batches(None), draws)
    return Sketch(
        weights_sha256=model.digest(),
        images=len(some),
        held_out=held_out,
        class_counts=torch.bincount(data.train.targets, minlength=len(data.labels)).tolist(),
        names=[name for name, parameter in model.module.named_parameters() if parameter.requires_grad],
        diagonal=[tensor.cpu() for tensor in diagonal],
        layers=[layer.spectra.to("cpu") for layer in layers],
    )
