"""Files of stacks: profiles, named stacks and releases, read from the folders of `simulator/frameworks`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from simulator.files import read_table
from simulator.question.specs.documents import read_together
from simulator.question.vocabulary import FRAMEWORK_FILES, FRAMEWORK_FOLDER, FRAMEWORKS, STACK_FILES


def _tuples(value: Any) -> Any:
    """Return a value with its lists as tuples."""
    if isinstance(value, list):
        return tuple(map(_tuples, value))
    return {key: _tuples(item) for key, item in value.items()} if isinstance(value, dict) else value


@cache
def framework_files() -> Mapping[str, Any]:
    """Return profiles, stacks, releases and rules of all frameworks, by path in the folder `frameworks`."""
    kinds = ("/profile.yaml", "/releases.yaml", "/rules.yaml")
    return read_together(
        Path(FRAMEWORK_FOLDER), [*(path for path in FRAMEWORK_FILES if path.endswith(kinds)), *STACK_FILES.values()]
    )


def profile_data() -> Mapping[str, Mapping[str, Any]]:
    """Return version, limits and switches of every profile, by its name."""
    return {name: _tuples(framework_files()[f"{name}/profile.yaml"]) for name in FRAMEWORKS}


def stack_data() -> Mapping[str, Mapping[str, Any]]:
    """Return the content of every named stack by name, in the order of listings."""
    files = {name: _tuples(framework_files()[path]) for name, path in STACK_FILES.items()}
    return dict(sorted(files.items(), key=lambda item: item[1]["order"]))


@cache
def practice_rows() -> tuple[Mapping[str, str], ...]:
    """Return the rows of practice.csv: framework, switch, value, share, families, source, others, method."""
    return tuple(read_table(__file__, "practice"))


@cache
def releases() -> Mapping[str, Mapping[str, Any]]:
    """Return the switches of the releases of stacks, by name, the oldest of each stack first."""
    by_name: dict[str, Mapping[str, Any]] = {}
    for content in (_tuples(each) for path, each in framework_files().items() if path.endswith("/releases.yaml")):
        by_name |= {name: {**content["all"], **own} for name, own in content["releases"].items()}
    return by_name


def release_rows(stack: str) -> Iterator[dict[str, Any]]:
    """Yield the recipes of release `stack`: layout and switches as mappings, `lines` the file and line of each value.

    A value stands as `name=value@line` of the recipe's own file, or `@number:line` of one in the folder's `files.csv`.
    """
    if "@" not in stack or stack not in STACK_FILES:
        return
    table = Path(FRAMEWORK_FOLDER, STACK_FILES[stack]).parent.parent / "releases" / f"{stack.partition('@')[2]}.csv"
    if not table.exists():  # a year of a trainer has no recipes of its own
        return
    numbered = read_table(str(table), "files") if table.with_name("files.csv").exists() else ()
    files = {row["number"]: row["file"] for row in numbered}
    for row in read_table(str(table), table.stem):
        files[""] = row["file"].rpartition(":")[0]
        lines: dict[str, str] = {}
        parts = {column: dict(_values(row[column], files, lines)) for column in ("layout", "switches")}
        yield {**row, **parts, "lines": lines}


def _values(text: str, files: Mapping[str, str], lines: dict[str, str]) -> Iterator[tuple[str, str]]:
    for word in text.split():
        name, _, rest = word.partition("=")
        value, at, place = rest.partition("@")
        if at:
            number, _, line = place.rpartition(":")
            lines[name] = f"{files[number]}:{line}"
        yield name, value
