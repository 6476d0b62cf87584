"""Options of the command line stay few."""

import click

from simulator.show.cli.main import cli

LISTS = frozenset({"models", "hardware", "frameworks", "flags"})
"""Commands that list what is known."""
MOST_SLOTS = 482
"""Options over all other commands, `--help` among them."""


def test_the_commands_have_few_options() -> None:
    counts = {
        name: 1 + sum(isinstance(param, click.Option) for param in command.params)
        for name, command in cli.commands.items()
        if name not in LISTS
    }
    assert sum(counts.values()) <= MOST_SLOTS, counts
