"""Memory while weights are built or read, before the first step (M30, M32), or saved (M33)."""

from dataclasses import replace
from typing import Any

import pytest

from simulator.api import estimate
from simulator.api import scenario_of as question_scenario
from simulator.cost.pricing.estimate import Estimate
from simulator.question.scenario.layout import Layout
from simulator.question.scenario.scenario import Scenario
from simulator.search.build import bare_estimate
from simulator.show.report.text import host_text
from tests.scenario.cases import layout_of, scenario_of

PARAMETERS = 8.030e9
"""Of Llama 3.1 8B."""
Asked = tuple[Scenario, Layout]


def built(options: dict[str, str] | None = None, **sizes: object) -> Estimate:
    scenario = scenario_of(
        model="llama3.1-8b", devices=64, profile="paddle", seq_length=1024, global_batch_size=64, options=options
    )
    return bare_estimate(scenario, layout_of(scenario, recompute="full", **sizes))


def test_a_rank_of_paddle_builds_what_stage_3_cuts() -> None:
    """A rank holds 16-bit weights whole, of its tensor parallel part, before stage 3 cuts them."""
    for tensor_parallel in (1, 2):
        found = built(zero_stage=3, tensor_parallel=tensor_parallel).memory
        assert found.moment == "load"
        assert found.allocated_bytes == pytest.approx(2.0 * PARAMETERS / tensor_parallel, rel=0.01)


def test_what_is_not_cut_or_is_built_in_parts_has_no_such_moment() -> None:
    assert built(zero_stage=2).memory.moment != "load"
    assert built({"builds_whole_layers": "false"}, zero_stage=3).memory.moment != "load"


def test_weights_built_in_fp32_stay_with_the_pool() -> None:
    """FlagPerf's gpt3_6.7B/paddle/run_pretraining.py names no type; ZeRO 2 copies the weights into flat buffers."""
    for stage, held in ((1, 4.0), (2, 6.0)):
        found = built({"builds_in_fp32": "true"}, zero_stage=stage, tensor_parallel=2).memory
        assert found.allocated_bytes == pytest.approx(held * PARAMETERS / 2.0, rel=0.01) or stage == 1
        assert (found.moment == "load") is (stage == 2)


def read_whole(**changed: Any) -> Estimate:
    asked = {"model": "qwen2.5-7b", "hardware": "rtx-4090", "framework": "torch", "stack": "peft", "lora_rank": 8}
    sizes: Any = asked | {"devices": 1, "global_batch_size": 1, "seq_length": 128, "calibration": "none"} | changed
    read = {"quantised_base": "true", "loads_unquantised": "true", **sizes.pop("options", {})}
    scenario = question_scenario(**sizes, options=read)
    return bare_estimate(scenario, layout_of(scenario, recompute="full", zero_stage=sizes.get("zero_stage", 0)))


def test_a_base_of_4_bits_may_be_read_whole_in_16() -> None:
    """huggingface/transformers pull request 44576: of the 14.2 GiB of Qwen2.5-7B 13.47 are reserved as it loads."""
    found = read_whole().memory
    assert found.moment == "load"
    assert found.allocated_bytes / 2**30 == pytest.approx(13.47, rel=0.06)
    assert read_whole(options={"loads_unquantised": "false"}).memory.moment != "load"
    assert read_whole(options={"quantised_base": "false"}).memory.moment != "load"


def test_a_weight_that_is_quantised_at_once_needs_more_than_a_step() -> None:
    """torchtune v0.1.0, docs/source/tutorials/qlora_finetune.rst: 9.13 GB reserved as Llama2-7B is built, 9.29 in all.

    torchao 0.1, dtypes/nf4tensor.py, `quantize_tensor_nearest`: a weight of 16 bits, scaled, its 16 differences and
    their absolutes.
    """
    question: Any = {
        "model": "llama-2-7b",
        "method": "qlora",
        "hardware": "rtx-4090",
        "devices": 1,
        "stack": "torchtune",
    }
    question |= {"seq_length": 512, "micro_batch_size": 2, "global_batch_size": 2, "recompute": "full"}
    parts, whole = (estimate(**question, options={"quantising_bytes": each}).memory for each in ("0", "68"))
    assert whole.moment == "load" != parts.moment
    assert whole.allocated_bytes == pytest.approx(parts.parts_bytes["parameters"] + 68 * 4096 * 11008, rel=0.01)
    assert parts.reserved_bytes < whole.reserved_bytes < 9.13e9


