"""Layers of Mamba-2 and of the gated delta rule, as Megatron-LM, MindSpeed and NeMo are told of them."""

import json
from pathlib import Path

import pytest

from simulator.answers.gates import Gates
from simulator.answers.models import recipe_model
from simulator.errors import InputError
from simulator.question.question import question_of
from simulator.question.recipe import Recipe
from simulator.question.specs.catalogue import load_model
from simulator.recipes.check.judge import check_files
from simulator.recipes.readers.read import read_recipe

COMMON = """torchrun --nproc_per_node 8 pretrain_hybrid.py --hidden-size 1024 --num-attention-heads 16 \\
 --group-query-attention --num-query-groups 8 --seq-length 4096 --max-position-embeddings 4096 --micro-batch-size 4 \\
 --global-batch-size 32 --disable-bias-linear --normalization RMSNorm --bf16 --use-distributed-optimizer \\
 --untie-embeddings-and-output-weights --position-embedding-type none --vocab-size 32000 """
HYBRID = "--spec megatron.core.models.hybrid.hybrid_layer_specs hybrid_stack_spec "
MAMBA = "--spec megatron.core.models.mamba.mamba_layer_specs mamba_stack_spec "
PATTERN = "M-M-M--M-*M-M-M-M--*M-M-M-M-*M--M-M-M-*M-M--M-M-"
"""Of examples/mamba/train.sh of Megatron-LM d98e8a6, which says the same by ratios in earlier versions."""


def read(flags: str, folder: Path) -> Recipe:
    file = folder / "train.sh"
    file.write_text(COMMON + flags + "\n", encoding="utf-8")
    (recipe,) = read_recipe(file)
    return recipe


def refused(recipe: Recipe) -> list[str]:
    return [remark.message for remark in recipe.remarks if remark.severity == "error"]


def test_a_pattern_says_what_each_layer_is(tmp_path: Path) -> None:
    recipe = read(f"{HYBRID}--hybrid-layer-pattern '{PATTERN}'", tmp_path)
    assert refused(recipe) == []
    model, _ = recipe_model(recipe, None, {}, None)
    assert model is not None
    kinds = {"M": ("mamba", "none"), "*": ("grouped_query", "none"), "-": ("none", "plain")}
    assert [tuple(kind[:2]) for kind in model.layers] == [kinds[mark] for mark in PATTERN]
    # Twice the hidden size in heads of 64, eight groups of states of 128: the defaults of d98e8a6.
    assert (model.mamba_heads, model.mamba_head_dim, model.mamba_groups, model.mamba_state) == (32, 64, 8, 128)
    assert (model.convolution, model.chunk_tokens) == (4, 128)


def test_a_pattern_says_the_cut_and_what_predicts_further_tokens(tmp_path: Path) -> None:
    """Parts between `|` are chunks of the ranks in turn, parts behind `/` modules: Megatron-LM d98e8a6,
    core/models/hybrid/hybrid_layer_allocation.py, `select_pipeline_segment` and `parse_hybrid_pattern`.
    """
    cut = f"{HYBRID}--pipeline-model-parallel-size 2 --hybrid-layer-pattern"
    recipe = read(f"{cut} 'M-M-|M-M*-|M-|M*-/*-/*-'", tmp_path)
    assert refused(recipe) == []
    assert recipe.layout is not None
    assert (recipe.layout.virtual_stages, recipe.layout.chunk_layers) == (2, (4, 5, 2, 3))
    assert recipe.model_fields["num_hidden_layers"] == 14
    assert (recipe.model_fields["num_nextn_predict_layers"], recipe.options["mtp"]) == (2, "true")
    halves = read(f"{cut} 'M-M-|M*-'", tmp_path).layout
    assert halves is not None
    assert halves.stage_layers == (4, 3)
    with pytest.raises(InputError, match=r"must have a multiple of 2 parts between \|"):
        read(f"{cut} 'M-|M*|M-'", tmp_path)


def test_ratios_lay_out_the_pattern_that_later_versions_spell_out(tmp_path: Path) -> None:
    ratios = "--num-layers 48 --hybrid-attention-ratio 0.08 --hybrid-mlp-ratio 0.5"
    spelled = read(f"{HYBRID}--hybrid-layer-pattern '{PATTERN}'", tmp_path)
    derived = read(f"{MAMBA}{ratios}", tmp_path)
    assert refused(derived) == []
    assert derived.model_fields == spelled.model_fields


