"""Random scenarios and layouts: models with and without experts, every framework, precision and switch of a layout."""

from dataclasses import dataclass, replace
from typing import Any

from hypothesis import strategies as st

from simulator.cost.derived import Pricing
from simulator.question.scenario.block import block_of
from simulator.question.scenario.layout import Layout, default_cut
from simulator.question.scenario.scenario import Scenario
from simulator.question.vocabulary import OFFLOADS, PRECISIONS, RECOMPUTE_METHODS
from simulator.search.rules import RULES
from simulator.search.space import divisors
from tests.scenario.cases import scenario_of

MODELS = (
    "llama3.1-8b",
    "qwen2.5-0.5b",
    "qwen3-4b",
    "llama-13b",
    "mixtral-8x7b-v0.1",
    "qwen3-30b-a3b",
    "deepseek-v2-lite",
    "deepseek-v3",
    "ernie-4.5-21b-a3b",
)
HARDWARE = ("z2000", "a100-sxm-80g", "ascend-910b-64g", "ascend-910c", "bi150-64g", "h100-pcie-80g")


@dataclass(frozen=True)
class Case:
    scenario: Scenario
    layout: Layout

    def with_scenario(self, **changes: Any) -> "Case":
        return Case(replace(self.scenario, **changes), self.layout)

    def with_layout(self, **changes: Any) -> "Case":
        return Case(self.scenario, replace(self.layout, **changes))

    @property
    def broken(self) -> list[str]:
        block = block_of([self.layout])
        return [rule.id for rule in RULES if rule.broken(Pricing(self.scenario, block))[0]]


@st.composite
def scenarios(draw: st.DrawFn, hardware: tuple[str, ...] = HARDWARE) -> Scenario:
    """A cluster of 1 to 16 nodes with a model, a workload and a framework."""
    scenario = scenario_of(
        draw(st.sampled_from(MODELS)),
        draw(st.sampled_from(hardware)),
        profile=draw(st.sampled_from(("megatron", "paddle", "torch"))),
        options=draw(st.fixed_dictionaries({}, optional=_OPTIONS)),
        seq_length=draw(st.sampled_from((1024, 4096, 8192, 32768))),
        global_batch_size=draw(st.sampled_from((512, 1024, 2048))),
        lora_rank=draw(st.sampled_from((None, None, 16))),
        devices=1,
    )
    spec = scenario.hardware
    precision = draw(st.sampled_from([p for p in PRECISIONS[:3] if p in spec.peak_flops_per_second]))
    devices = draw(st.sampled_from((1, 2, 4, 8, 16))) * spec.devices_per_node
    return replace(scenario, precision=precision, devices=devices)


_FLAG = st.sampled_from(("true", "false"))
_OPTIONS = {
    "flash_attention": _FLAG,
    "fused_cross_entropy": _FLAG,
    "tp_comm_overlap": _FLAG,
    "mtp": _FLAG,
    "cp_communication": st.sampled_from(("ring", "all_to_all")),
    "cross_entropy_chunk_tokens": st.sampled_from(("0", "1024")),
    "expert_imbalance": st.sampled_from(("1", "1.25")),
}


@st.composite
def layouts(draw: st.DrawFn, scenario: Scenario) -> Layout:
    """A layout that fills the scenario's devices; it may still break a rule."""
    model, devices = scenario.model, scenario.devices

    def pick(values: tuple[int, ...] | list[int]) -> int:
        return draw(st.sampled_from(values))

    tensor = pick([t for t in divisors(devices, 8) if model.num_key_value_heads % t == 0])
    pipeline = pick(divisors(devices // tensor, min(16, model.num_hidden_layers)))
    context = pick(divisors(devices // tensor // pipeline, 4))
    ranks = devices // pipeline
    expert = pick([e for e in divisors(ranks, 64) if model.num_experts % e == 0]) if model.is_moe else 1
    wide = model.is_moe and ranks % (expert * tensor) == 0 and draw(st.booleans())
    cut = default_cut(model.num_hidden_layers, pipeline)
    chunks = divisors(cut[0], 8) if pipeline > 1 and len(set(cut)) == 1 else (1,)
    virtual = pick(chunks)
    limits = scenario.framework.limits
    highest = limits.zero_stage_with_pipeline if pipeline > 1 else limits.zero_stage
    return Layout(
        tensor_parallel=tensor,
        pipeline_parallel=pipeline,
        context_parallel=context,
        expert_parallel=expert,
        expert_tensor_parallel=tensor if wide else 1,
        data_parallel=devices // tensor // pipeline // context,
        virtual_stages=virtual,
        micro_batch_size=pick([1, 1, 2, 4]),
        sequence_parallel=tensor > 1 and draw(st.sampled_from((True, True, False))),
        zero_stage=pick(list(range(highest + 1))),
        recompute=draw(st.sampled_from(("none", "selective", "full"))),
        recompute_method=draw(st.sampled_from(RECOMPUTE_METHODS)),
        recompute_layers=pick(list(range(1, cut[0] // virtual + 1))),
        recompute_layer_list=tuple(sorted(draw(st.sets(st.integers(0, model.num_hidden_layers - 1), max_size=4)))),
        offload=draw(st.sampled_from(OFFLOADS)),
        stage_layers=cut,
    )


@st.composite
def cases(draw: st.DrawFn, hardware: tuple[str, ...] = HARDWARE) -> Case:
    """A scenario with a layout that breaks no rule."""
    scenario = draw(scenarios(hardware))
    case = Case(scenario, draw(layouts(scenario)))
    return _mended(case)


def _mended(case: Case) -> Case:
    """The case with what its broken rules forbid taken back, so that few draws are thrown away."""
    model, layout = case.scenario.model, case.layout
    mends: dict[str, dict[str, Any]] = {
        "sequence_parallel": {"sequence_parallel": layout.tensor_parallel > 1},
        "offload_pipeline": {"offload": "none"},
        "virtual_stages": {"virtual_stages": 1},
        "batch": {"micro_batch_size": 1},
    }
    for rule in case.broken:
        if rule in mends:
            case = case.with_layout(**mends[rule])
    for rule in case.broken:
        if rule == "context_heads":
            case = case.with_scenario(framework=replace(case.scenario.framework, cp_communication="ring"))
        elif rule == "unfused_context":
            case = case.with_scenario(framework=replace(case.scenario.framework, flash_attention=True))
        elif rule in ("vocabulary", "ffn"):
            merged = case.layout.tensor_parallel * case.layout.data_parallel
            experts = 1 if model.is_moe else case.layout.expert_parallel
            case = case.with_layout(
                tensor_parallel=1,
                data_parallel=merged,
                sequence_parallel=False,
                expert_parallel=experts,
                expert_tensor_parallel=1,
            )
    return case
