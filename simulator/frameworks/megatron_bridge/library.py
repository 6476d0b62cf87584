"""Library recipes of Megatron-Bridge, which `scripts/training/run_recipe.py --recipe NAME` starts.

`recipes` has those of NVIDIA-NeMo/Megatron-Bridge 067f987 (`tools.library_recipes` writes them); what a launch sets
after the name stands over them (`scripts/training/run_recipe.py`, `recipe_runner.py`). `nemo.recipes` interprets both.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

from simulator.errors import UndecidedError, UnsupportedError
from simulator.frameworks.arguments import Arguments
from simulator.frameworks.documents import Key
from simulator.frameworks.logs import note_samples
from simulator.frameworks.nemo.recipes import PythonRecipe, read_python
from simulator.frameworks.values import PlainValue, known_value
from simulator.question.origin import Place
from simulator.question.recipe import Recipe
from simulator.question.specs.documents import read_table

_TABLE: Final = Path(__file__).parent / "recipes" / "067f987.csv"
_SHORT: Final = (
    {"tp": "tensor_model_parallel_size", "pp": "pipeline_model_parallel_size", "cp": "context_parallel_size"}
    | {"vp": "virtual_pipeline_model_parallel_size", "ep": "expert_model_parallel_size", "sl": "seq_length"}
    | {"etp": "expert_tensor_parallel_size", "gb": "global_batch_size", "mb": "micro_batch_size"}
)
"""Flags that stand for keys (`COMMON_OVERRIDE_FIELDS`), of which batches are the training's, the others the model's."""
_IDLE: Final = re.compile(
    r"recipe|mode|step[-_]func|dataset|lr|min_lr|warmup_iters|max_steps|ms|pretrained_checkpoint|save\w+|load_dir"
    r"|deterministic|dump[-_]env|hf_path"
)
_CUT: Final = "model.pipeline_model_parallel_layout"
_STAGES: Final = "model.pipeline_model_parallel_size"


def read_library(
    arguments: Arguments, flags: Mapping[str, PlainValue], keys: Iterable[Key], environment: Mapping[str, PlainValue]
) -> Recipe:
    """Return the run of a launch that names a recipe, by its flags and keys. Raises UnsupportedError for others."""
    named = flags["--recipe"]
    where, shown = f"{arguments.file}:{named.line}", f"--recipe {named.text[:60]}"
    if not named.known:
        raise UndecidedError(f"{where}: {shown}: only the run knows which")
    row = next((row for row in read_table(str(_TABLE), _TABLE.stem) if named.text in row["names"].split()), None)
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
            arguments.remark_line("not-modelled", "error", f"{flag}: not read beside --recipe", value.line)
    values |= {key.dotted: key for key in keys}
    if _CUT in values and (values.get(_STAGES) is not pipeline or values[_CUT].content == "layout_builder"):
        del values[_CUT]
        arguments.remark_line("not-modelled", "error", f"{shown}: a function makes the cut", named.line)
    message = f"what the launch leaves out is as in {named.text} of Megatron-Bridge {_TABLE.stem}"
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
