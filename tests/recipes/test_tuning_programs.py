"""Programs that fine-tune by flags of their own: OpenRLHF's and llama-cookbook's, against traces of their code."""

from pathlib import Path
from typing import Any

import pytest

import simulator
from simulator.api import scenario_of
from simulator.cost.memory.moments import workspace_bytes
from simulator.errors import UnsupportedError
from simulator.question.frameworks.stacks import IN_16_BITS
from simulator.question.recipe import A_NODE, Recipe
from simulator.recipes.readers.read import read_recipe

MIB = 2.0**20
SFT = "deepspeed --module openrlhf.cli.train_sft --model.model_name_or_path meta-llama/Llama-3.1-8B"
OLD = "deepspeed --module openrlhf.cli.train_sft --pretrain meta-llama/Llama-3.1-8B"
COOK = "torchrun --nproc_per_node 4 finetuning.py --model_name meta-llama/Llama-3.1-8B"


def read(folder: Path, line: str) -> Recipe:
    (folder / "run.sh").write_text(line, encoding="utf-8")
    (recipe,) = read_recipe(folder / "run.sh")
    return recipe


def errors(recipe: Recipe) -> list[str]:
    return [remark.message for remark in recipe.remarks if remark.severity == "error"]


def test_openrlhf_by_its_old_names_and_its_new_ones(tmp_path: Path) -> None:
    """v0.10.2 gave each flag a section (`openrlhf/cli/train_sft.py`)."""
    new = "--data.max_len 4096 --train.micro_batch_size 2 --train.batch_size 64 --ds.zero_stage 3 --ds.adam_offload"
    new += " --ds.packing_samples --model.gradient_checkpointing_enable --ds.lora.rank 16 --ds.load_in_4bit"
    new += " --ds.lora.target_modules q_proj v_proj --adam.betas 0.9 0.95 --ds.ring_attn_size 2 --ds.overlap_comm"
    old = "--max_len 4096 --micro_train_batch_size 2 --train_batch_size 64 --zero_stage 3 --adam_offload --flash_attn"
    old += " --packing_samples --gradient_checkpointing --lora_rank 16 --load_in_4bit --target_modules q_proj v_proj"
    old += " --adam_betas 0.9 0.95 --ring_attn_size 2 --overlap_comm --bf16 --input_key question --load_checkpoint"
    first, second = (read(tmp_path, line) for line in (f"{SFT} {new}", f"{OLD} {old}"))
    assert not errors(first)
    assert not errors(second)
    names = ("layout", "seq_length", "global_batch_size", "lora_rank", "options", "precision", "model")
    assert [getattr(first, name) for name in names] == [getattr(second, name) for name in names]
    layout: Any = first.layout
    assert (layout.zero_stage, layout.context_parallel, layout.micro_batch_size, layout.recompute) == (3, 2, 2, "full")
    assert (layout.offload, first.seq_length, first.lora_rank) == ("optimizer_tensorwise", 4096, 16)
    said = {"adapter_targets": "q+v", "quantised_scale_bytes": "1.015625", "dense_masks": "none"}
    said |= {"step_temporaries": "0", "reduction_buffers": "2", "flash_attention": "true", "adapter_dropout": "none"}
    assert said.items() <= first.options.items()


def test_openrlhf_defaults(tmp_path: Path) -> None:
    plain = read(tmp_path, SFT)
    layout: Any = plain.layout
    assert (layout.zero_stage, layout.micro_batch_size, layout.recompute) == (2, 8, "none")
    assert (plain.seq_length, plain.global_batch_size, plain.precision) == (2048, 128, "bf16")
    assert read(tmp_path, f"{SFT} --ds.param_dtype fp16").precision == "fp16"
    assert read(tmp_path, f"{SFT} --ds.lora.rank 8").options["adapter_targets"] == "all"
    # fp32 logits outlive their step: 4 bytes of each of 8 x 2,048 tokens (`fit`, `output`).
    assert plain.unpriced_bytes == 4 * 8 * 2048 * 128256
    liger = read(tmp_path, f"{SFT} --ds.use_liger_kernel").options
    assert liger["fused_swiglu"] == "true"
    assert "cross_entropy_chunk_tokens" not in liger  # the loss takes logits
    assert read(tmp_path, f"{OLD} --bf16").options["flash_attention"] == "false"  # up to v0.8 off by default
    assert read(tmp_path, f"{SFT} --ds.attn_implementation sdpa").options["dense_masks"] == "all"
    assert errors(read(tmp_path, f"{SFT} --ds.tensor_parallel_size 2")) == [
        "--ds.tensor_parallel_size: DeepSpeed's tensor parallelism is not priced"
    ]
    for line in ("--optim muon", "--ds.zpg 8", "--ds.deepcompile", "--ds.some_new_thing 3"):
        assert len(errors(read(tmp_path, f"{SFT} {line}"))) == 1, line


