"""A sketch: statistics of the training data for targets and anchors, so that a later request needs none of the data.

It holds Fisher information (the diagonal, and a Kronecker product a layer) and how confident the model is on held-out
images. A sketch belongs to one set of weights, by their digest.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from famr.anchors.statistics import EIGEN_TENSORS, FisherStatistics, LayerFisher, fisher_diagonal, kfac_statistics
from famr.data import Data
from famr.data.loaders import EVALUATION_BATCH, image_batches, order
from famr.engine.devices import deterministic, pick_device
from famr.engine.finite import name_bad_images
from famr.engine.inference import on_device, predict
from famr.errors import CheckpointError, RequestError
from famr.models import Classifier
from famr.models.classifier import eval_mode, logits_of
from famr.models.weights import apply_umask
from famr.targets import HeldOutStatistics


@dataclass(frozen=True, eq=False)
class Sketch:
    """Statistics of a model on its training data; no image and no prediction on a single image is in it.

    Attributes:
        weights_sha256: Digest of the weights that it belongs to.
        images: Number of training images from which the Fisher information was taken.
        held_out: How confident the model is on held-out images; None where there were none.
        class_counts: Number of training images of each class; it tells whole classes from samples in a later request.
        fisher: Fisher information of every parameter.
    """

    weights_sha256: str
    images: int
    held_out: HeldOutStatistics | None
    class_counts: Sequence[int]
    fisher: FisherStatistics

    def check(self, model: Classifier) -> None:
        """Refuse a model with other weights.

        Args:
            model: The model that is to forget.

        Raises:
            CheckpointError: Its weights have another digest.
        """
        if model.digest() != self.weights_sha256:
            raise CheckpointError(
                "The sketch was taken of other weights than this model's.",
                where=f"sketch of {self.weights_sha256[:16]}…, model {model.digest()[:16]}…",
                fix="Take a sketch of this model with `famr sketch`.",
            )

    def covers_classes(self, labels: Tensor) -> bool:
        """Whether forget images are whole classes: as many of each as the model was trained on.

        Args:
            labels: Class indices of the forget images.
        """
        if bool((labels < 0).any()):
            return False
        counts = torch.bincount(labels, minlength=len(self.class_counts)).tolist()
        return all(count >= known for count, known in zip(counts, self.class_counts, strict=True) if count)

    def save(self, file: Path) -> None:
        """Write it as safetensors: tensors only, the rest as text in the header.

        Args:
            file: Path to write.
        """
        from safetensors.torch import save_file

        fisher = self.fisher
        tensors = {f"diagonal.{index}": tensor.contiguous() for index, tensor in enumerate(fisher.diagonal)}
        for index, layer in enumerate(fisher.layers):
            tensors |= {f"{name}.{index}": getattr(layer, name).contiguous() for name in EIGEN_TENSORS}
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
            "names": list(fisher.names),
            "layers": [(layer.weight, layer.bias) for layer in fisher.layers],
        }
        save_file(tensors, str(file), metadata={"famr_sketch": json.dumps(facts)})
        apply_umask(file)

    @classmethod
    def load(cls, file: Path) -> Sketch:
        """Read what `save` wrote.

        Args:
            file: Path to read.

        Raises:
            CheckpointError: It is no sketch, or a damaged one.
        """
        from safetensors import SafetensorError, safe_open

        try:
            with safe_open(str(file), framework="pt") as stored:
                facts = json.loads(stored.metadata()["famr_sketch"])
                tensors = {name: stored.get_tensor(name) for name in stored.keys()}  # noqa: SIM118
            held_out, margins = facts["held_out"], tensors.get("held_out.margins")
            count = sum(name.startswith("diagonal.") for name in tensors)
            layers = [
                LayerFisher(weight, bias, **{name: tensors[f"{name}.{index}"] for name in EIGEN_TENSORS})
                for index, (weight, bias) in enumerate(facts["layers"])
            ]
            diagonal = [tensors[f"diagonal.{index}"] for index in range(count)]
            return cls(
                weights_sha256=facts["weights_sha256"],
                images=facts["images"],
                held_out=None if held_out is None else HeldOutStatistics(margins=margins, **held_out),
                class_counts=facts["class_counts"],
                fisher=FisherStatistics(facts["names"], diagonal, layers),
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
    """Take the statistics of a trained model on some of its training images and all held-out ones.

    The held-out images calibrate every run with the sketch, and must not be scored: the command line gives those of
    `famr.data.calibration` alone.

    Args:
        model: The model; it is not changed.
        data: The data that it was trained on.
        images: Training images for the Fisher information; more than a thousand changed no result.
        seed: Seed of the draw of images and labels.
        device: Name of the device; None: the best available.

    Raises:
        RequestError: `images` is less than 1.
    """
    if images < 1:
        raise RequestError(f"`images` must be at least 1, got {images!r}.", where="famr.take_sketch")
    chosen = pick_device(device or "auto")
    model = model.copy()
    sample = data.train.take(order(len(data.train), seed)[:images])
    batches = image_batches(sample, model.require_preprocessing(), EVALUATION_BATCH, chosen)
    held_out = None
    if data.test is not None:
        statistics = HeldOutStatistics.of(predict(model, data.test, chosen))
        in_order = None if statistics.margins is None else statistics.margins.sort().values  # not image by image
        held_out = replace(statistics, margins=in_order)
    module = model.module
    with deterministic(seed), on_device(module, chosen), eval_mode(module), name_bad_images(sample.ids):
        draws = torch.Generator().manual_seed(seed)
        diagonal = fisher_diagonal(module, logits_of, batches(None), draws)
        layers, _ = kfac_statistics(module, logits_of, batches(None), draws)
    names = [name for name, parameter in module.named_parameters() if parameter.requires_grad]
    fisher = FisherStatistics(names, [tensor.cpu() for tensor in diagonal], [layer.to("cpu") for layer in layers])
    counts = torch.bincount(data.train.targets, minlength=len(data.labels)).tolist()
    return Sketch(model.digest(), len(sample), held_out, counts, fisher)
