"""Trainers on Hugging Face's stack and PyTorch's own: TRL, accelerate, torchtune, oumi, OLMo, open-instruct."""

from pathlib import Path

import pytest

from simulator.answers.gates import Gates
from simulator.errors import InputError, NoRecipeError, UndecidedError, UnsupportedError
from simulator.question.question import question_of
from simulator.question.recipe import Recipe
from simulator.recipes.check.judge import check_files
from simulator.recipes.readers.read import read_recipe

TRL = """model_name_or_path: meta-llama/Llama-3.1-8B
torch_dtype: bfloat16
bf16: true
per_device_train_batch_size: 2
gradient_accumulation_steps: 4
gradient_checkpointing: true
max_length: 2048
hub_model_id: mine
push_to_hub: true
log_level: info
eval_strategy: epoch
"""
FSDP = """distributed_type: FSDP
mixed_precision: bf16
num_machines: 2
num_processes: 16
fsdp_config: {fsdp_sharding_strategy: SHARDS, fsdp_offload_params: false}
"""
ENGINE = """distributed_type: DEEPSPEED
mixed_precision: bf16
num_machines: 1
num_processes: 8
deepspeed_config: {zero_stage: 3, offload_optimizer_device: cpu, offload_param_device: none}
"""
TUNE = """tokenizer: {_component_: torchtune.models.llama3.llama3_tokenizer, max_seq_len: 4096}
model: {_component_: torchtune.models.llama3_1.llama3_1_8b}
dataset: {_component_: torchtune.datasets.alpaca_dataset, packed: true}
optimizer: {_component_: torch.optim.AdamW, lr: 1, fused: true}
loss: {_component_: torchtune.modules.loss.LinearCrossEntropyLoss}
batch_size: 2
gradient_accumulation_steps: 8
enable_activation_checkpointing: true
dtype: bf16
log_level: INFO
"""
OUMI = """model: {model_name: meta-llama/Llama-3.1-8B-Instruct, model_max_length: 4096, torch_dtype_str: bfloat16}
data: {train: {datasets: [{dataset_name: x}], pack: true}}
training:
  trainer_type: TRL_SFT
  per_device_train_batch_size: 2
  gradient_accumulation_steps: 8
  enable_gradient_checkpointing: true
  optimizer: adamw_torch_fused
fsdp: {enable_fsdp: true, sharding_strategy: FULL_SHARD}
"""
JOB = """name: x
num_nodes: 2
resources: {accelerators: "A100:4"}
working_dir: .
run: |
  oumi distributed torchrun \\
    -m oumi train \\
    -c configs/train.yaml
"""
OLMO = """model:
  d_model: 4096
  n_heads: 32
  n_layers: 32
  mlp_hidden_size: 22016
  weight_tying: false
  rope: true
  flash_attention: true
  attention_layer_norm: true
  norm_after: true
  layer_norm_type: rms
  include_bias: false
  max_sequence_length: 4096
  vocab_size: 100278
  embedding_size: 100352
optimizer: {name: adamw, learning_rate: 1}
global_train_batch_size: 1024
device_train_microbatch_size: 2
precision: amp_bf16
activation_checkpointing: one_in_four
fused_loss: true
fsdp: {wrapping_strategy: by_block, precision: mixed}
"""
INSTRUCT = """model_name_or_path: meta-llama/Meta-Llama-3-8B
use_slow_tokenizer: true
dataset_mixer: {x/y: 1.0}
max_seq_length: 4096
per_device_train_batch_size: 1
gradient_accumulation_steps: 4
with_tracking: true
"""


def read(folder: Path, text: str, name: str = "x.yaml") -> Recipe:
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(text, encoding="utf-8")
    (recipe,) = read_recipe(folder / name, root=folder)
    return recipe


def rules(recipe: Recipe) -> set[str]:
    return {remark.rule for remark in recipe.remarks if remark.severity != "note"}


def outcome(folder: Path, name: str = "x.yaml", nodes: int = 1) -> str:
    (found,) = check_files(
        [str(folder / name)], question_of({"hardware": "h100-sxm-80g", "nodes": nodes}), Gates(), root=folder
    )
    return found.outcome


