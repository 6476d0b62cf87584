"""Every option, defined once; a ranking takes sets of values where an estimate takes one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any, assert_never

import click

from simulator.question.scenario.layout import SETTINGS
from simulator.question.scenario.settings import LayoutSetting
from simulator.question.vocabulary import FRAMEWORKS, PRECISIONS, STACKS
from simulator.show.cli.parameters import (
    Percentage,
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

FORMATS = ("table", "json", "jsonl", "csv", "markdown")
ANSWER_FORMATS = (*FORMATS, "html")
CALIBRATE_FORMATS = ("table", "json", "markdown", "yaml")
ACCURACY_FORMATS = ("table", "markdown", "json", "html")

QUESTION, LAYOUT, ROWS, OUTPUT, GENERAL = "Question", "Layout", "Measured rows", "Output", "General"
CONTEXT_SETTINGS: dict[str, Any] = {
    "auto_envvar_prefix": "SIMULATE",
    "help_option_names": ["-h", "--help"],
    "max_content_width": 100,
}
"""The same for all commands, so that SIMULATE_MODEL means `--model` in each."""

Handler = Callable[[click.Context, Mapping[str, Any]], None]

_SIZE = (1, 2**20)
_LAYERS = (1, 10_000)


class Option(click.Option):
    """An option that knows the section of the help it belongs to."""

    def __init__(self, *names: str, section: str, **attributes: Any) -> None:
        super().__init__(names, **attributes)
        self.section = section


class Sectioned(click.Command):
    """A command whose help lists options by section."""

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


def question_options() -> list[click.Parameter]:
    """Return what is trained on what."""
    words: list[tuple[str, dict[str, Any]]] = [
        (
            "--model",
            {"type": SpecName("model"), "help": "Shipped model, own YAML, or Hugging Face config.json."},
        ),
        (
            "--hardware",
            {"type": SpecName("hardware"), "default": "z2000", "help": "Shipped hardware or own YAML."},
        ),
        ("--nodes", {"type": Whole(*_SIZE), "help": "Nodes; one where neither nodes nor devices are given."}),
        ("--devices", {"type": Whole(1, 2**24), "help": "Devices, instead of nodes."}),
        ("--seq-length", {"type": Whole(1, 2**27), "default": 8192, "help": "Tokens in a sequence."}),
        ("--global-batch-size", {"type": Whole(1, 2**27), "default": 1024, "help": "Sequences in a step."}),
        ("--precision", {"type": Word(PRECISIONS), "default": "bf16", "help": "Type of matrix products."}),
        ("--lora-rank", {"type": Whole(1, 2**16), "help": "Train adapters of this rank, not the weights."}),
        ("--num-layers", {"type": Whole(*_LAYERS), "help": "Cut or extend the model to this many layers."}),
        ("--framework", {"type": Word(FRAMEWORKS), "default": "megatron", "help": "What trains the model."}),
        (
            "--stack",
            {
                "type": Word(STACKS),
                "help": "Named set of switches under --option; by default that of the hardware's own runs, if its "
                "spec names one, else `default`: what the framework's arguments default to.",
            },
        ),
        (
            "--option",
            {
                "type": Setting(),
                "multiple": True,
                "help": "Switch of the framework; repeatable. `simulate frameworks` lists them.",
            },
        ),
        (
            "--calibration",
            {
                "type": str,
                "metavar": "FILE|none",
                "help": "Own coefficients, or none for the priors; by default those shipped for the hardware.",
            },
        ),
    ]
    return [
        Option(name, section=QUESTION, show_default="default" in attributes, **attributes) for name, attributes in words
    ]


def layout_options(*, many: bool) -> list[click.Parameter]:
    """Return the layout: sets to choose from if ``many``, else one value each."""
    found: list[click.Parameter] = [_layout_option(setting, many=many) for setting in SETTINGS]
    if many:
        text = "Also consider tensor parallelism across nodes."
        found.append(Option("--allow-tp-across-nodes", section=LAYOUT, is_flag=True, default=False, help=text))
    return found


def output_options(*, ranking: bool) -> list[click.Parameter]:
    """Return how the answer is shown."""
    found = listing_options(ANSWER_FORMATS)
    if ranking:
        text = "Layouts to show."
        found.append(Option("--top", section=OUTPUT, type=Whole(1, 10_000), default=10, show_default=True, help=text))
        found.append(min_fit_probability_option())
        text = "Show every layout, not only the best of each split into TP, PP, CP and EP."
        found.append(Option("--variants", section=OUTPUT, is_flag=True, default=False, help=text))
    else:
        text = "Write a step pass by pass there: trace events that Perfetto opens."
        found.append(Option("--timeline", section=OUTPUT, type=str, metavar="FILE", help=text))
    text = "Tokens of the whole run, such as 100B: adds days to train."
    found.append(Option("--train-tokens", section=OUTPUT, type=Tokens(), help=text))
    text = "With --train-tokens: adds the cost."
    found.append(Option("--price-per-device-hour", section=OUTPUT, type=Price(), help=text))
    return found


def min_fit_probability_option() -> Option:
    """Return how sure a recommendation is to fit."""
    text = "Least probability to fit of what is recommended; what fits with less stands apart. 0 recommends all."
    kind = Percentage(zero=True)
    return Option("--min-fit-probability", section=OUTPUT, type=kind, default=0.95, show_default=True, help=text)


def calibrate_options() -> list[click.Parameter]:
    """Return what is fitted, and where the result goes."""
    return [
        *_rows_options(),
        *_log_options(),
        Option(
            "--template",
            section=ROWS,
            is_flag=True,
            default=False,
            help="Print a table of the columns that a run needs, with one example, on --hardware where given.",
        ),
        Option(
            "--rows-only", section=ROWS, is_flag=True, default=False, help="Turn the logs into rows and stop there."
        ),
        output_format(CALIBRATE_FORMATS),
        Option(
            "--output",
            section=OUTPUT,
            type=str,
            metavar="FOLDER",
            help="Write FAMILY.yaml there for each family too; a probe writes everything there.",
        ),
    ]


def _log_options() -> list[click.Parameter]:
    """Return the logs that become rows, and what is known beside them."""
    return [
        Option(
            "--from-log", section=ROWS, multiple=True, type=str, metavar="LOG", help="Own training log; repeatable."
        ),
        Option(
            "--hardware",
            section=ROWS,
            type=SpecName("hardware"),
            help="Hardware that the logs or the template's run ran on, or that is probed.",
        ),
        Option(
            "--model",
            section=ROWS,
            type=SpecName("model"),
            help="Model of the logs, where none shipped has its shape; or the only one that a probe launches.",
        ),
        Option(
            "--option",
            section=ROWS,
            type=Setting(),
            multiple=True,
            help="Switch of the framework that the logs do not show; repeatable.",
        ),
        Option(
            "--recipe",
            section=ROWS,
            type=str,
            metavar="FILE",
            help="Recipe, or estimate saved with --format json, of the logged run: says what the log does not.",
        ),
        Option(
            "--set",
            section=ROWS,
            type=Setting("the names are a table's columns"),
            multiple=True,
            help="A column of the logs' rows, whatever the logs say; repeatable.",
        ),
        Option(
            "--warmup",
            section=ROWS,
            type=Whole(0, 10_000),
            default=2,
            show_default=True,
            help="Logged steps to leave out at the start of a run.",
        ),
    ]


def accuracy_options() -> list[click.Parameter]:
    """Return which rows are judged, and how the answer is shown."""
    text = "Show only the rows of this table; the fit uses all."
    return [
        *_rows_options(),
        Option("--table", section=ROWS, type=str, metavar="NAME", help=text),
        Option(
            "--calibration",
            section=ROWS,
            type=str,
            metavar="FILE",
            help="Show the rows of the files with what ships, with this calibration, and left out one by one.",
        ),
        Option(
            "--own",
            section=ROWS,
            is_flag=True,
            default=False,
            help="The same with the rows of the files fitted to themselves.",
        ),
        output_format(ACCURACY_FORMATS),
        _output_file(),
    ]


def _rows_options() -> list[click.Parameter]:
    text = "Only this hardware family; repeatable."
    return [
        click.Argument(["files"], nargs=-1, type=str, metavar="[FILES]..."),
        Option("--family", section=ROWS, multiple=True, type=str, metavar="NAME", help=text),
    ]


def listing_options(words: tuple[str, ...] = FORMATS) -> list[click.Parameter]:
    """Return format and destination."""
    return [output_format(words), _output_file()]


def output_format(words: tuple[str, ...]) -> Option:
    """Return the forms an answer may have."""
    text = "Form of the answer."
    return Option("--format", section=OUTPUT, type=Word(words), default=words[0], show_default=True, help=text)


def _output_file() -> Option:
    return Option(
        "--output", section=OUTPUT, type=str, metavar="FILE", help="Write the answer there instead of stdout."
    )


def general_options() -> list[click.Parameter]:
    """Return what every command takes."""
    return [
        Option(
            "--color",
            section=GENERAL,
            type=Word(("auto", "always", "never")),
            default="auto",
            show_default=True,
            help="Colours on a terminal; NO_COLOR and FORCE_COLOR are respected.",
        ),
        Option("-v", "--verbose", section=GENERAL, count=True, help="Show every assumption."),
        Option("-q", "--quiet", section=GENERAL, count=True, help="Show the tables alone."),
        Option(
            "--debug", section=GENERAL, is_flag=True, default=False, help="Show where a defect of the simulator arose."
        ),
    ]


def given_on_command_line(ctx: click.Context, params: Sequence[click.Parameter]) -> list[str]:
    """Return the options among ``params`` that stand on the command line."""
    source = click.core.ParameterSource.COMMANDLINE
    return [param.opts[-1] for param in params if param.name and ctx.get_parameter_source(param.name) is source]


def left_to_default(ctx: click.Context, name: str) -> bool:
    """Tell whether neither command line nor environment set the parameter ``name``."""
    sources = (click.core.ParameterSource.DEFAULT, None)
    return ctx.get_parameter_source(name) in sources


def _layout_option(setting: LayoutSetting, *, many: bool) -> Option:
    """Return the option of one field of a layout."""
    name, kind = setting.option, _type_of(setting, many=many)
    if setting.kind == "flag":
        name += f"/--no-{setting.option.removeprefix('--')}"
    return Option(name, section=LAYOUT, type=kind, default=None, help=setting.help)


def _type_of(setting: LayoutSetting, *, many: bool) -> click.ParamType[Any] | None:
    match setting.kind:
        case "count" | "number":
            return (WholeSet if many else Whole)(setting.low, setting.high)
        case "word":
            return (WordSet if many else Word)(setting.asked)
        case "words":
            return WordSet(setting.choices)
        case "layers":
            return WholeList(setting.low, setting.high)
        case "flag":
            return None
        case _:
            assert_never(setting.kind)


def handled(name: str, module: str = "commands") -> Callable[..., None]:
    """Return the click callback that calls the handler ``name`` of a module here, imported when it is needed."""

    def callback(**values: Any) -> None:
        handler: Handler = getattr(import_module(f"simulator.show.cli.{module}"), name)
        handler(click.get_current_context(), values)

    return callback
