"""Names of shipped specs and the files they stand for: their own, a vendor's or a cloud's, an id on Hugging Face.

Other names stand in the specs themselves, under `aliases`, on one line; only that line is read here.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import lru_cache, partial, wraps
from itertools import product, starmap
from pathlib import Path
from typing import Any, Final, Literal, TypeVar, TypeVarTuple, cast

from simulator.errors import LONGEST_NAME, did_you_mean
from simulator.files import data_folder
from simulator.late import late_pattern

SpecKind = Literal["hardware", "model"]
Ts = TypeVarTuple("Ts")
T = TypeVar("T")

_SUFFIX: Final = ".yaml"
_VARIANTS: Final = "variants.yaml"
CONFIG_FILE: Final = "config.json"
"""File name Hugging Face gives a model's configuration."""


def spec_folder(kind: SpecKind) -> Path:
    """Return the folder of the shipped specs of one kind."""
    return data_folder(f"{kind}_specs")


def _until_files_come(read: Callable[[SpecKind, *Ts], T]) -> Callable[[SpecKind, *Ts], T]:
    """Decorate what reads the shipped specs of a kind, so that what it returns is kept until their folder changes."""

    @lru_cache(maxsize=1024)
    def known(_folder: Path, _changed: int, kind: SpecKind, *asked: *Ts) -> T:
        return read(kind, *asked)

    @wraps(read)
    def now(kind: SpecKind, *asked: *Ts) -> T:
        folder, changed = spec_folder(kind), 0
        with suppress(OSError):
            changed = os.stat(folder).st_mtime_ns  # noqa: PTH116  half the time of a path's own
        return known(folder, changed, kind, *asked)

    return now


@_until_files_come
def spec_file(kind: SpecKind, name: str) -> Path | None:
    """Return the file of the shipped spec called ``name``, or None if there is none."""
    # A stem on every system, which leads nowhere else.
    plain = name.isascii() and all(mark.isalnum() or mark in "._+-" for mark in name)
    if not name or len(name) > 100 or name.startswith(".") or not plain:
        return None
    file = spec_folder(kind) / f"{name}{_SUFFIX}"
    return file if file.is_file() else None


@_until_files_come
def spec_names(kind: SpecKind) -> tuple[str, ...]:
    """Return the names of all shipped specs of one kind, in order."""
    return tuple(sorted(file.name.removesuffix(_SUFFIX) for file in spec_folder(kind).glob(f"*{_SUFFIX}")))


model_names, hardware_names = partial(spec_names, "model"), partial(spec_names, "hardware")
"""Functions that return the names of the shipped models, and of the shipped hardware, in order."""


_ALIASES: Final = late_pattern(r"^aliases: \[(.*)\]$", re.MULTILINE)
_ENDINGS: Final = late_pattern(
    r"[-_](paddle|pt|base|hf|it|instruct|chat|thinking|tokenizer|pretrain|mcore|megatron|exp|terminus|preview"
    r"|fp8|fp4|nvfp4|mxfp4|mxfp8|bf16|fp16|2[3-9](0[1-9]|1[0-2])|(0[1-9]|1[0-2])([0-2]\d|3[01]))$"
)
"""Endings of a model's name that leave its shape: what it was tuned for, its format, the year and month of a release
(2507), or its month and day (0905)."""
LLAMA: Final = late_pattern(r"^(?:meta-)?llama-?(?=\d)")  # beginning of a name of the Llama family
_POINT: Final = late_pattern(r"(?<=\d)p(?=\d)")  # letter in place of a decimal point in a name: `4p5`
_GIGABYTES: Final = late_pattern(r"-?\b(\d+)-?gi?b?$")
"""Memory at the end of a device's name, with or without its unit's last letters: `80GB`."""
_MIRRORS: Final = late_pattern(r"^(ai-modelscope|decapoda-research|llm-research|mlx-community|nousresearch|unsloth)/")
"""Owners whose ids name others' weights by the names that these have."""
_VERSION_APART: Final = late_pattern(r"(?<=[a-z])-(?=\d)")
"""Dash between a word and a number, which people write or leave out: `qwen-3-8b`, `gemma2-9b`, `rtx4090`."""
_DASHED_POINT: Final = late_pattern(r"(?<=\d)-(?=\d-\d+b)")  # dash in place of a decimal point: `llama-3-1-8b`
_BEGINNINGS: Final = late_pattern(
    r"^(nvidia|geforce|tesla|amd|instinct|huawei|ascend|iluvatar|standard|英伟达|华为|昇腾|天数智芯|天数)-?"
)  # makers and series before a device's name; a cloud's `Standard_`
_SOCKET: Final = late_pattern(r"-?sxm\d?(?![a-z0-9])")
"""Socket in a device's name, of any generation: `A100-SXM4`, `H100SXM`."""
_FORM: Final = late_pattern(r"-(oam|gpu|hbm\d\w?|tensor-core|server|mig)$")
"""Endings of a device's name that leave the device."""
_NUMBER: Final = late_pattern(r"^\d{1,4}\s?[x*×]\s?|\s?[x*×:]\s?\d{1,4}$")
"""Number of devices beside a name: `8xH100`, `h100x8`."""
NAMES_OF_CLUSTER: Final = late_pattern(r"(?:^|(?<=,))[^,@:]+")
"""Names in a text of one or several kinds of hardware, each followed by network or nodes."""
_HUB_ID: Final = late_pattern(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}", re.ASCII)
_QUOTED: Final = late_pattern(r"'([^']*)'")
_LETTERS: Final = late_pattern(r"[a-z]*")
_SAME_MAKER: Final = 0.66
"""Smallest likeness of the letters before two names' numbers for which both count as one maker's."""
_PARAMETERS: Final = late_pattern(r"(?<!\d)\d{1,6}(?:\.\d{1,6})?b(?![a-z])")  # number of parameters in a model's name


