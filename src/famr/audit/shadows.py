"""Shadow models: trained on random halves of the audited images, and cached as their logits.

A shadow model is identified by its content: SHA-256 of the starting weights, the training settings, the images and the
seed. Its logits are cached under that key and the evaluated images, so an interrupted audit resumes, more shadow models
extend fewer, and several processes may share a folder: each takes the next model that no other process works on.
"""

from __future__ import annotations

import hashlib
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from famr.audit.shadow_cache import digest_of, image_digests, read_logits, shadow_lock, write_logits
from famr.data import Images
from famr.data.images import concatenate_images
from famr.data.request import SHOWN
from famr.engine.devices import deterministic, pick_device
from famr.engine.inference import predict
from famr.errors import CheckpointError, NumericsError, RequestError
from famr.models import Classifier
from famr.models.weights import load_weights, read_weights, save_weights
from famr.runs.folder import atomic_file, environment
from famr.training import Training, fit

FORMAT = 1
"""Part of every key; a new number makes all cached shadow models unknown."""


@dataclass(frozen=True)
class Method:
    """An unlearning method.

    Attributes:
        name: All that makes it this method, settings too: logits are cached under it.
        unlearn: (trained model, forget, retain, seed) → unlearned model.
    """

    name: str
    unlearn: Callable[[Classifier, Images, Images | None, int], Classifier]


@dataclass(frozen=True, eq=False)
class Setting:
    """What all shadow models of an audit have in common.

    Attributes:
        start: Starting weights from a seed.
        pool: The audited images: each shadow model trains on some of them.
        base: Images that every shadow model trains on; None: none.
        held_out: Images that no shadow model trains on and every one is evaluated on, such as a population for RMIA;
            None: none.
        training: How they are trained.
        seed: Of all draws.
    """

    start: Callable[[int], Classifier]
    pool: Images
    base: Images | None = None
    held_out: Images | None = None
    training: Training = field(default_factory=Training)
    seed: int = 0

    def __post_init__(self) -> None:
        if len(self.pool) < 2:
            raise RequestError("There must be at least two audited images.", where="pool", fix="Give more.")
        parts = (self.pool, self.base, self.held_out)
        ids = [id_ for part in parts if part is not None for id_ in part.ids]
        if twice := [id_ for id_, count in Counter(ids).items() if count > 1]:
            raise RequestError(
                "An image is given twice; it would not be known which shadow model saw it.",
                where=", ".join(twice[:SHOWN]),
                fix="Give each image once.",
            )


@dataclass(frozen=True)
class ShadowDone:
    """One shadow model is available.

    Attributes:
        number: Of the model, from 0.
        key: Its key in the cache.
        cached: Whether its logits were in the cache.
        seconds: Spent on it.
    """

    number: int
    key: str
    cached: bool
    seconds: float


OnShadow = Callable[[ShadowDone], None]


@dataclass(frozen=True, eq=False)
class Shadows:
    """Logits of shadow models on the audited images and on the held-out ones.

    Attributes:
        logits: (models, pool, classes).
        seen: Which model was trained on which image, bool (models, pool).
        targets: (pool,).
        held_out_logits: (models, held-out images, classes).
        held_out_targets: (held-out images,).
    """

    logits: Tensor
    seen: Tensor
    targets: Tensor
    held_out_logits: Tensor
    held_out_targets: Tensor