def test_a_bound_of_samples_is_named_as_the_file_has_it(tmp_path: Path) -> None:
    (message,) = [
        remark.message
        for remark in read(tmp_path, OUMI.replace(", pack: true", "")).remarks
        if remark.rule == "activations-bound"
    ]
    assert message.startswith("model.model_max_length bounds the samples")


def test_a_file_of_trl(tmp_path: Path) -> None:
    recipe = read(tmp_path, TRL)
    assert recipe.layout is not None
    assert (recipe.dialect, recipe.model, recipe.seq_length) == ("trl-yaml", "llama3.1-8b", 2048)
    assert (recipe.layout.micro_batch_size, recipe.layout.recompute, recipe.layout.zero_stage) == (2, "full", 0)
    assert (recipe.gradient_accumulation_steps, recipe.precision) == (4, "bf16")
    assert recipe.options["optimizer_dtype"] == "bf16"
    # The launcher may shard the state, and samples may be shorter: both only lessen the need.
    assert rules(recipe) == {"upper-bound", "activations-bound"}


@pytest.mark.parametrize(
    ("name", "keys", "options"),
    [
        ("dpo/x.yaml", "", {"sequences_per_sample": "2", "reference_forward": "true", "frozen_reference": "true"}),
        ("dpo/x.yaml", "use_peft: true\n", {"sequences_per_sample": "2", "reference_forward": "true"}),
        ("dpo/x.yaml", "precompute_ref_log_probs: true\n", {"sequences_per_sample": "2"}),
        ("kto/x.yaml", "", {"reference_forward": "true", "frozen_reference": "true"}),
        ("reward/x.yaml", "", {"sequences_per_sample": "2", "score_head": "true"}),
        ("orpo/x.yaml", "", {"sequences_per_sample": "2"}),
        ("sft/x.yaml", "packing: true\n", {}),
    ],
)
def test_losses_of_trl(name: str, keys: str, options: dict[str, str], tmp_path: Path) -> None:
    told = ("sequences_per_sample", "reference_forward", "frozen_reference", "score_head")
    recipe = read(tmp_path, TRL + keys, name)
    assert {key: text for key, text in recipe.options.items() if key in told} == options


def test_a_loss_that_generates_is_refused(tmp_path: Path) -> None:
    assert "not-modelled" in rules(read(tmp_path, TRL, "grpo/x.yaml"))


@pytest.mark.parametrize(
    ("config", "stage", "cluster", "offload"),
    [
        (FSDP.replace("SHARDS", "FULL_SHARD"), 3, (2, 8), "none"),
        (FSDP.replace("SHARDS", "SHARD_GRAD_OP"), 2, (2, 8), "none"),
        (FSDP.replace("SHARDS", "NO_SHARD"), 0, (2, 8), "none"),
        (ENGINE, 3, (1, 8), "optimizer_tensorwise"),
    ],
)
def test_accelerate_says_how_the_state_is_sharded(
    config: str, stage: int, cluster: tuple[int, int], offload: str, tmp_path: Path
) -> None:
    (tmp_path / "acc.yaml").write_text(config, encoding="utf-8")
    flags = TRL.replace(": ", " ").replace("\n", " --").strip(" -").replace("torch_dtype bfloat16 --bf16 true --", "")
    recipe = read(tmp_path, f"accelerate launch --config_file acc.yaml sft.py --{flags}\n", "x.sh")
    assert recipe.layout is not None
    assert recipe.dialect == "accelerate-shell"
    assert (recipe.nodes, recipe.devices_per_node) == cluster
    assert (recipe.layout.zero_stage, recipe.layout.offload, recipe.precision) == (stage, offload, "bf16")
    assert rules(recipe) <= {"activations-bound", "upper-bound"}


