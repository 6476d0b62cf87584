"""Where text goes: the answer to stdout or a file, progress to stderr, colours where they are wanted."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from shutil import get_terminal_size
from time import monotonic
from typing import Any

import click

from simulator.errors import InputError

CLOSED_PIPE = 141
"""Exit code when the reader of stdout left, as a shell gives it."""
PROGRESS_AFTER_SECONDS = 1.0
"""A search shorter than this shows no progress."""

WIDTH_WITHOUT_TERMINAL = 120
"""Characters in a line where stdout is no terminal and COLUMNS does not say."""

Progress = Callable[[int, int], None]
"""Takes how many layouts are done, and how many there are."""


def wants_colour(choice: str, *, terminal: bool, environment: Mapping[str, str]) -> bool:
    """Tell whether to colour: the option first, then NO_COLOR, FORCE_COLOR and a dumb terminal."""
    if choice != "auto":
        return choice == "always"
    if environment.get("NO_COLOR"):
        return False
    if environment.get("FORCE_COLOR"):
        return True
    return terminal and environment.get("TERM") != "dumb"


def colour_of(ctx: click.Context, output: str | None) -> bool:
    """Tell whether this command's answer is coloured; a file never is."""
    if output not in (None, "-"):
        return False
    return wants_colour(str(inherited(ctx, "color") or "auto"), terminal=sys.stdout.isatty(), environment=os.environ)


def width_of(output: str | None) -> int | None:
    """Return the characters that a line of the answer may have; None where it goes to a file."""
    if output not in (None, "-"):
        return None
    return get_terminal_size((WIDTH_WITHOUT_TERMINAL, 24)).columns


def verbosity_of(ctx: click.Context) -> int:
    """Return how often `-v` was given, less how often `-q` was."""
    return int(inherited(ctx, "verbose") or 0) - int(inherited(ctx, "quiet") or 0)


TYPED = "simulate.typed"
"""Where a context keeps the words of the command line."""


def typed(ctx: click.Context) -> str:
    """Return the command as it was typed."""
    return shlex.join(["simulate", *ctx.meta.get(TYPED, ())])


def inherited(ctx: click.Context, name: str) -> str | int | None:
    """Return a general option of this command, or of the group where only the group was given it."""
    default = click.core.ParameterSource.DEFAULT
    if ctx.parent is not None and ctx.get_parameter_source(name) is default:
        return inherited(ctx.parent, name)
    value: str | int | None = ctx.params.get(name)
    return value


def write(text: str, output: str | None, option: str = "--output") -> None:
    """Write the answer to the file that an option names, or to stdout where no file was named."""
    if output in (None, "-"):
        _write_out(text)
        return
    try:
        Path(str(output)).write_text(text, encoding="utf-8", newline="\n")
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"{option} {output}: cannot be written: {reason}") from error


def note(text: str, *, quiet: bool) -> None:
    """Tell the reader something beside the answer."""
    if not quiet:
        click.echo(f"simulate: note: {text}", err=True)


@contextmanager
def progress_bar(*, quiet: bool) -> Iterator[Progress | None]:
    """Yield what a search calls as it goes; nothing is shown in the first second, or without a terminal."""
    if quiet or not sys.stderr.isatty() or os.environ.get("TERM") == "dumb":
        yield None
        return
    started = monotonic()
    with ExitStack() as stack:
        bars: list[Any] = []

        def show(done: int, total: int) -> None:
            if not bars and monotonic() - started >= PROGRESS_AFTER_SECONDS:
                bar = click.progressbar(length=max(total, 1), label="layouts priced", file=sys.stderr)
                bars.append(stack.enter_context(bar))
            for bar in bars:
                bar.update(done - bar.pos)

        yield show


def _write_out(text: str) -> None:
    """Write to stdout; a character its encoding lacks is written as an escape."""
    try:
        text.encode(sys.stdout.encoding or "utf-8")
    except UnicodeEncodeError:
        text = text.encode("ascii", "backslashreplace").decode("ascii")
    try:
        click.echo(text, nl=False, color=True)
        sys.stdout.flush()
    except BrokenPipeError as error:
        _let_go_of_stdout()
        raise click.exceptions.Exit(CLOSED_PIPE) from error
    except OSError as error:
        _let_go_of_stdout()
        raise InputError(f"stdout: cannot be written: {error.strerror or error}") from error


def _let_go_of_stdout() -> None:
    """Point stdout at nothing, so that leaving does not fail once more to write what is left."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
