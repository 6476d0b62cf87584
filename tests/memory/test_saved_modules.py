"""Whole modules that are trained beside LoRA adapters (M35), by peft's documents and by hand."""

from pathlib import Path
from typing import Any

import pytest

import simulator
from simulator import Estimate
from simulator.recipes.readers.read import read_recipe

MISTRAL = 32000 * 4096
"""Numbers of Mistral 7B's input table, and of its output layer."""
MIB = 2**20


def priced(modules: str = "none", **changed: Any) -> Estimate:
    question = {"model": "mistral-7b", "hardware": "a100-sxm-80g", "framework": "torch", "stack": "peft"}
    layout: Any = {
        "lora_rank": 8,
        "devices": 1,
        "global_batch_size": 1,
        "seq_length": 512,
        "zero_stage": 0,
        "recompute": "full",
    }
    options = {"saved_modules": modules, "release_grads": "false"} | changed.pop("options", {})
    return simulator.estimate(**question | layout | {"calibration": "none"} | changed, options=options)


def state(estimate: Estimate) -> tuple[float, float, float]:
    held = estimate.memory.parts_bytes
    return held["parameters"], held["gradients"], held["optimizer"]


def more(modules: str, **changed: Any) -> list[float]:
    """Bytes of each kind of state, for each number of the table, that a module brings."""
    plain, with_modules = state(priced(**changed)), state(priced(modules, **changed))
    return [(after - before) / MISTRAL for before, after in zip(plain, with_modules, strict=True)]


def test_a_trained_table_takes_what_peft_measures() -> None:
    """huggingface/peft 5d602fdb, docs/source/package_reference/lora.md: Mistral-7B takes 15,562 MB with six trainable
    tokens and about 16,500 with all of `embed_tokens` trained.
    """
    grown = priced("embedding").memory.allocated_bytes - priced().memory.allocated_bytes
    assert grown / MIB == pytest.approx(16500 - 15562, rel=0.1)


@pytest.mark.parametrize("modules", ["embedding", "output"])
def test_a_copy_has_the_type_of_the_base(modules: str) -> None:
    """peft deep-copies the module; its gradient and torch's two moments have its type."""
    assert more(modules) == pytest.approx([2, 2, 4])


def test_copies_in_fp32_are_cast_where_they_multiply() -> None:
    """LLaMA-Factory casts what is trained to fp32; autocast keeps a 16-bit copy of an output layer."""
    wide = {"options": {"saved_modules_dtype": "fp32"}}
    assert more("embedding", **wide) == pytest.approx([4, 4, 8])
    assert more("output", **wide) == pytest.approx([6, 4, 8])
    assert more("both", **wide) == pytest.approx([10, 8, 16])


def test_copies_of_a_widened_base_are_wide() -> None:
    """`prepare_model_for_kbit_training` of peft makes the tables that are copied fp32."""
    assert more("embedding", options={"quantised_base": "true", "widened_rest": "true"}) == pytest.approx([4, 4, 8])


def test_8_bit_moments_of_a_table_stay_wide() -> None:
    """transformers 4.57.1, `create_optimizer`: bitsandbytes keeps 32 bits for `nn.Embedding`; a head is none."""
    of_table, of_head = (more(each, optimizer="adamw_8bit") for each in ("embedding", "output"))
    assert of_table == pytest.approx([2, 2, 8])
    assert of_head == pytest.approx([2, 2, 2 * (1 + 4 / 256)], rel=1e-3)


def test_an_engine_keeps_masters_of_what_is_trained() -> None:
    """DeepSpeed's 16-bit optimizers have an fp32 master and two fp32 moments of every trained weight."""
    assert more("embedding", stack="deepspeed")[::2] == pytest.approx([2, 12])


def test_a_tied_table_is_copied_for_either_end() -> None:
    """peft's page: without `ensure_weight_tying` the two ends of a tied table are treated as separate."""
    tied: Any = {"model": "qwen3-0.6b"}
    plain, one, two = (state(priced(each, **tied)) for each in ("none", "embedding", "both"))
    assert two[2] - plain[2] == pytest.approx(2 * (one[2] - plain[2]))


def test_stages_cut_copies_as_they_cut_adapters() -> None:
    cut: Any = {"devices": 4, "global_batch_size": 4}
    assert more("both", zero_stage=3, **cut) == pytest.approx([1, 1, 2])


