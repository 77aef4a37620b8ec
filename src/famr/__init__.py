"""famr makes a trained image classifier forget, and shows how well it did.

import famr

model = famr.load_model("runs/original")
data = famr.open_data("digits")
splits = famr.split(data, famr.Request(classes=["3"]))
result = famr.forget(model, splits, famr.FAMR.paper())
scores = famr.evaluate(result, splits)
proof = famr.certify(result, splits)
result.save("runs/no-3")
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from famr._version import __version__

if TYPE_CHECKING:
    from famr.certificates.certify import certify
    from famr.data import open_data
    from famr.errors import FamrError
    from famr.evaluation import compare, evaluate
    from famr.method import FAMR
    from famr.models import Classifier, load_model, new_model
    from famr.preprocessing import Preprocessing
    from famr.request import Request
    from famr.sketch import Sketch, take_sketch
    from famr.splits import Splits, forget_only, split
    from famr.train import Training, fit
    from famr.unlearning import Unlearned, forget

_HOME = {
    "FAMR": "method",
    "Classifier": "models",
    "FamrError": "errors",
    "Preprocessing": "preprocessing",
    "Request": "request",
    "Sketch": "sketch",
    "Splits": "splits",
    "Training": "train",
    "Unlearned": "unlearning",
    "certify": "certificates.certify",
    "compare": "evaluation",
    "evaluate": "evaluation",
    "fit": "train",
    "forget": "unlearning",
    "forget_only": "splits",
    "load_model": "models",
    "new_model": "models",
    "open_data": "data",
    "split": "splits",
    "take_sketch": "sketch",
}

__all__ = [
    "FAMR",
    "Classifier",
    "FamrError",
    "Preprocessing",
    "Request",
    "Sketch",
    "Splits",
    "Training",
    "Unlearned",
    "__version__",
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
