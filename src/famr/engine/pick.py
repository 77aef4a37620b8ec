"""Which engine a run gets where none is given."""

from __future__ import annotations

import torch

from famr.engine.base import Engine
from famr.engine.devices import pick_device
from famr.engine.distributed import ALONE, Ranks


def pick_engine(device: str | None = None, home: torch.device | None = None, ranks: Ranks = ALONE) -> Engine:
    """The fastest engine for a device.

    Args:
        device: Name of the device; None: that of the network, or the best available for a network on the CPU.
        home: Where the network is; None: on the CPU.
        ranks: The processes that share the run.

    Raises:
        RequestError: There is no such device, or the processes cannot share it.

    >>> type(pick_engine("cpu")).__name__
    'PrefixEngine'
    """
    if ranks.size > 1:
        from famr.engine.ddp import DistributedEngine

        return DistributedEngine(ranks.device(device or "auto"), ranks)
    on_cpu = home is None or home.type == "cpu"
    chosen = pick_device(device or ("auto" if on_cpu else str(home)))
    if chosen.type == "cuda":
        from famr.engine.cuda import CudaEngine

        return CudaEngine(chosen)
    from famr.engine.prefix import PrefixEngine

    return PrefixEngine(chosen)
