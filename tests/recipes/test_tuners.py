"""What decides a sequence or a vocabulary, and what trains nothing: ms-swift, LLaMA-Factory, GPT-NeoX, torchtitan."""

from pathlib import Path
from typing import Any

import pytest

from simulator.errors import InputError, NoRecipeError
from simulator.question.frameworks.stacks import usual_profile
from simulator.question.recipe import Recipe
from simulator.recipes.readers.read import read_recipe

SWIFT = "NPROC_PER_NODE=8 PROGRAM sft --model Qwen/Qwen2.5-7B --dataset x --max_length 8192"
PREDICT = """model_name_or_path: meta-llama/Meta-Llama-3-8B-Instruct
stage: sft
do_predict: true
finetuning_type: lora
cutoff_len: 2048
"""
NEOX = """{
  "pipe_parallel_size": 1, "model_parallel_size": 2,
  "num_layers": 6, "hidden_size": 128, "num_attention_heads": 4,
  "seq_length": 2048, "max_position_embeddings": 2048, "pos_emb": "rotary", "no_weight_tying": true,
  "tokenizer_type": "HFTokenizer",
  "train_micro_batch_size_per_gpu": 4, "fp16": {"enabled": true}
}
"""


def read(folder: Path, name: str, text: str) -> Recipe:
    (folder / name).write_text(text, encoding="utf-8")
    (recipe,) = read_recipe(folder / name)
    return recipe


@pytest.mark.parametrize("program", ["swift", "megatron"])
def test_packed_samples_are_as_long_as_their_own_length_says(program: str, tmp_path: Path) -> None:
    plain = SWIFT.replace("PROGRAM", program)
    assert read(tmp_path, "x.sh", f"{plain} --packing true").seq_length == 8192
    assert read(tmp_path, "x.sh", f"{plain} --packing true --packing_length 16384").seq_length == 16384
    assert read(tmp_path, "x.sh", f"{plain} --packing_length 16384").seq_length == 8192


@pytest.mark.parametrize("program", ["swift", "megatron"])
def test_tasks_beside_the_next_token(program: str, tmp_path: Path) -> None:
    plain = SWIFT.replace("PROGRAM", program)
    assert "score_head" not in read(tmp_path, "x.sh", f"{plain} --task_type causal_lm").options
    scored = read(tmp_path, "x.sh", f"{plain} --task_type seq_cls --num_labels 2")
    assert scored.options["score_head"] == "true"
    for task in ("embedding", "reranker", "generative_reranker"):
        said = [
            one.message
            for one in read(tmp_path, "x.sh", f"{plain} --task_type {task}").remarks
            if one.severity == "error"
        ]
        assert said == [f"task_type {task}: samples of several texts, and their loss, are not modelled"]


@pytest.mark.parametrize("program", ["swift", "megatron"])
@pytest.mark.parametrize(
    ("words", "length"),
    [
        ("swift/self-cognition#1000", 256),
        ("swift/self-cognition:qwen3#9 AI-ModelScope/alpaca-gpt4-data-en", 1024),
        ("swift/self-cognition x", 8192),
        ("swift/self-cognition --packing true", 8192),
    ],
)
def test_samples_of_public_data_sets(program: str, words: str, length: int, tmp_path: Path) -> None:
    plain = SWIFT.replace("PROGRAM", program)
    assert read(tmp_path, "x.sh", plain.replace("--dataset x", f"--dataset {words}")).seq_length == length


def test_without_a_length_the_data_set_says_it(tmp_path: Path) -> None:
    plain = SWIFT.replace("PROGRAM", "swift").replace(" --max_length 8192", "")
    assert read(tmp_path, "x.sh", plain).seq_length is None
    assert read(tmp_path, "x.sh", plain.replace("--dataset x", "--dataset swift/self-cognition")).seq_length == 256


@pytest.mark.parametrize("program", ["swift", "megatron"])
@pytest.mark.parametrize(("dropped", "firm"), [("true", False), ("false", True)])
def test_names_that_a_release_drops(program: str, dropped: str, firm: bool, tmp_path: Path) -> None:
    """From ms-swift 4.1 on `--train_type lora` trains all weights, as an unknown name, where such errors are ignored
    (modelscope/ms-swift issue 9403: a buffer of all experts' weights, 26.44 GiB, is asked for)."""
    words = f"{SWIFT.replace('PROGRAM', program)} --train_type lora --ignore_args_error {dropped}"
    recipe = read(tmp_path, "x.sh", words)
    assert recipe.lora_rank == 8
    errors = [one.message for one in recipe.remarks if one.severity == "error"]
    assert any("--train_type from ms-swift 4.1 on" in each for each in errors) != firm


