"""Command `simulate`: its sub-commands, and how errors become exit codes.

    $ simulate rank --modle llama3.1-8b
    simulate: error: no such option '--modle', did you mean '--model'?        # exit code 2

A command is built when it is named, of its row in `commands.csv`; the module of `show.cli` that acts is imported then.
"""

from __future__ import annotations

import atexit
import errno
import gc
import os
import re
import sys
import warnings
from collections import UserDict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NoReturn

import click

from simulator._version import __version__
from simulator.errors import SimulateError, did_you_mean, short_line
from simulator.files import read_rows
from simulator.late import Lazy, late_pattern
from simulator.question.vocabulary import FRAMEWORKS
from simulator.show.cli import options
from simulator.show.cli.options import Option, Sectioned, SpecName, Word
from simulator.show.cli.streams import CLOSED_PIPE, TYPED, open_streams, presentation, tell, write, write_answer

if TYPE_CHECKING:
    from simulator.frameworks import flags
    from simulator.question.specs import documents, names
    from simulator.show.cli import commands
    from simulator.show.report import listing, text
    from simulator.show.report import schema as keys
    from simulator.show.report.listing import SpecListing
else:
    commands, flags = map(Lazy, ("show.cli.commands", "frameworks.flags"))
    listing, keys, text = map(Lazy, ("show.report.listing", "show.report.schema", "show.report.text"))
    documents, names = Lazy("question.specs.documents"), Lazy("question.specs.names")

INTERRUPTED, INTERNAL = 130, 70
"""Exit codes beside 0 answered, 2 bad input or usage and 3 cannot answer."""

COLLECTED_AT = 50_000
"""New objects after which garbage is collected."""
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EBADF})
"""Errors of writing to a full or broken disk, or to a closed stream."""

_COMPLETION = "_SIMULATE_COMPLETE"  # environment variable that asks click for a shell's completions

_ENVIRONMENT = "Every option can be set in the environment: SIMULATE_HARDWARE=h20 stands for --hardware h20."


class Commands(UserDict[str, Any]):
    """Commands by name, each built at its first use to save start-up time."""

    def __getitem__(self, name: str) -> click.Command:
        """Return the command."""
        item = super().__getitem__(name)
        if not isinstance(item, click.Command):
            self.data[name] = item = _built(name, item["runs"])
        return item


def _built(name: str, runs: str) -> click.Command:
    """Return a command that runs a function of a module here, or lists."""
    if name in _LISTINGS:
        of_name, _ = _LISTINGS[name]
        argument = click.Argument(["name"], required=False, type=of_name, metavar="[NAME]")
        return Sectioned(name, _list, params=[argument, *options.answer_options(_form(of_name))])
    module, _, function = runs.partition(".")
    kind = Quoted if name in ("compare", "explain") else Sectioned
    acting = Lazy(f"show.cli.{module}")
    return kind(name, lambda ctx, values: getattr(acting, function)(ctx, values))  # noqa: PLW0108  imported when it runs


class Quoted(Sectioned):
    """A command whose arguments may be options in quotes."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the arguments; one that begins with a dash and has a blank inside is options in quotes."""
        return super().parse_args(ctx, [f" {word}" if word.startswith("-") and " " in word else word for word in args])


class MainCommand(Sectioned, click.Group):
    """The main command: without a sub-command it ranks; any error is one line on stderr."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands, then the options of the ranking."""
        self.format_commands(ctx, formatter)
        super().format_options(ctx, formatter)

    def format_commands(self, _ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands with their short help, without building them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, texts["short"]) for name, texts in options.command_texts().items()])

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the named command, with garbage collection on. Raises UsageError for an unknown name."""
        # By default it would take a tenth of what a check of many files takes.
        gc.set_threshold(COLLECTED_AT)
        gc.enable()
        name = args[0]
        if self.get_command(ctx, name) is None and not ctx.resilient_parsing:
            names = self.list_commands(ctx)
            near = did_you_mean(name, names) or _meant(name)
            raise click.UsageError(f"no such command {options.shown(name)}{near}; commands: {', '.join(names)}")
        return super().resolve_command(ctx, args)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the words, with general options first wherever they stand."""
        return super().parse_args(ctx, options.general_first(args))

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        """Return the context with the words of the command line, which pages show."""
        words = list(args)
        ctx = super().make_context(info_name, args, parent, **extra)
        ctx.meta[TYPED] = words
        return ctx

    def list_commands(self, _ctx: click.Context) -> list[str]:
        """Return the commands, the main one first."""
        return list(self.commands)

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,  # noqa: FBT002  click's own signature
        windows_expand_args: bool = True,  # noqa: FBT002  click's own signature
        **extra: Any,
    ) -> Any:
        """Run the command and leave the process with its exit code."""
        words = list(sys.argv[1:] if args is None else args)
        warnings.showwarning = _warned
        warnings.simplefilter("always", FutureWarning)

        def answer() -> Any:
            return super(MainCommand, self).main(
                args=words,
                prog_name=prog_name or "simulate",
                complete_var=complete_var,
                standalone_mode=False,
                windows_expand_args=windows_expand_args,
                **extra,
            )

        if not standalone_mode:
            return answer()
        sys.exit(_exit_code(answer, debug="--debug" in words or bool(os.environ.get("SIMULATE_DEBUG"))))


