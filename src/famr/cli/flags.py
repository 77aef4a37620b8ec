"""Command-line flags from signatures: a command is a function, and its parameters become its flags.

A parameter whose type is a dataclass becomes one flag for each field, and the command gets the object. The type of a
parameter or field gives the kind of its flag and, where it is a `Literal`, the choices; its help text is its entry in
the docstring, under `Args:` or `Attributes:`. `Annotated[…, typer.Option(…)]` says what else a flag needs.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from importlib import import_module
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import typer
from typer.core import TyperCommand
from typer.main import get_command
from typer.models import OptionInfo, ParameterInfo

from famr.cli.printing import Result

Command = Callable[..., Result | None]
"""Returns None on all ranks but the first."""
PLAIN = {"add_completion": False, "pretty_exceptions_enable": False, "rich_markup_mode": None}
"""Settings of every `typer.Typer` here: errors and help as plain text."""


@dataclass(frozen=True)
class Fields:
    """Stands in an annotation beside a dataclass that knows nothing of the command line.

    `Annotated[Training, Fields(Training)]` gives the command an object, `Annotated[Given, Fields(FAMR, given=True)]`
    a dictionary.

    Attributes:
        of: The dataclass.
        given: Whether the command gets only the fields that were given, by name, and no object.
        skip: Fields without a flag.
        choices: For fields that are text: what may be given, each with the docstring that describes it.
        defaults: Defaults to show instead of the dataclass's own.
    """

    of: type
    given: bool = False
    skip: Sequence[str] = ()
    choices: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    defaults: Mapping[str, Any] = field(default_factory=dict)


Given = dict[str, Any]
"""Fields of a dataclass by name, as far as their flags were given."""


def build_command(function: Command, name: str) -> TyperCommand:
    """A command of the command line.

    Args:
        function: Its parameters become flags; `--json` is added, as `main` and not the command prints the result.
        name: Of the command.
    """
    hints = get_type_hints(function, include_extras=True)
    entries = docstring_entries(function.__doc__, "Args")
    expanded: dict[str, Fields] = {}
    plain: list[str] = []
    flags = [inspect.Parameter("context", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context)]
    for parameter in inspect.signature(function).parameters.values():
        kind = hints[parameter.name]
        if kind is typer.Context:
            continue
        if fields_marker := _fields_of(kind):
            expanded[parameter.name] = fields_marker
            flags += _flags_of_fields(fields_marker)
        else:
            plain.append(parameter.name)
            flags.append(_flag(parameter.name, kind, parameter.default, entries.get(parameter.name, "")))
    flags.append(_flag("as_json", AsJson, False, ""))

    def call(context: typer.Context, as_json: bool, **values: Any) -> Result | None:  # noqa: ARG001  # `main` reads --json
        arguments = {parameter: _collect(marker, context, values) for parameter, marker in expanded.items()}
        arguments |= {parameter: values[parameter] for parameter in plain}
        arguments |= {parameter: context for parameter, kind in hints.items() if kind is typer.Context}
        return function(**arguments)

    call.__signature__ = inspect.Signature(flags)  # type: ignore[attr-defined]
    call.__annotations__ = {}
    app = typer.Typer(**PLAIN)  # type: ignore[arg-type]  # typer has no type for its settings
    app.command(name, help=docstring_text(function.__doc__))(call)
    command = get_command(app)
    assert isinstance(command, TyperCommand)
    return command


AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object on standard output, nothing else.")]


class LazyCommand(TyperCommand):
    """A command that imports its module when it is invoked; until then only its name and one line are known."""

    package = "famr.cli"

    def load(self) -> TyperCommand:
        """The whole command: `NAME_command` of the module `NAME`."""
        name = str(self.name)
        return build_command(getattr(import_module(f"{self.package}.{name}"), f"{name}_command"), name)

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        """See `click.Command.make_context`.

        Args:
            info_name: Name under which the command was called.
            args: Words after it.
            parent: Context of the group.
            extra: Further settings of the context.
        """
        return self.load().make_context(info_name, args, parent, **extra)


def add_lazily(app: typer.Typer, commands: Mapping[str, str], package: str) -> None:
    """Add commands whose modules are imported when they are invoked.

    Args:
        app: The group.
        commands: One line of help for each command, by name.
        package: Its module `NAME` has the function `NAME_command`.
    """
    cls = type("LazyCommand", (LazyCommand,), {"package": package})
    for name, line in commands.items():
        app.command(name, cls=cls, help=line)(lambda: None)


def given_on_command_line(context: typer.Context, parameter: str) -> bool:
    """Whether the value of a flag is from the command line and not its default.

    Args:
        context: Of the command.
        parameter: Name of the parameter or field.
    """
    source = context.get_parameter_source(parameter)
    return source is not None and source.name == "COMMANDLINE"


def _fields_of(kind: Any) -> Fields | None:
    if get_origin(kind) is Annotated:
        return next((marker for marker in get_args(kind)[1:] if isinstance(marker, Fields)), None)
    return Fields(kind) if is_dataclass(kind) and isinstance(kind, type) else None


def _flags_of_fields(marker: Fields) -> list[inspect.Parameter]:
    hints = get_type_hints(marker.of, include_extras=True)
    entries = docstring_entries(marker.of.__doc__, "Attributes")
    flags = []
    for each in fields(marker.of):
        if each.name in marker.skip:
            continue
        default = marker.defaults.get(each.name, inspect.Parameter.empty if each.default is MISSING else each.default)
        choices = marker.choices.get(each.name)
        flags.append(_flag(each.name, hints[each.name], default, entries.get(each.name, ""), choices))
    return flags


def _collect(marker: Fields, context: typer.Context, values: Mapping[str, Any]) -> Any:
    own = {each.name: values[each.name] for each in fields(marker.of) if each.name in values}
    if marker.given:
        return {name: value for name, value in own.items() if given_on_command_line(context, name)}
    return marker.of(**own)


def _flag(
    name: str, kind: Any, default: Any, entry: str, choices: Mapping[str, Any] | None = None
) -> inspect.Parameter:
    """A parameter as typer reads it, of any type that a setting has."""
    kind, info = _split_annotation(kind)
    optional = NoneType in get_args(kind)
    parts = [part for part in _parts(kind) if part is not NoneType]
    words = [word for part in parts if get_origin(part) is Literal for word in get_args(part)]
    types = [part for part in parts if get_origin(part) is not Literal]
    if choices is not None:
        words, types = [*choices, *words], []
    if info.help is None:
        info.help = help_text(entry, default, choices)
        if isinstance(info, OptionInfo) and any(get_origin(part) is list for part in parts):
            info.help += " Repeatable."
    if words:
        (other,) = types or (None,)
        info.parser = _parser(words, other)
        info.metavar = "|".join([*words, *([other.__name__.upper()] if other else [])])
        kind = str | None if optional else str
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, info])


def _split_annotation(kind: Any) -> tuple[Any, Any]:
    """The type, and a copy of typer's own annotation of it."""
    if get_origin(kind) is not Annotated:
        return kind, typer.Option()
    kind, *rest = get_args(kind)
    return kind, copy(next((each for each in rest if isinstance(each, ParameterInfo)), typer.Option()))


