"""Reader of GPT-NeoX' files as ea7aefd reads them (`megatron/neox_arguments`), in Megatron's and DeepSpeed's words."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Final

from simulator.frameworks.arguments import OFF, Arguments
from simulator.frameworks.configuration import remark_keys
from simulator.frameworks.deepspeed.configuration import UNDER_MEGATRON
from simulator.frameworks.documents import Key, read_document
from simulator.frameworks.flags import plain, table_of
from simulator.frameworks.framework import FileForm, Framework
from simulator.frameworks.megatron.read import read
from simulator.frameworks.values import Cause, known_value
from simulator.question.recipe import Recipe

Keys = Mapping[str, Key]
"""Keys by dotted path, with underscores."""
_DEFAULTS: Final = ("attention-dropout=0.0", "hidden-dropout=0.0")
_PRECISIONS: Final = {"fp16": "fp16", "bfloat16": "bf16", "bf16": "bf16"}
_PRECISION_KEYS: Final = ("precision", "fp16.enabled", "bf16.enabled")
_GATED: Final = ("swiglu", "geglu", "reglu", "bilinear", "glu")
_NORMS: Final = {"rmsnorm": "RMSNorm", "layernorm": "LayerNorm"}
_OWN: Final = frozenset(
    ["pipe_parallel_size", "model_parallel_size", "attention_config", "no_weight_tying", "gpt_j_residual", "pos_emb"]
)
_TOKENIZER: Final = "GPT2BPETokenizer"  # tokenizer where no key names one
_BATCH: Final = frozenset(["train_batch_size", "train_micro_batch_size_per_gpu"])
_TRAINS: Final = frozenset([*_PRECISION_KEYS, "optimizer.type"])  # keys of which every run has at least one


def is_neox(names: Collection[str]) -> bool:
    """Whether keys belong to GPT-NeoX."""
    own = set(map(plain, names))
    return "pipe_parallel_size" in own or ({"num_layers", "hidden_size"} <= own and bool(own & _OWN))


def read_neox(arguments: Arguments, keys: Sequence[Key]) -> Recipe:
    """Return the run of a configuration file; the user's settings state keys of others that are merged with it."""
    table = table_of("neox")
    own = {key.dotted.replace("-", "_"): key for key in keys}
    for name, text in arguments.settings.items():
        if name not in own and (name in (*_PRECISION_KEYS, "vocab_file") or (name in table and table[name].sets)):
            own[name] = Key(tuple(name.split(".")), (known_value(text, 1),), 1, text)
            arguments.used.add(name)
    for name, key in own.items():
        if name == "pipe_parallel_size" and _text(key) == "0":
            _add(arguments, "pipeline_model_parallel_size", key, "1")
        elif name in table:
            arguments.add_as(table[name], key.values, key.line)
    arguments.add_defaults(_DEFAULTS, 1)
    _add_shape(arguments, own)
    _add_state(arguments, own)
    _add_attention(arguments, own)
    if _tokenizer(own) != _TOKENIZER or "tokenizer_type" not in own:
        arguments.entries.pop("tokenizer_type", None)
        arguments.add("tokenizer-type", [known_value(_tokenizer(own), 1)], 1)
    _remark_unread(arguments, own)
    arguments.nodes = _count(own.get("num_nodes")) or None
    return _with_deepspeed(read(arguments, None), own, arguments)


def _remark_unread(arguments: Arguments, own: Keys) -> None:
    """Remark what is not read, and note what another file must state where this one is only a part."""
    remark_keys(arguments, ((_passed_on(key), key) for key in own.values()), "neox")
    remark_keys(arguments, ((key.name, key) for key in own.values() if key.path[0] == "zero_optimization"), "deepspeed")
    kind = own.get("train_impl")
    if kind is not None and _text(kind) != "normal":
        arguments.remark_key(kind, f"train_impl {_text(kind)[:20]}: a second model or another loss is not modelled")
    if _count(own.get("moe_num_experts")) > 1:
        arguments.remark_key(own["moe_num_experts"], "moe_num_experts: GPT-NeoX' experts are not modelled")
    if not _BATCH & own.keys():
        arguments.need([Cause(1, "train_micro_batch_size_per_gpu")], "micro_batch_size")
    if not set(_PRECISION_KEYS) & own.keys():
        arguments.need([Cause(1, "precision")], "precision")
    if not (_BATCH | _TRAINS) & own.keys():
        message = "no batch, no precision and no optimizer: GPT-NeoX puts such a file together with another one"
        arguments.remark_line("base-configuration", "warning", message, 1)


