"""Files of a folder that may be recipes, chosen by name, and the baseline of verdicts that a check compares with."""

from __future__ import annotations

import contextlib
import glob
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import Any, Final

from simulator.answers.gates import OUTCOMES
from simulator.errors import InputError, NoRecipeError
from simulator.question.specs.documents import finite, parse_json, read_limited
from simulator.question.units import MIB
from simulator.recipes.check.verdict import Changed, ChangeKind, Checked, Stored
from simulator.recipes.shell.launch import SCRIPTS
from simulator.records import replace

SUFFIXES: Final = (*(f".{end}" for end in SCRIPTS), ".yaml", ".yml", ".toml", ".json")
"""Suffixes of files that may be recipes."""
_MOST_BYTES: Final = 1 << 20  # size above which a file is no recipe but data, such as a tokenizer
_MOST_FILES: Final = 100_000
_OTHERS: Final = frozenset(["node_modules", "site-packages", "__pycache__"])
"""Folders of content from elsewhere, skipped like hidden ones."""


def expanded(files: Iterable[str]) -> Iterator[tuple[str, bool]]:
    """Yield each file, and each possible recipe below a folder, with whether a folder yielded it.

    A pattern that no shell has expanded, such as `recipes/**/*.sh`, stands for the files that match it. A file is
    yielded once, however often it is named; a folder without any file is yielded itself. Links to folders are not
    followed. Raises InputError for more files than any repository has.
    """
    seen: set[str] = set()
    for file in chain.from_iterable(map(_matching, files)):
        walked = "\0" not in file and os.path.isdir(file)  # noqa: PTH112  false where nobody may look
        count = 0
        for path in below(file) if walked else (file,):
            count += 1
            if count > _MOST_FILES:
                raise InputError(f"{file}: more than {_MOST_FILES} files that may be recipes; name a folder of it")
            if (plain := os.path.normpath(path)) not in seen:
                seen.add(plain)
                yield path, walked
        if not count:
            yield file, False


def _matching(file: str) -> list[str]:
    """Return the files that a pattern matches; an existing or unmatched name itself."""
    if "\0" in file or not glob.has_magic(file) or os.path.lexists(file):
        return [file]
    return sorted(glob.glob(file, recursive=True)) or [file]  # noqa: PTH207  names as they are given


def below(folder: str) -> Iterator[str]:
    """Yield the paths of possible recipes below a folder, sorted by name, dangling links too; no devices or pipes."""
    closed: list[str] = []
    for place, folders, names in os.walk(folder, onerror=lambda error: closed.append(str(error.filename))):
        folders[:] = sorted(name for name in folders if not name.startswith(".") and name not in _OTHERS)
        for name in sorted(names):
            path = Path(place) / name
            if name.lower().endswith(SUFFIXES) and (path.is_file() or (path.is_symlink() and not path.exists())):
                yield str(path)
    yield from closed


def require_file(file: str) -> None:
    """Raise InputError for standard input, for no name and for a folder."""
    if file in ("-", ""):
        raise InputError(f"{file or repr(file)}: no file: standard input is not read")
    if "\0" not in file and os.path.isdir(file):  # noqa: PTH112  as above
        raise InputError(f"{file}: no file below this folder may be a recipe ({', '.join(SUFFIXES)})")


def require_size(file: str) -> None:
    """Raise NoRecipeError for a file that is larger than any recipe."""
    with contextlib.suppress(OSError, ValueError):
        if os.stat(file).st_size > _MOST_BYTES:  # noqa: PTH116  as the name was given
            raise NoRecipeError(f"{file}: starts no training: larger than {_MOST_BYTES >> 20} MiB, as data are")


NOTICED = 0.001
"""Relative change of memory or step time that counts as drift."""
_LARGEST_BASELINE = 100_000_000
_LARGEST = 1e15  # upper limit of a stored figure, in MiB or seconds


LaunchKey = tuple[str, str, int]
"""Identity of a launch, independent of how the command line spells its file: the absolute path of the file, the title,
and the number, from 0, among the file's launches of that title (a loop starts a script several times)."""


