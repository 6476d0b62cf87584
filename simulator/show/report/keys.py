"""Keys of the answers' JSON objects: the one table that the writer and the schema read.

A row names a type, or another way of showing one, and lists its keys. A type without a row shows its fields by their
own names. Words of a row, by example:

- `device_bytes`: the attribute of that name, under the key `device_mib`; seconds likewise end in `_s`.
- `tp=layout.tensor_parallel`: the key `tp`, from an attribute of an attribute.
- `runs=@runs`: from the function `runs` of `simulator.show.report.derived`.
- `layout=.:EstimateLayout`: the value itself, by the row `EstimateLayout`.
- `low*`: a number in the unit of the key that its object stands under.
- `training?`: left out where there is none. `error~`: null where it is empty.

Numbers under a key with `_mib` are in MiB, under one with `tflops` in 10^12 FLOP/s, all others in base units.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from types import MappingProxyType
from typing import Final, Literal, NamedTuple, cast

from simulator.question.scenario.layout import FIELDS
from simulator.question.scenario.settings import GROUPS

DERIVED: Final = "@"
"""In front of the name of a function, in the place of an attribute."""
ITSELF: Final = "."
"""In the place of an attribute: the value that the object shows."""
_WORD = re.compile(r"(?P<name>\w+)(?P<mark>[*?~]?)(?:=(?P<path>\.|@?\w[\w.]*))?(?::(?P<row>\w+))?")
_ENDS = (("_bytes", "_mib"), ("_seconds", "_s"))
"""Ends of attributes and of the keys that they become."""


class JsonKey(NamedTuple):
    """One key of an object."""

    name: str
    path: str
    """Attributes joined by dots, `ITSELF`, or `DERIVED` and the name of a function."""
    row: str = ""
    """Row that the value is shown by; empty for that of its type."""
    mark: Literal["", "*", "?", "~"] = ""
    """`*`: in the unit of the key that the object stands under; `?`: left out for None; `~`: null where empty."""


_LAYOUT = {field.key: field.name for field in sorted(FIELDS, key=lambda field: GROUPS.index(field.group))}
"""Fields of a layout by key: sizes first, then what is recomputed, then the rest."""


_BESIDE = {"micro_batch_size": " global_batch_size seq_length"}
"""What of the question stands among the fields of a layout, behind one of them."""


def _probe(at: str) -> str:
    """Keys of what a probe prepared, which stands `at` an attribute."""
    request = " ".join(f"{name}={at}request.{name}" for name in ("devices", "precision", "backend"))
    return (
        f"schema_version=@schema_version hardware={at}spec_file {request} rates={at}rates "
        f"rates_measured=@rates_measured prior_share_left={at}design.left"
    )


_ROWS: Mapping[str, str] = MappingProxyType(
    {
        "Estimate": "schema_version=@schema_version model hardware devices precision verdict stack "
        "layout=.:EstimateLayout options memory throughput violations provenance assumed_switches=assumed "
        "training?=@training",
        "Layout": " ".join(f"{key}={name}" for key, name in _LAYOUT.items()),
        "EstimateLayout": " ".join(f"{key}=layout.{name}{_BESIDE.get(key, '')}" for key, name in _LAYOUT.items())
        + " lora_rank framework",
        "MemoryEstimate": "device_bytes reserved_bytes allocated_bytes capacity_bytes headroom_bytes "
        "interval=interval_bytes:MemoryInterval fits fit_probability binding_stage moment breakdown_mib=parts_bytes "
        "outside_breakdown_mib=outside_parts_bytes stages host_bytes_per_node host_most_bytes "
        "host_breakdown_mib=host_parts_bytes host_capacity_bytes fits_host",
        "MemoryInterval": "low_mib=low high_mib=high",
        "Interval": "low* high*",
        "StageMemory": "stage layers device_bytes reserved_bytes allocated_bytes state_bytes moment "
        "breakdown_mib=parts_bytes",
        "ThroughputEstimate": "step_time_s=step_seconds tflops_per_device=flops_per_second_per_device "
        "hardware_tflops_per_device=hardware_flops_per_second_per_device tokens_per_second_per_device mfu "
        "bubble_fraction interval=interval_seconds breakdown_s=parts_seconds model_flops_per_token stages",
        "StageTime": "stage forward_seconds backward_seconds",
        "AssumedSwitch": "switch value other because speed_change memory_change_mib=memory_bytes verdict",
        "Ranking": "schema_version=@schema_version query defaults counts estimates risky starved nearest remedies "
        "reasons fp8 equal surer stacks fewest",
        "Counts": "evaluated feasible rejected elapsed_seconds",
        "Plan": "schema_version=@schema_version model train_tokens deadline_days budget min_fit_probability "
        "availability offers=offers_priced best=best_position best_measured=best_measured_position choices",
        "Choice": "offer hardware nodes devices precision verdict reason in_time in_budget pareto goodput "
        "training=run measured estimate",
        "Comparison": "schema_version=@schema_version names first second inputs memory_mib=memory step_s=step "
        "step_half_width differ",
        "Input": "name first second memory_bytes step_time_s=step_seconds",
        "PartDifference": "name first* second* difference*",
        "Explanation": "schema_version=@schema_version estimate causes changes:ExplainedChange longest_sequence",
        "ExplainedChange": "options speed_ratio estimate",
        "Sweep": "schema_version=@schema_version questions priced missing outcomes table elapsed_seconds",
        "Validation": "schema_version=@schema_version tool_version=@tool_version all_well=campaign.all_well "
        "interrupted_by_signal~=campaign.interrupted_by rows_file layouts=campaign.comparisons "
        "refused=campaign.plan.refused calibration=learned",
        "Refused": "layout=@sharded_layout reason",
        "LayoutComparison": "title estimate memory_mib=memory step_time_s=step ranks runs=@runs earlier_rows=earlier "
        "step_scatter=scatter failures contradiction~ rows launches=launched",
        "ComparedFigure": "predicted* interval* measured* error inside_interval=inside",
        "RankFigure": "rank stage predicted_mib=predicted measured_mib=measured error predicted_forward_seconds "
        "forward_seconds predicted_backward_seconds backward_seconds predicted_device_bytes device_bytes",
        "MeasuredRow": "row=key outcome error~ memory_bytes memory_kind step_time_s=step_seconds "
        "step_spread_s=step_time_spread notes=source_notes",
        "Launched": "folder=launch.folder repeat=launch.repeat outcome=outcome.kind error~=outcome.error "
        "wall_s=ended.wall_seconds log=ended.log log_tail=outcome.tail ranks=outcome.ranks",
        "Learned": "file=@stored_file rows_used=rows reasons ranking=moved",
        "Moved": "layout place_before=before place=after step_time_s_before=estimate_before.throughput.step_seconds "
        "step_time_s=estimate_after.throughput.step_seconds measured_step_time_s=measured_seconds",
        "TraceComparison": "schema_version=@trace_schema_version model=estimate.model devices=estimate.devices "
        "precision=estimate.precision layout=estimate:EstimateLayout stage=traced.stage layers=predicted.layers "
        "difference traced predicted:PredictedPeak",
        "Traced": "peak_bytes moment between_steps_mib=base_bytes breakdown_mib=parts_bytes micro_batches "
        "elapsed_s=seconds resident_bytes torch=torch_version",
        "PredictedPeak": "peak_mib=allocated_bytes moment breakdown_mib=@allocated_parts",
        "Prepared": f"{_probe('')} launches=design.launches",
        "Probed": f"{_probe('prepared.')} launches=compared undetermined rows=prepared.request.rows_file "
        "calibration=calibration_file interrupted=@interrupted",
        "Planned": "title=candidate.title predicted_step_s=step_seconds launch_s=launch_seconds pins",
        "Checks": "schema_version=@schema_version tool_version=@tool_version exit_code gates counts=@outcome_counts "
        "results changed",
        "Checked": "file title framework dialect outcome passed known reasons blame remarks estimate peaks "
        "without_offload changes largest=room",
        "Peak": "stage device_bytes capacity_bytes fits",
        "Remark": "rule severity message fix source place",
        "Change": "options=text speed_ratio patch estimate",
        "Stored": "outcome passed device_bytes step_time_s=step_seconds",
        "Compared": "title=planned.candidate.title predicted_step_s=planned.step_seconds "
        "launch_s=planned.launch_seconds pins=planned.pins measured_step_s=measured_seconds "
        "fitted_step_s=after_seconds",
    }
)


@cache
def keys_of(row: str, kind: type) -> tuple[JsonKey, ...]:
    """The keys of a row; where there is none, the fields of the type, each under its own name."""
    if row not in _ROWS:
        return tuple(JsonKey(name, name) for name in kind.__annotations__)
    return tuple(map(key_of, _ROWS[row].split()))


def key_of(word: str) -> JsonKey:
    """The key that a word of a row says."""
    match = _WORD.fullmatch(word)
    if match is None:
        raise ValueError(f"{word!r} is no key")
    name = match["name"]
    if match["path"] is None:
        for end, becomes in _ENDS:
            name = name.removesuffix(end) + becomes if name.endswith(end) else name
    mark = cast("Literal['', '*', '?', '~']", match["mark"])
    return JsonKey(name, match["path"] or match["name"], match["row"] or "", mark)
