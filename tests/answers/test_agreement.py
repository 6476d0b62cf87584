"""The answers of one question agree, whoever gives them, over random questions of a fixed seed."""

from collections.abc import Callable

import pytest

import simulator
from simulator.question.specs.catalogue import load_hardware
from tests.answers import agreement
from tests.answers.agreement import SEED, checked, questions

pytestmark = pytest.mark.full_answer

_FEW = 6
"""Questions of the suite; `python -m tests.answers.agreement` asks many."""


@pytest.mark.parametrize("number", range(_FEW))
def test_answers_agree(number: int) -> None:
    asked, held = list(questions(SEED, number + 1))[-1]
    wrong = [f"{name}: {text}" for name, text in checked(asked, held) if text]
    assert not wrong, (asked, held)


def test_what_does_not_hold_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = {"model": "llama3.1-8b", "hardware": "h20", "nodes": 2, "global_batch_size": 64}
    assert not [text for _, text in checked(asked, {"tp": 8}) if text]
    slower = load_hardware("l40s")
    monkeypatch.setattr(agreement, "doubled", lambda *_: slower)
    monkeypatch.setattr(agreement, "simulator", _OtherBatch)
    names = {name for name, text in checked(asked, {"tp": 8}) if text}
    assert {"twice the network", "estimate of the ranking"} <= names


_ESTIMATE: Callable[..., object] = simulator.estimate


class _OtherBatch:
    """The API, whose estimates are of another batch."""

    rank = staticmethod(simulator.rank)

    @staticmethod
    def estimate(**asked: object) -> object:
        return _ESTIMATE(**asked | {"global_batch_size": 128})
