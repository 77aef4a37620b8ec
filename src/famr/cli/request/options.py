"""Flags that several commands of `famr request` share."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from famr.cli.options import Device, Paper, Quiet, Seed
from famr.config import FAMR
from famr.desk.running import RunOptions
from famr.errors import RequestError

Workspace = Annotated[
    Path, typer.Option("--workspace", "-w", help="The folder with the records and runs of the requests.")
]
RequestId = Annotated[str, typer.Argument(help="A request, such as R-0001.")]
AsCsv = Annotated[bool, typer.Option("--csv", help="Print a table for a spreadsheet.")]
DEFAULT_WORKSPACE = Path("desk")


@dataclass(frozen=True, kw_only=True)
class CarryOutOptions:
    """How requests are carried out.

    Attributes:
        method: Settings of the method as JSON, such as a run.json's.
        include_duplicates: Also forget copies of the samples of a request.
        beyond_budget: Run although the chain's budget is spent.
    """

    paper: Paper = False
    method: Path | None = None
    include_duplicates: Annotated[bool, typer.Option("--include-duplicates")] = False
    beyond_budget: Annotated[bool, typer.Option("--beyond-budget")] = False
    seed: Seed = 0
    device: Device = "auto"
    quiet: Quiet = False

    def run_options(self) -> RunOptions:
        """The options of the desk; bad settings fail here, before anything is planned.

        Raises:
            RequestError: The settings cannot be read, or are out of their range.
        """
        if self.paper and self.method is not None:
            raise RequestError("Give --paper or --method, not both.")
        method = FAMR.paper() if self.paper else FAMR()
        if self.method is not None:
            method = read_method(self.method)
        return RunOptions(method.to_json(), self.seed, self.include_duplicates, self.beyond_budget)


def read_method(file: Path) -> FAMR:
    """The settings of a method from a file.

    Args:
        file: A JSON object of settings, or a run.json.

    Raises:
        RequestError: It cannot be read, or a setting is out of its range.
    """
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
        settings = content.get("method", content)
        return FAMR.from_json({name: value for name, value in settings.items() if name != "name"})
    except (OSError, ValueError, AttributeError, TypeError) as error:
        raise RequestError(
            "The method's settings cannot be read.", where=str(file), fix="Give a JSON object, as in run.json."
        ) from error
