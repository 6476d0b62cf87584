"""Losses of preferences and their frozen copy, FSDP's JSON, modules, launches in manifests."""

from pathlib import Path

import pytest

from simulator.answers.gates import Gates
from simulator.errors import UnsupportedError
from simulator.question.question import question_of
from simulator.question.recipe import Recipe
from simulator.recipes.check.judge import check_files
from simulator.recipes.readers.read import read_recipe
from tests.check.bare import without_advice

FACTORY = (
    "model_name_or_path: meta-llama/Llama-3.2-1B\nstage: STAGE\ndo_train: true\nfinetuning_type: full\nbf16: true\n"
    "dataset: a\ncutoff_len: 2048\nper_device_train_batch_size: 1\ngradient_accumulation_steps: 8\nfsdp: full_shard\n"
)
PREFERENCES = ("sequences_per_sample", "reference_forward", "frozen_reference")
TRAINER = (
    "torchrun --nproc_per_node 8 train.py --model_name_or_path meta-llama/Llama-3.2-1B "
    "--per_device_train_batch_size 1 --gradient_accumulation_steps 2 --model_max_length 4096 --bf16 True "
    "--fsdp full_shard --fsdp_config "
)


def read(text: str, folder: Path, name: str) -> Recipe:
    (folder / name).write_text(text, encoding="utf-8")
    (recipe,) = read_recipe(folder / name, root=folder)
    return recipe


@pytest.mark.parametrize(
    ("stage", "more", "switches"),
    [
        ("sft", "", set()),
        ("dpo", "", set(PREFERENCES)),
        ("dpo", "pref_loss: simpo\n", {"sequences_per_sample"}),
        ("kto", "", {"reference_forward", "frozen_reference"}),
        ("dpo", "finetuning_type: lora\nlora_rank: 8\n", {"sequences_per_sample", "reference_forward"}),
    ],
)
def test_llamafactory(stage: str, more: str, switches: set[str], tmp_path: Path) -> None:
    text = FACTORY.replace("finetuning_type: full\n", "") if "finetuning_type" in more else FACTORY
    recipe = read(text.replace("STAGE", stage) + more, tmp_path, "x.yaml")
    assert {name for name in PREFERENCES if name in recipe.options} == switches


SECOND = (
    "model: Qwen/Qwen3-4B\ntrain_dataset: d.yaml\ndist_config:\n  name: fsdp2\nkernel_config:\n  name: auto\n"
    "micro_batch_size: 2\ncutoff_len: 4096\n"
)


def test_the_second_format_of_llamafactory_has_a_loop_of_its_own(tmp_path: Path) -> None:
    """ff6d4d1, v1/core: fp32 weights in units of FSDP 2, checkpoints unless switched off, two fp32 copies of logits."""
    full = read(SECOND, tmp_path, "x.yaml")
    assert full.layout is not None
    assert (full.dialect, full.model, full.seq_length) == ("llamafactory-yaml", "qwen3-4b", 4096)
    layout = full.layout
    assert (layout.micro_batch_size, layout.zero_stage, layout.recompute) == (2, 3, "full")
    assert (full.precision, full.lora_rank, full.gradient_accumulation_steps) == ("bf16", None, 1)
    own = {"loss_bytes_per_logit": "14", "autocast": "false", "plain_module": "false", "flat_parameters": "false"}
    assert own.items() <= full.options.items()
    assert "frozen_dtype" not in full.options
    # One sequence without its last token is no copy: traced, 11.99 bytes of a logit, in the backward pass.
    alone = read(SECOND.replace("micro_batch_size: 2", "micro_batch_size: 1"), tmp_path, "x.yaml")
    assert alone.options["loss_bytes_per_logit"] == "12"
    plain = read(SECOND + "enable_activation_checkpointing: false\nglobal_batch_size: 32\n", tmp_path, "x.yaml")
    assert plain.layout is not None
    assert (plain.layout.recompute, plain.global_batch_size) == ("none", 32)
    adapters = "peft_config:\n  name: lora\n  r: 16\n  target_modules: [q_proj, v_proj]\n"
    lora = read(SECOND + adapters, tmp_path, "x.yaml")
    assert (lora.lora_rank, lora.options["adapter_targets"]) == (16, "q+v")
    assert (lora.options["adapter_copies"], lora.options["adapter_dropout"]) == ("false", "before")
    assert full.options["adapter_dropout"] == "none"
    even = read(SECOND + adapters + "  lora_dropout: 0.0\n", tmp_path, "x.yaml")
    assert even.options.get("adapter_dropout", "none") == "none"
    shell = read("USE_V1=1 llamafactory-cli sft x.yaml\n", tmp_path, "x.sh")
    assert (shell.dialect, shell.model, shell.lora_rank) == ("llamafactory-shell", "qwen3-4b", 16)
    with pytest.raises(UnsupportedError, match="llamafactory-cli"):
        read("USE_V1=1 llamafactory-cli dpo x.yaml\n", tmp_path, "x.sh")


