"""NeMo and Megatron-Bridge: values that refer to others, sections, adapters and keys that are not read."""

from pathlib import Path

import pytest

from simulator.answers.gates import Gates
from simulator.question.question import question_of
from simulator.question.recipe import Recipe
from simulator.recipes.check.judge import check_recipe
from simulator.recipes.readers.read import read_recipe
from tests.recipes.seeds import about, rules

SHAPE = """  num_layers: 32
  hidden_size: 4096
  ffn_hidden_size: 14336
  num_attention_heads: 32
  num_query_groups: 8
  activation: swiglu
  vocab_size: 128256
  share_embeddings_and_output_weights: false
"""
TEXT = f"""trainer: {{devices: 8, num_nodes: 2, precision: bf16-mixed}}
model:
  tensor_model_parallel_size: TP
  sequence_parallel: true
  encoder_seq_length: 4096
  micro_batch_size: 1
  global_batch_size: 128
{SHAPE}"""


def read(text: str, folder: Path, **settings: str) -> Recipe:
    file = folder / "x.yaml"
    file.write_text(text, encoding="utf-8")
    (recipe,) = read_recipe(file, settings)
    return recipe


def affected(recipe: Recipe) -> dict[str, tuple[str, ...]]:
    return {unknown.name: unknown.affects for unknown in recipe.unknowns if unknown.affects}


@pytest.mark.parametrize(
    ("value", "more"),
    [
        ("${par.tp}", "par: {tp: 4}"),
        ("${.other}", "  other: 4"),
        ("${..par.tp}", "par: {tp: 4}"),
        ("${model.other}", "  other: ${par.tp}\npar: {tp: 4}"),
        ("${multiply:2,${par.half}}", "par: {half: 2}"),
        ("${oc.env:TP,4}", ""),
        ("${oc.decode:${oc.env:TP,4}}", ""),
        ("${floor_div:${multiply:3,${par.half}},${oc.decode:2}}", "par: {half: 3}"),
        ("${oc.env:TP,${par.tp}}", "par: {tp: 4}"),
        ("4", ""),
    ],
)
def test_values_that_refer_to_others(value: str, more: str, tmp_path: Path) -> None:
    text = TEXT.replace(": TP", f': "{value}"')
    recipe = read(f"{text}{more}\n", tmp_path)
    assert recipe.layout is not None
    assert recipe.layout.tensor_parallel == 4
    assert recipe.unknowns == ()
    assert rules(recipe) == ({"assumed-unset"} if "oc.env" in value else set())
    assert recipe.places["tp"].line == 3


@pytest.mark.parametrize(
    ("value", "name"),
    [
        ("${oc.env:SIZE}", "SIZE"),
        ("${par.tp}", "${par.tp}"),
        ("${.tensor_model_parallel_size}", "${.tensor_model_parallel_size}"),
        ("${custom:4}", "${custom:4}"),
        ("???", "model.tensor_model_parallel_size"),
    ],
)
def test_values_that_only_the_run_knows(value: str, name: str, tmp_path: Path) -> None:
    text = TEXT.replace(": TP", f': "{value}"')
    recipe = read(text, tmp_path)
    assert affected(recipe) == {name: ("tp",)}
    assert recipe.layout is None
    recipe = read(text, tmp_path, **{name: "2"})
    assert recipe.layout is not None
    assert recipe.layout.tensor_parallel == 2
    assert "unused-setting" not in rules(recipe)


def test_other_settings_that_only_the_run_knows(tmp_path: Path) -> None:
    text = TEXT.replace("TP", "1").replace("devices: 8", "devices: '${oc.env:N}'")
    text = text.replace("bf16-mixed", "'${oc.env:P}'").replace("size: 128\n", "size: ${oc.env:GBS}\n")
    recipe = read(text.replace("parallel: true", "parallel: ${oc.env:SP}"), tmp_path)
    assert affected(recipe) == {
        "N": ("devices_per_node",),
        "P": ("precision",),
        "GBS": ("global_batch_size",),
        "SP": ("sequence_parallel",),
    }
    assert (recipe.devices_per_node, recipe.precision, recipe.global_batch_size) == (None, None, None)