def _keys(names: Iterable[tuple[str, str]]) -> tuple[LaunchKey, ...]:
    """Return the keys of results, in order, by file and title."""
    count: Counter[tuple[str, str]] = Counter()
    keys: list[LaunchKey] = []
    for file, title in names:
        path = os.path.abspath(file) if "\0" not in file else file  # noqa: PTH100  keeps links as they are named
        keys.append((path, title, count[path, title]))
        count[path, title] += 1
    return tuple(keys)


Baseline = Mapping[LaunchKey, tuple[str, Stored]]
"""Stored results, each with the name of its file."""


def read_baseline(file: str) -> Baseline:
    """Return the results in a file written by `simulate check --format json`. Raises InputError."""
    try:
        value = parse_json(file, read_limited(Path(file), _LARGEST_BASELINE))
    except InputError as error:
        raise InputError(f"--baseline {error}") from error
    try:
        results = [(_text(x["file"]), _text(x["title"]), _stored(x)) for x in value["results"]]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(f"--baseline {file}: is not what `simulate check --format json` writes") from error
    keys = _keys((name, title) for name, title, _ in results)
    return {key: (name, stored) for key, (name, _, stored) in zip(keys, results, strict=True)}


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError
    return value


def _stored(value: Mapping[str, Any]) -> Stored:
    estimate = value["estimate"]
    if not isinstance(value["passed"], bool) or value["outcome"] not in OUTCOMES:
        raise TypeError
    return Stored(
        outcome=_text(value["outcome"]),
        passed=value["passed"],
        device_bytes=None if estimate is None else MIB * finite(estimate["memory"]["device_mib"], 1e-3, _LARGEST),
        step_seconds=None if estimate is None else finite(estimate["throughput"]["step_time_s"], 1e-9, _LARGEST),
    )


def compared(results: Iterable[Checked], before: Baseline) -> tuple[Changed, ...]:
    """Return every recipe that differs from the stored results, new failures first."""
    present = tuple(results)
    keys = _keys((result.file, result.title) for result in present)
    after = {key: (result.file, _present(result)) for key, result in zip(keys, present, strict=True)}
    differences = list(_differences(before, after))
    order: tuple[ChangeKind, ...] = ("new_failure", "fixed", "outcome", "drift", "added", "removed")
    return tuple(sorted(differences, key=lambda change: (order.index(change.kind), change.file, change.title)))


def ratcheted(results: Iterable[Checked], before: Baseline) -> tuple[Checked, ...]:
    """Return the results; failures with the same outcome as a stored one are marked known."""
    present = tuple(results)
    keys = _keys((result.file, result.title) for result in present)
    stored = (before[key][1] if key in before else None for key in keys)
    return tuple(
        replace(result, known=not result.passed and old is not None and old.outcome == result.outcome)
        for result, old in zip(present, stored, strict=True)
    )


def _present(result: Checked) -> Stored:
    estimate = result.estimate
    return Stored(
        outcome=result.outcome,
        passed=result.passed,
        device_bytes=None if estimate is None else estimate.memory.device_bytes,
        step_seconds=None if estimate is None else estimate.throughput.step_seconds,
    )


def _differences(before: Baseline, after: Baseline) -> Iterator[Changed]:
    for key in dict.fromkeys((*before, *after)):
        name = (after.get(key) or before[key])[0]
        old, new = (stored[1] if stored else None for stored in (before.get(key), after.get(key)))
        kind = _kind(old, new)
        skipped = any(check.outcome == "skipped" for check in (old, new) if check is not None)
        if kind is not None and not (skipped and kind in ("added", "removed")):
            _, title, ordinal = key
            title = f"{title or 'recipe'}, launch {ordinal + 1}" if ordinal else title
            yield Changed(file=name, title=title, kind=kind, before=old, after=new)


def _kind(old: Stored | None, new: Stored | None) -> ChangeKind | None:
    if new is None:
        return "removed"
    if old is None:
        return "added" if new.passed else "new_failure"
    if not new.passed and (old.passed or old.outcome != new.outcome):
        return "new_failure"
    if old.passed != new.passed:
        return "fixed"
    if old.outcome != new.outcome:
        return "outcome"
    return "drift" if any(ratio is not None and abs(ratio - 1) > NOTICED for ratio in new.ratios_to(old)) else None
