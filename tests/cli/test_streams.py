"""Colours, progress and characters that the terminal lacks."""

import io
import sys
from collections.abc import Mapping

import pytest

from simulator.show.cli import streams
from simulator.show.cli.streams import progress_bar, wants_colour, write


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
