"""What the model is to predict on the forget set: a distribution q an image, all of them through one KL(q ‖ p).

A retrained model is not uniform on what it never saw. It misclassifies every image of a class it never saw, and is
about as confident there as on held-out images that it misclassifies; on single samples it is as confident as on other
held-out images. All targets but the uniform one therefore do not mark the forgotten images by their entropy.

A target is a function from `TargetInputs` to `Target`. To add one: a file with the function, and a line here; the first
line of its docstring is the help text of `--target`.
"""

from __future__ import annotations

from collections.abc import Callable

from famr.targets.base import HeldOutStatistics, ProbeFeatures, Target, TargetInputs
from famr.targets.masked import masked
from famr.targets.probe import probe
from famr.targets.reference import reference
from famr.targets.tempered import tempered
from famr.targets.uniform import uniform

__all__ = ["TARGETS", "HeldOutStatistics", "ProbeFeatures", "Target", "TargetInputs"]

TARGETS: dict[str, Callable[[TargetInputs], Target]] = {
    "uniform": uniform,
    "masked": masked,
    "reference": reference,
    "tempered": tempered,
    "probe": probe,
}
