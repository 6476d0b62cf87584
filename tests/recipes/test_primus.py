"""Experiments of Primus: its own files beside them or not, its names that other frameworks have too."""

from pathlib import Path

import pytest

from simulator.answers.models import recipe_model
from simulator.errors import NoRecipeError, UnsupportedError
from simulator.question.recipe import Recipe
from simulator.recipes.readers.read import read_recipe
from tests.recipes.test_formats import PRIMUS

EXPERIMENT = PRIMUS.partition("\n")[2]
MEGATRON = "      micro_batch_size: 1\n      global_batch_size: 64\n      seq_length: 4096\n"
DEFAULTS = """stage: pretrain
bf16: true
fp8: null
fp8_recipe: delayed
cuda_graph_scope: full
suggested_communication_unit_size: 400000000
seq_length: 1024
"""
"""Of `modules/megatron/trainer_base.yaml`."""
SHAPE = """num_layers: 4
hidden_size: 512
ffn_hidden_size: 1024
num_attention_heads: 8
vocab_size: 1024
swiglu: true
attn_logit_softcapping: null
"""
FP8 = """      training: {local_batch_size: 1, seq_len: 8192}
      quantize: {linear: {float8: {enable_fsdp_float8_all_gather: true}}}
"""


def experiment(folder: Path, framework: str, model: str, more: str) -> Path:
    file = folder / "x.yaml"
    text = EXPERIMENT.replace("FRAMEWORK", framework).replace("MODEL", model)
    file.write_text(text + more, encoding="utf-8")
    return file


def read(folder: Path, framework: str, model: str, more: str) -> Recipe:
    (recipe,) = read_recipe(experiment(folder, framework, model, more))
    return recipe


def errors(recipe: Recipe) -> list[str]:
    return [remark.message for remark in recipe.remarks if remark.severity == "error"]


def checkout(folder: Path, framework: str, module: str, model: str) -> None:
    """Primus' own files where a checkout has them."""
    for kind, name, text in (("modules", "pre_trainer", module), ("models", "mine", model)):
        file = folder / "primus" / "configs" / kind / framework / f"{name}.yaml"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")


def test_what_its_own_files_set_for_every_model_is_no_setting(tmp_path: Path) -> None:
    checkout(tmp_path, "megatron", DEFAULTS, SHAPE)
    recipe = read(tmp_path, "megatron", "mine", MEGATRON)
    assert (recipe.precision, recipe.stack, errors(recipe)) == ("bf16", None, [])
    assert "fp8_recipe" not in recipe.options
    narrow = read(tmp_path, "megatron", "mine", f"{MEGATRON}      fp8: hybrid\n")
    assert (narrow.precision, narrow.options["fp8_recipe"]) == ("fp8", "delayed")


def test_what_differs_from_them_counts(tmp_path: Path) -> None:
    checkout(tmp_path, "megatron", DEFAULTS.replace("size: 400000000", "size: 200000000"), SHAPE)
    assert "suggested_communication_unit_size" in errors(read(tmp_path, "megatron", "mine", MEGATRON))[0]


@pytest.mark.parametrize("key", ["index_topk: 512", "lfm_layer_types: [conv, full_attention]"])
def test_layers_of_another_kind_in_a_model_file(tmp_path: Path, key: str) -> None:
    checkout(tmp_path, "megatron", DEFAULTS, f"{SHAPE}{key}\n")
    assert errors(read(tmp_path, "megatron", "mine", MEGATRON)) == [
        f"{key.partition(':')[0]}: layers of this kind are not priced"
    ]


def test_its_stages_are_not_those_of_mindspeed(tmp_path: Path) -> None:
    own = "      stage: sft\n      hf_path: meta-llama/Meta-Llama-3-8B\n"
    recipe = read(tmp_path, "megatron", "llama3_8B", MEGATRON + own)
    assert (recipe.stack, recipe.options, errors(recipe)) == (
        None,
        read(tmp_path, "megatron", "llama3_8B", MEGATRON).options,
        [],
    )
    assert errors(read(tmp_path, "megatron", "llama3_8B", f"{MEGATRON}      stage: mlperf_pretrain\n")) == []


def test_latent_attention_that_is_switched_off(tmp_path: Path) -> None:
    whole = f"{MEGATRON}      multi_latent_attention: false\n"
    model, _ = recipe_model(read(tmp_path, "megatron", "deepseek_v2_lite", whole), None, {}, None)
    assert model is not None
    assert (model.attention, model.kv_lora_rank, model.head_dim, model.num_key_value_heads) == ("gqa", None, 128, 16)
    assert (model.qk_norm, model.num_experts) == (True, 64)
    assert "attention" not in read(tmp_path, "megatron", "llama3_8B", whole).model_fields


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("modules.a.framework: megatron\nmodules.a.config: x.yaml\n", NoRecipeError),
        ("modules: {a.framework: megatron, a.config: x.yaml}\n", NoRecipeError),
        ("modules: {a: {framework: [], config: x.yaml}}\n", UnsupportedError),
    ],
)
def test_keys_without_a_value_are_no_experiment(text: str, error: type[Exception], tmp_path: Path) -> None:
    file = tmp_path / "x.yaml"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(error):
        read_recipe(file)


