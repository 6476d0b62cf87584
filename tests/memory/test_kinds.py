"""Twelve kinds of fault of fine-tuning's memory: each has a formula, a test from documents and one from a run.

The runs here are those that no other test has. None is among the rows that coefficients are fitted to, so that every
one judges formulas which have not seen it. `python -m benchmarks.accuracy --kinds` judges each without its rows.
"""

import ast
import re
from pathlib import Path
from typing import Any

import pytest

import simulator
from benchmarks.accuracy.kinds import KINDS as judged_kinds  # noqa: N811  the same kinds, as a judge tells them
from benchmarks.accuracy.kinds import reported
from benchmarks.accuracy.rows import samples
from tests.docs.pages import page

GIB, MIB = 2.0**30, 2.0**20
HERE = Path(__file__).resolve().parents[1]
H100_96G = str(HERE.parent / "calibration" / "measured" / "public" / "hardware" / "h100-96g-500w.yaml")
KINDS = {
    "step of DeepSpeed": (
        "M24 M28",
        "memory/test_state_terms.py::test_the_step_of_flat_partitions",
        "memory/test_state_terms.py::test_a_step_that_ran_out_of_memory",
    ),
    "weights of 8 bits": (
        "M2",
        "memory/test_fp8_weights.py::test_gathered_weights_stand_in_for_16_bit_ones",
        "memory/test_kinds.py::test_frozen_weights_of_8_bits",
    ),
    "loading": (
        "M30 M32 M33",
        "memory/test_loading.py::test_a_rank_of_paddle_builds_what_stage_3_cuts",
        "memory/test_kinds.py::test_a_model_that_is_built_whole",
    ),
    "optimizers and small devices": (
        "M29",
        "memory/test_optimizers.py::test_numbers_that_a_step_makes",
        "memory/test_fine_tuning.py::test_torchtune_s_own_figures_of_one_card",
    ),
    "outside the tensors": (
        "M17 M20",
        "memory/test_loss_terms.py::test_what_an_allocator_cannot_use",
        "memory/test_fine_tuning.py::test_adapters_on_one_t4",
    ),
    "eager layers": (
        "M3 M13",
        "memory/test_stack_switches.py::test_a_composed_norm_keeps_copies_of_its_input",
        "memory/test_fine_tuning.py::test_adapters_on_one_t4",
    ),
    "compiled and chunked losses": (
        "M7 M13",
        "memory/test_outside.py::test_a_chunked_loss_holds_one_chunk_and_two_gradients",
        "memory/test_fine_tuning.py::test_torchtune_s_table_of_what_saves_memory",
    ),
    "offload": (
        "M9 M25 M27",
        "memory/test_host.py::test_what_each_framework_keeps_on_the_host",
        "memory/test_fine_tuning.py::test_torchtune_s_table_of_what_saves_memory",
    ),
    "unfused attention": (
        "M3 M4",
        "memory/test_activations.py::test_dropout_keeps_masks",
        "memory/test_kinds.py::test_scores_of_a_layer",
    ),
    "Megatron's own tests": (
        "M2 M11 M13",
        "memory/test_grouped_workspaces.py::test_libraries_have_workspaces",
        "memory/test_optimizers.py::test_muons_public_examples_differ_from_adam_as_measured",
    ),
    "PyTorch on Ascend": (
        "M3",
        "memory/test_kinds.py::test_attention_on_ascend_is_open",
        "memory/test_kinds.py::test_a_run_on_ascend_that_ran_out_of_memory",
    ),
    "pipelines of PyTorch": (
        "M15 M16 M21 M34",
        "memory/test_moments.py::test_a_pipeline_s_streams_are_idle_where_zero_shards",
        "memory/test_kinds.py::test_pipelines_of_torchtitan",
    ),
}


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_has_its_formula_and_two_tests(kind: str) -> None:
    numbers, *tests = KINDS[kind]
    stated = set(re.findall(r"^(?:- |\| )?(?:\*\*)?(M\d+)\b", page("model.md"), re.MULTILINE))
    assert set(numbers.split()) <= stated
    for test in tests:
        file, name = test.split("::")
        functions = ast.walk(ast.parse((HERE / file).read_text(encoding="utf-8")))
        assert name in {each.name for each in functions if isinstance(each, ast.FunctionDef)}, test


def test_every_kind_is_judged_without_its_rows() -> None:
    assert list(judged_kinds) == list(KINDS)
    fitted = [each for each in samples() if each.counts("memory")]
    of_kind = {kind: [each for each in (*fitted, *reported()) if holds(each)] for kind, holds in judged_kinds.items()}
    assert {kind for kind, rows in of_kind.items() if not rows} == {"PyTorch on Ascend"}
    assert not {each.key for each in reported()} & {each.key for each in fitted}
    for kind in ("offload", "pipelines of PyTorch", "step of DeepSpeed"):
        rows = of_kind[kind]
        assert 0 < len(rows) < len(fitted)


@pytest.mark.full_answer
def test_frozen_weights_of_8_bits() -> None:
    """MLPerf v5.1, LoRA of Llama 2 70B on 8 H200 (Cisco, config_CiscoH200_1x8x2xtp1pp1cp2.sh): it ran.

    A frozen weight is there once, a byte each; where nobody says so both ends count, and nothing is refused.
    """
    run: Any = {"model": "llama-2-70b", "hardware": "h200-sxm", "devices": 8, "cp": 2, "precision": "fp8"}
    run |= {
        "seq_length": 8192,
        "micro_batch_size": 1,
        "global_batch_size": 8,
        "lora_rank": 16,
        "stack": "nvidia-recipes",
    }
    known = {"adapter_targets": "attention", "fp8_activation_inputs": "true"}
    once = {"fp8_param_gather": "true", "fp8_weight_cache": "false"}
    found = simulator.estimate(**run, options=known | once)
    weights = 80 * 8192 * (2 * 8192 + 2 * 1024 + 3 * 28672) + 2 * 2 * 32000 * 8192
    assert found.memory.parts_bytes["parameters"] == pytest.approx(weights, rel=0.01)
    assert found.verdict == "fits"
    assert simulator.estimate(**run, options=known).verdict == "depends"