def test_the_models_own_keys_count(tmp_path: Path) -> None:
    more = """  vision: {num_layers: 24, hidden_size: 1024}
  data:
    seq_length: 128
    validation_ds: {micro_batch_size: 8, global_batch_size: 8}
data: {seq_length: 256, micro_batch_size: 4}
"""
    plain, found = read(TEXT.replace("TP", "2"), tmp_path), read(TEXT.replace("TP", "2") + more, tmp_path)
    assert found.model == plain.model == "llama3-8b"
    assert (found.layout, found.seq_length, found.global_batch_size) == (plain.layout, 4096, 128)
    assert about(found, "not-modelled") == ["vision: a second model beside the one that is trained is not modelled"]


@pytest.mark.parametrize(
    ("more", "rank"),
    [
        ("  peft:\n    peft_scheme: lora\n    lora_tuning: {adapter_dim: 16}\n", 16),
        ("  peft:\n    peft_scheme: lora\n", 32),
        ("  peft:\n    peft_scheme: null\n    lora_tuning: {adapter_dim: 16}\n", None),
        ("peft:\n  _target_: megatron.bridge.peft.lora.LoRA\n  dim: 8\n", 8),
        ("peft:\n  _target_: megatron.bridge.peft.lora.LoRA\n", 32),
    ],
)
def test_adapters(more: str, rank: int | None, tmp_path: Path) -> None:
    recipe = read(TEXT.replace("TP", "2") + more, tmp_path)
    assert recipe.lora_rank == rank
    assert rules(recipe) == set()


def test_other_adapters_are_not_modelled(tmp_path: Path) -> None:
    recipe = read(f"{TEXT.replace('TP', '2')}  peft: {{peft_scheme: ptuning}}\n", tmp_path)
    (remark,) = recipe.remarks
    assert (remark.rule, remark.severity, remark.place and remark.place.line) == ("not-modelled", "error", 16)


def test_keys_that_stand_for_flags_of_ascends_stack_do_not_make_it_that_stack(tmp_path: Path) -> None:
    recipe = read(TEXT.replace("TP", "2").replace("activation: swiglu", "activation: geglu"), tmp_path)
    assert recipe.stack is None
    assert "loss_bytes_per_logit" not in recipe.options


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ("  mm_cfg: {llm: {freeze: true}, vision_encoder: {patch_dim: 14}}\n", "vision encoder"),
        ("  vision: {img_h: 224}\n  text: {max_positions: 77}\n  local_loss: true\n", "an encoder of images"),
        ("  vision_pretraining_type: classify\n  patch_dim: 16\n", "a vision model"),
        ("  virtual_prompt_style: p-tuning\n  task_templates: []\n", "prompts or adapters"),
        ("actor: {trainer: {ppo: {discount_factor: 1.0}}}\n", "a model that generates"),
    ],
)
def test_other_runs_are_told_by_what_only_they_have(more: str, said: str, tmp_path: Path) -> None:
    recipe = read(TEXT.replace("TP", "2") + more, tmp_path)
    assert any(said in text for text in about(recipe, "not-modelled"))
    assert "unknown-flag" not in rules(recipe)
    assert check_recipe(recipe, question_of({"hardware": "h100-sxm-80g"}), Gates()).outcome == "not_modelled"


@pytest.mark.parametrize(
    ("kind", "options"),
    [("", {"score_head": "true", "sequences_per_sample": "2"}), ("regression", {"score_head": "true"})],
)
def test_a_reward_model_scores_pairs_unless_told_scores(kind: str, options: dict[str, str], tmp_path: Path) -> None:
    plain = read(TEXT.replace("TP", "2"), tmp_path)
    text = TEXT.replace("TP", "2").replace("trainer: {", "trainer: {rm: {max_epochs: 1}, ")
    recipe = read(text + (f"  reward_model_type: {kind}\n" if kind else ""), tmp_path)
    assert recipe.options == {**plain.options, **options}


def test_the_launcher_puts_a_file_below_its_group(tmp_path: Path) -> None:
    text = TEXT.replace("TP", "'${training.model.other}'") + "  other: 4\n"
    recipe = read(text, tmp_path)
    assert recipe.layout is not None
    assert recipe.layout.tensor_parallel == 4
    assert affected(recipe) == {}


