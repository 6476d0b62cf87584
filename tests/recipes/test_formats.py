"""Formats of recipes that other readers' tests do not cover."""

from pathlib import Path

import pytest

from simulator.answers.gates import Gates
from simulator.errors import InputError, NoRecipeError, UnsupportedError
from simulator.question.question import question_of
from simulator.question.recipe import Recipe
from simulator.recipes.check.judge import check_files
from simulator.recipes.readers.read import read_recipe
from tests.recipes.corpus import corpus, public
from tests.recipes.seeds import about, rules


def read(text: str, folder: Path, name: str = "x.yaml", **settings: str) -> Recipe:
    file = folder / name
    file.write_text(text, encoding="utf-8")
    (recipe,) = read_recipe(file, settings)
    return recipe


@pytest.mark.parametrize("end", ["\\", "\\\n", " \\\n", "\\\\\\\n", " \\\n  \n"])
def test_a_file_that_ends_within_a_line(end: str, tmp_path: Path) -> None:
    text = f"torchrun --nproc-per-node 8 t.py --num-layers 2 --micro-batch-size 1 --save x{end}"
    assert read(text, tmp_path, "x.sh").devices_per_node == 8


def test_a_public_file_that_ends_within_a_line() -> None:
    (recipe,) = read_recipe(public("nemo-launcher", "20b_fp8_1node.sh"))
    assert recipe.layout is not None
    assert (recipe.nodes, recipe.layout.micro_batch_size, recipe.layout.tensor_parallel) == (1, 4, 4)
    assert "base-configuration" in rules(recipe)


ARGS = """ENV_VARS:
  PYTORCH_CUDA_ALLOC_CONF: expandable_segments:True
MODEL_ARGS:
  --num-layers: 32
  --hidden-size: 4096
  --ffn-hidden-size: 14336
  --num-attention-heads: 32
  --group-query-attention: true
  --num-query-groups: 8
  --swiglu: true
  --untie-embeddings-and-output-weights: true
  --vocab-size: 128256
  --seq-length: 8192
  --micro-batch-size: ${MBS}
  --global-batch-size: 16
  --tensor-model-parallel-size: $TP
  --sequence-parallel: true
  --use-distributed-optimizer: false
  --recompute-granularity: selective
  --recompute-modules: "[core_attn]"
  --bf16: true
TEST_TYPE: regular
"""


def test_model_args(tmp_path: Path) -> None:
    recipe = read(ARGS, tmp_path, MBS="1", TP="2")
    assert (recipe.dialect, recipe.model, recipe.seq_length) == ("megatron-yaml", "llama3-8b", 8192)
    assert recipe.layout is not None
    layout = recipe.layout
    assert (layout.tensor_parallel, layout.sequence_parallel, layout.zero_stage) == (2, True, 0)
    assert (layout.recompute, recipe.options["expandable_segments"]) == ("selective", "true")
    assert (recipe.places["tp"].line, recipe.unknowns, rules(recipe)) == (16, (), set())


@pytest.mark.parametrize(
    ("words", "encoder"),
    [("vocab.txt", True), ("vocab.json", False), ("vocab.txt\n  --tokenizer-type: GPT2BPETokenizer", False)],
)
def test_a_list_of_word_pieces_is_of_an_encoder(words: str, encoder: bool, tmp_path: Path) -> None:
    """A file names no program; `pretrain_bert.py` takes such a list."""
    text = ARGS.replace("MODEL_ARGS:\n", f"MODEL_ARGS:\n  --vocab-file: ${{DATA}}/bpe/{words}\n")
    assert ("not-modelled" in rules(read(text, tmp_path, MBS="1", TP="2"))) == encoder


@pytest.mark.parametrize(("told", "masks"), [("", True), ("0.0", False), ("0.05", True)])
def test_dropout_where_nothing_is_said_is_a_tenth(told: str, masks: bool, tmp_path: Path) -> None:
    more = f"MODEL_ARGS:\n  --hidden-dropout: {told}\n  --attention-dropout: {told}\n"
    recipe = read(ARGS.replace("MODEL_ARGS:\n", more) if told else ARGS, tmp_path, MBS="1", TP="2")
    found = recipe.options["hidden_dropout"], recipe.options["attention_dropout"]
    assert found == (str(masks).lower(),) * 2