def test_diffusion_models_are_refused_by_what_they_are(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match=r"x.yaml:5: diffusion/flux_12b.yaml: diffusion models are not modelled"):
        read(tmp_path, "megatron", "diffusion/flux_12b", MEGATRON)


def test_a_depth_that_is_asked_for_on_torchtitan(tmp_path: Path) -> None:
    depth = "      model: {n_layers: LAYERS}\n"
    assert read(tmp_path, "torchtitan", "llama3.1_405B", depth.replace("LAYERS", "126")).model_fields == {}
    recipe = read(tmp_path, "torchtitan", "llama3.1_405B", depth.replace("LAYERS", "20"))
    assert (recipe.model_fields, errors(recipe)) == ({"num_hidden_layers": 20}, [])


def test_products_of_primus_turbo_keep_8_bits(tmp_path: Path) -> None:
    options = read(tmp_path, "torchtitan", "llama3.1_8B-fp8", FP8).options
    assert {options[name] for name in ("fp8_inputs", "fp8_weight_cache")} == {"true"}
    assert options["fp8_param_gather"] == "false"
    again = f"{FP8}      activation_checkpoint: {{mode: full}}\n"
    assert read(tmp_path, "torchtitan", "llama3.1_8B-fp8", again).options["fp8_weight_cache"] == "false"
    for off in ("enable_primus_turbo", "use_turbo_float8_linear"):
        torchao = read(tmp_path, "torchtitan", "llama3.1_8B-fp8", f"{FP8}      primus_turbo: {{{off}: false}}\n")
        assert "fp8_inputs" not in torchao.options
        assert torchao.options["fp8_param_gather"] == "true"


def test_own_keys_of_its_modules_are_none_of_torchtitan(tmp_path: Path) -> None:
    model = "model: {name: llama3, flavor: 8B, hf_assets_path: x}\n"
    checkout(tmp_path, "torchtitan", "trainable: false\nsink_level: null\n", model)
    recipe = read(tmp_path, "torchtitan", "mine", "      training: {seq_len: 8192}\n")
    assert (recipe.model, errors(recipe)) == ("llama3-8b", [])


STACK = "      spec: [primus.backends.megatron.core.models.hybrid.hybrid_mamba_mla_layer_specs, {}]\n"


@pytest.mark.parametrize(
    ("model", "stack", "more", "mixers"),
    [
        ("zebra_llama_3B", "hybrid_stack_spec", "", {"latent", "mamba", "none"}),
        ("zebra_llama_1B_gdn_pure", "gdn_hybrid_stack_spec_no_te", "", {"gated_delta", "none"}),
        ("zebra_llama_300M_kda_pure", "kda_hybrid_stack_spec", "use_fla_triton_kda: true", {"kimi_delta", "none"}),
        # PyTorch's own way of Kimi's delta attention, another stack than the model's, another model.
        ("zebra_llama_300M_kda_pure", "kda_hybrid_stack_spec", "", set()),
        ("zebra_llama_3B", "gdn_hybrid_stack_spec", "", set()),
        ("zebra_llama_8B", "hybrid_stack_spec", "", set()),
    ],
)
def test_stacks_of_mixers(model: str, stack: str, more: str, mixers: set[str], tmp_path: Path) -> None:
    recipe = read(tmp_path, "megatron", model, f"{MEGATRON}{STACK.format(stack)}      {more}\n")
    assert set(recipe.model_fields.get("mixers", ())) == mixers  # type: ignore[call-overload]  # a tuple where there
    assert any("layers of this kind are not modelled" in message for message in errors(recipe)) != bool(mixers)


def test_a_stack_whose_loss_is_computed_in_parts(tmp_path: Path) -> None:
    """Of 4,096 tokens a micro batch 32 parts; norms of a stack without TransformerEngine are torch's."""
    text = f"{MEGATRON}{STACK.format('gdn_hybrid_stack_spec_no_te')}      fused_ce_mode: 1\n      num_layers: 4\n"
    recipe = read(tmp_path, "megatron", "zebra_llama_1B_gdn_pure", text)
    assert recipe.options["cross_entropy_chunk_tokens"] == "128"
    assert recipe.options["fused_rms_norm"] == "false"
    assert (recipe.model_fields["num_hidden_layers"], recipe.model_fields["vocab_size"]) == (4, 128256)
