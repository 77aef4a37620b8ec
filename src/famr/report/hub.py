"""Upload a run's model and card to the Hugging Face Hub: only on request, and privately by default."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol

from famr.errors import RequestError, StorageError
from famr.storage.digests import check_complete

UPLOADED = ("README.md", "config.json", "model.safetensors", "preprocessor_config.json")
"""The model and its card. The records of the request are not uploaded: they may name a person's samples."""


class HubClient(Protocol):
    """The part of `huggingface_hub.HfApi` that is used."""

    def create_repo(self, repo_id: str, *, private: bool, exist_ok: bool) -> Any:
        """See `HfApi.create_repo`."""

    def model_info(self, repo_id: str) -> Any:
        """See `HfApi.model_info`; only its ``private`` is read."""

    def upload_folder(self, *, repo_id: str, folder_path: str, allow_patterns: list[str], commit_message: str) -> Any:
        """See `HfApi.upload_folder`."""


def default_client() -> HubClient:
    """The real client; it reads the user's own token."""
    from huggingface_hub import HfApi

    client: HubClient = HfApi()
    return client


def push_run(run: Path, name: str, client: HubClient, *, private: bool = True) -> str:
    """Upload the files of `UPLOADED`.

    Args:
        run: A finished run folder.
        name: ``OWNER/NAME`` of the repository; it is created where it does not exist.
        client: The Hub.
        private: Refuse a repository that is public.

    Returns:
        The name of the repository.

    Raises:
        CheckpointError: A file changed since the run was finished.
        RequestError: The name or the folder is wrong, or the repository is public.
        StorageError: The Hub cannot be reached or refused the upload.
    """
    owner, slash, model = name.partition("/")
    if not (owner and slash and model) or "/" in model:
        raise RequestError(f"A repository is called OWNER/NAME, got {name!r}.", fix="--push-to-hub ann/no-apple")
    if not (run / "unlearning/run.json").is_file():
        raise RequestError(
            "This is not the folder of an unlearning run.", where=str(run), fix="Give the folder of one."
        )
    check_complete(run)
    try:
        client.create_repo(name, private=private, exist_ok=True)
        if private and not client.model_info(name).private:
            raise RequestError(
                "The repository exists and is public.", where=name, fix="Give another name, or add --public."
            )
        client.upload_folder(
            repo_id=name,
            folder_path=str(run),
            allow_patterns=list(UPLOADED),
            commit_message="An unlearned model, by famr",
        )
    except OSError as error:  # the base of the Hub's own errors
        raise StorageError(
            f"The upload to the Hub failed ({type(error).__name__}).",
            where=name,
            fix="Check the network and your token.",
        ) from error
    return name
