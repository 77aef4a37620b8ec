"""The style of a layer's activations in a run: φ and G_target of [FAMR, Eq. (3) and (4)]."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import Tensor

from famr.config import ResolvedFAMR
from famr.data import Images
from famr.data.loaders import loader_batches
from famr.engine.base import Session
from famr.errors import RequestError
from famr.models.activations import LayerOutput, capture_layer, mean_gram
from famr.unlearn.inputs import RunInputs


@contextmanager
def capture_style(session: Session, config: ResolvedFAMR) -> Iterator[LayerOutput | None]:
    """Read the output of the style layer, φ, for as long as the context lasts.

    Args:
        session: The network.
        config: Names the layer.

    Yields:
        The output; None where no style is forgotten.
    """
    if not config.forgets_style:
        yield None
        return
    assert config.style_layer is not None
    with capture_layer(session.model.module, config.style_layer, config.style_channels_last) as style:
        yield style


def neutral_gram(session: Session, inputs: RunInputs, style: LayerOutput, config: ResolvedFAMR) -> Tensor:
    """G_target: the mean Gram matrix over images of a neutral style.

    Args:
        session: The network at θ₀.
        inputs: Has these images.
        style: Reads the style layer.
        config: Says how many images a step takes; no more are taken here at a time.

    Raises:
        RequestError: There are none.
    """
    source = inputs.neutral_source()
    if source is None:
        raise RequestError(
            "Style forgetting needs images of a neutral style.",
            where="style_target",
            fix="Give the retained images, or a folder with --style-target.",
        )
    if isinstance(source, Images):
        batches = session.image_batches(source, inputs.gradient_batch_size(config))
    else:
        batches = loader_batches(source, session.device)
    return mean_gram(session.model.module, style, batches(None))
