"""A number of any size, in any place of a recipe or of a model's configuration, is answered or refused at once."""

import json
import os
import re
import resource
import time
from pathlib import Path

import pytest

from simulator.answers.gates import Gates
from simulator.question.question import question_of
from simulator.recipes.check.judge import check_files

SECONDS, BYTES = 2, 300_000_000
"""Most processor time of one file, and most memory beyond that of the tests."""
VALUES = ("1000000000", "2147483647")
_NUMBER = re.compile(r"(?<![\w.$/-])\d+(?![\w./-])")
_MEGATRON = (
    "--num-layers 8 --hidden-size 1024 --ffn-hidden-size 4096 --num-attention-heads 16 --num-query-groups 8 "
    "--kv-channels 64 --group-query-attention --seq-length 4096 --max-position-embeddings 4096 --micro-batch-size 2 "
    "--global-batch-size 64 --vocab-size 32000 --make-vocab-size-divisible-by 128 --swiglu --bf16 "
    "--tensor-model-parallel-size 2 --pipeline-model-parallel-size 2 --context-parallel-size 1 "
)
_MOE = (
    "--num-experts 8 --moe-router-topk 2 --moe-ffn-hidden-size 1024 --moe-shared-expert-intermediate-size 1024 "
    "--expert-model-parallel-size 2 --moe-layer-freq 1 --recompute-granularity full --recompute-method block "
    "--recompute-num-layers 2 --num-layers-per-virtual-pipeline-stage 2 --sequence-parallel\n"
)
_TORCHRUN = "torchrun --nnodes 1 --nproc_per_node 8 "
_CONFIG = {
    "architectures": ["Qwen3MoeForCausalLM"],
    "model_type": "qwen3_moe",
    "hidden_size": 1024,
    "num_hidden_layers": 8,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "intermediate_size": 4096,
    "moe_intermediate_size": 512,
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "vocab_size": 32000,
    "max_position_embeddings": 4096,
    "decoder_sparse_step": 1,
    "tie_word_embeddings": False,
}
_TUNED = "model_name_or_path: meta-llama/Llama-3.2-1B\nper_device_train_batch_size: 1\ngradient_accumulation_steps: 8\n"
RECIPES = {
    "megatron.sh": f"{_TORCHRUN}pretrain_gpt.py {_MEGATRON}\n",
    "experts.sh": f"{_TORCHRUN}pretrain_gpt.py {_MEGATRON}{_MOE}",
    "mindspeed.sh": f"{_TORCHRUN}pretrain_gpt.py {_MEGATRON}--use-flash-attn --first-k-dense-replace 1 {_MOE}",
    "trainer.sh": (
        f"{_TORCHRUN}train.py --model_name_or_path meta-llama/Llama-2-7b-hf --per_device_train_batch_size 2 "
        "--gradient_accumulation_steps 4 --model_max_length 2048 --bf16 True --fsdp 'full_shard auto_wrap'\n"
    ),
    "swift.sh": (
        "NPROC_PER_NODE=8 swift sft --model Qwen/Qwen2.5-7B-Instruct --tuner_type lora --lora_rank 8 --max_length 2048 "
        "--per_device_train_batch_size 1 --gradient_accumulation_steps 16 --torch_dtype bfloat16\n"
    ),
    "titan.toml": (
        '[model]\nname = "llama3"\nflavor = "8B"\n[training]\nlocal_batch_size = 2\nseq_len = 8192\n[parallelism]\n'
        "data_parallel_shard_degree = 8\ntensor_parallel_degree = 1\npipeline_parallel_degree = 1\n"
    ),
    "llamafactory.yaml": f"{_TUNED}stage: sft\ndo_train: true\nfinetuning_type: lora\nlora_rank: 8\ncutoff_len: 2048\n",
    "axolotl.yaml": (
        "base_model: meta-llama/Llama-3.2-1B\nmicro_batch_size: 2\ngradient_accumulation_steps: 4\nsequence_len: 4096\n"
        "adapter: lora\nlora_r: 16\noptimizer: adamw_8bit\nbf16: true\ndatasets:\n  - path: a\n"
    ),
    "paddle.yaml": (
        "model_name_or_path: baidu/ERNIE-4.5-21B-A3B-PT\nstage: SFT\nper_device_train_batch_size: 1\n"
        "max_seq_len: 8192\n"
        "gradient_accumulation_steps: 4\ntensor_model_parallel_size: 2\npipeline_model_parallel_size: 2\n"
        "expert_model_parallel_size: 2\nbf16: true\nsharding: stage1\nfine_tuning: Full\n"
    ),
    "nemo.yaml": (
        "trainer:\n  devices: 8\n  num_nodes: 1\n  precision: bf16\nmodel:\n  num_layers: 8\n  hidden_size: 1024\n"
        "  ffn_hidden_size: 4096\n  num_attention_heads: 16\n  num_query_groups: 8\n  encoder_seq_length: 4096\n"
        "  max_position_embeddings: 4096\n  micro_batch_size: 1\n  global_batch_size: 64\n  vocab_size: 32000\n"
        "  tensor_model_parallel_size: 1\n  pipeline_model_parallel_size: 1\n  num_moe_experts: 8\n"
    ),
    "neox.yml": (
        '{"pipe_parallel_size": 1, "model_parallel_size": 1, "num_layers": 12, "hidden_size": 768,\n'
        '"num_attention_heads": 12, "seq_length": 2048, "max_position_embeddings": 2048,\n'
        '"train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 2, "make_vocab_size_divisible_by": 128,\n'
        '"optimizer": {"type": "Adam", "params": {"lr": 0.0006}}, "train_iters": 100}\n'
    ),
    "foundry.yaml": (
        "max_seq_len: 2048\nglobal_seed: 17\nmodel:\n  name: mpt_causal_lm\n  d_model: 768\n  n_heads: 12\n"
        "  n_layers: 12\n  expansion_ratio: 4\n  max_seq_len: 2048\n  vocab_size: 50368\nglobal_train_batch_size: 256\n"
        "device_train_microbatch_size: 4\noptimizer:\n  name: decoupled_adamw\nprecision: amp_bf16\n"
    ),
    "olmo.yaml": (
        "run_name: a\nmodel:\n  d_model: 1024\n  n_heads: 16\n  n_layers: 8\n  mlp_ratio: 8\n"
        "  max_sequence_length: 2048\n"
        "  vocab_size: 50280\n  embedding_size: 50304\nglobal_train_batch_size: 64\n"
        "device_train_microbatch_size: 2\noptimizer:\n  name: adamw\nprecision: amp_bf16\n"
    ),
    "nanotron.yaml": (
        "model:\n  dtype: bfloat16\n  make_vocab_size_divisible_by: 2\n  model_config:\n    hidden_size: 1024\n"
        "    intermediate_size: 4096\n    num_attention_heads: 8\n    num_hidden_layers: 10\n    vocab_size: 32001\n"
        "    num_key_value_heads: 4\n    max_position_embeddings: 2048\noptimizer:\n  zero_stage: 1\n"
        "parallelism:\n  dp: 2\n  tp: 2\n  pp: 2\n  context_parallel_size: 1\n"
        "tokens:\n  micro_batch_size: 2\n  sequence_length: 2048\n  batch_accumulation_per_replica: 3\n"
    ),
    "tune.yaml": (
        "tokenizer:\n  _component_: torchtune.models.llama3.llama3_tokenizer\n  max_seq_len: 4096\nmodel:\n"
        "  _component_: torchtune.models.llama3_2.lora_llama3_2_1b\n  lora_rank: 64\nbatch_size: 4\ndtype: bf16\n"
        "gradient_accumulation_steps: 8\noptimizer:\n  _component_: torch.optim.AdamW\n"
    ),
    "open_instruct.yaml": f"{_TUNED}max_seq_length: 4096\ndataset_mixer:\n  a: 1\nuse_flash_attn: true\n",
    "oumi.yaml": (
        "model:\n  model_name: meta-llama/Llama-3.2-1B\n  model_max_length: 4096\n  torch_dtype_str: bfloat16\n"
        "data:\n  train: {}\ntraining:\n  trainer_type: TRL_SFT\n  per_device_train_batch_size: 2\n"
        "  gradient_accumulation_steps: 8\n"
    ),
    "config.json": json.dumps(_CONFIG),
}


