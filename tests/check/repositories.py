"""Files of other people's repositories, as they lie there: which train, and what the product says of each.

Run as a script, it judges every file of the list and prints the shares that the project's targets are about;
`--list OUTCOME` also lists the files that train and end so, each with its reason, `--only PART` takes the
repositories whose name holds a text, and `--checkouts` judges whole checkouts, no nodes told, with the commonest
causes of what is not firm; `--settings` does so for ten, each with the `.simulate.yaml` of `settings/` that its owner
could write.
"""

import csv
import os
import re
import shutil
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from simulator.answers.gates import Gates
from simulator.question.question import Question, question_of
from simulator.recipes.check.judge import check_files
from simulator.recipes.check.verdict import Checked
from tests.recipes.corpus import verdict

ROOT = Path(__file__).resolve().parents[2]
SHARED = Path(os.environ.get("SIMULATE_SHARED") or ROOT.parent / "shared")
FOLDER = SHARED / "corpus2"
NO_TRAINING = Path(__file__).with_name("no_training.csv")
"""Files that a heuristic takes for trainings and that are none, each with what it is, as a person read it."""
LEFT_OUT = Path(__file__).with_name("left_out.csv")
"""Files that train and cannot be judged: vision, JAX, architectures that are not priced, each with which."""
SETTINGS = Path(__file__).with_name("settings")
"""A `.simulate.yaml` each, of at most 15 lines, of ten repositories of the list, called owner+name."""
SETTINGS_FILE = ".simulate.yaml"
NODES = (1, 2, 4, 8, 16, 32, 64, 128)
"""Numbers of nodes that are told where an answer waits for one."""
FIRM = ("fits", "starved", "does_not_fit", "refused")
NOT_JUDGED = ("depends", "longest_does_not_fit", "cannot_tell", "not_modelled", "unreadable")
REINFORCEMENT = ("NeMo-RL", "verl RL")
"""Labels of the list whose files train by reinforcement."""


@dataclass(frozen=True)
class Listed:
    """One file of the list."""

    repository: str
    name: str
    """Path below the repository."""
    label: str
    """What a heuristic takes it for; empty where nothing in it says that it trains."""

    @property
    def root(self) -> Path:
        """The repository."""
        return FOLDER / self.repository.replace("/", "+")

    @property
    def file(self) -> Path:
        """Where the file stands."""
        return self.root / self.name

    def judged(self, asked: Question) -> tuple[Checked, ...]:
        """What `simulate check --skip-non-recipes` says of it, within its repository."""
        return check_files([str(self.file)], asked, Gates(skip_non_recipes=True), root=self.root)

    def judged_with_nodes(
        self, asked: Question, verdicts: Collection[str] = FIRM, waiting: Collection[str] = ("cannot_tell",)
    ) -> str:
        """The verdict, with the number of nodes told where it is `waiting` for one: the first that passes, else any."""
        outcome = verdict(self.judged(asked))
        others = (verdict(self.judged(asked.changed(nodes=nodes))) for nodes in NODES if outcome in waiting)
        answers = [other for other in others if other in verdicts and other != "refused"]
        return next((other for other in answers if other in FIRM[:2]), answers[0] if answers else outcome)


def listed() -> list[Listed]:
    """Every file of the list; skips the test where the files are not at hand."""
    index = FOLDER / "index.csv"
    if not index.is_file():
        pytest.skip(f"needs {FOLDER.name}/ of the shared folder (SIMULATE_SHARED)")
    with index.open(encoding="utf-8", newline="") as stream:
        return [Listed(row["repository"], row["file"], row["trains_by_heuristic"]) for row in csv.DictReader(stream)]


def no_training() -> dict[tuple[str, str], str]:
    """What the files are that a heuristic takes for trainings, by repository and path."""
    with NO_TRAINING.open(encoding="utf-8", newline="") as stream:
        return {(row["repository"], row["file"]): row["what"] for row in csv.DictReader(stream)}


def left_out() -> dict[tuple[str, str], str]:
    """Why files that train are left out of the share of firm answers, by repository and path."""
    with LEFT_OUT.open(encoding="utf-8", newline="") as stream:
        return {(row["repository"], row["file"]): row["why"] for row in csv.DictReader(stream)}


def passed_over(rows: Sequence[Listed]) -> Iterator[tuple[Listed, str]]:
    """Those of the rows that are skipped, with the reason that is told."""
    for row in rows:
        results = row.judged(question_of({"hardware": "h100-sxm-80g"}))
        if verdict(results) == "skipped":
            yield row, results[0].reasons[0].replace(str(row.root), "")


