"""Trainers of Hugging Face's kind and torchtune: what shards the state, how long samples are, who starts them."""

import json
from pathlib import Path

import pytest

from simulator.answers.gates import Gates
from simulator.errors import UnsupportedError
from simulator.frameworks.models import by_name
from simulator.question.question import question_of
from simulator.question.recipe import Recipe
from simulator.question.specs.optimizers import OPTIMIZERS
from simulator.recipes.check.judge import check_files
from simulator.recipes.readers.read import read_recipe
from tests.cli.running import run

OUMI = """model: {model_name: meta-llama/Llama-3.1-8B, model_max_length: 32768}
data: {train: {datasets: [{dataset_name: DATA}]}}
training: {trainer_type: TRL_SFT, optimizer: OPTIMIZER, per_device_train_batch_size: 1, mixed_precision_dtype: bf16}
fsdp: {enable_fsdp: true, sharding_strategy: SHARDS}
"""
TUNE = """tokenizer: {_component_: torchtune.models.qwen3.qwen3_tokenizer, max_seq_len: null}
model: {_component_: torchtune.models.qwen3.lora_qwen3_8b_base, lora_rank: 8}
dataset: {_component_: torchtune.datasets.DATA, packed: PACKED}
optimizer: {_component_: torch.optim.AdamW}
batch_size: 2
dtype: bf16
"""
DPO = "--mixed_precision bf16 --num_processes 8 --use_deepspeed --zero_stage 3 open_instruct/dpo_tune_cache.py"
MASON = f"""python mason.py --cluster ai2/jupiter --num_nodes 4 --gpus 8 -- source env.sh \\&\\& \\
  accelerate launch {DPO} \\
  --model_name_or_path allenai/OLMo-2-1124-7B-SFT --max_seq_length 2048 --per_device_train_batch_size 1 \\
  --mixer_list a 1.0 b 2 --gradient_checkpointing
"""


def read(folder: Path, name: str, text: str, **words: str) -> Recipe:
    for word, value in words.items():
        text = text.replace(word, value)
    (folder / name).write_text(text, encoding="utf-8")
    (recipe,) = read_recipe(folder / name)
    return recipe


def oumi(folder: Path, data: str = "x", shards: str = "FULL_SHARD", optimizer: str = "adamw_torch") -> Recipe:
    return read(folder, "train.yaml", OUMI, DATA=data, SHARDS=shards, OPTIMIZER=optimizer)


ADAPTED = f"{OUMI.replace('TRL_SFT,', 'TRL_SFT, use_peft: true,')}peft: {{lora_r: 8}}\n"


@pytest.mark.parametrize(
    ("model", "targets", "stops"),
    [
        ("meta-llama/Llama-3.1-8B", "query_value", False),
        ("Qwen/Qwen3-8B", "query_value", False),
        ("google/gemma-2-9b", "query_value", False),
        ("microsoft/phi-2", "q+v+up+down", False),
        ("Qwen/Qwen3-30B-A3B", "all", True),
        ("microsoft/phi-4", "all", True),
    ],
)
def test_peft_has_layers_of_its_own_where_a_file_names_none(
    model: str, targets: str, stops: bool, tmp_path: Path
) -> None:
    """oumi d8ed077, peft_params.py (`to_lora`): None goes on to peft 0.21, which raises for a model it lacks."""
    text = ADAPTED.replace("meta-llama/Llama-3.1-8B", model)
    run_of = read(tmp_path, "train.yaml", text, DATA="x", SHARDS="FULL_SHARD", OPTIMIZER="adamw_torch")
    assert run_of.options["adapter_targets"] == targets
    errors = [remark.message for remark in run_of.remarks if remark.severity == "error"]
    assert any("peft has no usual layers with adapters for" in each for each in errors) == stops
    named = text.replace("lora_r: 8", 'lora_r: 8, lora_target_modules: ["all-linear"]')
    said = read(tmp_path, "train.yaml", named, DATA="x", SHARDS="FULL_SHARD", OPTIMIZER="adamw_torch")
    assert said.options["adapter_targets"] == "all"
    assert not any("peft has no usual" in remark.message for remark in said.remarks)