@pytest.mark.full_answer
def test_a_model_that_is_built_whole() -> None:
    """89 billion parameters on 128 H100 by stage 3 alone ran out of memory (PaddlePaddle/PaddleNLP, issue 7254)."""
    model = {"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "n_layer": 48, "n_embd": 12288, "n_head": 96}
    model |= {"n_inner": 49152, "vocab_size": 51200, "n_positions": 1024, "tie_word_embeddings": True}
    run: Any = {"model": model, "framework": "paddle", "hardware": "h100-sxm-80g", "devices": 128, "seq_length": 1024}
    found = simulator.estimate(**run, zero_stage=3, micro_batch_size=1, global_batch_size=128, recompute="full")
    assert (found.verdict, found.memory.moment) == ("does_not_fit", "load")
    parameters = 48 * 12 * 12288**2 + 51200 * 12288
    assert found.memory.allocated_bytes == pytest.approx(2 * parameters, rel=0.01)


def test_scores_of_a_layer() -> None:
    """Phi-3-mini's layers grew by 4,040 MiB each without a fused kernel (NVIDIA/Megatron-LM, issue 965).

    Seven bytes of each of 32 x 4,096 x 4,096 scores: an fp32 softmax, the mask and the product of dropout.
    """
    words = {"flash_attention": "false", "attention_dropout": "true", "hidden_dropout": "true"}
    run: Any = {"model": "phi-3-mini", "framework": "megatron", "hardware": "a100-sxm-80g", "devices": 8}
    run |= {"zero_stage": 0, "seq_length": 4096, "micro_batch_size": 1, "global_batch_size": 8, "recompute": "none"}
    found = simulator.estimate(**run, options=words | {"attention_matrix_bytes": "4"})
    assert found.memory.parts_bytes["activations"] / 32 / MIB == pytest.approx(4040, rel=0.02)


ON_ASCEND: Any = {"model": "qwen2.5-7b", "framework": "torch", "hardware": "ascend-910b-280t", "devices": 64}
ON_ASCEND |= {"zero_stage": 3, "seq_length": 8192, "micro_batch_size": 1, "global_batch_size": 64}


@pytest.mark.full_answer
def test_attention_on_ascend_is_open() -> None:
    """PyTorch's attention takes a fused kernel there, or its products, by mask and shape (Ascend/op-plugin)."""
    found = simulator.estimate(**ON_ASCEND, recompute="full")
    assert found.open is not None
    assert ("flash_attention", "false") in {(each.switch, each.other) for each in found.open.switches}
    scores = 28 * 8192.0**2 * (4 + 2)
    assert found.open.most_bytes > found.memory.allocated_bytes + scores / 2


@pytest.mark.full_answer
def test_a_run_on_ascend_that_ran_out_of_memory() -> None:
    """Qwen2-7B of 8,192 tokens under DeepSpeed, with weights and state on the host (hiyouga/LlamaFactory, issue 4572).

    What took the memory is not known; without recomputation products of attention would, and nothing is promised.
    """
    away: Any = {"stack": "deepspeed", "offload": "optimizer_tensorwise", "options": {"offload_parameters": "true"}}
    found = simulator.estimate(**ON_ASCEND, **away, recompute="none")
    assert found.verdict != "fits"
    assert found.open is not None
    assert found.open.most_bytes > 3 * found.memory.capacity_bytes


@pytest.mark.parametrize(
    ("chunks", "context", "tokens", "samples", "measured", "within"),
    [
        (2, 1, 8192, 4, 72.7, 0.01),
        (1, 1, 32768, 1, 75.3, 0.06),
        (1, 4, 131072, 1, 77.1, 0.08),
        # No data parallel ranks shard: weights are gathered in 16 bits (9dec370, torchtitan/float8.py).
        (1, 8, 262144, 1, 84.9, 0.1),
        # The same tensors as with one sequence of 32,768 tokens, and 7.2 GiB more: of unknown cause.
        (1, 1, 8192, 4, 82.5, 0.14),
    ],
)
def test_pipelines_of_torchtitan(  # noqa: PLR0917  the columns of a table
    chunks: int, context: int, tokens: int, samples: int, measured: float, within: float
) -> None:
    """Llama 3.1 405B on 512 H100: pytorch/torchtitan b5bcd76, benchmarks/llama3_h100_202412_torchtitan.md, 5 and 6.

    Beside a pipeline weights stay gathered; its file of the model gathers them in 8 bits (9dec370).
    """
    words = {"expandable_segments": "true", "compiled": "true", "tp_comm_overlap": "true"}
    words["fp8_param_gather"] = str(context < 8).lower()
    run: Any = {"model": "llama3.1-405b", "hardware": H100_96G, "framework": "torch", "devices": 512, "tp": 8, "pp": 8}
    found = simulator.estimate(
        **run,
        vpp=chunks,
        cp=context,
        zero_stage=2,
        seq_length=tokens,
        micro_batch_size=samples,
        global_batch_size=8 * samples * 8 // context,
        precision="fp8",
        recompute="full",
        options=words | {"foreach_optimizer": "false"},
    )
    assert found.memory.reserved_bytes / GIB == pytest.approx(measured, rel=within)
