"""One hostile question after another: files written, and the arguments that name them."""

import json
import math
import os
import random
import shutil
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import chdir
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

from simulator import sweep
from tests.fuzz import inputs
from tests.fuzz.oracle import Answer, answered, judge

FORMATS = ("table", "json", "markdown", "github", "junit", "sarif")
GATES: tuple[list[str], ...] = (
    ["--fail-on", "starved"],
    ["--max-memory-fraction", "0.5"],
    ["--exit-zero"],
    ["--skip-non-recipes"],
    [],
    [],
    [],
)
GIVEN: tuple[list[str], ...] = (
    ["--set", "X=2"],
    ["--set", "1=4", "--set", "WORLD_SIZE=2"],
    ["--nodes", "2"],
    ["--model", "llama3.2-1b"],
    [],
    [],
    [],
)
COMMON: dict[str, object] = {"model": "llama3.2-1b", "hardware": "h20", "devices": 2, "global_batch_size": 8}
KNOWN = {"--model": "llama3.2-1b", "--hardware": "h20", "--calibration": "none"}
EXAMPLE = inputs.ROOT / "examples" / "recipes" / "llama3-8b-megatron.sh"


@dataclass(frozen=True, slots=True)
class Question:
    args: list[str]
    stdin: bytes = b""


def question(**changes: str) -> list[str]:
    """A small estimate as JSON."""
    options = KNOWN | {"--devices": "2", "--global-batch-size": "8"} | {f"--{k}": v for k, v in changes.items()}
    return ["estimate", *(word for pair in options.items() for word in pair), "--format", "json"]


@cache
def stored(kind: str) -> str:
    """A sound answer to damage."""
    asked = {
        "baseline": ["check", str(EXAMPLE), "--hardware", "z2000", "--format", "json"],
        "estimate": question(),
        "ranking": ["rank", *question()[1:], "--top", "2"],
        "experts": ["estimate", "--model", "qwen3-30b-a3b", "--devices", "8", "--format", "json"],
    }
    return answered(asked[kind]).out


def _put(folder: Path, name: str, text: str) -> str:
    (folder / name).write_text(text, encoding="utf-8", errors="surrogateescape", newline="")
    return name


def _checked(rng: random.Random, files: list[str]) -> Question:
    form = rng.choice(FORMATS) if rng.random() < 0.4 else "json"
    given = [*rng.choice(GATES), *rng.choice(GIVEN), "--hardware", rng.choice(("h20", "z2000"))]
    return Question(["check", *given, "--format", form, "--", *files])


def _recipe(make: inputs.Make) -> Callable[[random.Random, Path], Question]:
    def ask(rng: random.Random, folder: Path) -> Question:
        text, ending = make(rng)
        return _checked(rng, [_put(folder, f"recipe{ending}", text)])

    return ask


def _names(rng: random.Random, folder: Path) -> Question:
    text = EXAMPLE.read_text(encoding="utf-8")
    files = [_put(folder, inputs.file_name(rng), rng.choice((text, "a", inputs.shell_words(rng)))) for _ in range(2)]
    return _checked(rng, files)


def _baseline(rng: random.Random, folder: Path) -> Question:
    shutil.copy(EXAMPLE, folder / "recipe.sh")
    name = _put(folder, "baseline.json", inputs.damaged_text(rng, stored("baseline")))
    form = rng.choice(("json", "table"))
    return Question(["check", "--hardware", "z2000", "--baseline", name, "--format", form, "recipe.sh"])


def _emitted(rng: random.Random, folder: Path) -> Question:
    text = inputs.damaged_text(rng, stored("estimate"))
    target = ["--calibration", "none", "--framework", rng.choice(("megatron", "megatron", "paddle", "torchtitan"))]
    if rng.random() < 0.5:
        return Question(["emit", "-", *target], text.encode())
    return Question(["emit", _put(folder, "layout.json", text), *target])


def _stored(rng: random.Random, folder: Path) -> Question:
    text = inputs.damaged_text(rng, stored(rng.choice(("estimate", "ranking", "experts"))))
    name = _put(folder, "stored.json", text)
    sound = _put(folder, "sound.json", stored("estimate"))
    pair = rng.sample((name, sound), 2)
    form = ["--format", rng.choice(("table", "json"))]
    return Question(
        rng.choice(
            (
                ["compare", *pair, *form],
                ["compare", name, name, *rng.choice(GIVEN[2:5]), *form],
                ["explain", name, *form],
                ["emit", name, "--framework", "megatron", "--rank", rng.choice(("1", "2", "3"))],
            )
        )
    )