def test_what_is_trained_beside_frozen_weights(tmp_path: Path) -> None:
    plain = SWIFT.replace("PROGRAM", "swift")
    recipe = read(tmp_path, "x.sh", f"{plain} --tuner_type adapter --adapter_length 64")
    assert recipe.lora_rank == 64
    assert "upper-bound" in [remark.rule for remark in recipe.remarks]
    errors = [one.message for one in read(tmp_path, "x.sh", f"{plain} --tuner_type vera").remarks if one.fix == ""]
    assert "finetuning_type vera is not modelled" in errors


@pytest.mark.parametrize(("layers", "foreach"), [(2, "false"), (14, None), (0, None)])
def test_layers_that_are_trained_by_turns(layers: int, foreach: str | None, tmp_path: Path) -> None:
    """Of 28 layers and two tables a third of the parameters at most."""
    plain = SWIFT.replace("PROGRAM", "swift")
    recipe = read(tmp_path, "x.sh", f"{plain} --tuner_type full --lisa_activated_layers {layers}")
    assert recipe.options.get("foreach_optimizer") == foreach
    assert ("upper-bound" in [remark.rule for remark in recipe.remarks]) == bool(layers)


@pytest.mark.parametrize(("backend", "refused"), [("torchao", False), ("auto", False), ("te", True)])
def test_fp8_of_llamafactory(backend: str, refused: bool, tmp_path: Path) -> None:
    recipe = read(tmp_path, "x.yaml", f"{PREDICT}do_train: true\nbf16: true\nfp8: true\nfp8_backend: {backend}\n")
    assert recipe.precision == "fp8"
    assert any(one.severity == "error" and "fp8_backend te" in one.message for one in recipe.remarks) == refused


@pytest.mark.parametrize("on", ["true", "false"])
@pytest.mark.parametrize("loss", ["use_asft_loss", "use_eaft_loss"])
def test_losses_that_hold_more_than_logits_are_not_priced(loss: str, on: str, tmp_path: Path) -> None:
    """`run_sft` of LLaMA-Factory ff6d4d1 creates a reference model for ASFT; EAFT copies the logits that count."""
    recipe = read(tmp_path, "x.yaml", f"{PREDICT}do_train: true\nbf16: true\n{loss}: {on}\n")
    assert any(loss in one.message for one in recipe.remarks if one.severity == "error") == (on == "true")


def test_llamafactory_that_only_predicts_trains_nothing(tmp_path: Path) -> None:
    with pytest.raises(NoRecipeError, match=r"x.yaml: starts no training: do_predict without do_train"):
        read(tmp_path, "x.yaml", PREDICT)
    assert read(tmp_path, "x.yaml", f"{PREDICT}do_train: true\n").lora_rank == 8


def test_the_tokenizer_file_of_neox_tells_the_vocabulary(tmp_path: Path) -> None:
    assert "vocab_size" not in read(tmp_path, "x.yml", NEOX).model_fields
    named = NEOX.replace('"HFTokenizer",', '"HFTokenizer", "vocab-file": "/data/20B_tokenizer.json",')
    # 50277 entries, padded to 128 for each of two tensor-parallel ranks.
    assert read(tmp_path, "x.yml", named).model_fields["vocab_size"] == 50432


@pytest.mark.parametrize("on", ["true", "false"])
def test_room_is_left_for_fault_tolerance(on: str, tmp_path: Path) -> None:
    """Four fp32 numbers a parameter: 6 layers of 4 x 256 x 256 + 3 x 256 x 768, two tables of 2048, norms."""
    text = f'[model]\nname = "llama3"\nflavor = "debugmodel"\n[fault_tolerance]\nenable = {on}\nnum_fragments = 2\n'
    recipe = read(tmp_path, "x.toml", text)
    parameters = 6 * (4 * 256 * 256 + 3 * 256 * 768 + 2 * 256) + 2 * 2048 * 256 + 256
    assert recipe.unpriced_bytes == (16.0 * parameters if on == "true" else 0.0)
    assert not [remark for remark in recipe.remarks if remark.severity == "error"]


