"""The settings of a run: what is refused, what is recorded, and that each has its help."""

from __future__ import annotations

import inspect
import re
from dataclasses import fields, replace
from typing import get_type_hints

import pytest

import famr
from conftest import alg1
from famr.config import CHOICES, FAMR, ResolvedFAMR
from famr.engine.plain import PlainEngine
from famr.errors import RequestError
from famr.unlearn.inputs import Available
from famr.unlearn.resolve import resolve


def test_the_paper_preset_has_the_papers_numbers() -> None:
    paper = famr.FAMR.paper()
    assert (paper.learning_rate, paper.strength, paper.epochs) == (1e-4, 0.1, 10)
    assert (paper.optimiser, paper.reduction, paper.alpha, paper.beta) == ("sgd", "sum", 1.0, 0.0)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("strength", -1),
        ("learning_rate", 0),
        ("learning_rate", float("nan")),
        ("epochs", 0),
        ("batch_size", 0),
        ("alpha", -0.1),
        ("demotion", -0.1),
        ("demotion", float("inf")),
        ("beta", float("inf")),
        ("optimiser", "rmsprop"),
        ("reduction", "max"),
        ("precision", "fp16"),
    ],
)
def test_bad_settings_fail_when_they_are_given(name: str, value: object) -> None:
    with pytest.raises(RequestError, match=name) as caught:
        alg1(**{name: value, **({"style_layer": "x"} if name == "beta" else {})})
    assert repr(value) in str(caught.value)


def test_an_unknown_setting_is_named() -> None:
    with pytest.raises(RequestError, match="strenght"):
        famr.FAMR.from_json({"strenght": 1})
    for wrong in ([], {"a": 1}, "much"):
        with pytest.raises(RequestError):
            famr.FAMR.from_json({"beta": wrong})


@pytest.mark.parametrize("cls", [FAMR, ResolvedFAMR])
def test_every_setting_has_an_entry_in_the_docstring_that_begins_with_a_sentence(cls: type) -> None:
    """The command line takes its help from there."""
    entries = re.findall(r"^    (\w+): ([\w‖½Σ].*)", inspect.getdoc(cls).partition("Attributes:")[2], re.MULTILINE)  # type: ignore[union-attr]
    assert [name for name, _ in entries] == [field.name for field in fields(cls)]
    text = " ".join(inspect.getdoc(cls).partition("Attributes:")[2].split())  # type: ignore[union-attr]
    for name, _ in entries:
        assert re.search(rf"{name}: [^.]+(\.\d[^.]*)*[.;]", text), name


def test_the_kind_of_every_setting_can_be_read_off_the_dataclass() -> None:
    hints = get_type_hints(FAMR)
    assert set(hints) == {field.name for field in fields(FAMR)}
    assert set(CHOICES) <= set(hints)
    for choices in CHOICES.values():
        assert all(inspect.getdoc(entry) for entry in choices.values())  # its first line is help, too


def resolved(method: FAMR) -> ResolvedFAMR:
    import torch

    available = Available("class", True, True, False, forget_images=500, classes=10, fewest=100)
    return resolve(method, available, PlainEngine(torch.device("cpu")))[0]


def test_resolved_settings_come_back_from_their_record() -> None:
    for method in (FAMR(), FAMR.paper(), FAMR(beta=1.0, style_layer="x", temperature=0.5)):
        settings = replace(resolved(method), search=False)
        assert ResolvedFAMR.from_json(settings.to_json()) == settings
        assert resolved(FAMR.from_json(settings.to_json())) == settings


def test_a_record_that_leaves_a_setting_open_is_refused() -> None:
    values = {**resolved(FAMR()).to_json(), "epochs": None, "anchor": "auto"}
    with pytest.raises(RequestError, match="leaves anchor, epochs open"):
        ResolvedFAMR.from_json(values)


def test_steps_of_an_epoch_have_one_size_where_the_loss_is_a_mean() -> None:
    """So that each image weighs the same; with the sum it does anyway."""
    settings = resolved(FAMR())
    assert [settings.step_size(images) for images in (1, 128, 129, 500, 1000)] == [1, 128, 65, 125, 125]
    assert settings.images_in_step(500) == 250  # with those of the function-space anchor
    paper = resolved(FAMR.paper())
    assert (paper.step_size(500), paper.images_in_step(500)) == (64, 64)