LMFLOW = """accelerate launch --num_processes 8 --use_fsdp --mixed_precision bf16 examples/finetune.py \\
 --model_name_or_path meta-llama/Llama-3.2-3B-Instruct --block_size 512 --per_device_train_batch_size 1 --bf16 \\
 --torch_dtype bfloat16 --disable_group_texts 1 --conversation_template llama3 WORDS
"""


@pytest.mark.parametrize(
    ("words", "options", "rank"),
    [
        ("--use_flash_attention 0", {}, None),
        ("--use_flash_attention 1 --use_lora 1 --lora_r 16", {"flash_attention": "true"}, 16),
        ("--use_qlora 1 --quant_bit 4 --lora_r 8", {"quantised_base": "true"}, 8),
        ("--arch_type text_regression", {"score_head": "true"}, None),
    ],
)
def test_lmflow(words: str, options: dict[str, str], rank: int | None, tmp_path: Path) -> None:
    recipe = read(tmp_path, "run.sh", LMFLOW, WORDS=words)
    assert (recipe.model, recipe.seq_length, recipe.lora_rank) == ("llama3.2-3b", 512, rank)
    assert options.items() <= recipe.options.items()
    assert [remark for remark in recipe.remarks if remark.severity == "error"] == []


def test_layers_that_are_trained_by_turns_are_not_priced(tmp_path: Path) -> None:
    recipe = read(tmp_path, "run.sh", LMFLOW, WORDS="--use_lisa 1 --lisa_activated_layers 2")
    assert any(remark.rule == "not-modelled" and remark.severity == "error" for remark in recipe.remarks)


def test_trl_bounds_samples_that_oumi_does_not(tmp_path: Path) -> None:
    text = OUMI.replace(", model_max_length: 32768", "")
    assert read(tmp_path, "train.yaml", text, DATA="x", SHARDS="FULL_SHARD").seq_length == 1024


def test_hybrid_shards_are_those_of_a_node(tmp_path: Path) -> None:
    assert "sharding_degree" not in oumi(tmp_path).options
    for shards, stage in (("HYBRID_SHARD", 3), ("HYBRID_SHARD_ZERO2", 2)):
        recipe = oumi(tmp_path, shards=shards)
        assert recipe.layout is not None
        assert (recipe.options["sharding_degree"], recipe.layout.zero_stage) == ("node", stage)
    asked = (question_of({"hardware": "h100-sxm-80g", "nodes": nodes}) for nodes in (1, 4))
    judged = [check_files([str(tmp_path / "train.yaml")], one, Gates())[0].case for one in asked]
    assert [case and case.scenario.framework.sharding_degree for case in judged] == [8, 8]


def test_flags_of_oumi_count_over_its_file(tmp_path: Path) -> None:
    oumi(tmp_path)
    flags = "oumi train -c train.yaml --training.per_device_train_batch_size 4 --model.model_max_length=2048"
    alone = read(tmp_path, "alone.sh", flags)
    assert alone.layout is not None
    assert (alone.dialect, alone.layout.micro_batch_size, alone.seq_length) == ("oumi-shell", 4, 2048)
    spread = read(tmp_path, "spread.sh", f"oumi distributed torchrun -m {flags}")
    assert [(one.nodes, one.devices_per_node) for one in (alone, spread)] == [(1, 1), (None, None)]


def test_samples_are_no_longer_than_the_longest_of_their_data_set(tmp_path: Path) -> None:
    assert oumi(tmp_path).seq_length == 32768
    assert oumi(tmp_path, data="yahma/alpaca-cleaned").seq_length == 4096
    for packed, data, length in (
        ("False", "alpaca_cleaned_dataset", 4096),
        ("True", "alpaca_cleaned_dataset", 32768),
        ("False", "slimorca_dataset", 32768),
    ):
        assert read(tmp_path, "8B_lora.yaml", TUNE, DATA=data, PACKED=packed).seq_length == length


