"""Reader of Primus' experiments: a file that names a framework and a model's file, and overrides both.

Read as Primus at fd1eeab reads it: `${NAME:default}` comes from the environment, and the named files are in
`primus/configs` of its checkout. Where those are not beside the recipe, the constants here replace them.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, Final

from simulator.errors import InputError, UnsupportedError
from simulator.frameworks import models
from simulator.frameworks.arguments import OFF, Arguments
from simulator.frameworks.configuration import Variables
from simulator.frameworks.documents import Key, beside, keys_of, read_document
from simulator.frameworks.flags import FlagTable, table_of
from simulator.frameworks.framework import FileForm, Framework
from simulator.frameworks.megatron.read import LATENT, read
from simulator.frameworks.megatron.special import add_layers, sharding_room, take_model
from simulator.frameworks.models import named_model
from simulator.frameworks.torchtitan.read import add_keys, torchtitan_run
from simulator.frameworks.values import known_value, require_inside
from simulator.question.origin import Place
from simulator.question.recipe import Recipe
from simulator.question.specs.documents import read_yaml
from simulator.records import Record

_MEGATRON: Final = (
    *("bf16", "use-flash-attn", "use-distributed-optimizer", "sequence-parallel"),
    *("micro-batch-size=2", "global-batch-size=16", "seq-length=1024", "attention-dropout=0.0", "hidden-dropout=0.0"),
)
"""Settings of `modules/megatron/pre_trainer.yaml` and `models/megatron/language_model.yaml` that change memory or
speed; dropout is that of `models/megatron/llama_base.yaml`, on which most models build."""
_TORCHTITAN: Final = ("activation_checkpoint.mode=none", "optimizer.implementation=fused", "compile.enable=true")
"""Settings of `modules/torchtitan/pre_trainer.yaml` that differ from torchtitan's defaults."""
_RENAMED: Final = {"fp8": "fp8_format"}
_BASES: Final = ("primus/configs/modules/", "primus/configs/models/megatron/language_model.yaml")
_DEFAULTS: Final = {
    name: flag.default if flag.file.startswith(_BASES) else "" for name, flag in table_of("primus").items()
}  # values that Primus' own files set for every model, which count as defaults; those of a model's file do not
_TABLE: Final = FlagTable(
    {
        name: dataclasses.replace(flag, default=_DEFAULTS.get(name, flag.default))
        for name, flag in table_of("megatron", "primus").items()
    }
)
_HEAD: Final = re.compile(r"modules\.[^.]+\.(\w+)")  # a key directly below a module's name
_DEPTH: Final = "model.n_layers"
_TURBO_LINEAR: Final = ("enable_primus_turbo", "use_turbo_float8_linear")
"""Keys of `primus_turbo` that are on in `modules/torchtitan/pre_trainer.yaml`."""
_DEEPEST: Final = 8
_STACKS: Final = "primus.backends.megatron.core.models.hybrid.hybrid_mamba_mla_layer_specs "
_LOSS_CHUNKS: Final = 32
_TOKENIZER: Final = "meta-llama/Llama-3.2"
_LORA_RANK: Final = 16


def is_primus(names: Collection[str]) -> bool:
    """Whether keys belong to an experiment of Primus."""
    return {"framework", "config"} <= {match[1] for name in names if (match := _HEAD.fullmatch(name))}


def read_megatron(arguments: Arguments, keys: Sequence[Key]) -> Recipe | None:
    """Return the run of an experiment on Megatron-LM; None for another framework. Raises UnsupportedError."""
    experiment = _experiment(arguments, keys)
    return _megatron(arguments, experiment) if experiment and experiment.framework == "megatron" else None


def read_torchtitan(arguments: Arguments, keys: Sequence[Key]) -> Recipe | None:
    """Return the run of an experiment on torchtitan; None for what is no experiment. Raises UnsupportedError."""
    experiment = _experiment(arguments, keys)
    if experiment is not None and experiment.framework != "torchtitan":
        raise UnsupportedError(
            f"{arguments.file}:{experiment.heads['framework'].line}: Primus' framework "
            f"'{experiment.framework[:40]}' keeps its values in Python; read are megatron and torchtitan"
        )
    return None if experiment is None else _torchtitan(arguments, experiment)


