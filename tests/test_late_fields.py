"""Fields that are computed when they are first read: once, in every copy, and whole in a pickle."""

import pickle
import warnings
from pathlib import Path
from typing import Any

import pytest

import simulator
from simulator.recipes.check import judge
from simulator.search import alternatives
from simulator.tabular import Record, deferred, read_late, replace
from tests.runner.fakes import HARDWARE, TINY


@read_late("late")
class Answer(Record):
    first: int
    late: tuple[int, ...] = ()


def test_a_field_is_computed_once_by_who_reads_it() -> None:
    asked: list[int] = []

    def compute() -> tuple[int, ...]:
        asked.append(1)
        return (len(asked),)

    answer = Answer(1, late=deferred(compute))
    other = replace(answer, first=2)
    assert (other.first, asked) == (2, [])
    assert (answer.late, other.late, asked) == ((1,), (1,), [1])
    assert replace(other, late=()) == Answer(2)
    assert pickle.loads(pickle.dumps(Answer(1, late=deferred(compute)))) == Answer(1, (2,))  # noqa: S301  just made


def test_an_estimate_prices_other_switches_when_they_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    priced: list[Any] = []
    anew = alternatives.switched_anew

    def counted(*args: Any) -> Any:
        priced.append(args)
        return anew(*args)

    monkeypatch.setattr(alternatives, "switched_anew", counted)
    estimate = simulator.estimate(
        model=str(TINY), hardware=str(HARDWARE), devices=2, framework="megatron", stack="megatron-guide", tp=1, pp=1
    )
    before = len(priced)
    assert estimate.assumed
    assert len(priced) > before
    assert pickle.loads(pickle.dumps(estimate)).assumed == estimate.assumed  # noqa: S301  just made


def test_advice_on_a_recipe_is_computed_when_it_is_read_and_its_defects_hide_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked: list[Any] = []

    def broken(*args: Any) -> None:
        asked.append(args)
        raise ZeroDivisionError

    for name in ("peaks_of", "room_of"):
        monkeypatch.setattr(judge, name, broken)
    file = tmp_path / "train.sh"
    file.write_text(
        "torchrun --nproc_per_node 2 pretrain_gpt.py --num-layers 2 --hidden-size 64 --num-attention-heads 2 "
        "--seq-length 64 --max-position-embeddings 64 --micro-batch-size 1 --global-batch-size 2 --bf16 "
        "--vocab-size 1024 --tokenizer-type NullTokenizer --use-distributed-optimizer\n",
        encoding="utf-8",
    )
    [result] = simulator.check(str(file), hardware="h100-sxm-80g", nodes=1).results
    assert (result.outcome, asked) == ("fits", []), result.reasons
    with pytest.warns(RuntimeWarning, match=r"train\.sh: cannot be judged: internal error: ZeroDivisionError"):
        assert result.peaks is None
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert result.peaks is None  # said once
    assert len(asked) == 1
