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

FLAGS: Final[Mapping[str, tuple[str, ...]]] = {
    "model.tensor_model_parallel_size": ("-tp", "--tensor_model_parallel_size"),
    "model.pipeline_model_parallel_size": ("-pp", "--pipeline_model_parallel_size"),
    "model.context_parallel_size": ("-cp", "--context_parallel_size"),
    "model.virtual_pipeline_model_parallel_size": ("-vp", "--virtual_pipeline_model_parallel_size"),
    "model.expert_model_parallel_size": ("-ep", "--expert_model_parallel_size"),
    "model.expert_tensor_parallel_size": ("-etp", "--expert_tensor_parallel_size"),
    "model.seq_length": ("-sl", "--seq_length"),
    "train.global_batch_size": ("-gb", "--global_batch_size"),
    "train.micro_batch_size": ("-mb", "--micro_batch_size"),
}
"""Keys that flags stand for (`COMMON_OVERRIDE_FIELDS`)."""
_IDLE: Final = re.compile(
    r"--(?:recipe|mode|step[-_]func|dataset|lr|min_lr|warmup_iters|max_steps|pretrained_checkpoint|save\w+|load_dir"
    r"|deterministic|dump[-_]env|hf_path)|-ms"
)
_TABLE: Final = str(Path(__file__).parent / "recipes" / "067f987.csv")
_TUNES: Final = re.compile(r"_(?:sft|peft|lora)_")
_CUT: Final = "model.pipeline_model_parallel_layout"
_STAGES: Final = "model.pipeline_model_parallel_size"


def read_library(
    arguments: Arguments, flags: Mapping[str, PlainValue], keys: Iterable[Key], environment: Mapping[str, PlainValue]
) -> Recipe:
    """Return the run of a launch that names a recipe, by its flags and keys. Raises UnsupportedError for others."""
    named = flags["--recipe"]
    if not named.known:
        raise UndecidedError(f"{arguments.file}:{named.line}: --recipe {named.text[:60]}: only the run knows which")
    row = next((row for row in read_table(_TABLE, "067f987") if named.text in row["names"].split()), None)
    place = Place(arguments.file, named.line)
    if row is None:
        raise UnsupportedError(
            f"{arguments.file}:{named.line}: --recipe {named.text[:60]}: Megatron-Bridge keeps what it sets in "
            "Python, which is not run, and 067f987, whose recipes are known, has none of this name"
        )
    values = {
        path: Key(tuple(path.split(".")), _values(text, named.line), named.line, text, arguments.file)
        for path, _, text in (word.partition("=") for word in row["keys"].split())
    }
    stated = {path: flags[name] for path, names in FLAGS.items() for name in names if name in flags}
    own = [Key(tuple(path.split(".")), (value,), value.line, value.text) for path, value in stated.items()]
    pipeline = values.get(_STAGES)
    for key in (*own, *keys):
        values[key.dotted] = key
    known = {name for names in FLAGS.values() for name in names}
    for name in (name for name in flags if name not in known and not _IDLE.fullmatch(name)):
        arguments.remark_line("not-modelled", "error", f"{name}: not read beside --recipe", flags[name].line)
    if values.get(_STAGES, pipeline) is not pipeline:
        values.pop(_CUT, None)
    elif _CUT in values and not re.fullmatch(r"[Etm|L]+", str(values[_CUT].content)):
        values.pop(_CUT)
        arguments.remark_line("not-modelled", "error", f"{named.text}: a function of its makes the cut", named.line)
    message = f"what the launch leaves out is as in {named.text} of Megatron-Bridge 067f987"
    arguments.remark_line("release-assumed", "note", message, named.line)
    if _TUNES.search(named.text) and not row["keys"].count("enable_offline_packing=true"):
        note_samples(arguments, "seq_length")
    recipe = PythonRecipe(
        named.text, tuple(values.values()), environment, hub=row["model"], devices=None, device="", place=place
    )
    return replace(read_python(arguments, recipe), file=arguments.file)


def _values(text: str, line: int) -> tuple[PlainValue, ...]:
    """Return a value of the table, or the items of a list."""
    items = text[1:-1].split(",") if text.startswith("[") else [text]
    return tuple(known_value(item, line) for item in items if item)
