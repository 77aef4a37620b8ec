"""The state of a torch optimiser as named tensors, so that a run can be resumed."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn


def optimiser_tensors(optimiser: torch.optim.Optimizer) -> dict[str, Tensor]:
    """The state of an optimiser, as `optimiser.INDEX.NAME`.

    Args:
        optimiser: Any torch optimiser.
    """
    parameters = [parameter for group in optimiser.param_groups for parameter in group["params"]]
    return {
        f"optimiser.{index}.{name}": value
        for index, parameter in enumerate(parameters)
        for name, value in optimiser.state.get(parameter, {}).items()
        if isinstance(value, Tensor)
    }


def load_optimiser_tensors(optimiser: torch.optim.Optimizer, tensors: Mapping[str, Tensor]) -> None:
    """The inverse of `optimiser_tensors`.

    Args:
        optimiser: Over the same parameters in the same order.
        tensors: May hold other entries too.
    """
    parameters: list[nn.Parameter] = [parameter for group in optimiser.param_groups for parameter in group["params"]]
    for key, value in tensors.items():
        kind, _, rest = key.partition(".")
        if kind == "optimiser":
            index, _, name = rest.partition(".")
            parameter = parameters[int(index)]
            on_device = name != "step" or optimiser.defaults.get("capturable") or optimiser.defaults.get("fused")
            optimiser.state[parameter][name] = value.to(parameter.device if on_device else torch.device("cpu"))
