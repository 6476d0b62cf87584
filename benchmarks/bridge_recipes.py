"""How many of Megatron-Bridge's performance recipes get a verdict on the devices that they are for.

    python -m benchmarks.bridge_recipes ~/Megatron-Bridge [qwen ...]

Reads a checkout (v0.6.0 or later) without running it. A line a file that holds recipes: outcomes of its functions and,
of a file without a firm one, the reasons. Then files with a verdict, of those that hold recipes and of all.
"""

import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from simulator.answers.gates import FIRM, Gates
from simulator.question.question import question_of
from simulator.recipes.check.judge import check_files
from simulator.recipes.check.verdict import Checked

FOLDER: Final = Path("src/megatron/bridge/perf_recipes")
HARDWARE: Final = {"h100": "h100-sxm-80g", "b200": "b200-sxm", "b300": "b300-sxm", "gb200": "gb200-nvl72"}
"""Device of each folder; R100 and VR200, of which no figures are published, stand with GB300."""


class Judged(NamedTuple):
    """One file that holds recipes."""

    name: str
    results: tuple[Checked, ...]

    @property
    def is_firm(self) -> bool:
        """Whether one of its recipes gets a verdict."""
        return any(result.outcome in FIRM for result in self.results)


def judged(checkout: Path, wanted: tuple[str, ...] = ()) -> Iterator[Judged]:
    """The files of a checkout that hold recipes, each judged on its device."""
    for file in sorted((checkout / FOLDER).glob("*/*/*.py")):
        name = file.relative_to(checkout / FOLDER).as_posix()
        if file.name != "__init__.py" and (not wanted or any(word in name for word in wanted)):
            asked = question_of({"hardware": HARDWARE.get(file.parent.name, "gb300-nvl72")})
            yield Judged(name, check_files([str(file)], asked, Gates(), root=checkout))


def lines(checkout: Path, wanted: tuple[str, ...]) -> Iterator[str]:
    """What is printed."""
    firm: list[bool] = []
    recipes: Counter[str] = Counter()
    for found in judged(checkout, wanted):
        outcomes = Counter(result.outcome for result in found.results)
        recipes += outcomes
        firm.append(found.is_firm)
        yield f"{found.name}: {', '.join(f'{count} {outcome}' for outcome, count in outcomes.most_common())}"
        if not found.is_firm:
            reasons = Counter(result.reasons[0][:160] for result in found.results if result.reasons)
            yield from (f"    {count} {reason}" for reason, count in reasons.most_common(3))
    files = sum(file.name != "__init__.py" for file in (checkout / FOLDER).glob("**/*.py"))
    judgements = sum(recipes[outcome] for outcome in FIRM)
    yield f"{sum(firm)} files with a verdict of {len(firm)} that hold recipes and {files} in all"
    yield f"{judgements} recipes with a verdict of {recipes.total()}"


if __name__ == "__main__":
    for line in lines(Path(sys.argv[1]), tuple(sys.argv[2:])):
        sys.stdout.write(f"{line}\n")
        sys.stdout.flush()
