"""Layers of transformers' own classes: what one saves, as fake tensors of its code hold it after the forward pass.

transformers 5.24, peft 0.21, torch 2.13: a model of two layers (three with a dense one before) less one with a layer
fewer, 2,048 tokens of one sequence; the mask of packed sequences is there, so that keys and values are expanded.
"""

from typing import Any

import pytest

import simulator
from simulator.question.frameworks.stacks import library_options

MIB = 2.0**20
BASE: Any = {"vocab_size": 8192, "tie_word_embeddings": True, "num_hidden_layers": 3}


def decoder(family: str, hidden: int, inner: int, heads: int, shared: int, **more: Any) -> dict[str, Any]:
    """Return a configuration by its sizes."""
    sizes = {"hidden_size": hidden, "intermediate_size": inner, "num_attention_heads": heads}
    return {**BASE, "model_type": family, **sizes, "num_key_value_heads": shared, **more}


LLAMA = decoder("llama", 4096, 14336, 32, 8)
GEMMA_2 = decoder("gemma2", 3584, 14336, 16, 8, head_dim=256)
GEMMA_3 = decoder("gemma3_text", 2560, 10240, 8, 4, head_dim=256, sliding_window=1024)
PHI_4 = decoder("phi3", 5120, 17920, 40, 10)
PYTHIA = decoder("gpt_neox", 4096, 16384, 32, 32)
OLMO_2 = decoder("olmo2", 4096, 11008, 32, 32)
OPT = decoder("opt", 4096, 16384, 32, 32, ffn_dim=16384, word_embed_proj_dim=4096, activation_function="relu")
BLOOM = {**BASE, "model_type": "bloom", "hidden_size": 4096, "n_layer": 3, "n_head": 32}
GPT_2 = {**BASE, "model_type": "gpt2", "n_embd": 1600, "n_layer": 3, "n_head": 25, "n_positions": 2048}
MIXTRAL = decoder("mixtral", 4096, 14336, 32, 8, head_dim=128, num_local_experts=8, num_experts_per_tok=2)
QWEN = decoder("qwen3_moe", 2048, 6144, 32, 4, head_dim=128, num_experts=128, moe_intermediate_size=768)
OLMOE = decoder("olmoe", 2048, 1024, 16, 16, num_experts=64, num_experts_per_tok=8)
GPT_OSS = decoder("gpt_oss", 2880, 2880, 64, 8, head_dim=64, num_local_experts=32, num_experts_per_tok=4)

PURE: Any = {"options": {"parameter_dtype": "bf16", "gradient_dtype": "bf16", "optimizer_dtype": "bf16"}}
LORA: Any = {"method": "lora", "lora_rank": 8}
TRACED = [
    # configuration, how it is trained, MiB that one layer saves; before, where the families were alike: less by
    (LLAMA, PURE, 416.3),
    (GEMMA_3, PURE, 420.2),  # 12.4 %
    (GEMMA_2, PURE, 1052.1),  # 54.0 %
    (OLMO_2, PURE, 524.3),  # 12.2 %
    (PYTHIA, PURE, 272.3),  # 11.7 %
    (BLOOM, PURE, 1024.0),  # 75.0 %
    (GPT_2, PURE, 175.2),  # 42.8 %
    (MIXTRAL, PURE, 704.5),
    (QWEN, PURE, 408.1),
    (OLMOE, PURE, 401.2),
    (GPT_OSS, PURE, 1095.1),  # 61.2 %
    (PHI_4, LORA, 501.8),  # -11.7 %
    (PYTHIA, LORA, 289.4),
    (OPT, LORA, 305.6),  # 21.3 %
    (LLAMA, {"method": "qlora", "lora_rank": 8}, 617.7),  # 27.4 %
    (LLAMA, LORA | {"options": {"frozen_dtype": "fp32"}}, 865.7),  # 48.2 %
]


@pytest.mark.parametrize(("model", "way", "traced"), TRACED)
def test_a_layer_saves_what_its_class_does(model: dict[str, Any], way: dict[str, Any], traced: float) -> None:
    few, more = (
        simulator.estimate(
            model=model | dict.fromkeys({"n_layer", "num_hidden_layers"} & model.keys(), layers),
            **{"method": "full"} | way,
            hardware="h200",
            devices=1,
            stack="transformers",
            recompute="none",
            seq_length=2048,
            micro_batch_size=1,
            global_batch_size=1,
        ).memory.parts_bytes["activations"]
        for layers in (2, 3)
    )
    assert (more - few) / MIB == pytest.approx(traced, rel=0.005)


def test_only_the_library_s_own_layers_differ_by_family() -> None:
    """torchtune and Unsloth have layers of their own; what a question says goes before a family's."""
    assert library_options("transformers", "gemma2")["composed_norm_bytes"] == "8"
    assert library_options("torchtune", "gemma2") == library_options("transformers", "llama") == {}
    kept: Any = {"hardware": "h200", "devices": 1, "stack": "peft", "seq_length": 2048, "micro_batch_size": 1}
    usual, flash = (
        simulator.estimate(model="gemma2-9b", method="lora", **kept, options=options, recompute="none").memory
        for options in ({}, {"flash_attention": "true"})
    )
    scores = 42 * 8 * 16 * 2048**2
    assert usual.parts_bytes["activations"] - flash.parts_bytes["activations"] == pytest.approx(scores, rel=0.01)
