"""Streams of a command: the answer to stdout or a file, progress and notes to stderr.

    write_answer(ctx, "plan", plan, presentation(ctx))    # in the form of `--format`, to where `--output` says

What a terminal or a CI runner would obey is made visible on the way, and no output may replace a file that is read.
"""

from __future__ import annotations

import errno
import io
import os
import re
import shlex
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from time import monotonic
from typing import TYPE_CHECKING, Any, Final, TextIO

import click

from simulator.errors import InputError, short_line
from simulator.files import write_file
from simulator.late import late_pattern
from simulator.records import replace
from simulator.show.forms import ANSWERS

if TYPE_CHECKING:
    from simulator.question.specs.hardware import HardwareSpec
    from simulator.search.rank import Progress
    from simulator.show.report.presentation import Presentation

CLOSED_PIPE = 141
"""Exit code if the reader of stdout left: that of a shell."""
PROGRESS_AFTER_SECONDS = 1.0
"""Seconds of a search before progress is shown."""

LINE_EVERY_SECONDS = 60.0
"""Seconds between lines of progress without a terminal."""
WIDTH_WITHOUT_TERMINAL = 120
"""Characters per line if stdout is no terminal and COLUMNS is not set."""


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
    return wants_colour(
        str(ctx.find_root().params.get("color") or "auto"), terminal=sys.stdout.isatty(), environment=os.environ
    )


def width_of(output: str | None) -> int | None:
    """Return the most characters per line of the answer; None for a file."""
    if output not in (None, "-"):
        return None
    stated = os.environ.get("COLUMNS", "")
    if stated.isdecimal() and int(stated):
        return int(stated)
    with suppress(OSError):  # closed, or no terminal
        return os.get_terminal_size(1).columns or WIDTH_WITHOUT_TERMINAL
    return WIDTH_WITHOUT_TERMINAL


def verbosity_of(ctx: click.Context) -> int:
    """Return the number of `-v` less that of `-q`."""
    general = ctx.find_root().params
    return int(general.get("verbose") or 0) - int(general.get("quiet") or 0)


def presentation(ctx: click.Context, **more: Any) -> Presentation:
    """Return the presentation that general options and the destination ask for."""
    from simulator.show.report.presentation import Presentation

    output = ctx.params.get("output")
    return Presentation(
        verbosity=verbosity_of(ctx), colour=colour_of(ctx, output), width=width_of(output), command=typed(ctx), **more
    )


def default_text(kind: HardwareSpec) -> str:
    """Return the default hardware in words: name, devices per node, title."""
    return f"{kind.name}, the default: {kind.devices_per_node} x {kind.title} a node"


TYPED = "simulate.typed"
"""Key of the words of the command line in a context."""


def typed(ctx: click.Context) -> str:
    """Return the command as it was typed."""
    return shlex.join(["simulate", *ctx.meta.get(TYPED, ())])


class _Closed(io.TextIOBase):
    """Stand-in for a standard stream that was closed at start."""

    @property
    def encoding(self) -> str:  # type: ignore[override]  # a stream of text has one
        return "utf-8"

    def write(self, _text: str) -> int:
        raise OSError(errno.EBADF, "it is closed")


def open_streams() -> None:
    """Replace closed standard streams: text for stderr is lost, an answer for stdout is an error."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
    if sys.stdout is None:
        sys.stdout = _Closed()
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: PTH123, SIM115  open as long as the process is


def tell(line: str) -> None:
    """Write a line to stderr; if that fails it is lost, as only the answer counts."""
    try:
        click.echo(line, err=True)
    except (OSError, ValueError):
        _let_go_of(sys.stderr)


_OBEYED: Final = late_pattern(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\ufff0-\uffff"
    r"\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]"
)  # characters that a terminal or a page obeys instead of showing: control, direction, zero width
_COLOUR: Final = late_pattern(r"(\x1b\[[0-9;]*m)")
_RUNNER_LINE: Final = late_pattern(r"^([ \t]*)::", re.MULTILINE)


def visible(text: str, *, colour: bool = False, commands: bool = False) -> str:
    """Return an answer with control characters written as JSON escapes.

    With `colour` its colour codes stay; without `commands` no line is a command to a CI runner.
    """
    if not text.replace("\n", "").isprintable() or "\ufffc" in text or "\ufffd" in text:
        parts = _COLOUR.split(text) if colour else [text]
        text = "".join(part if number % 2 else _OBEYED.sub(_escape, part) for number, part in enumerate(parts))
    return text if commands or "::" not in text else _RUNNER_LINE.sub(r"\1: :", text)


def _escape(mark: re.Match[str]) -> str:
    return "\r" if mark[0] == "\r" and mark.string[mark.end() : mark.end() + 1] == "\n" else f"\\u{ord(mark[0]):04x}"


def write_answer(ctx: click.Context, name: str, value: object, shown: Presentation) -> None:
    """Write an answer in the format and to the destination of the options."""
    form = form_of(ctx, name)
    with progress_bar(quiet=shown.verbosity < 0, label="questions of the page priced") as progress:
        on_page = form in ("html", "sliders")
        text = ANSWERS[name].write(value, form, replace(shown, progress=progress) if on_page else shown)
    write(text, ctx.params.get("output"), commands=form == "github")


_SUFFIXES: Final = {".htm": "html", ".html": "html", ".md": "markdown", ".yml": "yaml", ".xml": "junit"}
"""Forms by suffix of a file, where these are not the same word."""


_NO_TEXT: Final = frozenset(
    (
        *("doc", "docx", "xls", "xlsx", "ppt", "pptx", "odt", "ods", "pdf", "rtf", "parquet", "ipynb"),
        *("png", "jpg", "jpeg", "gif", "svg", "webp", "zip", "gz", "tgz"),
    )
)  # suffixes of documents that no answer is written as


def form_of(ctx: click.Context, name: str) -> str:
    """Return the form of an answer: that of `--format`, else what the suffix of `--output` names.

    Raises UsageError for the suffix of a form that this answer has not, and of a document that is no text (`.docx`).
    """
    form, output = str(ctx.params["format"]), ctx.params.get("output")
    source = ctx.get_parameter_source("format")
    if output in (None, "-") or source is not click.core.ParameterSource.DEFAULT:
        return form
    from pathlib import Path

    suffix = Path(str(output)).suffix.lower()
    named = _SUFFIXES.get(suffix, suffix.removeprefix("."))
    forms = ANSWERS[name].formats
    written = any(named in answer.formats for answer in ANSWERS.values())
    if named not in forms and (written or named in _NO_TEXT):
        raise click.UsageError(f"--output {output}: no {named} of this answer: one of {', '.join(forms)} (--format)")
    return named if named in forms else form


def write(text: str | Iterable[str], output: str | None, option: str = "--output", *, commands: bool = False) -> None:
    """Write text, or pieces of it, to an option's file or stdout; `commands` are for a CI runner."""
    ctx = click.get_current_context(silent=True)
    colour = ctx is not None and colour_of(ctx, output)
    pieces = (text,) if isinstance(text, str) else text
    shown = (visible(piece, colour=colour, commands=commands) for piece in pieces)
    if output in (None, "-"):
        _write_out(shown)
        return
    if ctx is not None:
        refuse_input(ctx, output, option)
    from pathlib import Path

    whole = next(shown) if isinstance(text, str) else shown
    write_file(Path(str(output)), whole, option)


