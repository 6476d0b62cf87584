"""What recipes say of recompute: each mode in the words of each framework, or why it has none.

All raise UnsupportedError for a mode that a framework has no words for.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import assert_never

from simulator.errors import UnsupportedError
from simulator.question.scenario.layout import Layout
from simulator.recipes.check.case import Case
from simulator.recipes.emit.words import flag


def megatron_recompute(case: Case) -> Iterator[str]:
    """Flags of Megatron-LM."""
    mode = case.layout.recompute
    match mode:
        case "none":
            pass
        case "selective":
            if case.layout.recompute_modules == ("core_attn",):
                yield "--recompute-activations"
            else:
                yield f"--recompute-granularity selective --recompute-modules {' '.join(case.layout.recompute_modules)}"
        case "full":
            yield from _megatron_layers(case.layout)
        case "attention" | "operations":
            raise UnsupportedError(f"--recompute {mode}: Megatron-LM recomputes modules or whole layers")
        case _:
            assert_never(mode)


def _megatron_layers(layout: Layout) -> Iterator[str]:
    method = layout.recompute_method
    match method:
        case "uniform" | "block":
            yield f"--recompute-granularity full {flag('recompute-method', method)}"
            yield flag("recompute-num-layers", layout.recompute_layers)
        case "list":
            raise UnsupportedError("--recompute-layer-list: Megatron-LM recomputes all or the first layers of a stage")
        case _:
            assert_never(method)


def paddle_recompute(case: Case) -> Iterator[str]:
    """Flags of the Paddle trainers."""
    layout = case.layout
    mode = layout.recompute
    yield f"--recompute {int(mode != 'none')}"
    match mode:
        case "none":
            pass
        case "selective":
            if layout.recompute_modules != ("core_attn",):
                raise UnsupportedError("--recompute-modules: written are core_attn, full_attn and whole layers")
            yield "--recompute_granularity core_attn"
        case "attention":
            yield "--recompute_granularity full_attn"
        case "full":
            yield "--recompute_granularity full"
            yield from _paddle_layers(case)
        case "operations":
            raise UnsupportedError("--recompute operations: the trainer recomputes the attention or whole layers")
        case _:
            assert_never(mode)


def _paddle_layers(case: Case) -> Iterator[str]:
    layout = case.layout
    if layout.recompute_method == "list":
        kept = [x for x in range(case.scenario.model.num_hidden_layers) if x not in layout.recompute_layer_list]
        if kept:
            yield f"--no_recompute_layers {' '.join(map(str, kept))}"
    elif layout.recompute_method != "uniform" or layout.recompute_layers != 1:
        raise UnsupportedError(
            "--recompute-layers: the trainer recomputes every layer, or all but a list (--recompute-layer-list)"
        )


def torchtitan_recompute(case: Case) -> Iterator[str]:
    """Keys of torchtitan's section `activation_checkpoint`."""
    layout = case.layout
    mode = layout.recompute
    match mode:
        case "none":
            yield 'mode = "none"'
        case "full":
            yield from _torchtitan_layers(case)
        case "operations":
            yield 'mode = "selective"'
            yield 'selective_ac_option = "op"'
        case "attention" | "selective":
            raise UnsupportedError(f"--recompute {mode}: torchtitan recomputes whole layers, or keeps some operations")
        case _:
            assert_never(mode)
    if mode != "none":
        yield f"early_stop = {str(case.scenario.framework.recompute_stops_early).lower()}"


def _torchtitan_layers(case: Case) -> Iterator[str]:
    """Every layer, or every n-th."""
    layout, layers = case.layout, case.scenario.model.num_hidden_layers
    if layout.recompute_method == "uniform" and layout.recompute_layers == 1:
        yield 'mode = "full"'
        return
    every = layout.recompute_layer_list[0] + 1 if layout.recompute_layer_list else 0
    if not every or layout.recompute_layer_list != tuple(range(every - 1, layers, every)):
        raise UnsupportedError("--recompute-layers: torchtitan recomputes every layer, every n-th, or none")
    yield 'mode = "selective"'
    yield f'selective_ac_option = "{every}"'
