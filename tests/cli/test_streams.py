"""Colours, progress and characters that the terminal lacks."""

import io
import re
import shutil
import sys
from collections.abc import Mapping
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pytest

from simulator.show.cli import streams
from simulator.show.cli.main import cli
from simulator.show.cli.streams import _OBEYED, progress_bar, visible, wants_colour, write
from tests.cli.running import TINY, refusal, run
from tests.project.tree import ROOT


@pytest.mark.parametrize(
    ("choice", "terminal", "environment", "wanted"),
    [
        ("auto", True, {}, True),
        ("auto", False, {}, False),
        ("auto", True, {"NO_COLOR": "1"}, False),
        ("auto", True, {"NO_COLOR": ""}, True),
        ("auto", False, {"FORCE_COLOR": "1"}, True),
        ("auto", True, {"TERM": "dumb"}, False),
        ("always", False, {"NO_COLOR": "1"}, True),
        ("never", True, {"FORCE_COLOR": "1"}, False),
    ],
)
def test_colour(choice: str, terminal: bool, environment: Mapping[str, str], wanted: bool) -> None:
    assert wants_colour(choice, terminal=terminal, environment=environment) is wanted


def test_the_form_follows_the_suffix_of_the_output(tmp_path: Path) -> None:
    for name, start in (("a.json", "{"), ("a.csv", "rank,"), ("a.md", "**"), ("a.txt", "llama3.2-1b on")):
        run("rank", *TINY, "--output", str(tmp_path / name))
        assert (tmp_path / name).read_text("utf-8").startswith(start), name
    run("rank", *TINY, "--format", "json", "--output", str(tmp_path / "b.csv"))
    assert (tmp_path / "b.csv").read_text("utf-8").startswith("{")
    fewest = run("hardware", "--output", str(tmp_path / "b.html"))
    assert not fewest.exit_code
    assert (tmp_path / "b.html").read_text("utf-8").startswith("<!DOCTYPE html>")
    error = refusal("explain", *TINY, "--output", str(tmp_path / "c.csv"))
    assert "no csv of this answer: one of table, json, markdown" in error
    assert not (tmp_path / "c.csv").exists()


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_progress_is_for_terminals(monkeypatch: pytest.MonkeyPatch) -> None:
    with progress_bar(quiet=False) as progress:
        assert progress is None
    monkeypatch.setattr(sys, "stderr", Terminal())
    monkeypatch.setenv("TERM", "dumb")
    with progress_bar(quiet=False) as progress:
        assert progress is None
    monkeypatch.setenv("TERM", "xterm")
    with progress_bar(quiet=True) as progress:
        assert progress is None


def shown_progress(monkeypatch: pytest.MonkeyPatch, seconds: float) -> str:
    terminal = Terminal()
    clock = iter([0.0, *[seconds] * 10])
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(streams, "monotonic", lambda: next(clock))
    with progress_bar(quiet=False) as progress:
        assert progress is not None
        progress(5, 10)
        progress(10, 10)
    return terminal.getvalue()


def test_progress_waits_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    assert shown_progress(monkeypatch, 0.9) == ""
    assert "layouts priced" in shown_progress(monkeypatch, 1.1)


def test_a_character_that_stdout_lacks_is_escaped(monkeypatch: pytest.MonkeyPatch) -> None:
    buffer = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(buffer, encoding="ascii"))
    write("a é\n", None)
    assert buffer.getvalue() == b"a \\xe9\n"


def test_progress_of_a_second_search_goes_on_from_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    clock = iter([0.0, *[2.0] * 20])
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(streams, "monotonic", lambda: next(clock))
    with progress_bar(quiet=False) as progress:
        assert progress is not None
        for done in (1, 5, 9, 1, 5, 9):
            progress(done, 10)
    assert max(int(share) for share in re.findall(r"(\d+)%", terminal.getvalue())) == 90


@pytest.mark.parametrize(
    ("command", "label"),
    [
        (("plan", "--model", "llama3.2-1b", "--train-tokens", "1B", "--offer", "h20:1,2@1"), "choices priced"),
        (("check", "a.sh", "b.sh", "--hardware", "h20"), "files judged"),
        (("estimate", *TINY, "--format", "html"), "questions of the page priced"),
    ],
)
def test_what_takes_long_shows_its_progress(
    command: tuple[str, ...], label: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(streams, "PROGRESS_AFTER_SECONDS", 0.0)
    for name in ("a.sh", "b.sh"):
        shutil.copy(ROOT / "examples" / "recipes" / "llama3-8b-megatron.sh", name)
    terminal = Terminal()
    with pytest.raises(SystemExit), redirect_stderr(terminal), redirect_stdout(io.StringIO()):
        cli.main(list(command))
    assert label in terminal.getvalue()
    assert label not in run(*command).stderr  # no terminal


def test_every_character_that_is_obeyed_is_escaped() -> None:
    for mark in map(chr, (*range(0x10000), 0x1F600, 0xE0001)):
        assert (visible(f"± {mark}.\n") == f"± {mark}.\n") == (not _OBEYED.search(mark)), hex(ord(mark))