@pytest.mark.full_answer
def test_a_base_read_whole_is_what_its_readme_measures() -> None:
    """axolotl-ai-cloud/axolotl 113d275, examples/qwen3.5/README.md: about 47 GiB with transformers 5.3."""
    asked: Any = {"model": "qwen3.5-27b", "method": "qlora", "lora_rank": 16, "hardware": "h100-sxm-80g", "devices": 1}
    asked |= {"framework": "torch", "seq_length": 2048, "micro_batch_size": 1, "global_batch_size": 2}
    memory = estimate(**asked, stack="axolotl", recompute="full", options={"loads_unquantised": "true"}).memory
    assert memory.moment == "load"
    assert memory.interval_bytes is not None
    assert memory.interval_bytes.low < 47 * 2**30 < memory.interval_bytes.high


def test_megatron_s_buffers_stand_beside_the_weights_that_move_into_them() -> None:
    """NVIDIA/Megatron-LM d98e8a6, core/distributed/param_and_grad_buffer.py: both buffers, and then the copies."""
    sizes: Any = {"model": "llama3.1-8b", "hardware": "h100-sxm-80g", "framework": "megatron", "seq_length": 1024}
    for devices, moment in ((64, "load"), (4, "optimizer step")):
        scenario = question_scenario(**sizes, devices=devices, global_batch_size=devices, calibration="none")
        found = bare_estimate(scenario, layout_of(scenario, recompute="full")).memory
        held = (2 + 2 + 4) * PARAMETERS
        assert (found.moment == "load") is (moment == "load")
        assert (found.allocated_bytes == pytest.approx(held, rel=0.015)) is (moment == "load")
        # Frozen weights have no buffers, and without the distributed optimizer weights stay where they are.
        for other in (replace(scenario, lora_rank=8), scenario):
            stage = 1 if other.lora_rank else 0
            assert bare_estimate(other, layout_of(other, recompute="full", zero_stage=stage)).memory.moment != "load"


