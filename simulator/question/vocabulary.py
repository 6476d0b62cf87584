"""Closed lists of words of a question (precisions, schedules, frameworks ...), each defined once as a type.

Code that branches on one ends in `assert_never`, so that a new word is a type error wherever it is not handled.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from os import PathLike
from typing import TYPE_CHECKING, Literal, get_args

from simulator.files import read_table, read_words

FRAMEWORK_FOLDER = f"{os.path.dirname(os.path.dirname(os.path.realpath(__file__)))}{os.sep}frameworks"  # noqa: PTH120  start-up time of --help
"""Folder with one folder per framework: its words, profile and stacks. Their files list the frameworks."""


def _framework_files() -> Iterator[str]:
    """Yield the paths of the frameworks' files below their folder, of folders in theirs `stacks` alone."""
    for name in _listed(f"{FRAMEWORK_FOLDER}"):
        files = _listed(f"{FRAMEWORK_FOLDER}/{name}")
        yield from (f"{name}/{file}" for file in files)
        if "stacks" in files:
            yield from (f"{name}/stacks/{file}" for file in _listed(f"{FRAMEWORK_FOLDER}/{name}/stacks"))


def _listed(folder: str) -> list[str]:
    """Return the names in a folder, sorted; none of a file."""
    return sorted(os.listdir(folder)) if os.path.isdir(folder) else []  # noqa: PTH112, PTH208  start-up time


FRAMEWORK_FILES: tuple[str, ...] = tuple(_framework_files())
FRAMEWORKS: tuple[str, ...] = tuple(x.partition("/")[0] for x in FRAMEWORK_FILES if x.endswith("/profile.yaml"))
RECIPE_FORMATS: tuple[str, ...] = tuple(x.partition("/")[0] for x in FRAMEWORK_FILES if x.endswith("/write.py"))
STACK_FILES: Mapping[str, str] = {
    path.rpartition("/")[2].removesuffix(".yaml"): path
    for path in FRAMEWORK_FILES
    if "/stacks/" in path and path.endswith(".yaml")
}
STACKS: tuple[str, ...] = ("default", *sorted(STACK_FILES))
OPTIMIZERS: tuple[str, ...] = tuple(row["name"] for row in read_table(__file__, "specs/optimizers"))


def framework_hint(word: str) -> str:
    """Return `; write --framework ...` for the name of a trainer that is no framework's; else empty."""
    meant = read_words("trainers").get(word.strip().lower().replace("_", "-"), "")
    return f"; write --framework {meant}" if meant else ""


if TYPE_CHECKING:
    FrameworkName = str
    OptimizerName = str
    RecipeFormat = str
    StackName = str
else:
    FrameworkName = Literal[FRAMEWORKS]
    OptimizerName = Literal[OPTIMIZERS]
    RecipeFormat = Literal[RECIPE_FORMATS]
    """Formats in which recipes are written, by the folder of the writer."""
    StackName = Literal[STACKS]
    """Named sets of switches; `default` is the framework's own defaults."""
