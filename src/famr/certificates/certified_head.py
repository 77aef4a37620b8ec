"""A classifier with a certified head: a frozen backbone, the head, and the features of its images.

The folder of one:

    backbone/                    the network in its own library's layout
    head/released.safetensors    the only part of the head that may be published
    head/state.safetensors, head.json, features.safetensors, ids.json    for further removals; secret
    certified.json               names of the classes, digest of the backbone
    certificate.json, certificate.md    (ε, δ), the ε spent, and the assumptions
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor, nn

from famr.certificates.claims import Assumption, Certificate, Statement
from famr.certificates.convex_head import (
    Account,
    CertifiedHead,
    LabelledFeatures,
    RemovalSettings,
    remove,
    train_certified_head,
)
from famr.certificates.page import certificate_page
from famr.data import Images
from famr.data.request import Request
from famr.engine.features import head_features
from famr.errors import CheckpointError, DataError, RequestError
from famr.models import Classifier, load_model
from famr.models.layers import head_name
from famr.models.weights import read_weights
from famr.runs.folder import atomic_folder, write_json

RECORD = "certified.json"
DEFAULT_SETTINGS = RemovalSettings()
NOT_SHOWN = (
    "Anything about the backbone: if it was trained on the removed images, they are still in it.",
    "Anything about releases before the removal, or about several releases seen together.",
    "Anything that the choice of requests reveals by itself, when it depended on earlier releases.",
    "That the head is accurate: the noise that hides a removal also costs accuracy.",
)
EPSILON_SOURCE = "[Sekhari et al. 2021], [Balle & Wang 2018]"
RESIDUAL = Statement(
    "gradient_residual",
    "A bound on the norm of the head's gradient on the remaining images, against the budget that the noise allows.",
    "[Guo et al. 2020]",
)


class ReleasedHead(nn.Module):
    """The released weights in place of a network's last linear layer, on features of norm 1.

    Args:
        released: (classes, width).
    """

    def __init__(self, released: Tensor) -> None:
        super().__init__()
        self.weight = nn.Parameter(released.float(), requires_grad=False)

    def forward(self, features: Tensor) -> Tensor:
        """Scores (images, classes).

        Args:
            features: (images, width).
        """
        return nn.functional.linear(nn.functional.normalize(features, dim=-1), self.weight)


@dataclass(frozen=True, eq=False)
class CertifiedClassifier:
    """A backbone, its certified head, and the features of the head's images.

    Attributes:
        backbone: The frozen network.
        head: The head.
        labels: Names of the classes.
        ids: Ids of the head's images.
        data: Their features and labels, in the order of `ids`.
        request: What was removed last; None before the first removal.
    """

    backbone: Classifier
    head: CertifiedHead
    labels: tuple[str, ...]
    ids: tuple[str, ...]
    data: LabelledFeatures
    request: Request | None = None

    @classmethod
    def train(
        cls,
        backbone: Classifier,
        images: Images,
        labels: Sequence[str],
        settings: RemovalSettings = DEFAULT_SETTINGS,
        *,
        device: torch.device | None = None,
        generator: torch.Generator | None = None,
    ) -> CertifiedClassifier:
        """Fit a head to the backbone's features of images.

        Args:
            backbone: It stays as it is.
            images: The images of the head.
            labels: Names of the classes.
            settings: λ, σ, ε, δ.
            device: Where the features are computed; None: the CPU.
            generator: Of the noise; None: seeded by the system.

        Raises:
            DataError: An image has no class, or all have the same.
            RequestError: The backbone does not end in a linear layer.
        """
        if not images.labelled:
            raise DataError("A head needs a class for every image.", fix="Put the images into class folders.")
        data = LabelledFeatures(head_features(backbone, images, device or torch.device("cpu")), images.targets)
        head = train_certified_head(data, len(labels), settings, generator=generator)
        return cls(backbone, head, tuple(labels), tuple(images.ids), data)

    def forget(
        self,
        request: Request,
        ids: Sequence[str],
        *,
        account: Account = "bound",
        generator: torch.Generator | None = None,
    ) -> CertifiedClassifier:
        """Remove images by one Newton step.

        Args:
            request: What is removed, for the certificate.
            ids: The images of the request.
            account: What is charged to the budget, see `convex_head`.
            generator: Of the noise; None: seeded by the system.

        Raises:
            RequestError: An image is not in the head.
            GateError: The budget does not allow the removal.
        """
        removed_ids = set(ids)
        if unknown := sorted(removed_ids - set(self.ids)):
            raise RequestError(
                f"{len(unknown)} of the images are not in the head.",
                where=unknown[0],
                fix="It was not trained on them, or they were removed before.",
            )
        gone = torch.tensor([id_ in removed_ids for id_ in self.ids])
        left, removed = (LabelledFeatures(*(tensor[rows] for tensor in self.data)) for rows in (~gone, gone))
        return replace(
            self,
            head=remove(self.head, left, removed, account=account, generator=generator),
            ids=tuple(id_ for id_ in self.ids if id_ not in removed_ids),
            data=left,
            request=request,
        )

    def classifier(self) -> Classifier:
        """A copy of the backbone with the released head."""
        classifier = self.backbone.copy()
        parent, _, last = head_name(classifier).rpartition(".")
        setattr(classifier.module.get_submodule(parent), last, ReleasedHead(self.head.released))
        return replace(classifier, labels=self.labels)

    def certificate(self) -> Certificate:
        """(ε, δ), the ε spent, and the assumptions."""
        return removal_certificate(self.head, self.request or Request(), self.backbone.digest())

    def save(self, folder: Path, *, overwrite: bool = False) -> Path:
        """Write the folder, whole or not at all.

        Args:
            folder: It must not exist.
            overwrite: Replace a folder that famr wrote.

        Returns:
            The folder.
        """
        from safetensors.torch import save_file

        with atomic_folder(folder, overwrite=overwrite) as staging:
            (staging / "backbone").mkdir()
            self.backbone.architecture.save(self.backbone, staging / "backbone")
            self.head.save(staging / "head")
            content = {"features": self.data.features.contiguous(), "targets": self.data.labels.contiguous()}
            save_file(content, str(staging / "head/features.safetensors"))
            write_json(staging / "head/ids.json", {"ids": list(self.ids)})
            write_json(staging / RECORD, {"labels": list(self.labels), "backbone_sha256": self.backbone.digest()})
            certificate = self.certificate()
            write_json(staging / "certificate.json", certificate.to_json())
            (staging / "certificate.md").write_text(certificate_page(certificate), encoding="utf-8")
        return folder

    @classmethod
    def load(cls, folder: Path) -> CertifiedClassifier:
        """Read what `save` wrote.

        Args:
            folder: The folder.

        Raises:
            CheckpointError: It is no certified classifier, or the backbone was changed.
        """
        try:
            record = json.loads((folder / RECORD).read_text(encoding="utf-8"))
            ids = json.loads((folder / "head/ids.json").read_text(encoding="utf-8"))["ids"]
            labels, digest = tuple(record["labels"]), record["backbone_sha256"]
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
        data = LabelledFeatures(stored["features"], stored["targets"])
        return cls(backbone, CertifiedHead.load(folder / "head"), labels, tuple(ids), data)


def removal_certificate(head: CertifiedHead, request: Request, backbone_sha256: str) -> Certificate:
    """The (ε, δ) certificate of a head.

    Args:
        head: The head.
        request: What was removed last.
        backbone_sha256: Digest of the backbone.
    """
    settings = head.settings
    guarantee = Statement(
        "epsilon",
        "P(removed ∈ S) ≤ e^ε·P(retrained ∈ S) + δ for every set S of released weights, and the reverse; "
        f"δ = {settings.delta:g}.",
        EPSILON_SOURCE,
    )
    assumptions = (
        Assumption("The features do not depend on the removed images: the backbone was not trained on them.", "stated"),
        Assumption("Nobody else sees the state, the features or the generator; a state is released once.", "stated"),
        Assumption.checked("Feature norms are at most 1, and the images passed in are those of the training.", True),
    )
    return Certificate(
        "certified",
        (
            guarantee.claim(
                head.epsilon_spent,
                settings.epsilon,
                assumptions=assumptions,
                details={"delta": settings.delta, "removed": head.removed, "left": head.count},
            ),
            RESIDUAL.claim(
                head.residual,
                settings.budget,
                details={
                    "sigma": settings.sigma,
                    "strength": settings.strength,
                    "noise_in_each_weight": head.noise,
                },
            ),
        ),
        NOT_SHOWN,
        {"request": request.to_json(), "forget_images": head.removed, "backbone_sha256": backbone_sha256},
    )
