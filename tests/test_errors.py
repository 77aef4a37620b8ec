"""The tree of errors."""

from __future__ import annotations

import re

from famr import errors
from famr.errors import FamrError


def test_the_docstring_draws_every_error_with_its_exit_code() -> None:
    classes = [value for value in vars(errors).values() if isinstance(value, type) and issubclass(value, FamrError)]
    drawn = dict(re.findall(r"^ +(?:[├└]── )?(\w+Error) +(\d)", str(errors.__doc__), re.MULTILINE))
    assert drawn == {error.__name__: str(error.exit_code) for error in classes}


def test_every_error_is_a_leaf_of_one_root_with_its_own_exit_code() -> None:
    leaves = FamrError.__subclasses__()
    ours = [leaf for leaf in leaves if leaf.__module__ == errors.__name__]
    assert len({leaf.exit_code for leaf in (FamrError, *ours)}) == len(ours) + 1