def test_model_args_that_the_environment_gives(tmp_path: Path) -> None:
    recipe = read(ARGS, tmp_path)
    assert {unknown.name: unknown.affects for unknown in recipe.unknowns} == {
        "MBS": ("micro_batch_size",),
        "TP": ("tp",),
    }
    assert recipe.layout is None


def test_model_args_that_start_fewer_processes_than_a_node_has(tmp_path: Path) -> None:
    first = "MODEL_ENV_VARS:\n  MODEL_ARGS:\n    GPUS_PER_NODE: 2\n  MODEL_ARGS_2:\n    GPUS_PER_NODE: 4\n"
    assert read(first + ARGS, tmp_path, MBS="1", TP="2").devices_per_node == 2
    assert read(ARGS, tmp_path, MBS="1", TP="2").devices_per_node is None


def test_public_model_args() -> None:
    (recipe,) = read_recipe(public("megatron-tests", "gpt3_mcore_te_tp2_pp2_mla_1node/model_config.yaml"))
    assert recipe.layout is not None
    assert (recipe.layout.tensor_parallel, recipe.layout.pipeline_parallel) == (2, 2)
    assert (recipe.model_fields["attention"], recipe.model_fields["vocab_size"]) == ("mla", 50432)
    settings = {"TP": "1", "PP": "1", "EP": "8", "CP": "1", "MBS": "1", "GBS": "256", "SEQ_LEN": "4096"}
    (recipe,) = read_recipe(public("megatron-moe-zoo", "Mixtral-8x2B.yaml"), settings)
    assert recipe.layout is not None
    assert (recipe.layout.expert_parallel, recipe.seq_length, recipe.global_batch_size) == (8, 4096, 256)
    (recipe,) = read_recipe(
        public("megatron-tests", "mixtral-nemo_8x7b_mr_mbs1_gbs8_mcore_te_tp2_pp1_ep2_1N8G/model_config.yaml")
    )
    assert recipe.layout is not None
    assert (recipe.dialect, recipe.layout.tensor_parallel, recipe.layout.expert_parallel) == ("nemo-yaml", 2, 4)
    assert (recipe.nodes, recipe.devices_per_node, recipe.global_batch_size) == (1, 8, 8)


PRIMUS = """exp_name: ${EXP:x}
modules:
  pre_trainer:
    framework: FRAMEWORK
    config: pre_trainer.yaml
    model: MODEL.yaml
    overrides:
      stderr_sink_level: DEBUG
"""
MEGATRON = """      micro_batch_size: ${MBS:2}
      global_batch_size: 64
      seq_length: ${SEQ:4096}
      tensor_model_parallel_size: 2
      use_distributed_optimizer: false
      recompute_granularity: full
      recompute_num_layers: ${LAYERS}
"""


def primus(framework: str, model: str, more: str) -> str:
    return PRIMUS.replace("FRAMEWORK", framework).replace("MODEL", model) + more


def test_primus(tmp_path: Path) -> None:
    recipe = read(primus("megatron", "llama3.1_8B", MEGATRON), tmp_path, LAYERS="1", SEQ="8192")
    assert (recipe.dialect, recipe.model, recipe.precision) == ("primus-yaml", "llama3.1-8b", "bf16")
    assert (recipe.seq_length, recipe.global_batch_size, recipe.model_fields) == (8192, 64, {})
    assert recipe.layout is not None
    layout = recipe.layout
    assert (layout.tensor_parallel, layout.micro_batch_size, layout.zero_stage) == (2, 2, 0)
    assert (layout.sequence_parallel, layout.recompute) == (True, "full")
    assert (rules(recipe), recipe.places["tp"].line, recipe.places["model"].line) == ({"assumed-unset"}, 12, 6)


