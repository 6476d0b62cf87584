"""The command as a process of its own, and the package it imports."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import simulator

ROOT = Path(__file__).resolve().parents[2]
HEAVY = ("numpy", "pydantic", "scipy", "tabulate", "yaml")
NOT_ASKED = (
    *("annotated_types", "difflib", "importlib.metadata", "json", "pandas", "pydantic", "pydantic_core", "scipy"),
    *("tabulate", "simulator.question.specs.families", "simulator.recipes", "tree_sitter", "yaml"),
)
"""What neither a ranking nor an estimate of shipped specs needs."""


def start(*args: str, code: str | None = None) -> "subprocess.Popen[str]":
    what = ["-c", code] if code else ["-m", "simulator", *args]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    pipe = subprocess.PIPE
    return subprocess.Popen([sys.executable, *what], stdout=pipe, stderr=pipe, text=True, env=env)


def finished(process: "subprocess.Popen[str]") -> tuple[int, str, str]:
    out, err = process.communicate(timeout=60)
    return process.returncode, out, err


def test_estimate_as_a_process() -> None:
    code, out, err = finished(start("estimate", "--model", "llama3.2-1b", "--hardware", "h20", "--format", "json"))
    assert (code, err) == (0, "")
    assert json.loads(out)["model"] == "llama3.2-1b"


def test_a_refusal_as_a_process() -> None:
    code, out, err = finished(start("estimate", "--model", "llama3.2-1c"))
    assert (code, out) == (2, "")
    assert err.startswith("simulate: error: ")
    assert err.count("\n") == 1


@pytest.mark.skipif(os.name == "nt", reason="pipes close in another way there")
def test_a_reader_that_leaves_is_no_error() -> None:
    with start("--model", "llama3.2-1b", "--format", "jsonl", "--top", "1000") as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        said = process.stderr.read()
        assert process.wait(timeout=60) == 141
    assert said == ""


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full here")
@pytest.mark.parametrize("command", ["hardware", "--help", "--version"])
def test_a_full_disk_is_told_in_one_line(command: str) -> None:
    with Path("/dev/full").open("w", encoding="utf-8") as full:
        done = subprocess.run(
            [sys.executable, "-m", "simulator", command],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
    assert done.returncode == 2
    assert done.stderr == "simulate: error: stdout: cannot be written: No space left on device\n"


@pytest.mark.parametrize("line", ["simulate --option m", "simulate --option mtp="])
def test_completing_imports_nothing_heavy(line: str) -> None:
    code = (
        "import os, sys\n"
        f"os.environ.update(_SIMULATE_COMPLETE='bash_complete', COMP_WORDS={line!r}, COMP_CWORD='2')\n"
        "from simulator.show.cli.main import cli\n"
        "try: cli.main([], prog_name='simulate')\n"
        "except SystemExit: pass\n"
        f"print([name for name in {HEAVY!r} if name in sys.modules], file=sys.stderr)\n"
    )
    _, out, err = finished(start(code=code))
    assert "mtp=" in out
    assert err.endswith("[]\n")


@pytest.mark.parametrize("args", ["['--help']", "['estimate', '-h']", "['--version']", "['--modle', 'x']"])
def test_help_imports_nothing_heavy(args: str) -> None:
    code = (
        "import sys\n"
        "from simulator.show.cli.main import cli\n"
        f"try: cli.main({args})\n"
        "except SystemExit: pass\n"
        f"print([name for name in {HEAVY!r} if name in sys.modules], file=sys.stderr)\n"
    )
    assert finished(start(code=code))[2].endswith("[]\n")


@pytest.mark.parametrize(("command", "most"), [("rank", 106), ("estimate", 105)])
def test_a_question_imports_what_it_needs(command: str, most: int) -> None:
    """`most` is the number of modules of the package that the command loads: a further one needs a reason."""
    code = (
        "import sys\n"
        "from simulator.show.cli.main import cli\n"
        f"try: cli.main([{command!r}, '--model', 'llama3.2-1b', '--hardware', 'h20'])\n"
        "except SystemExit: pass\n"
        f"print([name for name in {NOT_ASKED!r} if name in sys.modules], file=sys.stderr)\n"
        "print(len([name for name in sys.modules if name.startswith('simulator.')]), file=sys.stderr)\n"
    )
    _, out, err = finished(start(code=code))
    assert "llama3.2-1b" in out
    *_, others, modules = err.splitlines()
    assert others == "[]"
    assert int(modules) <= most


@pytest.mark.parametrize(
    ("before", "options", "left"),
    [
        ("", "'--version'", 0),
        ("", "'--modle', 'x'", 2),
        ("import atexit; atexit.register(print, 'first')\n", "'-h'", 0),
    ],
)
def test_what_is_registered_for_the_end_runs(before: str, options: str, left: int) -> None:
    code = (
        f"{before}import sys, simulator.__main__ as start, simulator.show.cli.main as main\n"
        "import atexit\n"
        "def answered(run=main.cli.main, **more): atexit.register(print, 'last'); return run(**more)\n"
        f"main.cli.main, sys.argv = answered, ['simulate', {options}]\n"
        "start.run()"
    )
    status, out, _ = finished(start(code=code))
    assert status == left
    assert out.splitlines()[-2 if before else -1 :] == (["last", "first"] if before else ["last"])


def test_importing_the_package_imports_nothing_heavy() -> None:
    code = f"import sys, simulator\nprint([name for name in ('click', *{HEAVY!r}) if name in sys.modules])"
    assert finished(start(code=code)) == (0, "[]\n", "")


def test_public_names() -> None:
    for name in simulator.__all__:
        assert getattr(simulator, name) is not None
    assert dir(simulator) == sorted(simulator.__all__)
    with pytest.raises(AttributeError, match="module 'simulator' has no attribute 'nonsense'"):
        _ = simulator.nonsense