class _Experiment(Record):
    """The first module of an experiment."""

    framework: str
    heads: Mapping[str, Key]
    """`framework`, `config` and `model`."""
    overrides: Sequence[Key]
    variables: Variables


def _experiment(arguments: Arguments, keys: Iterable[Key]) -> _Experiment | None:
    """Return the experiment; None where its first module names no framework."""
    variables = Variables(arguments.settings)
    inside = [key for key in variables.keys(keys) if key.path[0] == "modules" and len(key.path) > 2]
    arguments.used |= variables.used
    module = inside[0].path[1] if inside else ""
    heads = {key.name: key for key in inside if len(key.path) == 3 and key.path[1] == module}
    if "framework" not in heads:
        return None
    own = (key for key in inside if key.path[1:3] == (module, "overrides") and len(key.path) > 3)
    overrides = [dataclasses.replace(key, path=key.path[3:]) for key in own]
    return _Experiment(heads["framework"].first.text, heads, overrides, variables)


def _files(arguments: Arguments, experiment: _Experiment) -> tuple[list[Key], bool]:
    """Return the keys of the files that the experiment names, and whether the model's file is among them.

    Raises UnsupportedError for a model whose file stands in `configs/models/megatron/diffusion`.
    """
    keys: list[Key] = []
    modelled, recipe, model = False, arguments.file, experiment.heads.get("model")
    if model is not None and "diffusion" in PurePosixPath(model.first.text).parts[:-1]:
        message = f"{model.first.text[:60]}: diffusion models are not modelled; read are decoders"
        raise UnsupportedError(f"{recipe}:{model.line}: {message}")
    for head, folder in (("config", "modules"), ("model", "models")):
        key = experiment.heads.get(head)
        if key is None or not key.first.text or not key.first.known:
            continue
        name = key.first.text
        for place in (f"primus/configs/{folder}/{experiment.framework}/{name}", name):
            try:
                file = beside(recipe, place, key.line)
            except InputError:
                continue
            keys += experiment.variables.keys(_extended(file, Path(recipe), 0))
            modelled = modelled or head == "model"
            break
    arguments.used |= experiment.variables.used
    return keys, modelled


def _extended(file: Path, recipe: Path, depth: int) -> list[Key]:
    """Return the keys of a file after those of the files it extends. Raises InputError outside the repository."""
    document = read_document(file)
    bases = document.pop("extends", None) or []
    keys: list[Key] = []
    for base in bases if isinstance(bases, list) and depth < _DEEPEST else []:
        if isinstance(base, str) and (file.parent / base).is_file():
            keys += _extended(require_inside(file.parent / base, recipe, f"{file}: {base[:200]}"), recipe, depth + 1)
    return [*keys, *(dataclasses.replace(key, file=str(file)) for key in keys_of(file, document))]


def _last(keys: Iterable[Key]) -> list[Key]:
    return list({key.path: key for key in keys}.values())


def _megatron(arguments: Arguments, experiment: _Experiment) -> Recipe:
    heads, overrides = experiment.heads, experiment.overrides
    arguments.table = _TABLE
    base, modelled = _files(arguments, experiment)
    lora = {key.name: key for key in overrides if key.path[0] == "lora"}
    for key in _last((*base, *overrides)):
        if key.path[0] != "lora":
            arguments.add_key(_RENAMED.get(key.name, key.name), key.values, key.line, key.file)
    model = None
    plain = (arguments.text("spec", "spec") or "").endswith("_no_te")
    hybrid = {} if modelled else _hybrid(arguments, heads.get("model"))
    if not modelled and "model" in heads and not hybrid:
        model = _model(arguments, heads["model"])
        add_layers(arguments, model, heads["model"].line)
    stated = {key.name.lower() for key in (*base, *overrides)}
    arguments.add_defaults(_MEGATRON, heads["framework"].line, stated)
    if arguments.has("fp16"):
        arguments.entries.pop("bf16", None)
    if not arguments.has("fp8_format"):
        # Primus' files name a scaling recipe even without fp8.
        arguments.entries.pop("fp8_recipe", None)
    arguments.note_unset(experiment.variables.assumed_unset)
    run = read(arguments, None)
    if hybrid:
        run = _as_hybrid(arguments, run, hybrid, plain=plain)
    elif not modelled:
        run = take_model(arguments, run, model)
        off = any(key.name == "multi_latent_attention" and key.first.text.lower() in OFF for key in overrides)
        run = dataclasses.replace(run, model_fields=_whole_heads(run)) if off else run
    if "enabled" in lora and lora["enabled"].first.text.lower() not in OFF:
        rank = lora["dim"].first.text if "dim" in lora else str(_LORA_RANK)
        run = dataclasses.replace(run, lora_rank=int(rank) if rank.isascii() and rank.isdigit() else None)
    return run