def test_primus_reads_the_files_that_it_names(tmp_path: Path) -> None:
    folder = tmp_path / "primus" / "configs"
    (folder / "models" / "megatron").mkdir(parents=True)
    (folder / "modules" / "megatron").mkdir(parents=True)
    shape = "num_layers: 4\nhidden_size: 512\nffn_hidden_size: 1024\nnum_attention_heads: 8\nvocab_size: 1024\n"
    (folder / "models" / "megatron" / "base.yaml").write_text(f"{shape}swiglu: true\n", encoding="utf-8")
    own = "extends: [base.yaml]\nnum_layers: 6\n"
    (folder / "models" / "megatron" / "mine.yaml").write_text(own, encoding="utf-8")
    (folder / "modules" / "megatron" / "pre_trainer.yaml").write_text("fp16: true\n", encoding="utf-8")
    recipe = read(primus("megatron", "mine", MEGATRON), tmp_path, LAYERS="1")
    assert (recipe.model, recipe.precision) == (None, "fp16")
    assert (recipe.model_fields["num_hidden_layers"], recipe.model_fields["hidden_size"]) == (6, 512)
    assert recipe.places["num_hidden_layers"].file.endswith("mine.yaml")


def test_primus_on_torchtitan(tmp_path: Path) -> None:
    more = "      training: {local_batch_size: 4, seq_len: 8192}\n      parallelism: {tensor_parallel_degree: 2}\n"
    recipe = read(primus("torchtitan", "llama3_8B", more), tmp_path)
    assert (recipe.model, recipe.seq_length, recipe.framework) == ("llama3-8b", 8192, "torch")
    assert recipe.layout is not None
    assert (recipe.layout.tensor_parallel, recipe.layout.micro_batch_size, recipe.layout.recompute) == (2, 4, "none")
    assert recipe.options["compiled"] == "true"
    assert read(primus("torchtitan", "llama3_8B-fp8", more), tmp_path).precision == "fp8"


def test_primus_on_what_keeps_its_values_in_python(tmp_path: Path) -> None:
    with pytest.raises(
        UnsupportedError, match=r"x.yaml:4: Primus' framework 'megatron_bridge' keeps its values in Python"
    ):
        read(primus("megatron_bridge", "qwen3_32b", "      seq_length: 1\n"), tmp_path)


def test_public_primus() -> None:
    (recipe,) = read_recipe(public("primus", "MI300X/llama3.2_1B-BF16-pretrain.yaml"))
    assert (recipe.model, recipe.precision) == ("llama3.2-1b", "bf16")
    (recipe,) = read_recipe(public("primus", "MI355X/llama2_70B-FP8-sft-packed-perf.yaml"))
    assert (recipe.model, recipe.precision, recipe.lora_rank) == ("llama-2-70b", "fp8", 16)
    assert recipe.layout is not None
    assert (recipe.layout.tensor_parallel, recipe.layout.recompute_method, recipe.layout.recompute_layers) == (
        2,
        "block",
        8,
    )


SWIFT = """CUDA_VISIBLE_DEVICES=0,1,2,3 NPROC_PER_NODE=4 \\
PROGRAM sft --model Qwen/Qwen2.5-7B-Instruct --max_length 4096 --packing true \\
  """


def test_megatron_of_swift(tmp_path: Path) -> None:
    flags = "--tensor_model_parallel_size 2 --sequence_parallel true --overlap_grad_reduce false --dataset a b"
    recipe = read(SWIFT.replace("PROGRAM", "megatron") + flags, tmp_path, "x.sh")
    assert (recipe.dialect, recipe.framework, recipe.model) == ("swift-shell", "megatron", "qwen2.5-7b")
    assert (recipe.seq_length, recipe.global_batch_size, recipe.precision) == (4096, 16, "bf16")
    assert (recipe.nodes, recipe.devices_per_node, recipe.lora_rank) == (1, 4, None)
    assert recipe.layout is not None
    layout = recipe.layout
    assert (layout.tensor_parallel, layout.sequence_parallel, layout.zero_stage) == (2, True, 1)
    assert (layout.recompute, recipe.options["overlap_grad_reduce"]) == ("selective", "false")
    assert rules(recipe) == set()


def test_names_that_ascends_stack_has_too_tell_no_stack(tmp_path: Path) -> None:
    own = "      stage: sft\n      original_max_position_embeddings: 4096\n"
    found = [
        read(primus("megatron", "llama3.1_8B", MEGATRON + own), tmp_path, LAYERS="1"),
        read(SWIFT.replace("PROGRAM", "megatron") + "--lora_alpha 16 --dataset a", tmp_path, "x.sh"),
    ]
    assert [(recipe.stack, "loss_bytes_per_logit" in recipe.options) for recipe in found] == [(None, False)] * 2


