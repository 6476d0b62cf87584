"""MindSpeed-LLM's page of speeds, against what its own scripts are predicted to reach: runs that no fit has used.

The page is README.md of v1.0.RC3.0, its scripts stand under examples/mcore of the same tag; dense models of Megatron's
core that are in no measured table, but for one told apart. How wide NPUs count heads was chosen with them in view.
`python -m benchmarks.mindspeed_page CHECKOUT` reads them from a checkout.
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from benchmarks.machine import say
from simulator.answers.cases import Case, case_of_recipe
from simulator.question.question import question_of
from simulator.recipes.readers.read import read_recipe
from simulator.search.build import estimate_layout

ROWS = Path(__file__).with_suffix(".csv")
DEVICE = "ascend-910b-64g-8"


def predicted(script: Path) -> float:
    """Tokens a second and device of a script. Raises SystemExit where it has no estimate."""
    (recipe,) = read_recipe(str(script), {})
    case = case_of_recipe(recipe, question_of({"hardware": DEVICE}))
    if not isinstance(case, Case):
        raise SystemExit(f"{script}: no estimate")
    return estimate_layout(case.scenario, case.layout).throughput.tokens_per_second_per_device


def errors(checkout: Path) -> Iterator[tuple[str, float, str]]:
    """Script, relative error of its speed, and why it is told apart."""
    with ROWS.open(encoding="utf-8", newline="") as stream:
        for row in csv.DictReader(stream):
            speed = predicted(checkout / "examples" / "mcore" / row["script"])
            yield row["script"], speed / float(row["tokens_per_second_per_device"]) - 1.0, row["apart"]


if __name__ == "__main__":
    found = list(errors(Path(sys.argv[1])))
    for name, error, apart in found:
        say(f"{name:48} {100 * error:+6.1f} % {apart}")
    judged = np.array([error for _, error, apart in found if not apart])
    say(f"{len(judged)} rows: mean absolute {100 * np.mean(np.abs(judged)):.1f} %, bias {100 * np.mean(judged):+.1f} %")
