"""Targets: the distribution q that the model is to predict on the forget set, learned through one KL(q ‖ p).

A retrained model is not uniform on what it never saw. It misclassifies every image of a class it never saw, and is
about as confident there as on held-out images that it misclassifies; on single samples it is as confident as on other
held-out images. All targets but the uniform one therefore do not mark the forgotten images by their entropy.

To add a target: a file with a subclass of `Target`, and a line in `TARGETS`; the first line of its docstring is the
help text of `--target`.
"""

from __future__ import annotations

from famr.targets.base import HeldOutStatistics, ProxyPredictions, Target, TargetInputs
from famr.targets.masked import MaskedTarget
from famr.targets.probe import ProbeTarget
from famr.targets.proxy import ProxyTarget
from famr.targets.reference import ReferenceTarget
from famr.targets.tempered import TemperedTarget
from famr.targets.uniform import UniformTarget

__all__ = ["TARGETS", "HeldOutStatistics", "ProxyPredictions", "Target", "TargetInputs"]

TARGETS: dict[str, type[Target]] = {
    "uniform": UniformTarget,
    "masked": MaskedTarget,
    "reference": ReferenceTarget,
    "tempered": TemperedTarget,
    "probe": ProbeTarget,
    "proxy": ProxyTarget,
}
