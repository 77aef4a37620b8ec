"""`audit`: the unlearned model, controls and retrained models at the same gates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from famr.audit.audit_data import AuditData, require_comparable
from famr.audit.comparison import ComparedModels
from famr.audit.controls import collapsed, head_only_edit, learned_enough
from famr.audit.copies import require_own_models, require_own_predictions
from famr.audit.costs import OnPart, Stopwatch
from famr.audit.measurements import ModelMeasurements, measure_models
from famr.audit.names import (
    COLLAPSED,
    HEAD_ONLY,
    NEVER_SAW,
    ORIGINAL,
    RETRAINED,
    UNLEARNED,
    is_reference,
    reference_name,
)
from famr.audit.references import (
    Reference,
    ReferenceFacts,
    reference_facts,
    retained_accuracy,
    trained_unlike,
    why_not_used,
)
from famr.audit.roc import RocSummary
from famr.audit.shadow_attacks import shadow_figures, u_lira_by_kind
from famr.audit.shadow_logits import ShadowLogits
from famr.audit.style_probe import StyleLayer
from famr.audit.ungated import cka_by_layer, notes, ungated_measurements
from famr.audit.verdict import (
    FEWEST_REFERENCES,
    Audit,
    head_only_escapes,
    judge,
    read_thresholds,
    stricter_thresholds,
)
from famr.data.calibration import calibration_mask
from famr.data.splits import Splits
from famr.engine.devices import deterministic, pick_device
from famr.errors import RequestError
from famr.models import Classifier


@dataclass(frozen=True, eq=False)
class Against:
    """The models that an unlearned one is compared with.

    Attributes:
        original: The model before unlearning; it shows which gates have any power.
        retrained: Models trained without the forget set; without one, gates that need it cannot tell.
        never_saw: A model trained without the forget set for a fraction of the epochs; it shows which gates measure
            the length of training.
    """

    original: Classifier | None = None
    retrained: Sequence[Classifier | Reference] = ()
    never_saw: Classifier | Reference | None = None


@dataclass(frozen=True, eq=False)
class AuditSettings:
    """How an audit is made.

    Attributes:
        style: The layer from which a forgotten style is read; only for style requests.
        quick: Leave out relearning, the attacks that train, rounding, export and CKA.
        thresholds: By the name of the gate, in place of its own; none may be looser.
        seed: Of all draws and bootstraps.
        device: None: the best there is.
        on_part: Called when a part of the work is done, with the seconds that are left.
        held_out_seen: Whether the method was given held-out images, to calibrate on.
    """

    style: StyleLayer | None = None
    quick: bool = False
    thresholds: Mapping[str, float] | None = None
    seed: int = 0
    device: str | None = None
    on_part: OnPart | None = None
    held_out_seen: bool = True


def audit(
    unlearned: Classifier,
    splits: Splits,
    *,
    original: Classifier | None = None,
    retrained: Sequence[Classifier | Reference] = (),
    never_saw: Classifier | Reference | None = None,
    shadows: ShadowLogits | None = None,
    style: StyleLayer | None = None,
    quick: bool = False,
    thresholds: Mapping[str, float] | None = None,
    seed: int = 0,
    device: str | None = None,
    on_part: OnPart | None = None,
    held_out_seen: bool = True,
) -> Audit:
    """Compare an unlearned model with retrained ones, gate by gate; no model is changed.

    It passes only against at least five retrained models that a training record shows to have been trained without the
    forget set, beside the original, with all parts, and with every gate that counts.

    Args:
        unlearned: The model under audit.
        splits: The request's sets, with labels, retained and held-out images.
        original: As in `Against`.
        retrained: As in `Against`.
        never_saw: As in `Against`.
        shadows: Logits of shadow models on the forget set, for LiRA, U-LiRA and KLoM.
        style: As in `AuditSettings`.
        quick: As in `AuditSettings`.
        thresholds: As in `AuditSettings`.
        seed: As in `AuditSettings`.
        device: As in `AuditSettings`.
        on_part: As in `AuditSettings`.
        held_out_seen: As in `AuditSettings`.

    Raises:
        RequestError: Without the whole data, with a style layer and no style, for looser thresholds, or for a reference
            that is a copy of another model or saw the forget set.
        CheckpointError: For models of different architectures or label maps.
    """
    against = Against(original, retrained, never_saw)
    settings = AuditSettings(style, quick, thresholds, seed, device, on_part, held_out_seen)
    given = {} if shadows is None else {UNLEARNED: shadows}
    return audit_methods({UNLEARNED: unlearned}, splits, against, settings, given)[UNLEARNED]


def audit_methods(
    unlearned: Mapping[str, Classifier],
    splits: Splits,
    against: Against,
    settings: AuditSettings | None = None,
    shadows: Mapping[str, ShadowLogits] | None = None,
) -> dict[str, Audit]:
    """Audits of several methods' results for one request; the other models are measured once.

    Args:
        unlearned: The models under audit, by the name of the method.
        splits: As for `audit`.
        against: What they are compared with.
        settings: None: the defaults.
        shadows: As for `audit`, by the name of the method.

    Returns:
        By the name of the method.

    Raises:
        RequestError: As for `audit`.
        CheckpointError: As for `audit`.
    """
    settings = settings or AuditSettings()
    limits = {**read_thresholds(), **stricter_thresholds(settings.thresholds or {})}
    if settings.style is not None and splits.request.style is None:
        raise RequestError("No style was forgotten.", where=splits.request.describe(), fix="Leave the style layer out.")
    given = _GivenModels.of(unlearned, against, splits)
    data = AuditData.draw(splits, settings.seed, pick_device(settings.device or "auto"))
    costs = Stopwatch(settings.on_part)
    with deterministic(settings.seed):

        def check(predicted: Mapping[str, ModelMeasurements]) -> None:
            require_own_predictions(predicted, list(given.trained_alone), given.saw(unlearned))
            given.facts(predicted, splits, given.saw(unlearned))

        measured = measure_models(given.models, data, settings.style, settings.quick, costs, check)
        facts = given.facts(measured, splits, given.saw(unlearned))
        not_used = given.why_no_control(measured, facts)
        compared = _compare(measured, data, tuple(unlearned), shadows or {}, not_used is None, costs)
        unlike = trained_unlike(given.references, against.original)
        with costs("gates"):
            judged = judge(compared, limits)
        audits = {}
        for method, results in judged.items():
            own_shadows = (shadows or {}).get(method)
            alone = compared.alone(method)
            models = {UNLEARNED: given.models[method], **given.others(unlearned)}
            stated = _ungated(models, data, alone, own_shadows, settings.quick, costs)
            stated["controls"] = _controls(alone, facts, not_used)
            obstacles = [_too_few(facts), _not_shown(facts), unlike]
            obstacles += _left_out(against.original is not None, settings.quick)
            lines = notes(stated)
            if not data.enough:
                lines.append(f"{len(splits.forget)} forget images are too few for a verdict.")
                results = [result.undecided(lines[-1]) for result in results]
            obstacles.append(head_only_escapes(results))
            calibration, may_be_scored = _calibration(splits, settings.held_out_seen)
            obstacles.append(f"{calibration[0].upper()}{calibration[1:]}." if may_be_scored else None)
            subject = {
                "request": splits.request.to_json(),
                "thresholds": limits,
                "seed": settings.seed,
                "quick": settings.quick,
                **given.digests_for(method),
                "references": [each.to_json() for name, each in facts.items() if is_reference(name)],
                "controls": stated["controls"]["models"],
                "images": data.to_json(),
                "calibration": calibration,
            }
            known = tuple(each for each in obstacles if each)
            audits[method] = Audit(tuple(results), subject, tuple(lines), stated, dict(costs.seconds), known)
    return audits


@dataclass(frozen=True, eq=False)
class _GivenModels:
    """All models of an audit by name, checked to be comparable and each a model of its own."""

    models: Mapping[str, Classifier]
    trained_alone: Mapping[str, Reference]
    digests: Mapping[str, str]

    @classmethod
    def of(cls, unlearned: Mapping[str, Classifier], against: Against, splits: Splits) -> _GivenModels:
        """Name them, check them, and make the edit of the head."""
        trained_alone = {reference_name(index): Reference.of(each) for index, each in enumerate(against.retrained)}
        if against.never_saw is not None:
            trained_alone[NEVER_SAW] = Reference.of(against.never_saw)
        models = {**unlearned, **({} if against.original is None else {ORIGINAL: against.original})}
        models |= {name: reference.model for name, reference in trained_alone.items()}
        require_comparable(models, splits)
        digests = require_own_models(models, list(trained_alone))
        if against.original is not None and splits.forgets_classes():
            edited = head_only_edit(against.original, splits.forgotten_classes())
            models |= {} if edited is None else {HEAD_ONLY: edited}
        return cls(models, trained_alone, digests)

    def others(self, unlearned: Mapping[str, Classifier]) -> dict[str, Classifier]:
        """All but the models under audit."""
        return {name: model for name, model in self.models.items() if name not in unlearned}

    def saw(self, unlearned: Mapping[str, Classifier]) -> list[str]:
        """Names of the models that saw the forget set: those under audit, and the original."""
        return [*unlearned, *([ORIGINAL] if ORIGINAL in self.models else [])]

    @property
    def references(self) -> dict[str, Reference]:
        """The retrained models, without the never-saw one."""
        return {name: each for name, each in self.trained_alone.items() if is_reference(name)}

    def facts(
        self, measured: Mapping[str, ModelMeasurements], splits: Splits, saw: Sequence[str]
    ) -> dict[str, ReferenceFacts]:
        """What shows that references and the never-saw model did not see the forget set."""
        original = measured.get(ORIGINAL)
        digests = {name: self.digests[name] for name in saw}
        return {
            name: reference_facts(each, name, measured[name], original, splits, self.digests[name], digests)
            for name, each in self.trained_alone.items()
        }

    def why_no_control(
        self, measured: Mapping[str, ModelMeasurements], facts: Mapping[str, ReferenceFacts]
    ) -> str | None:
        """Why the never-saw model is not used as a control; None where it is, or none was given."""
        if NEVER_SAW not in self.trained_alone:
            return None
        if reason := why_not_used(self.trained_alone[NEVER_SAW], facts[NEVER_SAW], self.references):
            return reason
        accuracies = [retained_accuracy(measured[name]) for name in self.references]
        if not learned_enough(retained_accuracy(measured[NEVER_SAW]), accuracies):
            return "it does not know the retained classes well enough"
        return None

    def digests_for(self, method: str) -> dict[str, Any]:
        """SHA-256 of the weights of the models of one audit."""
        return {
            "unlearned_sha256": self.digests[method],
            "original_sha256": self.digests.get(ORIGINAL),
            "retrained_sha256": [digest for name, digest in self.digests.items() if is_reference(name)],
        }


def _calibration(splits: Splits, held_out_seen: bool) -> tuple[str, bool]:
    """Whether images that calibrated the method are scored, in words; and whether they may be."""
    if not held_out_seen:
        return "the method saw no held-out image", False
    if splits.test is not None and bool(calibration_mask(splits.test).any()):
        return "images that calibrated the method may be among those that it is scored on", True
    return "the quarter of the held-out images on which methods are calibrated is not among them", False


def _too_few(facts: Mapping[str, ReferenceFacts]) -> str | None:
    """Why there are too few references for an audit to pass; None where there are enough."""
    count = sum(is_reference(name) for name in facts)
    if count >= FEWEST_REFERENCES:
        return None
    return (
        f"There are {count} retrained models; with fewer than {FEWEST_REFERENCES} there is no bound for what one more "
        "would show."
    )


def _not_shown(facts: Mapping[str, ReferenceFacts]) -> str | None:
    """Which references are not shown to be any; None where all are."""
    names = [name for name, each in facts.items() if each.not_shown and is_reference(name)]
    if not names:
        return None
    reason = facts[names[0]].not_shown[0]
    return f"Of {len(names)} models ({', '.join(names)}) it is not shown that they never saw the forget set: {reason}."


def _left_out(has_original: bool, quick: bool) -> list[str]:
    """What an audit cannot pass without."""
    sentences = []
    if not has_original:
        sentences.append("Without the original it is not known which gates have power.")
    if quick:
        sentences.append("A quick audit leaves out the strongest attacks.")
    return sentences


def _controls(compared: ComparedModels, facts: Mapping[str, ReferenceFacts], not_used: str | None) -> dict[str, Any]:
    """The controls, what they are, and why the never-saw model is not used where it is not."""
    models: dict[str, Any] = {}
    for name in (ORIGINAL, HEAD_ONLY, COLLAPSED):
        if name in compared.audited:
            models[name] = {"made_of": "given" if name == ORIGINAL else "the audit's own"}
    if compared.references:
        models[RETRAINED] = {"models": len(compared.references)}
    if NEVER_SAW in facts:
        models[NEVER_SAW] = {**facts[NEVER_SAW].to_json(), "used": not_used is None, "not_used": not_used}
    return {
        "needs_retrained": False,
        "says": "Models of which it is known what a gate has to say: original, head only and collapsed must fail, "
        "retrained and never saw must pass.",
        "models": models,
    }


def _ungated(
    models: Mapping[str, Classifier],
    data: AuditData,
    compared: ComparedModels,
    shadows: ShadowLogits | None,
    quick: bool,
    costs: Stopwatch,
) -> dict[str, Any]:
    """What is reported without a gate."""
    with costs("gates"):
        stated = ungated_measurements(compared)
    if not quick:
        retrained = [model for name, model in models.items() if is_reference(name)]
        with costs("cka"):
            stated["cka"] = cka_by_layer(models[UNLEARNED], models.get(ORIGINAL), retrained, data)
    if shadows is not None and compared.u_lira is not None:
        with costs("shadow attacks"):
            ids = data.splits.forget.ids
            stated["shadows"] = shadow_figures(shadows, compared.u_lira, compared.named, ids, data.seed)
    return stated


def _compare(
    measured: Mapping[str, ModelMeasurements],
    data: AuditData,
    methods: tuple[str, ...],
    shadows: Mapping[str, ShadowLogits],
    never_saw: bool,
    costs: Stopwatch,
) -> ComparedModels:
    """Everything that was measured on the models, side by side, with the controls that can be used."""
    u_lira: dict[str, RocSummary | str] = {}
    with costs("shadow attacks"):
        for method, logits in shadows.items():
            by_kind = u_lira_by_kind(logits, data.seed)
            u_lira |= {**by_kind, method: by_kind[UNLEARNED]}
    audited = {name: model for name, model in measured.items() if not is_reference(name)}
    references = [model for name, model in measured.items() if is_reference(name)]
    if not never_saw:
        audited.pop(NEVER_SAW, None)  # stated as not used
    compared = ComparedModels(data.splits, audited, references, data.seed, u_lira or None, methods)
    return compared.with_control(COLLAPSED, collapsed(compared.unlearned))
