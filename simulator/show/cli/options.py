"""Options of the command line: types of their values, those that several commands share, and the sections of a help.

Options of a question's inputs follow from `scenario.inputs` and `scenario.layout`; a ranking takes sets of values
(`--tp 1,2,4`) where an estimate takes one. `options.csv` lists the others by the groups that commands take of it,
`commands.csv` the commands with what runs them, their texts and parameters, `_words.csv` other helps of options there.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache, partial
from typing import TYPE_CHECKING, Any, NoReturn, assert_never

import click

from simulator.errors import InputError, not_one_of
from simulator.files import read_rows, read_table, read_words
from simulator.late import Lazy, late_pattern
from simulator.question.scenario.inputs import INPUTS, REQUIRED, TUNING_WORKLOAD, InputSetting
from simulator.question.scenario.layout import SETTINGS
from simulator.question.vocabulary import PRECISIONS, RECIPE_FORMATS, framework_hint
from simulator.show.cli.streams import refuse_inputs
from simulator.show.forms import ANSWERS

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from simulator.answers import plan
    from simulator.question import units
    from simulator.question.frameworks import profile
    from simulator.question.specs import catalogue, optimizers
    from simulator.question.specs import names as shipped
    from simulator.search import alternatives

    ParamType = click.ParamType[Any]
    Choice = click.Choice[str]
else:
    ParamType = click.ParamType
    Choice = click.Choice
    units, alternatives, profile = map(Lazy, ("question.units", "search.alternatives", "question.frameworks.profile"))
    plan = Lazy("answers.plan")
    catalogue, optimizers, shipped = (Lazy(f"question.specs.{name}") for name in ("catalogue", "optimizers", "names"))

LARGEST_SET = 4096
"""Most values that one option may list."""

_WHOLE = late_pattern(r"[0-9]{1,15}", re.ASCII)
_SPAN = late_pattern(r"([+-]?[0-9]+)(?::([+-]?[0-9]+))?", re.ASCII)
_REPEATED = late_pattern(r"([0-9]+)x([1-9][0-9]{0,3})", re.ASCII)


def shown(value: object) -> str:
    """Return a value quoted, shortened and printable, for a message."""
    text = str(value)
    text = text if len(text) <= 60 else text[:60] + "..."
    return "'" + "".join(mark if mark.isprintable() else "?" for mark in text) + "'"


class Parsed(ParamType):
    """Type whose value a function reads from a text; a value of another type, such as a default, stays."""

    def __init__(self, name: str, read: Callable[[str], Any], names: Callable[[], Iterable[str]] = tuple) -> None:
        """``name`` stands for the value in a help; ``names`` are completions; ``read`` raises InputError."""
        self.name = name
        self._read, self._names = read, names

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the value of a text. Fails with a message that says what is allowed."""
        if not isinstance(value, str):
            return value
        try:
            return self._read(value)
        except InputError as error:
            self.fail(str(error), param, ctx)

    def completions(self, _incomplete: str) -> Iterable[str]:
        """Return candidates for completion."""
        return self._names()

    def shell_complete(self, _ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """Return the completions that begin with `incomplete`."""
        from click.shell_completion import CompletionItem

        return [CompletionItem(text) for text in self.completions(incomplete) if text.startswith(incomplete)]


class Whole(Parsed):
    """A whole number from ``low`` to ``high``; ``16k`` is 16,000, of tokens 16,384."""

    def __init__(self, low: int, high: int, *, of_tokens: bool = False, name: str = "N") -> None:
        super().__init__(name, self.number)
        self.low, self.high, self.of_tokens = low, high, of_tokens

    def number(self, text: str) -> Any:
        """Return the number of a text. Raises InputError."""
        try:
            number = int(text) if _WHOLE.fullmatch(text.strip()) else units.parse_count(text, length=self.of_tokens)
        except InputError:
            number = self.low - 1
        if not self.low <= number <= self.high:
            such = ", such as 8k" if self.of_tokens else ""
            raise InputError(f"{shown(text)} is not a whole number from {self.low} to {self.high}{such}")
        return number


class Nodes(Whole):
    """Number of nodes; ``auto`` or ``auto:256`` searches the fewest on which a layout fits."""

    def __init__(self, low: int, high: int) -> None:
        super().__init__(low, high, name="N|auto")

    def number(self, text: str) -> Any:
        """Return the number, or the text of a search. Raises InputError."""
        auto = text.strip().lower()
        if not auto.startswith("auto"):
            return super().number(text)
        if alternatives.most_nodes(auto) is None:
            raise InputError(f"{shown(text)} is not auto or auto:N, such as auto:256")
        return auto


class WholeList(Parsed):
    """Whole numbers: ``18,21x2,20``; a range ``0:9`` counts up and includes both ends; a set is ascending."""

    def __init__(self, low: int, high: int, *, distinct: bool = False) -> None:
        super().__init__("LIST", self.numbers)
        self.low, self.high, self.distinct = low, high, distinct

    def numbers(self, text: str) -> tuple[int, ...]:
        """Return the numbers of a text. Raises InputError."""
        numbers: list[int] = []
        for item in text.split(","):
            repeated = _REPEATED.fullmatch(item.strip())
            first, last = self._ends(repeated[1] if repeated else item.strip(), text)
            times = int(repeated[2]) if repeated else 1
            if len(numbers) + times * (last - first + 1) > LARGEST_SET:
                raise InputError(f"{shown(text)} lists more than {LARGEST_SET} values")
            numbers.extend([*range(first, last + 1)] * times)
        return tuple(sorted(set(numbers)) if self.distinct else numbers)

    def _ends(self, item: str, text: str) -> tuple[int, int]:
        item_text = shown(item) if item == text.strip() else f"{shown(text)}: {shown(item)}"
        span = _SPAN.fullmatch(item)
        if span is None:
            middle, end = min(self.low + 1, self.high), min(self.low + 3, self.high)
            such = f"{middle} or {self.low},{middle} or {self.low}:{end}"
            raise InputError(
                f"{item_text} is not understood; write numbers from {self.low} to {self.high}, such as {such}"
            )
        ends = [end for end in span.groups() if end is not None]
        if not all(_WHOLE.fullmatch(end) and self.low <= int(end) <= self.high for end in ends):
            raise InputError(f"{item_text} is outside {self.low} to {self.high}")
        first, last = int(ends[0]), int(ends[-1])
        if first > last:
            raise InputError(f"{item_text} counts down; write {last}:{first}")
        return first, last


class Word(Choice):
    """One of a fixed set of words; the message on a wrong one names the nearest."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the word, in the case of the choice."""
        words = {choice.lower(): choice for choice in self.choices}
        if str(value).lower() not in words:
            self.refuse(str(value), param, ctx)
        return words[str(value).lower()]

    def refuse(self, word: str, param: click.Parameter | None, ctx: click.Context | None) -> NoReturn:
        """Fail with a message that names the allowed words."""
        choices = [str(choice) for choice in self.choices]
        hint = framework_hint(word) if "torch" in choices else ""
        self.fail(f"{shown(word)}{not_one_of(word, choices, hint)}", param, ctx)


class OptimizerWord(Word):
    """Name of an optimizer, or a framework's word for it, such as `adamw_torch`."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the word, which may say more than the name."""
        super().convert(optimizers.optimizer_name(str(value)), param, ctx)
        return str(value)


class WordSet(Word):
    """Several of a fixed set of words: ``none,full``."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the words as a tuple, in the order of the choices."""
        if not isinstance(value, str):
            return value
        words = {word.strip().lower() for word in value.split(",")}
        for word in sorted(words - {choice.lower() for choice in self.choices}):
            self.refuse(word, param, ctx)
        return tuple(word for word in self.choices if word.lower() in words)


def _tokens(text: str) -> int:
    tokens = units.parse_count(text)
    if not 1 <= tokens <= 10**18:
        raise InputError(f"{shown(text)} is not from 1 to 1e18 tokens")
    return tokens


TOKENS = Parsed("TOKENS", _tokens)
"""A number of tokens, such as ``100B`` or ``1.5T``."""


def amount(name: str = "AMOUNT", *, zero: bool = False) -> Parsed:
    """Return the type of an amount above zero, of money unless ``name`` is a unit of time: ``230k``, ``30d``."""

    def read(text: str) -> float:
        minutes = {"DAYS": 1440, "HOURS": 60, "MINUTES": 1}.get(name)
        try:
            number = units.parse_number(text, units.MINUTES, minutes) if minutes else units.parse_number(text)
        except InputError:
            number = math.nan
        if not 0 <= number <= 1e9:
            such = f", such as 2.5{', 36h or 30d' if minutes else ' or 230k'}"
            raise InputError(f"{shown(text)} is not a number from 0 to 1e9{such}")
        if number == 0 and not zero:
            raise InputError(f"{shown(text)} is not above 0")
        return number

    return Parsed(name, read)


def percentage(*, zero: bool = False) -> Parsed:
    """Return the type of a share from 0 to 1, of which ``zero`` allows 0; ``90%`` is 0.9."""

    def read(text: str) -> float:
        fraction = units.share_of(text)
        if not (0 < fraction <= 1 or (zero and fraction == 0)):
            low = "from 0 to" if zero else "above 0 and up to"
            raise InputError(f"{shown(text)} is not {low} 1, such as 0.9 or 90%")
        return fraction

    return Parsed("SHARE", read)


class Setting(Parsed):
    """A name and its value, ``NAME=VALUE``; of switches unless ``hint`` says otherwise. Both complete in the shell."""

    def __init__(self, hint: str = "`simulate frameworks` lists the names", *, empty: bool = False) -> None:
        super().__init__("NAME=VALUE", self.pair)
        self._hint, self._empty = hint, empty

    def pair(self, text: str) -> tuple[str, str]:
        """Return name and value, which may be empty where allowed. Raises InputError."""
        name, equals, value = (part.strip() for part in text.partition("="))
        if not (name and equals and (value or self._empty)):
            raise InputError(f"{shown(text)} is not NAME=VALUE; {self._hint}")
        return name, value

    def completions(self, incomplete: str) -> Iterable[str]:
        """Return the switches, or after the equals sign the words that the switch allows."""
        name, equals, _ = incomplete.partition("=")
        if not equals:
            return [f"{spec.name}=" for spec in profile.switches()]
        return [
            f"{name}={word}"
            for spec in profile.switches()
            if spec.name == name
            for word in (("true", "false") if isinstance(spec.default, bool) else spec.metadata["choices"])
        ]


class SpecName(Parsed):
    """Name of a shipped spec, for which an alias stands too, or a path; both complete in the shell."""

    def __init__(self, kind: shipped.SpecKind, *, asks: bool = False) -> None:
        super().__init__("NAME|PATH", self.spec)
        self.kind, self.asks = kind, asks

    def spec(self, text: str) -> str:
        """Return the text with shipped names for aliases; what `asks` keeps those that leave a device's memory open."""
        if self.kind == "model":
            return self._shipped(text)
        return shipped.NAMES_OF_CLUSTER.sub(lambda name: self._shipped(name[0]), text)

    def _shipped(self, text: str) -> str:
        if shipped.spec_file(self.kind, text) is not None or (
            self.asks and shipped.names_of_other_memory(self.kind, text)
        ):
            return text
        file = catalogue.shipped_file(self.kind, text)
        return text if file is None else file.stem

    def completions(self, _incomplete: str) -> Iterable[str]:
        """Return the shipped names."""
        return shipped.spec_names(self.kind)

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """Return the shipped names that begin with `incomplete`, and paths if it is one."""
        from click.shell_completion import CompletionItem

        if "/" in incomplete or incomplete.startswith("."):
            return [CompletionItem(incomplete, type="file")]
        return super().shell_complete(ctx, param, incomplete)


def listed_name(names: Callable[[], Callable[[], Sequence[str]]]) -> Parsed:
    """Return the type of a name in a command's listing."""

    def read(text: str) -> str:
        known = names()()
        same = next((name for name in known if name.lower() == text.lower()), None)
        if same is None:
            raise InputError(f"{shown(text)}{not_one_of(text, known)}")
        return same

    return Parsed("NAME", read, lambda: list(names()()))


QUESTION, LAYOUT, ROWS, OUTPUT, GENERAL = "Question", "Layout", "Measured rows", "Output", "General"
CONTEXT_SETTINGS: dict[str, Any] = {
    "auto_envvar_prefix": "SIMULATE",
    "help_option_names": ["-h", "--help"],
    "max_content_width": 100,
}
"""The same for all commands, so that SIMULATE_MODEL means `--model` in each."""

_FOLLOWED = f"{__name__}.followed"  # key of the context of a group whose options a command follows


class Option(click.Option):
    """Option with a section of the help, where its default is shown; without type and metavar it is a flag."""

    def __init__(self, names: str, text: str, type: ParamType | None = None, **more: Any) -> None:  # noqa: A002  click's
        self.section: str = more.pop("section", OUTPUT)
        if type is None and not {"metavar", "count"} & more.keys():
            more["is_flag"] = True
        shows = more.get("default") is not None
        super().__init__(names.split(), help=text, type=type, show_default=shows, **more)

    def resolve_envvar_value(self, ctx: click.Context) -> str | None:
        """Return the environment variable's value; None for a group's own option if a command follows."""
        return None if ctx.meta.get(_FOLLOWED) is ctx else super().resolve_envvar_value(ctx)


_NAMED_TYPES: Mapping[str, Callable[..., ParamType]] = {
    **{name.lower(): partial(amount, name) for name in ("DAYS", "HOURS", "MINUTES", "PRICE", "NUMBER")},
    "money": amount,
    "share": percentage,
    "tokens": lambda: TOKENS,
    "model": lambda: SpecName("model"),
    "hardware": lambda: SpecName("hardware"),
    "precisions": lambda: WordSet(PRECISIONS),
    "recipe": lambda: Word((*RECIPE_FORMATS, *OTHER_TARGETS)),
    "switch": Setting,
    "column": lambda: Setting("the names are a table's columns"),
    "field": lambda: Setting("such as num_hidden_layers=32"),
    "known": lambda: Setting("such as WORLD_SIZE=4; the answer names what is missing", empty=True),
    "offer": lambda: Parsed("OFFER", lambda text: plan.parse_offer(text), lambda: SpecName("hardware").completions("")),  # noqa: PLW0108  imported when it reads
}  # types of `options.csv` that are neither a range nor a list of words


def _listed_type(text: str) -> ParamType | None:
    """Return the type of a row: `1:1000`, `one of these words`, `some of these words`, `hours`, `hours or 0`."""
    if not text:
        return None
    if span := _SPAN.fullmatch(text):
        return Whole(int(span[1]), int(span[2]))
    kind, *words = text.split()
    if kind in ("one", "some"):
        return (Word if kind == "one" else WordSet)(words)
    return _NAMED_TYPES[kind](zero=True) if words else _NAMED_TYPES[kind]()


@cache
def listed(group: str) -> tuple[Option, ...]:
    """Return the options of a group of `options.csv`, in order."""
    return tuple(_listed_option(cells) for groups, *cells in _option_rows() if group in groups.split())


@cache
def _option_rows() -> list[list[str]]:
    return read_rows(__file__, "options")


def _listed_option(cells: Sequence[str]) -> Option:
    section, names, kind, metavar, default, repeat, text = cells
    more: dict[str, Any] = {name: cell for name, cell in (("metavar", metavar), ("default", default)) if cell}
    more |= {"": {}, "yes": {"multiple": True}, "count": {"count": True}}[repeat]
    return Option(names, text, _listed_type(kind), section=section, hidden=not section, **more)


@cache
def command_texts() -> Mapping[str, Mapping[str, str]]:
    """Return every command by its name: what runs it, short help, help where that is longer, epilog, parameters."""
    return {row["command"]: row for row in read_table(__file__, "commands")}


def parameters(command: str) -> list[click.Parameter]:
    """Return the parameters of a command, in order, with the helps that it has of its own."""
    params = [param for word in command_texts()[command]["parameters"].split() for param in _parameters(word)]
    own = read_words(f"helps of {command}")
    for param in params:
        if isinstance(param, click.Option) and param.name in own:
            param.help = own[param.name]
            _open(param)
    return params


def _parameters(word: str) -> Sequence[click.Parameter]:
    """Return an argument (`files=[FILES]...`, `file!=FILE` where it must be given), or options but those behind `-`."""
    argument, equals, metavar = word.partition("=")
    if equals:
        count, must = -1 if metavar.endswith("...") else 1, argument.endswith("!")
        return [click.Argument([argument.rstrip("!")], required=must, nargs=count, type=str, metavar=metavar)]
    (kind, _, answer), *without = (part.partition(":") for part in word.split("-"))
    made: Mapping[str, Callable[[], Sequence[click.Parameter]]] = {
        "question": question_options,
        "questions": partial(question_options, many=True),
        "layout": partial(layout_options, many=False),
        "layouts": partial(layout_options, many=True),
        "open": open_options,
        "answer": partial(answer_options, answer),
        "format": lambda: [output_format(answer)],
    }
    options = made[kind]() if kind in made else listed(kind)
    return [option for option in options if option.name not in {name for name, *_ in without}]


def open_options() -> list[click.Parameter]:
    """Return the options of an estimate without their defaults, and those that replace a number of the model."""
    return [
        *map(_open, question_options()),
        *listed("model_field"),
        *map(_open, layout_options(many=False)),
    ]


def _open(param: click.Parameter) -> click.Parameter:
    """Return an option without its default, for which a recipe's value or that of the hardware stands."""
    if isinstance(param, click.Option) and not param.multiple and param.name != "hardware":
        param.default, param.show_default = None, False
    return param


OTHER_TARGETS: Mapping[str, str] = {"bridge": "nemo", "deepspeed": "accelerate", "torch": "torchtitan"}
"""Other names of the frameworks of a recipe to write; `deepspeed` selects its own stack too."""


Handler = Callable[[click.Context, Mapping[str, Any]], None]


class Sectioned(click.Command):
    """A command whose help lists options by section; ``handler`` gets its context and the values of its parameters."""

    def __init__(self, name: str, handler: Handler, **attributes: Any) -> None:
        def callback(**values: Any) -> None:
            handler(click.get_current_context(), values)

        if "help" not in attributes:
            texts = command_texts()[name]
            usual = {"help": texts["help"] or texts["short"], "short_help": texts["short"], "epilog": texts["epilog"]}
            attributes = usual | attributes
        if "params" not in attributes:
            attributes["params"] = parameters(name)
        super().__init__(name, callback=callback, context_settings=CONTEXT_SETTINGS, **attributes)

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
        if not isinstance(self, click.Group):
            sections[GENERAL].append(("-v, -q, --debug, --color", "As of every command: simulate --help."))
        for title, records in sections.items():
            with formatter.section(title):
                formatter.write_dl(records)


def batch_in_sequences(ctx: click.Context) -> None:
    """Replace a batch in tokens by one in sequences. Raises UsageError where these are not whole."""
    tokens = ctx.params.pop("global_batch_tokens", None)
    if tokens is None:
        return
    length = ctx.params["seq_length"]
    if ctx.params.get("lengths") is not None:
        raise click.UsageError("--global-batch-tokens needs sequences of one length: give --global-batch-size")
    if not left_to_default(ctx, "global_batch_size"):
        raise click.UsageError("--global-batch-size and --global-batch-tokens exclude each other: give one")
    if ctx.params.get("method") or ctx.params.get("lora_rank"):
        length = TUNING_WORKLOAD["seq_length"] if left_to_default(ctx, "seq_length") else length
    if length is not None and left_to_default(ctx, "seq_length") and ctx.params["model"]:
        length = min(length, catalogue.load_model(ctx.params["model"]).longest_sequence or length)
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
            of_tokens = Whole(1, 2**50, of_tokens=True)
            text = "Tokens in a step, instead; 4M."
            options.append(Option("--global-batch-tokens", text, of_tokens, section=QUESTION))
    return options


def _question_option(setting: InputSetting, *, many: bool) -> Option:
    name, text = setting.option, setting.help
    if setting.searchable and many:
        text += " auto: the fewest that fit, up to 1024; auto:256: up to 256."
        return Option(name, text, Nodes(setting.low, setting.high), section=QUESTION)
    match setting.kind:
        case "switches":
            return Option(name, text, Setting(), section=QUESTION, multiple=True)
        case "file":
            return Option(name, text, section=QUESTION, metavar="FILE|none")
        case "lengths" | "images":
            return Option(name, text, section=QUESTION, metavar="FILE|TEXT" if name == "--lengths" else "NxWxH")
    default = None if setting.default is REQUIRED else setting.default
    return Option(name, text, _type_of(setting, many=False), section=QUESTION, default=default)


def layout_options(*, many: bool) -> list[click.Parameter]:
    """Return the options of the layout: sets to choose from if ``many``, else one value each."""
    options: list[click.Parameter] = []
    for setting in SETTINGS:
        unset = f"/--no-{setting.option.removeprefix('--')}" if setting.kind == "flag" else ""
        kind = _type_of(setting, many=many)
        options.append(Option(setting.option + unset, setting.help, kind, section=LAYOUT, default=None))
    if many:
        text = "Also consider tensor parallelism across nodes."
        options.append(Option("--allow-tp-across-nodes", text, section=LAYOUT))
    return options


def answer_options(name: str) -> list[click.Parameter]:
    """Return the options for format and destination of an answer."""
    return [output_format(name), Option("--output", "Write the answer there instead of stdout.", metavar="FILE")]


def output_format(name: str) -> Option:
    """Return the option for the format of an answer, by default its first."""
    forms = ANSWERS[name].formats
    return Option("--format", "Form of the answer.", Word(forms), default=forms[0])


def given_on_command_line(ctx: click.Context, params: Sequence[click.Parameter]) -> list[str]:
    """Return the options among ``params`` that were given on the command line."""
    source = click.core.ParameterSource.COMMANDLINE
    return [param.opts[-1] for param in params if param.name and ctx.get_parameter_source(param.name) is source]


def refuse_options(values: Mapping[str, Any], names: Iterable[str], why: str) -> None:
    """Raise UsageError for the first of some options that has a value."""
    for name in names:
        if values[name]:
            raise click.UsageError(f"--{name.replace('_', '-')} {why}")


def left_to_default(ctx: click.Context, name: str) -> bool:
    """Tell whether neither command line nor environment set the parameter ``name``."""
    return ctx.get_parameter_source(name) in (click.core.ParameterSource.DEFAULT, None)


def _type_of(setting: InputSetting, *, many: bool) -> click.ParamType[Any] | None:  # noqa: PLR0911  one per kind
    match setting.kind:
        case "model" | "hardware":
            return SpecName(setting.kind, asks=True)
        case "count" | "number":
            low, high = setting.low, setting.high
            return WholeList(low, high, distinct=True) if many else Whole(low, high, of_tokens=setting.of_tokens)
        case "word":
            word = OptimizerWord if setting.name == "optimizer" else Word
            return (WordSet if many else word)(setting.named_choices or setting.choices)
        case "words":
            return WordSet(setting.choices)
        case "layers":
            return WholeList(setting.low, setting.high)
        case "share":
            return percentage()
        case "flag" | "file" | "switches" | "lengths" | "images":
            return None
        case _:
            assert_never(setting.kind)


_GENERAL_WORD = late_pattern(r"-[vq]+|--verbose|--quiet|--debug|--color(=.*)?")


def general_first(words: Sequence[str]) -> list[str]:
    """Return the words of a command line with the general options at its front; what follows `--` stays.

    >>> general_first(["estimate", "--model", "qwen3-8b", "-v"])
    ['-v', 'estimate', '--model', 'qwen3-8b']
    """
    end = words.index("--") if "--" in words else len(words)
    general: list[str] = []
    rest: list[str] = []
    left = iter(words[:end])
    for word in left:
        (general if _GENERAL_WORD.fullmatch(word) else rest).append(word)
        if word == "--color":
            general += [value for value in (next(left, None),) if value is not None]
    return [*general, *rest, *words[end:]]
