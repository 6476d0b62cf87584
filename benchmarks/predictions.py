"""Predictions of two checkouts, side by side: `python -m benchmarks.predictions BEFORE_CHECKOUT AFTER_CHECKOUT`.

Each checkout answers the same questions in a process of its own (`benchmarks.answers`): every measured row of the
BEFORE checkout's tables, and rankings over the kinds of models, frameworks, precisions and layouts. Compared are the
order of layouts, verdicts, counts, and every figure of an answer: bytes of every stage with their parts, seconds with
their parts, intervals. Exit code 1 where any differs by more than 1e-9 of itself.

Specs and calibration are each checkout's own.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.machine import say

TOLERANCE = 1e-9
"""Largest relative difference that counts as none."""
ZERO = 1e-9
"""Below this many bytes or seconds a figure is what is left of a difference of large ones."""
NOT_COMPARED = frozenset({"elapsed_seconds", "notes", "message", "fix"})
"""Fields of an answer that are text, or the machine's time."""
QUESTION = frozenset({"query", "defaults"})
"""Fields of a ranking that repeat the question."""


@dataclass(frozen=True)
class Difference:
    """One place where two checkouts answer differently."""

    question: str
    place: str
    before: object
    after: object

    @property
    def size(self) -> float:
        """Relative size; what is no number, or stands on one side only, differs without bounds."""
        if not (_is_number(self.before) and _is_number(self.after)):
            return float("inf")
        larger = max(abs(self.before), abs(self.after))  # type: ignore[arg-type]  # both are numbers
        return abs(self.before - self.after) / larger if larger > ZERO else 0.0  # type: ignore[operator]  # the same


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


@dataclass(frozen=True)
class Answers:
    """What one checkout answered."""

    package: Path
    records: Mapping[str, Mapping[str, Any]]
    """By name of the question: `answer`, or `refused`."""


def ask(before: Path, after: Path, python: str) -> tuple[Answers, Answers]:
    """Both checkouts' answers, asked at the same time. Raises SystemExit where one fails or another package answers."""
    tables = before / "calibration" / "measured"
    command = [python, str(Path(__file__).with_name("answers.py")), str(tables)]
    running = [
        subprocess.Popen(command, cwd=checkout, env={"PYTHONPATH": str(checkout)}, stdout=subprocess.PIPE, text=True)  # noqa: S603  fixed command
        for checkout in (before, after)
    ]
    texts = [process.communicate()[0] for process in running]
    first, second = (
        _answers(checkout, process.returncode, text)
        for checkout, process, text in zip((before, after), running, texts, strict=True)
    )
    return first, second


def _answers(checkout: Path, code: int, text: str) -> Answers:
    lines = [json.loads(line) for line in text.splitlines()]
    if code:
        sys.exit(f"{checkout}: asking ended with exit code {code} after {max(len(lines) - 1, 0)} answers")
    package = Path(lines[0]["package"]).resolve().parent
    if package.parent != checkout:
        sys.exit(f"{checkout}: its process imported {package}")
    return Answers(package, {record["name"]: record for record in lines[1:]})


def leaves(value: object, place: str = "") -> Iterator[tuple[str, object]]:
    """Every figure and word of an answer with its place; texts for people left out."""
    if isinstance(value, Mapping):
        for name, inner in value.items():
            if name not in NOT_COMPARED:
                yield from leaves(inner, f"{place}.{name}" if place else name)
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from leaves(inner, f"{place}[{index}]")
    else:
        yield place, value


def compared(question: str, place: str, before: object, after: object) -> Iterator[Difference]:
    """Every difference between two answers, or parts of answers.

    What only AFTER has is new and no difference, but where it is a part of a sum and not nothing.
    """
    old, new = dict(leaves(before, place)), dict(leaves(after, place))
    for key, value in old.items():
        other = new.get(key, 0.0 if _part(key) else "(absent)")
        if other != value:
            yield Difference(question, key, value, other)
    for key, value in new.items():
        if key not in old and _part(key) and value:
            yield Difference(question, key, 0.0, value)


def _part(key: str) -> bool:
    return "parts_" in key or ".rejected." in key


def layout_name(estimate: Mapping[str, Any], fields: tuple[str, ...]) -> str:
    """A layout in a line, by the fields that both checkouts know, and the switches that it has of its own."""
    values = [(name, estimate["layout"][name]) for name in fields] + sorted(estimate.get("options", {}).items())
    return " ".join(f"{name}={value}" for name, value in values if not _usual(name, value))


def _usual(name: str, value: object) -> bool:
    """Whether a field says nothing: no split, nothing recomputed or moved, an empty list."""
    return value in ([], "none") or value is False or (value == 1 and value is not True and name != "zero_stage")