def test_torchtitan_programs_that_train_nothing(tmp_path: Path) -> None:
    launch = "torchrun --nproc_per_node=8 PROGRAM --job.config_file ../outside.toml"
    with pytest.raises(NoRecipeError, match=r"convert_hf_to_dcp_with_gpus.py converts"):
        read(tmp_path, "x.sh", launch.replace("PROGRAM", "convert_hf_to_dcp_with_gpus.py"))
    with pytest.raises(InputError, match="no such file beside"):
        read(tmp_path, "x.sh", launch.replace("PROGRAM", "torchtitan/train.py"))


AXOLOTL = """base_model: meta-llama/Llama-3.1-8B
datasets: [{path: x, type: alpaca}]
sequence_len: 4096
sample_packing: true
micro_batch_size: 2
gradient_accumulation_steps: 4
bf16: auto
optimizer: adamw_torch_fused
learning_rate: 2e-5
attn_implementation: flash_attention_2
"""
QLORA = "adapter: qlora\nload_in_4bit: true\nlora_r: 32\nlora_target_linear: true\n"
TUNE = """model: {_component_: torchtune.models.llama3_1.lora_llama3_1_8b, lora_rank: 16}
tokenizer: {_component_: torchtune.models.llama3.llama3_tokenizer, max_seq_len: 2048}
optimizer: {_component_: torch.optim.AdamW, fused: true}
batch_size: 2
dtype: bf16
"""


@pytest.mark.parametrize(
    ("words", "rank", "options", "layout"),
    [
        ("", None, {"parameter_dtype": "bf16", "optimizer_dtype": "bf16"}, (0, "none")),
        (
            QLORA,
            32,
            {"quantised_base": "true", "quantised_scale_bytes": str(1 + 4 / 256), "widened_rest": "false"},
            (0, "none"),
        ),
        (
            f"{QLORA}fsdp_version: 2\nfsdp_config: {{offload_params: false}}\n",
            32,
            {"quantised_base": "true"},
            (3, "none"),
        ),
        ("fsdp: [auto_wrap, full_shard]\nfsdp_config: {fsdp_activation_checkpointing: true}\n", None, {}, (3, "full")),
        ("fsdp_config: {reshard_after_forward: false}\ngradient_checkpointing: true\n", None, {}, (2, "full")),
        (
            "fsdp_version: 2\nfsdp_config: {state_dict_type: FULL_STATE_DICT}\n",
            None,
            {"saves_on_host": "state"},
            (3, "none"),
        ),
        ("rl: ipo\n", None, {"frozen_reference": "true", "sequences_per_sample": "2"}, (0, "none")),
        ("reward_model: true\n", None, {"score_head": "true"}, (0, "none")),
    ],
)
def test_the_words_of_axolotl(
    words: str, rank: int | None, options: dict[str, str], layout: tuple[int, str], tmp_path: Path
) -> None:
    recipe = read(tmp_path, "x.yml", AXOLOTL + words)
    assert recipe.layout is not None
    assert (recipe.model, recipe.seq_length, recipe.gradient_accumulation_steps) == ("llama3.1-8b", 4096, 4)
    assert (recipe.layout.zero_stage, recipe.layout.recompute) == layout
    assert recipe.layout.micro_batch_size == 2
    assert recipe.lora_rank == rank
    assert options.items() <= recipe.options.items()
    assert not [remark for remark in recipe.remarks if remark.severity == "error"]


@pytest.mark.parametrize(
    ("builder", "tables"),
    [
        # torchtune bd2a0fc: qwen2/_component_builders.py, `lora_qwen2_self_attention`, two halves of one width each;
        # llama3_1's layers share one module.
        ("qwen2_5.lora_qwen2_5_7b_base", 28 * 2 * 131072),
        ("mistral.qlora_mistral_7b", 32 * 32768),
        ("llama3_1.lora_llama3_1_8b", None),
        ("qwen2_5.qwen2_5_7b_base", None),
    ],
)
def test_layers_with_adapters_build_their_own_rotary_tables(builder: str, tables: int | None, tmp_path: Path) -> None:
    recipe = read(tmp_path, "x_single_device.yaml", TUNE.replace("llama3_1.lora_llama3_1_8b", builder))
    assert recipe.options.get("rotary_tables") == (None if tables is None else str(tables))
    if "qlora" in builder:
        assert recipe.options["quantised_scale_bytes"] == "1.015625"


