"""Options, each defined once: in a table, or by the setting of the question that it sets. No command acts here.

A row of `options.csv` is an option: the groups of options that it belongs to (`listed("gates")`), what it is called,
the section of the help that it stands in, what of click's attributes is true of it (`is_flag`, `multiple`, `count`) and
how its value is read (`Whole 1 64`; `type_of`). Of what a question is asked, a ranking takes sets of values where an
estimate takes one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from importlib import import_module
from typing import Any, assert_never

import click

from simulator.question.scenario.inputs import INPUTS
from simulator.question.scenario.layout import SETTINGS
from simulator.question.scenario.settings import REQUIRED, InputSetting
from simulator.question.specs.tables import read_table
from simulator.show.cli.parameters import (
    Length,
    Nodes,
    Setting,
    SpecName,
    Whole,
    WholeList,
    WholeSet,
    Word,
    WordSet,
    type_of,
)
from simulator.show.cli.streams import refuse_inputs
from simulator.show.report.formats import ANSWERS

QUESTION, LAYOUT, ROWS, OUTPUT, GENERAL = "Question", "Layout", "Measured rows", "Output", "General"
CONTEXT_SETTINGS: dict[str, Any] = {
    "auto_envvar_prefix": "SIMULATE",
    "help_option_names": ["-h", "--help"],
    "max_content_width": 100,
}
"""The same for all commands, so that SIMULATE_MODEL means `--model` in each."""

_FOLLOWED = f"{__name__}.followed"
"""Key of the context of a group whose options a command follows."""

Handler = Callable[[click.Context, Mapping[str, Any]], None]


class Option(click.Option):
    """Option with a section of the help, where its default is shown."""

    def __init__(self, names: str, section: str, text: str, **attributes: Any) -> None:
        super().__init__(names.split(), help=text, show_default=attributes.get("default") is not None, **attributes)
        self.section = section

    def resolve_envvar_value(self, ctx: click.Context) -> str | None:
        """Return the environment variable's value; None for a group's own option if a command follows."""
        return None if ctx.meta.get(_FOLLOWED) is ctx else super().resolve_envvar_value(ctx)


class Sectioned(click.Command):
    """A command whose help lists options by section."""

    def __init__(self, name: str, **attributes: Any) -> None:
        super().__init__(name, context_settings=CONTEXT_SETTINGS, **attributes)

    def make_parser(self, ctx: click.Context) -> Any:
        """Return the parser of the words, which refuses an option of one value that is repeated."""
        parser = super().make_parser(ctx)
        parse = parser.parse_args

        def once(args: list[str]) -> Any:
            options, rest, order = parse(args)
            if rest and isinstance(self, click.Group):
                ctx.meta[_FOLLOWED] = ctx
            for param in order:
                valued = isinstance(param, click.Option) and not (param.multiple or param.count or param.is_flag)
                if valued and order.count(param) > 1:
                    raise click.UsageError(f"{param.opts[-1]} is given {order.count(param)} times: give it once", ctx)
            return options, rest, order

        parser.parse_args = once  # type: ignore[method-assign]  # what click calls next
        return parser

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command. Raises InputError where it would overwrite its input."""
        refuse_inputs(ctx)
        batch_in_sequences(ctx)
        return super().invoke(ctx)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write each section with its options, then the commands of a group."""
        sections: dict[str, list[tuple[str, str]]] = {}
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx)
            if record is not None and isinstance(param, click.Option):
                sections.setdefault(getattr(param, "section", GENERAL), []).append(record)
        for title, records in sections.items():
            with formatter.section(title):
                formatter.write_dl(records)


def batch_in_sequences(ctx: click.Context) -> None:
    """Replace a batch in tokens by one in sequences. Raises UsageError where these are not whole."""
    tokens = ctx.params.pop("global_batch_tokens", None)
    if tokens is None:
        return
    length = ctx.params["seq_length"]
    if not left_to_default(ctx, "global_batch_size"):
        raise click.UsageError("--global-batch-size and --global-batch-tokens exclude each other: give one")
    if length is None:
        raise click.UsageError("--global-batch-tokens needs --seq-length")
    if tokens % length:
        near = [count for count in (tokens // length, tokens // length + 1) if count]
        nearest = " or ".join(f"{count * length} (--global-batch-size {count})" for count in near)
        raise click.UsageError(
            f"--global-batch-tokens {tokens}: no whole sequences of {length} tokens; nearest: {nearest}"
        )
    ctx.params["global_batch_size"] = tokens // length
    ctx.set_parameter_source("global_batch_size", click.core.ParameterSource.COMMANDLINE)


def question_options(*, many: bool = False) -> list[click.Parameter]:
    """Return the options of the question; with `many` some of them may ask for a search."""
    options: list[click.Parameter] = []
    for setting in INPUTS:
        options.append(_question_option(setting, many=many))
        if setting.name == "global_batch_size":
            options += listed("batch")
    return options


def _question_option(setting: InputSetting, *, many: bool) -> Option:
    default = None if setting.default is REQUIRED else setting.default
    if setting.searchable and many:
        text = f"{setting.help} auto: the fewest that fit, up to 1024; auto:256: up to 256."
        return Option(setting.option, QUESTION, text, type=Nodes(setting.low, setting.high))
    about: dict[str, Any] = {"type": _type_of(setting, many=False), "default": default}
    match setting.kind:
        case "switches":
            about = {"type": Setting(), "multiple": True}
        case "file":
            about = {"metavar": "FILE|none"}
    return Option(setting.option, QUESTION, setting.help, **about)


def layout_options(*, many: bool) -> list[click.Parameter]:
    """Return the options of the layout: sets to choose from if ``many``, else one value each."""
    options: list[click.Parameter] = [_layout_option(setting, many=many) for setting in SETTINGS]
    return [*options, *(listed("search") if many else ())]


def listed(group: str) -> list[click.Parameter]:
    """Return the options of a group of `options.csv`, in its order, newly built as some commands change them."""
    return [_of_row(row) for row in _rows(__file__, "options") if group in row["groups"].split()]


_rows = cache(read_table)


def _of_row(row: Mapping[str, str]) -> Option:
    attributes: dict[str, Any] = {name: row[name] for name in ("metavar", "default") if row[name]}
    if row["attribute"]:
        attributes[row["attribute"]] = True
    if row["type"]:
        attributes["type"] = type_of(row["type"])
    return Option(row["names"], row["section"], row["text"], **attributes)


def files_argument() -> list[click.Parameter]:
    """Return the argument for files of measured rows, and the options that select rows."""
    return [click.Argument(["files"], nargs=-1, type=str, metavar="[FILES]..."), *listed("family")]


def answer_options(name: str) -> list[click.Parameter]:
    """Return the options for format and destination of an answer."""
    return [output_format(name), *listed("answer")]


def output_format(name: str) -> Option:
    """Return the option for the format of an answer, by default its first."""
    forms = ANSWERS[name].formats
    return Option("--format", OUTPUT, "Form of the answer.", type=Word(forms), default=forms[0])


def given_on_command_line(ctx: click.Context, params: Sequence[click.Parameter]) -> list[str]:
    """Return the options among ``params`` that were given on the command line."""
    source = click.core.ParameterSource.COMMANDLINE
    return [param.opts[-1] for param in params if param.name and ctx.get_parameter_source(param.name) is source]


def left_to_default(ctx: click.Context, name: str) -> bool:
    """Tell whether neither command line nor environment set the parameter ``name``."""
    sources = (click.core.ParameterSource.DEFAULT, None)
    return ctx.get_parameter_source(name) in sources


def _layout_option(setting: InputSetting, *, many: bool) -> Option:
    """Return the option of one field of a layout."""
    name, kind = setting.option, _type_of(setting, many=many)
    if setting.kind == "flag":
        name += f"/--no-{setting.option.removeprefix('--')}"
    return Option(name, LAYOUT, setting.help, type=kind, default=None)


def _type_of(setting: InputSetting, *, many: bool) -> click.ParamType[Any] | None:
    match setting.kind:
        case "model" | "hardware":
            return SpecName(setting.kind)
        case "count" | "number":
            number = WholeSet if many else Length if setting.of_tokens else Whole
            return number(setting.low, setting.high)
        case "word":
            return (WordSet if many else Word)(setting.named_choices or setting.choices)
        case "words":
            return WordSet(setting.choices)
        case "layers":
            return WholeList(setting.low, setting.high)
        case "flag" | "file" | "switches":
            return None
        case _:
            assert_never(setting.kind)


def handled(name: str, module: str = "commands") -> Callable[..., None]:
    """Return the click callback that calls the handler ``name`` of a module here, imported when it is needed."""

    def callback(**values: Any) -> None:
        handler: Handler = getattr(import_module(f"simulator.show.cli.{module}"), name)
        handler(click.get_current_context(), values)

    return callback
