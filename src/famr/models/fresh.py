"""Copies of networks that keep nothing they made of their weights from one pass to the next.

In evaluation mode LeViT and its kin (timm's levit, efficientformer, efficientformer_v2, efficientvit_msra and tiny_vit,
transformers' levit) look their attention biases up once and keep them. famr edits weights in that mode: the edit would
not reach what was kept, and a second gradient would have to go back through the first pass.
"""

from __future__ import annotations

import copy
from typing import Any

from torch import nn

KEPT = "attention_bias_cache"


def fresh_copy(module: nn.Module) -> nn.Module:
    """A copy with weights of its own, and nothing kept."""
    kept = [found for part in module.modules() if isinstance(found := vars(part).get(KEPT), dict)]
    memo: dict[int, Any] = {id(each): {} for each in kept}  # tensors with a history cannot be copied, nor need to be
    copied = copy.deepcopy(module, memo)
    for part in copied.modules():
        if isinstance(vars(part).get(KEPT), dict) and _keep_nothing not in part._forward_pre_hooks.values():
            part.register_forward_pre_hook(_keep_nothing)
    return copied


def _keep_nothing(part: nn.Module, _inputs: Any) -> None:
    vars(part)[KEPT].clear()