def test_which_layers_of_torchtune_have_adapters(tmp_path: Path) -> None:
    """bd2a0fc: 104 of its configurations have the list of three, and the network."""
    three = ", lora_attn_modules: [q_proj, v_proj, output_proj], apply_lora_to_mlp: true"
    for text, targets in (
        ("", "attention"),
        (", apply_lora_to_mlp: true", "all"),
        (three, "q+v+o+gate+up+down"),
        (f"{three}, apply_lora_to_output: true", "q+v+o+gate+up+down+head"),
        (", lora_attn_modules: ['q_proj', 'k_proj']", "q+k"),
    ):
        recipe = read(tmp_path, "x.yaml", TUNE.replace("lora_rank: 16", f"lora_rank: 16{text}"))
        assert recipe.options["adapter_targets"] == targets


def test_gemma_2_in_torchtune_has_no_flash_kernel(tmp_path: Path) -> None:
    """bd2a0fc, gemma2/_attention.py: 8 bytes a score, of tanh, the softmax in fp32 and its 16-bit copy."""
    recipe = read(tmp_path, "x.yaml", TUNE.replace("llama3_1.lora_llama3_1_8b", "gemma2.lora_gemma2_9b"))
    assert (recipe.options["flash_attention"], recipe.options["attention_matrix_bytes"]) == ("false", "6")


def test_adapters_by_trl_s_own_defaults(tmp_path: Path) -> None:
    """TRL v1.9.0, trainer/model_config.py: rank 16 of what peft takes."""
    text = "model_name_or_path: Qwen/Qwen3-8B\nuse_peft: true\nper_device_train_batch_size: 1\n"
    recipe = read(tmp_path, "sft.yaml", text)
    assert (recipe.lora_rank, recipe.options["adapter_targets"]) == (16, "query_value")
    named = read(tmp_path, "sft.yaml", f"{text}lora_target_modules: all-linear\n")
    assert named.options["adapter_targets"] == "all"


@pytest.mark.parametrize(("name", "four_bits"), [("llama-3.1-8b-bnb-4bit", True), ("llama-3.1-8b", False)])
def test_a_checkpoint_of_four_bits_is_loaded_as_it_is_stored(name: str, four_bits: bool, tmp_path: Path) -> None:
    words = AXOLOTL.replace("meta-llama/Llama-3.1-8B", f"unsloth/{name}")
    recipe = read(tmp_path, "x.yml", f"{words}adapter: lora\nlora_r: 32\n")
    assert recipe.model == "llama3.1-8b"
    assert ("quantised_base" in recipe.options) == four_bits
    assert recipe.options.get("quantised_scale_bytes") == (str(1 + 4 / 256) if four_bits else None)
    whole = [remark.message for remark in read(tmp_path, "x.yml", words).remarks if remark.severity == "error"]
    assert whole == (["quantized weights are not modelled"] if four_bits else [])
    mixed = read(tmp_path, "x.yml", words.replace(name, "llama-3.1-8b-unsloth-bnb-4bit"))
    assert any("quantized weights are not modelled" in remark.message for remark in mixed.remarks)


@pytest.mark.parametrize(
    ("name", "stage", "offload"),
    [("zero1", 1, False), ("zero2", 2, True), ("zero3_bf16", 3, False), ("zero3_bf16_cpuoffload_all", 3, True)],
)
def test_the_deepspeed_configurations_that_axolotl_ships(name: str, stage: int, offload: bool, tmp_path: Path) -> None:
    recipe = read(tmp_path, "x.yml", f"{AXOLOTL}deepspeed: /workspace/axolotl/deepspeed_configs/{name}.json\n")
    assert recipe.layout is not None
    assert recipe.layout.zero_stage == stage
    assert (recipe.layout.offload != "none") == offload
    assert "base-configuration" in {remark.rule for remark in recipe.remarks}
    (tmp_path / "deepspeed_configs").mkdir()
    (tmp_path / "deepspeed_configs" / f"{name}.json").write_text('{"zero_optimization": {"stage": 1}}')
    own = read(tmp_path, "y.yml", f"{AXOLOTL}deepspeed: deepspeed_configs/{name}.json\n")
    assert own.layout is not None
    assert (own.layout.zero_stage, own.layout.offload) == (1, "none")
    for other in ("deepspeed_configs/ours.json", "configs/zero3.json"):
        with pytest.raises(InputError, match="no such file beside"):
            read(tmp_path, "z.yml", f"{AXOLOTL}deepspeed: {other}\n")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("rl: grpo\n", "grpo: training with a model that generates"),
        ("plugins: [axolotl.integrations.kd.KDPlugin]\n", "plugin axolotl.integrations.kd.KDPlugin"),
        ("load_in_8bit: true\n", "quantized weights"),
        ("flash_attention: false\nattn_implementation: sdpa\n", "embeddings and norms in fp32"),
        ("context_parallel_size: 2\n", "context_parallel_size"),
        ("tune_what: 2\n", "tune_what is not read"),
        ("use_eaft: true\n", "use_eaft: a copy of the logits"),
        ("rl: dpo\ndpo_use_weighting: true\n", "dpo_use_weighting: a copy of the logits"),
    ],
)
def test_words_of_axolotl_that_are_not_priced(words: str, said: str, tmp_path: Path) -> None:
    text = AXOLOTL.replace("attn_implementation: flash_attention_2\n", "") if "sdpa" in words else AXOLOTL
    remarks = read(tmp_path, "x.yml", text + words).remarks
    assert any(said in remark.message for remark in remarks if remark.severity == "error")