def test_openrlhf_on_preferences(tmp_path: Path) -> None:
    line = SFT.replace("train_sft", "train_dpo")
    pairs = read(tmp_path, f"{line} --ds.lora.rank 8")
    assert (pairs.seq_length, pairs.unpriced_bytes) == (512, 0.0)
    said = {"sequences_per_sample": "2", "reference_forward": "true", "frozen_reference": "true"}
    assert said.items() <= pairs.options.items()
    assert not errors(read(tmp_path, f"{line} --ref.model_name_or_path meta-llama/Llama-3.1-8B"))
    other = read(tmp_path, f"{line} --ref.model_name_or_path meta-llama/Llama-3.2-1B")
    assert errors(other) == ["a frozen copy of another model is not priced"]
    with pytest.raises(UnsupportedError, match="train_rm"):
        read(tmp_path, SFT.replace("train_sft", "train_rm"))


def test_llama_cookbook(tmp_path: Path) -> None:
    plain = read(tmp_path, f"{COOK} --enable_fsdp --dist_checkpoint_folder x")
    layout: Any = plain.layout
    assert (layout.zero_stage, layout.micro_batch_size, layout.recompute, plain.seq_length) == (3, 4, "full", 4096)
    said = {**IN_16_BITS, "flat_parameters": "true", "sync_each_batch": "true", "autocast": "false"}
    assert said.items() <= plain.options.items()
    adapted = "--enable_fsdp --use_peft --peft_method lora"
    tuned = read(tmp_path, f"{COOK} {adapted} --lora_config.r 16 --batch_size_training 2 --context_length 8192")
    assert (tuned.lora_rank, tuned.seq_length, tuned.options["autocast"]) == (16, 8192, "true")
    assert (tuned.options["adapter_targets"], tuned.options["adapter_dropout"]) == ("q+v", "before")
    for pure in ("--fsdp_config.pure_bf16", "--mixed_precision False"):
        found = read(tmp_path, f"{COOK} {adapted} {pure}").options
        assert found["autocast"] == "false"
        assert "parameter_dtype" not in found  # adapters stay in fp32
    shards = "--enable_fsdp --fsdp_config.sharding_strategy HYBRID_SHARD"
    assert read(tmp_path, f"{COOK} {shards} --use_peft").options["sharding_degree"] == A_NODE
    assert read(tmp_path, f"{COOK} {shards} --hsdp --sharding_group_size 2").options["sharding_degree"] == "2"


def test_llama_cookbook_on_one_device(tmp_path: Path) -> None:
    line = "python -m llama_cookbook.finetuning --model_name meta-llama/Llama-3.1-8B --use_peft --quantization"
    eight = read(tmp_path, f"{line} 8bit")
    layout: Any = eight.layout
    assert (eight.devices_per_node, layout.zero_stage, layout.recompute) == (1, 0, "none")
    assert (eight.options["quantised_bits"], eight.options["widened_rest"]) == ("8", "false")
    nested = read(tmp_path, f"{line} 4bit --quantization_config.use_double_quant").options
    assert nested["quantised_scale_bytes"] == "1.015625"
    assert read(tmp_path, f"{line} 4bit --batching_strategy padding").seq_length is None
    assert len(errors(read(tmp_path, f"{COOK} --enable_fsdp --use_peft --quantization 8bit"))) == 1
    assert len(errors(read(tmp_path, f"{COOK} --enable_fsdp --use_peft --peft_method prefix"))) == 1
    assert len(errors(read(tmp_path, f"{COOK} --enable_fsdp".replace("meta-llama/Llama-3.1-8B", "Qwen/Qwen3-8B")))) == 1
    with pytest.raises(UnsupportedError):
        read(tmp_path, "torchrun finetuning.py --alpha 1")