def test_keys_that_are_not_read(tmp_path: Path) -> None:
    more = """  some_new_memory_switch: true
  another_offload: false
  init_method_std: 0.01
  fp8: true
  fp8_param: true
  optim: {name: adafactor, grad_sync_mode: true, lr: 1e-4, sched: {name: CosineAnnealing, warmup_steps: 5}}
  tokenizer: {library: x, vocab_file: y}
exp_manager: {new_parallel_thing: 4}
"""
    recipe = read(TEXT.replace("TP", "2") + more, tmp_path)
    assert sorted(remark.place.line for remark in recipe.remarks if remark.place) == [16, 21, 21]
    assert about(recipe, "unknown-flag") == [
        "model.some_new_memory_switch is not read; it may change memory or speed",
        "model.optim.grad_sync_mode is not read; it may change memory or speed",
    ]
    assert [text.partition(":")[0] for text in about(recipe, "not-modelled")] == [
        "optimizer adafactor is not priced; priced are adamw, sgd_momentum, lion, muon"
    ]
    assert recipe.options["fp8_param_gather"] == "true"


@pytest.mark.parametrize(
    ("target", "model"),
    [
        ("megatron.bridge.models.llama.llama_provider.Llama3ModelProvider8B", "llama3-8b"),
        ("megatron.bridge.models.llama.Llama31ModelProvider8B", "llama3.1-8b"),
        ("nemo.collections.llm.Llama3Config8B", "llama3-8b"),
        ("megatron.bridge.models.Qwen25ModelProvider7B", "qwen2.5-7b"),
        ("megatron.bridge.models.deepseek.DeepSeekV3ModelProvider", "deepseek-v3"),
    ],
)
def test_models_by_class(target: str, model: str, tmp_path: Path) -> None:
    text = f"model:\n  _target_: {target}\n  tensor_model_parallel_size: 2\nmixed_precision: bf16_mixed\n"
    recipe = read(text, tmp_path)
    assert recipe.model == model
    assert "not-modelled" not in rules(recipe)


def test_a_configuration_without_a_shape_lacks_no_flag(tmp_path: Path) -> None:
    recipe = read("model:\n  tensor_model_parallel_size: 2\n  _target_: my.OwnProvider\n", tmp_path)
    assert recipe.model is None
    assert "not-modelled" not in rules(recipe)


@pytest.mark.parametrize(
    ("more", "stage", "options"),
    [
        ("  optim: {name: mcore_distributed_optim, sched: {name: CosineAnnealing}}\n", 1, {}),
        ("  optim: {name: distributed_fused_adam}\n", 1, {}),
        ("  optim: {name: fused_adam}\n", 0, {}),
        ("  optim: {name: mcore_distributed_optim, grad_sync_dtype: bf16}\n", 1, {"gradient_dtype": "bf16"}),
        ("  megatron_amp_O2: false\n", 0, {"parameter_dtype": "fp32", "master_weights": "false"}),
    ],
)
def test_optimizers(more: str, stage: int, options: dict[str, str], tmp_path: Path) -> None:
    recipe = read(TEXT.replace("TP", "2") + more, tmp_path)
    assert recipe.layout is not None
    assert recipe.layout.zero_stage == stage
    assert options.items() <= recipe.options.items()
    assert rules(recipe) == set()


@pytest.mark.parametrize(
    ("more", "precision"),
    [
        ("  fp8: false\n  fp8_hybrid: true\n  fp8_params: true\n", "bf16"),
        ("  fp8: true\n  fp8_hybrid: true\n", "fp8"),
        ("  fp8: hybrid\n", "fp8"),
    ],
)
def test_fp8_is_on_where_its_own_key_is(more: str, precision: str, tmp_path: Path) -> None:
    recipe = read(TEXT.replace("TP", "2") + more, tmp_path)
    assert recipe.precision == precision
    assert rules(recipe) == set()


def test_vocabularies(tmp_path: Path) -> None:
    text = (
        TEXT.replace("TP", "2").replace("  vocab_size: 128256\n", "").replace("hidden_size: 4096", "hidden_size: 4608")
    )
    assert read(f"{text}  override_vocab_size: 51200\n", tmp_path).model_fields["vocab_size"] == 51200
    recipe = read(f"{text}  tokenizer: {{library: megatron, type: GPT2BPETokenizer}}\n", tmp_path)
    assert recipe.model_fields["vocab_size"] == 50432