@pytest.mark.parametrize(
    ("words", "early"),
    [("", "false"), ("gradient_checkpointing_kwargs:\n  use_reentrant: false\n", "true")],
)
def test_a_base_of_8_bits_has_the_checkpoints_of_its_tuner(words: str, early: str, tmp_path: Path) -> None:
    text = f"{AXOLOTL}load_in_8bit: true\nadapter: lora\ngradient_checkpointing: true\n{words}"
    options = read(tmp_path, "x.yml", text).options
    expected = {
        "quantised_base": "true",
        "quantised_bits": "8",
        "recompute_stops_early": early,
        "widened_rest": "false",
    }
    assert expected.items() <= options.items()


@pytest.mark.parametrize(("engine", "early"), [("", None), ("--deepspeed ds.json", "false")])
def test_checkpoints_of_swift_follow_its_engine(engine: str, early: str | None, tmp_path: Path) -> None:
    """ms-swift 3602360, trainers/mixin.py, `_fix_gradient_checkpointing`: plain ranks have no reentrant ones."""
    (tmp_path / "ds.json").write_text('{"zero_optimization": {"stage": 0}, "bf16": {"enabled": true}}', "utf-8")
    words = "swift sft --model Qwen/Qwen2.5-7B --tuner_type lora --quant_method bnb --quant_bits 8"
    run = read(tmp_path, "run.sh", f"{words} --gradient_checkpointing true {engine}\n")
    assert run.options.get("recompute_stops_early") == early


@pytest.mark.parametrize(("hardware", "kernel"), [("t4", "math"), ("v100-sxm-32g", "math"), ("rtx-4090", "sdpa")])
def test_a_file_has_the_attention_of_its_device(hardware: str, kernel: str, tmp_path: Path) -> None:
    """A trainer's layers are the library's, whose kernels depend on the device as where `--stack` names it."""
    words = "stage: sft\nfinetuning_type: lora\nlora_target: all\ndisable_gradient_checkpointing: true\nfp16: true\n"
    text = f"model_name_or_path: meta-llama/Llama-3.2-1B\ncutoff_len: 2048\nper_device_train_batch_size: 1\n{words}"
    run = read(tmp_path, "x.yaml", text)
    case: Any = ("llama3.2-1b", hardware, "fp16", "llama", "silu")
    family = {"t4": "turing", "v100-sxm-32g": "volta", "rtx-4090": "ada"}[hardware]
    profiles = (
        usual_profile("torch", options, stack, (), case, ("nvidia", family), adapters=True)
        for options, stack in ((run.options, None), ({}, "transformers"))
    )
    assert [profile.attention_kernel for profile in profiles] == [kernel, kernel]


@pytest.mark.parametrize(
    ("words", "bounds"),
    [
        ("plugins: [axolotl.integrations.cut_cross_entropy.CutCrossEntropyPlugin]\n", True),
        ("cut_cross_entropy: true\n", True),
        ("plugins: [axolotl.integrations.cut_cross_entropy.CutCrossEntropyPlugin]\ncut_cross_entropy: false\n", False),
        ("", False),
    ],
)
def test_a_plugin_of_axolotl_turns_its_kernel_on(words: str, bounds: bool, tmp_path: Path) -> None:
    """`CutCrossEntropyArgs` of axolotl 067b021c8: on where the plugin is named, which leaves no logits."""
    remarks = read(tmp_path, "x.yml", AXOLOTL + words).remarks
    assert any(one.rule == "activations-bound" and "cut_cross" in one.message for one in remarks) == bounds


@pytest.mark.parametrize("wide", ["true", "false"])
def test_weights_of_4_bits_that_are_loaded_in_16(wide: str, tmp_path: Path) -> None:
    words = f"model_quantization_config: Mxfp4Config\nmodel_quantization_config_kwargs: {{dequantize: {wide}}}\n"
    errors = [one.message for one in read(tmp_path, "x.yml", AXOLOTL + words).remarks if one.severity == "error"]
    assert any("quantized weights" in message for message in errors) == (wide == "false")


