"""The command `simulate`: its sub-commands, and how errors become exit codes. No command does its work here."""

from __future__ import annotations

import atexit
import errno
import gc
import os
import sys
import warnings
from collections import UserDict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from typing import Any, NoReturn, TextIO

import click

from simulator import __version__
from simulator.errors import SimulateError, did_you_mean, short_line
from simulator.question.vocabulary import FRAMEWORKS
from simulator.show.cli.options import (
    GENERAL,
    Option,
    Sectioned,
    answer_options,
    files_argument,
    given_on_command_line,
    handled,
    layout_options,
    listed,
    output_format,
    question_options,
)
from simulator.show.cli.parameters import ListedName, SpecName, Word, shown
from simulator.show.cli.streams import CLOSED_PIPE, TYPED, open_streams, tell

INTERRUPTED, INTERNAL = 130, 70
"""Exit codes beside 0 answered, 2 bad input or usage and 3 cannot answer."""

_COLLECTED_AT = 50_000
"""New objects after which garbage is collected."""
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EBADF})
"""Errors of writing to a full or broken disk, or to a closed stream."""

_COMPLETION = "_SIMULATE_COMPLETE"
"""Environment variable that asks click for a shell's completions."""

_LISTS = (
    "LIST is a number (4), several (1,2,4) or a range that includes both ends (1:8); "
    "a ranking searches all of them. Words are listed the same way (none,full)."
)
_ENVIRONMENT = "Every option can be set in the environment: SIMULATE_HARDWARE=h20 stands for --hardware h20."


Builder = Callable[[], click.Command]


class Commands(UserDict[str, Any]):
    """Commands by name, each built at its first use to save start-up time."""

    def __getitem__(self, name: str) -> click.Command:
        """Return the command."""
        item: Builder | click.Command = super().__getitem__(name)
        if isinstance(item, click.Command):
            return item
        command = self.data[name] = item()
        command.short_help = _COMMANDS[name][0]
        return command


