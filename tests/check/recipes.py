"""Recipes and verdicts that the tests of checking share."""

import json
from pathlib import Path
from typing import Any

from simulator.answers.gates import Gates
from simulator.question.origin import Place
from simulator.question.question import Question, question_of
from simulator.question.recipe import Recipe
from simulator.question.scenario.layout import Layout
from simulator.recipes.check.judge import check_recipe
from simulator.recipes.check.verdict import Checked
from tests.cli.running import run

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples" / "recipes"
PLACES = {
    name: Place("train.sh", line)
    for line, name in enumerate(("model", "tp", "pp", "micro_batch_size", "recompute", "offload", "vpp"), start=3)
}


def recipe(framework: str = "megatron", **changes: Any) -> Recipe:
    """A recipe of llama3.1-8b on one node of 8 devices, with the layout's fields among `changes`."""
    fields = {name: changes.pop(name) for name in list(changes) if name in Layout.__dataclass_fields__}
    given: dict[str, Any] = {
        "file": "train.sh",
        "dialect": f"{framework}-shell",
        "model": "llama3.1-8b",
        "seq_length": 8192,
        "global_batch_size": 64,
        "precision": "bf16",
        "layout": Layout(**fields),
        "nodes": 1,
        "devices_per_node": 8,
        "places": PLACES,
    }
    return Recipe(**(given | {"framework": framework} | changes))


def judged(
    framework: str = "megatron", *, gates: Gates | None = None, asked: Question | None = None, **changes: Any
) -> Checked:
    return check_recipe(recipe(framework, **changes), asked or question_of({}), gates or Gates())


def rules(checked: Checked, severity: str = "error") -> list[str]:
    return [remark.rule for remark in checked.remarks if remark.severity == severity]


def checked(*args: str, code: int = 0) -> list[dict[str, Any]]:
    """Results of `simulate check`, which must end with `code`."""
    result = run("check", *args, "--format", "json")
    assert result.exit_code == code, result.stdout + result.stderr
    found: list[dict[str, Any]] = json.loads(result.stdout)["results"]
    return found
