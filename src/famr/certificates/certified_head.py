"""A classifier with a certified head: a frozen backbone, the head, and the features of the images it stands for.

The folder of one:

    backbone/                the network in its own library's layout
    head/released.safetensors    what may be handed out
    head/state.safetensors, head.json, features.safetensors, ids.json    for whoever removes images; secret
    certified.json           names of the classes, digest of the backbone
    certificate.json, certificate.md    (ε, δ), what is spent of it, and what it rests on
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor, nn

from famr.certificates.claims import Assumption, Certificate, Claim, bounded
from famr.certificates.convex_head import ASSUMES, Account, CertifiedHead, remove, train_certified_head
from famr.certificates.page import certificate_page
from famr.data import Images
from famr.data.request import Request
from famr.engine.features import head_features
from famr.errors import CheckpointError, DataError, RequestError
from famr.models import Classifier, load_model
from famr.models.layers import head_name
from famr.models.weights import read_weights
from famr.runs.folder import atomic_folder, write_json

FACTS = "certified.json"
NOT_SHOWN = (
    "Anything about the backbone: if it was trained on the removed images, they are still in it.",
    "Anything about releases before the removal, or about several releases seen together.",
    "Anything that the choice of requests tells by itself, when it followed from earlier releases.",
    "That the head is any good: the noise that hides a removal also costs accuracy.",
)


class ReleasedHead(nn.Module):
    """The released weights in the place of a network's last linear layer, on features of norm 1."""

    def __init__(self, released: Tensor) -> None:
        super().__init__()
        self.weight = nn.Parameter(released.float(), requires_grad=False)

    def forward(self, features: Tensor) -> Tensor:
        """One score a class."""
        return nn.functional.linear(nn.functional.normalize(features, dim=-1), self.weight)