@pytest.mark.parametrize(("on", "word"), [("true", "joint"), ("false", "none")])
def test_magnitudes_of_dora_are_read(on: str, word: str, tmp_path: Path) -> None:
    adapters = f"lora_rank: 8, use_dora: {on}"
    recipe = read(tmp_path, "8B_lora.yaml", TUNE.replace("lora_rank: 8", adapters), DATA="x", PACKED="False")
    assert not [remark.message for remark in recipe.remarks if "dora" in remark.message]
    assert recipe.options["decomposed_adapters"] == word


@pytest.mark.parametrize(
    ("word", "optimizer"),
    [
        *[("adafactor", "adafactor"), ("adamw_bnb_8bit", "adamw_8bit"), ("lion_32bit", "lion")],
        *[("paged_adamw_8bit", "paged_adamw_8bit"), ("paged_adamw_32bit", "paged_adamw"), ("paged_lion", "paged_lion")],
        *[("adamw_torch_fused", None), ("lomo", "sgd"), ("adalomo", "adafactor"), ("lion_8bit", "lion_8bit")],
        *[("adamw_torch_4bit", "adamw_4bit"), ("schedule_free_adamw", None), ("schedule_free_sgd", "sgd_momentum")],
    ],
)
def test_optimizers_of_transformers_are_priced(word: str, optimizer: str | None, tmp_path: Path) -> None:
    options = oumi(tmp_path, optimizer=word).options
    assert options.get("optimizer") == optimizer
    assert (options.get("step_temporaries") == "0") == ("fused" in word)
    assert (options.get("step_in_backward") == "true") == ("lomo" in word)


@pytest.mark.parametrize(
    ("word", "wide"), [("adamw_bnb_8bit", True), ("paged_lion_8bit", True), ("adamw_torch_8bit", False)]
)
def test_bitsandbytes_alone_keeps_embeddings_in_32_bits(word: str, wide: bool, tmp_path: Path) -> None:
    """transformers 5.24, `create_optimizer`: an override where the class is of bitsandbytes and of 8 bits."""
    assert (oumi(tmp_path, optimizer=word).options.get("wide_table_moments") == "true") == wide


_KERNELS = ("optimizer", "foreach_optimizer", "step_temporaries", "optimizer_dtype", "step_in_backward")


@pytest.mark.parametrize("word", [*sorted({word for each in OPTIMIZERS.values() for word in each.words}), "lomo"])
def test_a_word_of_an_optimizer_means_the_same_in_a_file_and_on_the_command_line(word: str, tmp_path: Path) -> None:
    read_one = oumi(tmp_path, optimizer=word).options
    said = question_of({"model": "qwen3-8b", "framework": "torch", "optimizer": word}).options
    of_file, of_command = ({name: each[name] for name in _KERNELS if name in each} for each in (read_one, said))
    assert of_command == {"optimizer": "adamw"} | of_file
    as_switch = question_of({"model": "qwen3-8b", "framework": "torch", "options": {"optimizer": word}}).options
    assert as_switch == said


@pytest.mark.parametrize("stack", [(), ("--stack", "transformers")])
def test_the_command_line_prices_fused_and_foreach_kernels_apart(stack: tuple[str, ...]) -> None:
    sizes = ("--model", "qwen3-0.6b", "--method", "full", "--hardware", "rtx-4090", "--devices", "1", *stack)
    layout = ("--seq-length", "512", "--global-batch-size", "1", "--micro-batch-size", "1", "--format", "json")
    fused, foreach = (
        json.loads(run("estimate", *sizes, *layout, "--optimizer", word).stdout)["memory"]["stages"][0]["breakdown_mib"]
        for word in ("adamw_torch_fused", "adamw_torch")
    )
    assert fused != foreach


@pytest.mark.parametrize("word", ["ademamix", "paged_ademamix_8bit", "grokadamw", "stable_adamw", "optimi_adamw"])
def test_what_keeps_more_than_adam_is_refused_by_name(word: str, tmp_path: Path) -> None:
    errors = [remark.message for remark in oumi(tmp_path, optimizer=word).remarks if remark.severity == "error"]
    assert f"optimizer {word}: what it keeps beside Adam's moments is not priced" in errors