def halves(images: int, shadows: int, seed: int) -> Tensor:
    """Which images each shadow model trains on: pairs of a random half and the other half.

    So each image is in half of the models, and each model has half of the images. More models start with the same.

    Args:
        images: How many.
        shadows: How many models, an even number.
        seed: Of the draws.

    Returns:
        bool (shadows, images).

    Raises:
        RequestError: For an odd number of models, or none.

    >>> halves(6, 4, seed=0).sum(dim=0).tolist(), halves(6, 4, seed=0).sum(dim=1).tolist()
    ([2, 2, 2, 2, 2, 2], [3, 3, 3, 3])
    """
    if shadows < 2 or shadows % 2:
        raise RequestError(f"Shadows come in pairs: an even number of at least 2, got {shadows}.", where="shadows")
    seen = torch.zeros(shadows, images, dtype=torch.bool)
    for first in range(0, shadows, 2):
        draws = torch.Generator().manual_seed(shadow_seed(seed, f"half {first}"))
        seen[first, torch.randperm(images, generator=draws)[: images // 2]] = True
        seen[first + 1] = ~seen[first]
    return seen


def shadow_seed(seed: int, name: str) -> int:
    """A separate seed for each purpose.

    Args:
        seed: Of all shadow models.
        name: Of the purpose.
    """
    return int.from_bytes(hashlib.sha256(f"{seed}/{name}".encode()).digest()[:4])


def train_shadows(
    setting: Setting,
    count: int,
    cache: Path,
    *,
    method: Method | None = None,
    keep_weights: bool = False,
    device: str | None = None,
    on_shadow: OnShadow | None = None,
) -> Shadows:
    """Models trained on `base` and on half of the pool each; with a method, made to unlearn that half again.

    Args:
        setting: What they have in common.
        count: How many, an even number.
        cache: Folder of logits and weights.
        method: None: they stay as trained.
        keep_weights: Cache the trained weights too, so that another method, or other images to evaluate on, need no
            new training.
        device: None: the best there is.
        on_shadow: Called after each model.
    """
    seen = halves(len(setting.pool), count, setting.seed)
    trainer = ShadowTrainer(setting, cache, method, keep_weights, device)
    return trainer.run(seen, [f"shadow {number}" for number in range(count)], on_shadow)


def train_whole(
    setting: Setting,
    count: int,
    cache: Path,
    *,
    method: Method | None = None,
    device: str | None = None,
    on_shadow: OnShadow | None = None,
) -> Shadows:
    """Models trained on `base` and on the whole pool; with a method, made to unlearn all of the pool.

    The weights are cached, so another method needs no new training.

    Args:
        setting: What they have in common.
        count: How many.
        cache: Folder of logits and weights.
        method: None: they stay as trained.
        device: None: the best there is.
        on_shadow: Called after each model.
    """
    seen = torch.ones(count, len(setting.pool), dtype=torch.bool)
    trainer = ShadowTrainer(setting, cache, method, True, device)
    return trainer.run(seen, [f"whole {number}" for number in range(count)], on_shadow)


def train_references(
    setting: Setting, count: int, cache: Path, *, device: str | None = None, on_shadow: OnShadow | None = None
) -> Shadows:
    """Models trained on `base` alone: the retrained ones of U-LiRA, and references for RMIA.

    Args:
        setting: What they have in common.
        count: How many.
        cache: Folder of logits.
        device: None: the best there is.
        on_shadow: Called after each model.

    Raises:
        RequestError: Without a base.
    """
    if setting.base is None or len(setting.base) == 0:
        raise RequestError("Without the pool there is nothing to train on.", where="base", fix="Give retained images.")
    seen = torch.zeros(count, len(setting.pool), dtype=torch.bool)
    trainer = ShadowTrainer(setting, cache, None, False, device)
    return trainer.run(seen, [f"reference {number}" for number in range(count)], on_shadow)


class ShadowTrainer:
    """Trains and evaluates shadow models, with the digests of all images computed once.

    Args:
        setting: What they have in common.
        cache: Folder of logits and weights.
        method: Unlearns what a model saw of the pool; None: models stay as trained.
        keep_weights: Whether trained weights are cached too.
        device: None: the best there is.
    """

    def __init__(
        self, setting: Setting, cache: Path, method: Method | None, keep_weights: bool, device: str | None
    ) -> None:
        self.setting, self.cache, self.method, self.keep_weights = setting, cache, method, keep_weights
        self.device = pick_device(device or "auto")
        self.images = setting.pool if setting.base is None else concatenate_images(setting.pool, setting.base)
        self.evaluated = (
            setting.pool if setting.held_out is None else concatenate_images(setting.pool, setting.held_out)
        )
        channels = setting.start(0).require_preprocessing().channels
        self.digests = image_digests(self.images, channels)
        self.evaluated_digest = digest_of(image_digests(self.evaluated, channels))
        self.by_id = sorted(range(len(self.images)), key=self.images.ids.__getitem__)

    def run(self, seen: Tensor, names: Sequence[str], on_shadow: OnShadow | None) -> Shadows:
        """All logits; models that another process works on come last, so no process waits while there is work.

        Args:
            seen: Which model trains on which image of the pool, bool (models, pool).
            names: Of the models; their seeds are made of them.
            on_shadow: Called after each model.
        """
        by_number: dict[int, Tensor] = {}
        for wait in (False, True):
            for number, name in enumerate(names):
                if number in by_number:
                    continue
                start = time.perf_counter()
                seed = shadow_seed(self.setting.seed, name)
                key = self.key(seen[number], seed)
                logits, cached = self.logits(key, seen[number], seed, wait)
                if logits is None:
                    continue
                by_number[number] = logits
                if on_shadow is not None:
                    on_shadow(ShadowDone(number, key, cached, time.perf_counter() - start))
        logits = torch.stack([by_number[number] for number in range(len(names))])
        pool, targets = len(self.setting.pool), self.evaluated.targets
        return Shadows(logits[:, :pool], seen, targets[:pool], logits[:, pool:], targets[pool:])

    def start(self, seed: int) -> Classifier:
        """Starting weights, from the seed even where `Setting.start` draws from the global generator.

        Args:
            seed: Of the model.
        """
        with deterministic(seed):
            return self.setting.start(seed)

    def training_positions(self, seen: Tensor) -> list[int]:
        """Positions of a model's training images, ordered by id: the order of a set is no part of its identity.

        Args:
            seen: bool (pool,).
        """
        used = [*seen.tolist(), *[True] * (len(self.images) - len(seen))]
        return [position for position in self.by_id if used[position]]

    def key(self, seen: Tensor, seed: int) -> str:
        """SHA-256 of all that makes the trained model.

        Args:
            seen: bool (pool,).
            seed: Of the model.
        """
        model = self.start(seed)
        return digest_of(
            {
                "format": FORMAT,
                "weights": model.digest(),
                "network": str(model.module),
                "trainable": [name for name, weight in model.module.named_parameters() if weight.requires_grad],
                "labels": model.labels,
                "preprocessing": model.require_preprocessing().to_json(),
                "training": asdict(self.setting.training),
                "images": sorted(self.digests[position] for position in self.training_positions(seen)),
                "seed": seed,
            }
        )

    def logits(self, key: str, seen: Tensor, seed: int, wait: bool) -> tuple[Tensor | None, bool]:
        """A model's logits on the evaluated images, and whether they were in the cache.

        Args:
            key: Of the trained model.
            seen: bool (pool,).
            seed: Of the model.
            wait: Whether to wait for another process that works on it; otherwise its logits are None.

        Raises:
            NumericsError: For logits that are not finite.
        """
        method = None if self.method is None else self.method.name
        forgotten = [self.digests[position] for position in seen.nonzero()[:, 0].tolist()] if self.method else None
        content = {"shadow": key, "asked": self.evaluated_digest, "method": method, "forget": forgotten}
        path = self.cache / f"{digest_of(content)}.answers.safetensors"
        if (cached := read_logits(path, len(self.evaluated))) is not None:
            return cached, True
        with shadow_lock(self.cache / f"{key}.lock", wait) as locked:
            if not locked:
                return None, False
            if (cached := read_logits(path, len(self.evaluated))) is not None:
                return cached, True
            model = self.trained(key, seen, seed)
            if self.method is not None:
                forget, retain = self.images.take(seen.nonzero()[:, 0]), self.setting.base
                with deterministic(seed):
                    model = self.method.unlearn(model, forget, retain, seed)
            logits = predict(model, self.evaluated, self.device).logits.float().contiguous()
            if not bool(torch.isfinite(logits).all()):
                raise NumericsError(
                    "A shadow model's logits are not all finite.", where=key, fix="Lower the learning rate."
                )
            facts = {"shadow": key, "method": method, "environment": environment(str(self.device))}
            write_logits(path, logits, facts)
            return logits, False

    def trained(self, key: str, seen: Tensor, seed: int) -> Classifier:
        """The trained model, from its cached weights or trained anew.

        Args:
            key: Of the model.
            seen: bool (pool,).
            seed: Of the model.
        """
        path = self.cache / f"{key}.weights.safetensors"
        if path.is_file():
            model = self.start(seed)
            try:
                load_weights(model.module, read_weights(path), str(path))
            except CheckpointError:
                pass  # damaged: it is trained again and replaced
            else:
                model.module.eval()
                return model
        images = self.images.take(torch.tensor(self.training_positions(seen)))
        model = fit(self.start(seed), images, self.setting.training, seed=seed, device=str(self.device)).model
        if self.keep_weights:
            with atomic_file(path) as staging:
                save_weights(model.module, staging)
        return model