@pytest.mark.parametrize(
    ("flags", "rule", "severity"),
    [
        ("--freeze_llm true", "not-modelled", "error"),
        ("--some_new_thing 4", "unknown-flag", "error"),
        ("--packing false", "activations-bound", "warning"),
        ("--model Qwen/Qwen2.5-7B-Instruct-AWQ", "not-modelled", "error"),
    ],
)
def test_what_megatron_of_swift_is_not_priced_with(flags: str, rule: str, severity: str, tmp_path: Path) -> None:
    recipe = read(SWIFT.replace("PROGRAM", "megatron") + flags, tmp_path, "x.sh")
    assert (rule, severity) in {(remark.rule, remark.severity) for remark in recipe.remarks}


def test_swift(tmp_path: Path) -> None:
    recipe = read(SWIFT.replace("PROGRAM", "swift") + "--deepspeed zero3_offload --lora_rank 16", tmp_path, "x.sh")
    assert (recipe.dialect, recipe.framework, recipe.model) == ("swift-shell", "torch", "qwen2.5-7b")
    assert (recipe.lora_rank, recipe.precision, recipe.gradient_accumulation_steps) == (16, "bf16", 4)
    assert recipe.layout is not None
    layout = recipe.layout
    assert (layout.zero_stage, layout.offload, layout.recompute) == (3, "optimizer_tensorwise", "full")
    assert recipe.options["offload_parameters"] == "true"
    assert rules(recipe) == set()
    recipe = read(SWIFT.replace("PROGRAM", "swift") + "--tuner_type full --use_liger_kernel true", tmp_path, "x.sh")
    assert (recipe.lora_rank, recipe.options["cross_entropy_chunk_tokens"]) == (None, "128")


def test_swift_that_trains_nothing_or_by_preference(tmp_path: Path) -> None:
    with pytest.raises(NoRecipeError, match="starts no training"):
        read("swift infer --model x\nmegatron export --model x", tmp_path, "x.sh")
    with pytest.raises(UnsupportedError, match=r"x.sh:1: megatron rlhf: a second model"):
        read("megatron rlhf --rlhf_type dpo --model x", tmp_path, "x.sh")
    pairs = SWIFT.replace("PROGRAM sft", "swift rlhf").replace("=4 ", "=2 ")
    assert {"sequences_per_sample", "reference_forward"} <= read(pairs, tmp_path, "x.sh").options.keys()
    spread = read(SWIFT.replace("PROGRAM", "swift").replace("=4 ", "=2 "), tmp_path, "x.sh")
    assert any("device_map" in message for message in about(spread, "upper-bound"))


def test_public_swift() -> None:
    (recipe,) = read_recipe(public("swift", "megatron/dense/qwen3_32b.sh"))
    assert (recipe.model, recipe.devices_per_node, recipe.seq_length) == ("qwen3-32b", 8, 8192)
    assert recipe.layout is not None
    assert (recipe.layout.tensor_parallel, recipe.layout.recompute) == (8, "full")
    (recipe,) = read_recipe(public("swift", "multi-node/swift/train_node1.sh"))
    assert (recipe.nodes, recipe.devices_per_node, recipe.gradient_accumulation_steps) == (2, 4, 4)
    assert recipe.layout is not None
    assert recipe.layout.zero_stage == 2


FACTORY = """model_name_or_path: meta-llama/Meta-Llama-3-8B-Instruct
stage: sft
do_train: true
finetuning_type: full
dataset: identity
template: llama3
per_device_train_batch_size: 1
gradient_accumulation_steps: 8
bf16: yes
"""