@cache
def _swept() -> str:
    """A table of the questions that are most often asked of a sweep."""
    with TemporaryDirectory() as scratch:
        table = Path(scratch, "rows.csv")
        sweep([COMMON, COMMON | {"seq_length": 1024}], output=table, workers=1)
        return table.read_text(encoding="utf-8")


def _sweep(rng: random.Random, folder: Path) -> Question:
    """Few and small questions, each input with values that may be hostile, over what an earlier sweep may have left."""
    values: Mapping[str, tuple[object, ...]] = {
        "model": ("llama3.2-1b", "llama3.1-8b", "own.yaml", ".", "\0"),
        "hardware": ("h20", "h800-sxm-80g:1,bi150-64g:1", "h20@ib", "x" * 300),
        "devices": (1, 2, 2**24, 2**30, None),
        "seq_length": (1024, 2**27, 0, "8k"),
        "precision": ("bf16", "fp8", "fp7"),
        "framework": ("megatron", "torch", "jax"),
        "options": ({}, {"tp_comm_overlap": True}, {"x": 1}, []),
        "layout": ({}, {"tp": [1, 2]}, {"tp": "one"}, {"recompute": "full"}, {"stage_layers": [8, 8]}),
        "nobody": (1,),
    }
    asked: dict[str, object] = dict(COMMON)
    for name in rng.sample(list(values), rng.randint(0, 3)):
        asked[name] = rng.choice((rng.choice(values[name]), [rng.choice(values[name]) for _ in range(2)]))
    text = json.dumps(rng.choice((asked, [asked, COMMON], [COMMON, COMMON | {"seq_length": 1024}], asked, asked)))
    text = inputs.mutated(rng, text, inputs.YAML_WORDS) if rng.random() < 0.3 else text
    _put(folder, "questions.yaml", text)
    if rng.random() < 0.3:
        _put(folder, "rows.csv", inputs.mutated(rng, rng.choice(inputs.tables())[:2000], inputs.NUMBERS))
    if rng.random() < 0.3:
        _put(folder, "rows.csv", inputs.mutated(rng, _swept(), (*inputs.NUMBERS, ",", "\n")))
    more = rng.choice((["--merge"], ["--force"], ["--shard", "1/2"], ["--format", "json"], [], [], []))
    return Question(["sweep", "questions.yaml", "--output", "rows.csv", "--workers", "1", *more])


_FILES: tuple[tuple[str, Callable[[str], list[str]]], ...] = (
    (".yaml", lambda name: question(model=name)),
    (".json", lambda name: question(model=name)),
    (".yaml", lambda name: question(hardware=name)),
    (".yaml", lambda name: question(calibration=name)),
    (".sh", lambda name: ["check", "--hardware", "h20", name]),
    (".yaml", lambda name: ["check", "--hardware", "h20", name]),
    (".json", lambda name: ["check", "--hardware", "h20", "--baseline", name, str(EXAMPLE)]),
    (".json", lambda name: ["compare", name, name]),
    (".sh", lambda name: ["explain", name, "--hardware", "h20"]),
    (".json", lambda name: ["emit", name, "--framework", "megatron"]),
    (".csv", lambda name: ["accuracy", name]),
    (".log", lambda name: ["calibrate", "--from-log", name, "--hardware", "h20", "--rows-only"]),
    (".yaml", lambda name: ["sweep", name, "--output", "t.csv", "--workers", "1"]),
    (".csv", lambda name: ["sweep", "questions.yaml", "--output", name, "--workers", "1"]),
    (".json", lambda name: [*question(), "--output", name]),
)
"""Ending of a file, and the command that reads or writes it."""


def _device(rng: random.Random, folder: Path) -> Question:
    """What is no file of its own in the place of one."""
    ending, command = rng.choice(_FILES)
    kinds = ("pipe", "/dev/zero", "/dev/null", "/dev/full", "folder", "nowhere", "itself.x", "a file/below", "x" * 300)
    kind = rng.choice(kinds)
    name = f"given{ending}"
    writes = command(name)[-2] == "--output"
    _put(folder, "questions.yaml", json.dumps({"model": "llama3.2-1b", "hardware": "h20", "devices": 2}))
    if kind == "pipe" and not (writes and command(name)[0] != "sweep"):  # a pipe is written when somebody reads it
        os.mkfifo(folder / name)
    elif kind == "folder":
        (folder / name).mkdir()
    elif "/dev" in kind or kind == "nowhere":
        (folder / name).symlink_to(kind)
    elif kind == "itself.x":
        (folder / name).symlink_to(name)
    else:
        name = f"{kind}{ending}"
    return Question(command(name))