def test_deepspeed_chat_by_its_zero_stage(tmp_path: Path) -> None:
    """DeepSpeedExamples 45b4b71, step1_supervised_finetuning/main.py: 16 sequences of 512 unless told otherwise."""
    plain = read(tmp_path, "deepspeed --num_gpus 1 main.py --model_name_or_path facebook/opt-1.3b --zero_stage 0")
    layout: Any = plain.layout
    assert (layout.micro_batch_size, plain.seq_length, plain.precision) == (16, 512, "fp16")


SMALL: Any = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 512, "rms_norm_eps": 1e-6}
SMALL |= {"intermediate_size": 1536, "num_hidden_layers": 5, "num_attention_heads": 8, "num_key_value_heads": 2}
SMALL |= {"max_position_embeddings": 16384, "tie_word_embeddings": False, "hidden_act": "silu"}
LORA = "--use_peft --r 8 --lora_dropout 0"


@pytest.mark.parametrize(
    ("flags", "size", "traced", "apart"),
    [
        # Traced MiB: 0e003351's wrapping, precision, checkpoints and loop by torch 2.13's FSDP 1 on a processor, with a
        # fake process group, transformers 5.24 and peft 0.21, the second step.
        ("", (2, 32000), 493.36, 0.001),
        ("--fsdp_activation_checkpointing False", (2, 12000), 300.69, 0.001),
        ("--batch_size_training 2", (2, 12000), 332.15, 0.001),
        ("--gradient_accumulation_steps 2", (2, 12000), 246.02, 0.001),
        ("--gradient_accumulation_steps 3", (4, 12000), 193.82, 0.001),
        ("--sharding_strategy SHARD_GRAD_OP", (4, 12000), 203.78, 0.001),
        (f"{LORA} --context_length 1536", (2, 1000), 72.72, 0.01),
        (f"{LORA} --pure_bf16", (2, 1000), 49.61, 0.01),
        (f"{LORA} --target_modules q_proj,k_proj,v_proj,o_proj", (2, 1000), 50.0, 0.01),
        (f"{LORA} --fsdp_activation_checkpointing False", (2, 1000), 98.33, 0.021),
        (f"{LORA} --fsdp_activation_checkpointing False --pure_bf16", (2, 1000), 105.95, 0.02),
    ],
)
def test_what_llama_cookbook_holds(
    flags: str, size: tuple[int, int], traced: float, apart: float, tmp_path: Path
) -> None:
    devices, words = size
    usual = {"batch_size_training": "1", "context_length": "768"}
    words_of_usual = " ".join(f"--{name} {value}" for name, value in usual.items() if name not in flags)
    recipe = read(tmp_path, f"{COOK} --enable_fsdp {words_of_usual} {flags}")
    layout: Any = recipe.layout
    micro, steps = layout.micro_batch_size, recipe.gradient_accumulation_steps or 1
    sizes: Any = {"model": {**SMALL, "vocab_size": words}, "framework": "torch", "hardware": "h100-sxm-80g"}
    sizes |= {"seq_length": recipe.seq_length, "precision": "bf16", "options": recipe.options, "devices": devices}
    sizes |= {"global_batch_size": devices * micro * steps, "method": "lora" if recipe.lora_rank else "full"}
    sizes |= {"lora_rank": recipe.lora_rank} if recipe.lora_rank else {}
    cut = {"zero_stage": layout.zero_stage, "micro_batch_size": micro, "recompute": layout.recompute}
    held = simulator.estimate(**sizes, **cut).memory.allocated_bytes - workspace_bytes(scenario_of(**sizes))
    assert held / MIB == pytest.approx(traced, rel=apart)
