"""The parameters of a network that a run may change."""

from __future__ import annotations

import torch
from torch import Tensor

from famr.config import ResolvedFAMR
from famr.engine.base import Session
from famr.errors import RequestError
from famr.models.layers import call_order, late_parameters
from famr.unlearn.inputs import RunInputs


def edited_parameters(session: Session, inputs: RunInputs, config: ResolvedFAMR) -> list[str]:
    """Names of the parameters that may change.

    Args:
        session: The network.
        inputs: One forget image gives the order of the layers.
        config: The edited share, and whether the head may change.

    Raises:
        RequestError: The style layer lies before every layer that may change.
    """
    module = session.model.module
    free = [name for name, parameter in module.named_parameters() if parameter.requires_grad]
    if config.edited_share >= 1 and config.edit_head:
        return free
    image = _first_image(session, inputs)

    def forward() -> object:
        return module(image)

    names = late_parameters(module, forward, config.edited_share, config.edit_head)
    if config.forgets_style:
        rank = call_order(module, forward)
        inside = [rank[name] for name in rank if name.startswith(f"{config.style_layer}.")]
        if inside and all(rank[name] > max(inside) for name in names):
            raise RequestError(
                "The style layer lies before every layer that may change, so its style cannot change.",
                where=f"{config.style_layer}, edited share {config.edited_share:g}",
                fix="Use a larger edited share, or a later layer.",
            )
    return names


def _first_image(session: Session, inputs: RunInputs) -> Tensor:
    if inputs.splits is not None:
        batches = session.image_batches(inputs.splits.forget.take(torch.arange(1)), 1)
    else:
        batches = inputs.step_batches(session, 1)
    return next(iter(batches(None))).images[:1]
