"""Put a run's model and card on the Hugging Face Hub: by explicit choice only, and privately unless told otherwise."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol

from famr.errors import RequestError, StorageError
from famr.storage.digests import check_complete

UPLOADED = ("README.md", "config.json", "model.safetensors", "preprocessor_config.json")
"""The model and its card. The records of the request stay at home: they name the samples of a person."""


class Hub(Protocol):
    """What of `huggingface_hub.HfApi` is used."""

    def create_repo(self, repo_id: str, *, private: bool, exist_ok: bool) -> Any:
        """Make a repository, or find it."""

    def model_info(self, repo_id: str) -> Any:
        """Tell, among other things, whether it is private."""

    def upload_folder(self, *, repo_id: str, folder_path: str, allow_patterns: list[str], commit_message: str) -> Any:
        """Send files."""


def the_hub() -> Hub:
    """The real one; it reads the user's own token."""
    from huggingface_hub import HfApi

    hub: Hub = HfApi()
    return hub


def push_run(run: Path, name: str, hub: Hub, *, private: bool = True) -> str:
    """Upload; a repository that everybody can see is refused unless that was asked for. Returns its name."""
    owner, slash, model = name.partition("/")
    if not (owner and slash and model) or "/" in model:
        raise RequestError(f"A repository is called OWNER/NAME, got {name!r}.", fix="--push-to-hub ann/no-apple")
    if not (run / "unlearning/run.json").is_file():
        raise RequestError("This is not the folder of an unlearning run.", where=str(run), fix="Name another.")
    check_complete(run)
    try:
        hub.create_repo(name, private=private, exist_ok=True)
        if private and not hub.model_info(name).private:
            raise RequestError(
                "The repository exists and everybody can see it.", where=name, fix="Name another, or say --public."
            )
        hub.upload_folder(
            repo_id=name,
            folder_path=str(run),
            allow_patterns=list(UPLOADED),
            commit_message="An unlearned model, by famr",
        )
    except OSError as error:  # what the hub's own errors are, too
        raise StorageError(
            f"The Hub did not take it ({type(error).__name__}).", where=name, fix="Check the network and your token."
        ) from error
    return name
