"""`audit`: the original, the unlearned and retrained models before the same gates."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from famr.audits.collateral import collateral, nearness
from famr.audits.depth import Depth, Recognised, depth_of
from famr.audits.intervals import gap_figure, mean_figure
from famr.audits.telltale import NEIGHBOURS, before_and_after, tell_tale
from famr.audits.verdict import Audit, Check, Figure, check, read_thresholds
from famr.batches import order
from famr.devices import pick_device, repeatable
from famr.errors import RequestError
from famr.evaluation import Answers, answers
from famr.labels import require_same_labels
from famr.metrics.calibration import expected_calibration_error
from famr.metrics.forgetting import correct
from famr.metrics.membership import called_non_members
from famr.metrics.retraining import js_divergence
from famr.models import Classifier
from famr.splits import Splits

RETAINED_IMAGES = 5000
FEWEST_IMAGES = 20
"""Below this many forget images no interval says anything."""

NO_REFERENCE = "no retrained model was given"
ONE_REFERENCE = "a retrained model can be held against others only, and one was given"


@dataclass(frozen=True, eq=False)
class Witness:
    """What one model answers to the sets of a request, and what an attack says of its forget set."""

    forget: Answers
    retain: Answers
    test: Answers
    forget_test: Answers | None
    non_members: Tensor
    """1 where the membership attack calls a forget image a non-member."""
    depth: Depth | None
    """What is left of the forgotten classes in the features; None where no whole class is forgotten."""

    @classmethod
    def of(
        cls, model: Classifier, splits: Splits, original: Classifier | None, device: torch.device, seed: int
    ) -> Witness:
        """Ask a model."""
        assert splits.retain is not None
        assert splits.test is not None
        some = splits.retain.take(order(len(splits.retain), seed)[:RETAINED_IMAGES])
        forget, retain, test = (answers(model, images, device) for images in (splits.forget, some, splits.test))
        apart = None if splits.forget_test is None else answers(model, splits.forget_test, device)
        called = called_non_members(_true_class(retain), _true_class(test), _true_class(forget), seed)
        depth = None
        if splits.forgets_classes() and len(splits.forget) >= FEWEST_IMAGES:
            depth = depth_of(model, splits, original=original, layers=(), seed=seed, device=str(device))
        return cls(forget, retain, test, apart, called, depth)


def audit(
    unlearned: Classifier,
    splits: Splits,
    *,
    original: Classifier | None = None,
    retrained: Sequence[Classifier] = (),
    thresholds: Mapping[str, float] | None = None,
    seed: int = 0,
    device: str | None = None,
) -> Audit:
    """Hold models against retrained ones, gate by gate; without a retrained model those gates cannot tell."""
    limits = {**read_thresholds(), **(thresholds or {})}
    place = pick_device(device or "auto")
    models = {"unlearned": unlearned} | ({} if original is None else {"original": original})
    for model in (*models.values(), *retrained):
        require_same_labels(model, splits)
    if splits.retain is None or splits.test is None or not splits.forget.labelled:
        raise RequestError("An audit needs the whole data, with labels.", where="splits", fix="Give --data.")
    with repeatable(seed):
        witnesses = {name: Witness.of(model, splits, original, place, seed) for name, model in models.items()}
        references = [Witness.of(model, splits, None, place, seed) for model in retrained]
    scene = _Scene(witnesses, references, _near(witnesses, splits), seed)
    checks = [
        scene.gate("forget_accuracy_gap", "|For-Acc − retrained| on the forget set.", limits, _hits("forget")),
        scene.gate("retain_accuracy_gap", "|Ret-Acc − retrained| on held-out images that stay.", limits, _hits("test")),
        scene.gate(
            "mia_efficacy_gap",
            "|MIA-efficacy − retrained|: the share of the forget set that an attack calls non-members.",
            limits,
            lambda witness: witness.non_members,
        ),
    ]
    if splits.forget_test is not None:
        says = "|For-Acc − retrained| on held-out images of what was forgotten."
        checks.insert(1, scene.gate("held_out_forget_accuracy_gap", says, limits, _hits("forget_test")))
    checks += [scene.average_gap(limits), scene.js(limits), scene.tell_tale(limits)]
    if witnesses["unlearned"].depth is not None:
        checks += [*scene.depths(limits), *scene.retrain_free(limits)]
    notes = [*scene.notes(splits)]
    if len(splits.forget) < FEWEST_IMAGES:
        notes.append(f"{len(splits.forget)} forget images are too few for a verdict.")
        checks = [_undecided(each, notes[-1]) for each in checks]
    subject = {
        "request": splits.request.to_json(),
        "thresholds": limits,
        "seed": seed,
        "unlearned_sha256": unlearned.digest(),
        "original_sha256": None if original is None else original.digest(),
        "retrained_sha256": [model.digest() for model in retrained],
    }
    return Audit(tuple(checks), subject, tuple(notes))


Reading = Callable[[Witness], Tensor]
"""One value an image of a model."""


def _hits(name: str) -> Reading:
    def read(witness: Witness) -> Tensor:
        said: Answers = getattr(witness, name)
        return correct(said.logits, said.targets).double()

    return read


@dataclass(frozen=True, eq=False)
class _Scene:
    """Everybody's answers."""

    witnesses: Mapping[str, Witness]
    references: Sequence[Witness]
    near: Tensor
    seed: int

    def _figures(self, of: Callable[[Witness, Sequence[Witness]], Figure]) -> tuple[dict[str, Figure], list[float]]:
        """The figure of each model against the retrained ones; and of each retrained one against the others."""
        if not self.references:
            return {name: Figure.not_available(NO_REFERENCE) for name in self.witnesses}, []
        figures = {name: of(witness, self.references) for name, witness in self.witnesses.items()}
        if len(self.references) < 2:
            return {**figures, "retrained": Figure.not_available(ONE_REFERENCE)}, []
        others = [[r for r in self.references if r is not one] for one in self.references]
        found = [of(one, rest) for one, rest in zip(self.references, others, strict=True)]
        return {**figures, "retrained": found[0]}, [figure.value for figure in found[1:] if figure.value is not None]

    def gate(self, name: str, says: str, limits: Mapping[str, float], read: Reading) -> Check:
        """|mean of a reading − its mean over retrained models|."""

        def of(witness: Witness, references: Sequence[Witness]) -> Figure:
            expected = torch.stack([read(reference) for reference in references]).mean(dim=0)
            return gap_figure(read(witness) - expected, self.seed)

        figures, among = self._figures(of)
        return check(name, says, limits[name], figures, among_retrained=among)

    def average_gap(self, limits: Mapping[str, float]) -> Check:
        """The mean of the four gaps."""
        readings: list[Reading] = [_hits("forget"), _hits("retain"), _hits("test"), lambda witness: witness.non_members]

        def of(witness: Witness, references: Sequence[Witness]) -> Figure:
            gaps = []
            for read in readings:
                expected = torch.stack([read(reference).mean() for reference in references]).mean()
                gaps.append(abs(float(read(witness).mean() - expected)))
            return Figure(sum(gaps) / len(gaps))

        figures, among = self._figures(of)
        says = "Avg. Gap: the mean gap of forget, retain and test accuracy and MIA-efficacy."
        return check("average_gap", says, limits["average_gap"], figures, among_retrained=among)

    def js(self, limits: Mapping[str, float]) -> Check:
        """JS of the answers on the forget set, mean over retrained models."""

        def of(witness: Witness, references: Sequence[Witness]) -> Figure:
            apart = [js_divergence(witness.forget.logits, reference.forget.logits) for reference in references]
            return mean_figure(torch.stack(apart).mean(dim=0), self.seed)

        figures, among = self._figures(of)
        says = "Jensen–Shannon divergence to retrained on the forget set, in nats."
        return check("js_to_retrained", says, limits["js_to_retrained"], figures, among_retrained=among)

    def tell_tale(self, limits: Mapping[str, float]) -> Check:
        """AUC of telling a model from retrained ones by its answers on the forget set."""

        def of(witness: Witness, references: Sequence[Witness]) -> Figure:
            if len(witness.forget.targets) < FEWEST_IMAGES:
                return Figure.not_available("too few forget images")
            theirs = [reference.forget.logits for reference in references]
            found = tell_tale(witness.forget.logits, theirs, self.near, self.seed)
            return Figure(found.auc, found.low, found.high)

        figures, among = self._figures(of)
        says = "AUC of telling the model from retrained ones by entropy, margin and neighbour mass on the forget set."
        return check("tell_tale_auc", says, limits["tell_tale_auc"], figures, among_retrained=among)

    def depths(self, limits: Mapping[str, float]) -> list[Check]:
        """How much more of the forgotten classes an attacker reads off the model than off retrained ones."""

        def gate(name: str, says: str) -> Check:
            def marks(witness: Witness) -> Tensor:
                found: Recognised | None = getattr(witness.depth, name)
                assert found is not None
                return found.forget.double()

            def of(witness: Witness, references: Sequence[Witness]) -> Figure:
                expected = torch.stack([marks(reference) for reference in references]).mean(dim=0)
                return mean_figure(marks(witness) - expected, self.seed)

            figures, among = self._figures(of)
            key = f"{name}_excess"
            return check(
                key, f"{says}: held-out forget accuracy − retrained.", limits[key], figures, among_retrained=among
            )

        return [
            gate("best_bias", "The best bias for the forgotten classes, at 1 % of retained accuracy"),
            gate("probe", "A linear probe with five images a class"),
            gate("neighbours", "Nearest neighbours among five images a class"),
        ]

    def retrain_free(self, limits: Mapping[str, float]) -> list[Check]:
        """What can be asked without a retrained model."""
        own = {name: mean_figure(_hits("forget")(witness), self.seed) for name, witness in self.witnesses.items()}
        checks = [
            check(
                "forget_accuracy", "For-Acc on the forget set.", limits["forget_accuracy"], own, needs_retrained=False
            )
        ]
        put_back = {
            name: mean_figure(witness.depth.original_head.forget.double(), self.seed)
            for name, witness in self.witnesses.items()
            if witness.depth is not None and witness.depth.original_head is not None
        }
        if put_back:
            says = "Held-out forget accuracy with the original's head put back: is it forgotten in the head alone?"
            limit = limits["original_head_back"]
            checks.append(check("original_head_back", says, limit, put_back, needs_retrained=False))
        return checks

    def notes(self, splits: Splits) -> list[str]:
        """What is stated and not judged."""
        ours, before = self.witnesses["unlearned"], self.witnesses.get("original")
        found = [
            f"ECE on held-out images that stay: {name} {expected_calibration_error(w.test.logits, w.test.targets):.4f}"
            for name, w in self.witnesses.items()
        ]
        if before is not None:
            auc = before_and_after(before.forget.logits, ours.forget.logits, before.test.logits, ours.test.logits)
            found.append(f"One who holds both models tells forget images from others with AUC {auc:.3f}.")
            forgotten = torch.tensor(splits.forgotten_classes(), dtype=torch.long)
            changes = collateral(before.test, ours.test, nearness(before.forget.logits, forgotten))
            names = splits.labels or tuple(str(index) for index in range(before.test.logits.shape[-1]))
            found += [
                f"Class {names[change.target]}: {100 * change.before:.1f} → {100 * change.after:.1f} %"
                for change in changes[:NEIGHBOURS]
                if change.change < 0
            ]
        return found


def _near(witnesses: Mapping[str, Witness], splits: Splits) -> Tensor:
    """The classes nearest to what was forgotten, as the original, or else the unlearned model, answers."""
    said = witnesses.get("original", witnesses["unlearned"]).forget.logits
    forgotten = torch.tensor(splits.forgotten_classes(), dtype=torch.long)
    count = min(NEIGHBOURS, said.shape[-1] - len(forgotten))
    return nearness(said, forgotten).topk(count).indices


def _true_class(said: Answers) -> Tensor:
    return torch.softmax(said.logits, dim=-1).gather(-1, said.targets[:, None])[:, 0]


def _undecided(each: Check, why: str) -> Check:
    figures = {model: Figure.not_available(why) for model in each.figures}
    return check(each.name, each.says, each.threshold, figures, needs_retrained=each.needs_retrained)
