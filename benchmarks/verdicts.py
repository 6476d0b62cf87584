"""Verdicts of two checkouts on all public recipes, side by side.

    python -m benchmarks.verdicts record CHECKOUT FILE [--jobs N]
    python -m benchmarks.verdicts compare FILE FILE

`record` lets a checkout's `simulate check` judge both corpora of `shared/` beside this checkout (`SIMULATE_SHARED`) as
they lie there, one folder a repository or family, and writes a line a launch: outcome, GiB, step, rules. `compare`
prints what differs between two such files. Exit code 1 where anything does.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

from benchmarks.machine import say

_SHARED: Final = Path(os.environ.get("SIMULATE_SHARED") or Path(__file__).resolve().parents[2] / "shared")
_HARDWARE: Final = {"mindspeed": "ascend-910b-64g-8", "primus": "mi300x"}
"""Hardware of a family's recipes; all others are judged on an H100."""
_TOLERANCE: Final = 1e-9
"""Largest relative difference of a figure that counts as none."""
_SHOWN: Final = 60
_COMPARED: Final = ("outcome", "passed", "device_mib", "step_time_s", "rules")


def folders() -> Iterator[Path]:
    """Yield the folders that are judged as one repository each."""
    yield from sorted(path for path in (_SHARED / "corpus" / "files").iterdir() if path.is_dir())
    yield from sorted(path for path in (_SHARED / "corpus2").iterdir() if path.is_dir())


def judged(checkout: Path, folder: Path) -> list[dict[str, Any]]:
    """Return a record of each launch below a folder, by the checkout's own `simulate check`."""
    hardware = _HARDWARE.get(folder.name, "h100-sxm-80g")
    words = ["check", ".", "--root", ".", "--hardware", hardware, "--format", "json", "--quiet"]
    answer = subprocess.run(  # noqa: S603  this interpreter
        [sys.executable, "-m", "simulator", *words],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(checkout)},
        capture_output=True,
        text=True,
        check=False,
    )
    if not answer.stdout.startswith("{"):
        raise SystemExit(f"{folder}: {answer.stderr.strip()[-300:]}")
    return [_record(folder, result) for result in json.loads(answer.stdout)["results"]]


def _record(folder: Path, result: dict[str, Any]) -> dict[str, Any]:
    estimate = result.get("estimate") or {}
    return {
        "file": f"{folder.name}/{result['file']}",
        "title": result.get("title", ""),
        "outcome": result["outcome"],
        "passed": result["passed"],
        "device_mib": (estimate.get("memory") or {}).get("device_mib"),
        "step_time_s": (estimate.get("throughput") or {}).get("step_time_s"),
        "rules": sorted({remark["rule"] for remark in result.get("remarks", ())}),
    }


def record(checkout: Path, file: Path, jobs: int) -> None:
    """Write the records of all folders, in their order."""
    with ThreadPoolExecutor(jobs) as pool:
        records = [each for found in pool.map(lambda folder: judged(checkout, folder), folders()) for each in found]
    file.write_text("".join(f"{json.dumps(each)}\n" for each in records), encoding="utf-8")
    counts = Counter(each["outcome"] for each in records)
    say(f"{len(records)} launches: " + ", ".join(f"{count} {outcome}" for outcome, count in counts.most_common()))


def _read(file: Path) -> dict[tuple[str, str, int], dict[str, Any]]:
    """Return the records by file, title and their number within these."""
    numbers: Counter[tuple[str, str]] = Counter()
    records = {}
    for line in file.read_text(encoding="utf-8").splitlines():
        value = json.loads(line)
        name = value["file"], value["title"]
        records[*name, numbers[name]] = value
        numbers[name] += 1
    return records


def _same(first: Any, second: Any) -> bool:
    if isinstance(first, float) and isinstance(second, float):
        return abs(first - second) <= _TOLERANCE * max(abs(first), abs(second))
    return bool(first == second)


def compare(before: Path, after: Path) -> int:
    """Print what differs, outcomes first; return the number of differing launches."""
    first, second = _read(before), _read(after)
    lines: dict[str, list[str]] = {}
    for name in sorted({*first, *second}):
        a, b = first.get(name, {}), second.get(name, {})
        fields = [
            key
            for key in ("outcome", "passed", "device_mib", "step_time_s", "rules")
            if not _same(a.get(key), b.get(key))
        ]
        if fields:
            text = "; ".join(f"{key} {a.get(key)} -> {b.get(key)}" for key in fields)
            lines.setdefault(fields[0], []).append(f"{name[0]} {name[1]}: {text}")
    for kind, differing in lines.items():
        say(f"{kind}: {len(differing)} launches differ")
        for line in differing[:_SHOWN]:
            say(f"  {line}")
    count = sum(map(len, lines.values()))
    say(f"{count} of {len({*first, *second})} launches differ")
    return count


def main() -> None:
    """Record, or compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", choices=("record", "compare"))
    parser.add_argument("first", type=Path)
    parser.add_argument("second", type=Path)
    parser.add_argument("--jobs", type=int, default=2)
    words = parser.parse_args()
    if words.action == "record":
        record(words.first.resolve(), words.second, words.jobs)
    else:
        sys.exit(1 if compare(words.first, words.second) else 0)


if __name__ == "__main__":
    main()
