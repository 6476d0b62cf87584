"""The version of Megatron's core, as the paths of its code name it."""

from pathlib import Path

import pytest

from simulator.answers.gates import Gates
from simulator.question.question import question_of
from simulator.question.recipe import Recipe
from simulator.recipes.check.judge import check_recipe
from simulator.recipes.readers.read import read_recipe
from tests.recipes.seeds import rules
from tests.recipes.test_megatron import BASE, read

PIPED = "--pipeline-model-parallel-size 4 --num-layers-per-virtual-pipeline-stage 4 --use-distributed-optimizer"
EXPERTS = "--num-experts 8 --moe-router-topk 2"


def launched(folder: Path, paths: str = "", script: str = "pretrain_gpt.py", flags: str = PIPED) -> Recipe:
    file = folder / "run.sh"
    export = f"export PYTHONPATH={paths}\n" if paths else ""
    words = " ".join(BASE.replace("batch-size 64", "batch-size 32").split())
    file.write_text(f"{export}torchrun --nproc_per_node 8 --nnodes 2 {script} {words} {flags}\n", encoding="utf-8")
    (recipe,) = read_recipe(file)
    return recipe


@pytest.mark.parametrize(
    ("paths", "script", "whole"),
    [
        ("${PATCH}:${PATCH}/backends/megatron/PAI-Megatron-LM-240718:$PYTHONPATH", "../pretrain_qwen.py", True),
        ("${PATCH}:${PATCH}/Megatron-LM-231007", "pretrain_gpt.py", True),
        ("", "/opt/Megatron-LM-core_r0.8.0/pretrain_gpt.py", True),
        ("", "$HOME/megatron/core_v0.9.0/pretrain_gpt.py", True),
        # Python looks beside the script first.
        ("/opt/core_r0.8.0", "/opt/Megatron-LM-core_v0.12.1/pretrain_gpt.py", False),
        ("${PATCH}/backends/megatron/Megatron-LM-241113", "pretrain_gpt.py", False),
        ("/opt/core_r0.10.0", "pretrain_gpt.py", False),
        # No repository says which commit these are.
        ("/data/Megatron-LM-240101", "pretrain_gpt.py", False),
        ("/data/Megatron-LM-240126-fixed", "pretrain_gpt.py", False),
        ("/data/score_0.8", "pretrain_gpt.py", False),
        ("/opt/cuda_core_0.3/lib:/w/core_v0.14.0", "pretrain_gpt.py", False),
        ("", "pretrain_gpt.py", False),
    ],
)
def test_old_cores_warm_up_a_whole_batch(paths: str, script: str, whole: bool, tmp_path: Path) -> None:
    assert ("warm_up_whole_batch" in launched(tmp_path, paths, script).options) == whole


def test_later_ranks_hold_a_whole_batch(tmp_path: Path) -> None:
    held = []
    for core in ("0.10.0", "0.9.0"):
        result = check_recipe(
            launched(tmp_path, f"/opt/core_v{core}"), question_of({"hardware": "h100-sxm-80g"}), Gates()
        )
        assert result.estimate is not None
        held.append([stage.parts_bytes["activations"] for stage in result.estimate.memory.stages])
    (new_first, *_, new_last), (old_first, *_, old_last) = held
    # Four micro batches in two chunks of four layers: the first rank has all eight in flight either way, the last one
    # five.
    assert old_first == new_first
    assert old_last > 1.3 * new_last


def test_old_cores_weigh_the_outputs_of_experts(tmp_path: Path) -> None:
    old = launched(tmp_path, "${PATCH}/Megatron-LM-250328", flags=EXPERTS)
    new = launched(tmp_path, "${PATCH}/Megatron-LM-250624", flags=EXPERTS)
    assert old.options["probabilities_in_experts"] == "false"
    assert "probabilities_in_experts" not in new.options
    assert "probabilities_in_experts" not in launched(tmp_path, "${PATCH}/Megatron-LM-250328").options


@pytest.mark.parametrize(
    ("core", "outside"),
    [
        ("v0.11.0", True),
        ("v0.12.0", True),
        ("v0.12.1", False),
        ("v0.12.3", False),
        ("r0.12.0", False),
        ("r0.11.0", True),
    ],
)
def test_the_patch_of_a_core_tells_where_experts_weigh_their_outputs(core: str, outside: bool, tmp_path: Path) -> None:
    options = launched(tmp_path, f"/w/Megatron-LM-core_{core}", flags=EXPERTS).options
    assert ("probabilities_in_experts" in options) == outside


@pytest.mark.parametrize(
    ("flags", "captured"),
    [
        ("--cuda-graph-impl local --cuda-graph-scope full_iteration", "full_iteration"),
        ("--cuda-graph-impl full_iteration", "full_iteration"),
        ("--enable-cuda-graph --cuda-graph-scope full_iteration", "full_iteration"),
        # A scope without an implementation captures nothing, as in NVIDIA's NVFP4 recipes of Llama-3-70B (26.04).
        ("--cuda-graph-impl none --cuda-graph-scope full_iteration", None),
        ("--cuda-graph-scope full_iteration", None),
        ("--cuda-graph-impl transformer_engine", "layers"),
        ("--cuda-graph-impl transformer_engine --cuda-graph-modules attn", "attention"),
        ("--cuda-graph-impl transformer_engine --cuda-graph-modules attn moe_router", "attention_router"),
        ("--cuda-graph-impl transformer_engine --cuda-graph-modules mlp", "network"),
        ("--cuda-graph-impl local --cuda-graph-scope full_iteration_inference", "layers"),
    ],
)
def test_graphs_need_an_implementation(flags: str, captured: str | None, tmp_path: Path) -> None:
    assert launched(tmp_path, flags=f"{PIPED} {flags}").options.get("cuda_graphs") == captured