def _log(rng: random.Random, folder: Path) -> Question:
    text = inputs.mutated(rng, rng.choice(inputs.logs()), (*inputs.NUMBERS, *inputs.OBEYED))
    return Question(["calibrate", "--from-log", _put(folder, "run.log", text), "--rows-only", *_log_options(rng)])


def _log_options(rng: random.Random) -> list[str]:
    return ["--model", "llama3.2-1b", "--hardware", "h20"] if rng.random() < 0.5 else []


def _rows(rng: random.Random, folder: Path) -> Question:
    lines = rng.choice(inputs.tables()).splitlines()
    text = "\n".join([lines[0], *rng.sample(lines[1:], min(3, len(lines) - 1))])
    text = inputs.mutated(rng, text, (*inputs.NUMBERS, ",", '"', "\n"))
    return Question(["accuracy", _put(folder, "rows.csv", text), "--format", rng.choice(("table", "json"))])


def _spec(rng: random.Random, folder: Path) -> Question:
    option = rng.choice(list(inputs.specs()))
    text = inputs.mutated(rng, rng.choice(inputs.specs()[option]), (*inputs.YAML_WORDS, *inputs.NUMBERS))
    return Question(question(**{option[2:]: _put(folder, "own.yaml", text)}))


def _options(rng: random.Random, _folder: Path) -> Question:
    names = (
        "precision",
        "tp",
        "pp",
        "cp",
        "ep",
        "dp",
        "vpp",
        "micro-batch-size",
        "zero-stage",
        "recompute",
        "seq-length",
    )
    values = (*inputs.NUMBERS[:8], "1", "2", "4", "fp32", "full", "none", "x" * 4000, inputs.OBEYED[0], "8192", "fp8")
    return Question(question(**{rng.choice(names): rng.choice(values) for _ in range(rng.randint(1, 4))}))


CLASSES: Mapping[str, tuple[int, Callable[[random.Random, Path], Question]]] = {
    "shell, mutated": (30, _recipe(inputs.RECIPES["shell, mutated"])),
    "documents, mutated": (20, _recipe(inputs.RECIPES["documents, mutated"])),
    "shell, by grammar": (60, _recipe(inputs.RECIPES["shell, by grammar"])),
    "documents, by grammar": (60, _recipe(inputs.RECIPES["documents, by grammar"])),
    "amplified": (2, _recipe(inputs.RECIPES["amplified"])),
    "bytes": (80, _recipe(inputs.RECIPES["bytes"])),
    "file names": (6, _names),
    "baselines": (12, _baseline),
    "emitted files": (20, _emitted),
    "stored answers": (12, _stored),
    "sweeps": (6, _sweep),
    "devices and pipes": (6, _device),
    "logs": (6, _log),
    "rows": (1, _rows),
    "specs and calibrations": (12, _spec),
    "options": (14, _options),
}
"""How often each class comes, and what makes a question of it."""


def cases(seed: int, only: Collection[str] = CLASSES) -> Iterator[tuple[str, random.Random]]:
    """Classes in turn, each with a source of its own random numbers: `seed` and the place repeat any one of them."""
    names = [name for name, (weight, _) in CLASSES.items() if name in only for _ in range(weight)]
    chooser = random.Random(seed)  # noqa: S311  not for secrets
    place = 0
    while True:
        yield chooser.choice(names), random.Random(f"{seed}/{place}")  # noqa: S311  as above
        place += 1


def tried(name: str, rng: random.Random, folder: Path, most_seconds: float = math.inf) -> Answer:
    """Ask one question in an empty folder and judge the answer. Raises WrongAnswerError."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    with chdir(folder):
        asked = CLASSES[name][1](rng, folder)
        (folder / "question").write_text(json.dumps(asked.args), encoding="utf-8")
        answer = answered(asked.args, asked.stdin)
    judge(asked.args, answer, most_seconds)
    return answer
