"""Switches of the framework profile as Megatron's flags and environment set them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from simulator.frameworks.arguments import Arguments as Given
from simulator.frameworks.mindspeed.special import mindspeed_options, overlapped, repeated_heads, usual_exchange
from simulator.frameworks.values import Value
from simulator.question.scenario.layout import Layout
from simulator.question.vocabulary import FP8_RECIPES

ALLOCATOR: Final = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF", "PYTORCH_NPU_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF")
"""Variables that set up PyTorch's allocator."""
FLASH: Final = (
    "use-flash-attn",
    "use-flash-attn-v1",
    "use-flash-attn-v2",
    "use-flash-attn-triton",
    "use-flash-attn-builder",
)
"""Flags that fuse attention, of Megatron-LM and of forks."""
_SWITCHES: Final = {
    "tp_comm_overlap": "tp-comm-overlap",
    "overlap_grad_reduce": "overlap-grad-reduce",
    "overlap_param_gather": "overlap-param-gather",
    "fused_cross_entropy": "cross-entropy-loss-fusion",
}
"""Flags that turn a switch on."""
_UNFUSED: Final = {
    "overlap_p2p": "no-overlap-p2p-communication",
    "fused_rotary": "no-rope-fusion",
    "fused_gradient_accumulation": "no-gradient-accumulation-fusion",
    "fused_swiglu": "no-bias-swiglu-fusion",
}
"""Flags that turn a switch off."""
_DROPOUT: Final = "0.1"
"""Share of either dropout where no flag tells it (megatron/training/arguments.py since v2.0)."""
_ALL: Final = 2**31
"""Micro batches that are put off where no limit is told."""
_DTYPES: Final = {"fp32": "fp32", "bf16": "bf16", "fp16": "bf16"}


def options_of(
    given: Given, environment: Mapping[str, Value] | None, layout: Layout, heads: int | None, places: int | None
) -> Mapping[str, str]:
    """Switches of the framework profile as the recipe sets them; `heads` are the key-value heads, `places` layers."""
    found = dict(mindspeed_options(given, layout, places))

    def flag(switch: str, name: str, *, opposite: bool = False) -> None:
        value = given.switch(switch, name)
        if switch not in given.incomplete:
            found[switch] = str(value != opposite).lower()

    for switch, name in _SWITCHES.items():
        flag(switch, name)
    if environment is not None:
        found |= _allocator(given, environment) | _communicators(environment) | _launches(environment)
    if not _flash(given, environment or {}):
        found["flash_attention"] = "false"
    found |= _dropped(given) | _narrow(given) | _dtypes(given) | _capacity(given) | _offloaded(given, layout)
    found |= _exchange(given, layout, heads) | _expert_exchange(given) | _deferred(given)
    found |= _fully_sharded(given)
    if given.integer("mtp", "mtp-num-layers", "num-nextn-predict-layers", low=0):
        found["mtp"] = "true"
    groups = given.integer("sharding_replicas", "num-distributed-optimizer-instances", high=2**20)
    if groups and groups > 1 and layout.zero_stage:
        found["sharding_replicas"] = str(groups)
    # With sequence parallelism input gradients are reduced aside whatever the flag says.
    waits = {} if layout.sequence_parallel else {"overlap_tensor_gradients": "no-async-tensor-model-parallel-allreduce"}
    for switch, name in (_UNFUSED | waits).items():
        if given.has(name):
            flag(switch, name, opposite=True)
    return found | overlapped(found)


def _fully_sharded(given: Given) -> dict[str, str]:
    """PyTorch's FSDP2 around Megatron's layers (core_v0.19.0, distributed/torch_fully_sharded_data_parallel.py).

    Weights and gradients are of the type computed with, as no policy of precision is given; every micro batch's
    gradients are reduced; `Float16OptimizerWithFloat16Params` has fp32 master weights and copies gradients to fp32.
    """
    if not given.switch("zero_stage", "use-torch-fsdp2"):
        return {}
    if given.has("fp8-format"):
        said = "--use-torch-fsdp2: 8-bit copies of whole layers are priced, as if they were kept for all of them"
        given.remark("upper-bound", "warning", said, "use-torch-fsdp2")
    names = ("fully_shard", "widened_gradients", "overlap_grad_reduce", "overlap_param_gather")
    return {"gradient_dtype": "bf16"} | dict.fromkeys(names, "true")