@pytest.mark.parametrize(
    ("name", "more", "message"),
    [
        (
            "x.yaml",
            "batching_strategy: padding_free\n",
            "batching_strategy: samples that are joined or packed are not priced",
        ),
        ("x.yaml", "kernel_config.name: liger_kernel\n", "kernel_config.name: kernels by name are not priced"),
        ("x.yaml", "cp_size: 2\n", "cp_size: attention over several devices is not priced"),
        ("x.yaml", "optim_config:\n  name: muon\n", "optim_config.name: an optimizer by name is not priced"),
        (
            "x.yaml",
            "quant_config:\n  name: bnb\n  quantization_bit: 4\n",
            "quant_config.name: quantised weights are not priced",
        ),
        ("x.yaml", "dist_config:\n  name: fsdpturbo\n", "dist_config fsdpturbo: only fsdp2 and deepspeed are priced"),
        ("x.yaml", "peft_config:\n  name: freeze\n", "finetuning_type freeze is not modelled"),
        ("x.yaml", "dist_config: {}\n", "dist_config None: only fsdp2 and deepspeed are priced"),
        ("train_dpo.yaml", "", "the command says which loss a file of this format trains with"),
    ],
)
def test_what_the_second_format_may_say_is_refused_by_name(name: str, more: str, message: str, tmp_path: Path) -> None:
    text = SECOND.replace("dist_config:\n  name: fsdp2\n", "") if "dist_config" in more else SECOND
    (tmp_path / name).write_text(text + more, encoding="utf-8")
    (found,) = check_files([str(tmp_path / name)], question_of({"hardware": "h100-sxm-80g"}), Gates(), root=tmp_path)
    assert found.outcome == "not_modelled"
    assert any(message in reason for reason in found.reasons), found.reasons


def test_a_frozen_copy_is_held_sharded_like_the_trained_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_advice(monkeypatch)
    found = {}
    for stage in ("sft", "dpo"):
        file = tmp_path / f"{stage}.yaml"
        file.write_text(FACTORY.replace("STAGE", stage) + "fsdp_config.version: 2\n", encoding="utf-8")
        question = question_of({"hardware": "h100-sxm-80g", "devices": 4})
        (result,) = check_files([str(file)], question, Gates(), root=tmp_path)
        assert result.estimate is not None
        found[stage] = result.estimate.memory.parts_bytes["parameters"]
    assert found["dpo"] == pytest.approx(2.0 * found["sft"])


@pytest.mark.parametrize(
    ("config", "recompute"),
    [
        ("""'{"activation_checkpointing": true, "backward_prefetch": "backward_pre"}'""", "full"),
        ("fsdp.json", "full"),
        ("""'{"use_orig_params": true}'""", "none"),
    ],
)
def test_a_configuration_of_fsdp_is_json_or_a_file_of_it(config: str, recompute: str, tmp_path: Path) -> None:
    (tmp_path / "fsdp.json").write_text('{"fsdp_activation_checkpointing": true}', encoding="utf-8")
    recipe = read(TRAINER + config, tmp_path, "x.sh")
    assert recipe.layout is not None
    assert (recipe.layout.recompute, recipe.layout.zero_stage) == (recompute, 3)
    assert not [remark for remark in recipe.remarks if remark.severity == "error"]
    other = read(f"{TRAINER}'{{\"xla\": true}}'", tmp_path, "y.sh")
    assert "not-modelled" in {remark.rule for remark in other.remarks if remark.severity == "error"}


SFT = "trl sft --model_name_or_path Qwen/Qwen3-8B --dataset_name x --max_length 2048 --packing --accelerate_config "
SWIFT = "NPROC_PER_NODE=8 swift sft --model Qwen/Qwen3-8B --max_length 2048 --packing true --dataset x --fsdp "
HOST = "accelerate launch --num_processes 8 --use_fsdp --fsdp_sharding_strategy {} train.py --model_name_or_path x "
HOST += "--per_device_train_batch_size 1 --model_max_length 4096 --bf16 True"
OPEN = "transformers from 5.10 on takes FSDP 2"


