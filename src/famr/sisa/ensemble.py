"""SISA: exact removal by training that can be taken back [Bourtoule et al. 2021].

Sharded, isolated, sliced, aggregated: one model a shard, each image in one shard only, the weights kept before every
slice. To forget an image, its shard goes back to the weights that had not seen it and is trained on from there without
it. The result is, bit for bit, what training without the image would have made.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, get_args

import torch
from torch import Tensor, nn

from famr.data import Images
from famr.data.request import SHOWN
from famr.engine.devices import deterministic, pick_device
from famr.errors import DataError, RequestError
from famr.models import Classifier
from famr.runs.folder import environment
from famr.sisa.plan import Plan, Stage
from famr.sisa.removal import Removal, ids_digest
from famr.sisa.voting import Ensemble, Vote
from famr.training import Training, fit

State = Mapping[str, Tensor]
"""Weights by name, on the CPU."""


@dataclass(frozen=True, eq=False)
class Shard:
    """One model, and what it was before each slice; `before[0]` are the weights it started from."""

    model: Classifier
    before: tuple[State, ...]


@dataclass(frozen=True, eq=False)
class Sisa:
    """Models of all shards, and all that is needed to forget some of their images."""

    plan: Plan
    training: Training
    ids: tuple[str, ...]
    """The images it rests on, sorted; what was forgotten is no longer among them."""
    shards: tuple[Shard, ...]
    environments: tuple[Mapping[str, Any], ...]
    """What its parts were trained with; more than one where some were retrained elsewhere."""

    def classifier(self, vote: Vote = "majority") -> Classifier:
        """All shards as one classifier, for `famr.compare` and every metric. A shard without images has no vote."""
        if vote not in get_args(Vote):
            raise RequestError(f"`vote` must be one of {', '.join(get_args(Vote))}, got {vote!r}.")
        trained = {self.plan.place(id_).shard for id_ in self.ids}
        module = Ensemble((self.shards[shard].model.module for shard in sorted(trained)), vote).eval()
        first = self.shards[0].model
        return Classifier(module, first.labels, first.preprocessing, spec=f"sisa of {len(trained)} shards")

    def forget(
        self,
        images: Images,
        ids: Sequence[str],
        *,
        device: str | None = None,
        on_stage: Callable[[Stage], None] | None = None,
    ) -> tuple[Sisa, Removal]:
        """A new Sisa without the images of these ids, and a record of what was retrained; this one stays as it is.

        `images` must hold the remaining images of the shards concerned; whatever else it holds is not used.
        """
        ids = _checked(ids, self.ids)
        gone = set(ids)
        remaining = tuple(id_ for id_ in self.ids if id_ not in gone)
        first = self.plan.first_touched(ids)
        needed = _by_shard(images, [id_ for id_ in remaining if self.plan.place(id_).shard in first], self.plan)
        stages = self.plan.stages(remaining, first, self.training.epochs, self.training.batch_size)
        begin = time.perf_counter()
        shards = list(self.shards)
        for shard, slice_ in first.items():
            old = shards[shard]
            ahead = [stage for stage in stages if stage.shard == shard]
            start = old.before[: slice_ + 1]
            shards[shard] = _train(old.model, start, needed[shard], ahead, self.plan, self.training, device, on_stage)
        seconds = time.perf_counter() - begin
        here = environment(str(pick_device(device or "auto")))
        environments = self.environments if here in self.environments else (*self.environments, here)
        result = replace(self, ids=remaining, shards=tuple(shards), environments=environments)
        whole = self.plan.all_stages(remaining, self.training.epochs, self.training.batch_size)
        return result, Removal(
            removed=len(ids),
            remaining=len(remaining),
            remaining_sha256=ids_digest(remaining),
            plan=self.plan,
            stages=stages,
            passes=sum(stage.passes for stage in stages),
            passes_of_retraining=sum(stage.passes for stage in whole),
            seconds=seconds,
            removed_trained_on=sum(len(gone.intersection(part.ids)) for part in needed),
            same_environment=len(environments) == 1,
            weights_sha256=tuple(shard.model.digest() for shard in shards),
        )

    def save(self, output_dir: str | Path, *, overwrite: bool = False) -> Path:
        """Write a folder that `load_sisa` reads; each shard in it is a model folder of its own library."""
        from famr.sisa.folder import save_sisa

        return save_sisa(self, Path(output_dir), overwrite=overwrite)


def train_sisa(
    start: Callable[[int], Classifier],
    images: Images,
    *,
    shards: int,
    slices: int,
    training: Training | None = None,
    seed: int = 0,
    device: str | None = None,
    on_stage: Callable[[Stage], None] | None = None,
) -> Sisa:
    """Train one model a shard, slice after slice; `start` makes starting weights from a seed.

    The images are taken in the order of their ids, so the order they come in does not matter.
    """
    training = training or Training()
    plan = Plan(shards, slices, seed)
    ids = tuple(sorted(images.ids))
    if not ids:
        raise DataError("There are no images to train on.", where="train_sisa", fix="Check the data.")
    parts = _by_shard(images, ids, plan)
    stages = plan.all_stages(ids, training.epochs, training.batch_size)
    made = []
    for shard in range(shards):
        with deterministic(plan.start_seed(shard)):  # also for a `start` that draws without asking the seed
            model = start(plan.start_seed(shard))
        ahead = [stage for stage in stages if stage.shard == shard]
        before = (_state(model.module),)
        made.append(_train(model, before, parts[shard], ahead, plan, training, device, on_stage))
    return Sisa(plan, training, ids, tuple(made), (environment(str(pick_device(device or "auto"))),))


def _train(
    model: Classifier,
    before: Sequence[State],
    images: Images,
    stages: Sequence[Stage],
    plan: Plan,
    training: Training,
    device: str | None,
    on_stage: Callable[[Stage], None] | None,
) -> Shard:
    """Run the stages of one shard from the last weights in `before`; first training and retraining are both this."""
    kept = list(before)
    model = model.copy()
    model.module.load_state_dict(dict(kept.pop()))
    model.module.eval()
    slices = torch.tensor([plan.place(id_).slice for id_ in images.ids], dtype=torch.long)
    for stage in stages:
        kept.append(_state(model.module))
        if stage.images:  # with none left, the weights stay as they were
            rounds = replace(training, epochs=stage.epochs)
            stage_seed = plan.stage_seed(stage.shard, stage.slice)
            model = fit(model, images.where(slices <= stage.slice), rounds, seed=stage_seed, device=device).model
        if on_stage is not None:
            on_stage(stage)
    return Shard(model, tuple(kept))


def _state(module: nn.Module) -> State:
    return {
        name: tensor.detach().cpu().clone(memory_format=torch.contiguous_format)
        for name, tensor in module.state_dict().items()
    }


def _by_shard(images: Images, ids: Sequence[str], plan: Plan) -> list[Images]:
    """The images of these ids, in their order, shard by shard."""
    given = images.ids
    if twice := [id_ for id_, count in Counter(given).items() if count > 1]:
        raise DataError(
            "Several images have the same id, so they cannot be removed one by one.",
            where=_some(twice),
            fix="Give each image an id of its own.",
        )
    position_of = {id_: position for position, id_ in enumerate(given)}
    if missing := [id_ for id_ in ids if id_ not in position_of]:
        raise DataError(
            f"{len(missing)} remaining images of the shards to be retrained are not in the data.",
            where=_some(missing),
            fix="Open the data that the models were trained on; only the removed images may be missing.",
        )
    positions: list[list[int]] = [[] for _ in range(plan.shards)]
    for id_ in ids:
        positions[plan.place(id_).shard].append(position_of[id_])
    return [images.take(torch.tensor(places, dtype=torch.long)) for places in positions]


def _checked(ids: Sequence[str], known: Sequence[str]) -> tuple[str, ...]:
    """The ids to remove: some, each once, each known, and not all there are."""
    if isinstance(ids, str):
        raise RequestError(f"`ids` must be a list of ids, got the text {ids!r}.", fix=f"[{ids!r}]")
    if not ids:
        raise RequestError("No image is named.", where="ids", fix="Name at least one.")
    if twice := [id_ for id_, count in Counter(ids).items() if count > 1]:
        raise RequestError("An image is named twice.", where=_some(twice), fix="Name each once.")
    there = set(known)
    if missing := [id_ for id_ in ids if id_ not in there]:
        raise RequestError(
            f"{len(missing)} of {len(ids)} images were never trained on, or were forgotten before.",
            where=_some(missing),
            fix="Check the ids; nothing was forgotten.",
        )
    if len(ids) == len(known):
        raise RequestError(
            f"The request covers all {len(known)} training images and leaves nothing.",
            where="ids",
            fix="Delete the models; or train new ones on other data.",
        )
    return tuple(ids)


def _some(ids: Sequence[str]) -> str:
    return ", ".join(map(str, ids[:SHOWN])) + (f" … ({len(ids)} in all)" if len(ids) > SHOWN else "")
