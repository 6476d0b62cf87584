"""MindSpeed-LLM's own runs: what `check` reads of each script, against the bytes that every rank had allocated.

The baselines give the state after the first step, and the peak of that step, in which Adam's moments do not exist yet.
The scripts are read where they stand, in the folder that SIMULATE_SHARED names; `python -m benchmarks.ascend_runs`
prints each of them.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.machine import say
from simulator.answers.cases import Case, case_of_recipe
from simulator.answers.gates import Gates
from simulator.cost.derived import pricing_of
from simulator.cost.memory.peak import memory_by_stage
from simulator.cost.memory.state import optimizer_on_device
from simulator.errors import SimulateError
from simulator.question.frameworks.profile import DTYPE_BYTES
from simulator.question.question import Question, question_of
from simulator.question.recipe import Recipe
from simulator.question.units import to_mib
from simulator.recipes.check.judge import check_recipe
from simulator.recipes.readers.read import read_recipe

SHARED = Path(os.environ.get("SIMULATE_SHARED") or Path(__file__).resolve().parents[2] / "shared")
FOLDER = SHARED / "measured" / "public" / "ascend-ci"
EDITED = ("llama2_tp2_pp4_vpp2_ptd--v2.0.0",)
"""Baselines that differ by exactly 300.0 MiB on every rank from what any other run of the layout has."""
VOCABULARIES = {"deepseek_500b": 32000, "llama3_tp2_pp2_vpp1": 128256, "mamba2_8b": 256000, "mamba2_2.7b": 50288}
"""Entries of tokenizers that the scripts load and do not name: the names of their data and checkpoints say which."""


@dataclass(frozen=True)
class Run:
    """One script with what it measured, and what is said of it."""

    script: str
    outcome: str
    measured: tuple[tuple[int, float, float], ...]
    """Rank, state after the first step and peak of it, MiB."""
    state: tuple[float, ...] = ()
    """Predicted, by pipeline rank, MiB."""
    first: tuple[float, ...] = ()
    """Predicted peak of the first step, by pipeline rank, MiB."""
    bound: tuple[bool, ...] = ()
    """Whether activations bind that peak."""
    devices: int = 0
    upper: bool = False
    """Whether samples may be shorter than what is priced."""
    reasons: tuple[str, ...] = ()

    @property
    def priced(self) -> bool:
        """Whether it has an estimate."""
        return bool(self.state)

    def stage(self, rank: int) -> int:
        """Pipeline rank of a device."""
        return rank * len(self.state) // self.devices

    @property
    def state_error(self) -> float:
        """Of the rank with most, relative."""
        _, worst, _ = max(self.measured, key=lambda one: one[1])
        return max(self.state) / worst - 1.0

    @property
    def peak_errors(self) -> Iterator[float]:
        """Of every measured rank whose predicted peak activations bind."""
        for rank, state, peak in self.measured:
            stage = self.stage(rank)
            if self.bound[stage] and peak > state * 1.001:
                yield self.first[stage] / peak - 1.0


def runs() -> list[Run]:
    """Every script, read and priced."""
    lines = (FOLDER / "runs.jsonl").read_text(encoding="utf-8").splitlines()
    return [run_of(json.loads(line)) for line in lines]


def asked_of(recipe: Recipe, script: str) -> Question:
    """The question about a script: its vocabulary where only its data's name gives it."""
    entries = next((count for part, count in VOCABULARIES.items() if part in script), None)
    if script == "mamba2_2.7b_tp1_pp1--v26.0.0.sh":
        # The table of this baseline is that of the 8B model's tokenizer: (22,327 - 18,686) MiB / 7.25 bytes / 2,560.
        entries = 256000
    told = any(remark.rule == "no-vocabulary" for remark in recipe.remarks)
    return question_of(
        {"hardware": "ascend-910b-64g-8", "model_fields": {"vocab_size": entries} if entries and told else {}}
    )