def _hybrid(arguments: Arguments, key: Key | None) -> Mapping[str, Any]:
    """Return the fields of a model of Primus' own stacks; none for others, and where the recipe names another stack.

    `spec` lists a module and the stack in it. Of Kimi's delta attention only the kernel is priced, not PyTorch's way.
    """
    known: Mapping[str, Any] = read_yaml(Path(__file__).with_name("hybrids.yaml"))
    own = known.get(PurePosixPath(key.first.text).stem) if key is not None and key.first.known else None
    spec = (arguments.text("spec", "spec") or "").removeprefix(_STACKS)
    if own is None or spec not in own["stacks"] or arguments.has("use_fla_triton_kda_hybrid"):
        return {}
    if "kimi_delta" in own["fields"]["mixers"] and not arguments.switch("mixers", "use_fla_triton_kda"):
        return {}
    arguments.forget("mixers")
    arguments.entries.pop("spec")
    # The model's file names the same tokenizer.
    tokenizer = arguments.text("vocab_size", "tokenizer_model") or _TOKENIZER
    arguments.forget("vocab_size")
    return {
        "architecture": "nemotron_h",
        "tie_word_embeddings": True,
        **({"vocab_size": 128256} if tokenizer.startswith(_TOKENIZER) else {}),
        "feed_forwards": ("none", "gated"),
        "convolution": 4,
        **own["fields"],
        "mixers": tuple(own["fields"]["mixers"]),
    }