@pytest.mark.parametrize(
    ("text", "flat", "ahead", "note"),
    [
        # transformers v4.57.1 and v5.10.0, training_args.py; accelerate v0.34.0 to v1.15, launch.py: no prefetch.
        (TRAINER + """'{"use_orig_params": true}'""", "true", None, OPEN),
        (TRAINER + """'{"version": 1, "backward_prefetch": "BACKWARD_PRE"}'""", "true", "true", ""),
        (TRAINER + """'{"fsdp_version": 2}'""", "false", None, ""),
        (HOST.format("FULL_SHARD"), "true", None, ""),
        (HOST.format("FULL_SHARD --fsdp_backward_prefetch BACKWARD_PRE"), "true", "true", ""),
        (HOST.format("1 --fsdp_backward_prefetch_policy BACKWARD_POST"), "true", "false", ""),
        (HOST.format("NO_SHARD"), None, None, "NO_SHARD is priced with the buckets"),
        # TRL f2cd577, accelerate_configs; ms-swift 3602360, config/fsdp2.json.
        (SFT + "fsdp1", "true", "true", ""),
        (SFT + "fsdp2", "false", None, ""),
        (SWIFT + "fsdp2", "false", None, ""),
        (SWIFT + "own.json", None, None, "fsdp: what this configuration sets is not read"),
    ],
)
def test_versions_of_fsdp(text: str, flat: str | None, ahead: str | None, note: str, tmp_path: Path) -> None:
    recipe = read(text, tmp_path, "x.sh")
    assert (recipe.options.get("flat_parameters"), recipe.options.get("backward_prefetch")) == (flat, ahead)
    messages = [remark.message for remark in recipe.remarks if remark.rule in ("upper-bound", "not-modelled")]
    told = [message for message in messages if "FSDP" in message or "SHARD" in message or "fsdp" in message]
    assert [message.startswith(note) for message in told] == [True] * bool(note)
    assert recipe.layout is not None
    assert (recipe.layout.zero_stage == 3) is (flat is not None)


def test_the_other_version_of_fsdp_is_its_favourable_reading(tmp_path: Path) -> None:
    """What does not fit under FSDP 1, and by a gibibyte less may, is no firm answer."""
    words = TRAINER.replace("Llama-3.2-1B", "Llama-3.1-8B").replace(" --fsdp_config ", " --packing true")
    outcomes = []
    for length in range(6656, 7040, 64):
        (tmp_path / "x.sh").write_text(words.replace("4096", str(length)), encoding="utf-8")
        question = question_of({"hardware": "h100-sxm-80g", "nodes": 1})
        (result,) = check_files([str(tmp_path / "x.sh")], question, Gates(), root=tmp_path)
        outcomes += [remark.message for remark in result.remarks if remark.message.startswith(OPEN)]
    assert any("by its most favourable reading it needs" in message for message in outcomes)


def test_a_module_of_accelerate_is_a_script(tmp_path: Path) -> None:
    flags = "--model_name_or_path meta-llama/Llama-3.2-1B --per_device_train_batch_size 1 --max_seq_length 4096"
    launch = "accelerate launch --mixed_precision bf16 --num_processes 8 -m"
    recipe = read(f"{launch} open_instruct.finetune {flags} --use_flash_attn", tmp_path, "x.sh")
    assert (recipe.dialect, recipe.devices_per_node) == ("open-instruct-shell", 8)
    other = read(f"{launch} training.sft {flags} --bf16", tmp_path, "y.sh")
    assert other.dialect == "accelerate-shell"
    assert not [remark.message for remark in (*recipe.remarks, *other.remarks) if "is not read" in remark.message]


LAUNCH = (
    "torchrun --nproc_per_node 8 train.py --model_name_or_path {} --per_device_train_batch_size 1 "
    "--gradient_accumulation_steps 2 --model_max_length 4096 --bf16 True"
)
JOB = "kind: Job\nspec:\n  containers:\n  - name: t\n    env: [{name: MODEL, value: meta-llama/Llama-3.2-1B}]\n"


@pytest.mark.parametrize(
    ("name", "text", "line"),
    [
        ("a.yaml", f'{JOB}    command: ["bash", "-c"]\n    args:\n    - |\n      {LAUNCH.format("$MODEL")}\n', 9),
        ("b.yaml", f"{JOB}    command: {LAUNCH.format('meta-llama/Llama-3.2-1B').split()}\n", 6),
        ("c.yaml", f"kind: ConfigMap\ndata:\n  run.sh: |\n    {LAUNCH.format('meta-llama/Llama-3.2-1B')}\n", 4),
    ],
)
def test_a_launch_in_a_manifest(name: str, text: str, line: int, tmp_path: Path) -> None:
    recipe = read(text, tmp_path, name)
    assert (recipe.model, recipe.devices_per_node, recipe.seq_length) == ("llama3.2-1b", 8, 4096)
    assert recipe.places["micro_batch_size"].line == line


