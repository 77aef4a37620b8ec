"""Optional dependencies: imported where they are needed, with a clear error where they are missing."""

from __future__ import annotations

import importlib
from types import ModuleType

from famr.errors import RequestError


def require_extra(module: str, extra: str) -> ModuleType:
    """Import a module that only an extra of famr installs.

    Args:
        module: Name to import, such as `sqlalchemy`.
        extra: Extra of famr that installs it, such as `desk` of `pip install 'famr[desk]'`.

    Returns:
        The imported module.

    Raises:
        RequestError: The module is not installed.

    >>> require_extra("json", "desk").dumps([1])
    '[1]'
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise RequestError(
            f"This command needs {module}, which is not installed.", fix=f"pip install 'famr[{extra}]'"
        ) from error