class MainCommand(Sectioned, click.Group):
    """The main command: without a sub-command it ranks; any error is one line on stderr."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands, then the options of the ranking."""
        self.format_commands(ctx, formatter)
        super().format_options(ctx, formatter)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands with their short help, without building them."""
        del ctx
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (text, _) in _COMMANDS.items()])

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the named command, with garbage collection on. Raises UsageError for an unknown name."""
        # By default it would take a tenth of what a check of many files takes.
        gc.set_threshold(_COLLECTED_AT)
        gc.enable()
        name = args[0]
        if self.get_command(ctx, name) is None and not ctx.resilient_parsing:
            names = self.list_commands(ctx)
            raise click.UsageError(
                f"no such command {shown(name)}{did_you_mean(name, names)}; commands: {', '.join(names)}"
            )
        return super().resolve_command(ctx, args)

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        """Return the context with the words of the command line, which pages show."""
        words = list(args)
        ctx = super().make_context(info_name, args, parent, **extra)
        ctx.meta[TYPED] = words
        return ctx

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the commands, the main one first."""
        del ctx
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

        return sys.exit(_exit_code(answer, debug=_wants_trace(words))) if standalone_mode else answer()


def run() -> NoReturn:
    """Run the command line of this process.

    Garbage collection is off at first: it would take a sixth of one search. Commands turn it on.
    """
    open_streams()
    gc.disable()
    atexit.register(gc.freeze)
    sys.exit(cli.main(prog_name="simulate"))


def _exit_code(answer: Callable[[], Any], *, debug: bool) -> int:  # noqa: PLR0911  one per kind of end
    """Return the exit code of a command, with its error as one line on stderr."""
    try:
        code = answer()
    except (click.exceptions.Abort, KeyboardInterrupt):
        return INTERRUPTED
    except SystemExit as left:
        # If the reader of its help is gone, click leaves with 1, which here means that a recipe failed; nothing
        # else in it does, but for completions of a shell.
        return CLOSED_PIPE if left.code == 1 and _COMPLETION not in os.environ else _status(left.code)
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


def _status(code: object) -> int:
    return code if isinstance(code, int) else int(code is not None)


def _internal(error: Exception, *, debug: bool) -> int:
    """Report an error that no input should cause; return its exit code."""
    message = short_line(f"{type(error).__name__}: {error}")
    if debug:
        from traceback import print_exception  # noqa: PLC0415  start-up time

        with suppress(OSError, ValueError):
            print_exception(error, file=sys.stderr)
    _tell(f"internal error: {message[:500]}; --debug shows where, please report it")
    return INTERNAL


def _warned(  # noqa: PLR0917  the signature of `warnings.showwarning`
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    """Tell a warning, such as of an old spelling, in one line."""
    del filename, lineno, file, line
    if issubclass(category, FutureWarning):
        _tell(f"note: {short_line(str(message))}")


def _tell(message: str) -> None:
    tell(f"simulate: {message}")


def _wants_trace(args: Sequence[str]) -> bool:
    return "--debug" in args or bool(os.environ.get("SIMULATE_DEBUG"))


def _usage_text(error: click.ClickException) -> str:
    if isinstance(error, click.NoSuchOption):
        return f"no such option {shown(error.option_name)}{did_you_mean(error.option_name, error.possibilities or ())}"
    if isinstance(error, click.BadParameter) and error.param is not None and error.ctx is not None:
        name = error.param.name or ""
        if error.ctx.get_parameter_source(name) is click.core.ParameterSource.ENVIRONMENT:
            error.param_hint = f"{error.ctx.auto_envvar_prefix}_{name.upper()}"
        elif isinstance(error.param, click.Argument):
            error.param_hint = name.upper()
    text = error.format_message()
    return text[:1].lower() + text[1:]


def _ranking_options() -> list[click.Parameter]:
    return [
        *question_options(many=True),
        *layout_options(many=True),
        *answer_options("ranking"),
        *listed("ranking"),
        *listed("general"),
    ]


def _main(**values: Any) -> None:
    """Rank, unless a command follows."""
    ctx = click.get_current_context()
    params = [param for param in ctx.command.params if getattr(param, "section", GENERAL) != GENERAL]
    misplaced = given_on_command_line(ctx, params)
    if ctx.invoked_subcommand is not None:
        if misplaced:
            raise click.UsageError(
                f"{misplaced[0]} stands before the command '{ctx.invoked_subcommand}': put it behind"
            )
        return
    if not given_on_command_line(ctx, ctx.command.params) and not values["model"]:
        click.echo(ctx.get_help())
        return
    handled("rank")(**values)


def _version(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    del param
    if value and not ctx.resilient_parsing:
        click.echo(f"simulate {__version__}")
        ctx.exit()


def _listing(name: str, kind: click.ParamType[Any], text: str = "") -> Builder:
    """Return the builder of a command that lists; its help is `text`, else its short help."""
    return lambda: Sectioned(
        name,
        callback=handled(name, "listings"),
        params=[
            click.Argument(["name"], required=False, type=kind, metavar="[NAME]"),
            *answer_options("spec listing" if isinstance(kind, SpecName) else "listing"),
            *listed("general"),
        ],
        help=text or _COMMANDS[name][0],
    )


def _built(place: str) -> Builder:
    """Return the builder of a command of another module, which it imports."""
    module, _, function = place.partition(":")

    def build() -> click.Command:
        command: click.Command = getattr(import_module(f"simulator.show.cli.{module}"), function)()
        return command

    return build


def _rank() -> click.Command:
    return Sectioned(
        "rank",
        callback=handled("rank"),
        params=_ranking_options(),
        help="Rank the layouts that fit, fastest first (the default command).",
        epilog=_LISTS,
    )


def _estimate() -> click.Command:
    return Sectioned(
        "estimate",
        callback=handled("estimate"),
        params=[
            *question_options(),
            *layout_options(many=False),
            *answer_options("estimate"),
            *listed("estimate"),
            *listed("general"),
        ],
        help="Price one layout: memory by stage, time by part, verdict.",
    )


def _calibrate() -> click.Command:
    return Sectioned(
        "calibrate",
        callback=handled("calibrate", "calibration"),
        params=[
            *files_argument(),
            *listed("logs"),
            *listed("calibrate"),
            output_format("calibration"),
            *listed("fitted"),
            *listed("probe"),
            *listed("general"),
        ],
        help=(
            "Fit the coefficients to own measured runs: FILES in the schema of the shipped tables, and training logs; "
            "with --probe to runs of this machine, which it plans and makes."
        ),
    )


def _accuracy() -> click.Command:
    return Sectioned(
        "accuracy",
        callback=handled("accuracy", "calibration"),
        params=[*files_argument(), *listed("accuracy"), *answer_options("accuracy"), *listed("general")],
        help=(
            "Compare predictions with measured runs, each also after a fit without it: those of the shipped tables, as "
            "recorded with the coefficients, or FILES of the same schema."
        ),
    )


_COMMANDS: Mapping[str, tuple[str, Builder]] = {
    "rank": ("Rank the layouts that fit (the default).", _rank),
    "estimate": ("Price one layout: memory by stage, time by part, verdict.", _estimate),
    "plan": ("Say which hardware to book.", _built("plan:plan_command")),
    "compare": ("Say what differs between two layouts or recipes.", _built("compare:compare_command")),
    "explain": ("Say why a layout needs what it needs, and what helps.", _built("compare:explain_command")),
    "sweep": ("Price the product of lists into a table.", _built("sweep:sweep_command")),
    "models": ("List the shipped models, or show the numbers of one.", _listing("models", SpecName("model"))),
    "hardware": ("List the shipped hardware, or show the numbers of one.", _listing("hardware", SpecName("hardware"))),
    "frameworks": (
        "List the switches of the framework profiles, or those of one.",
        _listing("frameworks", Word(FRAMEWORKS)),
    ),
    "flags": (
        "List the tables of flags and keys, or the flags of one.",
        _listing(
            "flags",
            ListedName("simulator.frameworks.flags:table_names"),
            "List the tables of frameworks' flags and keys, or the flags of one: what each is read as.",
        ),
    ),
    "calibrate": ("Fit the coefficients to measured runs.", _calibrate),
    "accuracy": ("Compare predictions with measured runs.", _accuracy),
    "check": ("Judge launch scripts before they are launched.", _built("check:check_command")),
    "emit": ("Write a recipe that launches a layout.", _built("emit:emit_command")),
    "schema": (
        "List the keys of the JSON answers.",
        _listing(
            "schema",
            ListedName("simulator.show.report.schema:answer_names"),
            "List the answers that --format json writes, or the keys of one; with --format json their JSON Schema.",
        ),
    ),
    "trace": ("Count one stage's bytes without a device.", _built("trace:trace_command")),
    "validate": ("Launch the best layouts and compare.", _built("validate:validate_command")),
}
"""Short help and builder of every command, by name."""

cli = MainCommand(
    "simulate",
    callback=_main,
    invoke_without_command=True,
    no_args_is_help=False,
    params=[
        *_ranking_options(),
        Option(
            "--version",
            GENERAL,
            "Show the version and exit.",
            is_flag=True,
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
    epilog=f"{_LISTS}\n\n{_ENVIRONMENT}",
    commands=Commands({name: build for name, (_, build) in _COMMANDS.items()}),
    subcommand_metavar="[COMMAND [ARGS]...]",
)
