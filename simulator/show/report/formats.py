"""Every answer and the forms it is written in: the one place that a form is added to.

A writer is a function of an answer and of a `Presentation`; those of `table` and `markdown` are one function, which
takes the form as well. Each is imported when its form is asked for, so that choices of an option cost no start-up time.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from importlib import import_module
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from simulator.show.report.presentation import Presentation

_STYLES = ("table", "markdown")
_EVERY = {"json": "report.as_json:json_text"}
"""Forms of every answer."""
_ROWS = {"jsonl": "report.as_json:json_lines", "csv": "report.as_csv:estimates_csv"}
"""Forms of estimates, alone or ranked."""
_RECORDS = {form: f"report.listing:listing_{form}" for form in ("json", "jsonl", "csv")}
"""Forms of a listing."""


class AnswerFormats(NamedTuple):
    """An answer by its name, and what writes it."""

    name: str
    writers: Mapping[str, str]
    """Module of `simulator.show` and function by form; the first form is the default."""

    @property
    def formats(self) -> tuple[str, ...]:
        """Forms it may have."""
        return tuple(self.writers)

    def write(self, value: Any, form: str, presentation: Presentation) -> Iterable[str]:
        """Return the text of an answer, in one piece or in several."""
        module, _, function = self.writers[form].partition(":")
        writer = getattr(import_module(f"simulator.show.{module}"), function)
        text: str | Iterable[str] = writer(value, presentation, *([form] if form in _STYLES else []))
        return (text,) if isinstance(text, str) else text

    def text(self, value: Any, form: str, presentation: Presentation) -> str:
        """Return the text of an answer."""
        return "".join(self.write(value, form, presentation))


def _answer(name: str, table: str, /, *, page: str = "", **more: str) -> AnswerFormats:
    """Return an answer whose table is a page of Markdown too, and whose JSON follows from its type."""
    html = {"html": f"pages.{page}"} if page else {}
    return AnswerFormats(
        name, MappingProxyType({"table": f"report.{table}", **(_EVERY | more), "markdown": f"report.{table}", **html})
    )


ANSWERS: Mapping[str, AnswerFormats] = MappingProxyType(
    {
        answer.name: answer
        for answer in (
            _answer(
                "ranking",
                "ranking_table:ranking_table",
                page="answers:ranking_page",
                sliders="pages.sliders:sliders_page",
                **_ROWS,
            ),
            _answer("estimate", "estimate_table:estimate_table", page="answers:estimate_page", **_ROWS),
            _answer("plan", "plan_table:plan_table", page="plan:plan_page", csv="report.plan_table:plan_csv"),
            _answer("comparison", "compare_table:compare_table", page="compare:compare_page"),
            _answer("explanation", "explain_table:explain_table"),
            _answer("sweep", "sweep:sweep_table"),
            _answer("validation", "validate_table:validate_table"),
            _answer("trace", "trace_table:trace_table"),
            _answer("probe", "probe_table:probe_table"),
            _answer("probe plan", "probe_table:outlook_table"),
            _answer(
                "verdicts",
                "check_table:check_table",
                page="check:check_page",
                github="report.check_github:check_github",
                junit="report.check_ci:check_junit",
                sarif="report.check_ci:check_sarif",
            ),
            *(
                _answer(
                    name,
                    f"accuracy:{table}",
                    page="accuracy:accuracy_page",
                    json="report.accuracy:accuracy_json",
                    csv="report.accuracy:rows_csv",
                )
                for name, table in (("accuracy", "class_table"), ("accuracy by row", "row_table"))
            ),
            _answer(
                "own accuracy",
                "accuracy:own_table",
                page="accuracy:own_page",
                json="report.accuracy:own_json",
                csv="report.accuracy:own_csv",
            ),
            _answer(
                "calibration",
                "calibration:calibration_table",
                json="report.calibration:calibration_json",
                yaml="report.calibration:calibration_yaml",
            ),
            _answer("coefficients", "calibration:meaning_table", json="report.calibration:meaning_json"),
            _answer("listing", "listing:listing_table", **_RECORDS),
            _answer("spec listing", "listing:listing_table", **_RECORDS, yaml="report.listing:listing_yaml"),
        )
    }
)
"""Answers by name."""