@dataclass(frozen=True, eq=False)
class CertifiedClassifier:
    """A backbone, its certified head, and what the head stands for."""

    backbone: Classifier
    head: CertifiedHead
    labels: tuple[str, ...]
    ids: tuple[str, ...]
    features: Tensor  # (images, width), in the order of `ids`
    targets: Tensor  # (images,)
    request: Request | None = None
    """What was removed last."""

    @classmethod
    def train(
        cls,
        backbone: Classifier,
        images: Images,
        labels: Sequence[str],
        *,
        strength: float = 1e-2,
        sigma: float = 1.0,
        epsilon: float = 1.0,
        delta: float = 1e-5,
        device: torch.device | None = None,
        generator: torch.Generator | None = None,
    ) -> CertifiedClassifier:
        """Fit a head to the backbone's features of these images. The backbone is not changed."""
        if not images.labelled:
            raise DataError("A head needs a class for every image.", fix="Put the images into class folders.")
        features = head_features(backbone, images, device or torch.device("cpu"))
        head = train_certified_head(
            features,
            images.targets,
            len(labels),
            strength=strength,
            sigma=sigma,
            epsilon=epsilon,
            delta=delta,
            generator=generator,
        )
        return cls(backbone, head, tuple(labels), tuple(images.ids), features, images.targets)

    def forget(
        self,
        request: Request,
        ids: Sequence[str],
        *,
        account: Account = "bound",
        generator: torch.Generator | None = None,
    ) -> CertifiedClassifier:
        """Take images out by one Newton step; a GateError where the budget does not allow it."""
        known, asked = set(self.ids), set(ids)
        if unknown := sorted(asked - known):
            raise RequestError(
                f"The head does not stand for {len(unknown)} of the images.",
                where=unknown[0],
                fix="It was not trained on them, or they were removed before.",
            )
        gone = torch.tensor([id_ in asked for id_ in self.ids])
        head = remove(
            self.head,
            self.features[~gone],
            self.targets[~gone],
            self.features[gone],
            self.targets[gone],
            account=account,
            generator=generator,
        )
        left = tuple(id_ for id_ in self.ids if id_ not in asked)
        return replace(
            self, head=head, ids=left, features=self.features[~gone], targets=self.targets[~gone], request=request
        )

    def classifier(self) -> Classifier:
        """A classifier that answers as the released head does."""
        answering = self.backbone.copy()
        name = head_name(answering)
        parent, _, last = name.rpartition(".")
        setattr(answering.module.get_submodule(parent), last, ReleasedHead(self.head.released))
        return replace(answering, labels=self.labels)

    def certificate(self) -> Certificate:
        """(ε, δ), what of it is spent, and what it rests on."""
        head = self.head
        assumptions = (
            Assumption(ASSUMES, "stated"),
            Assumption(
                "Nobody else sees the state, the features or the generator; a state is released once.", "stated"
            ),
            Assumption.found("Feature norms are at most 1, and the images handed over are those trained on.", True),
        )
        says = (
            "P(removed ∈ S) ≤ e^ε·P(retrained ∈ S) + δ for every set S of released weights, and the reverse; "
            f"δ = {head.delta:g}."
        )
        return Certificate(
            "certified",
            (
                Claim(
                    "epsilon",
                    says,
                    "[Sekhari et al. 2021], [Balle & Wang 2018]",
                    **bounded(head.epsilon_spent, head.epsilon),
                    assumptions=assumptions,
                    details={"delta": head.delta, "removed": head.removed, "left": head.count},
                ),
                Claim(
                    "gradient_residual",
                    "The norm of the head's gradient on the images left, at most, against what the noise hides.",
                    "[Guo et al. 2020]",
                    **bounded(head.residual, head.budget),
                    details={"sigma": head.sigma, "strength": head.strength, "noise_in_each_weight": head.spread},
                ),
            ),
            NOT_SHOWN,
            {
                "request": (self.request or Request()).to_json(),
                "forget_images": head.removed,
                "backbone_sha256": self.backbone.digest(),
            },
        )

    def save(self, folder: Path, *, overwrite: bool = False) -> Path:
        """Write it whole or not at all."""
        from safetensors.torch import save_file

        with atomic_folder(folder, overwrite=overwrite) as place:
            (place / "backbone").mkdir()
            self.backbone.architecture.save(self.backbone, place / "backbone")
            self.head.save(place / "head")
            content = {"features": self.features.contiguous(), "targets": self.targets.contiguous()}
            save_file(content, str(place / "head/features.safetensors"))
            write_json(place / "head/ids.json", {"ids": list(self.ids)})
            facts = {"labels": list(self.labels), "backbone_sha256": self.backbone.digest()}
            write_json(place / FACTS, facts)
            certificate = self.certificate()
            write_json(place / "certificate.json", certificate.to_json())
            (place / "certificate.md").write_text(certificate_page(certificate), encoding="utf-8")
        return folder

    @classmethod
    def load(cls, folder: Path) -> CertifiedClassifier:
        """Read what `save` wrote; a changed backbone is refused."""
        try:
            facts = json.loads((folder / FACTS).read_text(encoding="utf-8"))
            ids = json.loads((folder / "head/ids.json").read_text(encoding="utf-8"))["ids"]
            labels, digest = tuple(facts["labels"]), facts["backbone_sha256"]
        except (OSError, ValueError, KeyError) as error:
            raise CheckpointError("This is no certified classifier.", where=str(folder), fix="Name another.") from error
        backbone = load_model(str(folder / "backbone"))
        if backbone.digest() != digest:
            raise CheckpointError(
                "The backbone has other weights than those the head was trained on.",
                where=str(folder),
                fix="Restore it.",
            )
        stored = read_weights(folder / "head/features.safetensors")
        head = CertifiedHead.load(folder / "head")
        return cls(backbone, head, labels, tuple(ids), stored["features"], stored["targets"])


def is_certified(folder: Path) -> bool:
    """Whether a folder holds a certified classifier."""
    return (folder / FACTS).is_file()