def _allocator(given: Given, environment: Mapping[str, Value]) -> dict[str, str]:
    """Whether the allocator grows its segments in place."""
    allocator = next((environment[name] for name in ALLOCATOR if name in environment), None)
    if allocator is not None and not allocator.known:
        given.need(allocator.causes, "expandable_segments")
        return {}
    text = allocator.text.lower() if allocator else ""
    return {"expandable_segments": str("expandable_segments:true" in text).lower()}


def _communicators(environment: Mapping[str, Value]) -> dict[str, str]:
    """The buffer of HCCL's groups, in MiB."""
    size = environment.get("HCCL_BUFFSIZE")
    known = size is not None and size.known and re.fullmatch(r"[1-9][0-9]{0,5}", size.text, re.ASCII)
    return {"communicator_buffer_mib": size.text} if size is not None and known else {}


def _deferred(given: Given) -> dict[str, str]:
    """Micro batches whose gradient of the output layer waits; all where no limit is told."""
    if not given.switch("deferred_head_gradients", "defer-embedding-wgrad-compute"):
        return {}
    limit = given.integer("deferred_head_gradients", "wgrad-deferral-limit", low=0)
    return {"deferred_head_gradients": str(limit or _ALL)}


def _launches(environment: Mapping[str, Value]) -> dict[str, str]:
    """Whether the host waits for every kernel."""
    waits = environment.get("CUDA_LAUNCH_BLOCKING")
    return {"blocking_launches": "true"} if waits is not None and waits.known and waits.text == "1" else {}


def _offloaded(given: Given, layout: Layout) -> dict[str, str]:
    fraction = given.text("offload_fraction", "optimizer-offload-fraction")
    if fraction is None or not layout.offload.startswith("optimizer"):
        return {}
    return {"offload_fraction": _number(given, "optimizer-offload-fraction", fraction, most=1.0)}