_WRITTEN = ("output", "timeline")  # options that name a file to write
_BEHIND_A_NAME = late_pattern(r"[,@]|:\d")  # separator after the name of a kind of hardware


def refuse_inputs(ctx: click.Context) -> None:
    """Raise InputError for outputs that are inputs or have no folder."""
    for param in ctx.command.params:
        output = ctx.params.get(param.name or "") if param.name in _WRITTEN else None
        if output:
            refuse_input(ctx, output, f"--{param.name}")
            if param.metavar == "FILE" and not os.path.isdir(os.path.dirname(output) or "."):  # noqa: PTH112, PTH120
                raise InputError(f"--{param.name} {output}: cannot be written: {os.strerror(errno.ENOENT)}")


def refuse_input(ctx: click.Context, output: str | None, option: str) -> None:
    """Raise InputError for an output that the command reads."""
    for name, value in ctx.params.items():
        if name in _WRITTEN or not output or not os.path.isfile(output):  # noqa: PTH113  false for what is no path
            continue
        for text in _texts(value):
            for file in (text, f"{text}/config.json", *_BEHIND_A_NAME.split(text)):
                if os.path.isfile(file) and os.path.samefile(file, output):  # noqa: PTH113, PTH121  likewise
                    raise InputError(f"{option} {output}: is read by this command: write somewhere else")


def _texts(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, tuple):
        for part in value:
            yield from _texts(part)
    elif hasattr(value, "hardware"):
        yield from _texts(value.hardware)


def note(text: str, *, quiet: bool) -> None:
    """Write a note to stderr, unless `quiet`."""
    if not quiet:
        tell(f"simulate: note: {short_line(text)}")


@contextmanager
def progress_bar(*, quiet: bool, label: str = "layouts priced") -> Iterator[Progress | None]:
    """Yield the callback of a search for progress; the first second and no terminal show none."""
    if quiet or not sys.stderr.isatty() or os.environ.get("TERM") == "dumb":
        yield None
        return
    started = monotonic()
    with ExitStack() as stack:
        bars: list[Any] = []

        def show(done: int, total: int) -> None:
            if not bars and monotonic() - started >= PROGRESS_AFTER_SECONDS:
                bar = click.progressbar(length=max(total, 1), label=label, file=sys.stderr)
                bars.append(stack.enter_context(bar))
            for bar in bars:
                bar.update(max(done - bar.pos, 0))

        yield show


@contextmanager
def long_progress(*, quiet: bool, label: str) -> Iterator[Progress | None]:
    """Yield the callback of a long job for progress: a bar on a terminal, else a line a minute."""
    if quiet or sys.stderr.isatty():
        with progress_bar(quiet=quiet, label=label) as bar:
            yield bar
        return
    started = last_line = monotonic()
    first: int | None = None

    def say(done: int, total: int) -> None:
        nonlocal last_line, first
        first = done if first is None else first
        now = monotonic()
        if now - last_line >= LINE_EVERY_SECONDS and done > first:
            last_line = now
            left = (total - done) * (now - started) / (done - first)
            note(f"{done:,} of {total:,} {label}, {left / 60:.0f} minutes left", quiet=quiet)

    yield say


def _write_out(pieces: Iterable[str]) -> None:
    """Write to stdout, characters that its encoding lacks as escapes."""
    try:
        for text in pieces:
            try:
                text.encode(sys.stdout.encoding or "utf-8")
            except UnicodeEncodeError:
                text = text.encode("ascii", "backslashreplace").decode("ascii")  # noqa: PLW2901
            click.echo(text, nl=False, color=True)
        sys.stdout.flush()
    except BrokenPipeError as error:
        _let_go_of(sys.stdout)
        raise click.exceptions.Exit(CLOSED_PIPE) from error
    except OSError as error:
        _let_go_of(sys.stdout)
        raise InputError(f"stdout: cannot be written: {error.strerror or error}") from error


def _let_go_of(stream: TextIO) -> None:
    """Redirect a stream to the null device, so that its flush at exit does not fail again."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
