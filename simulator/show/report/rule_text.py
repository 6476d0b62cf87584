"""Titles of rules in a few words, for formats that list rules beside results. Judges nothing.

`rules.csv` has those of verdicts and of a reader's remarks; a rule of a layout or of a framework says its own.
"""

from __future__ import annotations

from functools import cache

from simulator.answers.rules import FRAMEWORK_RULES
from simulator.question.specs.tables import read_table
from simulator.search.rules import RULES


@cache
def _titles() -> dict[str, str]:
    titles = {row["rule"]: row["about"] for row in read_table(__file__, "rules")}
    titles |= {rule.id.replace("_", "-"): rule.about for rule in RULES}
    return titles | {rule.id: rule.about for rule in FRAMEWORK_RULES}


def rule_text(rule: str) -> str:
    """Return the subject of a rule; the rule's name as words where it is in no list."""
    return _titles().get(rule) or f"a remark of the recipe's reader: {rule.replace('-', ' ')}"