def test_llamafactory(tmp_path: Path) -> None:
    recipe = read(f"{FACTORY}deepspeed: examples/deepspeed/ds_z3_config.json\n", tmp_path)
    assert (recipe.dialect, recipe.framework, recipe.model) == ("llamafactory-yaml", "torch", "llama3-8b")
    assert (recipe.seq_length, recipe.precision, recipe.gradient_accumulation_steps) == (2048, "bf16", 8)
    assert recipe.layout is not None
    assert (recipe.layout.zero_stage, recipe.layout.recompute, recipe.lora_rank) == (3, "full", None)
    assert rules(recipe) == {"base-configuration", "activations-bound"}
    (tmp_path / "ds.json").write_text('{"zero_optimization": {"stage": 2}}', encoding="utf-8")
    recipe = read(f"{FACTORY}cutoff_len: 4096\npacking: true\ndeepspeed: ds.json\n", tmp_path)
    assert recipe.layout is not None
    assert (recipe.layout.zero_stage, recipe.seq_length, rules(recipe)) == (2, 4096, set())


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ("use_galore: true", "use_galore: this optimizer or state is not priced"),
        ("stage: ppo", "stage ppo: a second model or another loss is not modelled"),
        ("quantization_bit: 4", "quantized weights are not modelled"),  # full training of them
        ("fp8: true\nfp8_backend: te", "fp8_backend te: TransformerEngine's fp8 below a trainer is not priced"),
    ],
)
def test_what_llamafactory_is_not_priced_with(more: str, message: str, tmp_path: Path) -> None:
    text = FACTORY.replace("stage: sft\n", "") if more.startswith("stage") else FACTORY
    assert message in about(read(f"{text}{more}\n", tmp_path), "not-modelled")


@pytest.mark.parametrize(
    "quantized",
    [
        FACTORY.replace("Meta-Llama-3-8B-Instruct", "Meta-Llama-3-8B-Instruct-AWQ"),
        FACTORY.replace("Meta-Llama-3-8B-Instruct", "Meta-Llama-3-8B-Instruct-AQLM-2Bit-1x16"),
        f"{FACTORY}quantization_bit: 8\nquantization_method: hqq\n",
    ],
)
def test_adapters_on_quantized_weights_fit_where_those_of_16_bits_do(quantized: str, tmp_path: Path) -> None:
    recipe = read(quantized.replace("finetuning_type: full", "finetuning_type: lora"), tmp_path)
    assert recipe.model == "llama3-8b"
    assert any("priced in 16 bits" in told for told in about(recipe, "upper-bound"))
    (found,) = check_files([str(tmp_path / "x.yaml")], question_of({"hardware": "h100-sxm-80g"}), Gates())
    assert found.outcome == "fits"
    (found,) = check_files(
        [str(tmp_path / "x.yaml")], question_of({"hardware": "h100-sxm-80g", "model": "llama3-70b"}), Gates()
    )
    assert found.outcome == "depends"  # fewer bits may fit where 16 do not


@pytest.mark.parametrize("workers", [1, 4, 16])
def test_llamafactory_under_ray_has_as_many_devices_as_workers(workers: int, tmp_path: Path) -> None:
    ray = f"ray_num_workers: {workers}\nresources_per_worker:\n  GPU: 1\nplacement_strategy: PACK\n"
    recipe = read(f"{FACTORY}ray_run_name: a\n{ray}", tmp_path)
    assert "unknown-flag" not in rules(recipe)
    assert recipe.layout is not None
    assert recipe.layout.data_parallel == workers


def test_llamafactory_without_shards_may_be_sharded_by_its_launcher(tmp_path: Path) -> None:
    (tmp_path / "x.yaml").write_text(FACTORY.replace("-8B-", "-70B-").replace("-3-", "-3.1-"), encoding="utf-8")
    (checked,) = check_files([str(tmp_path / "x.yaml")], question_of({"hardware": "a100-sxm-80g", "nodes": 1}), Gates())
    assert checked.outcome != "does_not_fit"


def test_the_command_of_llamafactory(tmp_path: Path) -> None:
    (tmp_path / "x.yaml").write_text(FACTORY, encoding="utf-8")
    recipe = read(
        "NNODES=2 llamafactory-cli train x.yaml per_device_train_batch_size=4 cutoff_len=512\n", tmp_path, "x.sh"
    )
    assert recipe.layout is not None
    assert (recipe.nodes, recipe.layout.micro_batch_size, recipe.seq_length) == (2, 4, 512)
    assert recipe.places["model"].file.endswith("x.yaml")