def _parts(kind: Any) -> tuple[Any, ...]:
    return get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)


def _parser(words: Sequence[str], other: type | None) -> Callable[[Any], Any]:
    """A function that takes one of some words, or a value of another type."""

    def parse(value: Any) -> Any:
        if value in words:
            return value
        try:
            if other is not None:
                return other(value)
        except ValueError:
            pass
        listed = ", ".join(words)
        must = f"one of {listed}" if other is None else f"a number or {listed}"
        raise typer.BadParameter(f"it must be {must}, got {value!r}.")

    return parse


def docstring_text(docstring: str | None) -> str:
    """A docstring without its sections.

    Args:
        docstring: In Google's style; None is empty.

    >>> docstring_text("Do it.\\n\\nMore.\\n\\nArgs:\\n    x: A number.")
    'Do it.\\n\\nMore.'
    """
    return re.split(r"^(?:Args|Attributes|Returns|Raises):$", inspect.cleandoc(docstring or ""), flags=re.M)[0].strip()


def docstring_entries(docstring: str | None, section: str) -> dict[str, str]:
    """The entries of a section of a docstring, each on one line.

    Args:
        docstring: In Google's style; None has no entries.
        section: `Args` or `Attributes`.

    >>> docstring_entries("Do it.\\n\\nArgs:\\n    x: A number\\n        or two.\\n    y: Text.", "Args")
    {'x': 'A number or two.', 'y': 'Text.'}
    """
    entries: dict[str, list[str]] = {}
    inside, name = False, ""
    for line in inspect.cleandoc(docstring or "").splitlines():
        if line and not line.startswith(" "):
            inside = line == f"{section}:"
        elif inside and (match := re.match(r" {4}(\w+): (.*)", line)):
            name = match[1]
            entries[name] = [match[2]]
        elif inside and name and line.strip():
            entries[name].append(line.strip())
    return {name: " ".join(lines) for name, lines in entries.items()}


SENTENCES = re.compile(r"(?<=[.!?])(?<!e\.g\.)\s+(?=[A-ZΑ-Ωα-ω`\"‖\[])")


def help_text(entry: str, default: object = inspect.Parameter.empty, choices: Mapping[str, Any] | None = None) -> str:
    """The help of a flag: the first sentence of its entry, what its default means, and its choices.

    Args:
        entry: From a docstring.
        default: Of the parameter or field; the sentence on None or "auto" is shown where that is the default.
        choices: Each choice with an object whose docstring describes it in the first line.

    >>> help_text("η of Alg. 1. None: it depends. More.", None)
    'η of Alg. 1. Default: it depends.'
    >>> help_text("Whether to compile; None: on CUDA.")
    'Whether to compile; default: on CUDA.'
    """
    first, *others = SENTENCES.split(entry)
    opening = {"None": "None: ", "'auto'": '"auto": '}.get(repr(default))
    sentences = [first, *(sentence for sentence in others if opening and sentence.startswith(opening))]
    for name, described in (choices or {}).items():
        line = docstring_text(described.__doc__).splitlines()[0].rstrip(".")
        sentences.append(f"{name}: {line}.")
    text = " ".join(re.sub(r'^(?:None|"auto"): ', "Default: ", sentence) for sentence in sentences)
    return text.replace("None: ", "default: ")