_BEGINS = {"experts.sh": len(f"{_TORCHRUN}pretrain_gpt.py {_MEGATRON}")}
"""Where the numbers begin that no other recipe has: `mindspeed.sh` holds all of them beside experts."""


def changed_texts(name: str) -> list[str]:
    """A recipe's text with each of its numbers replaced."""
    text, begins = RECIPES[name], _BEGINS.get(name, 0)
    places = [match for match in _NUMBER.finditer(text) if match.start() >= begins]
    return [text[: match.start()] + value + text[match.end() :] for match in places for value in VALUES]


def judge_all(name: str, folder: Path, texts: list[str]) -> None:
    """Judge each text within the limits; what exceeds them kills the process, and an internal error raises."""
    used = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + BYTES, used + BYTES))
    recipe, options = folder / name, question_of({"hardware": "h100-sxm-80g"})
    if name == "config.json":
        recipe = folder / "train.sh"
        recipe.write_text(RECIPES["trainer.sh"].replace("meta-llama/Llama-2-7b-hf", str(folder)), encoding="utf-8")
    for text in texts:
        (folder / name).write_text(text, encoding="utf-8")
        allowed = int(time.process_time()) + 1 + SECONDS
        resource.setrlimit(resource.RLIMIT_CPU, (allowed, resource.RLIM_INFINITY))
        for result in check_files([str(recipe)], options, Gates(), root=folder):
            if "internal error" in " ".join(result.reasons):
                raise AssertionError(f"{text}: {result.reasons}")


