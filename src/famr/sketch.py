"""The sketch: what an anchor needs of the training data, taken once, so that a later request needs none of it.

Fisher information (its diagonal, and a Kronecker product a layer) and how sure the model is of held-out images. A
sketch belongs to one set of weights and says so by their digest.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from famr.anchors.fisher import fisher_diagonal
from famr.anchors.kfac import Factors, kfac_factors
from famr.batches import EVALUATION_BATCH, image_batches, order
from famr.data import Data
from famr.devices import pick_device, repeatable
from famr.errors import CheckpointError
from famr.evaluation import answers, placed
from famr.metrics.forgetting import entropy
from famr.models import Classifier
from famr.models.classifier import evaluating, logits_of
from famr.models.weights import share_as_umask_says


@dataclass(frozen=True, eq=False)
class Sketch:
    """Statistics of a model on its training data; no image and no answer to a single image is in it."""

    weights_sha256: str
    images: int
    """How many training images the Fisher information was taken from."""
    held_out_entropy: float | None
    """The mean entropy of the model's answers on held-out images; None where there were none."""
    diagonal: Sequence[Tensor]
    layers: Sequence[Factors]

    def check(self, model: Classifier) -> None:
        """Refuse a model with other weights than those the sketch was taken of."""
        if model.digest() != self.weights_sha256:
            raise CheckpointError(
                "The sketch was taken of other weights than this model's.",
                where=f"sketch of {self.weights_sha256[:16]}…, model {model.digest()[:16]}…",
                fix="Take a sketch of this model with `famr sketch`.",
            )

    def save(self, file: Path) -> None:
        """Write it as safetensors: tensors only, the rest as text in the header."""
        from safetensors.torch import save_file

        tensors = {f"diagonal.{place}": tensor.contiguous() for place, tensor in enumerate(self.diagonal)}
        for place, layer in enumerate(self.layers):
            tensors |= {f"A.{place}": layer.A.contiguous(), f"G.{place}": layer.G.contiguous()}
        facts = {
            "weights_sha256": self.weights_sha256,
            "images": self.images,
            "held_out_entropy": self.held_out_entropy,
            "layers": [(layer.weight, layer.bias) for layer in self.layers],
        }
        save_file(tensors, str(file), metadata={"famr_sketch": json.dumps(facts)})
        share_as_umask_says(file)

    @classmethod
    def load(cls, file: Path) -> Sketch:
        """Read what `save` wrote."""
        from safetensors import SafetensorError, safe_open

        try:
            with safe_open(str(file), framework="pt") as stored:
                facts = json.loads(stored.metadata()["famr_sketch"])
                tensors = {name: stored.get_tensor(name) for name in stored.keys()}  # noqa: SIM118
        except (OSError, SafetensorError, KeyError, TypeError, ValueError) as error:
            raise CheckpointError(
                "This is no sketch, or a damaged one.", where=str(file), fix="Take one with `famr sketch`."
            ) from error
        count = sum(name.startswith("diagonal.") for name in tensors)
        return cls(
            weights_sha256=facts["weights_sha256"],
            images=facts["images"],
            held_out_entropy=facts["held_out_entropy"],
            diagonal=[tensors[f"diagonal.{place}"] for place in range(count)],
            layers=[
                Factors(weight, bias, tensors[f"A.{place}"], tensors[f"G.{place}"])
                for place, (weight, bias) in enumerate(facts["layers"])
            ],
        )


def take_sketch(
    model: Classifier, data: Data, *, images: int = 1000, seed: int = 0, device: str | None = None
) -> Sketch:
    """Take the statistics of a trained model on some of its training images and all held-out ones."""
    place = pick_device(device or "auto")
    some = data.train.take(order(len(data.train), seed)[:images])
    batches = image_batches(some, model.prepared_by(), EVALUATION_BATCH, place)
    held_out = None
    if data.test is not None:
        held_out = float(entropy(answers(model, data.test, place).logits).mean())
    with repeatable(seed), placed(model.module, place), evaluating(model.module):
        draws = torch.Generator().manual_seed(seed)
        diagonal = fisher_diagonal(model.module, logits_of, batches(None), draws)
        layers = kfac_factors(model.module, logits_of, batches(None), draws)
    return Sketch(
        weights_sha256=model.digest(),
        images=len(some),
        held_out_entropy=held_out,
        diagonal=[tensor.cpu() for tensor in diagonal],
        layers=[layer._replace(A=layer.A.cpu(), G=layer.G.cpu()) for layer in layers],
    )
