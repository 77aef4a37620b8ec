"""Are torch and torchvision of the same build? If not, importing torchvision fails with words that help nobody."""

from __future__ import annotations

from importlib import metadata

from famr.errors import CheckpointError


def require_matching_builds() -> None:
    """Refuse to go on where torchvision was built for another torch than the one that is installed."""
    from packaging.requirements import Requirement

    torch, torchvision = metadata.version("torch"), metadata.version("torchvision")
    for line in metadata.requires("torchvision") or ():
        wanted = Requirement(line)
        if wanted.name == "torch" and not wanted.specifier.contains(torch, prereleases=True):
            raise _mismatch(torch, torchvision, f"torchvision {torchvision} wants torch {wanted.specifier}")
    ours, theirs = (version.partition("+")[2] for version in (torch, torchvision))
    if ours and theirs and ours != theirs:
        raise _mismatch(torch, torchvision, f"one is built for {ours}, the other for {theirs}")


def _mismatch(torch: str, torchvision: str, why: str) -> CheckpointError:
    return CheckpointError(
        f"The torch and torchvision builds do not match: {why}.",
        where=f"torch {torch}, torchvision {torchvision}",
        fix="Install both from the same place in one step: pip install --force-reinstall torch torchvision",
    )
