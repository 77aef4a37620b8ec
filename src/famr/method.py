"""FAMR: the numbers of a run of Alg. 1, checked when they are given."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal, get_args

from famr.devices import Precision
from famr.errors import RequestError
from famr.objective import Reduction
from famr.targets import Target

Optimiser = Literal["sgd", "adam", "adamw"]
Metric = Literal["l2", "fisher", "kfac"]


@dataclass(frozen=True)
class FAMR:
    """Forget-Aligned Model Reconstruction [FAMR, Alg. 1]; the defaults are the paper's own numbers.

    >>> FAMR() == FAMR.paper()
    True
    """

    target: Target = "uniform"
    """What to answer on the forget set: `uniform` (the paper), `masked`, `reference` or `tempered`; see `targets`."""
    temperature: float | None = None
    """τ of the masked and the tempered target. None: so that it is as unsure as the original on held-out images."""
    anchor: Metric = "l2"
    """How distance to the original weights is measured: `l2` (the paper), or by the Fisher information of retained
    images, its diagonal (`fisher`) or layer by layer (`kfac`)."""
    strength: float = 0.1
    """λ of Eq. (1) (the experiments call it ρ): how firmly the anchor holds. Larger keeps more, forgets less."""
    fisher_images: int = 1000
    """Retained images from which the Fisher information is taken."""
    function_strength: float = 0.0
    """λ of a further anchor that holds the answers on a few retained images; 0 leaves it out."""
    function_images: int = 20
    """Retained images a class for that anchor."""
    learning_rate: float = 1e-4
    """η of Alg. 1."""
    epochs: int = 10
    """Passes over the forget set."""
    batch_size: int = 64
    """Images a step. The paper names none; with the sum of Eq. (2) a larger batch takes larger steps."""
    optimiser: Optimiser = "sgd"
    """`sgd` is the plain step of Alg. 1; `adam` takes the same gradient; `adamw` decouples the anchor from it."""
    reduction: Reduction = "sum"
    """Σ over a batch as in Eq. (2), or its mean."""
    alpha: float = 1.0
    """α of Eq. (5): weight of the uniform KL."""
    beta: float | None = 0.0
    """β of Eq. (5): weight of the style loss. None picks β so that both losses weigh the same at the start."""
    style_layer: str | None = None
    """The layer whose output is φ of Eq. (3), by its name in `module.named_modules()`."""
    style_channels_last: bool = False
    """For a layer that returns (batch, height, width, channels), as Swin's do."""
    precision: Precision = "fp32"
    """`bf16` runs the network under autocast; weights and losses stay in float32."""

    @classmethod
    def paper(cls) -> FAMR:
        """Alg. 1 to the letter: plain SGD, batch sum, η = 1e-4, λ = 0.1, 10 epochs [FAMR, Sec. 4]."""
        return cls(
            strength=0.1,
            learning_rate=1e-4,
            epochs=10,
            batch_size=64,
            optimiser="sgd",
            reduction="sum",
            alpha=1.0,
        )

    def __post_init__(self) -> None:
        self._require(self.target in get_args(Target), "target", "uniform, masked, reference or tempered")
        self._require(self.temperature is None or self.temperature > 0, "temperature", "above 0, or None")
        self._require(self.anchor in get_args(Metric), "anchor", "l2, fisher or kfac")
        self._require(self.strength >= 0, "strength", "at least 0")
        self._require(self.function_strength >= 0, "function_strength", "at least 0")
        self._require(self.learning_rate > 0, "learning_rate", "above 0")
        for name in ("epochs", "batch_size", "fisher_images", "function_images"):
            value = getattr(self, name)
            self._require(isinstance(value, int) and value >= 1, name, "a whole number, at least 1")
        self._require(self.alpha >= 0, "alpha", "at least 0")
        self._require(self.beta is None or self.beta >= 0, "beta", "at least 0, or None")
        self._require(self.optimiser in get_args(Optimiser), "optimiser", "sgd, adam or adamw")
        self._require(self.reduction in get_args(Reduction), "reduction", "sum or mean")
        self._require(self.precision in get_args(Precision), "precision", "fp32 or bf16")
        self._require(self.forgets_style or self.alpha > 0, "alpha", "above 0 where beta is 0: nothing is left")
        for name in ("temperature", "strength", "function_strength", "learning_rate", "alpha", "beta"):
            value = getattr(self, name)
            self._require(value is None or math.isfinite(value), name, "a finite number")
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
        return cls(**values)
