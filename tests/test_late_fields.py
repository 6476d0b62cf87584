"""Fields that are computed when they are first read: once, in every copy, and whole in a pickle."""

import json
import pickle
import warnings
from pathlib import Path
from typing import Any

import pytest

import simulator
from simulator.cost.pricing import price
from simulator.late import deferred, read_late
from simulator.question.specs.documents import read_limited
from simulator.recipes.check import judge
from simulator.recipes.readers.read import read_recipe
from simulator.records import Record, replace
from simulator.search import build
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

    def counted(*args: Any) -> Any:
        priced.append(args)
        return price.price(*args)

    monkeypatch.setattr("simulator.search.alternatives.price", counted)
    estimate = simulator.estimate(
        model=str(TINY), hardware=str(HARDWARE), devices=2, framework="megatron", stack="megatron-guide", tp=1, pp=1
    )
    before = len(priced)
    assert estimate.assumed
    assert len(priced) > before
    assert pickle.loads(pickle.dumps(estimate)).assumed == estimate.assumed  # noqa: S301  just made


_LAUNCH = (
    "torchrun --nproc_per_node 2 pretrain_gpt.py --num-layers 2 --hidden-size 64 --num-attention-heads 2 "
    "--seq-length 64 --max-position-embeddings 64 --micro-batch-size 1 --global-batch-size 2 --bf16 "
    "--tokenizer-type NullTokenizer --use-distributed-optimizer"
)


def test_of_the_estimates_that_decide_a_recipe_the_one_shown_is_timed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Without a vocabulary the largest decides, else the smallest is priced too; what is shown is timed when read."""
    sized: list[Any] = []
    seconds: list[Any] = []

    def counted(function: Any, calls: list[Any]) -> Any:
        def call(*args: Any) -> Any:
            calls.append(args)
            return function(*args)

        return call

    monkeypatch.setattr("simulator.search.build.size", counted(price.size, sized))
    monkeypatch.setattr("simulator.search.build.timed", counted(price.timed, seconds))
    file = tmp_path / "train.sh"
    file.write_text(f"{_LAUNCH}\n", encoding="utf-8")
    [result] = simulator.check(str(file), hardware="h100-sxm-80g", nodes=1).results
    assert (result.outcome, len(sized), len(seconds)) == ("fits", 1, 0), result.reasons
    assert result.estimate is not None
    assert (result.estimate.throughput.step_seconds > 0.0, len(seconds)) == (True, 1)
    text = _LAUNCH.replace("--num-layers 2 --hidden-size 64", "--num-layers 80 --hidden-size 16384")
    file.write_text(f"{text}\n", encoding="utf-8")
    sized.clear()
    seconds.clear()
    [result] = simulator.check(str(file), hardware="h100-sxm-80g", nodes=1).results
    assert (result.outcome, len(sized), len(seconds)) == ("does_not_fit", 2, 0), result.reasons


def test_a_defect_of_the_time_hides_no_other_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def broken(*_: Any) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("simulator.search.build.timed", broken)
    (tmp_path / "a.sh").write_text(f"{_LAUNCH} --vocab-size 1024\n", encoding="utf-8")
    (tmp_path / "b.sh").write_text("torchrun other.py\n", encoding="utf-8")
    found = simulator.check(str(tmp_path / "a.sh"), str(tmp_path / "b.sh"), hardware="h100-sxm-80g")
    first, second = found.results
    assert (first.outcome, second.outcome) == ("fits", "not_modelled"), first.reasons
    assert first.estimate is not None
    with pytest.warns(RuntimeWarning, match=r"a\.sh: cannot be judged: internal error: ZeroDivisionError"):
        assert first.estimate.throughput.step_seconds == 0.0
    assert first.estimate.throughput.interval_seconds is None
    assert json.loads(found.to_json())["results"][0]["outcome"] == "fits"


def test_a_file_is_read_once_for_its_recipe(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    read: list[Path] = []

    def counted(file: Path) -> str:
        read.append(file)
        return read_limited(file)

    monkeypatch.setattr("simulator.frameworks.documents.read_limited", counted)
    file = tmp_path / "train.sh"
    for layers in ("2", "4"):
        file.write_text(_LAUNCH.replace("--num-layers 2", f"--num-layers {layers}"), encoding="utf-8")
        [recipe] = read_recipe(file)
        assert (read, recipe.model_fields["num_hidden_layers"]) == ([file], int(layers))
        read.clear()


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
    file.write_text(f"{_LAUNCH} --vocab-size 1024\n", encoding="utf-8")
    [result] = simulator.check(str(file), hardware="h100-sxm-80g", nodes=1).results
    assert (result.outcome, asked) == ("fits", []), result.reasons
    with pytest.warns(RuntimeWarning, match=r"train\.sh: cannot be judged: internal error: ZeroDivisionError"):
        assert result.peaks is None
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert result.peaks is None  # said once
    assert len(asked) == 1


def test_an_estimate_puts_its_parts_and_ranks_together_when_they_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a ranking shows of its layouts needs none of their ranks."""
    read: list[str] = []

    def counted(name: str) -> Any:
        function = getattr(build, name)

        def call(*args: Any) -> Any:
            read.append(name)
            return function(*args)

        return call

    for name in ("_stages", "_stage_times"):
        monkeypatch.setattr(build, name, counted(name))
    ranking = simulator.rank(model=str(TINY), hardware=str(HARDWARE), devices=2)
    best = ranking.estimates[0]
    assert best.memory.parts_bytes
    assert best.throughput.parts_seconds
    assert read == []
    assert sum(best.memory.stages[best.memory.binding_stage].parts_bytes.values()) == pytest.approx(
        best.memory.device_bytes
    )
    assert len(best.throughput.stages) == best.layout.pipeline_parallel
    assert read == ["_stages", "_stage_times"]
    assert pickle.loads(pickle.dumps(best)) == best  # noqa: S301  just made
