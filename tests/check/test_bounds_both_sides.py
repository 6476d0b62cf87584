"""Bounds are read both ways: one recipe of each kind of trainer fits, does not fit at its longest, or does not fit."""

from pathlib import Path

import pytest

import simulator
from simulator.answers.gates import Gates
from simulator.question.question import question_of
from simulator.recipes.check.judge import check_files
from simulator.recipes.check.verdict import Checked, exit_code, graded
from simulator.show.report.estimate import explain_table
from simulator.show.report.presentation import Presentation
from tests.cli.running import run
from tests.recipes.test_formats import FACTORY
from tests.recipes.test_tuners import AXOLOTL, QLORA, SWIFT, TUNE

HARDWARE = "h100-sxm-80g"
LARGEST = 2**18
RECIPES = {
    "torchtune": ("lora_finetune_distributed.yaml", TUNE + "dataset: {packed: false}\n"),
    "llamafactory": ("llamafactory.yaml", FACTORY.replace("full", "lora") + "cutoff_len: 4096\nddp_timeout: 1\n"),
    "axolotl": ("axolotl.yaml", AXOLOTL.replace("sample_packing: true", "sample_packing: false") + QLORA),
    "swift": ("swift.sh", SWIFT.replace("PROGRAM", "swift") + " --train_type lora --torch_dtype bfloat16\n"),
}


def judged(folder: Path, trainer: str, micro_batch_size: int, **values: object) -> Checked:
    name, text = RECIPES[trainer]
    file = folder / name
    file.write_text(text, encoding="utf-8")
    asked = {"hardware": HARDWARE, "nodes": 1, "micro_batch_size": micro_batch_size}
    asked |= {"global_batch_size": 8 * micro_batch_size, **values}
    return check_files([str(file)], question_of(asked), Gates())[0]


@pytest.mark.parametrize("trainer", RECIPES)
def test_a_mutated_recipe(trainer: str, tmp_path: Path) -> None:
    outcomes = [judged(tmp_path, trainer, 2**power).outcome for power in range(0, 19, 2)]
    assert outcomes[0] in ("fits", "longest_does_not_fit")
    assert "longest_does_not_fit" in outcomes
    assert "not_modelled" not in outcomes
    between = judged(tmp_path, trainer, 2 ** (2 * outcomes.index("longest_does_not_fit")))
    assert not between.passed
    assert any("by its most favourable reading it needs" in reason for reason in between.reasons)


def test_what_no_reading_lets_fit_is_said_so(tmp_path: Path) -> None:
    assert judged(tmp_path, "torchtune", LARGEST).outcome == "does_not_fit"


def test_what_the_user_says_ends_a_bound(tmp_path: Path) -> None:
    assert judged(tmp_path, "torchtune", 256).outcome == "longest_does_not_fit"
    assert judged(tmp_path, "torchtune", 256, seq_length=2048).outcome == "does_not_fit"


def test_which_of_them_fail_is_asked_by_name(tmp_path: Path) -> None:
    between = judged(tmp_path, "torchtune", 256)
    for words, fails, code in (
        (None, True, 3),
        (("does_not_fit", "refused"), False, 0),
        (("longest_does_not_fit",), True, 1),
        (("stated_longest_does_not_fit",), True, 1),
    ):
        gates = Gates(fail_on=words)  # type: ignore[arg-type]  # one of the words
        result = graded(between, gates)
        assert (not result.passed, exit_code([result], gates)) == (fails, code)


def test_the_command_line_fails_what_the_recipe_states(tmp_path: Path) -> None:
    name, text = RECIPES["torchtune"]
    file = tmp_path / name
    file.write_text(text.replace("batch_size: 2", "batch_size: 256"), encoding="utf-8")
    words = ("check", str(file), "--hardware", HARDWARE, "--nodes", "1", "--fail-on")
    assert run(*words, "stated-longest-does-not-fit").exit_code == 1
    assert run(*words, "does-not-fit,refused").exit_code == 0


def test_an_explanation_reads_bounds_as_the_check_does(tmp_path: Path) -> None:
    batch = next(2**power for power in range(20) if judged(tmp_path, "torchtune", 2**power).outcome != "fits")
    file = tmp_path / RECIPES["torchtune"][0]
    asked = {"hardware": HARDWARE, "nodes": 1, "micro_batch_size": batch, "global_batch_size": 8 * batch}
    explained, checked = simulator.explain(file, **asked), judged(tmp_path, "torchtune", batch)
    assert explained.outcome == checked.outcome == "longest_does_not_fit"
    assert explained.bounds == checked.reasons
    assert "longest does not fit: needs" in explain_table(explained, Presentation())
