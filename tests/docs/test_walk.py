"""The walk of the page on measuring is true: commands, rows and what they give."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.calibration.pages import differences, quoted
from tests.cli.running import run
from tests.docs.pages import blocks, page, section
from tests.docs.walk import ASKED, NEXT, PAGE, Walk, inside, walked


@pytest.fixture(scope="module")
def walk(tmp_path_factory: pytest.TempPathFactory) -> Walk:
    return walked(tmp_path_factory.mktemp("walk"))


def test_three_rows_give_a_narrower_and_true_interval(walk: Walk) -> None:
    before, after = walk.before.throughput, walk.after.throughput
    assert before.interval_seconds is not None
    assert after.interval_seconds is not None
    assert after.interval_seconds.low < walk.truth < after.interval_seconds.high
    assert after.interval_seconds.high / after.interval_seconds.low < (
        before.interval_seconds.high / before.interval_seconds.low
    )
    missed = [abs(found.step_seconds / walk.truth - 1.0) for found in (before, after)]
    assert missed[1] < 0.5 * missed[0]


@pytest.mark.parametrize("name", ["template", "rows", "errors", "estimate"])
def test_the_page_shows_what_is_printed(walk: Walk, name: str) -> None:
    shown = quoted(PAGE.read_text(encoding="utf-8"), name)
    assert differences(shown, walk.blocks()[name]) == [], "python -m tests.docs.walk writes it anew"


def test_every_command_of_the_page_runs(walk: Walk, tmp_path: Path) -> None:
    (tmp_path / "mine.csv").write_text(walk.table, encoding="utf-8")
    commands = [
        line.partition("#")[0].split()
        for block in blocks(section(page("measure.md"), "Your own runs"), "sh")
        for line in block.replace("\\\n", " ").splitlines()
        if line.startswith("simulate ") and "run." not in line and "validate" not in line
    ]
    assert len(commands) >= 4
    with inside(tmp_path):
        for words in commands:
            kept = words[1 : words.index(">")] if ">" in words else words[1:]
            result = run(*kept)
            assert result.exit_code == 0, (words, result.stderr)
    asked = " ".join(" ".join(words) for words in commands)
    assert str(ASKED["model"]) in asked
    assert f"--pp {NEXT['pipeline_parallel']}" in asked