@pytest.mark.parametrize(
    ("command", "nodes", "devices", "sequence", "zero"),
    [
        ("axolotl train x.yml --sequence-len 1024", 1, None, 1024, 0),
        ("accelerate launch --num_processes 4 -m axolotl.cli.train x.yml", 1, 4, 4096, 0),
        (
            "tune run --nnodes 2 --nproc_per_node 8 lora_finetune_distributed --config t.yaml batch_size=2",
            2,
            8,
            2048,
            3,
        ),
        ("tune run lora_finetune_single_device --config t.yaml tokenizer.max_seq_len=512", 1, 1, 512, 0),
        ("trl sft --model_name_or_path Qwen/Qwen2.5-7B --bf16 --accelerate_config zero2", 1, 8, 1024, 2),
        (
            "trl sft --model_name_or_path Qwen/Qwen2.5-7B --bf16 --accelerate_config fsdp1 --num_processes 4",
            1,
            4,
            1024,
            3,
        ),
        ("python -m trl.scripts.sft --model_name_or_path Qwen/Qwen2.5-7B --bf16 --max_length 512", 1, 1, 512, 0),
    ],
)
def test_commands_of_tuners(  # noqa: PLR0917  what a command says
    command: str, nodes: int, devices: int | None, sequence: int, zero: int, tmp_path: Path
) -> None:
    (tmp_path / "x.yml").write_text(AXOLOTL, encoding="utf-8")
    (tmp_path / "t.yaml").write_text(TUNE, encoding="utf-8")
    recipe = read(tmp_path, "x.sh", command)
    assert recipe.layout is not None
    assert (recipe.nodes, recipe.devices_per_node) == (nodes, devices)
    assert (recipe.seq_length, recipe.layout.zero_stage) == (sequence, zero)


@pytest.mark.parametrize(
    ("command", "adapters", "dropout"),
    [
        ("trl sft", " --use_peft", "before"),
        ("accelerate launch trl/scripts/sft.py", " --use_peft", "before"),
        ("accelerate launch open_instruct/finetune.py", " --use_lora --lora_rank 16", "before"),
    ],
)
def test_the_usual_dropout_of_adapters_makes_no_adapters(
    command: str, adapters: str, dropout: str, tmp_path: Path
) -> None:
    launch = f"{command} --model_name_or_path Qwen/Qwen2.5-7B --max_length 512 --per_device_train_batch_size 1"
    whole = read(tmp_path, "x.sh", launch)
    assert whole.lora_rank is None
    assert not [remark for remark in whole.remarks if "adapters" in remark.message]
    assert read(tmp_path, "x.sh", launch + adapters).options["adapter_dropout"] == dropout
    assert read(tmp_path, "x.sh", f"{launch}{adapters} --lora_dropout 0").options["adapter_dropout"] == "none"


FOUNDRY = """variables: {max_seq_len: 2048}
max_seq_len: ${variables.max_seq_len}
model: {name: mpt_causal_lm, d_model: 4096, n_heads: 32, n_layers: 32, attn_config: {attn_impl: flash}}
train_loader: {name: text, dataset: {max_seq_len: "${variables.max_seq_len}"}}
optimizer: {name: decoupled_adamw, lr: 1.2e-4}
max_duration: 10ba
global_train_batch_size: 1024
device_train_microbatch_size: 8
precision: amp_bf16
fsdp_config: {sharding_strategy: FULL_SHARD, mixed_precision: PURE, activation_checkpointing: true}
"""


