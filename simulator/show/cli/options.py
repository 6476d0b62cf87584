"""Options, each defined once; a ranking takes sets of values where an estimate takes one. No command acts here."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any, assert_never

import click

from simulator.question.scenario.inputs import INPUTS
from simulator.question.scenario.layout import SETTINGS
from simulator.question.scenario.settings import REQUIRED, InputSetting
from simulator.show.cli.parameters import (
    Length,
    Nodes,
    Percentage,
    PositiveAmount,
    Price,
    Setting,
    SpecName,
    Tokens,
    Whole,
    WholeList,
    WholeSet,
    Word,
    WordSet,
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

Handler = Callable[[click.Context, Mapping[str, Any]], None]


class Option(click.Option):
    """An option that knows the section of the help it belongs to; a default that it is given is shown there."""

    def __init__(self, names: str, section: str, text: str, **attributes: Any) -> None:
        super().__init__(names.split(), help=text, show_default=attributes.get("default") is not None, **attributes)
        self.section = section


class Sectioned(click.Command):
    """A command whose help lists options by section."""

    def __init__(self, name: str, **attributes: Any) -> None:
        super().__init__(name, context_settings=CONTEXT_SETTINGS, **attributes)

    def make_parser(self, ctx: click.Context) -> Any:
        """Return what reads the words; an option of one value that stands there twice is refused."""
        parser = super().make_parser(ctx)
        parse = parser.parse_args

        def once(args: list[str]) -> Any:
            options, rest, order = parse(args)
            for param in order:
                valued = isinstance(param, click.Option) and not (param.multiple or param.count or param.is_flag)
                if valued and order.count(param) > 1:
                    raise click.UsageError(f"{param.opts[-1]} is given {order.count(param)} times: give it once", ctx)
            return options, rest, order

        parser.parse_args = once  # type: ignore[method-assign]  # what click calls next
        return parser

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command, unless it would write over what it reads."""
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
    """Replace a batch in tokens by its sequences. Raises UsageError where they are not whole."""
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
    """Return what is trained on what; where `many` are priced, some of it may be searched."""
    options: list[click.Parameter] = []
    for setting in INPUTS:
        options.append(_question_option(setting, many=many))
        if setting.name == "global_batch_size":
            text = "Tokens in a step, instead; 4M."
            options.append(Option("--global-batch-tokens", QUESTION, text, type=Length(1, 2**50)))
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
    """Return the layout: sets to choose from if ``many``, else one value each."""
    options: list[click.Parameter] = [_layout_option(setting, many=many) for setting in SETTINGS]
    if many:
        text = "Also consider tensor parallelism across nodes."
        options.append(Option("--allow-tp-across-nodes", LAYOUT, text, is_flag=True))
    return options


def output_options(*, ranking: bool) -> list[click.Parameter]:
    """Return how the answer is shown."""
    options = answer_options("ranking" if ranking else "estimate")
    if ranking:
        text = "Show every layout, not only the best of each split into TP, PP, CP and EP."
        deadline = "With --nodes auto and --train-tokens: days that the run may take."
        options += [
            Option("--top", OUTPUT, "Layouts to show.", type=Whole(1, 10_000), default=10),
            min_fit_probability_option(),
            Option("--variants", OUTPUT, text, is_flag=True),
        ]
    else:
        text = "Write a step pass by pass there: trace events that Perfetto opens."
        options.append(Option("--timeline", OUTPUT, text, metavar="FILE"))
    tokens, price = "Tokens of the whole run, such as 100B: adds days to train.", "With --train-tokens: adds the cost."
    options.append(Option("--train-tokens", OUTPUT, tokens, type=Tokens()))
    options.append(Option("--price-per-device-hour", OUTPUT, price, type=Price()))
    if ranking:
        options.append(Option("--deadline-days", OUTPUT, deadline, type=PositiveAmount("DAYS")))
    return options


def min_fit_probability_option() -> Option:
    """Return how sure a recommendation is to fit."""
    text = "Least probability to fit of what is recommended; what fits with less stands apart. 0 recommends all."
    return Option("--min-fit-probability", OUTPUT, text, type=Percentage(zero=True), default=0.95)


