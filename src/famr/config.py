"""FAMR: the numbers of a run of Alg. 1, checked when they are given."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal, get_args

from famr.engine.devices import Precision
from famr.errors import RequestError
from famr.losses.objective import Reduction
from famr.targets.distributions import Target

Optimiser = Literal["natural", "sgd", "adam", "adamw"]
Metric = Literal["l2", "fisher", "kfac"]
Auto = Literal["auto"]


@dataclass(frozen=True)
class FAMR:
    """Forget-Aligned Model Reconstruction [FAMR, Alg. 1]; the defaults are the best we know, `paper()` is the paper.

    What is "auto" or None is settled by the request and the data at hand, see `defaults`.
    """

    target: Target | Auto = "auto"
    """What to answer on the forget set: `uniform` (the paper), `masked`, `reference`, `tempered` or `probe`; see
    `targets`."""
    temperature: float | None = None
    """τ of the masked and the tempered target. None: as unsure as the original is on held-out images."""
    overshoot: float | None = None
    """κ of the reference target: how much further than the target to aim, as a run stops before it is there."""
    demotion: float | None = None
    """γ: how firmly the masked target also pushes the forgotten classes down among the unlikely ones, see `objective`;
    without it they are never answered, but may stay among the next best. None: 0.03 for a masked target."""
    anchor: Metric | Auto = "auto"
    """How distance to the original weights is measured: `l2` (the paper), or by the Fisher information of retained
    images, its diagonal (`fisher`) or layer by layer (`kfac`)."""
    strength: float | Auto = "auto"
    """λ of Eq. (1) (the experiments call it ρ): how firmly the anchor holds. Larger keeps more, forgets less."""
    budget: float = 0.01
    """The share of retained answers that may be lost while `strength` is chosen."""
    fisher_images: int = 1000
    """Retained images from which the Fisher information is taken."""
    function_strength: float | None = None
    """λ of a further anchor that holds the answers on a few retained images; 0 leaves it out."""
    function_images: int | None = None
    """Retained images a class for that anchor. None: 20 for `natural`, else as many as there are steps to see them."""
    edited_share: float | None = None
    """The share of the layers that may change, counted from the answer backwards. None: a quarter for `natural`, all
    for the others and for a style."""
    edit_head: bool | None = None
    """Whether the layer that gives the answer may change too. None: not for `natural`."""
    learning_rate: float | None = None
    """η of Alg. 1; for `natural` the share of the step that would bring the loss to zero if it were linear. None: ½ for
    `natural`, the paper's 1e-4 for the others."""
    epochs: int | None = None
    """Passes over the forget set. None: as many as make about 48 steps; for the others than `natural` at least eight,
    and about 100 steps."""
    batch_size: int = 128
    """Images a step, at most. The paper names none; with the sum of Eq. (2) a larger batch takes larger steps."""
    optimiser: Optimiser | Auto = "auto"
    """`sgd` is the plain step of Alg. 1; `adam` takes the same gradient; `adamw` decouples the anchor from it;
    `natural` steps in the metric of the anchor, see `natural`. η falls along a cosine except for `sgd`."""
    reduction: Reduction = "mean"
    """Σ over a batch as in Eq. (2), or its mean."""
    alpha: float = 1.0
    """α of Eq. (5): weight of the KL to the target."""
    beta: float | None = 0.0
    """β of Eq. (5): weight of the style loss. None picks β so that both losses weigh the same at the start."""
    style_layer: str | None = None
    """The layer whose output is φ of Eq. (3), by its name in `module.named_modules()`."""
    style_channels_last: bool = False
    """For a layer that returns (batch, height, width, channels), as Swin's do."""
    precision: Precision | None = None
    """`bf16` runs the network in bf16; weights, gradients and losses stay in float32. None: bf16 on CUDA, else fp32."""

    @classmethod
    def paper(cls) -> FAMR:
        """Alg. 1 to the letter: uniform target, every weight held alike, plain SGD on the batch sum, η = 1e-4, λ = 0.1,
        10 epochs [FAMR, Sec. 4]."""
        return cls(
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
        self._require(
            self.target in (*get_args(Target), "auto"), "target", "uniform, masked, reference, tempered or probe"
        )
        self._require(self.temperature is None or self.temperature > 0, "temperature", "above 0, or None")
        self._require(self.overshoot is None or self.overshoot >= 0, "overshoot", "at least 0, or None")
        self._require(self.demotion is None or self.demotion >= 0, "demotion", "at least 0, or None")
        self._require(self.anchor in (*get_args(Metric), "auto"), "anchor", "l2, fisher or kfac")
        self._require(self.strength == "auto" or self._number("strength") >= 0, "strength", "at least 0, or auto")
        self._require(0 < self.budget < 1, "budget", "a share between 0 and 1")
        share = self.edited_share
        self._require(share is None or 0 < share <= 1, "edited_share", "above 0, at most 1")
        free = self.function_strength is None or self.function_strength >= 0
        self._require(free, "function_strength", "at least 0, or None")
        self._require(self.learning_rate is None or self.learning_rate > 0, "learning_rate", "above 0")
        for name in ("epochs", "batch_size", "fisher_images", "function_images"):
            value = getattr(self, name)
            open_ = name in ("epochs", "function_images") and value is None
            self._require(open_ or (isinstance(value, int) and value >= 1), name, "a whole number, at least 1")
        self._require(self.alpha >= 0, "alpha", "at least 0")
        self._require(self.beta is None or self.beta >= 0, "beta", "at least 0, or None")
        known = (*get_args(Optimiser), "auto")
        self._require(self.optimiser in known, "optimiser", "natural, sgd, adam, adamw or auto")
        self._require(self.reduction in get_args(Reduction), "reduction", "sum or mean")
        self._require(self.precision in (None, *get_args(Precision)), "precision", "fp32, bf16 or None")
        self._require(self.forgets_style or self.alpha != 0, "alpha", "above 0 where beta is 0: nothing is left")
        numbers = (
            "temperature",
            "overshoot",
            "demotion",
            "strength",
            "function_strength",
            "learning_rate",
            "alpha",
            "beta",
        )
        for name in numbers:
            value = getattr(self, name)
            self._require(value in (None, "auto") or math.isfinite(value), name, "a finite number")
        if self.forgets_style and self.style_layer is None:
            raise RequestError(
                "Style forgetting needs a layer to read the style from.",
                where="style_layer",
                fix="Name one of module.named_modules(), e.g. `blocks.5` of a timm ViT or `layer2` of a ResNet.",
            )

    @property
    def forgets_style(self) -> bool:
        """Whether the Gram-matrix loss takes part."""
        return self.beta is None or self.beta > 0

    def _number(self, name: str) -> float:
        value = getattr(self, name)
        if isinstance(value, str):
            raise RequestError(f"`{name}` must be a number or auto, got {value!r}.", where=f"FAMR({name}=…)")
        return float(value)

    @property
    def settled_epochs(self) -> int:
        """Passes over the forget set, once they have been chosen."""
        assert self.epochs is not None
        return self.epochs

    @property
    def settled_rate(self) -> float:
        """η, once it has been chosen."""
        assert self.learning_rate is not None
        return self.learning_rate

    @property
    def settled_share(self) -> float:
        """The share of the layers that may change, once it has been chosen."""
        assert self.edited_share is not None
        return self.edited_share

    @property
    def settled_precision(self) -> Precision:
        """The precision of the network, once it has been chosen."""
        assert self.precision is not None
        return self.precision

    @property
    def settled_strength(self) -> float:
        """λ as a number, once it has been chosen."""
        return self._number("strength")

    @property
    def images_along(self) -> int:
        """Images that a step takes for each forget image: itself, and one whose answer is held, if any are."""
        return 2 if self.function_strength else 1

    @property
    def image_passes(self) -> int:
        """The same of all steps."""
        return self.settled_epochs * self.images_along

    def images_a_step(self, images: int) -> int:
        """So many that all steps of an epoch have about as many: with a mean, each image then weighs the same.

        With a sum it does so anyway.

        >>> FAMR().images_a_step(500), FAMR.paper().images_a_step(500)
        (125, 64)
        """
        steps = -(-images // self.batch_size)
        return self.batch_size if self.reduction == "sum" else -(-images // steps)

    def images_in_a_step(self, images: int) -> int:
        """The same, with those that come along."""
        return self.images_along * self.images_a_step(images)

    def _require(self, holds: bool, name: str, must: str) -> None:
        if not holds:
            raise RequestError(f"`{name}` must be {must}, got {getattr(self, name)!r}.", where=f"FAMR({name}=…)")

    def to_json(self) -> dict[str, Any]:
        """As plain values; `FAMR(**values)` gives the method back."""
        return asdict(self)

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> FAMR:
        """The inverse of `to_json`; a name it does not know is an error."""
        known = {field.name for field in fields(cls)}
        if unknown := sorted(set(values) - known):
            raise RequestError(f"FAMR has no setting {', '.join(unknown)}.", fix=f"Known: {', '.join(sorted(known))}.")
        try:
            return cls(**values)
        except TypeError as error:  # a list or text where a number belongs
            raise RequestError("A setting of FAMR is of the wrong kind.", where="FAMR", fix=f"{error}.") from error
