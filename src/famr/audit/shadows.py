"""Shadow models: trained on random halves of the audited images, and kept as their answers.

A shadow is known by its content: SHA-256 of the starting weights, the training settings, the images and the seed. Its
answers lie in the cache under that key and what was asked, so an interrupted audit goes on where it stopped, more
shadows extend fewer, and several processes may share a folder: each takes the next shadow that nobody is at.
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

from famr.audit.shadow_cache import claimed, digest_of, image_digests, read_answers, write_answers
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


@dataclass(frozen=True)
class Method:
    """An unlearning method: (trained model, forget, retain, seed) → unlearned model."""

    name: str
    """All that makes it this method, settings too: answers are cached under it."""
    unlearn: Callable[[Classifier, Images, Images | None, int], Classifier]


@dataclass(frozen=True, eq=False)
class Setting:
    """What all shadows of an audit have in common."""

    start: Callable[[int], Classifier]
    """Starting weights from a seed."""
    pool: Images
    """The audited images: each shadow trains on one half of them."""
    base: Images | None = None
    """Images that every shadow trains on."""
    others: Images | None = None
    """Images that no shadow trains on and every one answers, such as a population for RMIA."""
    training: Training = field(default_factory=Training)
    seed: int = 0

    def __post_init__(self) -> None:
        if len(self.pool) < 2:
            raise RequestError("There must be at least two audited images.", where="pool", fix="Give more.")
        parts = (self.pool, self.base, self.others)
        ids = [id_ for part in parts if part is not None for id_ in part.ids]
        if twice := [id_ for id_, count in Counter(ids).items() if count > 1]:
            raise RequestError(
                "An image is given twice; then nobody can say which shadow saw it.",
                where=", ".join(twice[:SHOWN]),
                fix="Give each image once.",
            )


@dataclass(frozen=True)
class ShadowDone:
    """One shadow is there: trained just now, or found in the cache."""

    number: int
    key: str
    cached: bool
    seconds: float


@dataclass(frozen=True, eq=False)
class Shadows:
    """What shadow models say about the audited images, and about others that none of them saw."""

    logits: Tensor  # (models, pool, classes)
    seen: Tensor  # (models, pool), bool
    targets: Tensor  # (pool,)
    others_logits: Tensor  # (models, others, classes)
    others_targets: Tensor  # (others,)


def halves(images: int, shadows: int, seed: int) -> Tensor:
    """Which images each shadow trains on, (shadows, images): pairs of a random half and the other half.

    So each image is in half of the shadows, and each shadow has half of the images. More shadows begin with the same.

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
    """A seed of its own for each purpose."""
    return int.from_bytes(hashlib.sha256(f"{seed}/{name}".encode()).digest()[:4])


def train_shadows(
    setting: Setting,
    count: int,
    cache: Path,
    *,
    method: Method | None = None,
    keep_weights: bool = False,
    device: str | None = None,
    on_shadow: Callable[[ShadowDone], None] | None = None,
) -> Shadows:
    """`count` models, each trained on `base` and on half of the pool; with a `method`, made to unlearn that half again.

    `keep_weights` stores the trained weights too, so that another method, or other questions, need no new training.
    """
    seen = halves(len(setting.pool), count, setting.seed)
    names = [f"shadow {number}" for number in range(count)]
    return _Work(setting, cache, method, keep_weights, device).run(seen, names, on_shadow)


def train_whole(
    setting: Setting,
    count: int,
    cache: Path,
    *,
    method: Method | None = None,
    device: str | None = None,
    on_shadow: Callable[[ShadowDone], None] | None = None,
) -> Shadows:
    """`count` models trained on `base` and on the whole pool; with a `method`, made to unlearn all of the pool.

    The weights are kept: what was trained for one method serves the next.
    """
    seen = torch.ones(count, len(setting.pool), dtype=torch.bool)
    names = [f"whole {number}" for number in range(count)]
    return _Work(setting, cache, method, True, device).run(seen, names, on_shadow)


def train_references(
    setting: Setting,
    count: int,
    cache: Path,
    *,
    device: str | None = None,
    on_shadow: Callable[[ShadowDone], None] | None = None,
) -> Shadows:
    """`count` models trained on `base` alone: the retrained ones of U-LiRA, and references for RMIA."""
    if setting.base is None or len(setting.base) == 0:
        raise RequestError("Without the pool there is nothing to train on.", where="base", fix="Give retained images.")
    seen = torch.zeros(count, len(setting.pool), dtype=torch.bool)
    names = [f"reference {number}" for number in range(count)]
    return _Work(setting, cache, None, False, device).run(seen, names, on_shadow)


