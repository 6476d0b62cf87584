"""The search against brute force, its counts, and what it says when nothing fits."""

import itertools
from collections import Counter
from dataclasses import fields, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.cost.derived import pricing_of
from simulator.cost.pricing.estimate import Estimate
from simulator.question.scenario.layout import (
    SEARCHED_RECOMPUTE_MODES,
    Layout,
    balanced_chunks,
    default_cut,
    rank_layers,
)
from simulator.question.scenario.scenario import Scenario
from simulator.question.vocabulary import RecomputeMode, RecomputeModule, ScheduleName
from simulator.search import rank as walk_module
from simulator.search.build import bare_estimates, estimate_layout
from simulator.search.rank import walk
from simulator.search.rules import ACROSS_NODES, RULES
from simulator.search.space import Space, blocks, candidates, divisors, searched_modules, shapes
from tests.scenario.cases import scenario_of, small_dense, small_mla, small_moe
from tests.search.layouts_found import search


def every_layout(scenario: Scenario) -> list[Layout]:
    """All layouts of the default space, written down plainly."""
    model, devices, profile = scenario.model, scenario.devices, scenario.framework
    sizes = [d for d in range(1, devices + 1) if devices % d == 0]
    found = []
    for t, p, c in itertools.product(sizes, sizes, sizes):
        if devices % (t * p * c) or p > model.num_hidden_layers:
            continue
        cut = default_cut(model.num_hidden_layers, p)
        even = p > 1 and len(set(cut)) == 1
        chunks = [v for v in range(1, cut[0] + 1) if cut[0] % v == 0] if even else [1]
        lists: list[tuple[int, tuple[int, ...], tuple[int, ...]]] = [(v, cut, ()) for v in chunks]
        if profile.limits.unequal_chunks and p > 1 and not even:
            lists += [(v, rank_layers(one, p), one) for v, one in unequal_lists(model.num_hidden_layers, p)]
        experts = [(1, 1)]
        if model.is_moe:
            counts = [e for e in range(1, devices + 1) if model.num_experts % e == 0]
            experts = [(ep, etp) for ep in counts for etp in sorted({1, t})]
        modes: list[tuple[RecomputeMode, tuple[RecomputeModule, ...]]] = [
            (mode, ("core_attn",)) for mode in SEARCHED_RECOMPUTE_MODES
        ]
        if scenario.framework.name == "megatron" and model.is_moe:
            modes.append(("selective", ("layernorm", "moe_act")))
            if model.attention == "mla":
                modes.append(("selective", ("mla_up_proj",)))
                modes.append(("selective", ("layernorm", "moe_act", "mla_up_proj")))
        for (v, layers, listed), (ep, etp), mbs, (mode, modules) in itertools.product(
            lists, experts, (1, 2, 4, 8), modes
        ):
            found.append(
                Layout(
                    tensor_parallel=t,
                    pipeline_parallel=p,
                    context_parallel=c,
                    expert_parallel=ep,
                    expert_tensor_parallel=etp,
                    data_parallel=devices // (t * p * c),
                    virtual_stages=v,
                    micro_batch_size=mbs,
                    sequence_parallel=t > 1,
                    recompute=mode,
                    recompute_modules=modules,
                    stage_layers=layers,
                    chunk_layers=listed,
                )
            )
    return found