def share_lines(rows: Sequence[Listed]) -> Iterator[str]:
    """The table of shares, and the rate."""
    asked = question_of({"hardware": "h100-sxm-80g"})
    wanted = sys.argv[sys.argv.index("--list") + 1] if "--list" in sys.argv else ""
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    none, left, seconds = no_training(), left_out(), 0.0
    judged: list[bool] = []
    for row in rows:
        start = time.process_time()
        results = row.judged(asked)
        seconds += time.process_time() - start
        outcome = verdict(results)
        trains = (row.repository, row.name) not in none
        counts[row.label if trains else ""][outcome] += 1
        if row.label and trains and row.label not in REINFORCEMENT and (row.repository, row.name) not in left:
            judged.append((row.judged_with_nodes(asked) if outcome == "cannot_tell" else outcome) in FIRM)
        if row.label and trains and outcome == wanted:
            yield f"{row.repository} {row.name}: {(results[0].reasons or ('',))[0].replace(str(row.root), '')[:200]}"
    yield "| label | files | firm | not judged | skipped |"
    yield "|---|---|---|---|---|"
    training = {label: count for label, count in counts.items() if label}
    everything = sum(training.values(), Counter[str]())
    for label, count in (*sorted(training.items()), ("all that train", everything)):
        firm, unjudged = (sum(count[outcome] for outcome in kinds) for kinds in (FIRM, NOT_JUDGED))
        yield f"| {label} | {count.total()} | {firm} | {unjudged} | {count['skipped']} |"
    share = f"{sum(judged)} of {len(judged)}, {sum(judged) / max(len(judged), 1):.1%}"
    yield f"firm with the nodes told, reinforcement and the {len(left)} left out apart: {share}"
    yield f"passed over of those that train: {everything['skipped']} of {everything.total()}"
    yield f"{len(rows)} files in {seconds:.1f} s of one processor: {len(rows) / seconds:.0f} files per second"


def causes(roots: Iterable[Path]) -> Iterator[str]:
    """The share of firm answers of whole checkouts, and the reasons of the others with their numbers folded."""
    none, firm, total = no_training(), 0, 0
    counts: Counter[str] = Counter()
    for root in roots:
        own = (root / SETTINGS_FILE).is_file()
        asked = question_of({} if own else {"hardware": "h100-sxm-80g"})
        of_files: dict[str, list[Checked]] = defaultdict(list)
        for result in check_files([str(root)], asked, Gates(skip_non_recipes=True), root=root):
            name = str(Path(result.file).relative_to(root))
            if (root.name.replace("+", "/", 1), name) not in none and not name.startswith(SETTINGS_FILE):
                of_files[name].append(result)
        judged = [results for results in of_files.values() if verdict(tuple(results)) != "skipped"]
        unsure = [results for results in judged if verdict(tuple(results)) not in FIRM]
        total, firm = total + len(judged), firm + len(judged) - len(unsure)
        yield f"{root.name}: {len(judged) - len(unsure)} of {len(judged)}"
        for result in (result for results in unsure for result in results if result.outcome not in FIRM):
            shown = {re.sub(r"\S*[/\d]\S*", "*", reason.partition(";")[0])[:120] for reason in result.reasons[:3]}
            counts.update(f"{result.outcome} {result.framework}: {reason}" for reason in shown)
    yield from (f"{count} {cause}" for cause, count in counts.most_common(40))
    yield f"firm in whole checkouts: {firm} of {total}, {firm / max(total, 1):.1%}"


def with_settings(folder: Path, part: str) -> Iterator[Path]:
    """Copies of the repositories that `settings/` has words for, each with them."""
    for settings in sorted(SETTINGS.glob("*.yaml")):
        if part not in settings.stem:
            continue
        root = folder / settings.stem
        shutil.copytree(FOLDER / settings.stem, root, copy_function=shutil.copyfile)
        (root / ".git").mkdir()
        shutil.copyfile(settings, root / SETTINGS_FILE)
        yield root


def shown(part: str, folder: Path) -> Iterator[str]:
    """The lines that the command's words ask for."""
    if "--settings" in sys.argv:
        return causes(with_settings(folder, part))
    if "--checkouts" in sys.argv:
        return causes(sorted(root for root in FOLDER.iterdir() if root.is_dir() and part in root.name))
    return share_lines([row for row in listed() if part in row.repository])


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        chosen = sys.argv[sys.argv.index("--only") + 1] if "--only" in sys.argv else ""
        sys.stdout.writelines(f"{line}\n" for line in shown(chosen, Path(scratch)))
