"""Names of the models in an audit: the one under audit, the one before, the references, and three controls."""

from __future__ import annotations

UNLEARNED, ORIGINAL, RETRAINED = "unlearned", "original", "retrained"
NEVER_SAW, HEAD_ONLY, COLLAPSED = "never saw", "head only", "collapsed"


def reference_name(index: int) -> str:
    """The name of a retrained model.

    Args:
        index: From 0.

    >>> reference_name(0), is_reference(reference_name(3)), is_reference(ORIGINAL)
    ('retrained 0', True, False)
    """
    return f"{RETRAINED} {index}"


def is_reference(name: str) -> bool:
    """Whether a model of an audit is a reference: "retrained 0", "retrained 1", …

    Args:
        name: Of the model.
    """
    return name.startswith(f"{RETRAINED} ")