def test_the_network_that_llm_foundry_spells(tmp_path: Path) -> None:
    recipe = read(tmp_path, "x.yaml", FOUNDRY)
    shape = recipe.model_fields
    assert (shape["intermediate_size"], shape["learned_positions"], shape["tie_word_embeddings"]) == (16384, 2048, True)
    assert (recipe.seq_length, recipe.global_batch_size, recipe.precision) == (2048, 1024, "bf16")
    assert recipe.layout is not None
    assert (recipe.layout.micro_batch_size, recipe.layout.zero_stage, recipe.layout.recompute) == (8, 3, "full")
    assert not [remark for remark in recipe.remarks if remark.severity == "error"]
    alibi = read(
        tmp_path, "x.yaml", FOUNDRY.replace("attn_impl: flash", "alibi: true").replace("FULL_SHARD", "NO_SHARD")
    )
    assert alibi.layout is not None
    assert (alibi.model_fields["learned_positions"], alibi.layout.zero_stage) == (0, 0)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (
            "device_train_microbatch_size: 8",
            "device_train_microbatch_size: auto",
            "a micro batch that the trainer chooses",
        ),
        ("name: mpt_causal_lm", "name: hf_t5", "model hf_t5"),
        ("max_duration: 10ba", "max_duration: 10ba\nalgorithms: {alibi: {max_sequence_length: 8}}", "this algorithm"),
        ("FULL_SHARD", "HYBRID_SHARD", "sharding_strategy hybrid_shard"),
    ],
)
def test_words_of_llm_foundry_that_are_not_priced(old: str, new: str, said: str, tmp_path: Path) -> None:
    remarks = read(tmp_path, "x.yaml", FOUNDRY.replace(old, new)).remarks
    assert any(said in remark.message for remark in remarks if remark.severity == "error")


def test_machines_of_llm_foundry(tmp_path: Path) -> None:
    platform = "compute: {gpus: 16}\nparameters:\n" + "".join(f"  {line}\n" for line in FOUNDRY.splitlines())
    recipe = read(tmp_path, "x.yaml", platform)
    assert recipe.layout is not None
    assert (recipe.layout.data_parallel, recipe.seq_length) == (16, 2048)
    read(tmp_path, "m.yaml", FOUNDRY)
    started = read(tmp_path, "x.sh", "composer -n 4 train/train.py m.yaml global_train_batch_size=64 max_seq_len=512")
    assert (started.devices_per_node, started.global_batch_size, started.seq_length) == (4, 64, 512)


def test_placeholders_that_bash_takes_for_redirections(tmp_path: Path) -> None:
    launch = "torchrun --master_addr <master_ip> --master_port <port> --nproc_per_node 4 \\\n  sft.py --config x.yaml"
    (tmp_path / "x.yaml").write_text("model_name_or_path: Qwen/Qwen2.5-7B\nper_device_train_batch_size: 1\n", "utf-8")
    assert read(tmp_path, "x.sh", f"{launch}\n").devices_per_node == 4


@pytest.mark.parametrize(
    ("file", "text", "line"),
    [
        (
            *("x.yaml", f"{PREDICT}do_train: true\nbf16: true\nper_device_train_batch_size: 1\n"),
            "llamafactory-cli train x.yaml per_device_train_batch_size=$SIZE",
        ),
        ("recipes/configs/x.yaml", TUNE, "tune run full_finetune_distributed --config x batch_size=$SIZE"),
    ],
)
def test_an_unknown_value_that_replaces_a_key_is_asked_for(file: str, text: str, line: str, tmp_path: Path) -> None:
    (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / file).write_text(text, encoding="utf-8")
    recipe = read(tmp_path, "x.sh", line)
    assert [(unknown.name, unknown.affects) for unknown in recipe.unknowns] == [("SIZE", ("micro_batch_size",))]
    assert recipe.layout is None
    known = read(tmp_path, "x.sh", line.replace("$SIZE", "16"))
    assert known.layout is not None
    assert known.layout.micro_batch_size == 16


@pytest.mark.parametrize(
    ("launcher", "machines"),
    [
        ("accelerate launch --config_file fsdp2.json", (1, 2)),
        ("torchrun --nnodes=2 --nproc_per_node=4", (2, 4)),
        ("deepspeed --num_gpus 2", (1, 2)),
        ("python", (1, 1)),
    ],
)
def test_the_program_of_swift_under_other_launchers(launcher: str, machines: tuple[int, int], tmp_path: Path) -> None:
    """modelscope/ms-swift 3602360, examples/train/multi-gpu/fsdp2_lora and multi-node: `swift/cli/sft.py` by itself."""
    sharded = '{"distributed_type": "FSDP", "mixed_precision": "bf16", "num_machines": 1, "num_processes": 2, '
    sharded += '"fsdp_config": {"fsdp_version": 2, "fsdp_activation_checkpointing": true}}'
    (tmp_path / "fsdp2.json").write_text(sharded, encoding="utf-8")
    words = "--model Qwen/Qwen2.5-7B --tuner_type lora --gradient_checkpointing false --max_length 2048 --dataset x"
    recipe = read(tmp_path, "x.sh", f"{launcher} swift/cli/sft.py {words} --gradient_accumulation_steps 8")
    assert recipe.layout is not None
    assert (recipe.model, recipe.lora_rank, recipe.gradient_accumulation_steps) == ("qwen2.5-7b", 8, 8)
    assert (recipe.nodes, recipe.devices_per_node) == machines
    by_accelerate = launcher.startswith("accelerate")
    assert (recipe.layout.zero_stage, recipe.layout.recompute) == ((3, "full") if by_accelerate else (0, "none"))


