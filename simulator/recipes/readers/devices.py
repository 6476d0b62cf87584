"""Devices that a recipe's own words name: `--device npu`, `#SBATCH --gres=gpu:h100:8`, `gpu.product` of a node."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from simulator.budget import charge
from simulator.frameworks.values import PlainValue
from simulator.question.origin import Place
from simulator.question.recipe import Recipe
from simulator.question.specs.catalogue import load_hardware
from simulator.question.specs.documents import read_yaml
from simulator.question.specs.names import clusters_meant, hardware_names, names_of_other_memory, shipped_name
from simulator.records import replace

_DIRECTIVE: Final = re.compile(r"#\s?(?:SBATCH|PBS|BSUB|SLURM)\b")
"""Beginning of a scheduler's own line, which is a comment to the shell."""
_PAIR: Final = re.compile(
    r"(?<![\w./-])(?:([A-Za-z-][\w./-]*+)[\"']?\s*+[=:]\s*+|(--?[A-Za-z][\w-]*+)\s++(?!-))"
    r"[\"']?([^\s\"'#;{}\[\]]+)"
)  # name and value of a line: `--gres=gpu:h100:8`, `-p h100`, `accelerators: "A100:8"`, `export GPU_TYPE=h100`
_COMMENT: Final = re.compile(r"(?:^|\s)(?:#|//\s).*")
_COUNT: Final = re.compile(r":\d{1,4}$|^(?:gpu|npu):")
_PARTS: Final = re.compile(r"[/:|&,_.-]")
_MEMORY: Final = re.compile(r"\d{2,3}gi?b?", re.IGNORECASE)
_LONGEST: Final = 400
_LINE_WORK: Final = 10
_Pattern = re.Pattern[str]
_Said = tuple[str, str, int]  # name and value of a word, and its line
_Named = Mapping[str, tuple[str, int]]  # first word that names a maker or spec, and its line, by that


@functools.cache
def _patterns() -> tuple[Mapping[str, _Pattern], _Pattern, _Pattern, _Pattern, _Pattern]:
    """Return the patterns of each maker, of any, of names that may name a device, of those beside others, of lines."""
    table: dict[str, Any] = read_yaml(Path(__file__).with_name("devices.yaml"))
    makers = {maker: "|".join(patterns) for maker, patterns in table["makers"].items()}
    of_lines = (f"^{each[1:]}" for patterns in table["makers"].values() for each in patterns if each.startswith("="))
    anyone, naming, loose = (re.compile("|".join(each)) for each in (makers.values(), table["naming"], table["loose"]))
    line = re.compile("|".join(of_lines), re.MULTILINE)
    return {maker: re.compile(text) for maker, text in makers.items()}, anyone, naming, loose, line


def with_devices(recipe: Recipe, text: str, environment: Mapping[str, PlainValue] | None = None) -> Recipe:
    """Return the recipe with the devices that its words name: one, by the word that leaves its memory open, or several.

    The words are those of the file's `text`, of the recipe's flags and of a launch's `environment`, by which a script's
    branches for several makers are told apart; where these name no device, the file's name and its folder's. Words of
    several makers say nothing.
    """
    if recipe.hardware is not None:
        return recipe
    run: list[_Said] = [(flag.name, flag.text, flag.place.line) for flag in recipe.flags]
    run += [(name, value.text, value.line) for name, value in (environment or {}).items() if value.known]
    by_lines, pairs, written = _written(text)
    makers = {**_makers(run), **by_lines, **(_makers(pairs) if environment is None else {})}
    named = _once({**_named(run), **written} or _named(_of_path(recipe, makers)))
    vendors = {load_hardware(name).vendor for name in named} or set(makers)
    if len(vendors | set(makers)) != 1:
        return recipe
    (maker,) = vendors
    specs = tuple(named) or _of_vendor(maker, hardware_names())
    word, line = next(iter((named or makers).values()))
    places = {**recipe.places, "hardware": Place(recipe.file, max(line, 1))}
    hardware = specs[0] if len(named) == 1 else None
    return replace(recipe, hardware=hardware, maker=maker, device_word=word, device_choice=specs, places=places)


