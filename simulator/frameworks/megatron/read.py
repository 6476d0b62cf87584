"""Reader of Megatron-LM's launches: its flags, and the model that they state with its mixers and vocabulary."""

from __future__ import annotations

import dataclasses
import functools
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path, PurePath
from types import MappingProxyType
from typing import Any, Final

from simulator.frameworks import models
from simulator.frameworks.arguments import Arguments, LaunchCommand
from simulator.frameworks.flags import table_of
from simulator.frameworks.megatron import special
from simulator.frameworks.take import Targets, part, take
from simulator.frameworks.values import PlainValue, known_value
from simulator.question.recipe import Recipe
from simulator.question.scenario.layout import Layout, model_chunks, rank_layers
from simulator.question.specs.documents import read_yaml
from simulator.question.vocabulary import ScheduleName
from simulator.records import Record


def read(arguments: Arguments, environment: Mapping[str, PlainValue] | None, *, own: bool = False) -> Recipe:
    """Return the run that Megatron's flags describe, without remarks on unread ones. Raises InputError.

    `environment` is None where it is not stated; `own`: Megatron-LM itself reads the flags, and its defaults apply.
    """
    special.drop_idle_exports(arguments)
    count_layers(arguments)
    targets = take(arguments)
    layers: int | None = targets.get("model.num_hidden_layers")
    tensor = targets.get("layout.tensor_parallel", 1)
    shape = fields_of(arguments, targets)
    model, fields = model_of(arguments, shape, tensor)
    spec = models.load_model(model) if model else None
    layers = layers or (spec.num_hidden_layers if spec else None)
    cut = cut_of(arguments, layers, targets.get("layout.pipeline_parallel", 1), targets.get("layout.virtual_stages", 1))
    special.set_layout(arguments, targets, layers, cut.chunks)
    sizes: dict[str, Any] = part(targets, "layout") | {
        "virtual_stages": cut.chunks,
        "schedule": cut.schedule,
        "stage_layers": cut.stage_layers,
        "chunk_layers": cut.chunk_layers,
    }
    layout = Layout(**sizes)
    rank: int | None = targets.get("workload.lora_rank")
    special.set_adapters(arguments, targets, rank)
    precision = special.precision(arguments)
    batch = targets.get("workload.global_batch_size") or special.largest_batch(arguments)
    special.set_options(arguments, targets, environment, layout)
    special.remark_contradictions(arguments, layout)
    stated = shape | ({"vocab_size": spec.vocab_size} if spec else {}) | fields
    run = Recipe(
        framework="megatron",
        model=model,
        model_fields=fields,
        shape=stated,
        seq_length=targets.get("workload.seq_length"),
        global_batch_size=batch,
        gradient_accumulation_steps=None if batch or "global_batch_size" in arguments.incomplete else 1,
        precision=precision,
        lora_rank=rank,
        options={**(special.usual_experts(arguments) if own else {}), **part(targets, "option")},
        layout=layout,
        unpriced_bytes=special.sharding_room(arguments, targets, stated) + special.bias_room(arguments, targets),
        virtual_stage_layers=cut.layers_per_chunk,
    )
    return special.with_encoder(arguments, run)


_DEFAULT: Final = "gpt2bpetokenizer"  # default tokenizer of pretrain_gpt.py
_WHOLE: Final = ("padded-vocab-size", "pad-vocab-size-to")


@functools.cache
def _tokenizers() -> Mapping[str, Any]:
    tables: Mapping[str, Any] = read_yaml(Path(__file__).with_name("tokenizers.yaml"))
    return tables