def _as_hybrid(arguments: Arguments, run: Recipe, fields: Mapping[str, Any], *, plain: bool) -> Recipe:
    """Return the run with those layers and a loss in as many parts as it says; `plain` norms may be torch's."""
    options = dict(run.options)
    chunks = arguments.integer("cross_entropy", "fused_ce_chunks") or _LOSS_CHUNKS
    if arguments.text("cross_entropy", "fused_ce_mode") == "1" and run.layout is not None and run.seq_length:
        options["cross_entropy_chunk_tokens"] = str(-(-run.layout.micro_batch_size * run.seq_length // chunks))
    if plain and not arguments.switch("cross_entropy", "use_fla_fused_rmsnorm"):
        options["fused_rms_norm"] = "false"
    whole = {**fields, **{name: value for name, value in run.model_fields.items() if name in arguments.places}}
    if "vocab_size" in fields:
        arguments.remarks = [remark for remark in arguments.remarks if remark.rule != "no-vocabulary"]
    sizes = {f"model.{name}": whole[name] for name in ("hidden_size", "intermediate_size")}
    sharded = {f"option.{name}": text for name, text in options.items()}
    spread = {"layout.expert_parallel": run.layout.expert_parallel} if run.layout else {}
    room = sharding_room(arguments, {**sizes, **sharded, **spread}, whole)
    return dataclasses.replace(run, model=None, model_fields=whole, options=options, unpriced_bytes=room)


def _whole_heads(run: Recipe) -> dict[str, object]:
    """Return the fields of a model without its latent attention: whole heads with norms, as in its file.

    `models/megatron/deepseek_v*.yaml`: `kv_channels` is the width of a value, `qk_layernorm` is on.
    """
    fields = dict(run.model_fields)
    spec = models.load_model(run.model) if run.model else None
    if spec is None or spec.attention != "mla":
        return fields
    whole = {"attention": "gqa", "head_dim": spec.v_head_dim, "num_key_value_heads": spec.num_attention_heads}
    return fields | dict.fromkeys(LATENT) | whole | {"qk_norm": True}


def _model(arguments: Arguments, key: Key) -> str | None:
    """Return the shipped model that the name of a model's file means; None if unknown."""
    arguments.places.setdefault("model", Place(arguments.file, key.line))
    if not key.first.known:
        arguments.need(key.first.causes, "model")
        return None
    model = named_model(arguments, PurePosixPath(key.first.text).name.removesuffix(".yaml"))
    at = arguments.places["model"]
    arguments.remarks = [dataclasses.replace(x, place=at) if x.rule.endswith("model") else x for x in arguments.remarks]
    return model


def _torchtitan(arguments: Arguments, experiment: _Experiment) -> Recipe:
    heads = experiment.heads
    base, modelled = _files(arguments, experiment)
    keys = _last((*base, *experiment.overrides))
    ours = {key.dotted for key in keys if key.path[0] == "primus_turbo" or table_of("primus").passes(key.dotted)}
    arguments.passed = ours | {_DEPTH}
    add_keys(arguments, arguments.file, keys)
    if not modelled and "model" in heads:
        _flavor(arguments, heads["model"])
    arguments.add_defaults(_TORCHTITAN, heads["framework"].line)
    arguments.note_unset(experiment.variables.assumed_unset)
    turbo = _turbo_products(arguments)
    layers = arguments.integer("num_hidden_layers", _DEPTH)
    run = torchtitan_run(arguments, layers)
    fields = dict(run.model_fields)
    if layers is not None and run.model is not None:  # patches/model_override_patches.py
        fields = models.differing(run.model, {**fields, "num_hidden_layers": layers})
    return dataclasses.replace(run, options={**run.options, **turbo}, model_fields=fields)


def _turbo_products(arguments: Arguments) -> dict[str, str]:
    """Return the switches of fp8 by Primus-Turbo's linear layers in place of torchao's.

    patches/turbo/fp8_linear_patches.py. Inputs are kept for the backward pass in 8 bits, and so are weights, except in
    recomputed layers (Primus-Turbo a6a16cd, pytorch/ops/gemm_fp8.py: FP8GemmTensorFunction). Weights are gathered in 16
    bits: the converter takes no other setting of fp8. Two copies of the weights are priced, of which one is kept.
    """
    on = [arguments.text("fp8_inputs", f"primus_turbo.{name}") or "true" for name in _TURBO_LINEAR]
    converters = arguments.text("precision", "model.converters") or ""
    if "float8" not in converters or any(text.lower() in OFF for text in on):
        return {}
    keeps_both = str(arguments.text("recompute", "activation_checkpoint.mode") == "none").lower()
    return {"fp8_inputs": "true", "fp8_weight_cache": keeps_both, "fp8_param_gather": "false"}


def _flavor(arguments: Arguments, key: Key) -> None:
    """Add model and flavor from the name of a model's file: `llama3.1_70B-fp8.yaml`."""
    stem = PurePosixPath(key.first.text).name.removesuffix(".yaml")
    plain = stem.removesuffix("-fp8")
    name, _, flavor = plain.rpartition("_")
    arguments.add("model.name", [known_value(name, key.line)], key.line)
    arguments.add("model.flavor", [known_value(flavor, key.line)], key.line)
    if plain != stem:
        arguments.add("model.converters", [known_value("float8", key.line)], key.line)


FRAMEWORK: Final = Framework(
    title="Primus",
    profile="megatron",
    tables=("megatron", "primus"),
    files=(
        FileForm("primus-yaml", 1, is_primus, read_megatron, refers=False),
        FileForm("primus-yaml", 2, is_primus, read_torchtitan, refers=False, tables=("torchtitan",)),
    ),
)