def test_experts_have_a_buffer_of_their_own() -> None:
    """modelscope/ms-swift issue 9403: 30.23 GiB are held, the weights and the buffer of those that are no experts, and
    26.44 asked for, the buffer of 16 experts in each of 47 layers; all weights are trained, which --train_type hid."""
    experts, others = 47 * 16 * 3 * 4096 * 1536, 47 * (4096 * (9216 + 8192) // 4 + 4096 * 128) + 151_936 * 4096 // 4
    assert 2 * experts / 2**30 == pytest.approx(26.44, abs=0.005)
    assert 2 * (experts + 2 * others) / 2**30 == pytest.approx(30.23, abs=0.005)
    sizes: Any = {"model": "qwen3-235b-a22b", "hardware": "ascend-910b-280t", "framework": "megatron"}
    scenario = question_scenario(**sizes, devices=32, seq_length=1024, global_batch_size=16, calibration="none")
    cut: Any = {"tensor_parallel": 4, "pipeline_parallel": 2, "expert_parallel": 8, "expert_tensor_parallel": 1}
    layout = layout_of(scenario, **cut, sequence_parallel=True, offload="optimizer_tensorwise")
    found = bare_estimate(scenario, layout)
    assert (found.verdict, found.memory.moment) == ("does_not_fit", "load")
    assert found.memory.parts_bytes["parameters"] == pytest.approx(4 * (experts + others), rel=0.01)
    adapters = bare_estimate(replace(scenario, lora_rank=8), replace(layout, offload="none"))
    assert adapters.verdict == "fits"


def test_the_verdict_says_loading() -> None:
    """89 billion parameters whole on each of 128 devices: 166 GiB (PaddleNLP's issues 7254 and 7401)."""
    scenario = scenario_of(model="llama3-70b", devices=128, profile="paddle", seq_length=1024, global_batch_size=128)
    found = bare_estimate(scenario, layout_of(scenario, zero_stage=3, recompute="full"))
    assert (found.verdict, found.memory.moment) == ("does_not_fit", "load")


def _scenario_and_layout(stack: str, zero_stage: int, devices: int = 8, options: dict[str, str] | None = None) -> Asked:
    sizes: Any = {"model": "qwen3-30b-a3b", "hardware": "h100-sxm-80g", "devices": devices, "framework": "torch"}
    run: Any = {"seq_length": 512, "global_batch_size": 16, "lora_rank": 8, "options": options or {}}
    scenario = question_scenario(**sizes, **run, stack=stack)
    return scenario, layout_of(scenario, zero_stage=zero_stage, recompute="full")


@pytest.mark.parametrize(
    ("stack", "zero_stage", "devices", "copies"),
    [
        # Every rank reads the whole model: about 480 GB on a node of eight (a user of transformers 5.2 saw 500).
        ("peft", 3, 8, 8),
        ("peft", 3, 16, 8),
        ("transformers", 0, 1, 1),
        # A map of devices puts each file in its place, unless ZeRO 3 cuts the model.
        ("llama-factory", 3, 8, 8),
        ("llama-factory", 0, 8, 0),
        ("torchtune", 3, 8, 0),
        ("deepspeed", 3, 8, 0),
    ],
)
def test_ranks_of_a_node_each_read_the_whole_model(stack: str, zero_stage: int, devices: int, copies: int) -> None:
    memory = bare_estimate(*_scenario_and_layout(stack, zero_stage, devices)).memory
    assert memory.host_bytes_per_node == pytest.approx(copies * 2.0 * 30.53e9, rel=0.001)
    assert dict(memory.host_parts_bytes) == ({"loading": memory.host_bytes_per_node} if copies else {})


def test_the_larger_of_loading_and_a_step_counts() -> None:
    """A base of 4 bits goes to the device file by file; what offload keeps may be more than loading."""
    assert (
        bare_estimate(*_scenario_and_layout("peft", 3, options={"quantised_base": "true"})).memory.host_bytes_per_node
        == 0
    )
    scenario, layout = _scenario_and_layout("deepspeed", 3, options={"loads_on_host": "sharded"})
    step = bare_estimate(replace(scenario, lora_rank=None), replace(layout, offload="optimizer_tensorwise"))
    assert "loading" not in step.memory.host_parts_bytes
    assert step.memory.host_bytes_per_node > 12 * 30.53e9


@pytest.mark.parametrize(
    ("kind", "zero_stage", "adapters", "expected"),
    [
        # All weights in 16 bits, frozen ones too (DeepSpeed v0.19.6, `_zero3_consolidated_16bit_state_dict`).
        ("weights", 3, True, 2.0 * 8.030e9),
        ("weights", 2, True, 0.0),
        # fp32 weights, and then two moments of each, after the weights are gone (accelerate 1.10.1, FULL_STATE_DICT).
        ("state", 3, False, 8.0 * 8.030e9),
        ("state", 0, False, 0.0),
        # Rank 8 beside the seven products of 32 layers.
        ("state", 3, True, 8.0 * 32 * 8 * (2 * (4096 + 4096) + 2 * (4096 + 1024) + 3 * (4096 + 14336))),
    ],
)
def test_one_process_gathers_what_it_saves(kind: str, zero_stage: int, adapters: bool, expected: float) -> None:
    sizes: Any = {"model": "llama3.1-8b", "hardware": "h100-sxm-80g", "devices": 16, "framework": "torch"}
    run: Any = {"seq_length": 512, "global_batch_size": 16, "lora_rank": 8 if adapters else None}
    scenario = question_scenario(**sizes, **run, options={"saves_on_host": kind, "adapter_targets": "all"})
    memory = bare_estimate(scenario, layout_of(scenario, zero_stage=zero_stage, recompute="full")).memory
    assert dict(memory.host_parts_bytes).get("saving", 0.0) == pytest.approx(expected, rel=0.001)


def test_saving_comes_beside_what_offload_keeps() -> None:
    questions = [_scenario_and_layout("deepspeed", 3, options={"saves_on_host": kind}) for kind in ("none", "weights")]
    memory = [
        bare_estimate(replace(scenario, lora_rank=None), replace(layout, offload="optimizer_tensorwise")).memory
        for scenario, layout in questions
    ]
    more = memory[1].host_bytes_per_node - memory[0].host_bytes_per_node
    assert more == pytest.approx(2.0 * 30.53e9, rel=0.001)


def test_a_host_without_room_to_load_does_not_fit() -> None:
    scenario, layout = _scenario_and_layout("peft", 3)
    host = scenario.hardware.host_memory
    assert host is not None
    small = replace(scenario.hardware, host_memory=replace(host, value="256 GB"))
    found = bare_estimate(replace(scenario, hardware=small), layout)
    assert (found.verdict, found.memory.fits_host) == ("does_not_fit", False)
    assert "(loading 454.96)" in str(host_text(found.memory))