def calibrate_options() -> list[click.Parameter]:
    """Return what is fitted, and where the result goes."""
    template = "Print a table of the columns that a run needs, with one example, on --hardware where given."
    listed = "Print what each coefficient means; with --family NAME the values that ship for it. Nothing is fitted."
    output = "Write FAMILY.yaml there for each family too; a probe writes everything there."
    return [
        *_rows_options(),
        *_log_options(),
        Option("--list", ROWS, listed, is_flag=True),
        Option("--template", ROWS, template, is_flag=True),
        Option("--rows-only", ROWS, "Turn the logs into rows and stop there.", is_flag=True),
        output_format(ANSWERS["calibration"].formats),
        Option("--output", OUTPUT, output, metavar="FOLDER"),
    ]


def _log_options() -> list[click.Parameter]:
    """Return the logs that become rows, and what is known beside them."""
    hardware = "Hardware that the logs or the template's run ran on, or that is probed."
    model = "Model of the logs, where none shipped has its shape; or the only one that a probe launches."
    switch = "Switch of the framework that the logs do not show; repeatable."
    recipe = "Recipe, or estimate saved with --format json, of the logged run: says what the log does not."
    column = Setting("the names are a table's columns")
    return [
        Option("--from-log", ROWS, "Own training log; repeatable.", multiple=True, metavar="LOG"),
        Option("--hardware", ROWS, hardware, type=SpecName("hardware")),
        Option("--model", ROWS, model, type=SpecName("model")),
        Option("--option", ROWS, switch, type=Setting(), multiple=True),
        Option("--recipe", ROWS, recipe, metavar="FILE"),
        Option(
            "--set", ROWS, "A column of the logs' rows, whatever the logs say; repeatable.", type=column, multiple=True
        ),
        Option("--warmup", ROWS, "Logged steps to leave out at the start of a run.", type=Whole(0, 10_000), default=2),
    ]


def accuracy_options() -> list[click.Parameter]:
    """Return which rows are judged, and how the answer is shown."""
    calibration = "Show the rows of the files with what ships, with this calibration, and left out one by one."
    rows = "Show every row instead of classes; always so as CSV."
    return [
        *_rows_options(),
        Option("--table", ROWS, "Show only the rows of this table; the fit uses all.", metavar="NAME"),
        Option("--calibration", ROWS, calibration, metavar="FILE"),
        Option("--rows", OUTPUT, rows, is_flag=True),
        *answer_options("accuracy"),
    ]


def _rows_options() -> list[click.Parameter]:
    return [
        click.Argument(["files"], nargs=-1, type=str, metavar="[FILES]..."),
        Option("--family", ROWS, "Only this hardware family; repeatable.", multiple=True, metavar="NAME"),
    ]


def answer_options(name: str) -> list[click.Parameter]:
    """Return format and destination of an answer."""
    return [
        output_format(ANSWERS[name].formats),
        Option("--output", OUTPUT, "Write the answer there instead of stdout.", metavar="FILE"),
    ]


def output_format(words: tuple[str, ...]) -> Option:
    """Return the forms an answer may have."""
    return Option("--format", OUTPUT, "Form of the answer.", type=Word(words), default=words[0])


def general_options() -> list[click.Parameter]:
    """Return what every command takes."""
    colours = "Colours on a terminal; NO_COLOR and FORCE_COLOR are respected."
    return [
        Option("--color", GENERAL, colours, type=Word(("auto", "always", "never")), default="auto"),
        Option("-v --verbose", GENERAL, "Show every assumption.", count=True),
        Option("-q --quiet", GENERAL, "Show the tables alone.", count=True),
        Option("--debug", GENERAL, "Show where a defect of the simulator arose.", is_flag=True),
    ]


def given_on_command_line(ctx: click.Context, params: Sequence[click.Parameter]) -> list[str]:
    """Return the options among ``params`` that stand on the command line."""
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
            return (WordSet if many else Word)(setting.asked or setting.choices)
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