@_until_files_come
def shipped_name(kind: SpecKind, text: str) -> str | None:
    """Return the name of the shipped spec that a text means, or None.

    A model may be called by its id on Hugging Face, and with an ending such as `-Instruct` that leaves its shape; a
    device with its maker before its name.
    """
    if not text or len(text) > 200:
        return None
    if text.islower() and spec_file(kind, text) is not None:
        return text
    known, joined = known_names(kind), _joined_names(kind)
    plain = _plain(kind, text)
    while plain not in known and _VERSION_APART.sub("", plain) not in joined:
        shorter = _shorter(kind, plain)
        if shorter == plain:
            return None
        plain = shorter
    return known.get(plain) or joined[_VERSION_APART.sub("", plain)]


def _shorter(kind: SpecKind, plain: str) -> str:
    """Return a name without one of its beginnings or endings, or spelt in the next likely way; else the same."""
    if kind == "hardware":
        return _FORM.sub("", _BEGINNINGS.sub("", plain, count=1))
    ways = (_MIRRORS.sub("", plain), _ENDINGS.sub("", plain), _DASHED_POINT.sub(".", plain))
    return next((way for way in ways if way != plain), plain)


@lru_cache(maxsize=1)
def variants() -> Mapping[str, Mapping[str, Any]]:
    """Return the known models that are a shipped decoder with other fields, those with an encoder of images behind."""
    from simulator.question.specs.documents import read_yaml  # noqa: PLC0415  start-up time

    return cast("Mapping[str, Mapping[str, Any]]", read_yaml(Path(__file__).with_name("families") / _VARIANTS))


@lru_cache(maxsize=1)
def _variant_words() -> Mapping[str, str]:
    return {_dashed(word): name for name, row in variants().items() for word in (name, *row.get("aliases", ()))}


@lru_cache(maxsize=1024)
def variant_name(text: str) -> tuple[str | None, str]:
    """Return the variant of a shipped decoder whose name a text is or begins with, and what follows it.

    None, and nothing, where it is no such model's; endings that leave a model's shape count as none.
    """
    plain = _dashed(text.strip().rstrip("/").rpartition("/")[2].lower())[:100]
    start = max((word for word in _variant_words() if f"{plain}-".startswith(f"{word}-")), key=len, default="")
    rest = plain[len(start) :]
    while start and (shorter := _ENDINGS.sub("", rest)) != rest:
        rest = shorter
    return _variant_words().get(start), rest if start else ""


def _dashed(name: str) -> str:
    return re.sub(r"[\s_.]+", "-", name)


@_until_files_come
def known_names(kind: SpecKind) -> Mapping[str, str]:
    """Return the shipped name of every name and alias in lower case; ids also without their owner."""
    called: dict[str, str] = {}
    for name in spec_names(kind):
        aliases = _ALIASES.search((spec_folder(kind) / f"{name}.yaml").read_text("utf-8"))
        for word in (name, *(word.strip(' "') for word in (aliases[1].split(",") if aliases else ()))):
            plain = _plain(kind, word)
            called |= {plain: name, plain.rpartition("/")[2]: name}
    return called


@_until_files_come
def names_of_other_memory(kind: SpecKind, text: str) -> tuple[str, ...]:
    """Return the shipped specs that a device's name means too, one for each memory that may be put behind it.

    `v100` means `v100-sxm-16g`, and leaves `v100-sxm-32g` open; the name of a shipped spec leaves nothing open.
    """
    taken, plain = shipped_name(kind, text), _plain(kind, text)
    if taken is None or plain in spec_names(kind):
        return ()
    while (shorter := _shorter(kind, plain)) != plain:
        plain = shorter
    names: dict[str, str] = {}
    for word in sorted(known_names(kind), key=lambda word: (len(word), word)):
        memory = _GIGABYTES.search(word)
        if memory and f"{word[: memory.start()]}-".startswith(f"{plain}-"):
            names.setdefault(memory[1], known_names(kind)[word])
    return tuple(name for name in names.values() if name != taken)


