"""Reader of Megatron-Bridge's performance scripts, whose flags change a recipe of the release, and of library recipes.

Read at NVIDIA-NeMo/Megatron-Bridge 7695d4a to fcbb603 (v0.5.0): `scripts/performance/{run_script,setup_experiment}.py`,
`argument_parser.py`, and `set_user_overrides` and `set_post_overrides` of `utils/overrides.py`. The recipes stand in
`releases`; `megatron.read` interprets what the flags set over them. Library recipes, which
`scripts/training/run_recipe.py --recipe NAME` starts, stand in `recipes` as of 067f987 (`tools.library_recipes` writes
them); `nemo.recipes` interprets them and what a launch sets after the name.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from itertools import filterfalse
from pathlib import Path
from typing import Any, Final, NamedTuple

from simulator.errors import UndecidedError, UnsupportedError
from simulator.files import read_table
from simulator.frameworks import models
from simulator.frameworks.arguments import Arguments, LaunchCommand
from simulator.frameworks.configuration import Interpolation
from simulator.frameworks.documents import Key, keys_of, read_document
from simulator.frameworks.framework import FileForm, Framework, LaunchForm, marked
from simulator.frameworks.logs import note_samples
from simulator.frameworks.megatron.read import read as read_megatron
from simulator.frameworks.nemo.read import with_named_model
from simulator.frameworks.nemo.recipes import PythonRecipe, read_python
from simulator.frameworks.values import EMPTY, PlainValue, known_value
from simulator.question.frameworks.stacks import STACKS, ReleaseRecipe, release_recipes
from simulator.question.origin import Place
from simulator.question.recipe import Recipe
from simulator.question.scenario.layout import BY_NAME, FIELDS, Layout
from simulator.question.specs.names import shipped_name
from simulator.question.vocabulary import StackName

_NAMES: Final = frozenset(["model_recipe_name", "mr"])
_PER_NODE: Final = {"h100": 8, "b200": 8, "b300": 8, "gb200": 4, "gb300": 4}
"""Devices of a node where the launch states none (`NUM_GPUS_PER_NODE_MAP`)."""
_PRECISIONS: Final[Mapping[str, tuple[str, ...]]] = {
    "bf16": ("bf16",),
    "fp8_cs": ("bf16", "fp8-format=hybrid", "fp8-recipe=tensorwise"),
    "fp8_mx": ("bf16", "fp8-format=e4m3", "fp8-recipe=mxfp8"),
    "fp8_sc": ("bf16", "fp8-format=e4m3", "fp8-recipe=blockwise"),
    "nvfp4": ("bf16", "fp4-format=e2m1"),
}  # Megatron-LM's words for `--compute_dtype` (`utils/precision.py`)
_CUTS: Final = ("stage_layers", "chunk_layers")
_RECOMPUTE: Final = ("recompute", "recompute_modules", "recompute_method", "recompute_layers")
_WHOLE: Final = {"optimizer_dtype": "fp32", "master_weight_dtype": "fp32"}
"""Types of the optimizer's state under Megatron FSDP, which takes no narrower ones (`_set_megatron_fsdp_overrides`)."""
_SHAPES: Final = ("hidden_size", "num_layers", "first_k_dense_replace", "pipeline_model_parallel_layout")
_RANK: Final = 16  # rank of the recipes' adapters (`llama3_llm_finetune.py`)
_LONG: Final = ("llama", "nemotron")
"""Models whose recipes train from scratch on 8,192 tokens; others on 4,096 (`configs/*/*_pretrain.py`)."""


class _Base(NamedTuple):
    """Recipe that a launch changes, and the release that has it."""

    stack: StackName
    recipe: ReleaseRecipe


def is_own(launch: LaunchCommand) -> bool:
    """Whether a launch names a recipe of the performance scripts."""
    return not _NAMES.isdisjoint(launch.flags) or "-mr" in launch.texts


