"""The settings of a run of Alg. 1: `FAMR` as a user writes them, `ResolvedFAMR` as they run."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal, get_args

from famr.anchors import ANCHORS
from famr.engine.devices import Precision
from famr.errors import RequestError
from famr.losses.objective import Reduction
from famr.optim import OPTIMISERS
from famr.targets import TARGETS

Auto = Literal["auto"]
Effort = Literal["auto", "quick", "thorough"]

CHOICES: dict[str, Mapping[str, type]] = {"target": TARGETS, "anchor": ANCHORS, "optimiser": OPTIMISERS}
"""Fields of `FAMR` that name one of a mapping's entries, or "auto"."""


@dataclass(frozen=True)
class FAMR:
    """Forget-Aligned Model Reconstruction [FAMR, Alg. 1]. Every field may be left open: "auto" or None.

    Open fields are resolved by the request and the available data, see `famr.unlearn.resolve`. `FAMR.paper()` is the
    paper's algorithm with the paper's numbers.

    Attributes:
        effort: Where the target comes from. `quick`: the original's own predictions, in seconds; `thorough`: a proxy
            that never saw the forget set, from a sketch or trained now. auto: thorough where that takes minutes.
        target: What to predict on the forget set. See `famr.targets`. auto: by the effort and the request.
        temperature: τ of the masked and the tempered target. None: entropy-matched to held-out images.
        overshoot: κ of the reference target: how much further than the target to aim. A short run stops before it
            arrives. None: 0.2 for samples, else 0.
        demotion: γ: weight of a penalty that pushes forgotten classes down among the unlikely ones. Without it they are
            never predicted, but may stay second. None: 0.03 for whole classes with the masked or the proxy target.
        anchor: How distance to the original weights is measured. See `famr.anchors`.
        strength: λ of Eq. (1): larger keeps more and forgets less. The paper's experiments call it ρ. "auto": chosen
            within the budget.
        budget: Share of retained accuracy that may be lost while the strength is chosen; only a loss that is
            significantly larger counts.
        fisher_images: Retained images from which Fisher information is taken. More than the default changed nothing.
        function_strength: λ of a function-space anchor on retained images; 0 leaves it out. None: 5 for `natural`, 2
            for `adam` and `adamw`, 1 for `sgd`, 10 for a style; 0 without retained images.
        function_images: Retained images a class for the function-space anchor. None: 20 for `natural`, else as many as
            the steps can use.
        edited_share: Share of the layers that may change, from the head backwards. None: a quarter for `natural`, all
            for the other optimisers and for a style.
        edit_head: Whether the head may change too. None: not for `natural`.
        learning_rate: η of Alg. 1; for `natural` the share of the step that would bring the loss to zero if it were
            linear. None: ½ for `natural`, the paper's 1e-4 for the others, 2e-4 for samples.
        epochs: Passes over the forget set. None: about 48 steps, 150 with the proxy target; for other optimisers than
            `natural` at least eight passes and about 100 steps.
        batch_size: Images a step, at most. The paper names none; with the sum of Eq. (2) a larger batch takes larger
            steps.
        optimiser: How the weights move; `sgd` is the plain step of Alg. 1. See `famr.optim`.
        reduction: Σ over a batch as in Eq. (2), or its mean.
        alpha: α of Eq. (5): weight of the KL to the target.
        beta: β of Eq. (5): weight of the style loss. None: both losses weigh the same at the start.
        style_layer: Layer whose output is φ of Eq. (3), by its name in `module.named_modules()`.
        style_channels_last: Whether the style layer returns (batch, height, width, channels), as Swin's do.
        precision: Precision of the network; weights, gradients and losses stay in float32. None: bf16 on CUDA, else
            fp32.
    """

    effort: Effort = "auto"
    target: str | Auto = "auto"
    temperature: float | None = None
    overshoot: float | None = None
    demotion: float | None = None
    anchor: str | Auto = "auto"
    strength: float | Auto = "auto"
    budget: float = 0.01
    fisher_images: int = 1000
    function_strength: float | None = None
    function_images: int | None = None
    edited_share: float | None = None
    edit_head: bool | None = None
    learning_rate: float | None = None
    epochs: int | None = None
    batch_size: int = 128
    optimiser: str | Auto = "auto"
    reduction: Reduction = "mean"
    alpha: float = 1.0
    beta: float | None = 0.0
    style_layer: str | None = None
    style_channels_last: bool = False
    precision: Precision | None = None

    @classmethod
    def paper(cls) -> FAMR:
        """Alg. 1 to the letter: uniform target, ℓ₂ anchor, plain SGD on the batch sum, η = 1e-4, λ = 0.1, 10 epochs
        [FAMR, Sec. 4]."""
        return cls(
            effort="quick",
            target="uniform",
            overshoot=0.0,
            demotion=0.0,
            anchor="l2",
            strength=0.1,
            function_strength=0.0,
            edited_share=1.0,
            edit_head=True,
            learning_rate=1e-4,
            epochs=10,
            batch_size=64,
            optimiser="sgd",
            reduction="sum",
            precision="fp32",
        )

    def __post_init__(self) -> None:
        for name, known in CHOICES.items():
            value = getattr(self, name)
            self._require(value == "auto" or value in known, name, f"one of {', '.join(known)}, or auto")
        for name in ("temperature", "learning_rate"):
            self._require_number(name, "above 0", lambda value: value > 0)
        for name in ("overshoot", "demotion", "strength", "function_strength", "alpha", "beta"):
            self._require_number(name, "at least 0", lambda value: value >= 0)
        self._require_number("edited_share", "above 0, at most 1", lambda value: 0 < value <= 1)
        self._require_number("budget", "a share between 0 and 1", lambda value: 0 < value < 1)
        for name in ("epochs", "batch_size", "fisher_images", "function_images"):
            value = getattr(self, name)
            may_be_open = name in ("epochs", "function_images") and value is None
            self._require(may_be_open or (isinstance(value, int) and value >= 1), name, "a whole number, at least 1")
        self._require(self.effort in get_args(Effort), "effort", ", ".join(get_args(Effort)))
        self._require(self.reduction in get_args(Reduction), "reduction", "sum or mean")
        self._require(self.precision in (None, *get_args(Precision)), "precision", "fp32, bf16 or None")
        self._require(self.forgets_style or self.alpha != 0, "alpha", "above 0 where beta is 0: nothing is left")
        if self.forgets_style and self.style_layer is None:
            raise RequestError(
                "Style forgetting needs a layer to read the style from.",
                where="style_layer",
                fix="Name one of module.named_modules(), e.g. `blocks.5` of a timm ViT or `layer2` of a ResNet.",
            )

    def _require_number(self, name: str, must: str, holds: Callable[[float], bool]) -> None:
        value = getattr(self, name)
        if value is None or (name == "strength" and value == "auto"):
            return
        if isinstance(value, str):
            raise RequestError(f"`{name}` must be a number or auto, got {value!r}.", where=f"FAMR({name}=…)")
        self._require(holds(value), name, f"{must}, or auto" if name == "strength" else must)
        self._require(math.isfinite(value), name, "a finite number")

    def _require(self, holds: bool, name: str, must: str) -> None:
        if not holds:
            raise RequestError(f"`{name}` must be {must}, got {getattr(self, name)!r}.", where=f"FAMR({name}=…)")

    @property
    def forgets_style(self) -> bool:
        """Whether L_style is part of the loss."""
        return self.beta is None or self.beta > 0

    def to_json(self) -> dict[str, Any]:
        """As plain values; `FAMR.from_json` gives the method back."""
        return asdict(self)

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> FAMR:
        """The inverse of `to_json`.

        Args:
            values: Settings by name.

        Raises:
            RequestError: A name is unknown, or a value is of the wrong kind.
        """
        known = {field.name for field in fields(cls)}
        if unknown := sorted(set(values) - known):
            raise RequestError(f"FAMR has no setting {', '.join(unknown)}.", fix=f"Known: {', '.join(sorted(known))}.")
        try:
            return cls(**values)
        except TypeError as error:  # a list or text where a number belongs
            raise RequestError("A setting of FAMR is of the wrong kind.", where="FAMR", fix=f"{error}.") from error