# simplescaling/s1, train/sft.sh; axolotl-ai-cloud/axolotl-cookbook, lambda/configs; philschmid's recipes for TRL.
@pytest.mark.parametrize(
    ("name", "model"),
    [
        ("Qwen/Qwen2.5-32B-Instruct", "qwen2.5-32b"),
        ("/cache/hub/models--meta-llama--Meta-Llama-3.1-405B/snapshots/b906e4", "llama3.1-405b"),
        ("/cache/hub/models--Qwen--Qwen2.5-32B/", "qwen2.5-32b"),
        ("/cache/snapshots/b906e4", None),
    ],
)
def test_a_model_is_named_in_its_own_flag_or_by_the_hub_s_folder(name: str, model: str | None, tmp_path: Path) -> None:
    text = TRAINER.replace("--model_name_or_path meta-llama/Llama-3.2-1B", f"--model_name {name}")
    (tmp_path / "fsdp.json").write_text("{}", encoding="utf-8")
    assert read(text.replace("train.py", "sft.py") + "fsdp.json", tmp_path, "x.sh").model == model


@pytest.mark.parametrize("word", ["$DIR/x.yaml", "$CONFIG", "${1}/x.yaml"])
def test_a_configuration_of_unknown_name_may_set_anything(word: str, tmp_path: Path) -> None:
    recipe = read(f"accelerate launch -m axolotl.cli.train {word}\n", tmp_path, "x.sh")
    (unknown,) = recipe.unknowns
    assert {"any_other_flag", "model", "seq_length"} <= set(unknown.affects)
    assert [remark for remark in recipe.remarks if remark.severity == "error"] == []


def test_layers_at_rest_only_lower_the_need(tmp_path: Path) -> None:
    text = (
        "model_name_or_path: Meta-Llama/Meta-Llama-3.1-8B\nbf16: true\nmax_seq_length: 1024\npacking: true\n"
        "per_device_train_batch_size: 1\ngradient_accumulation_steps: 2\nspectrum_config_path: half.yaml\n"
    )
    remarks = read(text, tmp_path, "x.yaml").remarks
    assert [remark.bound for remark in remarks if "spectrum_config_path" in remark.message] == ["state"]


@pytest.mark.parametrize("on", ["true", "false"])
def test_weights_of_preferences_that_copy_the_logits_are_not_priced(on: str, tmp_path: Path) -> None:
    """`DPOTrainer` of TRL v1.9.0 doubles the logits for the weights of WPO."""
    text = (
        "model_name_or_path: Meta-Llama/Meta-Llama-3.1-8B\nbf16: true\nmax_length: 1024\nloss_type: sigmoid\n"
        f"per_device_train_batch_size: 1\ngradient_accumulation_steps: 2\nuse_weighting: {on}\n"
    )
    errors = [remark.message for remark in read(text, tmp_path, "x.yaml").remarks if remark.severity == "error"]
    assert any("use_weighting" in message for message in errors) == (on == "true")


@pytest.mark.parametrize(
    ("program", "more", "outcome"),
    [
        ("get_gradients.py", "--max_steps 500", "not_modelled"),
        ("get_gradients.py", "--learning_rate 1e-5", "does_not_fit"),
        ("src/train/main.py", "--max_steps 500", "does_not_fit"),
    ],
)
def test_a_program_that_may_not_train_makes_no_failure(program: str, more: str, outcome: str, tmp_path: Path) -> None:
    """A forward pass over data takes the Trainer's words too (LLaMA-MoE-v2, get_hidden_distribution.py)."""
    file = tmp_path / "run.sh"
    flags = "--model_name_or_path meta-llama/Meta-Llama-3-8B --per_device_train_batch_size 1 --model_max_length 4096"
    text = f"torchrun --nproc_per_node 2 {program} {flags} --bf16 --torch_dtype bfloat16 {more}\n"
    file.write_text(text, encoding="utf-8")
    (result,) = check_files([str(file)], question_of({"hardware": "a100-sxm-80g"}), Gates())
    assert result.outcome == outcome


@pytest.mark.parametrize(("more", "priced"), [("", False), (" --fsdp_version 2", True), (" --optim lion_32bit", True)])
def test_a_factored_moment_over_flat_shards_is_not_priced(more: str, priced: bool, tmp_path: Path) -> None:
    text = TRAINER.removesuffix(" --fsdp_config ")
    recipe = read(f"{text} --optim adafactor{more}\n", tmp_path, "run.sh")
    messages = [remark.message for remark in recipe.remarks if remark.rule == "not-modelled"]
    assert any("flat parameters" in message for message in messages) is not priced