@functools.lru_cache(maxsize=64)
def _of_vendor(vendor: str, names: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(name for name in names if load_hardware(name).vendor == vendor)


@functools.lru_cache(maxsize=8)
def _written(text: str) -> tuple[_Named, Sequence[_Said], _Named]:
    """Return the makers that whole lines of a file name, its keys, and the specs that these name."""
    charge(_LINE_WORK * len(every := text.split("\n")))
    lines = [(line, number) for number, line in enumerate(every, 1) if len(line) <= _LONGEST]
    pairs = tuple((*pair, number) for line, number in lines for pair in _pairs_of(line))
    asking = lines if _patterns()[4].search(text.lower()) else ()
    return _makers(("", *line) for line in asking), pairs, _named(pairs)


@functools.lru_cache(maxsize=4096)  # four of five lines stand in another recipe too
def _pairs_of(line: str) -> Sequence[tuple[str, str]]:
    """Return the pairs of a line that keys of clusters and options of schedulers may be, comments left out."""
    directive = _DIRECTIVE.match(line) if line.startswith("#") else None
    words = line[directive.end() :] if directive else line
    words = _COMMENT.sub("", words) if "#" in words or "//" in words else words
    pairs = ((key or option, value.rstrip(",")) for key, option, value in _PAIR.findall(words))
    pairs = (pair for pair in pairs if directive is not None or len(pair[0]) > 2)
    return tuple((name.lstrip("-") if name.startswith("--") else name, value) for name, value in pairs)


def _makers(words: Iterable[_Said]) -> _Named:
    """Return the makers whose devices words ask for, each with its first word."""
    patterns, anyone, *_ = _patterns()
    makers: dict[str, tuple[str, int]] = {}
    for name, value, line in words:
        said = f"{name}={value}"
        if anyone.fullmatch(lowered := said.lower()):
            for maker in (maker for maker, pattern in patterns.items() if pattern.fullmatch(lowered)):
                makers.setdefault(maker, (said.lstrip("=")[:60], line))
    return makers


def _once(named: _Named) -> _Named:
    """Return each named device once: where one word leaves its memory open, by another that says it."""
    once: dict[str, set[str]] = {}
    for name in sorted(named, key=lambda name: bool(names_of_other_memory("hardware", name))):
        meant = set(clusters_meant(name))
        if not any(meant & known for known in once.values()):
            once[name] = meant
    return {name: named[name] for name in once}


def _named(words: Iterable[_Said]) -> _Named:
    """Return the devices that words name, each with its first word."""
    named: dict[str, tuple[str, int]] = {}
    for name, value, line in words:
        names, among_others = _names_device(name.lower())
        spec = _spec(value, loose=among_others) if names else None
        if spec is not None:
            named.setdefault(spec, (f"{name}={value}"[:60] if line else f"file name {value}"[:60], line))
    return named


@functools.lru_cache(maxsize=8192)
def _names_device(name: str) -> tuple[bool, bool]:
    """Return whether the value of a name may name a device, and whether beside other words."""
    _, _, naming, loose, _ = _patterns()
    among_others = loose.fullmatch(name) is not None
    return among_others or naming.fullmatch(name) is not None, among_others


def _of_path(recipe: Recipe, makers: Mapping[str, object]) -> list[_Said]:
    """Return the file's name, else its folder's, as a word, where it names a device of the makers, if there are any."""
    path = Path(recipe.file)
    # MindSpeed's scripts end with the generation of Huawei's servers: `_A3`.
    atlas = [f"atlas-800t-{word}" for word in _PARTS.split(path.stem) if "Huawei" in makers]
    # Shorter words, such as `a10` and `h20`, number experiments too.
    parts = map(_PARTS.split, (path.stem, path.parent.name))
    names = ("-".join(word for word in each if len(word) > 3 or _MEMORY.fullmatch(word)) for each in parts)
    for word in (*names, *atlas):
        spec = _spec(word, loose=True)
        if spec is not None and (not makers or load_hardware(spec).vendor in makers):
            return [("image", word, 0)]
    return []


def _spec(value: str, *, loose: bool) -> str | None:
    """Return the device that a value names, beside other words where `loose`; None for none or several."""
    plain = _COUNT.sub("", _COUNT.sub("", value.strip("\"'")))
    whole = _meant(plain)
    if whole is not None or not loose:
        return whole
    parts = _PARTS.split(plain)
    words = [word for word in parts if len(word) > 2 and not word.isalpha() and not word.isdigit()]
    memory = next(filter(_MEMORY.fullmatch, parts), "")
    specs = {spec for word in words if (spec := _meant(f"{word}-{memory}") or _meant(word)) is not None}
    return specs.pop() if len(specs) == 1 else None


def _meant(word: str) -> str | None:
    """Return the shipped spec that a word means, the word itself where it leaves the memory open; None for none."""
    return word if names_of_other_memory("hardware", word) else shipped_name("hardware", word)