@pytest.mark.parametrize(("kind", "bound"), [("", True), ("--torch_dtype float32", False), ("--lora_r 8", True)])
def test_the_type_that_a_release_loads_is_open(kind: str, bound: bool, tmp_path: Path) -> None:
    """transformers 5.0, `from_pretrained`: `dtype` is auto, before it fp32: 7 billion weights fit a card in 16 bits."""
    words = "--model_name_or_path meta-llama/Llama-2-7b-hf --per_device_train_batch_size 1 --bf16 --max_length 512"
    recipe = read(tmp_path, "run.sh", f"torchrun --nproc_per_node 8 train.py {words} {kind}\n")
    assert ("types" in {remark.bound for remark in recipe.remarks}) == bound
    (found,) = check_files([str(tmp_path / "run.sh")], question_of({"hardware": "h100-sxm-80g"}), Gates())
    assert found.outcome == {"": "depends", "--lora_r 8": "fits"}.get(kind, "does_not_fit")
    wide = read(tmp_path, "run.sh", f"torchrun --nproc_per_node 8 train.py {words} {kind} --lora_r 8\n")
    assert wide.options["frozen_dtype"] == "fp32"
    assert (
        "frozen_dtype"
        not in read(tmp_path, "run.sh", f"torchrun train.py {words} --torch_dtype bfloat16 --lora_r 8\n").options
    )


@pytest.mark.parametrize("word", ["galore_adamw", "galore_adamw_8bit_layerwise", "apollo_adamw"])
def test_gradients_of_low_rank_are_refused_by_name(word: str, tmp_path: Path) -> None:
    errors = [remark.message for remark in oumi(tmp_path, optimizer=word).remarks if remark.severity == "error"]
    assert f"optimizer {word}: gradients of low rank are not priced" in errors


def test_what_mason_starts_is_read_with_its_machines(tmp_path: Path) -> None:
    recipe = read(tmp_path, "dpo.sh", MASON)
    assert (recipe.dialect, recipe.model, recipe.nodes, recipe.devices_per_node, recipe.precision) == (
        "open-instruct-shell",
        "olmo-2-7b",
        4,
        8,
        "bf16",
    )
    assert recipe.options["frozen_reference"] == "true"
    assert recipe.options["parameter_dtype"] == "bf16"


@pytest.mark.parametrize(
    "name",
    ["microsoft/Phi-4-mini-flash-reasoning", "microsoft/Phi-4-multimodal-instruct", "x/DeepSeek-R1-0528-Other3-9B"],
)
def test_another_network_is_not_taken_for_the_one_whose_name_it_starts_with(name: str) -> None:
    assert by_name(name) == (None, False)
    assert by_name("microsoft/phi-4-onnx") == ("phi-4", True)


FIREFLY = """{"model_name_or_path": "meta-llama/Llama-2-7b-hf", "per_device_train_batch_size": 2,
"max_seq_length": 1024, "bf16": true, "train_mode": "MODE", "task_type": "TASK", "peft_type": "lora",
"lora_rank": 64, "train_file": "a.jsonl"}
"""


@pytest.mark.parametrize(
    ("mode", "task", "rank", "options"),
    [
        ("full", "sft", None, {}),
        ("lora", "dpo", 64, {"reference_forward": "true"}),
        ("qlora", "sft", 64, {"quantised_base": "true"}),
    ],
)
def test_firefly(mode: str, task: str, rank: int | None, options: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "args.json").write_text(FIREFLY.replace("MODE", mode).replace("TASK", task), encoding="utf-8")
    recipe = read(tmp_path, "run.sh", "torchrun --nproc_per_node 8 train.py --train_args_file args.json\n")
    assert (recipe.model, recipe.seq_length, recipe.lora_rank) == ("llama-2-7b", 1024, rank)
    assert options.items() <= recipe.options.items()
    assert ("quantised_base" in recipe.options) == (mode == "qlora")


@pytest.mark.parametrize(
    ("flag", "is_passed"),
    [
        ("--modules_to_save norm --use_lora 1", False),
        ("--optimizer_name lion", False),
        ("--data_parallel_size 4", False),
        ("--reward_model_name_or_path other", False),
        ("--save_path out", True),
        ("--eval_max_length 512", True),
    ],
)
def test_a_name_that_says_save_or_data_may_still_decide(flag: str, is_passed: bool, tmp_path: Path) -> None:
    recipe = read(tmp_path, "run.sh", LMFLOW, WORDS=flag)
    assert is_passed == (not [remark for remark in recipe.remarks if remark.severity == "error"])