def cluster(arguments: Arguments, _launch: LaunchCommand) -> tuple[int | None, int | None]:
    """Return nodes and devices per node: the scripts start, or join, as many processes as they are told."""
    count = arguments.integer("nodes", "num_gpus")
    usual = _PER_NODE.get(arguments.text("hardware", "gpu") or "")
    each = arguments.integer("devices_per_node", "gpus_per_node") or usual
    return (None, each) if count is None or each is None else (max(count // each, 1), min(each, count))


def take_words(arguments: Arguments, _launch: LaunchCommand, words: Sequence[PlainValue]) -> None:
    """Take words `part.field=value` as flags, which argparse leaves over wherever they stand."""
    overrides = list(filter(_is_override, words))
    for entries in arguments.entries.values():
        overrides += [value for entry in entries for value in entry.values if _is_override(value)]
        entries[:] = [replace(entry, values=tuple(filterfalse(_is_override, entry.values))) for entry in entries]
    for value in overrides:
        key, _, setting = value.text.lstrip("+").partition("=")
        arguments.add(key, [known_value(setting, value.line)], value.line)
    arguments.complete_names()


def _is_override(value: PlainValue) -> bool:
    return value.known and re.match(r"\+{0,2}[a-z_]+(?:\.\w+)+=", value.text, re.ASCII) is not None


def read(arguments: Arguments, launch: LaunchCommand) -> Recipe:
    """Return the run of a launch: what its flags say, and its recipe where they say nothing."""
    name = (arguments.text("model", "model_recipe_name") or "").lower()
    device = (arguments.text("hardware", "gpu") or "").lower()
    precision = arguments.text("precision", "compute_dtype") or "bf16"
    task = arguments.text("task", "task") or "pretrain"
    _spell(arguments, precision, launch.line)
    bases = _bases((name, task, device, precision), arguments.text("variant", "config_variant") or "v2")
    run = read_megatron(arguments, launch.environment)
    run = with_named_model(arguments, run, *((bases[0].recipe.model,) if bases else (name.replace("_", "-"),)))
    sharded = run.layout is not None and run.layout.zero_stage > 1
    options = {**run.options, **(_WHOLE if sharded else {})}
    run = replace(run, options=options, hardware=shipped_name("hardware", device))
    if not bases or run.layout is None:
        message = f"{name[:60]}: no release has its recipe to {task} on {device[:20]} in {precision[:20]}"
        arguments.not_modelled(message, "model_recipe_name")
        return run
    laid_out = ((base, layout) for base in bases if (layout := _laid_out(arguments, run.layout, base)) is not None)
    base, layout = next(laid_out, (bases[0], run.layout))
    message = f"what the launch leaves out is as in {base.recipe.recipe} of {base.stack}, the newest that starts so"
    arguments.remark("release-assumed", "note", message, "model_recipe_name", fix="--stack NAME")
    usual = 8192 if base.recipe.model.startswith(_LONG) else 4096
    return replace(
        run,
        stack=base.stack,
        seq_length=run.seq_length or (None if "seq_length" in arguments.incomplete or base.recipe.tunes else usual),
        global_batch_size=run.global_batch_size or _batch(arguments, base.recipe),
        gradient_accumulation_steps=None,
        lora_rank=_RANK if base.recipe.trains_adapters else None,
        layout=layout,
    )


def _bases(names: tuple[str, str, str, str], variant: str) -> list[_Base]:
    """Return the recipe of a name, task, device and precision in each release, its variant first, newest first."""
    name, task, device, precision = names
    start, end = f"{name}_{task}_", f"_{device}_{precision}"
    stacks = sorted((stack.name for stack in STACKS if stack.name.startswith("megatron-bridge@")), reverse=True)
    return [
        _Base(stack, recipe)
        for ending in (f"{end}_{variant}", f"{end}_v1", f"{end.replace('_fp8_', '_fp8')}_config")
        for stack in stacks
        for recipe in release_recipes(stack)
        if recipe.recipe.startswith(start) and recipe.recipe.endswith(ending)
    ]


def _spell(arguments: Arguments, precision: str, line: int) -> None:
    """Add what flags of the scripts mean beyond themselves, in words of Megatron-LM (`set_user_overrides`)."""
    words = list(_PRECISIONS.get(precision, ()))
    if not words:
        message = f"--compute_dtype {precision[:40]}: allowed are {', '.join(_PRECISIONS)}"
        arguments.not_modelled(message, "compute_dtype")
    virtual = arguments.entry("num_virtual_stages_per_pipeline_rank")
    if virtual is not None and virtual.text.lower() == "none":
        arguments.entries[virtual.name] = [replace(virtual, values=(known_value("1", virtual.value_line),))]
    if other := next((name for name in _SHAPES if arguments.has(name)), ""):
        arguments.not_modelled(f"--{other}: a recipe with other layers, or with a layout of one's own", other)
    if (arguments.integer("tp", "tensor_model_parallel_size") or 1) > 1:
        words.append("sequence-parallel")
    if arguments.has("recompute_num_layers"):
        words += ["recompute-granularity=full", "recompute-method=block"]
    elif arguments.has("recompute_modules"):
        words.append("recompute-granularity=selective")
    if arguments.switch("zero_stage", "use_megatron_fsdp"):
        words.append("data-parallel-sharding-strategy=optim_grads_params")
    if arguments.has("moe_flex_dispatcher_backend"):
        words.append("moe-token-dispatcher-type=flex")
    arguments.add_defaults(words, line)


def _batch(arguments: Arguments, recipe: ReleaseRecipe) -> int | None:
    """Return the recipe's global batch, scaled to the number of devices (`set_post_overrides`)."""
    devices = arguments.integer("nodes", "num_gpus")
    if "global_batch_size" in arguments.incomplete or recipe.global_batch_size is None:
        return None
    return recipe.global_batch_size * (devices or recipe.devices) // recipe.devices


def _laid_out(arguments: Arguments, stated: Layout, base: _Base) -> Layout | None:
    """Return the recipe's layout with what the flags state over it; None where its cut of the layers refuses that."""
    texts = dict(base.recipe.layout)
    if arguments.has("recompute_modules", "recompute_num_layers"):
        texts = {key: text for key, text in texts.items() if key not in _RECOMPUTE}
    values = {BY_NAME[key].name: _typed(key, text) for key, text in texts.items() if key not in _CUTS}
    own = {field.name: getattr(stated, field.name) for field in FIELDS if field.key in arguments.places}
    if stated.zero_stage < 2:
        own["zero_stage"] = values.get("zero_stage", 1)
    whole = replace(stated, **{"expert_tensor_parallel": 1, **values, **own})
    cut = _cut(base, whole.pipeline_parallel, whole.virtual_stages)
    return None if cut is None else replace(whole, **cut)


def _cut(base: _Base, pipeline: int, virtual: int) -> dict[str, Any] | None:
    """Return the layers of stages or chunks: those of the release's recipes for the model, else equal ones.

    Where the recipe's ends have a layer less, the embedding and the loss count as layers
    (`account_for_embedding_in_pipeline_split`). None where the layers do not divide so.
    """
    for recipe in (base.recipe, *release_recipes(base.stack)):
        sizes = int(recipe.layout.get("pp", 1)), int(recipe.layout.get("vpp", 1))
        if recipe.model == base.recipe.model and sizes == (pipeline, virtual):
            return {key: _typed(key, recipe.layout[key]) for key in _CUTS if key in recipe.layout}
    chunks, layers = pipeline * virtual, models.load_model(base.recipe.model).num_hidden_layers
    if pipeline == 1:
        return {} if virtual == 1 else None
    own = next((_typed(key, base.recipe.layout[key]) for key in _CUTS if key in base.recipe.layout), ())
    more = 2 if own and own[0] == own[-1] == max(own) - 1 else 0
    if (layers + more) % chunks:
        return None
    size = (layers + more) // chunks
    ends = (size - 1, *[size] * (chunks - 2), size - 1)
    return {"stage_layers" if virtual == 1 else "chunk_layers": ends} if more else {}


def _typed(key: str, text: str) -> Any:
    """Return a text of a release's table as the value of its layout field."""
    kind, default = BY_NAME[key].kind, BY_NAME[key].default
    if kind in ("layers", "words"):
        return tuple(int(word) if kind == "layers" else word for word in text.split(","))
    return text == "true" if isinstance(default, bool) else int(text) if isinstance(default, int) else text


_TABLE: Final = Path(__file__).parent / "recipes" / "067f987.csv"
_SHORT: Final = (
    {"tp": "tensor_model_parallel_size", "pp": "pipeline_model_parallel_size", "cp": "context_parallel_size"}
    | {"vp": "virtual_pipeline_model_parallel_size", "ep": "expert_model_parallel_size", "sl": "seq_length"}
    | {"etp": "expert_tensor_parallel_size", "gb": "global_batch_size", "mb": "micro_batch_size"}
)  # flags that stand for keys (`COMMON_OVERRIDE_FIELDS`), of which batches are the training's, the others the model's
_IDLE: Final = re.compile(
    r"recipe|mode|step[-_]func|dataset|lr|min_lr|warmup_iters|max_steps|ms|pretrained_checkpoint|save\w+|load_dir"
    r"|deterministic|dump[-_]env|hf_path|per_split_data_args_path|data_paths|finetune_lr|lr_warmup_iters|train_iters"
)
_LAYOUT: Final = "model.pipeline_model_parallel_layout"
_STAGES: Final = "model.pipeline_model_parallel_size"


@cache
def _library() -> Mapping[str, Mapping[str, str]]:
    """Return the rows of library recipes by every name that they have."""
    return {name: row for row in read_table(str(_TABLE), _TABLE.stem) for name in row["names"].split()}


def read_library(
    arguments: Arguments, flags: Mapping[str, PlainValue], keys: Iterable[Key], environment: Mapping[str, PlainValue]
) -> Recipe:
    """Return the run of a launch that names a recipe, by its flags and keys. Raises UnsupportedError for others."""
    named = flags["--recipe"]
    where, shown = f"{arguments.file}:{named.line}", f"recipe {named.text[:60]}"
    if not named.known:
        raise UndecidedError(f"{where}: {shown}: only the run knows which")
    row = _library().get(named.text)
    if row is None:
        message = "Megatron-Bridge keeps what it sets in Python, which is not run"
        raise UnsupportedError(f"{where}: {shown}: {message}; {_TABLE.stem}, which is known, has none of this name")
    usual = [_key(word, named.line, arguments.file) for word in row["keys"].split()]
    values = {key.dotted: key for key in usual}
    pipeline = values.get(_STAGES)
    for flag, value in flags.items():
        name = _SHORT.get(flag.lstrip("-"), flag.lstrip("-"))
        if name in _SHORT.values():
            key = Key(("train" if "batch" in name else "model", name), (value,), value.line, value.text)
            values[key.dotted] = key
        elif not _IDLE.fullmatch(name):
            arguments.remark_line("not-modelled", "error", f"{flag}: not read beside the recipe", value.line)
    listed = [(key, key.first.text.lower() in ("", "null", "none")) for key in keys]
    for key in (key for key, empty in listed if empty and key.dotted in values):
        message = f"{key.dotted}: empty over {values[key.dotted].first.text}"
        arguments.remark_line("not-modelled", "error", message, key.line)
    values |= {key.dotted: key for key, empty in listed if not empty}
    if _LAYOUT in values and (values.get(_STAGES) is not pipeline or values[_LAYOUT].content == "layout_builder"):
        del values[_LAYOUT]
        arguments.remark_line("not-modelled", "error", f"{shown}: a function makes the cut", named.line)
    message = f"what is left out is as in {named.text} of Megatron-Bridge {_TABLE.stem}"
    arguments.remark_line("release-assumed", "note", message, named.line)
    if re.search("_(?:sft|peft|lora)_", named.text) and "enable_offline_packing=true" not in row["keys"]:
        note_samples(arguments, "seq_length")
    whole = tuple(values.values())
    place = Place(arguments.file, named.line)
    recipe = PythonRecipe(named.text, whole, environment, hub=row["model"], devices=None, device="", place=place)
    return replace(read_python(arguments, recipe), file=arguments.file)


def _key(word: str, line: int, file: str) -> Key:
    """Return a key of the table, whose value may be a list."""
    path, _, text = word.partition("=")
    items = text[1:-1].split(",") if text.startswith("[") else [text]
    return Key(tuple(path.split(".")), tuple(known_value(item, line) for item in items if item), line, text, file)


_RECIPES: Final = "megatron.bridge.recipes."
_ASIDE: Final = ("recipe.", "run.")  # sections of the function that makes a recipe, and of the job that starts it


def read_file(arguments: Arguments, _: Sequence[Key]) -> Recipe | None:
    """Return the run of a file that is laid over a library recipe: `recipe: {_target_: megatron.bridge.recipes.…}`.

    Raises UnsupportedError for a recipe that the table lacks.
    """
    file = Path(arguments.file)
    whole = Interpolation(keys_of(file, read_document(file), empty=True), arguments.settings).keys()
    target = next((key.first for key in whole if key.dotted == "recipe._target_"), EMPTY)
    if not target.text.startswith(_RECIPES):
        return None
    named = known_value(target.text.rpartition(".")[2], target.line)
    stated = {f"--{key.name}": key.first for key in whole if key.path[:-1] == ("recipe",) and key.name != "_target_"}
    flags = {"--recipe": named, **stated}
    return read_library(arguments, flags, [key for key in whole if not key.dotted.startswith(_ASIDE)], {})


FRAMEWORK: Final = Framework(
    title="Megatron-Bridge",
    profile="megatron",
    tables=("megatron_bridge", "megatron"),
    launches=(LaunchForm("bridge-shell", 5, is_own, read, take_words, cluster),),
    files=(FileForm("bridge-yaml", 29, marked("recipe._target_"), read_file, complete=False, in_words_of="megatron"),),
)
