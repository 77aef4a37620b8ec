"""SISA: forgetting equals retraining, bit for bit, and only the affected slices are retrained."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

import famr
from conftest import SMALL_VIT, Outcome
from famr.certificates.claims import Certificate
from famr.data import Data, Images
from famr.data.augmentation import Augmentation
from famr.engine.inference import accuracy_on_images, predict
from famr.errors import CheckpointError, DataError, RequestError
from famr.sisa import Sisa, load_sisa, train_sisa
from famr.sisa.ensemble import Shard
from famr.sisa.plan import ShardPlan, Stage, images_per_epoch, slice_epochs
from famr.sisa.removal import remaining_digest
from famr.sisa.voting import majority_vote, mean_vote
from famr.storage.digests import folder_digests

PREPROCESSING = famr.Preprocessing(8, (8, 8), (0.5,), (0.5,))
TRAINING = famr.Training(epochs=4, batch_size=16, learning_rate=3e-3, augmentation=Augmentation(0.9, mirror=False))
LABELS = tuple(str(digit) for digit in range(10))
CPU = torch.device("cpu")


def network() -> nn.Module:
    """Small, with dropout and BatchNorm, which make training hard to reproduce."""
    return nn.Sequential(
        nn.Flatten(), nn.Linear(64, 24), nn.BatchNorm1d(24), nn.ReLU(), nn.Dropout(0.2), nn.Linear(24, 10)
    )


def start(seed: int) -> famr.Classifier:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return famr.Classifier(network(), LABELS, PREPROCESSING)


def plain_start(seed: int) -> famr.Classifier:
    """Without BatchNorm, so that it can be trained on a single image."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return famr.Classifier(nn.Sequential(nn.Flatten(), nn.Linear(64, 10)), LABELS, PREPROCESSING)


def train(images: Images, shards: int = 3, slices: int = 3, seed: int = 5) -> Sisa:
    return train_sisa(start, images, shards=shards, slices=slices, training=TRAINING, seed=seed, device="cpu")


def without(images: Images, ids: Sequence[str]) -> Images:
    return images.where(torch.tensor([id_ not in ids for id_ in images.ids]))


def assigned_to(images: Images, plan: ShardPlan, shard: int, slice_: int) -> list[str]:
    return [id_ for id_ in images.ids if plan.assign(id_) == (shard, slice_)]


def same_state(one: Shard, other: Shard) -> bool:
    """Whether all stored weights of two shards are equal, bit for bit."""
    if len(one.before) != len(other.before) or one.model.digest() != other.model.digest():
        return False
    return all(
        a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)
        for a, b in zip(one.before, other.before, strict=True)
    )


def same(one: Sisa, other: Sisa) -> bool:
    """Whether two ensembles have the same images, and the same weights in every checkpoint."""
    pairs = zip(one.shards, other.shards, strict=True)
    return one.ids == other.ids and one.plan == other.plan and all(same_state(a, b) for a, b in pairs)


@pytest.fixture(scope="module")
def images(digits: Data) -> Images:
    return digits.train.take(torch.arange(240))


@pytest.fixture(scope="module")
def sisa(images: Images) -> Sisa:
    return train(images)


# The plan


def test_removing_images_reassigns_no_other_image(images: Images) -> None:
    plan = ShardPlan(3, 4, seed=1)
    whole = {id_: plan.assign(id_) for id_ in images.ids}
    left = without(images, images.ids[::3])
    assert {id_: plan.assign(id_) for id_ in left.ids} == {id_: whole[id_] for id_ in left.ids}


def test_every_slice_gets_its_share_of_the_images() -> None:
    plan = ShardPlan(5, 4, seed=0)
    counts = Counter(plan.assign(f"image-{number}") for number in range(20_000))
    assert len(counts) == 20
    assert max(abs(count - 1000) for count in counts.values()) < 5 * 1000**0.5


def test_another_seed_makes_another_plan_and_other_stage_seeds() -> None:
    one, other = ShardPlan(5, 4, seed=0), ShardPlan(5, 4, seed=1)
    moved = sum(one.assign(str(n)) != other.assign(str(n)) for n in range(1000))
    assert 900 < moved < 990  # 19 in 20 land elsewhere
    seeds = [p.stage_seed(s, k) for p in (one, other) for s in range(5) for k in range(4)]
    assert len({*seeds, *(p.start_seed(s) for p in (one, other) for s in range(5))}) == 50


