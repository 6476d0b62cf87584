"""How far off the predictions are by framework and of mixtures of experts, and what they are held to."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from benchmarks.accuracy.draws import few_error
from benchmarks.accuracy.judge import FEW
from benchmarks.accuracy.rows import JudgedRow, Judgement, published
from benchmarks.accuracy.vendors import LEAST_TAU, PublishedLayout
from simulator.evidence.calibration.own import summary
from simulator.show.report.presentation import Section

ASCEND: Final = "MindSpeed, MindFormers"
_NAMES: Final = {"megatron": "Megatron", "paddle": "Paddle", "torch": "torch"}
_CORE: Final = "/mcore/"
"""Part of a script's path that says it trains a model of Megatron's core."""


@dataclass(frozen=True, slots=True)
class Figure:
    """One line of the table."""

    framework: str
    """Or the models that it is a figure of."""
    text: str
    reached: str
    target: str = "-"
    met: bool | None = None
    """None without a target."""

    @property
    def cells(self) -> list[str]:
        """The line as text."""
        verdict = "" if self.met is None else "met" if self.met else "missed"
        return [self.framework, self.text, self.reached, self.target, verdict]


def framework_of(row: JudgedRow) -> str:
    """The framework of a row's run; Megatron on Ascend is MindSpeed, beside the MindFormers that is priced as it is."""
    if row.platform == "Ascend":
        return ASCEND
    return _NAMES[row.framework]


def by_framework(
    found: Judgement, ascend_runs: Mapping[str, float], configurations: Mapping[str, int]
) -> Iterator[Section]:
    """The table; of the records `ascend_runs` are those of `benchmarks.ascend_runs`, `configurations` counts."""
    time, memory = found.of_kind("time"), found.of_kind("memory")
    mixtures = _mixtures(time, published(), configurations)
    figures = [*_runs(ascend_runs), *_ascend(time), *_paddle(memory), *mixtures, *_others(time, memory)]
    headers = ("of", "figure", "reached", "target", "")
    yield Section("By framework", (), headers, [figure.cells for figure in figures], text_columns=(0, 1, 2, 3, 4))


def _runs(found: Mapping[str, float]) -> Iterator[Figure]:
    """MindSpeed-LLM's continuous integration: bytes of every rank."""
    whole, priced = int(found["scripts"]), int(found["priced"])
    name, said = "MindSpeed", int(found["not_fit_or_refused"])
    yield Figure(name, "scripts that ran, said not to fit or refused", f"{said} of {whole}", "0", said == 0)
    yield Figure(name, "scripts priced", f"{priced} of {whole}", "at least 80 %", priced >= 0.8 * whole)
    for within, least in ((1, 0.80), (3, 0.95)):
        share = found[f"state_within_{within}"]
        text = f"state after the first step, fullest rank, within {within} %"
        yield Figure(name, text, f"{100 * share:.0f} % of the priced", f"at least {100 * least:.0f} %", share >= least)
    peak = found["peak_mean"]
    text = f"peak of the first step where activations bind, mean of {int(found['peaks'])}"
    yield Figure(name, text, _percent(peak), "at most 6 %", peak <= 0.06)


def _ascend(time: Sequence[JudgedRow]) -> Iterator[Figure]:
    rows = [row for row in time if framework_of(row) == ASCEND]
    core = [row for row in rows if _CORE in row.options_source]
    for name, text, kept, most in (
        (ASCEND, "speed, source left out", rows, 0.095),
        ("MindSpeed", "the same, models of Megatron's core", core, 0.06),
    ):
        found = summary(kept)
        yield _at_most(name, f"{text}, mean of {found.rows}", found.source_out, most)
    found = summary(rows)
    yield Figure(
        ASCEND,
        f"90 % intervals of that, ± {100 * found.half_width:.0f} %: rows inside",
        f"{100 * found.coverage:.0f} %",
        "85 to 95 %",
        0.85 <= found.coverage <= 0.95,
    )
    yield _at_most(ASCEND, f"speed, {FEW} rows of the source known", few_error(rows), 0.105)


def _paddle(memory: Sequence[JudgedRow]) -> Iterator[Figure]:
    rows = [row for row in memory if framework_of(row) == "Paddle" and row.sort == "allocated"]
    if rows:
        found = summary(rows)
        yield _at_most("Paddle", f"allocated on A100, source left out, mean of {found.rows}", found.source_out, 0.05)


def _mixtures(
    time: Sequence[JudgedRow], layouts: Sequence[PublishedLayout], configurations: Mapping[str, int]
) -> Iterator[Figure]:
    """Mixtures of experts and current models, whatever trains them."""
    name = "mixtures of experts"
    rows = [row for row in time if row.moe]
    if rows:
        found = summary(rows)
        yield _at_most(name, f"speed, source left out, mean of {found.rows}", found.source_out, 0.12)
    if layouts:
        near = sum(one.within for one in layouts)
        text = "questions whose published layout is predicted within 5 % of the best"
        yield Figure(name, text, f"{near} of {len(layouts)}", "all", near == len(layouts))
        kept = [one.tau for one in layouts if one.tau is not None]
        least = min(kept, default=1.0)
        text = f"order kept (tau) where three layouts and more were measured, {len(kept)} questions"
        yield Figure(name, text, f"{least:.2f}", f"at least {LEAST_TAU}", least >= LEAST_TAU)
    given, priced = configurations["given"], configurations["priced"]
    share = 60 / 69
    yield Figure("models", "public configurations priced", f"{priced} of {given}", "60 of 69", priced >= share * given)


def _others(time: Sequence[JudgedRow], memory: Sequence[JudgedRow]) -> Iterator[Figure]:
    """What has no target of its own."""
    for name in _NAMES.values():
        for text, rows in (("speed", time), ("memory", memory)):
            kept = [row for row in rows if framework_of(row) == name]
            if kept:
                found = summary(kept)
                yield Figure(name, f"{text}, source left out, mean of {found.rows}", _percent(found.source_out))


def _at_most(name: str, text: str, value: float, most: float) -> Figure:
    return Figure(name, text, _percent(value), f"at most {100 * most:.1f} %", value <= most)


def _percent(value: float) -> str:
    return f"{100 * value:.1f} %"
