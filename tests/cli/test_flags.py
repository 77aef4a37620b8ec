"""Flags that are generated from signatures and dataclasses."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
import typer

from famr.cli.flags import Fields, Given, build_command, help_text
from famr.cli.guarding import UsageError, usage_error
from famr.cli.printing import Result


@dataclass(frozen=True)
class Settings:
    """Settings of nothing.

    Attributes:
        rate: How fast. It is
            described in two lines.
        scheme: The scheme. None: picked.
        strength: How strong. "auto": searched for.
        target: What to predict.
        keep: Whether to keep.
        names: Names of things.
        hidden: Has no flag.
    """

    rate: float = 0.5
    scheme: Literal["even", "odd"] | None = None
    strength: float | Literal["auto"] = "auto"
    target: str | Literal["auto"] = "auto"
    keep: bool | None = None
    names: list[str] | None = None
    hidden: int = 7


class Uniform:
    """1/C for every class.

    More about it.
    """


@dataclass(frozen=True)
class Source:
    """Where something is.

    Attributes:
        path: The file.
    """

    path: Annotated[Path, typer.Option("--path", "-p")]


CHOICES = {"target": {"uniform": Uniform}}
Whole = Annotated[Settings, Fields(Settings, skip=("hidden",), choices=CHOICES)]
Partly = Annotated[Given, Fields(Settings, given=True, choices=CHOICES, defaults={"rate": None})]
Call = Callable[..., Any]


@pytest.fixture
def calls() -> list[Any]:
    return []


@pytest.fixture
def call(calls: list[Any]) -> Call:
    """Call a command as the shell would; what it got is its result."""

    def run(function: Callable[..., Result], words: Sequence[object]) -> Any:
        build_command(function, "x").main([str(word) for word in words], "x", standalone_mode=False)
        return calls.pop()

    return run


def result() -> Result:
    return Result({}, lambda: None)


def test_a_dataclass_becomes_one_flag_for_each_field(call: Call, calls: list[Any]) -> None:
    def command(settings: Whole, source: Source) -> Result:
        calls.append((settings, source))
        return result()

    assert call(command, ["-p", "a"]) == (Settings(), Source(Path("a")))
    words = ["--path", "b", "--rate", 2, "--scheme", "odd", "--strength", 3, "--target", "uniform", "--no-keep"]
    settings, source = call(command, [*words, "--names", "x", "--names", "y"])
    assert settings == Settings(2.0, "odd", 3.0, "uniform", False, ["x", "y"])
    assert source.path == Path("b")


def test_a_command_may_get_only_what_was_given(call: Call, calls: list[Any]) -> None:
    def command(settings: Partly) -> Result:
        calls.append(settings)
        return result()

    assert call(command, []) == {}
    assert call(command, ["--strength", "auto", "--hidden", 7]) == {"strength": "auto", "hidden": 7}


def test_other_parameters_and_the_context_are_passed_on(call: Call, calls: list[Any]) -> None:
    def command(context: typer.Context, source: Source, path_: str = "x", deep: bool = True) -> Result:
        calls.append((context.info_name, source.path, path_, deep))
        return result()

    assert call(command, ["-p", "a", "--no-deep", "--json"]) == ("x", Path("a"), "x", False)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--scheme", "x"], "Invalid value for '--scheme': it must be one of even, odd, got 'x'."),
        (["--target", "x"], "Invalid value for '--target': it must be one of uniform, auto, got 'x'."),
        (["--strength", "x"], "Invalid value for '--strength': it must be a number or auto, got 'x'."),
        (["--hidden", "1"], "No such option: --hidden"),
    ],
)
def test_a_value_that_is_no_choice_is_refused_with_the_choices(call: Call, words: list[str], message: str) -> None:
    def command(settings: Whole) -> Result:
        raise AssertionError(settings)

    with pytest.raises(UsageError) as caught:
        call(command, words)
    assert message in str(usage_error(caught.value))


def test_help_is_the_first_sentence_of_the_docstring_with_the_default(capsys: pytest.CaptureFixture[str]) -> None:
    def command(settings: Whole, source: Source, deep: bool = True) -> Result:
        """Do it.

        At once.

        Args:
            settings: Not a flag.
            source: Not a flag.
            deep: How deep. Or not.
        """
        raise AssertionError(settings, source, deep)

    build_command(command, "x").main(["--help"], "x", standalone_mode=False)
    page = " ".join(capsys.readouterr().out.split())
    for text in (
        "Do it. At once. Options:",
        "How fast. [default: 0.5]",
        "even|odd The scheme. Default: picked.",
        "auto|FLOAT How strong. Default: searched for. [default: auto]",
        "uniform|auto What to predict. uniform: 1/C for every class. [default: auto]",
        "--keep / --no-keep Whether to keep.",
        "Names of things. Repeatable.",
        "-p, --path <path> The file. [required]",
        "How deep. [default: deep]",
        "--json Print one JSON object",
    ):
        assert text in page, page
    for text in ("hidden", "Args", "Not a flag", "two lines", "Or not"):
        assert text not in page


@pytest.mark.parametrize(
    ("entry", "text"),
    [
        ("A number, e.g. `8`. More.", "A number, e.g. `8`."),
        ("η of Alg. 1; for `natural` a share. λ is another.", "η of Alg. 1; for `natural` a share."),
        ("β of Eq. (5): weight. None: balanced.", "β of Eq. (5): weight."),
        ("None: bf16 on CUDA.", "Default: bf16 on CUDA."),
        ("", ""),
    ],
)
def test_sentences_end_where_a_new_one_begins(entry: str, text: str) -> None:
    assert help_text(entry) == text