@pytest.mark.parametrize(("stage", "priced"), [("sft", True), ("rm", False), ("cls", False)])
def test_a_stage_of_llamafactory_under_another_launcher(stage: str, priced: bool, tmp_path: Path) -> None:
    flags = f"--stage {stage} --finetuning_type full --model_name_or_path Qwen/Qwen2.5-7B --cutoff_len 2048 --bf16"
    flags += " --per_device_train_batch_size 1"
    recipe = read(tmp_path, f"accelerate launch --num_processes 2 src/train.py {flags}\n", "x.sh")
    assert priced == ("not-modelled" not in rules(recipe))


def test_accelerate_starts_a_script_with_a_file(tmp_path: Path) -> None:
    (tmp_path / "acc.yaml").write_text(ENGINE, encoding="utf-8")
    (tmp_path / "sft.yaml").write_text(TRL, encoding="utf-8")
    launch = "accelerate launch --config_file acc.yaml --num_processes=4 run_sft.py sft.yaml --max_length=1024\n"
    recipe = read(tmp_path, launch, "x.sh")
    assert recipe.layout is not None
    assert (recipe.model, recipe.seq_length, recipe.devices_per_node) == ("llama3.1-8b", 1024, 4)
    assert (recipe.layout.zero_stage, recipe.options["master_weights"]) == (3, "true")


@pytest.mark.parametrize(
    ("engine", "stage"), [(ENGINE, 3), (ENGINE.replace("zero_stage: 3, ", ""), 2), (ENGINE.replace("3", "1"), 1)]
)
def test_an_engine_that_accelerates_file_names_is_deepspeed_for_every_reader(
    engine: str, stage: int, tmp_path: Path
) -> None:
    (tmp_path / "acc.yaml").write_text(engine, encoding="utf-8")
    flags = TRL.replace(": ", " ").replace("\n", " --").strip(" -")
    words = (
        f"--model Qwen/Qwen2.5-7B --per_device_train_batch_size 1 --max_length 2048 {flags[flags.index('--bf16') :]}"
    )
    launches = ("trl.yaml", TRL), ("swift.sh", f"accelerate launch --config_file acc.yaml swift/cli/sft.py {words}\n")
    for name, text in (*launches, ("run.sh", f"accelerate launch --config_file acc.yaml sft.py --{flags}\n")):
        (tmp_path / name).write_text(text, encoding="utf-8")
        recipe = read_recipe(tmp_path / name, {"config_file": "acc.yaml"} if name == "trl.yaml" else {})[0]
        assert recipe.layout is not None
        assert (recipe.layout.zero_stage, recipe.options["master_weights"]) == (stage, "true"), name


def test_what_accelerate_does_not_say_is_not_taken(tmp_path: Path) -> None:
    (tmp_path / "acc.yaml").write_text(FSDP.replace("SHARDS", "OTHER_SHARD"), encoding="utf-8")
    (tmp_path / "sft.yaml").write_text(TRL, encoding="utf-8")
    assert "not-modelled" in rules(
        read(tmp_path, "accelerate launch --config_file acc.yaml run_sft.py sft.yaml\n", "x.sh")
    )
    assert "upper-bound" in rules(read(tmp_path, "accelerate launch run_sft.py sft.yaml\n", "y.sh"))


def test_fsdp_widens_the_weights_where_precision_is_mixed(tmp_path: Path) -> None:
    assert "parameter_dtype" not in read(tmp_path, f"{TRL}fsdp: full_shard\n").options
    assert read(tmp_path, TRL).options["parameter_dtype"] == "bf16"


@pytest.mark.parametrize(
    ("keys", "options"),
    [
        ("load_in_4bit: true\nuse_peft: true\n", ("true", "4", "true")),
        ("load_in_4bit: true\nuse_peft: true\nuse_bnb_nested_quant: true\n", ("true", "1.015625", "true")),
        ("load_in_4bit: false\nuse_peft: true\n", (None, None, None)),
    ],
)
def test_a_base_of_4_bits(keys: str, options: tuple[str | None, ...], tmp_path: Path) -> None:
    recipe = read(tmp_path, TRL + keys)
    assert tuple(map(recipe.options.get, ("quantised_base", "quantised_scale_bytes", "widened_rest"))) == options
    assert "not-modelled" not in rules(recipe)


