"""Repositories that are not the project's own: nothing that trains is passed over, no firm answer over the unread."""

import math
import re
from fnmatch import fnmatchcase
from pathlib import Path

import pytest

from benchmarks.repositories import CASES
from simulator.answers.gates import Gates
from simulator.question.question import question_of
from simulator.recipes.check.judge import check_files
from simulator.recipes.check.repository import read_settings
from simulator.recipes.check.verdict import Checked
from tests.check.repositories import (
    FIRM,
    FOLDER,
    REINFORCEMENT,
    ROOT,
    SETTINGS,
    SHARED,
    left_out,
    listed,
    no_training,
    passed_over,
)

REPRODUCTIONS = SHARED / "findings" / "recipes-repro"
SAMPLED = 9
"""Every so many files of the list are judged here; `python -m tests.check.repositories` judges all."""


def test_most_of_what_trains_gets_a_verdict() -> None:
    none, left = no_training(), left_out()
    rows = [row for row in listed() if row.label and row.label not in REINFORCEMENT]
    rows = [row for row in rows if (row.repository, row.name) not in none.keys() | left.keys()][:: 2 * SAMPLED]
    firm = [row for row in rows if row.judged_with_nodes(question_of({"hardware": "h100-sxm-80g"})) in FIRM]
    # One sample in twenty falls so far short of the share of all files (`python -m tests.check.repositories`).
    assert len(firm) >= 0.45 * len(rows) - 1.65 * math.sqrt(0.45 * 0.55 * len(rows))


def test_the_page_shows_every_repository_that_the_command_judges() -> None:
    page = (ROOT / "benchmarks" / "README.md").read_text(encoding="utf-8")
    told = re.findall(r"^\| (\S+/\S+), (\w+) \| `([\w-]+)`.* \d+ recipes: .*\| [012] \|$", page, re.MULTILINE)
    assert told == [(repository, commit, hardware) for repository, commit, hardware, _ in CASES]


@pytest.mark.parametrize("settings", sorted(SETTINGS.glob("*.yaml")), ids=lambda path: path.stem)
def test_the_settings_of_ten_repositories_are_short_and_name_files_that_are_there(settings: Path) -> None:
    listed()
    assert len(settings.read_text(encoding="utf-8").splitlines()) <= 15
    root = FOLDER / settings.stem
    patterns = read_settings(settings, root).content.files
    names = [path.relative_to(root).as_posix() for path in root.rglob("*")]
    assert [pattern for pattern in patterns if not any(fnmatchcase(name, pattern) for name in names)] == []


def test_the_list_of_what_is_left_out_is_sound() -> None:
    files = {(row.repository, row.name) for row in listed() if row.label}
    left = left_out()
    assert left.keys() <= files - no_training().keys()
    allowed = ("vision", "JAX", "an architecture that is not priced")
    assert all(why.endswith(allowed) for why in left.values())


def test_nothing_that_trains_is_passed_over() -> None:
    rows = [row for row in listed() if row.label][::SAMPLED]
    none = no_training()
    skipped = {(row.repository, row.name): reason for row, reason in passed_over(rows)}
    trains = {place: reason for place, reason in skipped.items() if place not in none}
    assert len(trains) <= len(rows) // 100, trains
    assert all(reason.strip() for reason in skipped.values())


def judged(name: str, hardware: str = "h100-sxm-80g") -> tuple[Checked, ...]:
    file = REPRODUCTIONS / name
    if not file.is_file():
        pytest.skip("needs findings/ of the shared folder (SIMULATE_SHARED)")
    return check_files(
        [str(file)], question_of({"hardware": hardware}), Gates(skip_non_recipes=True), root=REPRODUCTIONS
    )


@pytest.mark.parametrize(
    ("name", "outcomes"),
    [
        *((f"{name}.sh", ["fits"]) for name in ("a_substr", "b_arith", "b2_arith", "c_for", "d_fi_done", "e_brackets")),
        *((f"{name}.sh", ["fits"]) for name in ("f_json", "g_guard", "h_guard", "i_base")),
        *((f"{name}.sh", ["does_not_fit"]) for name in ("w1", "w3", "w6", "w9", "w10")),
        ("w8.sh", ["does_not_fit", "does_not_fit"]),
        *((f"{name}.sh", ["cannot_tell"]) for name in ("w2", "w4", "w5", "w7")),
        ("trl/sft.yaml", ["depends"]),
    ],
)
def test_each_fault_that_was_found_is_mended(name: str, outcomes: list[str]) -> None:
    assert [result.outcome for result in judged(name)] == outcomes


@pytest.mark.parametrize(("name", "asks"), [("w2.sh", "EXTRA_OPTIONS"), ("w4.sh", "BIND"), ("w7.sh", "N=")])
def test_what_is_missing_is_asked_for(name: str, asks: str) -> None:
    (found,) = judged(name)
    assert any(f"--set {asks}" in reason for reason in found.reasons)


def test_what_a_sourced_file_sets_is_priced() -> None:
    sourced, inline = judged("sourced/a_sourced.sh"), judged("sourced/b_inline.sh")
    assert sourced[0].estimate is not None
    assert inline[0].estimate is not None
    assert sourced[0].estimate.memory == inline[0].estimate.memory
    (over,) = judged("sourced/c_over.sh", "h200-sxm")
    assert over.estimate is not None
    assert (over.passed, over.estimate.layout.micro_batch_size) == (False, 16)


def test_what_a_file_that_is_not_at_hand_may_set_is_not_known(tmp_path: Path) -> None:
    recipe = REPRODUCTIONS / "sourced" / "c_over.sh"
    if not recipe.is_file():
        pytest.skip("needs findings/ of the shared folder (SIMULATE_SHARED)")
    text = recipe.read_text(encoding="utf-8")
    (tmp_path / "train.sh").write_text(text, encoding="utf-8")
    (found,) = check_files([str(tmp_path / "train.sh")], question_of({"hardware": "h200-sxm"}), Gates(), root=tmp_path)
    assert found.outcome == "cannot_tell"
    assert any("--set MBS=VALUE" in reason for reason in found.reasons)
    told = check_files(
        [str(tmp_path / "train.sh")],
        question_of({"hardware": "h200-sxm"}),
        Gates(),
        {"MBS": "1", "RC": ""},
        root=tmp_path,
    )
    assert [result.outcome for result in told] == ["fits"]


def test_the_list_of_what_trains_nothing_is_sound() -> None:
    files = {(row.repository, row.name) for row in listed() if row.label}
    none = no_training()
    assert none.keys() <= files
    assert all(what.strip() and "\n" not in what for what in none.values())
    assert Path(__file__).with_name("no_training.csv").is_file()
