"""What people fine-tune with: adapters, 4-bit bases and eager layers, from one small card to eight large ones.

Measured figures have their source beside them; hand counts are written out here from the sizes of the model alone.
"""

from typing import Any

import pytest

import simulator
from simulator import InputError
from simulator.question.question import question_of
from tests.cli.running import refusal

GIB, MIB = 2.0**30, 2.0**20
CODER = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 2048,
    "intermediate_size": 5504,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "vocab_size": 32256,
    "max_position_embeddings": 16384,
    "tie_word_embeddings": False,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
}
"""DeepSeek-Coder-1.3B."""
ON_T4 = [
    # model, bits of the base, flash attention, tokens, rank, tensors and process in MiB: Anassbzdd/fitcheck
    # data/measurements, final-t4-20260921.json and t4-phase3-2026-09-16.json (torch 2.10, transformers 5.0, peft 0.19).
    (CODER, 4, False, 1024, 16, 1975.49, 2414.875),
    (CODER, 4, True, 1024, 16, 1971.74, 2312.875),
    ("qwen2.5-1.5b", 4, True, 1024, 16, 4235.15, 5352.875),
    ("qwen2.5-1.5b", 4, False, 1024, 16, 4235.78, 5200.875),
    ("llama3.2-1b", 4, True, 1024, 16, 3723.08, 4166.875),
    ("llama3.2-1b", 4, False, 1024, 16, 3728.08, 4198.875),
    ("qwen2.5-1.5b", 4, False, 2048, 32, 6850.05, 7724.875),
    ("qwen2.5-1.5b", 16, False, 2048, 32, 7410.32, 8262.875),
    ("qwen2.5-1.5b", 4, True, 2048, 32, 6831.17, 7744.875),
    ("qwen2.5-1.5b", 16, True, 2048, 32, 7402.32, 7906.875),
]


@pytest.mark.parametrize("row", ON_T4)
def test_adapters_on_one_t4(row: tuple[Any, int, bool, int, int, float, float]) -> None:
    model, bits, flash, tokens, rank, tensors, process = row
    options = {"adapter_targets": "attention", "flash_attention": str(flash).lower(), "quantised_scale_bytes": "1.016"}
    found = simulator.estimate(
        model=model,
        hardware="t4",
        devices=1,
        method="qlora" if bits == 4 else "lora",
        stack="peft",
        lora_rank=rank,
        precision="fp16",
        seq_length=tokens,
        micro_batch_size=1,
        global_batch_size=1,
        recompute="full",
        options=options,
    )
    assert found.memory.allocated_bytes / MIB == pytest.approx(tensors, rel=0.025)
    assert found.memory.device_bytes / MIB == pytest.approx(process, rel=0.06)
    assert found.verdict == "fits"


@pytest.mark.parametrize(("method", "measured"), [("lora", 16.2), ("qlora", 7.4)])
def test_torchtune_s_own_figures_of_one_card(method: str, measured: float) -> None:
    """README of meta-pytorch/torchtune bd2a0fc: Llama 3.1 8B on one 4090, batch 2, packed to 2048, compiled."""
    found = simulator.estimate(
        model="llama3.1-8b",
        hardware="4090",
        devices=1,
        method=method,  # type: ignore[arg-type]
        stack="torchtune",
        seq_length=2048,
        micro_batch_size=2,
        global_batch_size=2,
        recompute="full",
        options={"compiled": "true"},
    )
    assert found.memory.allocated_bytes / GIB == pytest.approx(measured, rel=0.1)
    assert found.verdict == "fits"


HIDDEN, LAYERS, WORDS = 4096, 36, 151_936
LINEAR = LAYERS * (HIDDEN * (4096 + 2 * 1024) + 4096 * HIDDEN + 3 * HIDDEN * 12_288)
TABLES = 2 * WORDS * HIDDEN
WEIGHTS = LINEAR + TABLES
ADAPTERS = LAYERS * 8 * ((HIDDEN + 4096) + (HIDDEN + 1024))
"""Of Qwen3-8B: rank 8 on queries and values."""