def padded(count: int, multiple: int) -> int:
    """Return a count rounded up to a multiple."""
    return -(-count // multiple) * multiple


def padding(arguments: Arguments, tensor_parallel: int) -> int:
    """Return the multiple that Megatron pads a vocabulary to; 1 where its padded size is stated."""
    if arguments.has(*_WHOLE):
        return 1
    return (arguments.integer("vocab_size", "make-vocab-size-divisible-by") or 128) * tensor_parallel


def vocabulary(arguments: Arguments) -> tuple[int | None, str]:
    """Return the size of the vocabulary, None if unknown, and the tokenizer that it is assumed from."""
    whole = arguments.integer("vocab_size", *_WHOLE)
    if whole:
        return whole, ""
    # MindSpeed sizes the table by the tokenizer it loads, regardless of --vocab-size.
    known, _ = models.by_name(_text(arguments, "tokenizer-name-or-path"))
    if known and known not in models.BY_NAME_ALONE:
        return models.load_model(known).vocab_size, ""
    count = arguments.integer("vocab_size", "vocab-size")
    if count:
        return count, ""
    names = _tokenizers()["by_part_of_name"]
    if arguments.has("merge-file") and not arguments.has("tokenizer-type"):
        # Only that tokenizer has merges.
        return names[_DEFAULT], "GPT-2"
    # A known file is more specific than its class, which several models share.
    file = arguments.entry("tokenizer-model")
    sure = ("tokenizer-model",) if file is not None and not file.causes else ()
    for flag in ("patch-tokenizer-type", *sure, "tokenizer-type", "tokenizer-model", "tokenizer-name-or-path"):
        text = _text(arguments, flag)
        for name, entries in names.items():
            if name in text.lower() and not text.lower().endswith("qwen2tokenizer"):
                return entries, PurePath(text).name
    return _of_model(arguments)


_LETTERS: Final = re.compile(r"[a-z]+")


def _names_another(arguments: Arguments, model: str) -> bool:
    """Whether the tokenizer's name or path says that it is another than the model's."""
    family = _LETTERS.match(model)
    for flag in ("tokenizer-model", "tokenizer-name-or-path", "vocab-file"):
        parts = PurePath(_text(arguments, flag).lower()).parts[-2:]
        words = {word for part in parts for word in _LETTERS.findall(part)} - set(_tokenizers()["plain_words"].split())
        if words and (family is None or not any(word.startswith(family[0]) for word in words)):
            return True
    return False


def _text(arguments: Arguments, flag: str) -> str:
    """Return a tokenizer's name; one that only the run knows is empty, so that the next flag counts."""
    text = arguments.text("tokenizer", flag) or ""
    arguments.incomplete.discard("tokenizer")
    return text


def _of_model(arguments: Arguments) -> tuple[int | None, str]:
    """Return the vocabulary of the model that the tokenizer's name is of, else of the loaded weights, and its name.

    Pai's patch takes the tokenizer from the weights, whatever its class (megatron_patch/tokenizer of a098ca5); without
    known weights the vocabulary is that of all tokenizers of the class.
    """
    known, _ = models.by_name(_text(arguments, "tokenizer-model"))
    if known and known not in models.BY_NAME_ALONE:
        return models.load_model(known).vocab_size, ""
    patched, weights = arguments.entry("patch-tokenizer-type"), arguments.entry("load")
    if patched is None:
        return None, ""
    known, _ = models.by_name(weights.text) if weights is not None and not weights.causes else (None, False)
    if weights is not None and known:
        return models.load_model(known).vocab_size, PurePath(weights.text).name
    return _tokenizers()["of_pai"].get(patched.text.lower()), patched.text


_SPECS: Final = re.compile(
    r"(?:mindspeed_llm|modellink)\.tasks\.models\.spec\.(?P<own>qwen3_spec|deepseek_spec|qwen2_moe_spec|bailing_spec"
    r"|hunyuan_spec|mamba_spec|gemma2_spec|qwen3_next_spec|plm_spec|minimax_spec|phi35_moe_spec) layer_spec"
    r"|(?:megatron\.core\.models\.(?:mamba|hybrid))?\.(?P<stack>mamba|hybrid)_layer_specs (?:mamba|hybrid)_stack_spec"
    r"|megatron\.core\.models\.gpt\.gpt_layer_specs (?:get_)?gpt_layer_(?:local|with_transformer_engine)_spec(?:_moe)?"
    r"|local"
)
"""Definitions whose layers the other flags describe: MindSpeed-LLM v26.1.0, tasks/models/spec, and stacks filled by
a pattern, Megatron-LM d98e8a6, megatron/core/models/hybrid/hybrid_layer_specs.py (NeMo's reader names no package)."""
_PATTERN: Final = "hybrid-layer-pattern"
_RATIOS: Final = ("hybrid-attention-ratio", "hybrid-mlp-ratio")
_DELTA_SPEC: Final = "qwen3_next_spec"
_VARIANT: Final = "experimental-attention-variant"
_PLACES: Final = ("linear-attention-freq", "full-attention-interval")
_DECIDING: Final = (_PATTERN, *_RATIOS, _VARIANT, *_PLACES)
"""Flags that change the kind of layers; sizes of mixers that no layer has change nothing."""
_OFF: Final = re.compile(r"0*\.?0*|none|null|false", re.ASCII | re.IGNORECASE)
_CHUNK: Final = 64  # tokens per chunk of the gated delta rule's kernels (fla.ops.gated_delta_rule, which both call)
_MOST_LAYERS: Final = 10_000
MixerFields = dict[str, Any]
"""Fields of a model's spec that concern mixers."""


def _spec(arguments: Arguments, group: str) -> str | None:
    """Return the layers' definition, if it is MindSpeed's `own` or a `stack` filled by a pattern; None for others."""
    match = _SPECS.fullmatch(arguments.text("spec", "spec") or "")
    return match[group] if match else None


def count_layers(arguments: Arguments) -> None:
    """Set the layers and next-token modules of a pattern, which replace the flags (d98e8a6, training/arguments.py:787).

    Behind each `/` stands one module, and all are alike (core/models/hybrid/hybrid_layer_allocation.py).
    """
    entry = arguments.entry(_PATTERN)
    if entry is None or entry.causes or not _spec(arguments, "stack"):
        return
    modules = entry.text.strip("\"'").count("/")
    counts = {"num_layers": len(_main(entry.text))} | ({"mtp_num_layers": modules} if modules else {})
    for name, count in counts.items():
        arguments.entries.pop(name, None)
        arguments.add(f"--{name.replace('_', '-')}", [known_value(str(count), entry.value_line)], entry.value_line)


def mixers_of(arguments: Arguments, fields: MixerFields, sizes: MixerFields) -> MixerFields:
    """Return the fields of layers whose mixer is not attention, or that have only a mixer or only a network.

    `fields` are those of the whole model, `sizes` all sizes that the flags state, those of mixers included.
    """
    own, stack = _spec(arguments, "own"), _spec(arguments, "stack")
    delta = own == _DELTA_SPEC or arguments.text("mixers", _VARIANT) == "gated_delta_net"
    listed: MixerFields = {}
    read: tuple[str, ...] = ()
    if own == "mamba_spec" and "hidden_size" in fields:
        inner = (arguments.integer("mixers", "mamba-expand") or 1) * fields["hidden_size"]
        # Only Mamba in every layer: MindSpeed-LLM v2.1.0, tasks/models/spec/mamba_spec.py.
        listed = {"mixers": ("mamba",), "feed_forwards": ("none",), "rotary": False} | _mamba(sizes, inner, 1, 256)
    elif stack:
        listed, read = _stack(arguments, fields, sizes), (_PATTERN, *_RATIOS)
    elif delta:
        listed = _delta(arguments, fields, sizes, own=own == _DELTA_SPEC)
        named = arguments.text("mixers", _VARIANT) == "gated_delta_net"
        read = (*((_VARIANT,) if named else ()), next((name for name in _PLACES if arguments.has(name)), ""))
    _remark_others(arguments, (*_DECIDING, *(("mamba-expand",) if stack else ())), read)
    arguments.forget("mixers")
    return _agreeing(arguments, fields, listed)


def _remark_others(arguments: Arguments, deciding: tuple[str, ...], read: tuple[str, ...]) -> None:
    """Refuse flags that change the kind of layers but were not read for these layers."""
    for name in deciding:
        entry = None if name in read else arguments.entry(name)
        text = None if entry is None else arguments.text("mixers", name)
        if entry is not None and text is not None and not _OFF.fullmatch(text.strip("\"'")):
            spelled = entry.spelled.lstrip("-").replace("_", "-")
            message = f"--{spelled} {text[:40]}: not modelled for the layers that the other flags build"
            arguments.not_modelled(message, name)


def _agreeing(arguments: Arguments, fields: MixerFields, own: MixerFields) -> MixerFields:
    """Return the fields if layers with experts and a number of experts occur together or not at all; else none."""
    networks, count = own.get("feed_forwards"), fields.get("num_experts")
    if networks is None or "num_experts" in arguments.incomplete or ("experts" in networks) == bool(count):
        return own
    message = "layers with experts (E) and no --num-experts"
    if count:
        message = f"--num-experts {count}, and no layer has experts"
    arguments.not_modelled(message, "num-experts" if count else _PATTERN)
    return {}


def _mamba(sizes: MixerFields, inner: int, groups: int, chunk: int) -> MixerFields:
    """Return the sizes of Mamba-2, `inner` features wide; `groups` and `chunk` are its defaults."""
    size = sizes.get("mamba_head_dim") or 64
    return {
        "architecture": "nemotron_h",
        "mamba_heads": sizes.get("mamba_heads") or inner // size,
        "mamba_head_dim": size,
        "mamba_groups": sizes.get("mamba_groups") or groups,
        "mamba_state": sizes.get("mamba_state") or 128,
        "convolution": sizes.get("convolution") or 4,
        "convolution_bias": True,
        "chunk_tokens": sizes.get("chunk_tokens") or chunk,
    }


def _stack(arguments: Arguments, fields: MixerFields, sizes: MixerFields) -> MixerFields:
    """Return the layers of a pattern, one part each; Mamba-2 as in megatron/core/ssm/mamba_mixer.py of d98e8a6."""
    layers = fields.get("num_hidden_layers")
    if not layers or "hidden_size" not in fields:
        return {}
    pattern = arguments.text("mixers", _PATTERN)
    marks = _by_ratios(arguments, layers) if pattern is None else _main(pattern)
    network = "gated" if fields["gated"] else "plain"
    blocks = {"M": ("mamba", "none"), "*": ("grouped_query", "none"), "-": ("none", network), "E": ("none", "experts")}
    if set(marks) - blocks.keys() or len(marks) != layers:
        message = f"pattern {(pattern or marks)[:60]} of {layers} layers: only M, *, - and E are modelled"
        arguments.not_modelled(message, _PATTERN)
        return {}
    module = "*E" if "E" in marks else "*-"
    if set((pattern or "").strip("\"'").split("/")[1:]) - {module}:
        message = f"pattern {(pattern or '')[-60:]}: only modules of {module} behind / are modelled"
        arguments.not_modelled(message, _PATTERN)
        return {}
    mixers, networks = zip(*(blocks[mark] for mark in marks), strict=True)
    shapes = _mamba(sizes, 2 * fields["hidden_size"], 8, 128) if "M" in marks else {"architecture": "nemotron_h"}
    return {"mixers": mixers, "feed_forwards": networks} | shapes


def _main(pattern: str) -> str:
    """Return the marks of the decoder's own layers: without multi-token prediction and stage boundaries."""
    return pattern.strip("\"'").partition("/")[0].replace("|", "")


def _by_ratios(arguments: Arguments, layers: int) -> str:
    """Return marks with attention spread evenly, and networks among the rest (`pattern_from_ratios` of d98e8a6)."""
    shares = [float(arguments.share("mixers", name) or 0) for name in _RATIOS]
    marks = ["M"] * min(layers, _MOST_LAYERS)
    for mark, share, ends in (("*", shares[0], 1), ("-", shares[1], 0)):
        count, left = round(layers * share), marks.count("M")
        if not count:
            continue
        step = place = (left - count) / (count + ends)
        for number, old in enumerate(marks):
            if old != "M":
                continue
            if place < 0.5:
                marks[number] = mark
                place += step
            else:
                place -= 1
    return "".join(marks)


def _delta(arguments: Arguments, fields: MixerFields, sizes: MixerFields, *, own: bool) -> MixerFields:
    """Return the gated delta rule in all but every n-th layer, or as listed: `get_linear_attention_pattern` of d98e8a6.

    MindSpeed's Qwen3-Next (MindSpeed-LLM v2.2.0, qwen3_next_feature.py) counts alike and gates the attention's output.
    """
    layers = fields.get("num_hidden_layers")
    text = (arguments.text("mixers", *_PLACES) or "").replace(" ", "").strip("\"'")
    every = int(text) if re.fullmatch(r"[1-9][0-9]{0,3}", text, re.ASCII) else 0
    digits = "".join("10"[(i + 1) % every == 0] for i in range(layers or 0)) if every else layer_digits(text)
    if not layers or len(digits) != layers:
        if layers and "mixers" not in arguments.incomplete:
            message = f"{text[:40] or 'nothing'}: no list of {layers} layers of which some have linear attention"
            arguments.not_modelled(message, *_PLACES)
        return {}
    if own and not arguments.switch("mixers", "use-triton-gdn"):
        message = "the gated delta rule without --use-triton-gdn: what its products keep is not priced"
        arguments.not_modelled(message, "spec")
    usual = {"linear_key_heads": 16, "linear_value_heads": 32, "linear_key_head_dim": 128, "linear_value_head_dim": 128}
    return {
        "architecture": "qwen3_next",
        "mixers": tuple("gated_delta" if digit == "1" else "grouped_query" for digit in digits),
        **({"attention_gate": "element"} if own else {}),
        **{name: sizes.get(name) or size for name, size in (usual | {"convolution": 4}).items()},
        "chunk_tokens": _CHUNK,
    }


_TERM: Final = re.compile(r"\[([01](?:,[01])*)\](?:\*(\d{1,4}))?", re.ASCII)
_MOST_DIGITS: Final = 100_000


def layer_digits(text: str) -> str:
    """Return `([0]*1+[1,1]*13)` as one digit per layer; empty for other text."""
    digits = ""
    if text.startswith("(") and text.endswith(")") and text.count("(") == text.count(")") == 1:
        text = text[1:-1]
    for term in text.split("+"):
        match = _TERM.fullmatch(term)
        if match is None or len(match[1]) * int(match[2] or 1) + len(digits) > _MOST_DIGITS:
            return ""
        digits += match[1].replace(",", "") * int(match[2] or 1)
    return digits


LATENT: Final = ("q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
_LATENT_SIZES: Final = {"qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128}
"""Default sizes of MLA's heads: core_v0.10 to core_v0.19, megatron/training/arguments.py (d98e8a6: 3552) and
MLATransformerConfig of megatron/core/transformer/transformer_config.py."""
_HEADS: Final = ("n-head-kv", "num-key-value-heads")
"""Flags of key-value heads in Pai's older models and Megatron-DeepSpeed, which need no switch."""
_ROTARY: Final = ("rope", "rotary", "mrope", "yarn", "deepseek4")
"""Rotary position embeddings, by Megatron-LM's, Pai's and MindSpeed's names."""
_LINEAR: Final = ("linear_", "mamba_", "convolution", "chunk_tokens")
"""Prefixes of fields that belong to mixers other than attention."""


def fields_of(arguments: Arguments, targets: Targets) -> dict[str, Any]:
    """Return the model's shape as the flags state it, with the fields that Megatron derives."""
    fields = {name: value for name, value in part(targets, "model").items() if not name.startswith(_LINEAR)}
    layers = fields.get("num_hidden_layers")
    if layers:
        fields["num_hidden_layers"] = layers - len(idle_layers(arguments) & frozenset(range(layers)))
    if (experts := _experts(arguments)) is not None:
        fields["num_experts"] = experts
    _set_heads(arguments, fields)
    _set_parts(arguments, fields)
    _set_width(arguments, fields)
    _set_experts(arguments, fields, layers)
    _set_latent(arguments, fields)
    fields |= mixers_of(arguments, fields, part(targets, "model"))
    return fields


def _experts(arguments: Arguments) -> int | None:
    """Return the number of routed experts; per-layer numbers, as in Megatron-DeepSpeed, must be equal."""
    numbers = (arguments.text("num_experts", "num-experts") or "").split()
    if len(numbers) < 2 or not all(re.fullmatch(r"[0-9]{1,6}", number, re.ASCII) for number in numbers):
        return arguments.integer("num_experts", "num-experts", low=0)
    if len(set(numbers)) > 1:
        message = f"--num-experts {' '.join(numbers)[:60]}: layers of unequal numbers of experts are not modelled"
        arguments.not_modelled(message, "num-experts")
    return int(numbers[0])


def _set_heads(arguments: Arguments, fields: dict[str, Any]) -> None:
    """Set key-value heads, which only a switch reduces, and the size of a head."""
    heads, hidden = fields.get("num_attention_heads"), fields.get("hidden_size")
    groups = fields.pop("num_key_value_heads", None) or arguments.integer("num_key_value_heads", *_HEADS)
    grouped = arguments.switch("num_key_value_heads", "group-query-attention") or arguments.has(*_HEADS)
    if heads and "num_key_value_heads" not in arguments.incomplete:
        fields["num_key_value_heads"] = groups if grouped and groups else heads
    if hidden and heads and hidden % heads == 0 and "head_dim" not in arguments.incomplete:
        fields.setdefault("head_dim", hidden // heads)


def _set_parts(arguments: Arguments, fields: dict[str, Any]) -> None:
    """Set a layer's parts: network, biases, positions."""
    biased = not arguments.switch("mlp_bias", "disable-bias-linear")
    kind = (arguments.text("rotary", "position-embedding-type") or "").lower()
    rotary = kind in _ROTARY
    learned = not rotary and kind in ("", "learned_absolute", "absolute") and not arguments.has("no-position-embedding")
    fields |= {
        # `--fc-type up_down` of MindSpeed-LLM c77308a removes the gate.
        "gated": bool(fields.get("gated")) and arguments.text("intermediate_size", "fc-type") != "up_down",
        "activation": fields.get("activation", "gelu"),
        "attention_bias": arguments.switch("attention_bias", "add-qkv-bias") or biased,
        "attention_output_bias": biased or fields.get("attention_output_bias", False),
        "mlp_bias": biased,
        "rotary": rotary,
        "learned_positions": fields.get("max_position_embeddings", 0) if learned else 0,
    }


def _set_width(arguments: Arguments, fields: dict[str, Any]) -> None:
    """Set the network's width as Megatron derives it, or by FlagScale's `--multiple-of` (v0.1, arguments.py)."""
    hidden = fields.get("hidden_size")
    if not hidden or "intermediate_size" in fields or "intermediate_size" in arguments.incomplete:
        return
    multiple = arguments.integer("intermediate_size", "multiple-of")
    if not fields["gated"]:
        width = 4 * hidden
    elif multiple is None:
        width = int(hidden * 4 * 2 / 3 / 64) * 64
    else:
        factor = arguments.text("intermediate_size", "hidden-dim-multiplier") or "1"
        if not re.fullmatch(r"[0-9]{1,3}(\.[0-9]{1,6})?", factor, re.ASCII):
            problem = f"'{factor[:40]}' given; must be a number"
            raise arguments.refusal(arguments.entry("hidden-dim-multiplier"), problem)
        width = padded(int(int(4 * hidden * 2 / 3) * float(factor)), multiple)
    fields["intermediate_size"] = width


def _set_experts(arguments: Arguments, fields: dict[str, Any], layers: int | None) -> None:
    """Set the fields of experts, where the model has them; `layers` include no-op layers."""
    shared = fields.pop("num_shared_experts", None)
    gate = fields.pop("shared_expert_gate", False)
    if "n_group" in fields and not fields.get("topk_group") and "topk_group" not in arguments.incomplete:
        # Groups are ignored without a number of groups per token: core_r0.12.0, transformer/moe/moe_utils.py:525.
        fields |= {"n_group": 0, "topk_group": 0}
    alone = fields.get("num_experts") == 1 and arguments.has("deepspeed")
    if alone or not fields.get("num_experts"):
        for name in ("num_experts", "num_experts_per_tok", "moe_intermediate_size"):
            fields.pop(name, None)
        return
    fields.setdefault("num_experts_per_tok", 2)
    own = fields.setdefault("moe_intermediate_size", fields.get("intermediate_size"))
    width = arguments.integer("num_shared_experts", "moe-shared-expert-intermediate-size")
    if shared:
        fields["num_shared_experts"] = shared
    elif width and own:
        fields["num_shared_experts"] = max(1, width // own)
        if width % own:
            fields["shared_expert_intermediate_size"] = width
    if fields.get("num_shared_experts"):
        fields["shared_expert_gate"] = gate
    fields |= _places_of_experts(arguments, fields, layers)


def _places_of_experts(arguments: Arguments, fields: dict[str, Any], layers: int | None) -> dict[str, Any]:
    """Return which layers have experts: by MindSpeed's count of leading dense ones, a step, or a list."""
    leading = max(arguments.integer("first_k_dense_replace", "first-k-dense-replace", low=-1) or 0, 0)
    text = (arguments.text("first_k_dense_replace", "moe-layer-freq") or "1").replace(" ", "").strip("\"'")
    if text in ("1", "-1"):
        return {"first_k_dense_replace": leading}
    step = int(text) if re.fullmatch(r"[0-9]{1,4}", text, re.ASCII) and int(text) else 0
    digits = "".join("01"[i % step == 0 and i >= leading] for i in range(layers or 0)) if step else layer_digits(text)
    if "1" not in digits or (layers is not None and len(digits) != layers):
        message = f"--moe-layer-freq {text[:40]}: no list of {layers or 'all'} layers of which some have experts"
        arguments.not_modelled(message, "moe-layer-freq")
        return {"first_k_dense_replace": 0}
    first = digits.find("1")
    if "0" not in digits[first:]:
        return {"first_k_dense_replace": first}
    plain = "gated" if fields["gated"] else "plain"
    return {"feed_forwards": tuple("experts" if digit == "1" else plain for digit in digits)}


def _set_latent(arguments: Arguments, fields: dict[str, Any]) -> None:
    """Set the sizes of latent attention, if the model has it; refuse unknown definitions of layers."""
    spec = arguments.text("spec", "spec")
    if spec and _SPECS.fullmatch(spec) is None:
        arguments.not_modelled(f"--spec {spec[:80]}: layers of this kind are not modelled", "spec")
    if fields.get("attention") != "mla":
        for name in LATENT:
            fields.pop(name, None)
        return
    # With MLA the flag means the norms of compressed queries and keys, which its layers include anyway.
    fields |= {"qk_norm": False, "attention_bias": False}
    if arguments.has("multi-latent-attention"):
        usual = {name: size for name, size in _LATENT_SIZES.items() if name not in {*fields, *arguments.incomplete}}
        fields |= usual
    if fields.get("qk_nope_head_dim") and fields.get("qk_rope_head_dim"):
        fields["head_dim"] = fields["qk_nope_head_dim"] + fields["qk_rope_head_dim"]


def model_of(arguments: Arguments, fields: dict[str, Any], tensor_parallel: int) -> tuple[str | None, dict[str, Any]]:
    """Return the shipped model of a shape, and the fields in which the run differs from it."""
    count, assumed = vocabulary(arguments)
    shape = {**fields, **({"vocab_size": count} if count else {})}
    model = models.by_shape(shape)
    unknown = arguments.has("patch-tokenizer-type") and model is not None and models.shares_sizes(model)
    if model is not None and not count:
        parts: dict[str, Any] = {name: fields[name] for name in ("attention_bias", "qk_norm") if name in fields}
        unknown = unknown or bool(models.differing(model, parts)) or _names_another(arguments, model)
    if model is not None and not count and unknown:
        # Several models of equal sizes, or an unknown tokenizer: the vocabulary would be a guess.
        model = None
    multiple = padding(arguments, tensor_parallel)
    fix = "--model-field vocab_size=N"
    if model is None:
        if count:
            shape["vocab_size"] = padded(count, multiple)
        else:
            message = "the recipe does not say how large the vocabulary is"
            arguments.remark("no-vocabulary", "warning", message, "tokenizer-type", "patch-tokenizer-type", fix=fix)
        return None, {**shape, "architecture": _architecture(shape)}
    own = models.load_model(model).vocab_size
    known = count if count and not own - _SPARE_ENTRIES <= count <= own else own
    assumed = assumed if count else f"{model}, whose layers have these sizes,"
    if assumed and (known != own or not count):
        message = f"vocabulary of {known} is what {assumed} has; the script does not say"
        arguments.remark("vocabulary-assumed", "note", message, "tokenizer-model", "tokenizer-type", fix=fix)
    shape["vocab_size"] = padded(known, multiple)
    shape.pop("max_position_embeddings", None)
    return model, models.differing(model, shape)


_SPARE_ENTRIES: Final = 600  # most rows by which a model's vocabulary exceeds its tokenizer's entries, padding included


def _architecture(shape: Mapping[str, object]) -> str:
    """Return a model family whose layers have these parts."""
    if "architecture" in shape:
        return str(shape["architecture"])
    if shape.get("attention") == "mla":
        return "deepseek_v3"
    if not shape.get("gated"):
        return "mixtral" if shape.get("num_experts") else "gpt2"
    if shape.get("qk_norm"):
        return "qwen3_moe" if shape.get("num_experts") else "qwen3"
    if shape.get("num_experts"):
        return "mixtral"
    return "qwen2" if shape.get("attention_bias") else "llama"


_CORE: Final = re.compile(r"(?<![A-Za-z0-9])core[-_]([rv])0\.([0-9]{1,2})(?:\.([0-9]{1,2}))?(?![0-9])", re.ASCII)
"""Names of Megatron-LM's branches and tags: core_r0.8.0, core_v0.12.1."""
_TIP: Final = 99  # PATCH of a branch, which is at least its last release
_SNAPSHOT: Final = re.compile(r"/(?:PAI-)?Megatron-LM-(23\.04|[0-9]{6})(?![\w.-])", re.ASCII)
_MINORS: Final = (
    *((1, "23.04 230512"), (4, "231007 231221 240126"), (6, "240322 240405"), (8, "240612"), (9, "240718")),
    *((10, "241113"), (11, "250213"), (12, "250217 250310 250314 250328"), (14, "250624"), (15, "250908")),
)
_SNAPSHOTS: Final[Mapping[str, int]] = MappingProxyType({name: n for n, names in _MINORS for name in names.split()})
"""Core 0.MINOR (megatron/core/package_info.py) in Pai-Megatron-Patch's folders of Megatron-LM, by snapshot.

Commits are those of its submodules (alibaba/Pai-Megatron-Patch a098ca5 and its history). 240718 is the fork's up to
September 2025 (jerryli1981/PAI-Megatron-LM-240718 8dfa137), for which its scripts were written.
"""
_WHOLE_BATCH_UNTIL: Final = 9
"""Last core with it: pipeline_parallel/schedules.py of core_v0.9.0, line 664; removed before 0.10
(NVIDIA/Megatron-LM 4295be1)."""
_PROBABILITIES_SINCE: Final = (12, 1)
"""First core with `permuted_probs` in transformer/moe/experts.py: core_v0.12.1, not core_v0.12.0."""
_CONNECTIONS_SINCE: Final = 12  # first core that refuses one connection to a device, see `_remark_connections`


def core_of(launch: LaunchCommand) -> tuple[int, int] | None:
    """Return (MINOR, PATCH) of a launch's megatron-core, by the paths that Python searches; None if unknown."""
    paths = [launch.script.text]
    if "PYTHONPATH" in launch.environment:
        paths += launch.environment["PYTHONPATH"].text.split(":")
    for path in paths:
        if core := _CORE.search(path):
            return int(core[2]), _TIP if core[1] == "r" else int(core[3] or 0)
        if (snapshot := _SNAPSHOT.search(path)) and snapshot[1] in _SNAPSHOTS:
            return _SNAPSHOTS[snapshot[1]], 0
    return None


def _needed(arguments: Arguments) -> int:
    """Return the MINOR of the oldest core that has the flags of a launch."""
    own = table_of("megatron")
    releases = [_CORE.match(own[name].first) for name in arguments.entries if name in own]
    return max((int(core[2]) for core in releases if core), default=0)


def with_core(arguments: Arguments, run: Recipe, launch: LaunchCommand | None) -> Recipe:
    """Return the run with the behaviour of an older core; MindSpeed's releases have their own."""
    if launch is None or run.stack is not None:
        return run
    core = core_of(launch)
    _remark_connections(arguments, launch, core)
    if core is None:
        return run
    older = {"warm_up_whole_batch": "true"} if core[0] <= _WHOLE_BATCH_UNTIL else {}
    if arguments.has("num-experts") and core < _PROBABILITIES_SINCE:
        older["probabilities_in_experts"] = "false"
    return dataclasses.replace(run, options={**run.options, **older})


def _remark_connections(arguments: Arguments, launch: LaunchCommand, core: tuple[int, int] | None) -> None:
    """Remark FSDP with one connection to a device, which cores from 0.12 on refuse.

    Megatron-LM core_v0.12.0, megatron/training/arguments.py:527 and 567; cores 0.10 and 0.11 only warn.
    """
    number = launch.environment.get("CUDA_DEVICE_MAX_CONNECTIONS")
    names = ("use-torch-fsdp2", "use-megatron-fsdp")
    if number is None or not number.known or number.text != "1" or not arguments.has(*names):
        return
    if (_needed(arguments) if core is None else core[0]) >= _CONNECTIONS_SINCE:
        message, fix = "CUDA_DEVICE_MAX_CONNECTIONS is 1", "unset CUDA_DEVICE_MAX_CONNECTIONS"
        arguments.remark("one-connection", "error", message, *names, fix=fix)


_MOST_SYMBOLS: Final = 100_000
_REPEATED: Final = re.compile(r"(?:\(([^()]*)\)|([A-Za-z|]))\*(\d{1,6})", re.ASCII)


class Cut(Record):
    """Layers per pipeline rank, and their model chunks."""

    stage_layers: tuple[int, ...] = ()
    """Layers per rank; empty where all are equal."""
    chunks: int = 1
    """Model chunks per rank."""
    layers_per_chunk: int | None = None
    """Layers per chunk, where the recipe states them and all chunks are equal."""
    chunk_layers: tuple[int, ...] = ()
    """Layers of every chunk in the order of the model, where they differ."""
    schedule: ScheduleName = "1f1b"


def idle_layers(arguments: Arguments) -> frozenset[int]:
    """Return the layers of MindSpeed's `--noop-layers`: without weights, but with a place in the pipeline."""
    return frozenset(arguments.integers("noop_layers", "noop-layers"))


def cut_of(arguments: Arguments, layers: int | None, pipeline: int, chunks: int) -> Cut:
    """Return the cut; `layers` include no-op layers, `chunks` are model chunks per rank as a flag states them."""
    per_chunk = arguments.integer("layers_per_virtual_stage", "num-layers-per-virtual-pipeline-stage", low=0) or None
    # Return MindSpeed's `--schedules-method`; 1F1B without it or without a pipeline.
    method = arguments.text("schedule", "schedules-method")
    if method not in (None, "dualpipev"):
        arguments.not_modelled(f"--schedules-method {method}: MindSpeed has dualpipev", "schedules-method")
    schedule: ScheduleName = "dualpipev" if method == "dualpipev" and pipeline > 1 else "1f1b"
    idle = idle_layers(arguments)
    if schedule == "dualpipev":
        chunks = 2
        sizes = _active_layers(idle, layers or 0, pipeline * chunks)
        return replace(_listed(sizes, pipeline, schedule) if sizes else Cut(chunks=chunks), schedule=schedule)
    if per_chunk and layers and layers % (pipeline * per_chunk) == 0:
        chunks = layers // (pipeline * per_chunk)
    text = arguments.text("stage_layers", "pipeline-model-parallel-layout")
    if text is not None:
        return _described(arguments, text, pipeline)
    pattern = (arguments.text("stage_layers", _PATTERN) or "").strip("\"'").partition("/")[0]
    if "|" in pattern and _spec(arguments, "stack") and "pp" not in arguments.incomplete:
        segments = pattern.split("|")
        if len(segments) % pipeline:
            raise arguments.refusal(arguments.entry(_PATTERN), f"must have a multiple of {pipeline} parts between |")
        return _listed([len(segment) for segment in segments], pipeline)
    listed = arguments.integers("stage_layers", "num-layer-list")
    if listed and "pp" not in arguments.incomplete:
        if len(listed) != pipeline or (layers is not None and sum(listed) != layers):
            problem = f"must list {pipeline} numbers that add up to the {layers} layers"
            raise arguments.refusal(arguments.entry("num-layer-list"), problem)
        return Cut(tuple(listed) if len(set(listed)) > 1 else (), chunks) if chunks > 1 else _listed(listed, pipeline)
    sizes = _active_layers(idle, layers or 0, pipeline * chunks)
    if idle and sizes:
        return _listed(sizes, pipeline)
    accounted = _accounted(arguments, layers, pipeline, chunks, per_chunk)
    return accounted or Cut(_ends(arguments, layers, pipeline), chunks, per_chunk)


def _active_layers(idle: frozenset[int], layers: int, chunks: int) -> list[int]:
    """Return the active layers of each chunk; empty where layers, no-op ones included, do not divide evenly."""
    if not layers or layers % chunks:
        return []
    sizes = Counter(layer * chunks // layers for layer in range(layers) if layer not in idle)
    return [sizes[chunk] for chunk in range(chunks)]


def _described(arguments: Arguments, text: str, pipeline: int) -> Cut:
    """Parse `--pipeline-model-parallel-layout`: E embedding, t layer, m next-token layer, L loss, | between chunks."""
    name = "pipeline-model-parallel-layout"
    # Megatron-LM's own tests write the backslashes of a shell.
    chunks = _expanded(arguments, re.sub(r"[\\, ]", "", text.strip("\"' "))).split("|")
    if any(re.search(r"[^EtmL]", chunk) for chunk in chunks) or len(chunks) % pipeline:
        raise arguments.refusal(arguments.entry(name), f"must be E, t, m and L in a multiple of {pipeline} parts")
    if "E" not in chunks[0] or "L" not in chunks[-1] or any("m" in chunk for chunk in chunks[:-1]):
        arguments.not_modelled(f"--{name}: the cut of embedding, loss or next-token layers", name)
    return _listed([chunk.count("t") for chunk in chunks], pipeline)


def _expanded(arguments: Arguments, text: str) -> str:
    """Return the text with `x*3` and `(tt|)*3` expanded."""
    while match := _REPEATED.search(text):
        inner = match[1] if match[1] is not None else match[2]
        if len(inner) * int(match[3]) + len(text) > _MOST_SYMBOLS:
            raise arguments.refusal(arguments.entry("pipeline-model-parallel-layout"), "describes too many layers")
        text = text[: match.start()] + inner * int(match[3]) + text[match.end() :]
    return text


def _listed(sizes: list[int], pipeline: int, schedule: ScheduleName = "1f1b") -> Cut:
    """Return the cut of a list of chunks in the order of the model."""
    listed, chunks = tuple(sizes), len(sizes) // pipeline
    stages = rank_layers(listed, pipeline, schedule)
    equal = model_chunks(stages, chunks, (), schedule)
    if min(stages) > 0 and equal == model_chunks(stages, chunks, listed, schedule):
        return Cut(stages if len(set(stages)) > 1 else (), chunks)
    return Cut(stages, chunks, chunk_layers=listed)


def _accounted(arguments: Arguments, layers: int | None, pipeline: int, chunks: int, each: int | None) -> Cut | None:
    """Return the cut where embedding or loss count as a layer, so that the first or last chunk holds one less."""
    names = "account-for-embedding-in-pipeline-split", "account-for-loss-in-pipeline-split"
    first, last = (arguments.switch("stage_layers", name) for name in names)
    if not (first or last) or layers is None or pipeline == 1 or "pp" in arguments.incomplete:
        return None
    items = layers + first + last
    if each:
        chunks = max(items // (pipeline * each), 1)
    size, left = divmod(items, pipeline * chunks)
    if left or size < 1 or (each and size != each):
        message = (
            f"{layers} layers, with {first + last} more for embedding and loss, do not divide over {pipeline} stages"
        )
        used = [name for name in names if arguments.has(name)]
        arguments.remark("no-even-share", "error", f"{message} of {chunks} chunks" if chunks > 1 else message, *used)
        return Cut((), chunks)
    sizes = [size] * (pipeline * chunks)
    sizes[0] -= first
    sizes[-1] -= last
    return _listed(sizes, pipeline)


def _ends(arguments: Arguments, layers: int | None, pipeline: int) -> tuple[int, ...]:
    """Return layers per stage where the first or the last has its own number; else empty."""
    names = "decoder-first-pipeline-num-layers", "decoder-last-pipeline-num-layers"
    first, last = (arguments.integer("stage_layers", name, low=0) for name in names)
    if layers is None or (first is None and last is None):
        return ()
    inner = pipeline - (first is not None) - (last is not None)
    rest = layers - (first or 0) - (last or 0)
    if inner == 0 and rest > 0:  # Megatron-LM builds the two stages nevertheless (transformer_config.py, core_v0.15.0)
        arguments.not_modelled(f"{rest} of {layers} layers are on neither of two stages of {first} and {last}", *names)
        return ()
    if not 0 <= inner <= 4096 or rest < 0 or (inner and rest % inner):
        message = f"{layers} layers on {pipeline} stages with {first} first and {last} last leaves no even share"
        arguments.remark("no-even-share", "error", message, *names)
        return ()
    ends = (() if first is None else (first,)), (() if last is None else (last,))
    return (*ends[0], *([rest // max(inner, 1)] * inner), *ends[1])
