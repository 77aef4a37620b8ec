"""The smallest model and data on which a whole command runs: untrained, three classes, built in a moment."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image
from safetensors.torch import save_file

import famr
from famr.data import Data
from famr.storage.digests import write_complete

CLASSES = ("cat", "cow", "dog")
ARGUMENTS = {"img_size": 8, "patch_size": 4, "embed_dim": 16, "depth": 1, "num_heads": 2}
AS_OPTIONS = tuple(f"--model-arg={name}={value}" for name, value in ARGUMENTS.items())
ARCHITECTURE = "timm:vit_tiny_patch16_224"
QUICK = ("--paper", "--no-gates", "--epochs", 1, "--device", "cpu", "--quiet")


def small_model(labels: tuple[str, ...] = CLASSES) -> famr.Classifier:
    return famr.new_model(ARCHITECTURE, labels, from_scratch=True, arguments=ARGUMENTS)


def save_small(folder: Path, labels: tuple[str, ...] = CLASSES) -> Path:
    """An untrained model as a folder that `load_model` reads."""
    model = small_model(labels)
    folder.mkdir(parents=True)
    model.architecture.save(model, folder)
    write_complete(folder)
    return folder


def save_tensors(path: Path, **changes: object) -> Path:
    """The model's weights with some replaced; None removes one."""
    tensors = {
        **small_model().module.state_dict(),
        **{name.replace("__", "."): value for name, value in changes.items()},
    }
    save_file({name: tensor for name, tensor in tensors.items() if tensor is not None}, path)
    return path


def picture(seed: int, side: int = 8) -> Image.Image:
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (side, side, 3), dtype=np.uint8))


def save_pictures(folder: Path, each: int = 6, classes: tuple[str, ...] = CLASSES) -> Path:
    for number, name in enumerate(classes):
        (folder / name).mkdir(parents=True)
        for index in range(each):
            picture(100 * number + index).save(folder / name / f"{index}.png")
    return folder


def save_digits(digits: Data, folder: Path, each: int, names: tuple[str, ...] | None = None) -> Path:
    """The first digits of each class as class folders."""
    for target, name in enumerate(names or digits.labels):
        (folder / name).mkdir(parents=True)
        members = (digits.train.targets == target).nonzero().squeeze(1)[:each].tolist()
        for index in members:
            digits.train.decode(int(digits.train.rows[index])).save(folder / name / f"{index}.png")
    return folder