@pytest.mark.parametrize("slices", [1, 2, 3, 4, 7, 20])
def test_slices_share_the_epochs_within_half_an_epoch(slices: int) -> None:
    for epochs in range((slices + 2) // 2, 40):
        per_stage = slice_epochs(epochs, slices)
        passes = sum(rounds * (k + 1) for k, rounds in enumerate(per_stage)) / slices
        assert abs(passes - epochs) <= 0.5
        assert min(per_stage) >= 1
        if 2 * epochs % (slices + 1) == 0:
            assert set(per_stage) == {2 * epochs // (slices + 1)}


def test_slices_save_at_most_a_third_of_a_shard_on_average() -> None:
    """The mean over the slices is 2/3 + 1/(3R) of the shard [Bourtoule et al. 2021]."""
    slices, ids = 4, []
    plan = ShardPlan(1, slices, seed=0)
    pools = {k: [i for i in map(str, range(400)) if plan.assign(i).slice == k][:32] for k in range(slices)}
    ids = [id_ for pool in pools.values() for id_ in pool]
    whole = sum(stage.passes for stage in plan.all_stages(ids, 10, batch_size=1))
    assert whole == 10 * len(ids)
    shares = [sum(s.passes for s in plan.stages(ids, {0: k}, 10, batch_size=1)) / whole for k in range(slices)]
    assert sum(shares) / slices == pytest.approx(2 / 3 + 1 / (3 * slices))


def test_counted_image_passes_are_those_of_training(images: Images) -> None:
    for count in (5, 16, 50):
        steps: list[object] = []
        few = images.take(torch.arange(count))
        famr.fit(start(0), few, replace(TRAINING, epochs=1), device="cpu", on_event=steps.append)
        assert (len(steps) - 1) * min(count, TRAINING.batch_size) == images_per_epoch(count, TRAINING.batch_size)


# Exactness


def test_forgetting_equals_retraining_bit_for_bit(sisa: Sisa, images: Images) -> None:
    ids = [*assigned_to(images, sisa.plan, 0, 1)[:2], *assigned_to(images, sisa.plan, 2, 0)[:3]]
    unlearned, _ = sisa.forget(images, ids, device="cpu")
    assert same(unlearned, train(without(images, ids)))
    assert not same(unlearned, sisa)


def test_training_on_a_removed_image_changes_the_weights(sisa: Sisa, images: Images) -> None:
    ids = assigned_to(images, sisa.plan, 1, 2)[:2]
    careless, _ = sisa.forget(images, ids[:1], device="cpu")
    assert not same(
        replace(careless, ids=tuple(id_ for id_ in careless.ids if id_ != ids[1])), train(without(images, ids))
    )


def test_starting_from_a_checkpoint_trained_on_the_image_changes_the_weights(sisa: Sisa, images: Images) -> None:
    ids = assigned_to(images, sisa.plan, 1, 0)[:1]
    old = sisa.shards[1]
    late = Shard(old.model, (old.before[1], *old.before[1:]))  # as if slice 0 had been trained already
    wrong = replace(sisa, shards=(sisa.shards[0], late, sisa.shards[2]))
    assert not same(wrong.forget(images, ids, device="cpu")[0], train(without(images, ids)))


def test_no_removed_image_is_ever_decoded(sisa: Sisa, images: Images) -> None:
    seen: list[int] = []

    def spy(row: int):  # type: ignore[no-untyped-def]
        seen.append(row)
        return images.decode(row)

    ids = images.ids[:4]
    watched = replace(famr.open_data("digits").train, decode=spy, rows=images.rows)
    sisa.forget(watched, ids, device="cpu")
    assert seen
    assert not set(seen) & set(images.rows[:4].tolist())


def test_the_order_of_the_images_does_not_matter(sisa: Sisa, images: Images) -> None:
    assert same(sisa, train(images.take(torch.arange(len(images)).flip(0))))


def test_a_start_that_ignores_its_seed_is_reproducible_too(images: Images) -> None:
    def careless(seed: int) -> famr.Classifier:
        return famr.Classifier(network(), LABELS, PREPROCESSING)

    one, other = (
        train_sisa(careless, images, shards=2, slices=1, training=replace(TRAINING, epochs=1), device="cpu")
        for _ in range(2)
    )
    assert same(one, other)


def test_several_removals_in_a_row_equal_one_retraining(sisa: Sisa, images: Images) -> None:
    ids = images.ids[3:200:40]
    unlearned = sisa
    for id_ in ids:
        unlearned, _ = unlearned.forget(
            images, [id_], device="cpu"
        )  # the data may still contain images forgotten before
    assert same(unlearned, train(without(images, ids)))
    assert same(unlearned, sisa.forget(without(images, ids), ids, device="cpu")[0])


def test_a_vision_transformer_forgets_exactly(digits: Data, tmp_path: Path) -> None:
    def vit(seed: int) -> famr.Classifier:
        name = "timm:vit_tiny_patch16_224"
        return famr.new_model(name, digits.labels, from_scratch=True, arguments=SMALL_VIT, seed=seed)

    few = digits.train.take(torch.arange(64))
    settings = replace(TRAINING, epochs=2)
    trained, retrained = (
        train_sisa(vit, images, shards=2, slices=2, training=settings, device="cpu")
        for images in (few, without(few, few.ids[:1]))
    )
    loaded = load_sisa(trained.save(tmp_path / "vit"))
    assert same(loaded.forget(few, few.ids[:1], device="cpu")[0], retrained)
    famr.load_model(str(tmp_path / "vit/shard-1"))  # a model folder that timm and famr load


# Retrained stages


def test_unaffected_shards_and_earlier_slices_are_the_same_objects(sisa: Sisa, images: Images) -> None:
    before = [shard.model.digest() for shard in sisa.shards]
    unlearned, _ = sisa.forget(images, assigned_to(images, sisa.plan, 1, 2)[:1], device="cpu")
    assert unlearned.shards[0] is sisa.shards[0]
    assert unlearned.shards[2] is sisa.shards[2]
    assert all(a is b for a, b in zip(unlearned.shards[1].before[:2], sisa.shards[1].before[:2], strict=True))
    assert unlearned.shards[1].model.digest() != before[1]
    assert [shard.model.digest() for shard in sisa.shards] == before  # the old ensemble is not changed


def test_only_affected_slices_are_retrained(sisa: Sisa, images: Images, monkeypatch: pytest.MonkeyPatch) -> None:
    trained: list[tuple[int, int]] = []

    def counting(model, images, training, *, seed, device):  # type: ignore[no-untyped-def]
        trained.append((len(images), training.epochs))
        return famr.fit(model, images, training, seed=seed, device=device)

    monkeypatch.setattr("famr.sisa.ensemble.fit", counting)
    events: list[Stage] = []
    ids = [*assigned_to(images, sisa.plan, 0, 2)[:1], *assigned_to(images, sisa.plan, 2, 1)[:2]]
    unlearned, removal = sisa.forget(images, ids, device="cpu", on_stage=events.append)
    sizes = Counter(map(sisa.plan.assign, unlearned.ids))
    expected = {
        (0, 2): sizes[0, 0] + sizes[0, 1] + sizes[0, 2],
        (2, 1): sizes[2, 0] + sizes[2, 1],
        (2, 2): sizes[2, 0] + sizes[2, 1] + sizes[2, 2],
    }
    assert {(stage.shard, stage.slice): stage.images for stage in removal.stages} == expected
    assert trained == [(stage.images, stage.epochs) for stage in removal.stages]
    assert tuple(events) == removal.stages
    assert removal.passes == sum(2 * images_per_epoch(count, TRAINING.batch_size) for count in expected.values())
    assert 0.2 < removal.share < 0.7


def test_the_order_of_the_request_does_not_matter(sisa: Sisa, images: Images) -> None:
    ids = images.ids[:5]
    assert same(sisa.forget(images, ids, device="cpu")[0], sisa.forget(images, ids[::-1], device="cpu")[0])


# Slices and shards that lose all their images


def test_an_emptied_slice_is_still_exact(sisa: Sisa, images: Images) -> None:
    ids = assigned_to(images, sisa.plan, 1, 1)
    assert same(sisa.forget(images, ids, device="cpu")[0], train(without(images, ids)))


def test_an_emptied_shard_has_its_starting_weights_and_no_vote(images: Images) -> None:
    def train_plain(part: Images) -> Sisa:
        return train_sisa(plain_start, part, shards=3, slices=2, training=TRAINING, seed=5, device="cpu")

    trained = train_plain(images)
    ids = [id_ for id_ in images.ids if trained.plan.assign(id_).shard == 1]
    unlearned, removal = trained.forget(images, ids, device="cpu")
    assert same(unlearned, train_plain(without(images, ids)))
    assert unlearned.shards[1].model.digest() == plain_start(trained.plan.start_seed(1)).digest()
    assert removal.passes == 0
    both = [predict(unlearned.shards[shard].model, images, CPU).logits for shard in (0, 2)]
    combined = predict(unlearned.classifier("mean"), images, CPU).logits
    torch.testing.assert_close(combined, mean_vote(torch.stack(both)))


def test_a_single_image_may_remain(images: Images) -> None:
    trained = train_sisa(plain_start, images, shards=2, slices=2, training=TRAINING, seed=5, device="cpu")
    last = images.take(torch.tensor([7]))
    unlearned, _ = trained.forget(last, without(images, last.ids).ids, device="cpu")
    assert same(unlearned, train_sisa(plain_start, last, shards=2, slices=2, training=TRAINING, seed=5, device="cpu"))


# Votes


def slow_mean(logits: torch.Tensor, image: int) -> list[float]:
    models, _, classes = logits.shape
    each = [logits[model, image].double().softmax(dim=-1).tolist() for model in range(models)]
    return [sum(each[model][label] for model in range(models)) / models for label in range(classes)]


def test_votes_and_means_equal_a_slow_count() -> None:
    logits = 3 * torch.randn(4, 200, 5, generator=torch.Generator().manual_seed(0))
    ties = 0
    for image in range(200):
        mean = slow_mean(logits, image)
        votes = Counter(max(range(5), key=lambda c: float(logits[m, image, c])) for m in range(4))
        winners = [label for label in range(5) if votes[label] == max(votes.values())]
        ties += len(winners) > 1
        winner = max(winners, key=lambda label: mean[label])
        assert int(majority_vote(logits)[image].argmax()) == winner
        share = [(votes[label] + mean[label]) / 5 for label in range(5)]
        torch.testing.assert_close(majority_vote(logits)[image].exp().tolist(), share, rtol=1e-4, atol=1e-6)
        torch.testing.assert_close(mean_vote(logits)[image].exp().tolist(), mean, rtol=1e-4, atol=1e-6)
    assert ties > 20


def test_votes_are_distributions_even_for_saturated_logits() -> None:
    saturated = torch.tensor([[[200.0, 0.0, -200.0]], [[200.0, 0.0, -200.0]]])
    for vote in (majority_vote(saturated), mean_vote(saturated)):
        assert bool(vote.isfinite().all())
        torch.testing.assert_close(vote.exp().sum(dim=-1), torch.ones(1))


def test_the_ensemble_is_a_classifier_for_every_metric(sisa: Sisa, digits: Data, images: Images) -> None:
    ensemble = sisa.classifier()
    members = torch.stack([predict(shard.model, images, CPU).logits for shard in sisa.shards])
    torch.testing.assert_close(predict(ensemble, images, CPU).logits, majority_vote(members))
    data = replace(digits, train=images)
    splits = famr.split(data, famr.Request(samples=images.ids[:5]))
    assert splits.retain is not None
    unlearned, _ = sisa.forget(splits.retain, splits.forget.ids, device="cpu")
    scores = famr.compare(ensemble, unlearned.classifier("mean"), None, splits, device="cpu")
    assert scores.unlearned.forget_kl is not None
    assert scores.unlearned.counts["forget"] == 5


def test_the_ensemble_classifies_the_digits(digits: Data) -> None:
    longer = replace(TRAINING, epochs=12, learning_rate=1e-2)
    trained = train_sisa(start, digits.train, shards=3, slices=2, training=longer, device="cpu")
    assert digits.test is not None
    accuracies = [accuracy_on_images(trained.classifier(vote), digits.test, CPU) or 0 for vote in ("majority", "mean")]
    assert min(accuracies) > 0.8


# The folder


def test_a_saved_sisa_predicts_the_same_and_forgets_the_same(sisa: Sisa, images: Images, tmp_path: Path) -> None:
    folder = sisa.save(tmp_path / "sisa")
    loaded = load_sisa(folder, module=network())
    assert same(loaded, sisa)
    assert loaded.training == sisa.training
    one, other = (predict(ensemble.classifier(), images, CPU).logits for ensemble in (sisa, loaded))
    assert torch.equal(one, other)
    ids = images.ids[10:13]
    unlearned, removal = loaded.forget(images, ids, device="cpu")
    assert same(unlearned, sisa.forget(images, ids, device="cpu")[0])
    assert removal.same_environment
    again = load_sisa(unlearned.save(tmp_path / "unlearned"), module=network())
    assert same(again.forget(images, images.ids[:1], device="cpu")[0], train(without(images, [*ids, images.ids[0]])))


def test_the_folder_holds_weights_and_json_and_no_removed_id(sisa: Sisa, images: Images, tmp_path: Path) -> None:
    unlearned, removal = sisa.forget(images, images.ids[:1], device="cpu")
    files = folder_digests(unlearned.save(tmp_path / "sisa"))
    assert {Path(name).suffix for name in files} == {".json", ".safetensors"}
    assert {name for name in files if name.startswith("shard-2/")} == {
        "shard-2/config.json",
        "shard-2/model.safetensors",
        *(f"shard-2/before-slice-{slice_}.safetensors" for slice_ in range(3)),
    }
    text = (tmp_path / "sisa/sisa.json").read_text(encoding="utf-8") + json.dumps(removal.certificate().to_json())
    assert f'"{images.ids[0]}"' not in text
    assert f'"{images.ids[1]}"' in text


def test_commands_for_unlearned_networks_name_the_ensemble_they_were_given(
    sisa: Sisa, tmp_path: Path, run: Callable[..., Outcome]
) -> None:
    folder = sisa.save(tmp_path / "sisa")
    for command in (["evaluate"], ["report"], ["audit"], ["certify"], ["export"], ["sign", "--key", tmp_path / "none"]):
        outcome = run(command[0], folder, *command[1:])
        assert outcome.code == 4
        assert "of a SISA ensemble" in outcome.err


def test_frozen_parts_stay_frozen_in_a_loaded_sisa(images: Images, tmp_path: Path) -> None:
    def frozen(seed: int) -> famr.Classifier:
        model = start(seed)
        model.module[1].requires_grad_(False)  # type: ignore[index,operator]
        return model

    trained = train_sisa(frozen, images, shards=1, slices=1, training=replace(TRAINING, epochs=1), device="cpu")
    loaded = load_sisa(trained.save(tmp_path / "sisa"), module=network())
    unlearned, _ = loaded.forget(images, images.ids[:1], device="cpu")
    assert same(unlearned, trained.forget(images, images.ids[:1], device="cpu")[0])
    assert torch.equal(unlearned.shards[0].before[0]["1.weight"], unlearned.shards[0].model.module[1].weight)  # type: ignore[index]


def test_a_changed_checkpoint_is_refused(sisa: Sisa, tmp_path: Path) -> None:
    file = sisa.save(tmp_path / "sisa") / "shard-0/before-slice-1.safetensors"
    file.write_bytes(file.read_bytes()[:-1] + b"x")
    with pytest.raises(CheckpointError, match="was changed"):
        load_sisa(tmp_path / "sisa", module=network())


def test_a_folder_without_a_valid_sisa_json_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no folder of SISA"):
        load_sisa(tmp_path)
    (tmp_path / "sisa.json").write_text("{", encoding="utf-8")
    with pytest.raises(CheckpointError, match="not JSON"):
        load_sisa(tmp_path)
    (tmp_path / "sisa.json").write_text('{"format": 99}', encoding="utf-8")
    with pytest.raises(CheckpointError, match="format 99"):
        load_sisa(tmp_path)
    (tmp_path / "sisa.json").write_text('{"format": 1, "plan": {}}', encoding="utf-8")
    with pytest.raises(CheckpointError, match="damaged"):
        load_sisa(tmp_path)


# The certificate


def test_the_certificate_states_what_was_retrained_and_what_it_assumes(sisa: Sisa, images: Images) -> None:
    ids = [*assigned_to(images, sisa.plan, 0, 2)[:1], *assigned_to(images, sisa.plan, 2, 1)[:2]]
    unlearned, removal = sisa.forget(images, ids, device="cpu")
    proof = Certificate.from_json(json.loads(json.dumps(removal.certificate().to_json(), allow_nan=False)))
    assert proof.kind == "exact"
    assert all(claim.proved for claim in proof.claims)
    details = proof["removed_images_trained_on"].details
    assert details["removed"] == 3
    assert details["remaining"] == 237
    assert details["retrained"] == "shard 0 from slice 2 on, shard 2 from slice 1 on"
    assert details["share"] == removal.passes / removal.passes_of_retraining
    stated = [each.says for claim in proof.claims for each in claim.assumptions if each.status == "stated"]
    assert any("initial weights were not trained" in says for says in stated)
    assert proof.subject["weights_sha256"] == [shard.model.digest() for shard in unlearned.shards]
    assert proof.subject["remaining_sha256"] == remaining_digest(without(images, ids).ids)
    assert len(proof.not_shown) == 4
    assert json.loads(json.dumps(removal.to_json(), allow_nan=False))["stages"][0]["shard"] == 0


def test_a_removed_image_in_the_retraining_breaks_both_claims(sisa: Sisa, images: Images) -> None:
    _, removal = sisa.forget(images, images.ids[:1], device="cpu")
    assert not any(claim.proved for claim in replace(removal, removed_trained_on=1).certificate().claims)


def test_retraining_in_another_environment_breaks_the_bitwise_claim_and_no_other(sisa: Sisa, images: Images) -> None:
    elsewhere = replace(sisa, environments=({**sisa.environments[0], "torch": "1.0"},))
    once, removal = elsewhere.forget(images, images.ids[:1], device="cpu")
    assert [claim.proved for claim in removal.certificate().claims] == [True, False]
    assert len(once.environments) == 2
    _, later = once.forget(images, images.ids[1:2], device="cpu")
    assert not later.same_environment  # the environments stay mixed


# Bad input


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        ("digits/1", "list of ids"),
        ([], "No image is named"),
        (["nowhere"], "never trained on"),
        (["digits/0", "digits/0"], "named twice"),
    ],
)
def test_a_bad_request_is_refused(sisa: Sisa, images: Images, ids: Sequence[str], message: str) -> None:
    with pytest.raises(RequestError, match=message):
        sisa.forget(images, ids)


