"""Public recipes that fit, with 64 times the micro batch: most no longer fit, and what is not said so has a reason."""

from collections import Counter, defaultdict
from functools import cache
from pathlib import Path

import pytest

from simulator.answers.gates import Gates
from simulator.errors import SimulateError
from simulator.question.question import question_of
from simulator.recipes.check.judge import check_recipe
from simulator.recipes.readers.read import read_recipe
from tools.practice import SHARED, public_files

DEVICE = {"hardware": "h100-sxm-80g"}
FILES = 6
"""Files of a repository that are tried, spread over it."""
NOES = {"does_not_fit", "refused", "longest_does_not_fit", "stated_longest_does_not_fit"}
FEW = 5
"""Files of a kind from which a share is told."""


def files() -> list[tuple[str, str]]:
    """Files of both corpora with the root of their repository."""
    found: dict[str, list[str]] = defaultdict(list)
    for _, file, root in public_files():
        found[root].append(file)
    return [(file, root) for root, every in found.items() for file in every[:: max(1, len(every) // FILES)]]


@cache
def outcomes() -> dict[str, list[tuple[str, tuple[str, ...]]]]:
    """Outcome and reasons of each mutated recipe, by the form of its file."""
    if not (SHARED / "corpus2").is_dir():
        pytest.skip("needs the corpora of the shared folder (SIMULATE_SHARED)")
    found: dict[str, list[tuple[str, tuple[str, ...]]]] = defaultdict(list)
    for file, root in files():
        try:
            (recipe, *_) = read_recipe(file, {}, None, Path(root))
        except (SimulateError, ValueError, OSError):
            continue
        judged = check_recipe(recipe, question_of(DEVICE), Gates())
        if judged.outcome != "fits" or judged.case is None:
            continue
        layout = judged.case.layout
        micro = 64 * layout.micro_batch_size
        larger = {"micro_batch_size": micro, "global_batch_size": micro * layout.data_parallel}
        answer = check_recipe(recipe, question_of(DEVICE | larger), Gates())
        found[recipe.dialect].append((answer.outcome, answer.reasons))
    return found


def test_most_files_of_a_kind_no_longer_fit() -> None:
    found = outcomes()
    assert sum(map(len, found.values())) > 40
    short = {
        kind: Counter(outcome for outcome, _ in every)
        for kind, every in found.items()
        if len(every) >= FEW and sum(outcome in NOES for outcome, _ in every) < 0.6 * len(every)
    }
    assert not short


def test_what_is_not_refused_says_why() -> None:
    for every in outcomes().values():
        assert all(reasons for outcome, reasons in every if outcome not in {*NOES, "fits"})