@pytest.mark.parametrize(("nested", "scale"), [("", "1.015625"), (" --bnb_4bit_use_double_quant false", "4")])
def test_swift_nests_the_scales_of_4_bits_unless_told_not_to(nested: str, scale: str, tmp_path: Path) -> None:
    """ms-swift 3602360, arguments/base_args/quant_args.py: `bnb_4bit_use_double_quant` is on."""
    words = "swift sft --model Qwen/Qwen2.5-7B --tuner_type lora --quant_method bnb --quant_bits 4"
    assert read(tmp_path, f"{words}{nested}\n", "x.sh").options["quantised_scale_bytes"] == scale


def test_the_defaults_of_qloras_own_program(tmp_path: Path) -> None:
    """The QLoRA paper trains a 65B on one device of 48 GB, by a paged optimizer that its launches leave unsaid."""
    words = "--model_name_or_path huggyllama/llama-65b --bits 4 --bf16 --source_max_len 16 --target_max_len 512"
    recipe = read(tmp_path, f"python qlora.py {words} --per_device_train_batch_size 1\n", "x.sh")
    assert recipe.layout is not None
    assert (recipe.model, recipe.seq_length, recipe.lora_rank) == ("llama-65b", 528, 64)
    assert (recipe.layout.recompute, recipe.options["optimizer"]) == ("full", "paged_adamw")
    assert recipe.options["quantised_scale_bytes"] == "1.015625"
    (judged,) = check_files([str(tmp_path / "x.sh")], question_of({"hardware": "rtx-a6000"}), Gates(), root=tmp_path)
    assert judged.outcome == "fits"
    (tmp_path / "x.sh").write_text(f"python qlora.py {words} --per_device_train_batch_size 1 --full_finetune\n")
    (judged,) = check_files([str(tmp_path / "x.sh")], question_of({"hardware": "rtx-a6000"}), Gates(), root=tmp_path)
    assert judged.outcome == "cannot_tell"
    for word in ("--source_max_len 16 --target_max_len 512", "--bits 4"):
        bare = words.replace(word, "")
        assert read(tmp_path, f"python x.py {bare} --per_device_train_batch_size 1\n", "x.sh").lora_rank is None


def test_checkpoints_over_8_bits_are_of_either_kind(tmp_path: Path) -> None:
    text = f"{TRL}load_in_8bit: true\nuse_peft: true\n"
    said = "gradient_checkpointing_kwargs:\n  use_reentrant: true\n"
    messages = [" ".join(each.message for each in read(tmp_path, words).remarks) for words in (text, text + said)]
    assert ["without use_reentrant" in message for message in messages] == [True, False]


@pytest.mark.parametrize("keys", ["load_in_4bit: true\n", "load_in_8bit: true\n"])
def test_other_quantised_weights_are_refused(keys: str, tmp_path: Path) -> None:
    assert "not-modelled" in rules(read(tmp_path, TRL + keys))


def test_a_file_of_torchtune(tmp_path: Path) -> None:
    recipe = read(tmp_path, TUNE)
    assert recipe.layout is not None
    assert (recipe.dialect, recipe.model, recipe.seq_length) == ("torchtune-yaml", "llama3.1-8b", 4096)
    assert (recipe.layout.zero_stage, recipe.layout.recompute, recipe.layout.micro_batch_size) == (3, "full", 2)
    assert recipe.options["optimizer_dtype"] == "bf16"
    assert rules(recipe) == set()
    assert outcome(tmp_path) == "fits"


def test_torchtune_on_one_device(tmp_path: Path) -> None:
    recipe = read(tmp_path, TUNE, "8B_full_single_device.yaml")
    assert recipe.layout is not None
    assert (recipe.layout.zero_stage, recipe.layout.data_parallel) == (0, 1)