def ranked(question: str, before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[Difference]:
    """Differences of two rankings: the order first, then every layout that both show.

    Layouts that are equally fast and equally large in both may change places.
    """
    old, new = before["estimates"], after["estimates"]
    if old and new:
        fields = tuple(name for name in old[0]["layout"] if name in new[0]["layout"])
        names = [[layout_name(estimate, fields) for estimate in side] for side in (old, new)]
        for place, (left, right) in enumerate(zip(*names, strict=False)):
            if left != right and not _equal(old[place], new[place]):
                yield Difference(question, f"place {place + 1}", left, right)
        others = dict(zip(names[1], new, strict=True))
        for name, estimate in zip(names[0], old, strict=True):
            if name in others:
                yield from compared(f"{question}: {name}", "", estimate, others[name])
    if len(old) != len(new):
        yield Difference(question, "layouts shown", len(old), len(new))
    left, right = ({k: v for k, v in side.items() if k not in QUESTION | {"estimates"}} for side in (before, after))
    yield from compared(question, "", left, right)


def _equal(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    pairs = (
        (one["throughput"]["step_seconds"], other["throughput"]["step_seconds"]),
        (one["memory"]["device_bytes"], other["memory"]["device_bytes"]),
    )
    return all(Difference("", "", left, right).size <= TOLERANCE for left, right in pairs)


def differences(before: Answers, after: Answers) -> Iterator[Difference]:
    """Every difference between two checkouts, of any size."""
    for name, record in before.records.items():
        other = after.records.get(name, {"refused": "(not asked)"})
        if "refused" in record or "refused" in other:
            said, says = record.get("refused", "(answered)"), other.get("refused", "(answered)")
            if said != says:
                yield Difference(name, "refused", said, says)
        elif "estimates" in record["answer"]:
            yield from ranked(name, record["answer"], other["answer"])
        else:
            yield from compared(name, "", record["answer"], other["answer"])


def report(before: Answers, after: Answers, top: int) -> int:
    """Print what differs, largest first; return the exit code."""
    for word, side in (("before", before), ("after", after)):
        say(f"{word}: {side.package}, with its own specs and calibration")
    say(f"{len(before.records)} questions, {sum('refused' in r for r in before.records.values())} not answered before:")
    for name, record in before.records.items():
        if "refused" in record:
            say(f"  {name}: {record['refused']}")
    differing = sorted(differences(before, after), key=lambda difference: -difference.size)
    large = [difference for difference in differing if difference.size > TOLERANCE]
    figures = sum(1 for record in before.records.values() for _ in leaves(record.get("answer", {})))
    say(f"{figures:,} figures and words, {len(large):,} differ by more than {TOLERANCE:g}")
    say(f"largest difference within that: {max((d.size for d in differing if d.size <= TOLERANCE), default=0.0):.1e}")
    for difference in large[:top]:
        size = "differs" if difference.size == float("inf") else f"{difference.size:.3e}"
        say(
            f"  {size}  {difference.question}\n           {difference.place}: {difference.before} -> {difference.after}"
        )
    if len(large) > top:
        say(f"  ... and {len(large) - top:,} more")
    for question in dict.fromkeys(difference.question.split(":")[0] for difference in large):
        alike = [d for d in large if d.question.split(":")[0] == question]
        say(f"  {question}: {len(alike):,} differ, the largest by {max(d.size for d in alike):.3e}")
    return 1 if large else 0


def moved(before: Answers, after: Answers) -> Iterator[tuple[str, float, float, float, float]]:
    """Questions whose step time or memory moved: name, seconds before and after, bytes before and after.

    Of a ranking its best layout is told.
    """
    for name, record in before.records.items():
        pair = [_best(one.get("answer", {})) for one in (record, after.records.get(name, {}))]
        if pair[0] is not None and pair[1] is not None:
            (seconds, size), (new_seconds, new_size) = pair[0], pair[1]
            if abs(new_seconds / seconds - 1.0) > SHOWN or abs(new_size / size - 1.0) > SHOWN:
                yield name, seconds, new_seconds, size, new_size


SHOWN = 0.001
"""Relative change from which a figure is in the table of a release."""


def _best(answer: Mapping[str, Any]) -> tuple[float, float] | None:
    """Seconds of a step and bytes of the fullest device, of an estimate or of a ranking's best layout."""
    estimates = answer.get("estimates", [answer])
    if not estimates or "throughput" not in estimates[0]:
        return None
    return float(estimates[0]["throughput"]["step_seconds"]), float(estimates[0]["memory"]["device_bytes"])


def table(before: Answers, after: Answers) -> str:
    """The questions that moved, as the changelog has them."""
    lines = ["| question | step s | device GiB |", "|---|---|---|"]
    lines += [
        f"| {name} | {seconds:.2f} to {new_seconds:.2f} | {size / 2**30:.2f} to {new_size / 2**30:.2f} |"
        for name, seconds, new_seconds, size, new_size in moved(before, after)
    ]
    return "\n".join(lines)


def main() -> None:
    """Compare two checkouts."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.predictions", description=__doc__)
    parser.add_argument("before", type=Path, help="checkout whose predictions stand")
    parser.add_argument("after", type=Path, help="checkout that is compared with it")
    parser.add_argument("--python", default=sys.executable, help="interpreter with the packages both need")
    parser.add_argument("--top", type=int, default=40, help="differences printed, largest first")
    parser.add_argument("--table", action="store_true", help="print the questions that moved as the changelog has them")
    asked = parser.parse_args()
    before, after = ask(asked.before.resolve(), asked.after.resolve(), asked.python)
    if asked.table:
        say(table(before, after))
        return
    sys.exit(report(before, after, asked.top))


if __name__ == "__main__":
    main()