def _exchange(given: Given, layout: Layout, heads: int | None) -> dict[str, str]:
    """How context parallelism exchanges; megatron-core may name a kind for every layer, which are priced if alike."""
    if layout.context_parallel == 1:
        return {}
    names = ("cp-comm-type", "context-parallel-algo")
    told = re.findall(r"[\w+]+", given.text("cp_communication", *names) or "")
    kinds = {_CONTEXT_KINDS.get(word, "") for word in told}
    if len(kinds) > 1 or "" in kinds:
        said = f"context parallelism by {', '.join(sorted(set(told)))[:60]} is priced as a ring"
        given.remark("not-modelled", "warning", said, *names)
        return {}
    kind = kinds.pop() if kinds else usual_exchange(given, layout)
    found = _inner_degree(given) if kind == "all_to_all_ring" else {"cp_communication": kind}
    if kind.startswith("all_to_all") and heads:
        exchanging = int(found.get("cp_inner_degree", layout.context_parallel))
        found |= repeated_heads(given, heads // layout.tensor_parallel, exchanging)
    return {} if kind == "ring" else found


def _inner_degree(given: Given) -> dict[str, str]:
    """Tokens for heads within a ring: the innermost of Megatron's sizes, or MindSpeed's degree."""
    sizes = re.findall(r"[0-9]{1,5}", given.text("cp_inner_degree", "hierarchical-context-parallel-sizes") or "")
    inner = int(sizes[0]) if sizes else given.integer("cp_inner_degree", "ulysses-degree-in-cp", high=2**16)
    return {"cp_communication": "all_to_all_ring"} | ({"cp_inner_degree": str(inner)} if inner else {})


_CONTEXT_KINDS: Final = {
    "p2p": "ring",
    "all_gather": "all_gather",
    "a2a": "all_to_all",
    "a2a+p2p": "all_to_all_ring",
    "megatron_cp_algo": "ring",
    "ulysses_cp_algo": "all_to_all",
    "hybrid_cp_algo": "all_to_all_ring",
    "kvallgather_cp_algo": "all_gather",
}
"""Names of Megatron (`--cp-comm-type`) and of MindSpeed (`--context-parallel-algo`)."""


def _expert_exchange(given: Given) -> dict[str, str]:
    """How tokens reach their experts, as far as a recipe says."""
    found: dict[str, str] = {}
    kind = given.text("expert_dispatch", "moe-token-dispatcher-type")
    backend = given.text("expert_dispatch", "moe-flex-dispatcher-backend") or "deepep"
    if kind in ("alltoall", "alltoall_seq", "allgather"):
        found["expert_dispatch"] = kind.removesuffix("_seq")
    elif kind == "flex" and backend in ("deepep", "hybridep"):
        found["expert_dispatch"] = backend
    if given.switch("overlap_expert_exchange", "overlap-moe-expert-parallel-comm"):
        found["overlap_expert_exchange"] = "true"
    if given.switch("splits_last_backward", "dualpipev-dw-detach"):
        found["splits_last_backward"] = "true"
    return found


def _dropped(given: Given) -> dict[str, str]:
    """Whether anything is dropped out: a share above zero."""
    found = {}
    for switch in ("attention_dropout", "hidden_dropout"):
        name = switch.replace("_", "-")
        share = _number(given, name, given.text(switch, name) or _DROPOUT, most=1.0)
        found[switch] = str(float(share) > 0.0).lower()
    return found


def _number(given: Given, name: str, text: str, *, most: float) -> str:
    """A share or factor as given. Raises InputError for other text."""
    if not re.fullmatch(r"[0-9]{0,3}\.?[0-9]{0,9}", text, re.ASCII) or not 0.0 <= float(text or "-1") <= most:
        raise given.refusal(given.entry(name), f"'{text[:40]}' given; must be a number from 0 to {most:g}")
    return text


def _capacity(given: Given) -> dict[str, str]:
    """Experts padded to a capacity, or below the even share, work on that many tokens; one above it drops none."""
    factor = given.text("expert_imbalance", "moe-expert-capacity-factor")
    padded = given.switch("expert_imbalance", "moe-pad-expert-input-to-capacity")
    if factor is None:
        return {}
    value = _number(given, "moe-expert-capacity-factor", factor, most=64.0)
    return {"expert_imbalance": value} if padded or float(value) < 1.0 else {}


def _narrow(given: Given) -> dict[str, str]:
    """How fp8 scales, and whether it gathers weights in 8 bits and keeps no others."""
    found: dict[str, str] = {}
    recipe = given.text("fp8_recipe", "fp8-recipe")
    if recipe in FP8_RECIPES:
        found["fp8_recipe"] = recipe
    elif recipe is not None:
        given.not_modelled(f"--fp8-recipe {recipe[:40]}: known are {', '.join(FP8_RECIPES)}", "fp8-recipe")
    if given.switch("fp8_param_gather", "fp8-param-gather"):
        found["fp8_param_gather"] = "true"
    return found


def _dtypes(given: Given) -> dict[str, str]:
    found: dict[str, str] = {}
    wide = given.switch("gradient_dtype", "accumulate-allreduce-grads-in-fp32")
    if given.switch("gradient_dtype", "grad-reduce-in-bf16") or (
        given.has("fp16") and not wide and not given.has("bf16")
    ):
        found["gradient_dtype"] = "bf16"
    if given.switch("gradient_dtype", "use-precision-aware-optimizer"):
        grads = given.text("gradient_dtype", "main-grads-dtype")
        moments = {given.text("optimizer_dtype", name) or "fp32" for name in ("exp-avg-dtype", "exp-avg-sq-dtype")}
        if grads in _DTYPES:
            found["gradient_dtype"] = _DTYPES[grads]
        if moments <= {*_DTYPES, "fp8"} and len(moments) == 1:
            (moment,) = moments
            found["optimizer_dtype"] = _DTYPES.get(moment, moment)
        else:
            given.not_modelled("moments in this type are not modelled", "exp-avg-dtype", "exp-avg-sq-dtype")
        masters = given.text("master_weight_dtype", "main-params-dtype")
        if masters in _DTYPES:
            found["master_weight_dtype"] = _DTYPES[masters]
    return found | _lean_state(given)


def _lean_state(given: Given) -> dict[str, str]:
    """What MindSpeed leaves out of the state: no second copy of the master weights' upper half, or none at all."""
    found: dict[str, str] = {}
    if given.switch("master_weight_dtype", "reuse-fp32-param"):
        found["master_weight_dtype"] = "bf16"
    if given.switch("master_weights", "o2-optimizer"):
        found["master_weights"] = "false"
    if given.switch("gradient_dtype", "o2-gradient"):
        found["gradient_dtype"] = "bf16"
    return found


def _flash(given: Given, environment: Mapping[str, Value]) -> bool:
    """Whether attention is fused: TransformerEngine does it unless the environment forbids it."""
    if any(given.switch("flash_attention", name) for name in FLASH):
        return True
    if given.text("flash_attention", "attention-backend") in ("unfused", "local"):
        return False
    if given.text("flash_attention", "transformer-impl") == "local":
        return False
    off = [environment.get(name) for name in ("NVTE_FLASH_ATTN", "NVTE_FUSED_ATTN")]
    return not all(value is not None and value.text == "0" for value in off)