def test_a_stack_without_a_pattern_is_of_state_spaces_alone(tmp_path: Path) -> None:
    fields = read(f"{MAMBA}--num-layers 4 --mamba-num-heads 24 --mamba-num-groups 4", tmp_path).model_fields
    assert (fields["mixers"], fields["feed_forwards"]) == (("mamba",) * 4, ("none",) * 4)
    assert (fields["mamba_heads"], fields["mamba_groups"]) == (24, 4)


@pytest.mark.parametrize(
    "flags",
    [
        f"{HYBRID}--hybrid-layer-pattern MM+M",  # latent attention
        f"{HYBRID}--hybrid-layer-pattern 'MMMM/MM'",  # layers of a state space that predict further tokens
        f"{HYBRID}--hybrid-layer-pattern 'M*M-/*-/MM'",  # two modules that differ
        f"{MAMBA}--num-layers 3 --hybrid-override-pattern MMQ",
        "--num-layers 4 --hybrid-override-pattern M-M-",  # nothing says what M is
        "--num-layers 4 --experimental-attention-variant dsa",
        "--num-layers 4 --experimental-attention-variant gated_delta_net --linear-attention-freq [1,0]",
        "--num-layers 4 --spec mypkg.mamba_layer_specs my_spec",
        "--num-layers 4 --spec megatron.core.models.mamba.mamba_layer_specs my_spec",
        "--num-layers 4 --spec mypkg.qwen3_spec layer_spec",
        "--num-layers 4 --spec megatron.core.models.gpt.gpt_layer_specs my_spec",
    ],
)
def test_other_layers_are_not_modelled(flags: str, tmp_path: Path) -> None:
    assert refused(read(flags, tmp_path)) != []


OWN = "--num-layers 4 --spec mindspeed_llm.tasks.models.spec."


@pytest.mark.parametrize("spec", ["minimax_spec", "phi35_moe_spec"])
def test_layers_of_mindspeed_that_are_what_the_other_flags_say(spec: str, tmp_path: Path) -> None:
    assert refused(read(f"{OWN}{spec} layer_spec", tmp_path)) == []
    assert refused(read(f"{OWN}other_spec layer_spec", tmp_path)) != []


DELTA_NET = "--experimental-attention-variant gated_delta_net --linear-attention-freq 4 "


@pytest.mark.parametrize(
    ("flags", "left"),
    [
        (f"{OWN}mamba_spec layer_spec", "--hybrid-override-pattern M-M-"),
        (f"{OWN}mamba_spec layer_spec", "--hybrid-attention-ratio 0.5"),
        (f"{OWN}mamba_spec layer_spec", "--experimental-attention-variant dsa"),
        (f"{MAMBA}--num-layers 4", "--experimental-attention-variant dsa"),
        (f"{MAMBA}--num-layers 4", "--mamba-expand 4"),
        (f"{HYBRID}--hybrid-layer-pattern M*M*", "--linear-attention-freq 2"),
        (
            f"{OWN}qwen3_next_spec layer_spec --full-attention-interval 4 --use-triton-gdn",
            "--linear-attention-type dsa",
        ),
        (f"--num-layers 4 {DELTA_NET}", "--hybrid-override-pattern MMMM"),
        (f"--num-layers 4 {DELTA_NET}", "--full-attention-interval 2"),
        (f"{OWN}qwen3_spec layer_spec", "--full-attention-interval 4"),
        ("--num-layers 4", "--linear-attention-freq 4"),
    ],
)
def test_what_the_layers_leave_unread_is_refused_at_its_line(flags: str, left: str, tmp_path: Path) -> None:
    assert refused(read(flags, tmp_path)) == []
    recipe = read(f"{flags} \\\n {left}", tmp_path)
    (remark,) = [remark for remark in recipe.remarks if remark.severity == "error"]
    assert remark.rule == "not-modelled"
    assert remark.message == f"{left}: not modelled for the layers that the other flags build"
    assert remark.place is not None
    assert remark.place.line == (COMMON + flags).count("\n") + 2


@pytest.mark.parametrize(
    "off", ["--full-attention-interval 0", "--mamba-expand 1", "--hybrid-mlp-ratio 0.0", "--linear-attention-type ''"]
)
def test_a_flag_that_is_off_and_a_size_alone_build_no_layers(off: str, tmp_path: Path) -> None:
    assert refused(read(f"--num-layers 4 {off}", tmp_path)) == []


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ("--num-experts 8 --hybrid-layer-pattern M*M-", "--num-experts 8, and no layer has experts"),
        ("--hybrid-layer-pattern M*ME", "layers with experts (E) and no --num-experts"),
    ],
)
def test_a_pattern_agrees_with_the_experts(flags: str, said: str, tmp_path: Path) -> None:
    assert refused(read(HYBRID + flags, tmp_path)) == [said]
    (found,) = check_files([str(tmp_path / "train.sh")], question_of({"hardware": "h100-sxm-80g"}), Gates())
    assert found.outcome == "not_modelled"