FACTORY_FLAGS = (
    "--model_name_or_path meta-llama/Meta-Llama-3-8B --do_train --finetuning_type full --cutoff_len 2048 --bf16 "
    "--per_device_train_batch_size 1"
)


@pytest.mark.parametrize(
    ("start", "stage"),
    [
        ("accelerate launch --config_file fsdp.yaml src/train.py x.yaml", 3),
        ("torchrun --nproc_per_node 4 src/train.py x.yaml", 0),
        (f"torchrun --nproc_per_node 4 src/train_bash.py {FACTORY_FLAGS}", 0),
    ],
)
def test_the_program_of_llamafactory(start: str, stage: int, tmp_path: Path) -> None:
    (tmp_path / "x.yaml").write_text(FACTORY, encoding="utf-8")
    (tmp_path / "fsdp.yaml").write_text(
        "distributed_type: FSDP\nfsdp_config: {fsdp_sharding_strategy: FULL_SHARD, fsdp_version: 1}\n"
        "mixed_precision: bf16\nnum_machines: 1\nnum_processes: 4\n",
        encoding="utf-8",
    )
    recipe = read(f"{start}\n", tmp_path, "x.sh")
    assert recipe.layout is not None
    assert (recipe.dialect, recipe.model, recipe.seq_length) == ("llamafactory-shell", "llama3-8b", 2048)
    assert (recipe.devices_per_node, recipe.layout.zero_stage) == (4, stage)


@pytest.mark.parametrize(
    ("model", "outcome"),
    [
        *(
            (name, "not_modelled")
            for name in ("tiiuae/Falcon-H1-1.5B-Base", "LiquidAI/LFM2-350M", "google/gemma-3n-E2B-it")
        ),
        *((name, "not_modelled") for name in ("swiss-ai/Apertus-8B-Instruct-2509", "tiiuae/Falcon-E-3B-Base")),
        ("tiiuae/Falcon3-1B-Base", "fits"),
    ],
)
def test_networks_without_a_spec_are_refused_by_name(model: str, outcome: str, tmp_path: Path) -> None:
    text = f"base_model: {model}\nadapter: lora\nlora_r: 8\nlora_target_linear: true\nload_in_8bit: false\nbf16: true\n"
    more = "sequence_len: 1024\nsample_packing: true\nmicro_batch_size: 1\ndatasets:\n  - path: x\n"
    (tmp_path / "x.yaml").write_text(text + more, encoding="utf-8")
    (found,) = check_files(
        [str(tmp_path / "x.yaml")], question_of({"hardware": "h100-sxm-80g"}), Gates(), root=tmp_path
    )
    assert found.outcome == outcome
    assert (outcome == "fits") != any(f"'{model}' names a network that is not priced" in why for why in found.reasons)


def test_llamafactory_on_megatron_is_refused_by_name() -> None:
    [file] = [row.file for row in corpus("llamafactory") if row.path.endswith("megatron/qwen3_moe_full.yaml")]
    (recipe,) = read_recipe(file)
    refused = [remark.message for remark in recipe.remarks if remark.rule == "not-modelled"]
    assert "tensor_model_parallel_size: mcore_adapter is not read: give the flags of its Megatron run" in refused


@pytest.mark.parametrize(
    ("before", "nodes", "devices"),
    [
        ("msrun --worker_num=32 --local_worker_num=8 --join=True", 4, 8),
        ("msrun --bind_core=True", 1, 8),
        ("uv run --no-sync python -m torch.distributed.run --nnodes 2 --nproc_per_node=4", 2, 4),
        ("uv run torchrun --nproc_per_node 8", 1, 8),
        ("srun -N 2 --ntasks-per-node 8 uv run python", 2, 8),
        ("mpirun -np 16 -npernode 8 python", 2, 8),
        ("mpirun -n 16 --map-by ppr:4:node numactl -l python", 4, 4),
        ("deepspeed --include localhost:1,3", 1, 2),
        ("deepspeed -i worker-0@worker-1", 2, None),
        ('deepspeed --include="worker-0:0-3@worker-1:4,5,6,7" --hostfile h', 2, 4),
    ],
)
def test_launchers(before: str, nodes: int, devices: int | None, tmp_path: Path) -> None:
    flags = "pretrain_gpt.py --num-layers 2 --micro-batch-size 1 --seq-length 128 --bf16"
    recipe = read(f"{before} {flags}\n", tmp_path, "x.sh")
    assert (recipe.nodes, recipe.devices_per_node) == (nodes, devices)


