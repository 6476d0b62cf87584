"""Write the manual page and the completions of shells that the wheel ships: `python -m tools.regenerate manual`.

The page is that of `simulate --help` and of every command's; a completion asks the command line itself for candidates.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

import click
from click.shell_completion import BashComplete, FishComplete, ShellComplete, ZshComplete

from simulator.show.cli.main import cli
from tools.regenerate import ROOT

SHARE: Final = ROOT / "share"
COMPLETIONS: Final[Mapping[str, type[ShellComplete]]] = {
    "bash-completion/completions/simulate": BashComplete,
    "zsh/site-functions/_simulate": ZshComplete,
    "fish/vendor_completions.d/simulate.fish": FishComplete,
}
"""Shells by the place below `share` where they look for completions."""


def generated() -> Mapping[Path, str]:
    """The manual page and the completions, by file."""
    scripts = {SHARE / place: completion(shell) for place, shell in COMPLETIONS.items()}
    return {SHARE / "man/man1/simulate.1": "\n".join(manual()) + "\n", **scripts}


def completion(shell: type[ShellComplete]) -> str:
    """The script that gives a shell the completions of the command line."""
    return ShellComplete.source(shell(cli, {}, "simulate", "_SIMULATE_COMPLETE")).strip() + "\n"


def manual() -> Iterator[str]:
    """The lines of the manual page."""
    # click gives a command's first context the say over its help option, for the life of the process.
    main = click.Context(cli, info_name="simulate", **cli.context_settings)
    yield from ('.TH SIMULATE 1 "" "simulate" "User Commands"', ".ad l")
    yield from (".SH NAME", "simulate \\- memory and throughput of training large language models")
    yield from (".SH SYNOPSIS", ".B simulate", "[COMMAND] [OPTIONS]", ".SH DESCRIPTION", *_text(cli.help or ""))
    yield ".SH OPTIONS"
    yield from _options(main, cli)
    yield from (".SH EXIT STATUS", "0 answered, 1 a check fails, 2 bad input, 3 cannot answer, 70 a defect.")
    for name in cli.list_commands(main):
        command = cli.commands[name]
        context = click.Context(command, parent=main, info_name=name)
        usage = " ".join(["simulate", name, *command.collect_usage_pieces(context)])
        yield from (f".SH {name.upper()}", f".B {_roff(usage)}", ".PP", *_text(command.help or ""))
        yield from () if name == "rank" else _options(context, command)


def _options(context: click.Context, command: click.Command) -> Iterator[str]:
    """The options of a command, each with its help."""
    for param in command.params:
        if isinstance(param, click.Option) and (record := param.get_help_record(context)) is not None:
            yield from (".TP", f".B {_roff(record[0])}", *_text(record[1]))


def _text(text: str) -> Iterator[str]:
    """Sentences as lines of a manual page."""
    yield from map(_roff, textwrap.wrap(" ".join(text.split()), 110, break_long_words=False, break_on_hyphens=False))


def _roff(text: str) -> str:
    """A line in which a manual page's own marks stand for themselves."""
    return ("\\&" if text[:1] in ".'" else "") + text.replace("\\", "\\e").replace("-", "\\-")
