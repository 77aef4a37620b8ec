"""Copies of networks that cache nothing computed from their weights between passes.

In evaluation mode LeViT and its relatives (timm's levit, efficientformer, efficientformer_v2, efficientvit_msra and
tiny_vit, transformers' levit) look their attention biases up once and cache them. famr edits weights in that mode: the
edit would not reach the cache, and a second gradient would have to pass through the graph of the first pass.
"""

from __future__ import annotations

import copy
from typing import Any

from torch import nn

CACHE_ATTRIBUTE = "attention_bias_cache"


def fresh_copy(module: nn.Module) -> nn.Module:
    """A copy with weights of its own, whose caches are cleared before each pass.

    Args:
        module: Any network; it is not changed.
    """
    caches = [cache for part in module.modules() if isinstance(cache := vars(part).get(CACHE_ATTRIBUTE), dict)]
    memo: dict[int, Any] = {id(cache): {} for cache in caches}  # cached tensors have a graph and cannot be copied
    copied = copy.deepcopy(module, memo)
    for part in copied.modules():
        has_cache = isinstance(vars(part).get(CACHE_ATTRIBUTE), dict)
        if has_cache and _clear_cache not in part._forward_pre_hooks.values():
            part.register_forward_pre_hook(_clear_cache)
    return copied


def _clear_cache(part: nn.Module, _inputs: Any) -> None:
    vars(part)[CACHE_ATTRIBUTE].clear()
