"""Are torch and torchvision of the same build? If not, importing torchvision fails with an obscure error."""

from __future__ import annotations

from importlib import metadata

from famr.errors import CheckpointError


def require_matching_builds() -> None:
    """Refuse a torchvision that was built for another torch than the one that is installed.

    Raises:
        CheckpointError: Their versions or build tags (such as `+cpu`) do not match.
    """
    from packaging.requirements import Requirement

    torch, torchvision = metadata.version("torch"), metadata.version("torchvision")
    for line in metadata.requires("torchvision") or ():
        required = Requirement(line)
        if required.name == "torch" and not required.specifier.contains(torch, prereleases=True):
            raise _mismatch(torch, torchvision, f"torchvision {torchvision} requires torch {required.specifier}")
    torch_build, torchvision_build = (version.partition("+")[2] for version in (torch, torchvision))
    if torch_build and torchvision_build and torch_build != torchvision_build:
        raise _mismatch(torch, torchvision, f"one is built for {torch_build}, the other for {torchvision_build}")


def _mismatch(torch: str, torchvision: str, reason: str) -> CheckpointError:
    return CheckpointError(
        f"The torch and torchvision builds do not match: {reason}.",
        where=f"torch {torch}, torchvision {torchvision}",
        fix="Install both from the same index in one step: pip install --force-reinstall torch torchvision",
    )