def by_hand(method: str, devices: int, tokens: int) -> float:
    """Bytes at the loss: state, the layers' inputs, logits of 14 bytes (16 of an fp32 output layer); or of the step."""
    wide = method == "qlora"
    inputs = LAYERS * tokens * HIDDEN * (4 if wide else 2)
    loss = tokens * WORDS * (16 if wide else 14)
    gathered = 2 * WORDS * HIDDEN if devices > 1 else 0
    match method:
        case "full":
            # fp32 weights and two moments, in the step gradients and a temporary too; on one device autocast's copies.
            casts = 2 * WEIGHTS if devices == 1 else gathered
            return max(20 * WEIGHTS / devices, 12 * WEIGHTS / devices + casts + inputs + loss)
        case "lora":
            base = 2 * WEIGHTS if devices == 1 else 4 * WEIGHTS / devices
        case _:
            base = (LINEAR * (0.5 + 4 / 64) + 4 * TABLES) / devices
    return base + 18 * ADAPTERS / devices + gathered + inputs + loss


@pytest.mark.parametrize(
    ("method", "hardware", "devices", "tokens", "fits"),
    [
        ("qlora", "rtx-4090", 1, 2048, True),
        ("qlora", "rtx-4090", 1, 8192, False),
        ("qlora", "l40s", 1, 8192, True),
        ("lora", "rtx-4090", 1, 1024, True),
        ("lora", "rtx-4090", 1, 8192, False),
        ("lora", "l40s", 1, 8192, True),
        ("lora", "rtx-4090", 4, 2048, True),
        ("lora", "h100-sxm-80g", 8, 8192, True),
        ("full", "h100-sxm-80g", 1, 2048, False),
        ("full", "l40s", 4, 2048, True),
        ("full", "h100-sxm-80g", 8, 4096, True),
    ],
)
def test_eleven_questions_as_a_hand_count_answers_them(
    method: Any, hardware: str, devices: int, tokens: int, fits: bool
) -> None:
    found = simulator.estimate(
        model="qwen3-8b",
        method=method,
        hardware=hardware,
        devices=devices,
        stack="peft",
        seq_length=tokens,
        micro_batch_size=1,
        global_batch_size=devices,
        recompute="full",
    )
    assert found.framework == "torch"
    assert found.memory.allocated_bytes == pytest.approx(by_hand(method, devices, tokens), rel=0.08)
    assert (found.verdict == "fits") is fits
    assert found.layout.zero_stage == (0 if devices == 1 else 3)


def test_a_method_is_a_rank_and_a_base() -> None:
    """The library's own rank; a stated one stays, and so does the framework of a file."""
    asked = question_of({"model": "qwen3-8b", "method": "qlora"})
    assert (asked.value("framework"), asked.value("lora_rank")) == ("torch", 8)
    assert asked.options == {"quantised_base": "true"}
    assert question_of({"method": "lora", "stack": "trl"}).value("lora_rank") == 16
    assert question_of({"method": "lora", "lora_rank": 64}).value("lora_rank") == 64
    file = question_of({"framework": "megatron", "lora_rank": 4})
    whole = question_of({"method": "full"}).over(file)
    assert (whole.value("framework"), whole.value("lora_rank")) == ("megatron", None)
    with pytest.raises(InputError, match="lora_rank 8: method full trains all weights"):
        question_of({"method": "full", "lora_rank": 8})
    assert "did you mean 'qlora'" in refusal("estimate", "--model", "qwen3-8b", "--method", "qlor")


@pytest.mark.parametrize(("zero_stage", "stored"), [(0, 2 * 1), (3, 4 / 8)])
def test_a_sharded_base_is_of_the_parameters_type(zero_stage: int, stored: float) -> None:
    """accelerate widens what FSDP2 shards; a plain module stays in 16 bits."""
    sizes: Any = {"model": "qwen3-8b", "hardware": "h100-sxm-80g", "devices": 8, "method": "lora"}
    found = simulator.estimate(**sizes, zero_stage=zero_stage, seq_length=1024, global_batch_size=8)
    assert found.memory.parts_bytes["parameters"] == pytest.approx(stored * WEIGHTS, rel=0.03)


def test_freed_blocks_end_where_the_device_is_full() -> None:
    """What PyTorch gives back before it fails is no need."""
    near: Any = {"model": "llama3.1-8b", "hardware": "h100-sxm-80g", "nodes": 1, "tp": 2, "stack": "default"}
    found = [simulator.estimate(**near, micro_batch_size=size, global_batch_size=64).memory for size in (1, 2, 4)]
    for memory in found:
        assert memory.need_bytes <= memory.device_bytes
        assert memory.outside_parts_bytes["cached"] >= 0
    assert found[-1].outside_parts_bytes["cached"] == 0 < found[0].outside_parts_bytes["cached"]
