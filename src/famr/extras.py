"""Optional packages: imported where they are needed, with an error that names the extra to install."""

from __future__ import annotations

import importlib
from types import ModuleType

from famr.errors import RequestError


def require_extra(module: str, extra: str) -> ModuleType:
    """Import a module that only an extra of famr installs.

    Call it inside the function that needs the module, before its other imports from that package.

    >>> require_extra("json", "report").loads("1")
    1

    Args:
        module: Name to import, such as ``"jinja2"`` or ``"matplotlib.figure"``.
        extra: The extra that installs it, such as ``"report"``.

    Raises:
        RequestError: The module is missing or cannot be imported.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        package = module.partition(".")[0]
        raise RequestError(
            f"The package {package} is needed here and cannot be imported: {error}.",
            fix=f"pip install 'famr[{extra}]'",
        ) from error