@pytest.mark.parametrize(
    ("words", "asked"),
    [
        ("--include worker-0@worker-1:0,2", {"nodes", "devices_per_node"}),
        ("--include $HOSTS", {"nodes", "devices_per_node"}),
        ("--include worker-0:0@worker-1:0,2", {"nodes", "devices_per_node"}),
        ("--exclude localhost:0", {"nodes", "devices_per_node"}),
    ],
)
def test_devices_that_deepspeed_is_to_take_or_leave(words: str, asked: set[str], tmp_path: Path) -> None:
    flags = "pretrain_gpt.py --num-layers 2 --micro-batch-size 1 --seq-length 128 --bf16 --deepspeed"
    recipe = read(f"deepspeed {words} {flags}\n", tmp_path, "x.sh")
    assert {option for unknown in recipe.unknowns for option in unknown.affects} >= asked


def test_processes_that_fill_no_node(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"x.sh:1: worker_num 12 is no multiple of local_worker_num 8"):
        read("msrun --worker_num 12 --local_worker_num 8 pretrain_gpt.py --num-layers 2\n", tmp_path, "x.sh")


def test_recipes_of_megatron_bridge_that_are_python(tmp_path: Path) -> None:
    text = "uv run python -m torch.distributed.run run_recipe.py --recipe x_config model.seq_length=1 train.a.b=2\n"
    with pytest.raises(
        UnsupportedError, match=r"x.sh:1: recipe x_config: Megatron-Bridge keeps what it sets in Python"
    ):
        read(text, tmp_path, "x.sh")


def test_deepspeed_chat(tmp_path: Path) -> None:
    text = "deepspeed --num_gpus 8 main.py --model_name_or_path llama3-8b --per_device_train_batch_size 4 \\\n"
    text += "  --max_seq_len 512 --zero_stage 3 --offload --deepspeed --dtype bf16 --lora_dim 0\n"
    recipe = read(text, tmp_path, "x.sh")
    assert recipe.layout is not None
    assert (recipe.layout.zero_stage, recipe.layout.offload, recipe.lora_rank) == (3, "optimizer_tensorwise", None)
    assert (recipe.precision, recipe.seq_length) == ("bf16", 512)
    # Beside adapters it trains two tables of 128256 x 4096, unless a flag freezes them: 14 bytes of each weight.
    adapters = read(text.replace("lora_dim 0", "lora_dim 8 --lora_module_name layers."), tmp_path, "x.sh")
    assert (adapters.lora_rank, adapters.unpriced_bytes) == (8, 14 * 2 * 128256 * 4096)
    assert read(text.replace("lora_dim 0", "lora_dim 8 --only_optimize_lora"), tmp_path, "x.sh").unpriced_bytes == 0
    rewards = read(text.replace("lora_dim 0", "num_padding_at_beginning 0"), tmp_path, "x.sh")
    assert (rewards.options["score_head"], rewards.options["sequences_per_sample"]) == ("true", "2")
    (tmp_path / "step2_dpo_finetuning" / "scripts").mkdir(parents=True)
    pairs = read(text, tmp_path / "step2_dpo_finetuning" / "scripts", "x.sh")
    assert (pairs.options["frozen_reference"], pairs.options["sequences_per_sample"]) == ("true", "2")


@pytest.mark.parametrize(
    "words",
    ["model.name_or_path=x model.batch_size=8", "data.train_files=x optim.lr=1", "trainer.n_gpus_per_node=8 model.a=1"],
)
def test_keys_of_other_programs_of_hydra_are_not_taken_for_nemo(words: str, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match=r"x.sh:1: 'launch.py': flags of no framework that is read"):
        read(
            f"accelerate launch --num_processes 8 launch.py loss=dpo ++{words.replace(' ', ' ++')}\n", tmp_path, "x.sh"
        )
    nemo = read(f"python launch.py {words} trainer.devices=8 model.micro_batch_size=2\n", tmp_path, "x.sh")
    assert nemo.dialect == "nemo-shell"


