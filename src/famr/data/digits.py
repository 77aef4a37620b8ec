"""scikit-learn's 1,797 handwritten digits, 8×8 grey: part of the package, so that examples run offline."""

from __future__ import annotations

import numpy as np
import torch
from PIL import Image

from famr.data.dataset import Data
from famr.data.images import Images


def open_digits() -> Data:
    """The digits, with a column `parity` (even, odd) as an example of a concept."""
    from sklearn.datasets import load_digits

    bunch = load_digits()
    pixels = (bunch.images * (255 / 16)).round().astype(np.uint8)  # (1797, 8, 8), stored from 0 to 16
    targets = torch.from_numpy(bunch.target.astype(np.int64))
    images = Images.from_source(
        decode=lambda row: Image.fromarray(pixels[row]),
        ids=[f"digits/{row}" for row in range(len(pixels))],
        targets=targets,
        columns={"parity": ["odd" if target % 2 else "even" for target in targets.tolist()]},
    )
    return Data("digits", tuple(str(digit) for digit in range(10)), images, None, mirror=False)