def _passed_on(key: Key) -> str:
    """Return the name in the tables of a key: its section, or a key passed to DeepSpeed that has no effect."""
    inner = key.path[1] if key.path[0] == "deepspeed_extra_args" and len(key.path) > 1 else ""
    return inner if table_of("neox").passes(inner) else key.path[0]


def _tokenizer(own: Keys) -> str:
    """Return the default tokenizer, or the one whose file is GPT-NeoX-20B's."""
    return "GPTNeoX20B" if "20b_tokenizer" in _text(own.get("vocab_file")).lower() else _TOKENIZER


def _text(key: Key | None) -> str:
    return key.values[0].text if key is not None and key.values else ""


def _on(key: Key | None) -> bool:
    return _text(key).lower() not in OFF


def _count(key: Key | None) -> int:
    """Return a key's whole number; 0 for anything else."""
    text = _text(key)
    return int(text) if re.fullmatch(r"[0-9]{1,9}", text, re.ASCII) else 0


def _add(arguments: Arguments, name: str, key: Key | None, text: str | None = None) -> None:
    line = 1 if key is None else key.line
    arguments.add(name, [] if text is None else [known_value(text, line)], line)


def _add_shape(arguments: Arguments, own: Keys) -> None:
    """Add the flags of a layer's parts."""
    activation = own.get("activation")
    gated = _text(activation).lower() in _GATED
    if gated:
        _add(arguments, "swiglu", activation)
    hidden, size = _count(own.get("hidden_size")), own.get("intermediate_size")
    if hidden and (size is not None or gated):
        inner = _count(size) or 4 * hidden
        if gated:
            # The stated size covers three matrices: gate, up and down.
            step = _count(own.get("mlp_multiple_of")) or 1
            inner = -(-(int(inner * 2 / 3) // 2) // step) * step
        _add(arguments, "ffn-hidden-size", size or own["hidden_size"], str(inner))
    if "num_kv_heads" in own:
        _add(arguments, "group-query-attention", own["num_kv_heads"])
    bias = own.get("use_bias_in_attn_linear")
    if bias is None or _on(bias):
        _add(arguments, "add-qkv-bias", bias)
        _add(arguments, "add-dense-bias", bias)
    if "pos_emb" in own:
        positions = _text(own["pos_emb"])
        kind = "learned_absolute" if positions == "learned" else positions
        _add(arguments, "position-embedding-type", own["pos_emb"], kind)
    norm = own.get("norm")
    _add(arguments, "normalization", norm, _NORMS.get(_text(norm), "LayerNorm"))


def _add_state(arguments: Arguments, own: Keys) -> None:
    """Add the flags of precision, recompute and optimizer."""
    for half in ("fp16", "bf16"):
        if _on(own.get(f"{half}.enabled")):
            _add(arguments, half, own[f"{half}.enabled"])
    half = _PRECISIONS.get(_text(own.get("precision")), "")
    if half and not arguments.has("fp16") and not arguments.has("bf16"):
        _add(arguments, half, own["precision"])
    recompute = own.get("checkpoint_activations")
    if _on(recompute):
        layers = own.get("checkpoint_num_layers")
        _add(arguments, "recompute-granularity", recompute, "full")
        _add(arguments, "recompute-method", recompute, "uniform")
        _add(arguments, "recompute-num-layers", layers or recompute, str(_count(layers) or 1))
    if "optimizer.type" in own:
        _add(arguments, "optimizer", own["optimizer.type"], _text(own["optimizer.type"]))
    if _stage(own) == 1:
        _add(arguments, "use-distributed-optimizer", own.get("zero_optimization.stage") or own.get("zero_stage"))


def _stage(own: Keys) -> int:
    return _count(own.get("zero_optimization.stage") or own.get("zero_stage"))


def _kinds(arguments: Arguments) -> set[str]:
    """Return the kinds of layers that `attention_config` lists."""
    named = {plain(str(name)): value for name, value in read_document(Path(arguments.file)).items()}
    return set(re.findall(r"[a-z_]+", str(named.get("attention_config", "global")).lower())) - {"all"}


def _selective(own: Keys, fields: Mapping[str, object]) -> dict[str, object]:
    """Return the fields of pure Mamba-1 layers (megatron/model/mamba/mamba.py: 16 states per channel, 4 taps)."""
    hidden = fields.get("hidden_size")
    return {
        "architecture": "nemotron_h",
        "mixers": ("selective_scan",),
        "feed_forwards": ("none",),
        "mamba_heads": _count(own.get("intermediate_size")) or (2 * hidden if isinstance(hidden, int) else 0),
        "mamba_state": 16,
        "convolution": 4,
        "convolution_bias": "mamba_use_bias_in_conv" not in own or _on(own["mamba_use_bias_in_conv"]),
    }


def _add_attention(arguments: Arguments, own: Keys) -> None:
    """Add the flags of the attention; `attention_config` lists kinds with the number of layers of each."""
    kinds = _kinds(arguments)
    line = own["num_layers"].line if "num_layers" in own else 1
    if kinds == {"mamba"} and _on(own.get("mamba_inner_func_fusion")) and not _on(own.get("mamba_use_bias_in_linears")):
        message = "mamba: the scan is priced as what it reads and writes; no run of it was measured"
        arguments.remark_line("not-modelled", "warning", message, line)
        # No layer has attention, so that any number of heads will do.
        arguments.entries["num_attention_heads"] = []
        _add(arguments, "num-attention-heads", own.get("num_layers"), "1")
    elif kinds - {"flash", "global"}:
        shown = ", ".join(sorted(kinds))[:60]
        message = f"attention_config {shown}: only flash and global attention are modelled"
        arguments.remark_line("not-modelled", "error", message, line)
    elif "flash" not in kinds:
        arguments.add("transformer-impl", [known_value("local", line)], line)


def _with_deepspeed(run: Recipe, own: Keys, arguments: Arguments) -> Recipe:
    """Return the run with GPT-NeoX' and DeepSpeed's differences from Megatron."""
    wide = _text(own.get("data_types.grad_accum_dtype")) == "fp32"
    options = {**run.options, "gradient_dtype": "fp32" if wide or run.precision == "fp32" else "bf16"}
    if _stage(own):
        options |= UNDER_MEGATRON
    fields = dict(run.model_fields)
    if _on(own.get("gpt_j_residual")):
        fields |= {"parallel_residual": True, "shared_norm": _on(own.get("gpt_j_tied"))}
    if _kinds(arguments) == {"mamba"}:
        fields |= _selective(own, fields)
    layout = run.layout
    offload = _text(own.get("zero_optimization.offload_optimizer.device")) or "none"
    if layout is not None and _stage(own) > 1:
        layout = dataclasses.replace(layout, zero_stage=min(_stage(own), 3))
    if layout is not None and (offload == "cpu" or _on(own.get("zero_optimization.cpu_offload"))):
        layout = dataclasses.replace(layout, offload="optimizer_tensorwise")
    if _on(own.get("partition_activations")) and layout is not None and layout.tensor_parallel > 1:
        message = "checkpoints are split over the tensor parallel group; whole ones are priced"
        arguments.remark_key(own["partition_activations"], message, "upper-bound", "warning")
    steps = _count(own.get("gradient_accumulation_steps") or own.get("gas"))
    if run.global_batch_size is None and steps:
        run = dataclasses.replace(run, gradient_accumulation_steps=steps)
    return dataclasses.replace(run, options=options, layout=layout, model_fields=fields)


FRAMEWORK: Final = Framework(
    title="GPT-NeoX",
    profile="megatron",
    files=(FileForm("neox-yaml", 40, is_neox, read_neox, complete=False, in_words_of="megatron"),),
)
