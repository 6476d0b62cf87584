"""How many public recipes of models that read images get a verdict: a table by repository or family.

    python -m tests.check.vision [--list] [PART]

Those of corpus2 are the rows of `left_out.csv` marked so, those of the corpus what names such a model in path or text
and trains. Hardware is told, and numbers of nodes where an answer waits for one. `--list` also prints those without a
verdict, with the reason; PART takes what holds a text.
"""

import re
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from simulator.question.question import question_of
from tests.check.repositories import FIRM, Listed, left_out, listed
from tests.recipes.corpus import FOLDER, corpus

_VISION: Final = re.compile(
    r"(?i)(?<![a-z])vl(?![a-z])|(?<=\d)vl|vlm|llava|vision[-_]|[-_]vision|multimodal|internvl|[-_]omni|glm[-_]?4\.?5v|gemma[-_]?4|kimi[-_]?k2\.?5|max_pixels|visualchat"
)


class _OfCorpus(Listed):
    """A file of the corpus, whose repository is the folder of its family."""

    @property
    def root(self) -> Path:
        return FOLDER / "files" / self.repository


VERDICTS: Final = (*FIRM, "longest_does_not_fit")


def recipes() -> Iterator[tuple[str, Listed]]:
    """The recipes, each with its repository or family."""
    marked = {place for place, why in left_out().items() if why == "vision"}
    yield from ((row.repository, row) for row in listed() if (row.repository, row.name) in marked)
    for row in corpus():
        if _VISION.search(row.path) or _VISION.search(row.file.read_text(encoding="utf-8", errors="replace")):
            yield row.family, _OfCorpus(row.root.name, str(row.file.relative_to(row.root)), row.family)


def table() -> Iterator[str]:
    """The table, a line each; with `--list` what has no verdict before it."""
    question = question_of({"hardware": "h100-sxm-80g"})
    part = next((word for word in sys.argv[1:] if not word.startswith("-")), "")
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for group, row in recipes():
        if part not in f"{group} {row.name}":
            continue
        outcome = row.judged_with_nodes(question, VERDICTS, ("cannot_tell", "refused"))
        counts[group][outcome] += 1
        if "--all" in sys.argv or ("--list" in sys.argv and outcome not in VERDICTS):
            reasons = " | ".join(reason for result in row.judged(question) for reason in result.reasons)
            yield f"{group} {outcome} {row.name}: {reasons.replace(str(row.root), '')[:400]}"
    yield "| repository or family | train | firm | longest | none |"
    yield "|---|---|---|---|---|"
    for group, count in (*sorted(counts.items()), ("all", sum(counts.values(), Counter[str]()))):
        train, firm = count.total() - count["skipped"], sum(count[outcome] for outcome in FIRM)
        longest = count["longest_does_not_fit"]
        yield f"| {group} | {train} | {firm} | {longest} | {train - firm - longest} |"


if __name__ == "__main__":
    sys.stdout.writelines(f"{line}\n" for line in table())
