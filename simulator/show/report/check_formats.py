"""The registry: every format of `simulate check` by its name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from simulator.show.report.check_answer import Answer, printable
from simulator.show.report.check_ci import check_junit, check_sarif
from simulator.show.report.check_github import check_github
from simulator.show.report.check_json import check_json
from simulator.show.report.check_table import check_table

CHECK_REPORTERS: Mapping[str, Callable[[Answer], str]] = MappingProxyType(
    {
        "table": lambda answer: check_table(printable(answer), "table"),
        "json": check_json,
        "markdown": lambda answer: check_table(printable(answer), "markdown"),
        "github": lambda answer: check_github(printable(answer)),
        "junit": lambda answer: check_junit(printable(answer)),
        "sarif": lambda answer: check_sarif(printable(answer)),
    }
)
"""Text of the verdicts, by the format's name."""
