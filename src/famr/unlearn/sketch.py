"""A sketch: statistics of the training data for targets and anchors, so that a later request needs none of the data.

It holds Fisher information (the diagonal, and a Kronecker product a layer), how confident the model is on held-out
images, and proxies: models that were each trained without a part of the data (`famr.proxies`). A sketch belongs to one
set of weights, by their digest, and serves the models that are unlearned from these.

Each proxy was trained on most of the training images: like the images themselves, a sketch has to be deleted where an
image must leave no trace, or taken anew after a request.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from famr.anchors.statistics import EIGEN_TENSORS, FisherStatistics, LayerFisher, fisher_diagonal, kfac_statistics
from famr.data import Data
from famr.data.loaders import EVALUATION_BATCH, image_batches, order
from famr.data.splits import EarlierRequest
from famr.engine.devices import deterministic, pick_device
from famr.engine.finite import name_bad_images
from famr.engine.inference import on_device, predict
from famr.engine.pick import pick_engine
from famr.errors import CheckpointError, RequestError
from famr.models import Classifier
from famr.models.classifier import eval_mode, logits_of
from famr.models.weights import apply_umask
from famr.proxies.proxies import Proxies, train_proxies
from famr.proxies.recipe import ProxyRecipe, sketch_recipe
from famr.targets import HeldOutStatistics


@dataclass(frozen=True, eq=False)
class Sketch:
    """Statistics of a model on its training data, and proxies; no image and no prediction on a single image is in it.

    Attributes:
        weights_sha256: Digest of the weights that it belongs to.
        images: Number of training images from which the Fisher information was taken.
        held_out: How confident the model is on held-out images; None where there were none.
        class_counts: Number of training images of each class; it tells whole classes from samples in a later request.
        fisher: Fisher information of every parameter.
        proxies: Models that were each trained without a part of the data; None: it has none.
    """

    weights_sha256: str
    images: int
    held_out: HeldOutStatistics | None
    class_counts: Sequence[int]
    fisher: FisherStatistics
    proxies: Proxies | None = None

    def check(self, model: Classifier, earlier: Sequence[EarlierRequest] = ()) -> None:
        """Refuse a model with other weights, unless it was unlearned from the sketch's own.

        Args:
            model: The model that is to forget.
            earlier: Requests that it has forgotten, as its records have them.

        Raises:
            CheckpointError: Its weights have another digest, and so have those that it was unlearned from.
        """
        before = {run.original_sha256 for run in earlier}
        if self.weights_sha256 not in before and model.digest() != self.weights_sha256:
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
            "proxies": None if self.proxies is None else self.proxies.facts(),
        }
        tensors |= {} if self.proxies is None else self.proxies.tensors()
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
                proxies=Proxies.from_file(facts["proxies"], tensors) if facts.get("proxies") else None,
            )
        except (OSError, SafetensorError, KeyError, TypeError, ValueError, IndexError) as error:
            raise CheckpointError(
                "This is no sketch, or a damaged one, or one of an earlier version.",
                where=str(file),
                fix="Take one with `famr sketch`.",
            ) from error


def take_sketch(
    model: Classifier,
    data: Data,
    *,
    images: int = 1000,
    proxies: int = 0,
    recipe: ProxyRecipe | None = None,
    seed: int = 0,
    device: str | None = None,
    on_step: Callable[[int], None] | None = None,
) -> Sketch:
    """Take the statistics of a trained model on some of its training images and all held-out ones.

    The held-out images calibrate every run with the sketch, and must not be scored: the command line gives those of
    `famr.data.calibration` alone.

    Args:
        model: The model; it is not changed.
        data: The data that it was trained on.
        images: Training images for the Fisher information; more than a thousand changed no result.
        proxies: How many proxies to train, 10 as a rule, so that later requests need none; 0: none.
        recipe: How they are trained; None: as the model's folder records, in the late half of the layers.
        seed: Seed of the draw of images and labels.
        device: Name of the device; None: the best available.
        on_step: Called after each step of the proxies with the number of steps so far.

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
    sketch = Sketch(model.digest(), len(sample), held_out, counts, fisher)
    if not proxies:
        return sketch
    engine = pick_engine(str(chosen))
    recipe = (recipe or sketch_recipe(model)).with_start(model)
    trained = train_proxies(model, data, recipe, engine=engine, groups=proxies, seed=seed, on_step=on_step)
    return replace(sketch, proxies=trained)
