"""Models of the JSON of plans, comparisons, explanations, sweeps, verdicts and traces; `as_json` has the rest."""

from __future__ import annotations

from typing import Annotated, Literal

from simulator._version import __version__
from simulator.answers.gates import OUTCOMES, CheckOutcome, Gates
from simulator.answers.plan import Availability, Goodput, LimitAnswer, LimitCheck, OfferPriced, Plan
from simulator.answers.run import TrainingRun
from simulator.answers.sweep import SweepOutcome
from simulator.cost.pricing.estimate import StageMemory
from simulator.question.origin import Place, Severity
from simulator.question.vocabulary import Precision
from simulator.recipes.check.verdict import ChangeKind, Checks, Room
from simulator.show.report.as_json import (
    VERSION,
    AnswerJson,
    At,
    EstimateJson,
    EstimateLayoutJson,
    PartSizes,
    QuestionJson,
    Shown,
)
from simulator.show.report.text import mib

ToolVersion = Annotated[str, At(lambda *_: __version__, "Version of simulate.")]


class ChoiceJson(Shown):
    offer: int
    hardware: str
    nodes: int
    devices: int
    precision: Precision
    verdict: LimitAnswer
    reason: str | None
    in_time: LimitCheck | None
    in_budget: LimitCheck | None
    pareto: bool
    goodput: Goodput | None
    training: Annotated[TrainingRun | None, At("run")]
    measured: bool
    estimate: EstimateJson | None


def _position(choice: str, absent: str = "for none") -> At:
    """Return where the position of one of a plan's choices comes from; `absent` says when there is none."""

    def position(plan: Plan, _: object) -> int | None:
        chosen = getattr(plan, choice)
        return None if chosen is None else plan.choices.index(chosen)

    return At(position, f"Position in `choices` of `{choice}`; None {absent}.")


class PlanJson(AnswerJson):
    model: str
    question: QuestionJson
    train_tokens: int
    deadline_days: float | None
    budget: float | None
    min_fit_probability: float
    availability: Annotated[Availability | None, At(unit=float)]
    offers: Annotated[list[OfferPriced], At("offers_priced")]
    best: Annotated[int | None, _position("best")]
    best_measured: Annotated[int | None, _position("best_measured")]
    equal: Annotated[
        list[int], At(lambda plan, _: [*map(plan.choices.index, plan.equal)], "Positions in `choices` of `equal`.")
    ]
    surer: Annotated[int | None, _position("surer", "where `best` is as sure")]
    sooner: Annotated[int | None, _position("sooner")]
    choices: list[ChoiceJson]


class InputJson(Shown):
    name: str
    first: str
    second: str
    memory_mib: float | None
    step_time_s: Annotated[float | None, At("step_seconds")]


class PartDifferenceJson(Shown):
    name: str
    first: float
    second: float
    difference: float


class MemoryDifferenceJson(PartDifferenceJson):
    first: Annotated[float, At(unit=mib)]
    second: Annotated[float, At(unit=mib)]
    difference: Annotated[float, At(unit=mib)]


class ComparisonJson(AnswerJson):
    names: list[str]
    first: EstimateJson
    second: EstimateJson
    inputs: list[InputJson]
    causes: list[str]
    memory_mib: Annotated[list[MemoryDifferenceJson], At("memory")]
    step_s: Annotated[list[PartDifferenceJson], At("step")]
    step_half_width: float | None
    differ: bool | None


class ExplainedChangeJson(Shown):
    """A set of changes after which the layout fits."""

    options: list[str]
    speed_ratio: float
    estimate: EstimateJson


class ExplanationJson(AnswerJson):
    estimate: EstimateJson
    causes: list[str]
    changes: list[ExplainedChangeJson]
    longest_sequence: int | None
    outcome: CheckOutcome | None
    bounds: list[str]


class SweepJson(AnswerJson):
    questions: int
    priced: int
    missing: int
    outcomes: dict[SweepOutcome, int]
    table: str | None
    elapsed_s: float


class PeakJson(Shown):
    stage: int
    device_mib: float
    capacity_mib: float
    fits: bool


class PeaksJson(Shown):
    passes: PeakJson
    optimizer_step: PeakJson


class RemarkJson(Shown):
    rule: str
    severity: Severity
    message: str
    fix: str
    source: str
    place: Place | None


class ChangeJson(Shown):
    options: Annotated[str, At("text")]
    speed_ratio: float
    patch: str
    estimate: EstimateJson


class CheckedJson(Shown):
    file: str
    title: str
    framework: str
    dialect: str
    outcome: CheckOutcome
    passed: bool
    known: bool
    reasons: list[str]
    blame: Place | None
    remarks: list[RemarkJson]
    estimate: EstimateJson | None
    peaks: PeaksJson | None
    without_offload: EstimateJson | None
    changes: list[ChangeJson]
    largest: Annotated[Room | None, At("room")]


class StoredJson(Shown):
    outcome: str
    passed: bool
    device_mib: float | None
    step_time_s: Annotated[float | None, At("step_seconds")]


class ChangedJson(Shown):
    file: str
    title: str
    kind: ChangeKind
    before: StoredJson | None
    after: StoredJson | None


def _counts(checks: Checks, _: object) -> dict[str, int]:
    outcomes, passed = [result.outcome for result in checks.results], sum(each.passed for each in checks.results)
    ended = {"recipes": len(outcomes), "passed": passed, "failed": len(outcomes) - passed}
    return ended | {outcome: outcomes.count(outcome) for outcome in OUTCOMES}


class ChecksJson(AnswerJson):
    tool_version: ToolVersion
    exit_code: int
    gates: Gates
    question: QuestionJson
    settings: dict[str, str]
    counts: Annotated[dict[str, int], At(_counts, "Recipes, those that passed and failed, and those of each verdict.")]
    results: list[CheckedJson]
    changed: list[ChangedJson] | None


class TracedJson(Shown):
    peak_mib: float
    moment: str
    between_steps_mib: Annotated[float, At("base_bytes")]
    breakdown_mib: Annotated[PartSizes, At("parts_bytes")]
    micro_batches: int
    elapsed_s: Annotated[float, At("seconds")]
    resident_mib: float
    torch: Annotated[str, At("torch_version")]


def _tensors(stage: StageMemory, _: object) -> PartSizes:
    return {name: size for name, size in stage.parts_bytes.items() if name != "outside_allocator"}


class PredictedPeakJson(Shown):
    """The predicted peak of the traced rank: tensors alone."""

    peak_mib: Annotated[float, At("allocated_bytes")]
    moment: str
    breakdown_mib: Annotated[PartSizes, At(_tensors, "Parts of the predicted peak that are tensors.")]


class TraceComparisonJson(Shown):
    schema_version: Annotated[Literal[1], At(lambda *_: 1, VERSION)]
    model: Annotated[str, At("estimate.model")]
    devices: Annotated[int, At("estimate.devices")]
    precision: Annotated[Precision, At("estimate.precision")]
    layout: Annotated[EstimateLayoutJson, At("estimate")]
    stage: Annotated[int, At("traced.stage")]
    layers: Annotated[int, At("predicted.layers")]
    difference: float
    traced: TracedJson
    predicted: PredictedPeakJson