_TUNED = {
    "additional_target": PREDICT.replace("do_predict", "bf16") + "per_device_train_batch_size: 1\n",
    "lora_modules_to_save": "base_model: meta-llama/Llama-3.1-8B\nsequence_len: 2048\nmicro_batch_size: 1\n"
    "gradient_accumulation_steps: 1\noptimizer: adamw_torch\nadapter: lora\nlora_r: 8\nbf16: true\n",
    "modules_to_save": "model_name_or_path: meta-llama/Llama-3.1-8B\nbf16: true\nper_device_train_batch_size: 1\n"
    "max_length: 2048\nuse_peft: true\nlora_r: 8\n",
}


@pytest.mark.parametrize("value", ["[embed_tokens, {a: b}]", "[{embed_tokens: 1}]", "[[{a: b}]]", "[null, lm_head]"])
@pytest.mark.parametrize("name", _TUNED)
def test_a_list_of_modules_with_what_is_no_name_is_refused(name: str, value: str, tmp_path: Path) -> None:
    recipe = read(tmp_path, "x.yaml", f"{_TUNED[name]}{name}: {value}\n")
    refused = [remark for remark in recipe.remarks if "modules beside adapters are not read" in remark.message]
    assert [(each.severity, each.place and each.place.line) for each in refused] == [
        ("error", _TUNED[name].count("\n") + 1)
    ]


def test_parameters_that_are_named_have_adapters_of_experts(tmp_path: Path) -> None:
    """peft 0.21, `target_parameters`; all-linear alone passes over gpt-oss's experts."""
    text = "model_name_or_path: openai/gpt-oss-20b\nuse_peft: true\nper_device_train_batch_size: 1\n"
    text += "lora_target_modules: [q_proj, o_proj]\n"
    plain = read(tmp_path, "sft.yaml", text)
    assert (plain.options["adapter_targets"], plain.options["expert_adapters"]) == ("q+o", "false")
    named = f"{text}lora_target_parameters: [mlp.experts.gate_up_proj, mlp.experts.down_proj]\n"
    adapted = read(tmp_path, "sft.yaml", named)
    assert (adapted.options["adapter_targets"], adapted.options["expert_adapters"]) == ("q+o+gate+up+down", "true")


SEVEN = "q+k+v+o+gate+up+down"


@pytest.mark.parametrize(
    ("layers", "targets", "remarked"),
    [
        ("all-linear", "all", False),
        ("[q_proj, v_proj]", "q+v", False),
        ("[q_proj, k_proj, v_proj, o_proj]", "q+k+v+o", False),
        ("[q_proj, k_proj, v_proj]", "q+k+v", False),
        ("[down_proj, q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj]", SEVEN, False),
        ("[q_proj, lm_head]", "all", True),
        ("[query_key_value]", "q+k+v", False),
        ("[c_attn]", "q+k+v", False),
        ("[c_attn, c_proj, c_fc]", SEVEN, False),
        ("[W_pack, o_proj]", "q+k+v+o", False),
        ("[query_key_value, dense, dense_h_to_4h, dense_4h_to_h]", SEVEN, False),
        ("[q_proj, k_proj, v_proj, dense, fc1, fc2]", SEVEN, False),
        ("[q_proj, k_proj, v_proj, out_proj, fc_in, fc_out]", SEVEN, False),
        ("'model.layers.[\\d]+.(mlp|self_attn).(up|down|gate|q|k|v|o)_proj'", SEVEN, False),
        ("'model.layers.[\\d]+.self_attn.(q|k|v|o)_proj'", "q+k+v+o", False),
        ("'.*.layers.(3|7).self_attn.(q|k|v|o)_proj'", "all", True),
    ],
)
def test_adapters_are_where_a_list_of_layers_has_them(
    layers: str, targets: str, remarked: bool, tmp_path: Path
) -> None:
    text = "model_name_or_path: Qwen/Qwen3-8B\nuse_peft: true\nper_device_train_batch_size: 1\n"
    recipe = read(tmp_path, "sft.yaml", f"{text}lora_target_modules: {layers}\n")
    assert recipe.options["adapter_targets"] == targets
    assert any(remark.message.startswith("layers with") for remark in recipe.remarks) == remarked