DELTA = "--num-layers 8 --qk-layernorm --attention-output-gate --linear-num-value-heads 16 --linear-num-key-heads 8 "


@pytest.mark.parametrize(
    "flags",
    [
        "--experimental-attention-variant gated_delta_net --linear-attention-freq 4",
        "--linear-attention-type gated_delta_net --linear-attention-freq '([1,1,1,0]*2)'",
    ],
)
def test_the_gated_delta_rule_in_all_but_every_fourth_layer(flags: str, tmp_path: Path) -> None:
    recipe = read(DELTA + flags, tmp_path)
    assert refused(recipe) == []
    fields = recipe.model_fields
    assert fields["mixers"] == (*("gated_delta",) * 3, "grouped_query") * 2
    assert (fields["attention_gate"], fields["linear_value_heads"], fields["linear_key_heads"]) == ("element", 16, 8)
    assert (fields["convolution"], fields["chunk_tokens"]) == (4, 64)


NEXT = """--spec mindspeed_llm.tasks.models.spec.qwen3_next_spec layer_spec \\
 --num-layers 8 --full-attention-interval 4 --qk-layernorm --kv-channels 256 \\
 --linear-num-key-heads 16 --linear-num-value-heads 32 """

PUBLISHED = {"model_type": "qwen3_next", "num_hidden_layers": 8, "hidden_size": 2048, "vocab_size": 151936} | {
    "num_attention_heads": 16
}
"""Qwen3-Next as its own configuration has it, whose other values are the defaults of its class, with eight layers."""


def test_qwen3_next_of_mindspeed_has_the_mixers_of_the_published_model(tmp_path: Path) -> None:
    recipe = read(f"{NEXT} --use-triton-gdn", tmp_path)
    assert refused(recipe) == []
    config = tmp_path / "config.json"
    config.write_text(json.dumps(PUBLISHED), encoding="utf-8")
    published = load_model(str(config))
    for name in ("attention_gate", "linear_key_head_dim", "linear_value_head_dim", "convolution", "chunk_tokens"):
        assert recipe.model_fields[name] == getattr(published, name)
    assert tuple(kind.mixer for kind in published.layers) == recipe.model_fields["mixers"]
    assert refused(read(NEXT, tmp_path)) == [
        "the gated delta rule without --use-triton-gdn: what its products keep is not priced"
    ]


def test_a_gate_on_attention_alone(tmp_path: Path) -> None:
    assert read("--num-layers 4 --attention-output-gate", tmp_path).model_fields["attention_gate"] == "element"


NEMO = """name: megatron_mamba
trainer: {devices: 8, num_nodes: 1, precision: bf16}
model:
  tensor_model_parallel_size: 1
  pipeline_model_parallel_size: 1
  micro_batch_size: 1
  global_batch_size: 8
  encoder_seq_length: 4096
  max_position_embeddings: 4096
  position_embedding_type: none
  num_layers: 6
  hidden_size: 1024
  ffn_hidden_size: 4096
  num_attention_heads: 16
  num_query_groups: 8
  vocab_size: 32000
  megatron_amp_O2: true
  hybrid_override_pattern: PATTERN
  mamba_ssm_ngroups: 8
  optim: {name: distributed_fused_adam}
"""


@pytest.mark.parametrize(
    ("pattern", "mixers"),
    [("null", ("mamba",) * 6), ("M-M*M-", ("mamba", "none", "mamba", "grouped_query", "mamba", "none"))],
)
def test_nemo_fills_the_same_stack(pattern: str, mixers: tuple[str, ...], tmp_path: Path) -> None:
    file = tmp_path / "mamba.yaml"
    file.write_text(NEMO.replace("PATTERN", pattern), encoding="utf-8")
    (recipe,) = read_recipe(file)
    model, _ = recipe_model(recipe, None, {}, None)
    assert model is not None
    assert tuple(kind.mixer for kind in model.layers) == mixers
    (found,) = check_files([str(file)], question_of({"hardware": "h100-sxm-80g"}), Gates())
    assert found.outcome == "fits"