@dataclass(frozen=True)
class ResolvedFAMR:
    """The settings with which a run is made: the fields of `FAMR`, and nothing is open.

    Three numbers are calibrated on the run's own data: the temperature where it is None and the target has one, β where
    `balance_beta`, and the strength of the anchors where `search`; until then the last two hold a starting value.

    Attributes:
        effort: Either `thorough`, where the target reads the predictions of a proxy, or `quick`.
        target: Name in `TARGETS`.
        temperature: τ; None for a target that has none, and before calibration.
        overshoot: κ.
        demotion: γ.
        anchor: Name in `ANCHORS`.
        strength: λ of the weight anchor.
        budget: See `FAMR`.
        fisher_images: See `FAMR`.
        function_strength: λ of the function-space anchor; 0 without one.
        function_images: Its retained images a class; 0 without one.
        edited_share: See `FAMR`.
        edit_head: See `FAMR`.
        learning_rate: η.
        epochs: Passes over the forget set.
        batch_size: Images a step, at most.
        optimiser: Name in `OPTIMISERS`.
        reduction: See `FAMR`.
        alpha: α.
        beta: β.
        style_layer: See `FAMR`; None where none was named.
        style_channels_last: See `FAMR`.
        precision: See `FAMR`.
        balance_beta: Whether β makes both losses weigh the same at the start.
        search: Whether the strength of the anchors is chosen within the budget.
    """

    effort: Effort
    target: str
    temperature: float | None
    overshoot: float
    demotion: float
    anchor: str
    strength: float
    budget: float
    fisher_images: int
    function_strength: float
    function_images: int
    edited_share: float
    edit_head: bool
    learning_rate: float
    epochs: int
    batch_size: int
    optimiser: str
    reduction: Reduction
    alpha: float
    beta: float
    style_layer: str | None
    style_channels_last: bool
    precision: Precision
    balance_beta: bool = False
    search: bool = False

    @property
    def forgets_style(self) -> bool:
        """Whether L_style is part of the loss."""
        return self.beta > 0 or self.balance_beta

    def step_size(self, images: int) -> int:
        """Images of each step of an epoch.

        With the mean, all steps have about as many, so that each image weighs the same; with the sum it does anyway.

        Args:
            images: Number of images in the set.
        """
        if self.reduction == "sum":
            return self.batch_size
        steps = -(-images // self.batch_size)
        return -(-images // steps)

    def images_in_step(self, images: int) -> int:
        """Images of each step, with the retained images of the function-space anchor.

        Args:
            images: Number of images in the forget set.
        """
        return self.step_size(images) * (2 if self.function_strength else 1)

    def to_json(self) -> dict[str, Any]:
        """As plain values, by the names of `FAMR`'s fields."""
        values = {field.name: getattr(self, field.name) for field in fields(FAMR)}
        return {**values, "function_images": self.function_images or None}

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> ResolvedFAMR:
        """The inverse of `to_json`, for the record of a finished run.

        Args:
            values: Settings by name, as run.json has them.

        Raises:
            RequestError: A name is unknown, or a value is missing or of the wrong kind.
        """
        method = FAMR.from_json({"effort": "quick", **values})  # the first edition knew no other
        known = {**method.to_json(), "function_images": method.function_images or 0}
        known["function_strength"], known["beta"] = method.function_strength or 0.0, method.beta or 0.0
        open_ = [name for name, value in known.items() if value == "auto" or (value is None and name not in OPTIONAL)]
        if open_:
            raise RequestError(f"The record of the run leaves {', '.join(open_)} open.", where="method")
        return cls(**known)


OPTIONAL = ("temperature", "style_layer")
"""Fields that do not apply to every run."""
