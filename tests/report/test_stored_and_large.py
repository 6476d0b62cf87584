"""Answers that were stored, that are large, and that rest on a peak that nobody stated."""

import json
from pathlib import Path
from typing import Any

import pytest

import simulator
from simulator.evidence.calibration import apply
from simulator.show.report.as_json import ranking_json
from simulator.show.report.presentation import Presentation
from tests.cli.running import refusal, run

QUESTION: dict[str, Any] = {"model": "llama3.2-1b", "hardware": "h20", "devices": 8, "global_batch_size": 64}
ASKED = ("--model", "llama3.2-1b", "--hardware", "h20", "--devices", "8", "--global-batch-size", "64")


@pytest.mark.parametrize(
    "command", [("compare", "{}", "{}"), ("explain", "{}"), ("emit", "{}"), ("compare", "{}", "sound.json")]
)
def test_a_stored_answer_of_an_unknown_framework_is_refused(
    command: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    sound = run("estimate", *ASKED, "--format", "json").stdout
    Path("sound.json").write_text(sound, encoding="utf-8")
    Path("stored.json").write_text(sound.replace('"framework": "megatron"', '"framework": "jax"'), encoding="utf-8")
    said = refusal(*(word.format("stored.json") for word in command))
    assert said.startswith("stored.json: framework 'jax' is not one of ")


def test_a_ranking_is_written_an_estimate_at_a_time() -> None:
    ranking = simulator.rank(**QUESTION, top=40, variants=True)
    pieces = list(ranking_json(ranking, Presentation()))
    assert len(pieces) == len(ranking.estimates) + 2
    assert len(json.loads("".join(pieces))["estimates"]) == len(ranking.estimates) > 20


def test_ranges_of_many_layouts_are_priced_together(monkeypatch: pytest.MonkeyPatch) -> None:
    blocks: list[int] = []
    alone = apply.relative_variances

    def counted(kind: Any, pricing: Any, part: Any, at: Any = None) -> Any:
        blocks.append(len(pricing if at is None else at))
        return alone(kind, pricing, part, at)

    monkeypatch.setattr(apply, "relative_variances", counted)
    ranking = simulator.rank(**QUESTION, top=200, variants=True)
    assert len(ranking.estimates) == 200
    assert sum(blocks) >= 400  # of memory and of time
    assert len(blocks) < 100


@pytest.mark.parametrize("form", ["table", "markdown", "json"])
def test_an_assumed_peak_is_named(form: str) -> None:
    question = ("estimate", "--model", "llama3.2-1b", "--hardware", "bi150-64g", "--devices", "8", "--precision", "fp8")
    told, plain = (" ".join(run(*question[:-1], word, "--format", form).stdout.split()) for word in ("fp8", "bf16"))
    peak = "TFLOP/s of bi150-64g (No rate is published: that of 16 bits)"
    assert peak in told
    assert peak not in plain