@pytest.mark.parametrize(
    ("old", "new", "rule"),
    [
        ("max_seq_len: 4096", "path: x", "activations-bound"),
        ("packed: true", "packed: false", "activations-bound"),
        ("LinearCrossEntropyLoss", "FancyLoss", "not-modelled"),
        ("torch.optim.AdamW", "torch.optim.Adagrad", "not-modelled"),
        ("batch_size: 2", "batch_size: 2\nfsdp_cpu_offload: true", "upper-bound"),
        ("batch_size: 2", "batch_size: 2\nfancy: 3", "unknown-flag"),
        ("llama3_1_8b}", "llama3_2_vision_11b}", "not-modelled"),
    ],
)
def test_what_is_said_of_torchtune(old: str, new: str, rule: str, tmp_path: Path) -> None:
    assert old in TUNE
    assert rule in rules(read(tmp_path, TUNE.replace(old, new)))


def test_adapters_of_torchtune(tmp_path: Path) -> None:
    recipe = read(tmp_path, TUNE.replace("llama3_1_8b}", "qlora_llama3_1_8b, lora_rank: 16}"))
    assert (recipe.model, recipe.lora_rank, recipe.options["quantised_base"]) == ("llama3.1-8b", 16, "true")
    assert outcome(tmp_path) == "fits"


def test_torchtune_that_trains_nothing(tmp_path: Path) -> None:
    text = "tokenizer: {_component_: torchtune.models.llama3.llama3_tokenizer}\nmodel: {_component_: a.b}\n"
    with pytest.raises(NoRecipeError, match="generates text"):
        read(tmp_path, f"{text}max_new_tokens: 300\nbatch_size: 1\n")


def test_a_file_of_oumi(tmp_path: Path) -> None:
    recipe = read(tmp_path, OUMI)
    assert recipe.layout is not None
    assert (recipe.dialect, recipe.model, recipe.seq_length) == ("oumi-yaml", "llama3.1-8b", 4096)
    assert (recipe.layout.zero_stage, recipe.layout.recompute, recipe.precision) == (3, "full", "bf16")
    assert rules(recipe) == set()
    assert outcome(tmp_path) == "fits"
    assert "not-modelled" in rules(read(tmp_path, OUMI.replace("FULL_SHARD", "OTHER_SHARD")))
    assert "not-modelled" in rules(read(tmp_path, OUMI.replace("TRL_SFT", "TRL_GRPO")))


def test_oumi_gathers_weights_on_the_host_to_save_them(tmp_path: Path) -> None:
    section = "deepspeed: {enable_deepspeed: true, zero_stage: ZERO_3, GATHERS: true}"
    engine = OUMI.replace("fsdp: {enable_fsdp: true, sharding_strategy: FULL_SHARD}", section)
    gathers = "stage3_gather_16bit_weights_on_model_save"
    assert read(tmp_path, engine.replace("GATHERS", gathers)).options["saves_on_host"] == "weights"
    assert "saves_on_host" not in read(tmp_path, engine.replace("GATHERS", "overlap_comm")).options


def test_a_job_of_oumi_is_its_configuration_on_its_machines(tmp_path: Path) -> None:
    read(tmp_path, OUMI, "configs/train.yaml")
    recipe = read(tmp_path, JOB, "configs/jobs/job.yaml")
    assert recipe.layout is not None
    assert (recipe.dialect, recipe.model, recipe.layout.data_parallel) == ("oumi-job-yaml", "llama3.1-8b", 8)
    with pytest.raises(UndecidedError, match=r"other.yaml: no such file"):
        read(tmp_path, JOB.replace("train.yaml", "other.yaml"), "configs/jobs/other_job.yaml")
    long = JOB.replace("  oumi dist", "  set -e  # " + "a remark of this length, " * 12 + "${X}\n  oumi dist")
    assert read(tmp_path, long, "configs/jobs/job.yaml").model == "llama3.1-8b"
    (tmp_path / "job.yaml").write_text(JOB.replace("oumi train", "lm_eval"), encoding="utf-8")
    with pytest.raises(UnsupportedError, match="a command within a configuration file"):
        read_recipe(tmp_path / "job.yaml", root=tmp_path)


