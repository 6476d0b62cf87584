"""GPT-NeoX configuration files, read as the Megatron flags they stand for.

Read as GPT-NeoX at ea7aefd reads them (`megatron/neox_arguments`), whose defaults count where a key is absent.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from simulator.frameworks.arguments import OFF
from simulator.frameworks.arguments import Arguments as Given
from simulator.frameworks.documents import Key
from simulator.frameworks.flags import passed_of
from simulator.frameworks.unread import remark_keys
from simulator.frameworks.values import Cause, known_value
from simulator.recipes.readers.megatron import megatron_recipe
from simulator.recipes.readers.megatron_flags import FLAGS, PASSED
from simulator.recipes.recipe import Place, Recipe, Remark

_RENAMED: Final = {
    "num_layers": "num_layers",
    "hidden_size": "hidden_size",
    "num_attention_heads": "num_attention_heads",
    "seq_length": "seq_length",
    "max_position_embeddings": "max_position_embeddings",
    "make_vocab_size_divisible_by": "make_vocab_size_divisible_by",
    "padded_vocab_size": "padded_vocab_size",
    "tokenizer_type": "tokenizer_type",
    "train_micro_batch_size_per_gpu": "micro_batch_size",
    "train_batch_size": "global_batch_size",
    "sequence_parallel": "sequence_parallel",
    "no_weight_tying": "untie_embeddings_and_output_weights",
    "use_qk_layernorm": "qk_layernorm",
    "te_fp8_format": "te_fp8_format",
    "attention_dropout": "attention_dropout",
    "hidden_dropout": "hidden_dropout",
}
_DEFAULTS: Final = ("attention-dropout=0.0", "hidden-dropout=0.0")
_DEGREES: Final = {
    "pipe_parallel_size": "pipeline_model_parallel_size",
    "model_parallel_size": "tensor_model_parallel_size",
}
_PRECISIONS: Final = ("precision", "fp16.enabled", "bf16.enabled")
_GATED: Final = ("swiglu", "geglu", "reglu", "bilinear", "glu")
_NORMS: Final = {"rmsnorm": "RMSNorm", "layernorm": "LayerNorm"}
_OWN: Final = frozenset(
    ["pipe_parallel_size", "model_parallel_size", "attention_config", "no_weight_tying", "gpt_j_residual", "pos_emb"]
)


def is_neox(names: Iterable[str]) -> bool:
    """Whether keys, with underscores, are of GPT-NeoX."""
    found = set(names)
    return "pipe_parallel_size" in found or ({"num_layers", "hidden_size"} <= found and bool(found & _OWN))


_TOKENIZER: Final = "GPT2BPETokenizer"
"""Where no key names one."""
_TRAINS: Final = frozenset([*_PRECISIONS, "optimizer.type"])
"""Keys of which every run has some."""


def read_neox(
    path: Path, keys: Iterable[Key], document: Mapping[str, Any], settings: Mapping[str, str]
) -> tuple[Recipe, set[str]]:
    """The recipe of a configuration file, and the settings that it used.

    GPT-NeoX puts several files together; what is in another one is told by `settings`, under the key's own name.
    """
    given = Given(str(path), FLAGS, PASSED)
    found = {key.dotted.replace("-", "_"): key for key in keys}
    told = {name: Key(tuple(name.split(".")), (known_value(text, 1),), 1, text) for name, text in settings.items()}
    used = {name for name in told if name not in found and name in (*_RENAMED, *_DEGREES, *_PRECISIONS)}
    found |= {name: told[name] for name in used}
    for name, key in found.items():
        if name in _RENAMED:
            given.add_key(_RENAMED[name], key.values, key.line)
        elif name in _DEGREES:
            _add(given, _DEGREES[name], key, "1" if _text(key) == "0" else _text(key))
    given.add_defaults(_DEFAULTS, 1)
    _add_shape(given, found)
    _add_state(given, found)
    _add_attention(given, found, document)
    remark_keys(given, ((_passed_on(key), key) for key in found.values()), "neox")
    remark_keys(given, ((key.name, key) for key in found.values() if key.path[0] == "zero_optimization"), "deepspeed")
    impl = found.get("train_impl")
    if impl is not None and _text(impl) != "normal":
        given.remark_key(impl, f"train_impl {_text(impl)[:20]}: a second model or another loss is not modelled")
    if _count(found.get("moe_num_experts")) > 1:
        given.remark_key(found["moe_num_experts"], "moe_num_experts: GPT-NeoX' experts are not modelled")
    if "tokenizer_type" not in found or _tokenizer(found) != _TOKENIZER:
        given.entries.pop("tokenizer_type", None)
        given.add("tokenizer-type", [known_value(_tokenizer(found), 1)], 1)
    _need_rest(given, found)
    recipe = megatron_recipe(given, None, "neox-yaml", "", _count(found.get("num_nodes")) or None, None)
    if _on(found.get("gpt_j_residual")):
        shared = _on(found.get("gpt_j_tied"))
        fields = {**recipe.model_fields, "parallel_residual": True, "shared_norm": shared}
        recipe = dataclasses.replace(recipe, model_fields=fields)
    return _with_deepspeed(recipe, found, given), used


def _need_rest(given: Given, found: Mapping[str, Key]) -> None:
    """Ask for what another file gives, and say so where this one is but a part."""
    batch = {"train_batch_size", "train_micro_batch_size_per_gpu"} & found.keys()
    if not batch:
        given.need([Cause(1, "train_micro_batch_size_per_gpu")], "micro_batch_size")
    if not set(_PRECISIONS) & found.keys():
        given.need([Cause(1, "precision")], "precision")
    if not batch and not _TRAINS & found.keys():
        message = "no batch, no precision and no optimizer: GPT-NeoX puts such a file together with another one"
        given.remark_line("base-configuration", "warning", message, 1)


def _passed_on(key: Key) -> str:
    """The name that a key counts by: its section's, or what is handed to DeepSpeed, where that has no effect."""
    inner = key.path[1] if key.path[0] == "deepspeed_extra_args" and len(key.path) > 1 else ""
    return inner if inner in passed_of("neox") else key.path[0]


