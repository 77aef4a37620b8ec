"""The tree of errors. Each leaf has an exit code, which is that of the command line.

    FamrError             1   an error that a user can act on; the leaves below say of which kind
    ├── RequestError      2   the request or the call cannot be carried out
    ├── DataError         3   images, labels or columns are missing, unreadable or contradict the checkpoint
    ├── CheckpointError   4   weights are missing, unreadable or do not fit the architecture
    ├── NumericsError     5   the computation failed: NaN or infinity, no memory, a lost process
    ├── StorageError      6   the output could not be written
    └── GateError         7   a required gate was not met: too little forgotten, or too much accuracy lost

Every error says what is wrong (`what`), where (`where`), and what to do about it (`fix`). A command that succeeds exits
with 0, one that the user stops with 130.
"""

from __future__ import annotations


class FamrError(Exception):
    """An error that a user can act on; root of the tree.

    Args:
        what: One sentence: what must hold, and what was found instead.
        where: The file, row, layer or option that the error is about; None where `what` names it.
        fix: What the user can do; None where there is nothing to do.

    Attributes:
        exit_code: Exit code of a command that ends with this error.

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
    """The request or the call cannot be carried out."""

    exit_code = 2


class DataError(FamrError):
    """Images, labels or columns are missing, unreadable or contradict the checkpoint."""

    exit_code = 3


class CheckpointError(FamrError):
    """Weights are missing, unreadable or do not fit the architecture."""

    exit_code = 4


class NumericsError(FamrError):
    """The computation failed: NaN or infinity, no memory, a lost process of the run."""

    exit_code = 5


class StorageError(FamrError):
    """The output could not be written."""

    exit_code = 6


class GateError(FamrError):
    """A required gate was not met: too little was forgotten, or too much accuracy was lost."""

    exit_code = 7


OUT_OF_MEMORY = ("out of memory", "can't allocate memory", "not enough memory", "std::bad_alloc")


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error of any library means that the machine or a device ran out of memory.

    Args:
        error: What was raised.

    >>> is_out_of_memory(RuntimeError("CUDA out of memory. Tried to allocate 2 GiB."))
    True
    """
    return isinstance(error, MemoryError) or any(words in str(error) for words in OUT_OF_MEMORY)
