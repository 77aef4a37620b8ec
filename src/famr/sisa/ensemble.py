"""SISA: exact removal by retraining the shards that were trained on the images [Bourtoule et al. 2021].

Sharded, isolated, sliced, aggregated: one model a shard, each image in one shard only, the weights before every slice
stored. To forget an image, its shard returns to the weights before the image's slice and is trained from there without
it. The result equals training without the image, bit for bit.
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
from famr.sisa.plan import ShardPlan, Stage
from famr.sisa.removal import Removal, remaining_digest
from famr.sisa.voting import Ensemble, Vote
from famr.training import Training, fit

StateDict = Mapping[str, Tensor]
"""Weights by name, on the CPU."""


@dataclass(frozen=True, eq=False)
class Shard:
    """One model of the ensemble.

    Attributes:
        model: The trained model.
        before: Its weights before each slice; `before[0]` are the starting weights.
    """

    model: Classifier
    before: tuple[StateDict, ...]


@dataclass(frozen=True, eq=False)
class Sisa:
    """The models of all shards, and everything needed to forget some of their images.

    Attributes:
        plan: Which image is trained in which shard and slice.
        training: How each stage is trained.
        ids: Ids of the images it was trained on, sorted; forgotten ones are removed.
        shards: The models.
        environments: Hardware and versions its parts were trained with; several where some were retrained elsewhere.
    """

    plan: ShardPlan
    training: Training
    ids: tuple[str, ...]
    shards: tuple[Shard, ...]
    environments: tuple[Mapping[str, Any], ...]

    def classifier(self, vote: Vote = "majority") -> Classifier:
        """All shards as one classifier, for `famr.compare` and every metric. A shard without images has no vote.

        Args:
            vote: `majority` of the predicted classes, or `mean` of the probabilities.

        Raises:
            RequestError: The vote is unknown.
        """
        if vote not in get_args(Vote):
            raise RequestError(f"`vote` must be one of {', '.join(get_args(Vote))}, got {vote!r}.")
        trained = {self.plan.assign(id_).shard for id_ in self.ids}
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
        """Remove images by retraining the shards that were trained on them; this ensemble stays as it is.

        Args:
            images: Must contain the remaining images of the affected shards; others in it are not used.
            ids: Ids of the images to forget.
            device: Device to train on; None picks one.
            on_stage: Called after each stage.

        Returns:
            A new ensemble, and a record of what was retrained.

        Raises:
            RequestError: `ids` names no image, one twice, one that was never trained on, or all of them.
            DataError: A remaining image is missing, or several images have the same id.
        """
        ids = _check_ids(ids, self.ids)
        removed = set(ids)
        remaining = tuple(id_ for id_ in self.ids if id_ not in removed)
        first = self.plan.first_touched(ids)
        needed = _by_shard(images, [id_ for id_ in remaining if self.plan.assign(id_).shard in first], self.plan)
        stages = self.plan.stages(remaining, first, self.training.epochs, self.training.batch_size)
        trainer = _ShardTrainer(self.plan, self.training, device, on_stage)
        start = time.perf_counter()
        shards = list(self.shards)
        for shard, slice_ in first.items():
            old = shards[shard]
            own_stages = [stage for stage in stages if stage.shard == shard]
            shards[shard] = trainer.train(old.model, old.before[: slice_ + 1], needed[shard], own_stages)
        seconds = time.perf_counter() - start
        current = environment(str(pick_device(device or "auto")))
        environments = self.environments if current in self.environments else (*self.environments, current)
        result = replace(self, ids=remaining, shards=tuple(shards), environments=environments)
        all_stages = self.plan.all_stages(remaining, self.training.epochs, self.training.batch_size)
        return result, Removal(
            removed=len(ids),
            remaining=len(remaining),
            remaining_sha256=remaining_digest(remaining),
            plan=self.plan,
            stages=stages,
            passes=sum(stage.passes for stage in stages),
            passes_of_retraining=sum(stage.passes for stage in all_stages),
            seconds=seconds,
            removed_trained_on=sum(len(removed.intersection(part.ids)) for part in needed),
            same_environment=len(environments) == 1,
            weights_sha256=tuple(shard.model.digest() for shard in shards),
        )

    def save(self, output_dir: str | Path, *, overwrite: bool = False) -> Path:
        """Write a folder that `load_sisa` reads; each shard in it is a model folder of its own library.

        Args:
            output_dir: The folder.
            overwrite: Whether a folder that famr wrote may be replaced.

        Returns:
            The folder.

        Raises:
            RequestError: The folder exists already.
            StorageError: It cannot be written.
        """
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
    """Train one model a shard, slice after slice.

    The images are taken in the order of their ids, so their own order does not matter.

    Args:
        start: Makes a model with starting weights from a seed.
        images: The training images.
        shards: Number of shards, each a model.
        slices: Number of slices a shard.
        training: How each stage is trained; None for the defaults.
        seed: Seed of the plan and of every training.
        device: Device to train on; None picks one.
        on_stage: Called after each stage.

    Raises:
        RequestError: `shards` or `slices` is below 1, or there are too few epochs for the slices.
        DataError: There are no images, or several have the same id.
    """
    training = training or Training()
    plan = ShardPlan(shards, slices, seed)
    ids = tuple(sorted(images.ids))
    if not ids:
        raise DataError("There are no images to train on.", where="train_sisa", fix="Check the data.")
    parts = _by_shard(images, ids, plan)
    stages = plan.all_stages(ids, training.epochs, training.batch_size)
    trainer = _ShardTrainer(plan, training, device, on_stage)
    trained = []
    for shard in range(shards):
        with deterministic(plan.start_seed(shard)):  # also for a `start` that ignores its seed
            model = start(plan.start_seed(shard))
        own_stages = [stage for stage in stages if stage.shard == shard]
        trained.append(trainer.train(model, (_state_dict(model.module),), parts[shard], own_stages))
    return Sisa(plan, training, ids, tuple(trained), (environment(str(pick_device(device or "auto"))),))


@dataclass(frozen=True)
class _ShardTrainer:
    """Trains a shard; first training and retraining both use it, so that they agree bit for bit."""

    plan: ShardPlan
    training: Training
    device: str | None
    on_stage: Callable[[Stage], None] | None

    def train(self, model: Classifier, before: Sequence[StateDict], images: Images, stages: Sequence[Stage]) -> Shard:
        """Run the stages of one shard, starting from the last weights in `before`."""
        checkpoints = list(before)
        model = model.copy()
        model.module.load_state_dict(dict(checkpoints.pop()))
        model.module.eval()
        slices = torch.tensor([self.plan.assign(id_).slice for id_ in images.ids], dtype=torch.long)
        for stage in stages:
            checkpoints.append(_state_dict(model.module))
            if stage.images:  # with none left, the weights stay as they were
                training = replace(self.training, epochs=stage.epochs)
                seed = self.plan.stage_seed(stage.shard, stage.slice)
                part = images.where(slices <= stage.slice)
                model = fit(model, part, training, seed=seed, device=self.device).model
            if self.on_stage is not None:
                self.on_stage(stage)
        return Shard(model, tuple(checkpoints))


def _state_dict(module: nn.Module) -> StateDict:
    """A copy on the CPU."""
    return {
        name: tensor.detach().cpu().clone(memory_format=torch.contiguous_format)
        for name, tensor in module.state_dict().items()
    }


def _by_shard(images: Images, ids: Sequence[str], plan: ShardPlan) -> list[Images]:
    """The images of these ids, in their order, for each shard."""
    given = images.ids
    if repeated := [id_ for id_, count in Counter(given).items() if count > 1]:
        raise DataError(
            "Several images have the same id, so they cannot be removed one by one.",
            where=_list_ids(repeated),
            fix="Give each image an id of its own.",
        )
    index_of = {id_: index for index, id_ in enumerate(given)}
    if missing := [id_ for id_ in ids if id_ not in index_of]:
        raise DataError(
            f"{len(missing)} remaining images of the shards to be retrained are not in the data.",
            where=_list_ids(missing),
            fix="Open the data that the models were trained on; only the removed images may be missing.",
        )
    indices: list[list[int]] = [[] for _ in range(plan.shards)]
    for id_ in ids:
        indices[plan.assign(id_).shard].append(index_of[id_])
    return [images.take(torch.tensor(part, dtype=torch.long)) for part in indices]


def _check_ids(ids: Sequence[str], known: Sequence[str]) -> tuple[str, ...]:
    """The ids to remove: at least one, each once, each known, and not all of them."""
    if isinstance(ids, str):
        raise RequestError(f"`ids` must be a list of ids, got the text {ids!r}.", fix=f"[{ids!r}]")
    if not ids:
        raise RequestError("No image is named.", where="ids", fix="Name at least one.")
    if repeated := [id_ for id_, count in Counter(ids).items() if count > 1]:
        raise RequestError("An image is named twice.", where=_list_ids(repeated), fix="Name each once.")
    known_ids = set(known)
    if unknown := [id_ for id_ in ids if id_ not in known_ids]:
        raise RequestError(
            f"{len(unknown)} of {len(ids)} images were never trained on, or were forgotten before.",
            where=_list_ids(unknown),
            fix="Check the ids; nothing was forgotten.",
        )
    if len(ids) == len(known):
        raise RequestError(
            f"The request covers all {len(known)} training images and leaves nothing.",
            where="ids",
            fix="Delete the models; or train new ones on other data.",
        )
    return tuple(ids)


def _list_ids(ids: Sequence[str]) -> str:
    return ", ".join(map(str, ids[:SHOWN])) + (f" … ({len(ids)} in all)" if len(ids) > SHOWN else "")
