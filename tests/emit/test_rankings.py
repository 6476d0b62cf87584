"""What a ranking, its risky layouts and its remedies show can be launched: its framework has words for all of it."""

from typing import Any

import pytest

import simulator
from simulator.errors import UnsupportedError
from simulator.question.frameworks.stacks import DEFAULT, STACKS, framework_of

RANKINGS = (
    ("llama3.1-8b", 2, "megatron", "bf16"),
    ("llama3.1-8b", 1, "megatron", "fp8"),
    ("llama3.1-8b", 2, "torch", "bf16"),
    ("llama3.1-8b", 2, "paddle", "bf16"),
    ("llama3.1-70b", 8, "megatron", "bf16"),
    ("llama3.1-70b", 8, "torch", "bf16"),
    ("llama3.1-70b", 2, "paddle", "bf16"),
    ("llama3.1-405b", 8, "megatron", "bf16"),
    ("qwen3-30b-a3b", 4, "megatron", "bf16"),
    ("qwen3-30b-a3b", 4, "paddle", "bf16"),
    ("deepseek-v3", 32, "megatron", "bf16"),
    ("llama3.2-1b", 1, "megatron", "bf16"),
)
"""The 405B question fits nowhere: its remedies are what is recommended."""


@pytest.mark.parametrize(("model", "nodes", "framework", "precision"), RANKINGS)
def test_every_layout_shown_can_be_launched(model: str, nodes: int, framework: str, precision: str) -> None:
    found = simulator.rank(
        model=model,
        hardware="h100-sxm-80g",
        nodes=nodes,
        framework=framework,
        precision=precision,  # type: ignore[arg-type]  # a word of the table
        top=12,
    )
    shown = [*found.estimates, *found.risky, *(remedy.estimate for remedy in found.remedies)]
    assert shown
    for priced in shown:
        assert simulator.emit(priced)


ON_DEVICES = (("qwen3-8b", "h100-sxm-80g", 1), ("llama3.1-70b", "mi300x", 2), ("qwen3-30b-a3b", "ascend-910c", 1))
TRAIN_ADAPTERS = [stack.name for stack in STACKS if "tensor_parallel" in stack.lacks]


EVERY = [*((*where, None) for where in ON_DEVICES), *((*where, DEFAULT) for where in ON_DEVICES)]
"""Without a stack and with the bare framework on all of them; each stack on one, in turn."""
EVERY += [(*ON_DEVICES[number % len(ON_DEVICES)], stack.name) for number, stack in enumerate(STACKS)]


@pytest.mark.parametrize(("model", "hardware", "nodes", "stack"), EVERY)
def test_the_best_layout_of_every_stack_can_be_launched(
    model: str, hardware: str, nodes: int, stack: str | None
) -> None:
    """As `simulate emit` without a word of layout takes it, and as a ranking shows it."""
    asked: dict[str, Any] = {"model": model, "hardware": hardware, "nodes": nodes, "stack": stack}
    asked |= {"framework": framework_of(stack)} if stack and framework_of(stack) else {}
    # accelerate sums whole gradients over the micro batches of a step.
    asked |= {"global_batch_size": 16} if stack in {"transformers", "llama-factory", "axolotl"} else {}
    asked |= {"model": "qwen3-0.6b"} if stack == "unsloth" else {}  # its devices are replicas
    written = simulator.emit(**asked)
    assert stack is None or f"stack={stack}" in written
    assert simulator.emit(simulator.rank(**asked, top=1).estimates[0])


@pytest.mark.parametrize("stack", [None, *TRAIN_ADAPTERS])
def test_adapters_and_remedies_of_fine_tuning_stacks_can_be_launched(stack: str | None) -> None:
    asked: dict[str, Any] = {"hardware": "rtx-4090", "framework": "torch", "stack": stack, "seq_length": 4096}
    assert "lora_r" in simulator.emit(model="qwen3-8b", lora_rank=16, devices=4, **asked)
    remedies = simulator.rank(model="llama3.1-8b", devices=1, **asked).remedies
    assert any("--method qlora" in remedy.change for remedy in remedies)
    assert all(simulator.emit(remedy.estimate, force=True) for remedy in remedies)


@pytest.mark.parametrize("stack", ["transformers", "trl", "peft"])
def test_what_a_library_does_on_a_device_needs_no_word(stack: str) -> None:
    script = simulator.emit(model="qwen3-0.6b", lora_rank=8, hardware="t4", devices=2, stack=stack, force=True)
    assert "--dtype float16" in script
    assert "--dtype bfloat16" not in script


@pytest.mark.parametrize(
    ("stack", "word"), [(None, 'implementation = "fused"'), ("transformers", "--optim adamw_torch_fused")]
)
def test_a_fused_optimizer_is_written(stack: str | None, word: str) -> None:
    asked: dict[str, Any] = {"model": "llama3.1-8b", "hardware": "h100", "devices": 8, "framework": "torch"}
    assert word in simulator.emit(**asked, stack=stack, optimizer="adamw_torch_fused").replace("\\\n   ", "")
    with pytest.raises(UnsupportedError, match="step_temporaries=2"):
        simulator.emit(**asked, stack=stack, options={"step_temporaries": "2"})


def test_layers_that_are_done_again_are_not_captured() -> None:
    asked: dict[str, Any] = {"model": "qwen3-30b-a3b", "nodes": 1, "stack": "megatron-bridge@26.08"}
    again = simulator.estimate(**asked, ep=8, tp=1, recompute="full", recompute_method="uniform", recompute_layers=1)
    assert [broken.rule for broken in again.violations] == ["captured_layers"]
    assert all(simulator.emit(best) for best in simulator.rank(**asked).estimates)