def run() -> NoReturn:
    """Run the command line of this process."""
    open_streams()
    code = INTERNAL
    # It runs behind all that is registered later, and spares Python to take apart what was imported.
    others = getattr(atexit, "_ncallbacks", lambda: 1)
    atexit.register(gc.freeze if others() else lambda: _leave(code))  # nobody's is left out
    try:
        cli.main(prog_name="simulate")
    except SystemExit as left:
        code = int(left.code or 0)
    sys.exit(code)


def _leave(code: int) -> None:
    """End the process, unless somebody measures it or a stream cannot be written: Python itself then says so."""
    gc.freeze()
    if sys.gettrace() is None and sys.getprofile() is None:
        with suppress(OSError, ValueError):
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)


def _exit_code(answer: Callable[[], Any], *, debug: bool) -> int:  # noqa: PLR0911  one per kind of end
    """Return the exit code of a command, with its error as one line on stderr."""
    try:
        code = answer()
    except (click.exceptions.Abort, KeyboardInterrupt) as ended:
        # click takes the end of any file, such as of a damaged `.pyc`, for one of what a person types.
        return _internal(ended.__cause__, debug=debug) if isinstance(ended.__cause__, EOFError) else INTERRUPTED
    except SystemExit as left:
        # If the reader of its help is gone, click leaves with 1, which here means that a recipe failed; nothing
        # else in it does, but for completions of a shell.
        code = left.code if isinstance(left.code, int) else int(left.code is not None)
        return CLOSED_PIPE if code == 1 and _COMPLETION not in os.environ else code
    except click.ClickException as error:
        _tell(f"error: {short_line(_usage_text(error))}")
        return error.exit_code if isinstance(error, click.UsageError) else click.UsageError.exit_code
    except SimulateError as error:
        _tell(f"error: {error}")
        return error.exit_code
    except Exception as error:  # noqa: BLE001  no input may end in a traceback
        if isinstance(error, OSError) and error.filename is None and error.errno in _FULL:
            # click itself writes help and version, without the checks of `write`.
            _tell(f"error: stdout: cannot be written: {error.strerror}")
            return click.UsageError.exit_code
        return _internal(error, debug=debug)
    return code if isinstance(code, int) else 0


def _internal(error: Exception, *, debug: bool) -> int:
    """Report an error that no input should cause; return its exit code."""
    message = short_line(f"{type(error).__name__}: {error}")
    if debug:
        from traceback import print_exception

        with suppress(OSError, ValueError):
            print_exception(error, file=sys.stderr)
    _tell(f"internal error: {message[:500]}; --debug shows where, please report it")
    return INTERNAL


def _warned(message: Warning | str, category: type[Warning], *_place: Any, **_more: Any) -> None:
    """Tell a warning, such as of an old spelling, in one line."""
    if issubclass(category, FutureWarning):
        _tell(f"note: {short_line(str(message))}")


def _tell(message: str) -> None:
    tell(f"simulate: {message}")


def _usage_text(error: click.ClickException) -> str:
    if isinstance(error, click.NoSuchOption):
        return f"no such option {options.shown(error.option_name)}{_nearest_option(error)}"
    if (extra := _EXTRA.fullmatch(error.message)) is not None:
        return f"{error.message[:1].lower()}{error.message[1:]}{_meant(extra[1])}"
    if isinstance(error, click.BadParameter) and error.param is not None and error.ctx is not None:
        name = error.param.name or ""
        if error.ctx.get_parameter_source(name) is click.core.ParameterSource.ENVIRONMENT:
            error.param_hint = f"{error.ctx.auto_envvar_prefix}_{name.upper()}"
        elif isinstance(error.param, click.Argument):
            error.param_hint = name.upper()
    text = error.format_message()
    return text[:1].lower() + text[1:]