def test_a_trained_head_computes_its_gradient() -> None:
    """The output layer's third product: 2 FLOP for each of its weights and tokens; a table's gradient adds only."""
    plain, table, head = (priced(each) for each in ("none", "embedding", "output"))
    flops = [each.throughput.model_flops_per_token for each in (plain, table, head)]
    assert flops[1] == flops[0]
    assert flops[2] - flops[0] == pytest.approx(2 * MISTRAL)
    seconds = [each.throughput.step_seconds for each in (plain, table, head)]
    assert seconds == sorted(seconds)
    assert len(set(seconds)) == 3


def test_without_adapters_nothing_stands_beside_them() -> None:
    every, word = (priced(each, lora_rank=None) for each in ("none", "both"))
    assert every.memory.allocated_bytes == word.memory.allocated_bytes
    assert every.throughput.step_seconds == word.throughput.step_seconds


FACTORY = """model_name_or_path: meta-llama/Meta-Llama-3-8B
stage: sft
finetuning_type: lora
lora_target: all
dataset: a
template: llama3
cutoff_len: 2048
packing: true
per_device_train_batch_size: 1
bf16: true
"""
AXOLOTL = """base_model: meta-llama/Meta-Llama-3-8B
adapter: lora
lora_r: 16
lora_target_linear: true
sequence_len: 2048
sample_packing: true
micro_batch_size: 1
datasets: [{path: a}]
bf16: true
"""
TRL = "trl sft --model_name_or_path meta-llama/Meta-Llama-3-8B --use_peft --lora_r 16 --bf16 --packing"
SWIFT = "swift sft --model Qwen/Qwen2.5-7B --tuner_type lora --max_length 2048 --packing true"
MEGATRON = "megatron sft --model Qwen/Qwen2.5-7B --tuner_type lora --max_length 2048 --packing true"
BOTH = ("both", "bf16")


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("run.yaml", FACTORY + "additional_target: embed_tokens,lm_head\n", ("both", "fp32")),
        ("run.yaml", FACTORY + "additional_target: lm_head\npure_bf16: true\n", ("output", "bf16")),
        ("run.yaml", FACTORY, None),
        ("run.yml", AXOLOTL + "lora_modules_to_save: [embed_tokens, lm_head]\n", BOTH),
        ("run.yml", AXOLOTL + "lora_modules_to_save:\n", None),
        (
            "run.yml",
            AXOLOTL.replace("adapter: lora", "flash_attention: true") + "lora_modules_to_save: [embed_tokens]\n",
            None,
        ),
        ("run.sh", f"{TRL} --lora_modules_to_save embed_tokens lm_head", ("both", "fp32")),
        ("run.sh", f"{TRL} --torch_dtype bfloat16 --lora_modules_to_save model.embed_tokens", ("embedding", "bf16")),
        ("run.sh", f"{SWIFT} --modules_to_save embed_tokens lm_head", BOTH),
        ("run.sh", f"{SWIFT} --modules_to_save all-embedding", ("embedding", "bf16")),
        ("run.sh", f"{MEGATRON} --modules_to_save word_embeddings output_layer", BOTH),
    ],
)
def test_libraries_say_what_stands_beside_adapters(
    name: str, text: str, expected: tuple[str, str] | None, tmp_path: Path
) -> None:
    (tmp_path / name).write_text(text, encoding="utf-8")
    (recipe,) = read_recipe(tmp_path / name)
    assert not [remark for remark in recipe.remarks if remark.severity == "error"]
    chosen = tuple(recipe.options[word] for word in ("saved_modules", "saved_modules_dtype") if word in recipe.options)
    assert chosen == (expected or ())


@pytest.mark.usefixtures("bare", "closed_switches")
def test_buckets_of_copies_stand_beside_their_gradients() -> None:
    """DistributedDataParallel's, of the gradients' type: two tables in fp32, and adapters."""
    held = [
        priced("both", devices=devices, global_batch_size=devices, options={"plain_module": word})
        for devices, word in ((4, "false"), (4, "true"), (1, "true"))
    ]
    bytes_of = [each.memory.stages[0].state_bytes for each in held]
    assert bytes_of[1] - bytes_of[0] == pytest.approx(state(held[0])[1])
    assert state(held[0])[1] > 2 * 2 * MISTRAL
    assert bytes_of[2] < bytes_of[1]


def test_other_modules_beside_adapters_make_no_verdict(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text(FACTORY + "additional_target: embed_tokens,norm\n", encoding="utf-8")
    (recipe,) = read_recipe(tmp_path / "run.yaml")
    (error,) = [remark for remark in recipe.remarks if remark.severity == "error"]
    assert error.message.startswith("norm: of modules beside adapters")