@pytest.mark.parametrize("flags", ["--cuda-graph-impl mine", "--cuda-graph-impl local --cuda-graph-scope mine"])
def test_graphs_of_unknown_words_are_not_modelled(flags: str, tmp_path: Path) -> None:
    errors = [remark for remark in launched(tmp_path, flags=f"{PIPED} {flags}").remarks if remark.severity == "error"]
    assert [(error.rule, "mine" in error.message) for error in errors] == [("not-modelled", True)]


@pytest.mark.parametrize(
    ("flags", "inputs", "refused"),
    [
        ("--fp8-format hybrid --first-last-layers-bf16 --num-layers-at-end-in-bf16 2", "false", False),
        ("--fp8-format hybrid --fp8-param-gather --first-last-layers-bf16", "false", True),
        ("--first-last-layers-bf16", None, False),
    ],
)
def test_layers_in_16_bits_beside_those_in_8(flags: str, inputs: str | None, refused: bool, tmp_path: Path) -> None:
    recipe = launched(tmp_path, flags=f"{PIPED} {flags}")
    assert recipe.options.get("fp8_inputs") == inputs
    assert any("stored in 8 bits" in remark.message for remark in recipe.remarks) == refused


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("--cuda-graph-impl transformer_engine --cuda-graph-scope full_iteration", "CUDA graphs of full_iteration"),
        ("--cuda-graph-impl local --cuda-graph-modules attn sofa", "CUDA graphs of sofa"),
        ("--fine-grained-activation-offloading", "needs --offload-modules"),
        ("--fine-grained-activation-offloading --offload-modules sofa", "--offload-modules sofa: allowed are"),
    ],
)
def test_words_of_graphs_and_offloads_that_are_not_known(flags: str, message: str, tmp_path: Path) -> None:
    remarks = launched(tmp_path, flags=f"{PIPED} {flags}").remarks
    assert any(remark.rule == "not-modelled" and message in remark.message for remark in remarks)


@pytest.mark.parametrize(("tokens", "outcome"), [(4096, "fits"), (65536, "not_modelled")])
def test_what_fits_under_megatrons_own_sharding_does(tokens: int, outcome: str, tmp_path: Path) -> None:
    """Room is left for buffers that may not be alive at the peak: too large a need is no firm answer."""
    flags = "--use-megatron-fsdp --data-parallel-sharding-strategy optim_grads_params --ckpt-format fsdp_dtensor"
    flags += " --use-distributed-optimizer --no-gradient-accumulation-fusion --init-model-with-meta-device"
    flags += " --recompute-granularity full --recompute-method uniform --recompute-num-layers 1"
    recipe = launched(tmp_path, flags=f"{flags} --seq-length {tokens} --max-position-embeddings {tokens}")
    # A table of 128,256 x 4,096: two gradients, one gathered copy; 1e9 gradients in fp32, half as many weights.
    assert recipe.unpriced_bytes == 10 * 128256 * 4096 + 5e9
    assert check_recipe(recipe, question_of({"hardware": "h100-sxm-80g", "nodes": 2}), Gates()).outcome == outcome


def test_megatrons_own_sharding_cuts_experts_over_the_ranks_that_have_the_same_ones(tmp_path: Path) -> None:
    """Of 8 experts on 4 ranks a rank has 2, whose state 4 of 16 share (megatron_fsdp/param_and_grad_buffer.py)."""
    flags = "--use-megatron-fsdp --data-parallel-sharding-strategy optim_grads_params --use-distributed-optimizer"
    flags += " --no-gradient-accumulation-fusion --ckpt-format fsdp_dtensor --swiglu --moe-ffn-hidden-size 1024"
    recipe = launched(tmp_path, flags=f"{flags} {EXPERTS} --expert-model-parallel-size 4")
    assert not {remark.rule for remark in recipe.remarks} & {"not-modelled"}
    # Two layers of dense width and two experts are less than the 1e9 gradients that wait.
    assert recipe.unpriced_bytes == 10 * 128256 * 4096 + 5e9
    found = check_recipe(recipe, question_of({"hardware": "h100-sxm-80g", "nodes": 2}), Gates()).estimate
    assert found is not None
    experts, dense = 32 * 8 * 3 * 4096 * 1024, 32 * 4096 * (4096 + 4096 + 2 * 1024) + 2 * 128256 * 4096
    expected = 2 * (experts / 4 / 4 + dense / 16)
    assert found.memory.parts_bytes["parameters"] == pytest.approx(expected, rel=0.01)


def test_post_training_that_nothing_switches_on_is_silent(tmp_path: Path) -> None:
    assert rules(read(f"{BASE} --enable-gpt-oss --export-force-local-attention", tmp_path)) == set()


def test_room_is_left_for_the_table_of_position_biases(tmp_path: Path) -> None:
    recipe = read(f"{BASE} --use-alibi-mask", tmp_path)
    assert rules(recipe) == set()
    assert recipe.unpriced_bytes == 8 * 32 * 4096**2