class _Work:
    """Training and asking, with the digests of all images taken once."""

    def __init__(
        self, setting: Setting, cache: Path, method: Method | None, keep_weights: bool, device: str | None
    ) -> None:
        self.setting, self.cache, self.method, self.keep_weights = setting, cache, method, keep_weights
        self.device = pick_device(device or "auto")
        self.images = setting.pool if setting.base is None else concatenate_images(setting.pool, setting.base)
        self.asked = setting.pool if setting.others is None else concatenate_images(setting.pool, setting.others)
        channels = setting.start(0).require_preprocessing().channels
        self.digests = image_digests(self.images, channels)
        self.asked_digest = digest_of(image_digests(self.asked, channels))
        self.by_id = sorted(range(len(self.images)), key=self.images.ids.__getitem__)

    def run(self, seen: Tensor, names: Sequence[str], on_shadow: Callable[[ShadowDone], None] | None) -> Shadows:
        """All answers; those that another process is at come last, so nobody waits while there is work."""
        found: dict[int, Tensor] = {}
        for wait in (False, True):
            for number, name in enumerate(names):
                if number in found:
                    continue
                begin = time.perf_counter()
                seed = shadow_seed(self.setting.seed, name)
                key = self.key(seen[number], seed)
                logits, cached = self.logits(key, seen[number], seed, wait)
                if logits is None:
                    continue
                found[number] = logits
                if on_shadow is not None:
                    on_shadow(ShadowDone(number, key, cached, time.perf_counter() - begin))
        logits = torch.stack([found[number] for number in range(len(names))])
        pool = len(self.setting.pool)
        targets = self.asked.targets
        return Shadows(logits[:, :pool], seen, targets[:pool], logits[:, pool:], targets[pool:])

    def positions(self, seen: Tensor) -> list[int]:
        """What a shadow trains on, in the order of the ids: a set has no other."""
        trained_on = [*seen.tolist(), *[True] * (len(self.images) - len(seen))]
        return [place for place in self.by_id if trained_on[place]]

    def start(self, seed: int) -> Classifier:
        with deterministic(seed):  # also for a `start` that draws without asking the seed
            return self.setting.start(seed)

    def key(self, seen: Tensor, seed: int) -> str:
        """SHA-256 of what makes the trained shadow."""
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
                "images": sorted(self.digests[place] for place in self.positions(seen)),
                "seed": seed,
            }
        )

    def logits(self, key: str, seen: Tensor, seed: int, wait: bool) -> tuple[Tensor | None, bool]:
        """A shadow's answers, and whether they were in the cache; None where another process is at it."""
        method = None if self.method is None else self.method.name
        forgotten = [self.digests[place] for place in seen.nonzero()[:, 0].tolist()] if self.method else None
        question = {"shadow": key, "asked": self.asked_digest, "method": method, "forget": forgotten}
        file = self.cache / f"{digest_of(question)}.answers.safetensors"
        if (known := read_answers(file, len(self.asked))) is not None:
            return known, True
        with claimed(self.cache / f"{key}.lock", wait) as mine:
            if not mine:
                return None, False
            if (known := read_answers(file, len(self.asked))) is not None:
                return known, True
            model = self.trained(key, seen, seed)
            if self.method is not None:
                forget, retain = self.images.take(seen.nonzero()[:, 0]), self.setting.base
                with deterministic(seed):
                    model = self.method.unlearn(model, forget, retain, seed)
            logits = predict(model, self.asked, self.device).logits.float().contiguous()
            if not bool(torch.isfinite(logits).all()):
                raise NumericsError("A shadow's answers are not all finite.", where=key, fix="Lower the learning rate.")
            facts = {"shadow": key, "method": method, "environment": environment(str(self.device))}
            write_answers(file, logits, facts)
            return logits, False

    def trained(self, key: str, seen: Tensor, seed: int) -> Classifier:
        """The trained shadow, from its kept weights or anew."""
        file = self.cache / f"{key}.weights.safetensors"
        if file.is_file():
            model = self.start(seed)
            try:
                load_weights(model.module, read_weights(file), str(file))
            except CheckpointError:
                pass  # damaged: it is trained again and replaced
            else:
                model.module.eval()
                return model
        images = self.images.take(torch.tensor(self.positions(seen)))
        model = fit(self.start(seed), images, self.setting.training, seed=seed, device=str(self.device)).model
        if self.keep_weights:
            with atomic_file(file) as staging:
                save_weights(model.module, staging)
        return model
