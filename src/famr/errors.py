"""What can go wrong, drawn as one tree; each leaf is an exit code of the command line.

    FamrError
    ├── RequestError      2   the request or the call itself cannot be carried out
    ├── DataError         3   images, labels or columns are missing, unreadable or contradict the checkpoint
    ├── CheckpointError   4   weights are missing, unreadable or do not fit the architecture
    ├── NumericsError     5   the computation failed: numbers that are not finite, no memory, a process that is gone
    ├── StorageError      6   the output could not be written
    └── GateError         7   the outcome is not what was asked for: nothing forgotten, or too much lost

Every error says what is wrong, where, and what to do about it.
"""

from __future__ import annotations


class FamrError(Exception):
    """The root: an error that a user can act on.

    >>> print(DataError("The image cannot be read.", where="cats/3.png", fix="Replace or remove the file."))
    The image cannot be read.
      where: cats/3.png
      to do: Replace or remove the file.
    """

    exit_code = 1

    def __init__(self, what: str, *, where: str | None = None, fix: str | None = None) -> None:
        super().__init__(what)
        self.what = what
        self.where = where
        self.fix = fix

    def __str__(self) -> str:
        lines = [self.what]
        if self.where:
            lines.append(f"  where: {self.where}")
        if self.fix:
            lines.append(f"  to do: {self.fix}")
        return "\n".join(lines)


class RequestError(FamrError):
    """The request or the call itself cannot be carried out."""

    exit_code = 2


class DataError(FamrError):
    """Images, labels or columns are missing, unreadable or contradict the checkpoint."""

    exit_code = 3


class CheckpointError(FamrError):
    """Weights are missing, unreadable or do not fit the architecture."""

    exit_code = 4


class NumericsError(FamrError):
    """The computation failed: numbers that are not finite, no memory, another process of the run that is gone."""

    exit_code = 5


class StorageError(FamrError):
    """The output could not be written."""

    exit_code = 6


class GateError(FamrError):
    """The outcome is not what was asked for: nothing was forgotten, or too much was lost."""

    exit_code = 7


OUT_OF_MEMORY = ("out of memory", "can't allocate memory", "not enough memory", "std::bad_alloc")


def is_out_of_memory(error: BaseException) -> bool:
    """Whether memory ran out, of the machine or of a device, in whosever words.

    >>> is_out_of_memory(RuntimeError("CUDA out of memory. Tried to allocate 2 GiB."))
    True
    """
    return isinstance(error, MemoryError) or any(words in str(error) for words in OUT_OF_MEMORY)
