"""Devices that a recipe's own words name: `--device npu`, `#SBATCH --gres=gpu:h100:8`, `gpu.product` of a node.

`devices.yaml` lists the words; `question.recipe` has what they say, and `answers.cases` asks where they leave a choice.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from simulator.budget import charge
from simulator.frameworks.values import PlainValue
from simulator.question.origin import Place
from simulator.question.recipe import Recipe
from simulator.question.specs.catalogue import hardware_names, load_hardware
from simulator.question.specs.documents import read_yaml
from simulator.question.specs.names import shipped_name

_DIRECTIVE: Final = re.compile(r"\s*#\s?(?:SBATCH|PBS|BSUB|SLURM)\b")
"""Beginning of a scheduler's own line, which is a comment to the shell."""
_PAIR: Final = re.compile(
    r"(?:(?P<name>[A-Za-z-][\w./-]*)[\"']?\s*[=:]\s*|(?P<option>--?[A-Za-z][\w-]*)\s+(?!-))[\"']?(?P<value>[^\s\"'#;{}\[\]]+)"
)
"""Name and value of a line: `--gres=gpu:h100:8`, `-p h100`, `accelerators: "A100:8"`, `export GPU_TYPE=h100`."""
_COMMENT: Final = re.compile(r"\s#.*")
_COUNT: Final = re.compile(r":\d{1,4}$|^(?:gpu|npu):")
_PARTS: Final = re.compile(r"[/:|&,_.-]")
_LONGEST: Final = 400
_LINE_WORK: Final = 10

_Words = tuple[Mapping[str, re.Pattern[str]], Mapping[str, re.Pattern[str]], re.Pattern[str], re.Pattern[str]]
_Said = tuple[str, str, int]
"""Name and value of a word, and its line."""


@functools.cache
def _words() -> _Words:
    table: dict[str, Any] = read_yaml(Path(__file__).with_name("devices.yaml"))
    makers = {maker: re.compile("|".join(patterns)) for maker, patterns in table["makers"].items()}
    loads = {maker: re.compile(pattern) for maker, pattern in table["loads"].items()}
    return makers, loads, re.compile("|".join(table["naming"])), re.compile("|".join(table["loose"]))


def with_devices(recipe: Recipe, text: str, environment: Mapping[str, PlainValue] | None = None) -> Recipe:
    """Return the recipe with the devices that its words name: one shipped spec, or several that they leave open.

    The words are those of the file's `text`, of the recipe's flags and of a launch's `environment`, by which a script's
    branches for several makers are told apart; where these name no device, the file's name and its folder's. Words of
    several makers say nothing.
    """
    if recipe.hardware is not None:
        return recipe
    makers, named = _said(recipe, text, environment)
    vendors = {load_hardware(name).vendor for name in named} or set(makers)
    if len(vendors | set(makers)) != 1:
        return recipe
    (maker,) = vendors
    specs = tuple(named) or tuple(name for name in hardware_names() if load_hardware(name).vendor == maker)
    word, line = next(iter((named or makers).values()))
    places = {**recipe.places, "hardware": Place(recipe.file, max(line, 1))}
    hardware = specs[0] if len(named) == 1 else None
    return replace(recipe, hardware=hardware, maker=maker, device_word=word, device_choice=specs, places=places)


def _said(
    recipe: Recipe, text: str, environment: Mapping[str, PlainValue] | None
) -> tuple[dict[str, tuple[str, int]], dict[str, tuple[str, int]]]:
    """Return the makers and the shipped specs that words name, each with the word and its line."""
    makers, loads, naming, loose = _words()
    by_maker: dict[str, tuple[str, int]] = {}
    by_name: dict[str, tuple[str, int]] = {}
    run, written = tuple(_flags(recipe, environment or {})), tuple(_lines(text))
    for name, value, line in run if environment is not None else (*run, *written):
        said = f"{name}={value}"
        for maker in (maker for maker, pattern in makers.items() if pattern.fullmatch(said.lower())):
            by_maker.setdefault(maker, (said[:60], line))
    for name, value, line in (*run, *written):
        plain = name.lower()
        spec = _spec(value, loose=False) if naming.fullmatch(plain) else None
        spec = _spec(value, loose=True) if spec is None and loose.fullmatch(plain) else spec
        if spec is not None:
            by_name.setdefault(spec, (f"{name}={value}"[:60], line))
    for number, line_text in enumerate(text.split("\n"), 1):
        for maker in (maker for maker, pattern in loads.items() if pattern.match(line_text)):
            by_maker.setdefault(maker, (line_text[:60], number))
    for part in () if by_name else (Path(recipe.file).stem, Path(recipe.file).parent.name):
        spec = _spec(part, loose=True)
        spec = _atlas(part) if spec is None and "Huawei" in by_maker and part == Path(recipe.file).stem else spec
        if spec is not None and (not by_maker or load_hardware(spec).vendor in by_maker):
            by_name.setdefault(spec, (part[-60:], 0))
    return by_maker, by_name


def _atlas(name: str) -> str | None:
    """Return the shipped server of Huawei's that a file's name ends with, as `_A3` does; None without one."""
    words = (shipped_name("hardware", f"atlas-800t-{word}") for word in _PARTS.split(name))
    return next((spec for spec in words if spec is not None), None)


def _flags(recipe: Recipe, environment: Mapping[str, PlainValue]) -> Iterator[_Said]:
    for flag in recipe.flags:
        yield flag.name, flag.text, flag.place.line
    for name, value in environment.items():
        if value.known:
            yield name, value.text, value.line


def _lines(text: str) -> Iterator[_Said]:
    """Yield the pairs of a file's lines that keys of clusters and options of schedulers may be, comments left out."""
    for number, line in enumerate(text.split("\n"), 1):
        charge(_LINE_WORK)
        directive = _DIRECTIVE.match(line)
        if len(line) > _LONGEST or (directive is None and line.lstrip().startswith(("#", "//"))):
            continue
        for pair in _PAIR.finditer(_COMMENT.sub("", line), directive.end() if directive else 0):
            name = pair["name"] or pair["option"]
            if directive is not None or len(name) > 2:
                yield name.lstrip("-") if name.startswith("--") else name, pair["value"].rstrip(","), number


def _spec(value: str, *, loose: bool) -> str | None:
    """Return the shipped spec that a value names, beside other words where `loose`; None for none or several."""
    plain = _COUNT.sub("", _COUNT.sub("", value.strip("\"'")))
    whole = shipped_name("hardware", plain)
    if whole is not None or not loose:
        return whole
    words = [word for word in _PARTS.split(plain) if len(word) > 2 and not word.isalpha() and not word.isdigit()]
    specs = {spec for word in words if (spec := shipped_name("hardware", word)) is not None}
    return specs.pop() if len(specs) == 1 else None
