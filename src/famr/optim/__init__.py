"""Update rules: that of Alg. 1, and others that take the same gradients.

To add an update rule: a file with a subclass of `UpdateRule`, and a line in `OPTIMISERS`; the first line of its
docstring is the help text of `--optimiser`.
"""

from __future__ import annotations

from famr.optim.adam import Adam, AdamW
from famr.optim.base import UpdateRule
from famr.optim.natural import Natural
from famr.optim.sgd import SGD

__all__ = ["OPTIMISERS", "UpdateRule"]

OPTIMISERS: dict[str, type[UpdateRule]] = {
    "natural": Natural,
    "sgd": SGD,
    "adam": Adam,
    "adamw": AdamW,
}