@pytest.mark.parametrize(
    ("script", "is_bound"),
    [("train_lora.py", True), ("sft.py --lora_alpha 16", True), ("train_lora.py --lora_r 8", False), ("sft.py", False)],
)
def test_adapters_without_a_rank_are_priced_as_all_weights_at_most(script: str, is_bound: bool, tmp_path: Path) -> None:
    words = "--model_name_or_path meta-llama/Llama-2-7b-hf --per_device_train_batch_size 1 --bf16 --max_length 512"
    recipe = read(tmp_path, "run.sh", f"torchrun --nproc_per_node 8 {script} {words}\n")
    assert is_bound == any("adapters may be trained" in remark.message for remark in recipe.remarks)


def test_a_trainer_that_calls_its_model_by_name_is_one(tmp_path: Path) -> None:
    """`HfArgumentParser` has the flags of TrainingArguments, beside any name that a script gives its model."""
    words = "--model_name meta-llama/Llama-2-7b-hf --per_device_train_batch_size 1 --bf16 --max_seq_length 512"
    recipe = read(tmp_path, "run.sh", f"torchrun --nproc_per_node 8 train.py {words}\n")
    assert (recipe.dialect, recipe.model, recipe.seq_length) == ("trainer-shell", "llama-2-7b", 512)
    engine = read(tmp_path, "run.sh", f"accelerate launch --num_processes 8 train.py {words}\n")
    assert (engine.dialect, engine.model) == ("accelerate-shell", "llama-2-7b")
    with pytest.raises(UnsupportedError, match="flags of no framework"):  # ms-swift's name of an assistant
        read(tmp_path, "run.sh", f"torchrun --nproc_per_node 8 cli/sft.py --model org/m {words}\n")


DEEPSPEED = """deepspeed --num_gpus 8 train.py --model_name_or_path meta-llama/Meta-Llama-3-8B --learning_rate 1e-5 \\
 --per_device_train_batch_size 2 --gradient_accumulation_steps 4 --bf16 --max_seq_length 512 --deepspeed ds.json
"""


@pytest.mark.parametrize(
    ("batch", "steps", "outcome", "lines"),
    [
        ("2", "4", "fits", []),
        ('"auto"', '"auto"', "fits", []),
        ("4", "4", "refused", [2]),
        ("4", "2", "refused", [2, 3]),
    ],
)
def test_deepspeed_differs_from_the_trainer(
    batch: str, steps: str, outcome: str, lines: list[int], tmp_path: Path
) -> None:
    keys = f'"train_micro_batch_size_per_gpu": {batch},\n"gradient_accumulation_steps": {steps},'
    (tmp_path / "ds.json").write_text(f'{{\n{keys}\n"zero_optimization": {{"stage": 3}}}}\n', encoding="utf-8")
    (tmp_path / "run.sh").write_text(DEEPSPEED, encoding="utf-8")
    (checked,) = check_files([str(tmp_path / "run.sh")], question_of({"hardware": "h100-sxm-80g", "nodes": 1}), Gates())
    assert checked.outcome == outcome
    remarks = [remark for remark in checked.remarks if remark.rule == "contradiction"]
    assert [remark.place and remark.place.line for remark in remarks] == lines


PEFT = """accelerate launch --num_processes 8 train.py --model_name_or_path meta-llama/Llama-2-7b-hf --bf16 True \\
 --per_device_train_batch_size 1 --max_length 512 --packing True --gradient_checkpointing True --use_reentrant False \\
 --add_special_tokens False --append_concat_token False --splits train --lora_r 4 WORDS
"""


