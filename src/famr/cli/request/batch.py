"""`famr request batch`: carry out several requests."""

from __future__ import annotations

from typing import Annotated

import typer

from famr.cli.printing import Result
from famr.cli.request.options import DEFAULT_WORKSPACE, CarryOutOptions, Workspace
from famr.cli.request.run import carry_out


def batch_command(
    options: CarryOutOptions,
    ids: Annotated[list[str] | None, typer.Argument()] = None,
    workspace: Workspace = DEFAULT_WORKSPACE,
) -> Result:
    """Carry out several requests: one run for the classes, one for the samples.

    Args:
        options: How they are carried out.
        ids: Requests, such as R-0001. None: all that are open.
        workspace: Its folder.
    """
    return carry_out(workspace, ids or None, options)
