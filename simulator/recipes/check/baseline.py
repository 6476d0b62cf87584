"""Changes of verdicts since a stored result. Judges nothing anew."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from simulator.answers.gates import OUTCOMES
from simulator.errors import InputError
from simulator.question.specs.documents import parse_json, read_limited
from simulator.question.units import MIB
from simulator.recipes.check.verdict import Changed, ChangeKind, Checked, Stored, figure_ratio

NOTICED = 0.001
"""Relative change of memory or step time that counts as drift."""
_MOST_BYTES = 100_000_000
_LARGEST = 1e15
"""Upper limit of a stored figure, in MiB or seconds."""


@dataclass(frozen=True, slots=True)
class LaunchKey:
    """Identity of a launch, independent of how the command line spells its file."""

    path: str
    """Absolute path of the file."""
    title: str
    ordinal: int
    """Number, from 0, among the file's launches of that title: a loop starts a script several times."""


def _keys(names: Iterable[tuple[str, str]]) -> tuple[LaunchKey, ...]:
    """Return the keys of results, in order, by file and title."""
    count: Counter[tuple[str, str]] = Counter()
    keys: list[LaunchKey] = []
    for file, title in names:
        path = os.path.abspath(file) if "\0" not in file else file  # noqa: PTH100  keeps links as they are named
        keys.append(LaunchKey(path, title, count[path, title]))
        count[path, title] += 1
    return tuple(keys)


Baseline = Mapping[LaunchKey, tuple[str, Stored]]
"""Stored results, each with the name of its file."""


def read_baseline(file: str) -> Baseline:
    """Return the results in a file written by `simulate check --format json`. Raises InputError."""
    try:
        value = parse_json(file, read_limited(Path(file), _MOST_BYTES))
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


def _figure(value: object, lowest: float) -> float:
    """Return a finite figure from `lowest` to `_LARGEST`. Raises TypeError or ValueError."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError
    if not lowest <= value <= _LARGEST:
        raise ValueError
    return float(value)


def _stored(value: Mapping[str, Any]) -> Stored:
    estimate = value["estimate"]
    if not isinstance(value["passed"], bool) or value["outcome"] not in OUTCOMES:
        raise TypeError
    return Stored(
        outcome=_text(value["outcome"]),
        passed=value["passed"],
        device_bytes=None if estimate is None else MIB * _figure(estimate["memory"]["device_mib"], 1e-3),
        step_seconds=None if estimate is None else _figure(estimate["throughput"]["step_time_s"], 1e-9),
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
        if kind is not None and not (kind in ("added", "removed") and "skipped" in _outcomes(old, new)):
            title = f"{key.title or 'recipe'}, launch {key.ordinal + 1}" if key.ordinal else key.title
            yield Changed(file=name, title=title, kind=kind, before=old, after=new)


def _outcomes(*stored: Stored | None) -> set[str]:
    return {check.outcome for check in stored if check is not None}


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
    ratios = (figure_ratio(old.device_bytes, new.device_bytes), figure_ratio(old.step_seconds, new.step_seconds))
    moved = any(ratio is not None and abs(ratio - 1) > NOTICED for ratio in ratios)
    return "drift" if moved else None
