"""Models of the JSON of launches (validations and probes); `report.as_json` writes the text."""

from __future__ import annotations

from typing import Annotated

from simulator.cost.pricing.estimate import Interval
from simulator.evidence.measurements.rows import MemoryKind, RunOutcome, StepSpread
from simulator.lab.probe.rates import Rates
from simulator.lab.runner.engine import OutcomeKind
from simulator.lab.trainer.job import RankResult
from simulator.question.vocabulary import Precision
from simulator.show.report.as_json import AnswerJson, At, EstimateJson, LayoutJson, Shown
from simulator.show.report.json_answers import ToolVersion
from simulator.show.report.text import mib, sharded_layout_text


class ComparedFigureJson(Shown):
    predicted: float
    interval: Interval | None
    measured: float
    error: float
    inside_interval: Annotated[bool | None, At("inside")]


class ComparedSizeJson(ComparedFigureJson):
    predicted: Annotated[float, At(unit=mib)]
    interval: Annotated[Interval | None, At(unit=mib)]
    measured: Annotated[float, At(unit=mib)]


class RankFigureJson(Shown):
    rank: int
    stage: int
    predicted_mib: Annotated[float, At("predicted")]
    measured_mib: Annotated[float, At("measured")]
    error: float
    predicted_forward_s: float
    forward_s: float | None
    predicted_backward_s: float
    backward_s: float | None
    predicted_device_mib: float
    device_mib: float | None


class MeasuredRowJson(Shown):
    row: Annotated[str, At("key")]
    outcome: RunOutcome
    error: Annotated[str | None, At("error", or_null=True)]
    memory_mib: float | None
    memory_kind: MemoryKind | None
    step_time_s: Annotated[float | None, At("step_seconds")]
    step_spread_s: Annotated[StepSpread | None, At("step_time_spread")]
    notes: Annotated[str, At("source_notes")]


class LaunchedJson(Shown):
    folder: Annotated[str, At("launch.folder")]
    repeat: Annotated[int, At("launch.repeat")]
    outcome: Annotated[OutcomeKind, At("outcome.kind")]
    error: Annotated[str | None, At("outcome.error", or_null=True)]
    wall_s: Annotated[float, At("ended.wall_seconds")]
    log: Annotated[str, At("ended.log")]
    log_tail: Annotated[list[str], At("outcome.tail")]
    ranks: Annotated[list[RankResult], At("outcome.ranks")]


class LayoutComparisonJson(Shown):
    title: str
    estimate: EstimateJson
    memory_mib: Annotated[ComparedSizeJson | None, At("memory")]
    step_time_s: Annotated[ComparedFigureJson | None, At("step")]
    ranks: list[RankFigureJson]
    runs: Annotated[int, At(lambda compared, _: len(compared.ran), "Rows of launches that ended well.")]
    earlier_rows: Annotated[int, At("earlier")]
    step_scatter: Annotated[float, At("scatter")]
    failures: list[str]
    contradiction: Annotated[str | None, At("contradiction", or_null=True)]
    rows: list[MeasuredRowJson]
    launches: Annotated[list[LaunchedJson], At("launched")]


class RefusedJson(Shown):
    layout: Annotated[str, At(lambda refused, _: sharded_layout_text(refused.layout), "The layout on one line.")]
    reason: str


class MovedJson(Shown):
    layout: LayoutJson
    place_before: Annotated[int | None, At("before")]
    place: Annotated[int | None, At("after")]
    step_time_s_before: Annotated[float | None, At("estimate_before.throughput.step_seconds")]
    step_time_s: Annotated[float | None, At("estimate_after.throughput.step_seconds")]
    measured_step_time_s: Annotated[float | None, At("measured_seconds")]


class LearnedJson(Shown):
    file: Annotated[
        str | None, At(lambda it, _: it.path if it.stored else None, "The calibration that was written; null for none.")
    ]
    rows_used: Annotated[int, At("rows")]
    reasons: list[str]
    ranking: Annotated[list[MovedJson], At("moved")]


class ValidationJson(AnswerJson):
    tool_version: ToolVersion
    all_well: Annotated[bool, At("campaign.all_well")]
    interrupted_by_signal: Annotated[int | None, At("campaign.interrupted_by", or_null=True)]
    rows_file: str
    layouts: Annotated[list[LayoutComparisonJson], At("campaign.comparisons")]
    refused: Annotated[list[RefusedJson], At("campaign.plan.refused")]
    calibration: Annotated[LearnedJson | None, At("learned")]


class PlannedJson(Shown):
    title: Annotated[str, At("candidate.title")]
    predicted_step_s: Annotated[float, At("step_seconds")]
    launch_s: float
    pins: list[str]


class ComparedJson(Shown):
    title: Annotated[str, At("planned.candidate.title")]
    predicted_step_s: Annotated[float, At("planned.step_seconds")]
    launch_s: Annotated[float, At("planned.launch_seconds")]
    pins: Annotated[list[str], At("planned.pins")]
    measured_step_s: Annotated[float | None, At("measured_seconds")]
    fitted_step_s: Annotated[float | None, At("after_seconds")]


_INTERRUPTED = "Whether a signal ended the launches early."
_MEASURED = "Whether the rates were measured; else they follow from the numbers of the spec."


class RatesJson(AnswerJson):
    hardware: Annotated[str, At("spec_file")]
    devices: Annotated[int, At("request.devices")]
    precision: Annotated[Precision, At("request.precision")]
    backend: Annotated[str, At("request.backend")]
    rates: Rates
    rates_measured: Annotated[bool, At(lambda ready, _: ready.measured is not None, _MEASURED)]
    prior_share_left: Annotated[dict[str, float], At("design.left")]


class PreparedJson(RatesJson):
    launches: Annotated[list[PlannedJson], At("design.launches")]


class ProbedJson(RatesJson):
    launches: Annotated[list[ComparedJson], At("compared")]
    undetermined: list[str]
    rows: Annotated[str, At("request.rows_file")]
    calibration: Annotated[str | None, At("calibration_file")]
    interrupted: Annotated[bool, At(lambda probed, _: bool(probed.campaign.interrupted_by), _INTERRUPTED)]