def test_experiments_of_flagscale(tmp_path: Path) -> None:
    (tmp_path / "train").mkdir()
    text = "system:\n  tensor_model_parallel_size: 2\n  use_distributed_optimizer: true\n  precision: {bf16: true}\n"
    text += (
        "model:\n  micro_batch_size: 1\n  global_batch_size: ${experiment.gbs}\n  seq_length: 4096\n  swiglu: true\n"
    )
    (tmp_path / "train" / "x.yaml").write_text(f"{text}  num_layers: 4\n", encoding="utf-8")
    start = "defaults:\n  - _self_\n  - train: x\nexperiment:\n  gbs: 64\n  task: {backend: megatron}\n"
    recipe = read(f"{start}  runner: {{nnodes: 2, nproc_per_node: 4}}\n", tmp_path)
    assert recipe.layout is not None
    assert (recipe.nodes, recipe.devices_per_node, recipe.global_batch_size) == (2, 4, 64)
    assert (recipe.layout.tensor_parallel, recipe.layout.zero_stage, recipe.precision) == (2, 1, "bf16")
    assert recipe.places["tp"].file.endswith("train/x.yaml")
    with pytest.raises(UnsupportedError, match=r"x.yaml:7: FlagScale's tuner chooses the layout as it runs"):
        read(f"{start}  auto_tuner: {{space: {{tensor_model_parallel_size: [1, 2]}}}}\n", tmp_path)
    with pytest.raises(UnsupportedError, match="FlagScale on vllm is not read"):
        read(start.replace("megatron", "vllm"), tmp_path)


def test_a_placeholder_of_flagscale_is_a_value_that_is_missing(tmp_path: Path) -> None:
    text = "system: {tensor_model_parallel_size: 2, precision: {bf16: true}, x: 1}\nmodel:\n  micro_batch_size: 1\n"
    text += "  seq_length: 4096\n  num_layers: 4\n  vocab_size: VALUE # Please replace\n"
    recipe = read(text.replace("VALUE", "xxx"), tmp_path)
    assert [unknown.name for unknown in recipe.unknowns if unknown.affects] == ["model.vocab_size"]
    assert read(text.replace("VALUE", "151851"), tmp_path).unknowns == ()


@pytest.mark.parametrize("end", [" \\", " \\\n", " \\\n   ", " \\\r\n"])
def test_a_line_that_is_continued_where_the_file_ends(end: str, tmp_path: Path) -> None:
    launch = "torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 2 --micro-batch-size 1 --seq-length 128 --bf16"
    recipe = read(f"{launch}{end}", tmp_path, "x.sh")
    assert (recipe.seq_length, recipe.precision, recipe.devices_per_node) == (128, "bf16", 8)
    # Two backslashes are one sign of the last word, not a line that goes on.
    assert read(f"{launch} --save x\\\\", tmp_path, "x.sh").precision == "bf16"


def test_a_refusal_by_name_comes_before_what_is_wrong_in_the_file(tmp_path: Path) -> None:
    file = tmp_path / "x.yaml"
    file.write_text("policy: {}\ngrpo: {a: 1}\nsft: {a: 1}\nsft: {a: 2}\n")
    with pytest.raises(UnsupportedError, match="NeMo-RL"):
        read_recipe(file)
    file.write_text("model: {}\ndata: {cutoff_len: 4096}\nparallel: {fsdp_size: 8}\ntraining: {stage: pt}\n")
    with pytest.raises(UnsupportedError, match="FSDP2 trainer"):
        read_recipe(file)
    file.write_text("general: {}\ntokens: {a: 1}\ntokens: {a: 2}\n")
    with pytest.raises(InputError, match="duplicate key"):
        read_recipe(file)
    file.write_text("algorithm: {adv_estimator: grpo}\nactor_rollout_ref: {rollout: {tensor_model_parallel_size: 2}}\n")
    with pytest.raises(UnsupportedError, match="a file of verl, which is not read"):
        read_recipe(file)