def test_nothing_is_forgotten_twice(sisa: Sisa, images: Images) -> None:
    unlearned, _ = sisa.forget(images, images.ids[:1], device="cpu")
    with pytest.raises(RequestError, match="forgotten before"):
        unlearned.forget(images, images.ids[:1])


def test_not_everything_can_be_forgotten(sisa: Sisa, images: Images) -> None:
    with pytest.raises(RequestError, match="leaves nothing"):
        sisa.forget(images, images.ids)


def test_data_without_the_remaining_images_is_refused(sisa: Sisa, images: Images) -> None:
    ids = assigned_to(images, sisa.plan, 0, 0)
    with pytest.raises(DataError, match="1 remaining images"):
        sisa.forget(without(images, ids[1:2]), ids[:1])
    other = assigned_to(images, sisa.plan, 1, 0)
    sisa.forget(without(images, other), ids[:1], device="cpu")  # those of other shards are not needed


def test_bad_training_data_and_settings_are_refused(images: Images) -> None:
    twice = images.take(torch.tensor([0, 1, 0]))
    with pytest.raises(DataError, match="same id"):
        train(twice)
    with pytest.raises(DataError, match="no images"):
        train(images.take(torch.tensor([], dtype=torch.long)))
    with pytest.raises(RequestError, match="shards"):
        train(images, shards=0)
    with pytest.raises(RequestError, match="slices"):
        train(images, slices=0)
    with pytest.raises(RequestError, match="too few for 8 slices"):
        train(images, slices=8)


def test_an_unknown_vote_is_refused(sisa: Sisa) -> None:
    with pytest.raises(RequestError, match="vote"):
        sisa.classifier("loudest")  # type: ignore[arg-type]
