"""Hostile inputs of every kind that the command line reads: by grammar, and by mutation of real files."""

import json
import os
import random
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SHARED = Path(os.environ.get("SIMULATE_SHARED") or ROOT.parent / "shared")
SHELL, DOCUMENTS = (".sh", ".bash", ".slurm", ".sbatch"), (".yaml", ".yml", ".json", ".toml")
OBEYED = ("\x1b[31m", "\x07", "\u202e", "\n::error::x\n", "::set-env name=A::b", "\u2028", "\x9b2J", "##[group]", "\r")
NUMBERS = (
    "0",
    "-1",
    "1e999",
    "9" * 30,
    "9" * 4301,
    "1e-320",
    "NaN",
    "Infinity",
    "-0",
    "0x10",
    "08",
    "1.5",
    "1_000",
    "",
)
WORDS = (
    *("$X", "${X}", "${X:-1}", "${X//a/b}", "${X%%*a}", "${!X}", "${X[@]}", "$((X+1))", "$(echo $X)", "`date`", '"$@"'),
    *(
        "$1",
        "${" + "9" * 4301 + "}",
        "X=$X$X",
        'X="$X$X$X"',
        "(",
        ")",
        "{",
        "}",
        "[[",
        "]]",
        "<<E\n",
        "E\n",
        "&&",
        "||",
        "|",
    ),
    *(
        "eval",
        "exit 1\n",
        "shift",
        "printf -v X '%s%s'",
        "[[ $X =~ (a|a)*b ]]",
        "case $X in",
        "esac",
        "if",
        "fi",
        "for",
    ),
    *(
        "do",
        "done",
        "while",
        "function f",
        "f() {",
        "f",
        "read A <<< a",
        "local",
        "let X=X*X",
        "source x.sh",
        "unset X",
    ),
    *(
        "torchrun",
        "pretrain_gpt.py",
        "--num-layers 32",
        "--hidden-size 4096",
        "--yaml-cfg ../../x",
        "--deepspeed a.json",
    ),
)
YAML_WORDS = (
    *(
        "a: &a [*a]",
        "<<: *a",
        "!!python/object:os.system {}",
        "? a",
        "- a",
        "[",
        "]",
        "{",
        "}",
        '"',
        "'",
        "|",
        ">",
        "%TAG ! a",
    ),
    *(
        "${a}",
        "${b}${b}",
        "${oc.env:HOME}",
        "${multiply:1,${a}}",
        "${..a}",
        "???",
        "!include x",
        ". . .",
        "......",
        "a.b.c:",
    ),
    *(
        "trainer:",
        "model:",
        "  tensor_model_parallel_size: 4",
        "zero_optimization:",
        "[a.b]",
        "a.b = 1",
        "a = [[]]",
        "\t",
        "#",
    ),
)


@cache
def corpus(kind: str) -> tuple[str, ...]:
    """Texts of real recipes: `shell` or `document`."""
    endings = SHELL if kind == "shell" else DOCUMENTS
    folders = (SHARED / "corpus" / "files", ROOT / "examples" / "recipes", ROOT / "tests" / "recipes" / "data")
    found = [
        path for folder in folders for path in sorted(folder.rglob("*")) if path.suffix in endings and path.is_file()
    ]
    return tuple(path.suffix + "\n" + path.read_text(encoding="utf-8", errors="replace") for path in found)


def mutated(rng: random.Random, text: str, words: tuple[str, ...]) -> str:
    """A text with a few edits: cut, doubled, spliced, another number, a hostile word, a mark that is obeyed."""
    for _ in range(rng.randint(1, 6)):
        at = rng.randrange(len(text) + 1)
        end = min(len(text), at + rng.choice((0, 1, 5, 40, 400)))
        kind = rng.randrange(7)
        middle = text[at:end]
        if kind == 1:
            middle *= rng.choice((2, 3, 50))
        elif kind == 2:
            digits = next((i for i in range(at, len(text)) if text[i].isdigit()), len(text))
            at, end, middle = digits, min(len(text), digits + rng.randint(1, 3)), rng.choice(NUMBERS)
        elif kind == 3:
            middle = rng.choice(words)
        elif kind == 4:
            middle = rng.choice(OBEYED)
        elif kind == 5:
            middle += rng.choice((" ", "\n", "\\\n", "")) + rng.choice(words)
        elif kind == 6:
            start = rng.randrange(len(text) + 1)
            middle = text[start : start + rng.randint(0, 200)]
        else:
            middle = ""
        text = text[:at] + middle + text[end:]
    return text


def shell_words(rng: random.Random) -> str:
    return "#!/bin/bash\n" + "".join(
        rng.choice(WORDS) + rng.choice((" ", "\n", ";", "")) for _ in range(rng.randint(1, 60))
    )