def fewest_layers(scenario: Scenario, answers: list[Estimate]) -> list[Estimate]:
    """Layouts that fit with all layers recomputed and not with none: with the fewest leading layers that fit."""
    found = []
    if scenario.framework.name != "megatron":
        return []
    verdicts = {answer.layout: outcome(scenario, answer) for answer in answers}
    for layout in [x for x, verdict in verdicts.items() if x.recompute == "full" and verdict == "fits"]:
        most = max(layout.chunk_layers, default=max(layout.stage_layers) // layout.virtual_stages)
        if verdicts[replace(layout, recompute="none")] != "fits":
            numbers = [replace(layout, recompute_method="block", recompute_layers=n) for n in range(1, most)]
            fitting = (e for e in bare_estimates(scenario, numbers, ruled=True) if e.verdict == "fits")
            found += list(itertools.islice(fitting, 1))
    return found


def unequal_lists(layers: int, ranks: int) -> list[tuple[int, tuple[int, ...]]]:
    """Balanced chunks with embedding and loss as layers: the fewest of each size, at most one item a rank missing."""
    found: dict[int, tuple[int, tuple[int, ...]]] = {}
    for chunks in range(2, (layers + 2) // ranks + 1):
        listed = balanced_chunks(layers, 0, ranks * chunks)
        largest = max(listed[0] + 1, *listed[1:-1], listed[-1] + 1)
        if largest * chunks * ranks - (layers + 2) < ranks:
            found.setdefault(largest, (chunks, listed))
    return list(found.values())


def outcome(scenario: Scenario, answer: Estimate) -> str:
    """The name a search counts the layout under."""
    if answer.violations:
        return answer.violations[0].rule
    if ACROSS_NODES.broken(pricing_of(scenario, answer.layout))[0]:
        return ACROSS_NODES.id
    return {"fits": "fits", "starved": "near_capacity", "does_not_fit": "memory"}[answer.verdict]


QUESTIONS: list[Scenario] = [
    scenario_of("llama3.1-8b", "a100-sxm-80g", devices=4),
    scenario_of("llama3.2-1b", "bi150-32g", devices=4, seq_length=4096, global_batch_size=36),
    scenario_of(small_moe(num_hidden_layers=3), devices=4, profile="paddle", global_batch_size=24),
    scenario_of("deepseek-v2-lite", "b200-sxm", devices=2, precision="fp8", seq_length=2048),
]


@pytest.mark.parametrize("scenario", QUESTIONS, ids=lambda s: f"{s.model.name}-{s.hardware.name}")
def test_the_best_is_the_best_of_all(scenario: Scenario) -> None:
    found = search(scenario, Space(), top=5, variants=True)
    answers = bare_estimates(scenario, every_layout(scenario), ruled=True)
    answers += fewest_layers(scenario, answers)
    outcomes = Counter(outcome(scenario, answer) for answer in answers)
    assert found.evaluated == len(answers)
    assert found.feasible == outcomes.pop("fits")
    assert found.rejected == dict(outcomes)
    fitting = [a for a in answers if a.verdict == "fits"]
    expected = sorted(a.throughput.step_seconds for a in fitting)[:5]
    assert [estimate_layout(scenario, x).throughput.step_seconds for x in found.fastest] == expected
    # Without variants: the best of each split.
    splits: dict[tuple[int, ...], float] = {}
    for answer in fitting:
        key = split(answer.layout)
        splits[key] = min(splits.get(key, float("inf")), answer.throughput.step_seconds)
    short = search(scenario, Space(), top=4).fastest
    assert len({split(layout) for layout in short}) == len(short) == min(4, len(splits))
    steps = [estimate_layout(scenario, layout).throughput.step_seconds for layout in short]
    assert steps == sorted(splits.values())[:4]


def split(layout: Layout) -> tuple[int, ...]:
    return (
        layout.tensor_parallel,
        layout.pipeline_parallel,
        layout.context_parallel,
        layout.expert_parallel,
        layout.expert_tensor_parallel,
    )


spaces = st.builds(
    Space,
    tensor_parallel=st.sampled_from((None, (1, 2), (8,), (3,), (16,))),
    pipeline_parallel=st.sampled_from((None, (2, 4), (1,), (64,))),
    context_parallel=st.sampled_from((None, (1,), (2, 4))),
    expert_parallel=st.sampled_from((None, (1, 8), (5,))),
    micro_batch_size=st.sampled_from((None, (1,), (2, 3))),
    zero_stage=st.sampled_from((None, (0, 1, 2, 3))),
    recompute=st.sampled_from((None, ("none",), ("full", "selective"))),
    virtual_stages=st.sampled_from((None, (1,), (2, 3))),
    offload=st.sampled_from((None, ("optimizer", "activations"))),
    tensor_parallel_across_nodes=st.booleans(),
)


@given(spaces, st.sampled_from(("llama3.1-8b", "mixtral-8x7b-v0.1", "deepseek-v2-lite")), st.sampled_from((8, 32)))
def test_every_candidate_is_counted_once(space: Space, model: str, devices: int) -> None:
    scenario = scenario_of(model, devices=devices)
    found = search(scenario, space)
    assert found.evaluated == found.feasible + sum(found.rejected.values())
    enumerated = sum(len(block) for block in blocks(scenario, space))
    assert enumerated <= candidates(scenario, space)
    assert enumerated <= found.evaluated == sum(len(judged.pricing) for judged in walk(scenario, space))
    assert set(found.rejected) <= {rule.id for rule in (*RULES, ACROSS_NODES)} | {"memory", "near_capacity"}
    assert bool(found.fastest) == (found.feasible > 0)
    for layout in found.fastest:
        answer = estimate_layout(scenario, layout)
        assert answer.verdict == "fits"
        assert layout.devices == devices


NARROW: list[dict[str, Any]] = [
    {"tensor_parallel": (4,)},
    {"pipeline_parallel": (2, 4)},
    {"context_parallel": (2,)},
    {"data_parallel": (4,)},
    {"virtual_stages": (2,)},
    {"micro_batch_size": (2,)},
    {"zero_stage": (0,)},
    {"recompute": ("full",)},
    {"recompute": ("full",), "recompute_method": ("block",), "recompute_layers": (3,)},
    {"recompute": ("selective",), "recompute_modules": ("layernorm", "mlp")},
    {"sequence_parallel": (False,)},
    {"offload": ("optimizer",)},
    {"stage_layers": (9, 23)},
    {"pipeline_parallel": (2,), "chunk_layers": (7, 9, 8, 8)},
]


@pytest.mark.parametrize("narrow", NARROW, ids="-".join)
def test_an_option_narrows_the_search(narrow: dict[str, Any]) -> None:
    scenario = scenario_of("llama3.1-8b", devices=32)
    found = search(scenario, Space(**narrow), top=50, variants=True)
    assert found.fastest
    for layout in found.fastest:
        for name, values in narrow.items():
            value = getattr(layout, name)
            assert value == values if name in ("stage_layers", "chunk_layers", "recompute_modules") else value in values
    if set(narrow) <= {"tensor_parallel", "pipeline_parallel", "context_parallel", "data_parallel", "micro_batch_size"}:
        free = search(scenario, Space())
        assert found.evaluated < free.evaluated
        best, freed = (estimate_layout(scenario, x.fastest[0]).throughput.step_seconds for x in (found, free))
        assert freed <= best


def test_layers_per_virtual_stage_is_the_same_choice_in_other_words() -> None:
    scenario = scenario_of("llama3.1-8b", devices=32)
    chunks = search(scenario, Space(pipeline_parallel=(4,), virtual_stages=(4,)), top=20, variants=True)
    layers = search(scenario, Space(pipeline_parallel=(4,), layers_per_virtual_stage=(2,)), top=20, variants=True)
    assert chunks.fastest == layers.fastest
    assert {layout.virtual_stages for layout in layers.fastest} == {4}


def test_a_list_of_recomputed_layers_reaches_the_layouts() -> None:
    scenario = scenario_of("llama3.1-8b", devices=32)
    found = search(scenario, Space(recompute_layer_list=(0, 1)))
    assert {(x.recompute, x.recompute_method, x.recompute_layer_list) for x in found.fastest} == {
        ("full", "list", (0, 1))
    }


def test_modules_are_searched_where_framework_and_model_have_them() -> None:
    dense, usual = scenario_of("llama3.1-8b", devices=8), ("core_attn",)
    assert searched_modules(dense) == (usual,)
    experts = scenario_of("qwen3-30b-a3b", devices=8)
    assert searched_modules(experts) == (usual, ("layernorm", "moe_act"))
    latent = ("mla_up_proj",)
    every = (usual, latent, ("layernorm", "moe_act"), ("layernorm", "moe_act", "mla_up_proj"))
    assert searched_modules(scenario_of("deepseek-v3", devices=8)) == every
    assert searched_modules(scenario_of("deepseek-v3", devices=8, profile="torch")) == (usual,)
    assert searched_modules(scenario_of(small_mla(), devices=8)) == (usual, latent)


def test_tensor_parallelism_stays_in_a_node_unless_allowed() -> None:
    scenario = scenario_of("llama-7b", devices=32)
    kept = search(scenario, Space(tensor_parallel=(16,)))
    assert set(kept.rejected) == {"tensor_parallel_across_nodes"}
    freed = search(scenario, Space(tensor_parallel=(16,), tensor_parallel_across_nodes=True))
    assert freed.feasible > 0
    # Trays of a rack are joined by their links: up to its 64 devices tensor parallelism needs no leave.
    rack = search(scenario_of("llama-7b", "gb200-nvl72", devices=128), Space(tensor_parallel=(16, 32)))
    assert "tensor_parallel_across_nodes" not in rack.rejected


def test_the_default_zero_stage_follows_the_framework() -> None:
    for profile, stage in (("megatron", 1), ("paddle", 1), ("torch", 3)):
        scenario = scenario_of("llama3.1-8b", devices=32, profile=profile)
        assert {x.zero_stage for x in search(scenario, Space()).fastest} == {stage}


def test_the_size_of_a_chunk_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    scenario = scenario_of(small_moe(), devices=8)
    whole = search(scenario, Space(), top=7)
    assert whole == search(scenario, Space(), top=7)
    monkeypatch.setattr(walk_module, "CHUNK", 13)
    assert search(scenario, Space(), top=7) == whole


def test_progress_ends_at_the_last_candidate() -> None:
    calls: list[tuple[int, int]] = []
    found = search(scenario_of("llama3.1-8b"), Space(), progress=lambda done, total: calls.append((done, total)))
    assert calls[-1][0] == calls[-1][1] <= found.evaluated
    assert [done for done, _ in calls] == sorted(done for done, _ in calls)


def test_nothing_fits_names_the_layout_that_needs_least() -> None:
    scenario = scenario_of("llama3.1-405b", devices=8)
    found = search(scenario, Space())
    assert found.feasible == 0
    assert not found.fastest
    (nearest,) = found.nearest
    need = [
        estimate_layout(scenario, block.block.layout(i)).memory.device_bytes
        for block in blocks(scenario, Space(recompute=("full",), micro_batch_size=(1,)))
        for i in range(len(block))
    ]
    assert estimate_layout(scenario, nearest).memory.device_bytes == min(need)


def test_starved_layouts_are_not_recommended() -> None:
    scenario = scenario_of("llama3.1-70b", devices=64)
    found = search(scenario, Space(), top=3)
    assert found.starved
    assert {estimate_layout(scenario, layout).verdict for layout in found.starved} == {"starved"}
    assert not set(found.starved) & set(found.fastest)


@given(st.integers(1, 5000), st.integers(1, 5000))
def test_divisors(number: int, limit: int) -> None:
    assert divisors(number, limit) == tuple(d for d in range(1, min(number, limit) + 1) if number % d == 0)


def test_shapes_fill_the_devices() -> None:
    scenario = scenario_of(small_dense(num_hidden_layers=6), devices=24)
    for shape in shapes(scenario, Space()):
        assert sum(shape.stage_layers) == 6
        assert all(t * c * d * shape.pipeline_parallel == 24 for t, c, d in shape.splits)
    assert {s.pipeline_parallel for s in shapes(scenario, Space())} == {1, 2, 3, 4, 6}


def test_every_axis_of_the_space_is_narrowed_by_a_test() -> None:
    named = {name for narrow in NARROW for name in narrow}
    elsewhere = {
        "expert_parallel",
        "expert_tensor_parallel",
        "layers_per_virtual_stage",
        "recompute_layer_list",
        "schedule",
        "tensor_parallel_across_nodes",
    }
    assert named | elsewhere == {f.name for f in fields(Space)}
    scenario = scenario_of("mixtral-8x7b-v0.1", devices=32)
    found = search(scenario, Space(expert_parallel=(4,), expert_tensor_parallel=(2,)), variants=True)
    assert {(x.expert_parallel, x.expert_tensor_parallel) for x in found.fastest} == {(4, 2)}
    assert replace(Space(), expert_parallel=(4,)) != Space()


def test_a_schedule_narrows_the_search() -> None:
    """Of a framework that has several; without being named only the usual one is searched."""
    scenario = scenario_of("llama3.2-1b", devices=8, profile="torch", seq_length=1024, global_batch_size=64)
    cases: list[tuple[tuple[ScheduleName, ...] | None, set[str]]] = [
        (None, {"1f1b"}),
        (("zb_h1",), {"zb_h1"}),
        (("1f1b", "zb_h1"), {"1f1b", "zb_h1"}),
    ]
    for asked, expected in cases:
        space = Space(pipeline_parallel=(4,), zero_stage=(2,), micro_batch_size=(1,), schedule=asked)
        found = search(scenario, space, top=50, variants=True)
        assert {layout.schedule for layout in found.fastest} == expected
