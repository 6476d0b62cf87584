"""A short run of the fuzz with a fixed seed; SIMULATE_FUZZ_SEED takes another, and `python -m tests.fuzz` a new one."""

import os
import random
from itertools import islice
from pathlib import Path

import pytest

from tests.fuzz.cases import CLASSES, cases, tried
from tests.fuzz.oracle import Answer, WrongAnswerError, judge

INPUTS = 120
SEED = int(os.environ.get("SIMULATE_FUZZ_SEED", "20261123"))


def test_a_short_run(tmp_path: Path) -> None:
    for place, (name, rng) in enumerate(islice(cases(SEED), INPUTS)):
        try:
            tried(name, rng, tmp_path / "work")
        except WrongAnswerError as error:
            pytest.fail(f"seed {SEED}, number {place}, {name}: {error}")


@pytest.mark.parametrize("name", CLASSES)
def test_every_class_is_asked(name: str, tmp_path: Path) -> None:
    answers = [tried(name, random.Random(f"{SEED}/{name}/{n}"), tmp_path / "work") for n in range(3)]  # noqa: S311
    assert {answer.code for answer in answers} <= {0, 1, 2, 3}


@pytest.mark.parametrize(
    ("answer", "args"),
    [
        (Answer(70, "", "internal error: x", 0, 0), ["check"]),
        (Answer(1, "", "", 0, 0), ["estimate"]),
        (Answer(0, "\x1b[2J", "", 0, 0), ["check"]),
        (Answer(0, "a\n::error::x\n", "", 0, 0), ["check"]),
        (Answer(0, '{"a": NaN}', "", 0, 0), ["estimate", "--format", "json"]),
        (Answer(0, '{"a": 1}', "", 0, 0), ["estimate", "--format", "json"]),
        (Answer(0, "", "", 0, 10**12), ["check"]),
        (Answer(2, "", "x" * 4000, 0, 0), ["check"]),
    ],
)
def test_the_oracle_sees_what_is_wrong(answer: Answer, args: list[str]) -> None:
    with pytest.raises(WrongAnswerError):
        judge(args, answer)