def _tokenizer(found: Mapping[str, Key]) -> str:
    """The default, or the one whose file is GPT-NeoX-20B's."""
    return "GPTNeoX20B" if "20b_tokenizer" in _text(found.get("vocab_file")).lower() else _TOKENIZER


def _text(key: Key | None) -> str:
    return key.values[0].text if key is not None and key.values else ""


def _count(key: Key | None) -> int:
    """A positive whole number; 0 for anything else."""
    text = _text(key)
    return int(text) if re.fullmatch(r"[0-9]{1,9}", text, re.ASCII) else 0


def _add(given: Given, name: str, key: Key, text: str | None = None) -> None:
    given.add(name, [] if text is None else [known_value(text, key.line)], key.line)


def _add_shape(given: Given, found: Mapping[str, Key]) -> None:
    """Take what a layer is made of."""
    activation = found.get("activation")
    gated = _text(activation).lower() in _GATED
    if activation is not None and gated:
        _add(given, "swiglu", activation)
    hidden, size = _count(found.get("hidden_size")), found.get("intermediate_size")
    if hidden and (size is not None or gated):
        key = size or found["hidden_size"]
        inner = _count(size) or 4 * hidden
        if gated:
            # The size is that of three matrices: gate, up and down share it.
            step = _count(found.get("mlp_multiple_of")) or 1
            inner = -(-(int(inner * 2 / 3) // 2) // step) * step
        _add(given, "ffn-hidden-size", key, str(inner))
    if "num_kv_heads" in found:
        _add(given, "group-query-attention", found["num_kv_heads"])
        _add(given, "num-query-groups", found["num_kv_heads"], _text(found["num_kv_heads"]))
    bias = found.get("use_bias_in_attn_linear")
    if bias is None or _text(bias).lower() not in OFF:
        given.add("add-qkv-bias", [], 1 if bias is None else bias.line)
        given.add("add-dense-bias", [], 1 if bias is None else bias.line)
    if "use_bias_in_mlp" in found and not _on(found["use_bias_in_mlp"]):
        _add(given, "disable-bias-linear", found["use_bias_in_mlp"])
    if "pos_emb" in found:
        positions = _text(found["pos_emb"])
        kind = "learned_absolute" if positions == "learned" else positions
        _add(given, "position-embedding-type", found["pos_emb"], kind)
    norm = found.get("norm")
    given.add("normalization", [known_value(_NORMS.get(_text(norm), "LayerNorm"), norm.line if norm else 1)], 1)


def _add_state(given: Given, found: Mapping[str, Key]) -> None:
    """Take precision, recompute and optimizer."""
    for name, flag in (("fp16.enabled", "fp16"), ("bf16.enabled", "bf16")):
        if name in found and _text(found[name]).lower() not in OFF:
            _add(given, flag, found[name])
    precision = found.get("precision")
    if precision is not None and not (given.has("fp16") or given.has("bf16")):
        half = {"fp16": "fp16", "bfloat16": "bf16", "bf16": "bf16"}.get(_text(precision))
        if half:
            _add(given, half, precision)
    recompute = found.get("checkpoint_activations")
    if recompute is not None and _text(recompute).lower() not in OFF:
        _add(given, "recompute-granularity", recompute, "full")
        _add(given, "recompute-method", recompute, "uniform")
        layers = found.get("checkpoint_num_layers")
        _add(given, "recompute-num-layers", layers or recompute, str(_count(layers) or 1))
    kind = found.get("optimizer.type")
    if kind is not None:
        _add(given, "optimizer", kind, _text(kind))
    if _stage(found) == 1:
        _add(given, "use-distributed-optimizer", _stage_key(found) or recompute or next(iter(found.values())))


def _stage_key(found: Mapping[str, Key]) -> Key | None:
    return found.get("zero_optimization.stage") or found.get("zero_stage")


def _stage(found: Mapping[str, Key]) -> int:
    return _count(_stage_key(found))


def _add_attention(given: Given, found: Mapping[str, Key], document: Mapping[str, Any]) -> None:
    """Take how attention is computed: `attention_config` lists kinds with how many layers have each."""
    plain = {str(name).replace("-", "_"): value for name, value in document.items()}
    text = str(plain.get("attention_config", "global")).lower()
    kinds = set(re.findall(r"[a-z_]+", text)) - {"all"}
    line = next((key.line for name, key in found.items() if name == "num_layers"), 1)
    if kinds - {"flash", "global"}:
        shown = ", ".join(sorted(kinds))[:60]
        message = f"attention_config {shown}: only flash and global attention are modelled"
        given.remark_line("not-modelled", "error", message, line)
    elif "flash" not in kinds:
        given.add("transformer-impl", [known_value("local", line)], line)


def _with_deepspeed(recipe: Recipe, found: Mapping[str, Key], given: Given) -> Recipe:
    """The recipe with what DeepSpeed does otherwise than Megatron."""
    wide = _text(found.get("data_types.grad_accum_dtype")) == "fp32"
    options = {**recipe.options, "gradient_dtype": "fp32" if wide or recipe.precision == "fp32" else "bf16"}
    layout = recipe.layout
    offload = _text(found.get("zero_optimization.offload_optimizer.device")) or "none"
    if layout is not None and _stage(found) > 1:
        layout = dataclasses.replace(layout, zero_stage=min(_stage(found), 3))
    if layout is not None and (offload == "cpu" or _on(found.get("zero_optimization.cpu_offload"))):
        layout = dataclasses.replace(layout, offload="optimizer_tensorwise")
    remarks = recipe.remarks
    if _on(found.get("partition_activations")) and layout is not None and layout.tensor_parallel > 1:
        place = Place(given.file, found["partition_activations"].line)
        message = "checkpoints are split over the tensor parallel group; whole ones are priced"
        remarks = (*remarks, Remark("upper-bound", "warning", message, place))
    steps = _count(found.get("gradient_accumulation_steps"))
    if recipe.global_batch_size is None and steps:
        recipe = dataclasses.replace(recipe, gradient_accumulation_steps=steps)
    return dataclasses.replace(recipe, options=options, layout=layout, remarks=remarks)


def _on(key: Key | None) -> bool:
    return _text(key).lower() not in OFF
