"""Which way each choice of a layout, and each field of a workload, moves the figures; a figure not named stays.

Sizes grow with the devices: replicas stay as many, so that what a size shards is not spread over fewer of them.
"""

import itertools
from collections.abc import Mapping
from typing import NamedTuple

from simulator.question.vocabulary import RECOMPUTE_MODES, RECOMPUTE_MODULES
from tests.directions.questions import Fields, Figure, fields
from tests.directions.switches import Way, moves


class Choice(NamedTuple):
    """Two layouts or two workloads, and what moves from the first to the second."""

    before: Fields
    after: Fields
    moves: Mapping[Figure, Way]
    because: str = ""
    """Why a figure may go either way."""
    questions: tuple[str, ...] = ()
    """The questions it is put to; all that have experts for its sizes where there are none."""


def choice(before: Fields, after: Fields, text: str, because: str = "", questions: tuple[str, ...] = ()) -> Choice:
    return Choice(before, after, moves(text), because, questions)


def along(name: str, values: tuple[object, ...], text: str, because: str = "", **beside: object) -> tuple[Choice, ...]:
    """One field along its values, beside others."""
    return tuple(
        choice(beside | {name: before}, beside | {name: after}, text, because)
        for before, after in itertools.pairwise(values)
    )


_MORE_BATCHES = along("global_batch_size", (64, 128), "seconds+")
AGAIN = "saved- device- flop+ seconds+"
FULL, BLOCK = fields(recompute="full"), fields(recompute="full", recompute_method="block")
LIST = fields(recompute="full", recompute_method="list")
PIPELINED = fields(pipeline_parallel=2)
SPLIT = fields(tensor_parallel=2, sequence_parallel=True)
_POLICIES: tuple[Fields, ...] = ({}, FULL, BLOCK | fields(recompute_layers=4), fields(recompute="selective"))
LAYOUT: dict[str, tuple[Choice, ...]] = {
    "tensor_parallel": along(
        "tensor_parallel", (1, 2, 4), "state- device- saved- seconds?", "shorter products, longer exchanges"
    ),
    "pipeline_parallel": along(
        "pipeline_parallel", (1, 2, 4), "state- saved- device? seconds?", "as many micro batches in flight as ranks"
    ),
    "context_parallel": along(
        "context_parallel", (1, 2, 4), "state- device? saved- seconds?", "it shards state too; a ring has buffers"
    ),
    "expert_parallel": along(
        "expert_parallel", (1, 2, 8), "state- device? seconds?", "units are gathered ahead; exchanges take time"
    ),
    "expert_tensor_parallel": along(
        "expert_tensor_parallel", (1, 2), "state- saved+ device? seconds?", "copies are gathered", **SPLIT
    ),
    "data_parallel": along(
        "data_parallel", (2, 4, 8), "state- device? seconds-", "fewer micro batches, less is summed"
    ),
    "virtual_stages": along("virtual_stages", (1, 2), "device+ seconds-", **PIPELINED),
    "schedule": (
        *along("schedule", ("1f1b", "zb_h1"), "device+ seconds-", **PIPELINED),
        *(
            choice(
                PIPELINED | fields(virtual_stages=2),
                PIPELINED | fields(virtual_stages=2, schedule=schedule),
                "state? device? seconds?",
                "the output layer lies on the first rank",
            )
            for schedule in ("zb_v", "dualpipev")
        ),
        *along(
            "schedule", ("1f1b", "dualpipe"), "state? saved+ device+ seconds?", "two copies of every layer", **PIPELINED
        ),
    ),
    "micro_batch_size": along("micro_batch_size", (1, 2), "saved+ device+ seconds?", "fewer, longer micro batches"),
    "zero_stage": (
        *along(
            "zero_stage", (0, 1), "state? device? seconds?", "sharded frozen weights are fp32; halves of a reduction"
        ),
        *along("zero_stage", (1, 2), "state- device? seconds?", "whole layers pass through; exchanges are hidden"),
        *along("zero_stage", (2, 3), "state? device? seconds?", "DeepSpeed's gradients have a buffer at stage 3 alone"),
    ),
    "sequence_parallel": along(
        "sequence_parallel", (False, True), "saved- device- seconds?", "more and smaller exchanges", tensor_parallel=4
    ),
    "recompute": tuple(
        choice({}, fields(recompute=mode), AGAIN) for mode in RECOMPUTE_MODES if mode not in ("none", "selective")
    ),
    # Norms and activation functions are no products.
    "recompute_modules": (
        *(
            choice(
                {},
                fields(recompute="selective", recompute_modules=(module,)),
                AGAIN.replace("flop+ ", "") if module in ("layernorm", "moe_act") else AGAIN,
            )
            for module in RECOMPUTE_MODULES
            if module != "core_attn"
        ),
        choice(
            {},
            fields(recompute="selective", recompute_modules=("core_attn",)),
            AGAIN.replace("saved-", "saved?").replace("device-", "device?"),
            "the view of the values holds the joint projection, where flash attention saves no scores",
        ),
    ),
    "recompute_method": (
        choice(BLOCK | fields(recompute_layers=4), FULL, AGAIN),
        choice({}, LIST | fields(recompute_layer_list=(0, 2)), AGAIN),
    ),
    "recompute_layers": (
        *along("recompute_layers", (1, 2, 4), AGAIN, **BLOCK),
        *along("recompute_layers", (1, 2), "saved- device?", "fewer inputs, but two layers at a time", **FULL),
    ),
    "recompute_layer_list": along("recompute_layer_list", ((0,), (0, 2), (0, 1, 2)), AGAIN, **LIST),
    "offload": tuple(
        choice(beside | again, beside | again | fields(offload=offload), text)
        for offload, text in (
            ("optimizer", "state- device- host+ seconds+"),
            ("optimizer_tensorwise", "state- device- host+ seconds+"),
            ("activations", "saved- device- host+"),
        )
        for beside in ({}, PIPELINED)
        for again in _POLICIES
    ),
    # One layer more on the first rank.
    "stage_layers": along(
        "stage_layers",
        ((16, 16), (17, 15)),
        "state+ saved+ device+ seconds?",
        "the last has the output layer",
        **PIPELINED,
    ),
    "chunk_layers": (
        choice(
            PIPELINED | fields(virtual_stages=2, stage_layers=(16, 16)),
            PIPELINED | fields(virtual_stages=2, stage_layers=(17, 15), chunk_layers=(9, 8, 8, 7)),
            "state+ saved+ device+ seconds?",
            "the last has the output layer",
        ),
    ),
}
"""By the field of a layout."""
WORKLOADS: dict[str, tuple[Choice, ...]] = {
    "seq_length": along("seq_length", (4096, 8192), "saved+ device+ flop+ seconds+"),
    # Gradients stay between micro batches.
    "global_batch_size": (*along("global_batch_size", (8, 64), "device+ seconds+"), *_MORE_BATCHES),
    "precision": (
        *along("precision", ("fp32", "bf16"), "state? saved- device? seconds-", "a master copy beside 16-bit weights"),
        *along("precision", ("bf16", "fp8"), "state? saved- device? seconds-", "copies of weights in 8 bits stay"),
        choice(fields(precision="fp8"), fields(precision="fp4"), "state- saved- device- seconds-", questions=("fp4",)),
        choice(fields(precision="fp16"), fields(precision="bf16"), "", "both have 16 bits"),
    ),
    "lora_rank": (
        *along("lora_rank", (None, 16), "state- device- flop- saved? seconds-", "adapters keep tensors of their own"),
        *along("lora_rank", (16, 32), "state+ saved+ device+ flop+ seconds+"),
    ),
}
"""By the field of a workload."""