FileName = str | PathLike[str]
"""Name of what ships, or a path."""
Precision = Literal["bf16", "fp16", "fp8", "fp4", "fp32"]
"""Types of matrix products; `fp4` is NVFP4 or MXFP4: 4 bits, an 8-bit scale for every 16 or 32 numbers."""
TuningMethod = Literal["full", "lora", "qlora"]
"""What is trained: all weights, adapters of low rank, or adapters over frozen weights of 4 bits."""
METHODS: tuple[TuningMethod, ...] = get_args(TuningMethod)
Batching = Literal["padded", "sorted", "packed", "packed_across", "packed_dynamic"]
"""`padded`: samples of a micro batch are as long as its longest. `sorted`: a micro batch has samples of like length.
`packed`: samples fill sequences of equal length, each attends to itself. `packed_across`: attention does not tell them
apart. `packed_dynamic`: each sample on as few context-parallel ranks as hold it."""
BATCHINGS: tuple[Batching, ...] = get_args(Batching)
NARROW: tuple[Precision, ...] = ("fp8", "fp4")
"""Precisions of fewer than 16 bits, to which operands are cast."""
RecomputeMode = Literal["none", "selective", "full", "attention", "operations"]
RecomputeModule = Literal[
    "core_attn", "layernorm", "moe_act", "mla_up_proj", "mlp", "moe", "shared_experts", "moe_gate_up"
]
"""Parts of a layer that selective recompute repeats, by Megatron's names (`--recompute-modules`), and gate and up
projections of routed experts alone (`recompute_fwd_gate_up` of ERNIE)."""
NamedRecomputeMethod = Literal["uniform", "block"]
"""Methods that a user names; `list` follows from a list of layers."""
RecomputeMethod = Literal[NamedRecomputeMethod, "list"]
ScheduleName = Literal["1f1b", "zb_h1", "zb_v", "dualpipe", "dualpipev"]
"""Order of the passes of a pipeline: one forward, one backward in turn, with chunks interleaved; zero bubble ZB-H1 and
ZB-V (Qi et al. 2023); DualPipe from both ends and its half, DualPipeV (DeepSeek)."""
AttentionKernel = Literal["unfused", "flash_1", "sdpa", "sdpa_flash", "flash_2", "flash_3", "ck", "aiter", "npu"]
"""Generations of attention kernels, by their speed: products and softmax apart; FlashAttention 1 and Triton's;
PyTorch's choice since 2.11 (cuDNN 9 on Hopper and Blackwell); its own FlashAttention; FlashAttention 2, as
TransformerEngine 1 calls it; FlashAttention 3 and cuDNN 9; AMD's Composable Kernel; its assembly of AITER; CANN's."""
Offload = Literal["none", "optimizer", "optimizer_tensorwise", "activations"]
OffloadedModule = Literal[
    "attn_norm", "qkv_linear", "core_attn", "attn_proj", "mlp_norm", "expert_fc1", "moe_act", "fused_group_mlp"
]
"""Parts of a layer whose saved tensors go to the host, by Megatron's names (`--offload-modules`)."""
ExpertDispatch = Literal["alltoall", "allgather", "deepep", "hybridep"]
"""Ways to send copies of tokens to their experts, by the names of Megatron's dispatchers."""

ContextExchange = Literal["ring", "gathered_ring", "all_gather", "all_to_all", "all_to_all_ring"]
"""Exchanges of ranks that share a sequence: keys and values from rank to rank; gathered at once and then worked on
rank by rank, as PyTorch does; gathered before attention; tokens for heads; tokens for heads inside a ring."""
Fp8Recipe = Literal["delayed", "tensorwise", "blockwise", "mxfp8"]
"""Scaling of fp8, by Megatron's names (`--fp8-recipe`)."""

Fp4Recipe = Literal["nvfp4", "mxfp4"]
"""Scaling of fp4, by Megatron's names (`--fp4-recipe`): NVIDIA's by 16 numbers, AMD's by 32."""

Capture = Literal["none", "attention", "attention_router", "network", "layers", "full_iteration"]
"""Content of CUDA graphs: nothing, some operations of every layer, all of them, or all passes of a step."""

CAPTURES: tuple[Capture, ...] = get_args(Capture)
CONTEXT_EXCHANGES: tuple[ContextExchange, ...] = get_args(ContextExchange)
FP8_RECIPES: tuple[Fp8Recipe, ...] = get_args(Fp8Recipe)
FP4_RECIPES: tuple[Fp4Recipe, ...] = get_args(Fp4Recipe)

ATTENTION_KERNELS: tuple[AttentionKernel, ...] = get_args(AttentionKernel)
PRECISIONS: tuple[Precision, ...] = get_args(Precision)
RECOMPUTE_MODES: tuple[RecomputeMode, ...] = get_args(RecomputeMode)
OFFLOADED_MODULES: tuple[OffloadedModule, ...] = get_args(OffloadedModule)
RECOMPUTE_MODULES: tuple[RecomputeModule, ...] = get_args(RecomputeModule)
NAMED_RECOMPUTE_METHODS: tuple[NamedRecomputeMethod, ...] = get_args(NamedRecomputeMethod)
RECOMPUTE_METHODS: tuple[RecomputeMethod, ...] = get_args(RecomputeMethod)
EXPERT_DISPATCHES: tuple[ExpertDispatch, ...] = get_args(ExpertDispatch)
SCHEDULES: tuple[ScheduleName, ...] = get_args(ScheduleName)
OFFLOADS: tuple[Offload, ...] = get_args(Offload)