@pytest.mark.parametrize(
    ("words", "options", "rank"),
    [
        ("--use_peft_lora True --use_4bit_quantization True --use_nested_quant True", {"quantised_base": "true"}, 4),
        ("--use_peft_lora True --use_flash_attn True --target_modules all", {"flash_attention": "true"}, 4),
        (
            "--use_peft_lora False --use_4bit_quantization False --use_flash_attention_2",
            {"flash_attention": "true"},
            None,
        ),
    ],
)
def test_words_of_the_scripts_of_peft(words: str, options: dict[str, str], rank: int | None, tmp_path: Path) -> None:
    recipe = read(tmp_path, "run.sh", PEFT, WORDS=words)
    assert (recipe.model, recipe.seq_length, recipe.lora_rank) == ("llama-2-7b", 512, rank)
    assert options.items() <= recipe.options.items()
    assert [remark for remark in recipe.remarks if remark.severity == "error" or remark.rule == "unknown-flag"] == []


@pytest.mark.parametrize(("kind", "open_"), [("auto", True), ("bfloat16", False), ("float32", False)])
def test_the_type_of_a_checkpoint_is_not_read(kind: str, open_: bool, tmp_path: Path) -> None:
    recipe = read(tmp_path, "run.sh", LMFLOW.replace(" --use_fsdp", ""), WORDS="", bfloat16=kind)
    assert any("the checkpoint's type" in remark.message for remark in recipe.remarks) == open_


@pytest.mark.parametrize(("stored", "outcome"), [("", "depends"), (", torch_dtype_str: float32", "does_not_fit")])
def test_oumi_loads_weights_in_the_type_of_their_checkpoint(stored: str, outcome: str, tmp_path: Path) -> None:
    """7.2 billion fp32 weights with gradients and moments, 108 GiB, are too many for 80: if they are fp32."""
    text = OUMI.replace("fsdp: {enable_fsdp: true, sharding_strategy: SHARDS}\n", "").replace(
        "meta-llama/Llama-3.1-8B, model_max_length: 32768", f"mistralai/Mistral-7B-v0.1, model_max_length: 2048{stored}"
    )
    read(tmp_path, "train.yaml", text, DATA="x", OPTIMIZER="adamw_torch")
    (found,) = check_files([str(tmp_path / "train.yaml")], question_of({"hardware": "a100-sxm-80g"}), Gates())
    assert found.outcome == outcome


def test_a_job_of_oumi_replaces_keys_of_its_file(tmp_path: Path) -> None:
    oumi(tmp_path)
    starts = "oumi distributed torchrun -m oumi train -c train.yaml"
    job = f'resources: {{accelerators: "A100:4"}}\nworking_dir: .\nrun: |\n  {starts}'
    words = (
        "--training.per_device_train_batch_size 4 \\\n    --training.run_name a.$B --model.model_max_length=2048 && x"
    )
    run = read(tmp_path, "job.yaml", f"{job} {words}\n")
    assert run.layout is not None
    assert (run.layout.micro_batch_size, run.layout.data_parallel, run.seq_length) == (4, 4, 2048)
    before = job.replace("-c train.yaml", '--training.per_device_train_batch_size="64" -c train.yaml')
    earlier = read(tmp_path, "job.yaml", f"{before}\n")
    assert earlier.layout is not None
    assert earlier.layout.micro_batch_size == 64
    for unread in ("--data.train.datasets[0].seed=3", "--training.use_peft --training.seed 3"):
        assert "not-modelled" in {remark.rule for remark in read(tmp_path, "job.yaml", f"{job} {unread}\n").remarks}
    open_run = read(tmp_path, "job.yaml", f"{job} --model.model_max_length=$LENGTH\n")
    assert open_run.seq_length is None
    assert [unknown.name for unknown in open_run.unknowns] == ["LENGTH"]


def test_a_function_of_torchtitans_registry_is_not_run(tmp_path: Path) -> None:
    file = tmp_path / "run.sh"
    file.write_text(
        "torchrun --nproc_per_node=8 -m torchtitan.train --module llama3 --config llama3_8b\n", encoding="utf-8"
    )
    (result,) = check_files([str(file)], question_of({"hardware": "h100-sxm-80g"}), Gates(), root=tmp_path)
    assert result.outcome == "cannot_tell"
    assert "llama3_8b is a function of llama3/config_registry.py" in result.reasons[0]