def document_words(rng: random.Random) -> str:
    return "".join(rng.choice(YAML_WORDS) + rng.choice((" ", "\n", "\n  ", "")) for _ in range(rng.randint(1, 60)))


def amplified(rng: random.Random) -> tuple[str, str]:
    """A few signs repeated until they make a file of up to a megabyte, and the file's ending."""
    shell = rng.random() < 0.6
    words = WORDS if shell else YAML_WORDS
    unit = "".join(rng.choice((*words, *'.[]{}()"a=:,-$#|&<> \n')) for _ in range(rng.randint(1, 3)))
    size = rng.choice((1_000, 10_000, 100_000, 250_000, 1_000_000))
    head = rng.choice(("", "#!/bin/bash\n", "trainer:\n  devices: 8\nmodel:\n  x: ", 'a = "', "{"))
    return (head + unit * (size // len(unit)))[:size], rng.choice((".sh",)) if shell else rng.choice(DOCUMENTS)


def damaged(rng: random.Random, value: object) -> object:
    """A JSON value with one part replaced by what does not belong there."""
    if isinstance(value, dict) and value and rng.random() < 0.9:
        key = rng.choice(list(value))
        return {**value, key: damaged(rng, value[key])}
    if isinstance(value, list) and value and rng.random() < 0.9:
        place = rng.randrange(len(value))
        return [*value[:place], damaged(rng, value[place]), *value[place + 1 :]]
    wrong: tuple[object, ...] = (
        None,
        True,
        -1,
        0,
        10**400,
        1e-320,
        float("inf"),
        float("nan"),
        "x",
        OBEYED[0],
        [],
        {},
        "9" * 4301,
        10**18,
        1.5,
        "jax",
        "torch",
        "bi150-64g",
        "h20:1,h100-sxm-80g:1",
        "optimizer",
        "full",
        [1, 1],
        ["core_attn", "moe_act"],
    )
    return rng.choice(wrong)


def damaged_text(rng: random.Random, stored: str) -> str:
    """Stored JSON with wrong parts, or cut."""
    value: object = json.loads(stored)
    for _ in range(rng.randint(1, 3)):
        value = damaged(rng, value)
    text = json.dumps(value) if rng.random() < 0.8 else json.dumps(value).replace("Infinity", "1e999")
    return text if rng.random() < 0.9 else text[: rng.randrange(len(text) + 1)]


@cache
def logs() -> tuple[str, ...]:
    folder = ROOT / "tests" / "measurements" / "data"
    return tuple(path.read_text(encoding="utf-8") for path in sorted(folder.glob("*.log")))


@cache
def tables() -> tuple[str, ...]:
    return tuple(path.read_text(encoding="utf-8") for path in sorted((ROOT / "calibration" / "measured").glob("*.csv")))


@cache
def specs() -> Mapping[str, tuple[str, ...]]:
    """Specs and calibrations by the option that takes them."""
    folders = {"--model": "model_specs", "--hardware": "hardware_specs", "--calibration": "calibration"}
    return {
        option: tuple(path.read_text(encoding="utf-8") for path in sorted((ROOT / folder).glob("*.yaml")))
        for option, folder in folders.items()
    }


def file_name(rng: random.Random) -> str:
    """A file's name that somebody would want to be obeyed."""
    parts = (
        "a",
        "-",
        "--output=x",
        "::error::",
        "\x1b[2J",
        "\u202e",
        "\n",
        " ",
        "%0A",
        "|",
        "<b>",
        "\udcff",
        "é",
        ":1: ",
        "`x`",
    )
    name = "".join(rng.choice(parts) for _ in range(rng.randint(1, 6)))
    return (name if name.strip(".") else "a") + rng.choice((".sh", ".yaml", ".json", ".toml", ""))


Make = Callable[[random.Random], tuple[str, str]]


def _of(kind: str) -> Make:
    def make(rng: random.Random) -> tuple[str, str]:
        ending, _, text = rng.choice(corpus(kind)).partition("\n")
        return mutated(rng, text, WORDS if kind == "shell" else YAML_WORDS), ending

    return make


RECIPES: Mapping[str, Make] = {
    "shell, mutated": _of("shell"),
    "documents, mutated": _of("document"),
    "shell, by grammar": lambda rng: (shell_words(rng), ".sh"),
    "documents, by grammar": lambda rng: (document_words(rng), rng.choice(DOCUMENTS)),
    "amplified": amplified,
    "bytes": lambda rng: (rng.randbytes(rng.randint(0, 400)).decode("latin-1"), rng.choice((*DOCUMENTS, ".sh", ""))),
}
"""Classes of recipes: what makes a text and its file's ending."""