def run_of(told: dict[str, Any]) -> Run:
    """One line of the baselines with what is said of its script."""
    measured = tuple(
        (one["rank"], one["allocated memory"], one["max allocated memory"]) for one in told["memory_mib_by_rank"]
    )
    name = told["script"]
    text = (FOLDER / name).read_text(encoding="utf-8")
    try:
        (recipe,) = read_recipe(
            str(FOLDER / name), {"MOE_ARGS": ""} if "$MOE_ARGS" in text and "MOE_ARGS=" not in text else {}
        )
        asked = asked_of(recipe, name)
        checked = check_recipe(recipe, asked, Gates())
        case = case_of_recipe(recipe, asked)
    except SimulateError as error:
        return Run(name, "unreadable", measured, reasons=(str(error),))
    upper = any(remark.rule.endswith("-bound") for remark in recipe.remarks)
    unpriced = [r for r in recipe.remarks if r.rule in ("not-modelled", "unknown-flag") and r.severity == "error"]
    if not isinstance(case, Case) or unpriced:
        return Run(name, checked.outcome, measured, reasons=checked.reasons)
    state, first, bound = figures(case)
    return Run(name, checked.outcome, measured, state, first, bound, case.scenario.devices, upper, checked.reasons)


def figures(case: Case) -> tuple[tuple[float, ...], tuple[float, ...], tuple[bool, ...]]:
    """State, peak of the first step, and whether activations bind it, by pipeline rank, MiB."""
    pricing = pricing_of(case.scenario, case.layout)
    contents, memory, profile = pricing.contents, memory_by_stage(pricing), case.scenario.framework
    resident, _ = optimizer_on_device(pricing, memory.state.optimizer)
    whole = memory.state.optimizer.sum()
    moments = 2.0 * DTYPE_BYTES[profile.optimizer_dtype]
    masters = DTYPE_BYTES[profile.master_weight_dtype] if profile.master_weights else 0.0
    share = moments / (moments + masters) if whole else 0.0
    absent = contents.on_ranks(resident * share)
    absent = absent - memory.retained
    passes = np.max([one.total(contents) - absent for one in memory.moments if one.name != "optimizer step"], axis=0)
    step = (
        np.max([one.total(contents) for one in memory.moments if one.name == "optimizer step"], axis=0)
        + memory.retained
    )
    first = np.maximum(passes, step)
    return (
        tuple(to_mib(float(x)) for x in memory.after_step[:, 0]),
        tuple(to_mib(float(x)) for x in first[:, 0]),
        tuple(bool(x) for x in (passes > step)[:, 0]),
    )


def told(run: Run) -> str:
    """One line for a reader of the test."""
    if not run.priced:
        return f"{run.script[:-3]:62} {run.outcome:13} {'; '.join(run.reasons)[:110]}"
    peaks = " ".join(f"{100 * error:+.1f}" for error in run.peak_errors)
    return f"{run.script[:-3]:62} {run.outcome:13} state {100 * run.state_error:+6.2f} %  peaks {peaks}"


def summed_up(found: Sequence[Run]) -> Mapping[str, float]:
    """What the pages tell of the runs: counts, and shares and means of the priced ones."""
    priced = [run for run in found if run.priced]
    judged = [run for run in priced if not run.script.startswith(EDITED)]
    states = np.array([abs(run.state_error) for run in judged])
    # Samples of varying length are priced at full length, an upper bound.
    peaks = np.array([abs(error) for run in judged if not run.upper for error in run.peak_errors])
    values = {
        "scripts": len(found),
        "priced": len(priced),
        "not_fit_or_refused": sum(run.outcome in ("does_not_fit", "refused") for run in found),
        "state_within_1": float(np.mean(states < 0.01)),
        "state_within_3": float(np.mean(states < 0.03)),
        "peak_mean": float(peaks.mean()),
        "peaks": len(peaks),
    }
    return {name: round(value, 6) for name, value in values.items()}


if __name__ == "__main__":
    every = runs()
    say("\n".join((*map(told, every), json.dumps(summed_up(every)))))
