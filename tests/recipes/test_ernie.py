"""ERNIE's fused node of experts in fp8, as the recipes of its pre-training toolkit set it."""

import re
from pathlib import Path

import pytest

from simulator.answers.gates import Gates
from simulator.errors import AbsentFileError
from simulator.question.question import question_of
from simulator.question.recipe import Recipe
from simulator.recipes.check.judge import check_recipe
from simulator.recipes.readers.read import read_recipe
from tests.recipes.seeds import rules

ERNIE_NODE = """model_name_or_path: baidu/ERNIE-4.5-300B-A47B
max_seq_len: 4096
per_device_train_batch_size: 1
gradient_accumulation_steps: 90
bf16: true
fp16_opt_level: O2
amp_master_grad: 1
pipeline_model_parallel_size: 12
expert_model_parallel_size: 8
use_expert_parallel: true
sharding: stage1
sharding_parallel_size: 8
tensorwise_offload_optimizer: true
ernie_model_config:
  use_combine_before_a2a: true
  use_rms_qkv_recompute: true
  use_fp8_fuse_node: NODE
  fp8_mem_configs:
    recompute_fwd_gate_up: LISTED
    dequant_input: INPUT
"""


def ernie(
    folder: Path, node: str = "true", listed: str = "[4, 5, 6, 60]", narrow: str = "true", more: str = ""
) -> Recipe:
    file = folder / "run.yaml"
    words = {"NODE": node, "LISTED": listed, "INPUT": narrow}
    file.write_text(re.sub("|".join(words), lambda word: words[word[0]], ERNIE_NODE + more), encoding="utf-8")
    (recipe,) = read_recipe(file)
    return recipe


def test_the_fused_node_of_ernie_keeps_less(tmp_path: Path) -> None:
    recipe = ernie(tmp_path)
    assert recipe.layout is not None
    assert (recipe.layout.recompute, recipe.layout.recompute_modules) == ("selective", ("moe_gate_up",))
    assert (recipe.layout.recompute_method, recipe.layout.recompute_layer_list) == ("list", (4, 5, 6))
    switches = {"fp8_experts": "cast", "probabilities_in_experts": "true", "recomputed_norm_share": "0.5"}
    assert switches.items() <= recipe.options.items()
    kept = ernie(tmp_path, narrow="true\n    offline_quant_expert_weight: true")
    assert kept.options["fp8_experts"] == "kept"
    assert len(ernie(tmp_path, listed="true").layout.recompute_layer_list) == 54  # type: ignore[union-attr]


def test_without_the_node_its_settings_do_nothing(tmp_path: Path) -> None:
    recipe = ernie(tmp_path, node="false")
    assert recipe.layout is not None
    assert (recipe.layout.recompute, "fp8_experts" in recipe.options) == ("none", False)
    assert ernie(tmp_path, listed="false").layout.recompute == "none"  # type: ignore[union-attr]
    assert ernie(tmp_path, listed="[]").layout.recompute == "none"  # type: ignore[union-attr]
    wide = ernie(tmp_path, narrow="false")
    assert "fp8_experts" not in wide.options
    assert "activations-bound" in rules(wide)


@pytest.mark.parametrize("listed", ["true", str([*range(54)])])
def test_gate_and_up_beside_the_core_of_every_layer(listed: str, tmp_path: Path) -> None:
    layout = ernie(tmp_path, listed=listed, more="recompute: true\nrecompute_granularity: core_attn").layout
    assert layout is not None
    assert (layout.recompute, layout.recompute_modules) == ("selective", ("core_attn", "moe_gate_up"))
    assert (layout.recompute_method, layout.recompute_layer_list) == ("uniform", ())


