"""DoRA (M42): what peft's and torchtune's layers hold, from traces of them, and what a pass takes longer."""

from typing import Any

import pytest

import simulator
from simulator import Estimate
from simulator.errors import InputError

LAYERS: dict[str, Any] = {
    # Three of Llama-3.1-8B's layers; of the small table no loss hides them.
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 3,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 2048,
    "tie_word_embeddings": False,
    "max_position_embeddings": 131072,
}
NARROW = {"parameter_dtype": "bf16", "gradient_dtype": "bf16", "optimizer_dtype": "bf16", "adapter_copies": "false"}
FOUR = {"quantised_base": "true", "quantised_scale_bytes": "1.015625", "widened_rest": "false"}
TUNE = {"repeat_kv": "false"}  # the trace has transformers' layers
TRACED = [
    # Most bytes of tensors alive in a step under FakeTensorMode, adapters of rank 16 on all linear layers, in MiB: peft
    # 0.21 over transformers 5.24, torchtune's DoRALinear bd2a0fc in the same layers, torch 2.13.
    ("peft", 2048, "none", "none", {}, 6309.1),
    ("peft", 2048, "none", "before", {}, 9289.1),
    ("peft", 2048, "full", "none", {}, 4289.9),
    ("peft", 2048, "full", "before", {}, 5237.9),
    ("peft", 16384, "none", "none", {}, 29988.4),
    ("peft", 16384, "full", "none", {}, 13329.3),
    ("transformers", 2048, "none", "none", {}, 5034.9),
    ("transformers", 2048, "none", "before", {}, 6438.9),
    ("transformers", 2048, "full", "none", {}, 3651.6),
    ("transformers", 2048, "full", "before", {}, 4143.6),
    ("transformers", 16384, "none", "none", {}, 22809.0),
    ("transformers", 16384, "full", "none", {}, 11271.8),
    ("peft", 2048, "none", "none", FOUR | {"widened_rest": "true"}, 6072.1),
    ("peft", 2048, "full", "none", FOUR | {"widened_rest": "true"}, 3540.9),
    ("transformers", 2048, "none", "none", FOUR, 4892.8),
    ("transformers", 2048, "full", "none", FOUR, 2941.5),
    ("transformers", 2048, "none", "none", FOUR | NARROW, 3309.4),
    ("transformers", 2048, "full", "none", FOUR | NARROW, 1995.5),
    ("transformers", 2048, "none", "before", FOUR | NARROW, 4865.4),
    ("transformers", 2048, "full", "before", FOUR | NARROW, 2511.5),
    ("torchtune", 2048, "none", "none", TUNE, 4139.6),
    ("torchtune", 2048, "none", "before", TUNE, 4607.6),
    ("torchtune", 2048, "full", "none", TUNE, 2825.7),
    ("torchtune", 2048, "full", "before", TUNE, 3037.7),
    ("torchtune", 16384, "full", "before", TUNE, 10077.8),
]


def adapted(stack: Any, tokens: int = 2048, recompute: Any = "none", model: Any = None, **options: str) -> Estimate:
    return simulator.estimate(
        model=model or LAYERS,
        stack=stack,
        method="lora",
        lora_rank=16,
        devices=1,
        hardware="h200",
        seq_length=tokens,
        micro_batch_size=1,
        global_batch_size=1,
        recompute=recompute,
        options={"adapter_targets": "all", **options},
    )


@pytest.mark.parametrize("case", TRACED)
def test_layers_hold_what_was_traced(case: tuple[str, int, str, str, dict[str, str], float]) -> None:
    """But 64 MiB of cuBLAS' workspaces."""
    stack, tokens, recompute, dropout, options, traced_mib = case
    word = "joint" if stack == "torchtune" else "apart"
    estimate = adapted(stack, tokens, recompute, decomposed_adapters=word, adapter_dropout=dropout, **options)
    assert estimate.memory.allocated_bytes / 2**20 == pytest.approx(traced_mib + 64, rel=0.02)


def test_each_output_has_a_magnitude_with_gradient_and_moments() -> None:
    """Of a layer q, k, v, output, gate, up and down have 43,008 outputs; two moments in fp32."""
    plain, decomposed = (
        adapted("peft", decomposed_adapters=word).memory.parts_bytes["optimizer"] for word in ("none", "apart")
    )
    assert decomposed - plain == 3 * 43008 * 8


def test_a_layer_keeps_both_outputs_of_each_weight() -> None:
    """The base's in 2 bytes, the adapters' in fp32; 2 each under autocast."""
    for stack, width in (("peft", 6), ("transformers", 4)):
        plain, decomposed = (
            adapted(stack, decomposed_adapters=word).memory.parts_bytes["activations"] for word in ("none", "apart")
        )
        assert decomposed - plain == pytest.approx(3 * 43008 * 2048 * width, rel=1e-3)


def test_what_is_dropped_has_a_copy_of_each_weight_and_a_product_of_its_own() -> None:
    """In fp32 without autocast, 4 bytes of 218,103,808 weights a layer; none of 16 bits over 16 bits."""
    joint, apart = (adapted("peft", decomposed_adapters=word, adapter_dropout="before") for word in ("joint", "apart"))
    kept = [each.memory.parts_bytes["activations"] for each in (joint, apart)]
    assert kept[1] - kept[0] == 3 * (4 * 218103808 + 2 * 43008 * 2048)
    seconds = [sum(each.throughput.parts_seconds.values()) for each in (joint, apart)]
    assert seconds[1] > 2 * seconds[0]
    narrow = [
        adapted("torchtune", decomposed_adapters=word, adapter_dropout="before").memory for word in ("joint", "apart")
    ]
    assert narrow[0].parts_bytes == narrow[1].parts_bytes


def test_every_pass_makes_the_norms_anew() -> None:
    """Of 16-bit adapters some 60 bytes a weight at the rate of memory, in both passes where layers are done again."""
    seconds = {
        word: adapted("torchtune", recompute="full", model="llama3.1-8b", decomposed_adapters=word).throughput
        for word in ("none", "joint")
    }
    parts = {word: each.parts_seconds for word, each in seconds.items()}
    assert parts["joint"]["memory_bound"] > 2 * parts["none"]["memory_bound"]
    assert parts["joint"]["recompute"] > parts["none"]["recompute"]
    assert parts["joint"]["gemm"] == pytest.approx(parts["none"]["gemm"], rel=1e-3)


def test_peft_has_no_magnitudes_of_merged_experts() -> None:
    """ParamWrapper stops with use_dora."""
    with pytest.raises(InputError, match="decomposed_adapters=apart: peft has none for experts of one parameter"):
        adapted("peft", model="qwen3-30b-a3b", decomposed_adapters="apart")
    adapted("peft", model="qwen3-30b-a3b", decomposed_adapters="apart", adapter_targets="attention")


def test_the_output_layer_has_no_priced_magnitudes() -> None:
    with pytest.raises(InputError, match="decomposed_adapters=joint: none is priced for the output layer, head"):
        adapted("torchtune", decomposed_adapters="joint", adapter_targets="q+head")


def test_gate_and_up_have_adapters_of_their_own() -> None:
    """Each keeps its input's copy; both save the sum of what either does."""
    kept = {
        targets: adapted("peft", adapter_targets=targets, adapter_dropout="before").memory.parts_bytes["activations"]
        for targets in ("gate", "up", "gate+up")
    }
    assert kept["gate"] == kept["up"] < kept["gate+up"]