@pytest.mark.parametrize("name", RECIPES)
def test_a_number_of_any_size_is_answered_or_refused(name: str, tmp_path: Path) -> None:
    texts = changed_texts(name)
    assert len(texts) >= 4
    check_files([], question_of({"hardware": "h100-sxm-80g"}), Gates())  # what every check reads, before the fork
    child = os.fork()
    if child == 0:
        status = 1
        try:
            judge_all(name, tmp_path, texts)
            status = 0
        except BaseException as error:  # noqa: BLE001  the parent shows it
            (tmp_path / "error").write_text(repr(error)[-2000:], encoding="utf-8")
        finally:
            os._exit(status)
    _, status = os.waitpid(child, 0)
    errors = [file.read_text(encoding="utf-8") for file in (tmp_path / "error", tmp_path / name) if file.exists()]
    assert os.waitstatus_to_exitcode(status) == 0, errors[:1]


@pytest.mark.parametrize("name", RECIPES)
def test_the_recipes_are_read_as_they_are(name: str, tmp_path: Path) -> None:
    """A recipe that is refused as it is would prove nothing."""
    (tmp_path / name).write_text(RECIPES[name], encoding="utf-8")
    if name == "config.json":
        (tmp_path / "train.sh").write_text(
            RECIPES["trainer.sh"].replace("meta-llama/Llama-2-7b-hf", str(tmp_path)), encoding="utf-8"
        )
    file = tmp_path / ("train.sh" if name == "config.json" else name)
    (result,) = check_files([str(file)], question_of({"hardware": "h100-sxm-80g"}), Gates(), root=tmp_path)
    assert result.framework, result.reasons
    assert result.outcome != "unreadable", result.reasons


def test_a_number_of_bytes_or_parameters_may_be_large(tmp_path: Path) -> None:
    """Buckets of 10^9, as public configurations of DeepSpeed have them, are counts of something else."""
    zero = {"stage": 3, "reduce_bucket_size": 10**9, "stage3_max_live_parameters": 10**9}
    (tmp_path / "zero.json").write_text(json.dumps({"zero_optimization": zero}), encoding="utf-8")
    file = tmp_path / "run.sh"
    text = RECIPES["trainer.sh"].replace("--fsdp 'full_shard auto_wrap'", "--deepspeed zero.json")
    file.write_text(text, encoding="utf-8")
    (result,) = check_files([str(file)], question_of({"hardware": "h100-sxm-80g"}), Gates(), root=tmp_path)
    assert result.outcome in ("fits", "longest_does_not_fit"), result.reasons