@pytest.mark.parametrize("granularity", ["core_attn", "full_attn", "full"])
def test_gate_and_up_beside_another_recompute_is_an_upper_bound(granularity: str, tmp_path: Path) -> None:
    recipe = ernie(tmp_path, more=f"recompute: true\nrecompute_granularity: {granularity}")
    assert recipe.layout is not None
    assert "moe_gate_up" not in recipe.layout.recompute_modules
    (said,) = [remark for remark in recipe.remarks if remark.rule == "activations-bound"]
    assert said.message.startswith("recompute_fwd_gate_up beside another recompute")
    if granularity != "full":
        asked = question_of({"hardware": "h800-sxm-80g", "nodes": 12, "seq_length": 16384})
        assert check_recipe(recipe, asked, Gates()).outcome == "depends"


def test_experts_in_fp8_are_priced_in_the_fused_node_alone(tmp_path: Path) -> None:
    assert "activations-bound" not in rules(ernie(tmp_path, more="use_fp8_mlp: true"))
    for node in ({"node": "false"}, {"narrow": "false"}):
        assert "activations-bound" in rules(ernie(tmp_path, more="use_fp8_mlp: true", **node))
    asked = question_of({"hardware": "h800-sxm-80g", "nodes": 12, "seq_length": 65536})
    assert check_recipe(ernie(tmp_path, more="use_fp8_mlp: true"), asked, Gates()).outcome == "does_not_fit"


def test_96_devices_of_80_gb_hold_ernie_300b(tmp_path: Path) -> None:
    """As its makers run it: 4, 5, 5, 5 layers on the first ranks, gate and up again where most is in flight."""
    listed = "[4, 5, 6, 7, 8, 10, 11, 12, 13, 16, 17, 18]"
    asked = question_of({"hardware": "h800-sxm-80g", "nodes": 12})
    estimate = check_recipe(ernie(tmp_path, listed=listed), asked, Gates()).estimate
    assert estimate is not None
    # To a percent, the error of memory.
    assert estimate.memory.need_bytes < 1.01 * estimate.memory.capacity_bytes
    without = check_recipe(ernie(tmp_path, node="false"), asked, Gates())
    assert without.outcome == "does_not_fit"


TUNED = """model_name_or_path: baidu/ERNIE-4.5-21B-A3B-PT
max_seq_len: 8192
per_device_train_batch_size: 1
bf16: true
fp16_opt_level: O2
tensor_model_parallel_size: 2
pipeline_model_parallel_size: 2
sequence_parallel: true
"""


@pytest.mark.parametrize(
    ("old", "new", "experts", "stage"),
    [
        ("", "", 2, 1),
        ("_model_parallel_size", "_parallel_degree", 1, 0),
        ("max_seq_len", "moe_group: dummy\nmax_seq_len", 1, 1),
        ("max_seq_len", "sharding: ''\nmax_seq_len", 2, 0),
    ],
)
def test_defaults_of_paddleformers_where_experts_and_state_are(
    old: str, new: str, experts: int, stage: int, tmp_path: Path
) -> None:
    file = tmp_path / "run.yaml"
    file.write_text(TUNED.replace(old, new) if old else TUNED, encoding="utf-8")
    (recipe,) = read_recipe(file)
    assert recipe.layout is not None
    assert (recipe.layout.expert_parallel, recipe.layout.zero_stage) == (experts, stage)


def test_the_file_behind_config_is_read(tmp_path: Path) -> None:
    script, whole = tmp_path / "scripts" / "train.sh", ernie(tmp_path)
    script.parent.mkdir()
    launch = "python -m paddle.distributed.launch --nnodes 12 ernie/pretrain.py --config"
    script.write_text(f"{launch} run.yaml\n", encoding="utf-8")
    (recipe,) = read_recipe(script, root=tmp_path)
    assert (recipe.model, recipe.layout, recipe.options) == (whole.model, whole.layout, whole.options)
    script.write_text(f"{launch} absent.yaml\n", encoding="utf-8")
    with pytest.raises(AbsentFileError, match=r"absent\.yaml: no such file"):
        read_recipe(script, root=tmp_path)
    script.write_text(f"{launch} $CONFIG --bf16 1\n", encoding="utf-8")
    (recipe,) = read_recipe(script, root=tmp_path)
    (affects,) = [unknown.affects for unknown in recipe.unknowns if unknown.name == "CONFIG"]
    assert {"any_other_flag", "model"} <= set(affects)
