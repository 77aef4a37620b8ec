"""The gates on answers: accuracies, membership, divergence, and whether the answers themselves tell."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from famr.audit.collateral import nearness
from famr.audit.intervals import gap_figure, mean_figure, mean_gap_figure
from famr.audit.panel import Panel
from famr.audit.rmia import rmia_scores, true_log_probability
from famr.audit.roc import Scored, roc
from famr.audit.telltale import NEIGHBOURS, tell_tale
from famr.audit.verdict import Check, Figure
from famr.audit.witness import FEWEST_IMAGES, Witness
from famr.data.loaders import order
from famr.data.splits import Splits
from famr.metrics.forgetting import correct
from famr.metrics.predictions import Predictions
from famr.metrics.retraining import js_divergence

TELL_TALE_IMAGES = 500
RMIA_REFERENCES = 4

Reading = Callable[[Witness], Tensor]
"""One value an image of a model."""


def hits(name: str) -> Reading:
    """1 where the model is right about an image of that set."""

    def read(witness: Witness) -> Tensor:
        said: Predictions = getattr(witness, name)
        return correct(said.logits, said.targets).double()

    return read


def likelier(witness: Witness) -> Tensor:
    """The share of the other classes that are likelier than the true one, of each forget image.

    A model that never answers a class may still have it second; one that never saw it has it among the last.
    """
    logits, targets = witness.forget.logits, witness.forget.targets
    above = (logits > logits.gather(-1, targets[:, None])).sum(dim=-1)
    return above.double() / (logits.shape[-1] - 1)


def non_members(witness: Witness) -> Tensor:
    """How often the attack calls each forget image a non-member."""
    return witness.non_members


MEASURES: dict[str, Reading] = {
    "forget": hits("forget"),
    "retain": hits("retain"),
    "test": hits("test"),
    "mia": non_members,
}
"""The four that Avg. Gap is the mean of."""


def measures(witness: Witness) -> dict[str, float]:
    """The four as means."""
    return {name: float(read(witness).mean()) for name, read in MEASURES.items()}


def mean_measures(witnesses: Sequence[Witness]) -> dict[str, float]:
    """The four, as means over several models."""
    found = [measures(witness) for witness in witnesses]
    return {name: sum(each[name] for each in found) / len(found) for name in MEASURES}


def answer_gates(panel: Panel, splits: Splits) -> list[Check]:
    """Every gate that takes no more than answers."""
    near = _near(panel, splits)

    def gap(name: str, says: str, read: Reading) -> Check:
        def of(witness: Witness, references: Sequence[Witness]) -> Figure:
            expected = torch.stack([read(reference) for reference in references]).mean(dim=0)
            return gap_figure(read(witness) - expected, panel.seed)

        return panel.against_retrained(name, says, of)

    def gaps(witness: Witness, references: Sequence[Witness]) -> Figure:
        apart = [
            read(witness) - torch.stack([read(reference) for reference in references]).mean(dim=0)
            for read in MEASURES.values()
        ]
        return mean_gap_figure(apart, panel.seed)

    def divergence(witness: Witness, references: Sequence[Witness]) -> Figure:
        apart = [js_divergence(witness.forget.logits, reference.forget.logits) for reference in references]
        return mean_figure(torch.stack(apart).mean(dim=0), panel.seed)

    def told(witness: Witness, references: Sequence[Witness]) -> Figure:
        some = order(len(witness.forget.targets), panel.seed)[:TELL_TALE_IMAGES]
        if len(some) < FEWEST_IMAGES:
            return Figure.not_available("too few forget images")
        theirs = [reference.forget.logits[some] for reference in references]
        found = tell_tale(witness.forget.logits[some], theirs, near, panel.seed)
        return Figure(found.auc, found.low, found.high)

    checks = [gap("forget_accuracy_gap", "|For-Acc − retrained| on the forget set.", hits("forget"))]
    if splits.forget_test is not None:
        says = "|For-Acc − retrained| on held-out images of what was forgotten."
        checks.append(gap("held_out_forget_accuracy_gap", says, hits("forget_test")))
    checks += [
        gap("retain_accuracy_gap", "|Ret-Acc − retrained| on held-out images that stay.", hits("test")),
        gap(
            "mia_efficacy_gap",
            "|MIA-efficacy − retrained|: the share of the forget set that an attack calls non-members.",
            non_members,
        ),
        panel.against_retrained(
            "average_gap", "Avg. Gap: the mean gap of forget, retain and test accuracy and MIA-efficacy.", gaps
        ),
        panel.against_retrained(
            "js_to_retrained", "Jensen–Shannon divergence to retrained on the forget set, in nats.", divergence
        ),
        panel.against_retrained(
            "tell_tale_auc",
            "AUC of telling the model from retrained ones by entropy, margin and neighbour mass on the forget set.",
            told,
        ),
        panel.against_retrained(
            "rmia_auc",
            "AUC of RMIA, with up to four retrained models as references: forget against held-out images.",
            lambda witness, references: rmia_figure(witness, references, panel.seed),
        ),
    ]
    if splits.forgets_classes():
        says = "|share of the other classes that are likelier than the forgotten one − retrained| on the forget set."
        checks.append(gap("forgotten_rank_gap", says, likelier))
        says = "For-Acc on the forget set."
        checks.append(panel.alone("forget_accuracy", says, lambda w: mean_figure(hits("forget")(w), panel.seed)))
    return checks


def rmia_figure(witness: Witness, references: Sequence[Witness], seed: int) -> Figure:
    """AUC of RMIA: forget images as members, one half of the held-out images as non-members, the other as population.

    The references saw neither, so p(x) is the offline estimate.
    """
    shuffled = order(len(witness.test.targets), seed)
    asked, population = shuffled[: len(shuffled) // 2], shuffled[len(shuffled) // 2 :]

    def log_p(one: Witness) -> tuple[Tensor, Tensor]:
        forget, test = (true_log_probability(said.logits, said.targets) for said in (one.forget, one.test))
        return torch.cat([forget, test[asked]]), test[population]

    ours, z = log_p(witness)
    theirs = [log_p(reference) for reference in references[:RMIA_REFERENCES]]
    scores = rmia_scores(ours, torch.stack([x for x, _ in theirs]), z, torch.stack([z for _, z in theirs]))
    found = roc(Scored.of_one_model(scores, torch.arange(len(ours)) < len(witness.forget.targets)), seed=seed).auc
    if found is None:
        return Figure.not_available("too few forget or held-out images")
    return Figure(found.value, found.low, found.high)


def _near(panel: Panel, splits: Splits) -> Tensor:
    """The classes nearest to what was forgotten, as the original, or else the unlearned model, answers."""
    said = panel.witnesses.get("original", panel.witnesses["unlearned"]).forget.logits
    forgotten = torch.tensor(splits.forgotten_classes(), dtype=torch.long)
    count = min(NEIGHBOURS, said.shape[-1] - len(forgotten))
    return nearness(said, forgotten).topk(count).indices