def names_in(cluster: str) -> list[str]:
    """Return the names of the devices in a cluster's text, in order."""
    return [name[0].strip() for name in NAMES_OF_CLUSTER.finditer(cluster)]


def clusters_meant(text: str) -> tuple[str, ...]:
    """Return the clusters that a text may mean: with the devices that are taken, then with those of other memory.

    `a100:1` means `a100-sxm-80g:1`, and leaves `a100-sxm-40g:1` open. A device that the text names twice is one.
    """
    taken = {name: shipped_name("hardware", name) or name for name in names_in(text)}
    others = {shipped: names_of_other_memory("hardware", name) for name, shipped in taken.items()}

    def named(*devices: str) -> str:
        meant = dict(zip(others, devices, strict=True))
        return NAMES_OF_CLUSTER.sub(lambda name: meant[taken[name[0].strip()]], text)

    return tuple(starmap(named, product(*((name, *more) for name, more in others.items()))))


@_until_files_come
def _joined_names(kind: SpecKind) -> Mapping[str, str]:
    """Return the shipped name of every known name without the dashes between a word and a number."""
    return {_VERSION_APART.sub("", word): name for word, name in known_names(kind).items()}


def hub_file(name: str) -> Path | None:
    """Return the configuration of a model in the local cache of Hugging Face, by the model's id; None where it is not.

    The cache is where `huggingface_hub` has it: `HF_HUB_CACHE`, else `HF_HOME`, else `~/.cache/huggingface`.
    """
    if not is_hub_id(name):
        return None
    home = os.environ.get("HF_HOME") or os.path.join(os.environ.get("XDG_CACHE_HOME") or "~/.cache", "huggingface")  # noqa: PTH118  a text with ~
    hub = Path(os.environ.get("HF_HUB_CACHE") or os.path.join(home, "hub")).expanduser()  # noqa: PTH118  likewise
    try:
        folder_name = f"models--{name.replace('/', '--')}".lower()
        folder = next((entry for entry in hub.iterdir() if entry.name.lower() == folder_name), None)
        if folder is None:
            return None
        revision = folder / "refs" / "main"
        snapshots = folder / "snapshots"
        newest = (
            [snapshots / revision.read_text("utf-8").strip()] if revision.is_file() else sorted(snapshots.iterdir())
        )
        return next((file for entry in newest if (file := entry / CONFIG_FILE).is_file()), None)
    except (OSError, ValueError, RuntimeError):
        return None


def is_hub_id(name: str) -> bool:
    """Tell whether a text has the form of a model's id on Hugging Face, `owner/name`."""
    return bool(_HUB_ID.fullmatch(name))


def suggestion(kind: SpecKind, text: str) -> str:
    """Return `, did you mean 'x'?` for the nearest shipped name of the same maker, a model's of the same size first."""
    from difflib import SequenceMatcher  # noqa: PLC0415  start-up time

    if len(text) > LONGEST_NAME:
        return ""
    named, counted = _NUMBER.subn("", text) if kind == "hardware" else (text, 0)
    plain = _plain(kind, named).rpartition("/")[2]
    while plain not in known_names(kind) and (shorter := _shorter(kind, plain)) != plain:
        plain = shorter
    known = {**known_names(kind), **({name: name for name in variants()} if kind == "model" else {})}
    maker = _maker(plain)
    same = {
        word: name for word, name in known.items() if SequenceMatcher(None, maker, _maker(word)).ratio() >= _SAME_MAKER
    }
    size = _PARAMETERS.search(plain)
    sized = {word: name for word, name in same.items() if size is not None and size[0] in word}
    near = did_you_mean(plain, sized) or did_you_mean(plain, same)
    return _QUOTED.sub(lambda quoted: f"'{same[quoted[1]]}'{', the number of devices apart' if counted else ''}", near)


def _plain(kind: SpecKind, text: str) -> str:
    """Return a name as the table has it: lower case, dashes for blanks and underscores."""
    plain = re.sub(r"[\s_:]+", "-", text.strip().lower())
    if kind == "hardware":
        return _GIGABYTES.sub(r"-\1g", _SOCKET.sub("-sxm", plain))
    owner, slash, name = plain.rpartition("/")
    return owner + slash + _POINT.sub(".", LLAMA.sub("llama-", name))


def _maker(name: str) -> str:
    letters = _LETTERS.match(name)
    return letters.group() if letters else ""