def test_torch_fsdp_is_refused(tmp_path: Path) -> None:
    (remark,) = read(f"{TEXT.replace('TP', '2')}  fsdp: true\n", tmp_path).remarks
    assert (remark.rule, remark.severity, remark.place and remark.place.line) == ("not-modelled", "error", 16)


def test_the_launcher_of_nemo_1(tmp_path: Path) -> None:
    file = tmp_path / "run.sh"
    (tmp_path / "conf" / "training" / "llama").mkdir(parents=True)
    (tmp_path / "conf" / "training" / "llama" / "x.yaml").write_text(TEXT.replace("TP", "2"), encoding="utf-8")
    text = (
        "python3 main.py training=llama/x training.trainer.num_nodes=4 training.model.micro_batch_size=2 \\\n  +a=b\n"
    )
    file.write_text(text, encoding="utf-8")
    (recipe,) = read_recipe(file)
    assert recipe.layout is not None
    assert (recipe.nodes, recipe.layout.micro_batch_size, recipe.model) == (4, 2, "llama3-8b")


RESTORED = """run: {model_train_name: NAME}
trainer: {devices: 8, num_nodes: 1, precision: bf16}
model:
  tensor_model_parallel_size: 8
  sequence_parallel: true
  micro_batch_size: 1
  global_batch_size: 128
  restore_from_path: ${run.model_train_name}.nemo
  data: {train_ds: {max_seq_length: 2048}, validation_ds: {max_seq_length: 512}}
"""


def test_weights_that_are_restored_name_the_model(tmp_path: Path) -> None:
    recipe = read(RESTORED.replace("NAME", "mixtral_8x7b"), tmp_path)
    assert (recipe.model, recipe.seq_length) == ("mixtral-8x7b-v0.1", 2048)
    assert "activations-bound" in rules(recipe)
    # As where the flags give the experts: they are split over the tensor-parallel ranks.
    assert recipe.layout is not None
    assert recipe.layout.expert_tensor_parallel == 8
    dense = read(RESTORED.replace("NAME", "mistral_7b"), tmp_path)
    assert (dense.model, dense.layout and dense.layout.expert_tensor_parallel) == ("mistral-7b-v0.1", 1)
    for name in ("ours", "gpt3_sft", "mixtral_tuned"):  # a series is no model
        assert read(RESTORED.replace("NAME", name), tmp_path).model is None
    shaped = read(TEXT.replace(": TP", ": 4") + "run: {model_train_name: mistral_7b}\n", tmp_path)
    assert (shaped.model, shaped.seq_length) == ("llama3-8b", 4096)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ("name: megatron_t5_glue\n", "models with an encoder are not modelled (t5)"),
        ("name: megatron_bert\n", "models with an encoder are not modelled (bert)"),
        ("  num_soft_negatives: 0\n", "the retrieval model is not priced"),
        ("exp_manager: {name: gpt_1b_ppo_news}\n", "gpt_1b_ppo_news: training with a model that generates"),
        ("name: ilql-13b\n", "ilql-13b: training with a model that generates"),
    ],
)
def test_models_that_are_no_decoder(more: str, said: str, tmp_path: Path) -> None:
    text = RESTORED.replace("NAME", "mistral_7b")
    recipe = read(text + more if more[0] == " " else more + text, tmp_path)
    assert any(said in told for told in about(recipe, "not-modelled"))


BRIDGE = """train: {global_batch_size: 8, micro_batch_size: 1}
model:
  seq_length: 4096
  tensor_model_parallel_size: 1
"""


def test_a_file_laid_over_a_recipe_in_python_says_so(tmp_path: Path) -> None:
    assert "base-configuration" in rules(read(BRIDGE, tmp_path))
    target = "  _target_: megatron.bridge.models.llama.llama_provider.Llama3ModelProvider8B\n"
    for more in (target, "  num_layers: 2\n  hidden_size: 64\n"):
        assert "base-configuration" not in rules(read(BRIDGE + more, tmp_path))
    # NeMo restores what it names in a checkpoint: whole, with a model that only the run knows.
    assert "base-configuration" not in rules(read(RESTORED.replace("NAME", "ours"), tmp_path))
