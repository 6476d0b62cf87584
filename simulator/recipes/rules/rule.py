"""The refusals of each framework: the files `rules.yaml` of `simulator/frameworks`.

A rule describes a check that a framework makes at its start::

    - id: megatron-positions
      versions: versions that were read or run and have it; by default the file's
      source: repository, version, file and line of the check, or the measured rows that met it
      about: what must hold
      says: the framework's own message, with ... for numbers; omitted where a layout rule quotes it
      when:                                                   # broken where all lines of one entry hold
        - flag.max-position-embeddings: less than workload.seq_length
      breach: the numbers that break it, where the flag at fault is not enough
      fix: --max-position-embeddings {workload.seq_length} in the recipe
      blame: [settings or dashed flags at fault; the first in the recipe is shown]

A line of `when` has a subject, as `LaunchFacts.value` lists them, and a value, `absent`, `present`, `none of A B`,
`more than A`, `less than A` or `no multiple of A`, where A may be a subject too. `layout_rule` (a rule of
`simulator.search.rules`, which gets the framework's words) or `remark` (a reader's) replace `when`; `underscored`
(flags that must have dashes) adds to it. Names in braces are subjects, or computed in `texts`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from simulator.frameworks.flags import FOLDER
from simulator.question.specs.documents import read_yaml
from simulator.recipes.recipe import RecipeFlag
from simulator.recipes.rules.launch import LaunchFacts
from simulator.recipes.rules.texts import TEXTS

_NAMED: Final = re.compile(r"\{([\w.-]+)\}")
_COMPARED: Final = re.compile(r"(more than|less than|no multiple of) ([\w.]+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameworkRule:
    """One refusal of one framework, as in its file."""

    id: str
    framework: str
    versions: str
    source: str
    about: str
    fix: str
    says: str = ""
    breach: str = ""
    layout_rule: str = ""
    remark: str = ""
    when: tuple[Mapping[str, Any], ...] = ()
    underscored: tuple[str, ...] = ()
    blame: tuple[str, ...] = ()

    def is_broken(self, launch: LaunchFacts) -> bool:
        """Whether flags and layout of a launch break the rule."""
        broken = any(all(_holds(launch, *line) for line in lines.items()) for lines in self.when)
        return broken and (not self.underscored or self.misspelled(launch) is not None)

    def misspelled(self, launch: LaunchFacts) -> RecipeFlag | None:
        """Return the first of the recipe's flags that must not be spelled with underscores; None without one."""
        flags = launch.recipe.flags if launch.recipe else ()
        return next((flag for flag in flags if "_" in flag.spelled and flag.name in self.underscored), None)

    def text(self, launch: LaunchFacts, text: str) -> str:
        """Return a text of the rule with the names in braces replaced."""

        def filled(match: re.Match[str]) -> str:
            name = match[1]
            if name == "dashed":
                flag = self.misspelled(launch)
                return "" if flag is None else f"--{flag.spelled.replace('_', '-')}"
            return TEXTS[name](launch) if name in TEXTS else str(launch.value(name))

        return _NAMED.sub(filled, text)


def _holds(launch: LaunchFacts, subject: str, asked: Any) -> bool:
    """Whether one line of a rule holds."""
    value = launch.value(subject)
    if asked in ("absent", "present"):
        return bool((value is None) == (asked == "absent"))
    if isinstance(asked, str) and asked.startswith("none of "):
        return ("absent" if value is None else value) not in asked.split()[2:]
    compared = _COMPARED.fullmatch(asked) if isinstance(asked, str) else None
    if compared is None:
        return bool(value == asked)
    if value is None or not str(value).isdecimal():
        return False
    number, other = int(value), int(compared[2] if compared[2].isdecimal() else launch.value(compared[2]))
    holds = {"more than": number > other, "less than": number < other, "no multiple of": number % other != 0}
    return bool(holds[compared[1]])


def _files() -> Mapping[str, Mapping[str, Any]]:
    """Return the content of each framework's files, with their rules merged."""
    files: dict[str, dict[str, Any]] = {}
    for file in sorted(FOLDER.glob("*/rules.yaml")):
        content = read_yaml(file)
        own = files.setdefault(content["framework"], {"rules": []})
        own |= {name: value for name, value in content.items() if name != "rules"}
        own["rules"] = [*own["rules"], *(_rule(file, content, rule) for rule in content["rules"])]
    return files


def _rule(file: Path, content: Mapping[str, Any], rule: Mapping[str, Any]) -> FrameworkRule:
    lists = {name: tuple(value) for name, value in rule.items() if isinstance(value, list)}
    try:
        return FrameworkRule(**{"framework": content["framework"], "versions": content["versions"], **rule, **lists})
    except TypeError as error:
        raise ValueError(f"{file}: {rule.get('id')}: {error}") from error


_FILES: Final = _files()
FRAMEWORK_RULES: Final[tuple[FrameworkRule, ...]] = tuple(rule for own in _FILES.values() for rule in own["rules"])
"""Rules of all frameworks; a ranking also drops layouts that break one with a `layout_rule`."""
READER_RULES: Final = frozenset(rule.remark for rule in FRAMEWORK_RULES if rule.remark)
"""Readers' remarks that a rule restates in the framework's words."""


def fact_of(framework: str, name: str) -> Any:
    """Return an entry of a framework's file beside its rules; empty without one."""
    return _FILES.get(framework, {}).get(name, {})