_EXTRA = late_pattern(r"Got unexpected extra arguments? \((.*)\)", re.DOTALL)  # message of click on a word too many
_IN_OFFERS = frozenset(("--nodes", "--devices", "--hardware", "--price-per-device-hour"))
"""Options whose values stand in the offers of a plan."""


def _nearest_option(error: click.NoSuchOption) -> str:
    """Return what follows a wrong option: the one that frameworks' or others' name means, or whose option it is."""
    wrong, command = error.option_name, None if error.ctx is None else error.ctx.command
    own = [name for param in command.params for name in param.opts] if command else list(error.possibilities or ())
    rows = read_rows(__file__, "other_names")
    meant = next((option for option, names in rows if wrong.lstrip("-").replace("_", "-") in names.split()), wrong)
    if command is not None and command.name == "plan" and meant in _IN_OFFERS:
        return "; write --offer NAME:NODES@PRICE"
    option = meant.partition(" ")[0]  # a value may follow
    if option in own:
        return f", did you mean '{meant}'?"
    if any(option in param.opts for param in (*options.question_options(), *options.layout_options(many=False))):
        return f"; {'it' if meant == wrong else meant} is an option of rank and estimate"
    return did_you_mean(wrong, own)


def _meant(word: str) -> str:
    """Return what follows a word too many: how a model, hardware or a file is named; else nothing."""
    for kind in ("model", "hardware"):
        if names.shipped_name(kind, word):
            return f"; write --{kind} {word}"
    is_file = os.path.isfile(word) or word.endswith((".sh", ".yaml", ".yml", ".json", ".toml"))  # noqa: PTH113  false for what is no path
    return f"; `simulate check {word}` judges a recipe, `simulate explain {word}` says why" if is_file else ""


def _main(ctx: click.Context, values: Mapping[str, Any]) -> None:
    """Rank, unless a command follows."""
    params = [param for param in ctx.command.params if getattr(param, "section", options.GENERAL) != options.GENERAL]
    misplaced = options.given_on_command_line(ctx, params)
    if ctx.invoked_subcommand is not None:
        if misplaced:
            raise click.UsageError(
                f"{misplaced[0]} stands before the command '{ctx.invoked_subcommand}': put it behind"
            )
        return
    if not options.given_on_command_line(ctx, ctx.command.params) and not values["model"]:
        click.echo(ctx.get_help())
        return
    commands.rank(ctx, values)


def _version(ctx: click.Context, _param: click.Parameter, value: bool) -> None:
    if value and not ctx.resilient_parsing:
        click.echo(f"simulate {__version__} (data {documents.shipped_hash()})")
        ctx.exit()


def _list(ctx: click.Context, values: Mapping[str, Any]) -> None:
    """List what ships, or show one."""
    name = ctx.command.name or ""
    kind, load = _LISTINGS[name]
    if name == "schema" and values["format"] == "json":
        write(text.dumps(keys.schema(*filter(None, [values["name"]]))) + "\n", values["output"])
    else:
        write_answer(ctx, _form(kind), load()(values["name"]), presentation(ctx))


def _form(kind: click.ParamType[Any]) -> str:
    return "spec listing" if isinstance(kind, SpecName) else "listing"


_LISTINGS: Mapping[str, tuple[click.ParamType[Any], Callable[[], Callable[[str | None], SpecListing]]]] = {
    "models": (SpecName("model"), lambda: listing.models_listing),
    "hardware": (SpecName("hardware"), lambda: listing.hardware_listing),
    "frameworks": (Word(FRAMEWORKS), lambda: listing.frameworks_listing),
    "flags": (options.listed_name(lambda: flags.table_names), lambda: listing.flags_listing),
    "schema": (options.listed_name(lambda: lambda: tuple(keys.ROOTS)), lambda: listing.keys_listing),
}  # type of the name that a command takes, and what lists


cli = MainCommand(
    "simulate",
    _main,
    invoke_without_command=True,
    no_args_is_help=False,
    params=[
        *options.parameters("rank"),
        *options.listed("general"),
        Option(
            "--version",
            "Show the version and exit.",
            section=options.GENERAL,
            is_eager=True,
            expose_value=False,
            allow_from_autoenv=False,
            callback=_version,
        ),
    ],
    help=(
        "Memory and speed of training a language model, before the hardware is booked.\n\n"
        "`simulate --model llama3.1-70b --nodes 8` ranks the layouts that fit, fastest first."
    ),
    epilog="\n\n".join((options.command_texts()["rank"]["epilog"], _ENVIRONMENT)),
    commands=Commands(options.command_texts()),
    subcommand_metavar="[COMMAND [ARGS]...]",
)