def test_a_file_of_olmo(tmp_path: Path) -> None:
    recipe = read(tmp_path, OLMO)
    assert recipe.layout is not None
    assert (recipe.dialect, recipe.global_batch_size, recipe.seq_length) == ("olmo-yaml", 1024, 4096)
    assert recipe.model_fields["intermediate_size"] == 11008
    assert recipe.model_fields["qk_norm_span"] == "projection"
    assert recipe.layout.recompute_layer_list == tuple(range(0, 32, 4))
    assert recipe.layout.zero_stage == 3
    assert outcome(tmp_path, nodes=8) == "fits"


def test_a_launch_of_olmo_replaces_keys(tmp_path: Path) -> None:
    read(tmp_path, OLMO, "configs/x.yaml")
    launch = "torchrun --nnodes 4 --nproc-per-node 8 scripts/train.py configs/x.yaml --device_train_microbatch_size=1 "
    options = "--fsdp.sharding_strategy=HYBRID_SHARD --fsdp.hybrid_sharding_num_model_replicas=4\n"
    recipe = read(tmp_path, launch + options, "x.sh")
    assert recipe.layout is not None
    assert (recipe.dialect, recipe.nodes, recipe.layout.micro_batch_size) == ("olmo-shell", 4, 1)
    assert recipe.options["sharding_replicas"] == "4"


def test_a_file_of_open_instruct_is_started_as_its_launchers_do(tmp_path: Path) -> None:
    recipe = read(tmp_path, INSTRUCT)
    assert recipe.layout is not None
    assert (recipe.dialect, recipe.model, recipe.layout.zero_stage) == ("open-instruct-yaml", "llama3-8b", 3)
    assert rules(recipe) == {"example-arguments", "activations-bound"}
    assert outcome(tmp_path) == "fits"


@pytest.mark.parametrize("stage", ["9", "-1", "two"])
def test_a_stage_out_of_range_is_named_with_its_line(stage: str, tmp_path: Path) -> None:
    (tmp_path / "ds.json").write_text(f'{{"zero_optimization": {{\n"stage": "{stage}"}}}}\n', encoding="utf-8")
    (tmp_path / "acc.yaml").write_text(ENGINE.replace("stage: 3", f"stage: {stage}"), encoding="utf-8")
    flags = TRL.replace(": ", " ").replace("\n", " --").strip(" -")
    launch = f"accelerate launch --config_file acc.yaml sft.py --{flags}\n"
    for name, text, at in (("trl.yaml", f"{TRL}deepspeed: ds.json\n", "ds.json:2"), ("x.sh", launch, "acc.yaml:5")):
        problem = rf"{at}: zero_optimization.stage: '{stage}' given; must be a whole number from 0 to 3"
        with pytest.raises(InputError, match=problem):
            read(tmp_path, text, name)


def test_a_type_that_is_none_is_named_with_its_line(tmp_path: Path) -> None:
    file = tmp_path / "tune.yaml"
    file.write_text(TUNE.replace("dtype: bf16", "dtype: half"), encoding="utf-8")
    (checked,) = check_files([str(file)], question_of({"hardware": "h100-sxm-80g"}), Gates())
    assert any("dtype half: is no type that is read" in reason for reason in checked.reasons)


def test_a_variable_taken_as_unset_stands_where_it_is_used(tmp_path: Path) -> None:
    (remark,) = (
        each
        for each in read(tmp_path, TUNE.replace("batch_size: 2", "batch_size: ${oc.env:SIZE,2}"), "x.yaml").remarks
        if each.rule == "assumed-unset"
    )
    assert remark.place is not None
    assert remark.place.line == 1 + TUNE[: TUNE.index("batch_size")].count("\n")


@pytest.mark.parametrize(
    "cycle", ["a: ${b}\nb: ${a}\n", "a: ${a}\n", "a: ${b}${b}\nb: 1${a}\n", "a: ${oc.env:X,${b}}\nb: ${a}\n"]
)
def test_references_in_a_circle_are_unknown(cycle: str, tmp_path: Path) -> None:
    recipe = read(tmp_path, TUNE.replace("batch_size: 2", "batch_size: ${a}") + cycle, "x.yaml")
    assert recipe.layout is None
    assert any("micro_batch_size" in unknown.affects for unknown in recipe.unknowns)
