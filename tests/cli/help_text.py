"""Options of every command as `docs/cli.md` holds them; `python -m tools.regenerate help` writes them.

What many commands share stands once, in the block `shared`; under a command stand its own options, and of each shared
section which of its options it takes.
"""

import re
from collections.abc import Mapping
from pathlib import Path

import click
from click.formatting import HelpFormatter

from simulator.show.cli.main import cli
from simulator.show.cli.options import (
    CONTEXT_SETTINGS,
    GENERAL,
    LAYOUT,
    QUESTION,
    general_options,
    layout_options,
    question_options,
)

PAGE = Path(__file__).resolve().parents[2] / "docs" / "cli.md"
SHARED = "shared"
COMMANDS: dict[str, click.Command] = {"": cli, **cli.commands}
BLOCKS = (SHARED, *COMMANDS)
WIDTH = 100
_BLOCK = re.compile(r"<!-- help:([a-z]*) -->\n```text\n(.*?)```\n", re.DOTALL)
_DEFAULT = re.compile(r"\s*\[default: [^]]*\]")
_GROUPS = {QUESTION: question_options(), LAYOUT: layout_options(many=True), GENERAL: general_options()}

Record = tuple[str, str]


def records(params: list[click.Parameter], ctx: click.Context) -> dict[str, Record]:
    """What help says of each option, by its name."""
    found = {str(param.name): param.get_help_record(ctx) for param in params if isinstance(param, click.Option)}
    return {name: record for name, record in found.items() if record is not None}


def context(name: str) -> click.Context:
    # A command keeps the names of its help option from the first context that it is in.
    names: list[str] = CONTEXT_SETTINGS["help_option_names"]
    parent = click.Context(cli, info_name="simulate", terminal_width=WIDTH, help_option_names=names)
    return click.Context(COMMANDS[name], info_name=name, parent=parent, terminal_width=WIDTH) if name else parent


def sections(found: dict[str, dict[str, Record]], formatter: HelpFormatter) -> None:
    for title, options in found.items():
        with formatter.section(title):
            formatter.write_dl(list(options.values()))


def shared_text() -> str:
    formatter, ctx = HelpFormatter(width=WIDTH), context("")
    sections({title: records(params, ctx) for title, params in _GROUPS.items()}, formatter)
    return formatter.getvalue().removeprefix("\n")


def own_text(name: str) -> str:
    """The usage of a command, what it does, its own options, and which shared ones it takes."""
    command, ctx, formatter = COMMANDS[name], context(name), HelpFormatter(width=WIDTH)
    command.format_usage(ctx, formatter)
    command.format_help_text(ctx, formatter)
    if isinstance(command, click.Group):
        command.format_commands(ctx, formatter)
    own: dict[str, dict[str, Record]] = {}
    taken: dict[str, list[str]] = {}
    plain = False
    for param in command.params:
        if not isinstance(param, click.Option) or (record := param.get_help_record(ctx)) is None:
            continue
        section, known = getattr(param, "section", GENERAL), None
        if section in _GROUPS:
            known = records(_GROUPS[section], context("")).get(str(param.name))
        if known is None or _DEFAULT.sub("", known[1]) != _DEFAULT.sub("", record[1]):
            own.setdefault(section, {})[str(param.name)] = record
        else:
            taken.setdefault(section, []).append(str(param.name))
            plain = plain or known[1] != record[1]
    sections(own, formatter)
    lines = [_taken(section, names, many=name in ("", "rank", "plan")) for section, names in taken.items()]
    if plain:
        lines.append("What is not given is what the recipe, estimate or log says: those options have no default.")
    command.format_epilog(ctx, formatter)
    return "\n".join([formatter.getvalue().removeprefix("\n"), *lines, ""])


def _taken(section: str, names: list[str], *, many: bool) -> str:
    every = {str(param.name): param.opts[-1] for param in _GROUPS[section]}
    gone = [option for name, option in every.items() if name not in names]
    if not many and "--allow-tp-across-nodes" in gone:
        gone.remove("--allow-tp-across-nodes")
    what = f"{section}: as shared"
    if len(names) < len(gone):
        what += ", only " + ", ".join(every[name] for name in names)
    elif gone:
        what += ", but for " + ", ".join(gone)
    return f"{what}{', one value each' if section == LAYOUT and not many else ''}."


def text_of(name: str) -> str:
    return shared_text() if name == SHARED else own_text(name)


def documented() -> dict[str, str]:
    return dict(_BLOCK.findall(PAGE.read_text(encoding="utf-8")))


def written_anew(page: str) -> str:
    return _BLOCK.sub(lambda found: f"<!-- help:{found[1]} -->\n```text\n{text_of(found[1])}```\n", page)


def generated() -> Mapping[Path, str]:
    return {PAGE: written_anew(PAGE.read_text(encoding="utf-8"))}
