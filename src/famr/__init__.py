"""famr makes a trained image classifier forget, and shows how well it did.

import famr

model = famr.load_model("runs/original")
data = famr.open_data("digits")
calibration, scored = famr.calibration_split(famr.split(data, famr.Request(classes=["3"])))
result = famr.forget(model, calibration, famr.FAMR.paper())
scores = famr.evaluate(result, scored)
proof = famr.certify(result, calibration)
result.save("runs/no-3")
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from famr._version import __version__

if TYPE_CHECKING:
    from famr.certificates.certify import certify
    from famr.config import FAMR
    from famr.data import open_data
    from famr.data.calibration import calibration_split
    from famr.data.request import Request
    from famr.data.splits import Splits, forget_only, split
    from famr.data.transforms import Preprocessing
    from famr.errors import FamrError
    from famr.evaluation.evaluate import compare, evaluate
    from famr.models import Classifier, load_model, new_model
    from famr.proxies.recipe import ProxyRecipe
    from famr.training import Training, fit
    from famr.unlearn.forget import forget
    from famr.unlearn.history import Monitor
    from famr.unlearn.result import Unlearned
    from famr.unlearn.sketch import Sketch, take_sketch

_HOME = {
    "FAMR": "config",
    "Classifier": "models",
    "FamrError": "errors",
    "Preprocessing": "data.transforms",
    "ProxyRecipe": "proxies.recipe",
    "Request": "data.request",
    "Sketch": "unlearn.sketch",
    "Splits": "data.splits",
    "Training": "training",
    "Monitor": "unlearn.history",
    "Unlearned": "unlearn.result",
    "calibration_split": "data.calibration",
    "certify": "certificates.certify",
    "compare": "evaluation.evaluate",
    "evaluate": "evaluation.evaluate",
    "fit": "training",
    "forget": "unlearn.forget",
    "forget_only": "data.splits",
    "load_model": "models",
    "new_model": "models",
    "open_data": "data",
    "split": "data.splits",
    "take_sketch": "unlearn.sketch",
}

__all__ = [
    "FAMR",
    "Classifier",
    "FamrError",
    "Monitor",
    "Preprocessing",
    "ProxyRecipe",
    "Request",
    "Sketch",
    "Splits",
    "Training",
    "Unlearned",
    "__version__",
    "calibration_split",
    "certify",
    "compare",
    "evaluate",
    "fit",
    "forget",
    "forget_only",
    "load_model",
    "new_model",
    "open_data",
    "split",
    "take_sketch",
]


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used, so that `import famr` does not wait for torch."""
    if name not in _HOME:
        raise AttributeError(f"module 'famr' has no attribute {name!r}")
    return getattr(import_module(f"famr.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
