"""Help, version and completion."""

import re
from importlib import import_module

import click
import pytest

from simulator import __version__
from simulator.files import data_hash
from simulator.question.frameworks.stacks import PROFILES
from simulator.question.specs.names import hardware_names, model_names
from simulator.question.vocabulary import FRAMEWORKS
from simulator.show.cli.main import cli
from simulator.show.cli.options import command_texts
from tests.cli.running import run
from tests.docs.pages import first_cells, page

COMMANDS: dict[str, click.Command] = {"": cli, **cli.commands}


def options_of(name: str) -> dict[str, click.Option]:
    return {str(p.name): p for p in COMMANDS[name].params if isinstance(p, click.Option)}


def test_simulate_alone_prints_help() -> None:
    result = run()
    assert result.exit_code == 0
    assert result.stdout == run("--help").stdout == run("-h").stdout


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_and_option_has_help(name: str) -> None:
    assert COMMANDS[name].help
    assert all(option.help for option in options_of(name).values())
    result = run(*name.split(), "-h")
    assert result.exit_code == 0
    assert result.stdout.startswith("Usage: simulate")


@pytest.mark.parametrize("runs", [row["runs"] for row in command_texts().values() if row["runs"]])
def test_what_runs_a_command_is_there(runs: str) -> None:
    module, _, function = runs.partition(".")
    assert callable(getattr(import_module(f"simulator.show.cli.{module}"), function))


def test_every_command_has_its_page() -> None:
    listed = {word for cell in first_cells(page("cli.md")) for word in re.findall(r"`(\w+)`", cell)}
    assert set(cli.commands) <= listed


def test_the_default_command_has_the_options_of_rank() -> None:
    general = {"version", "verbose", "quiet", "color", "debug"}
    assert set(options_of("")) - general == set(options_of("rank"))


def test_words_are_those_the_simulator_knows() -> None:
    assert tuple(PROFILES) == FRAMEWORKS


def test_version() -> None:
    assert run("--version").stdout == f"simulate {__version__} (data {data_hash()})\n"
    assert run(env={"SIMULATE_VERSION": "1"}).stdout.startswith("Usage")


def completions(line: str, word: str) -> list[str]:
    env = {
        "_SIMULATE_COMPLETE": "bash_complete",
        "COMP_WORDS": line,
        "COMP_CWORD": str(len(line.split()) - 1 + (not word)),
    }
    result = run(env=env, prog_name="simulate")
    return [found.partition(",")[2] for found in result.stdout.splitlines()]


def test_names_complete_in_the_shell() -> None:
    assert completions("simulate --model ", "") == list(model_names())
    assert completions("simulate --hardware h20", "h20") == [n for n in hardware_names() if n.startswith("h20")]
    assert completions("simulate hardware z", "z") == ["z2000"]
    assert completions("simulate estimate --framework m", "m") == ["megatron"]
    assert completions("simulate frameworks t", "t") == ["torch"]
    assert completions("simulate --model ./", "./") == ["./"]
    assert completions("simulate es", "es") == ["estimate"]
    assert completions("simulate --option fused_rm", "fused_rm") == ["fused_rms_norm="]
    assert completions("simulate estimate --option mtp=", "mtp=") == ["mtp=true", "mtp=false"]
    assert completions("simulate --option gradient_dtype=b", "gradient_dtype=b") == ["gradient_dtype=bf16"]
    assert not any(completions("simulate --option no=", "no="))
