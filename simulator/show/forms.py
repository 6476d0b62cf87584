"""Registry of the answers and the forms each can be written in, behind `--format`; the place to add a form.

    "plan": Answer["Plan"](lambda: plan.plan_table, _json(...), csv=lambda: plan.plan_csv)

A form is a keyword with a function that returns its writer, so that choosing one imports its module and no other. Type
checkers see each writer, and that it takes what the answer is. Writers stand in `show.report` and `show.pages`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from simulator.errors import UnsupportedError
from simulator.records import replace

if TYPE_CHECKING:
    from simulator.answers.compare import Comparison
    from simulator.answers.explain import Explanation
    from simulator.answers.plan import Plan
    from simulator.answers.sweep import Sweep
    from simulator.cost.pricing.estimate import Estimate
    from simulator.evidence.calibration.own import JudgedRun, OwnError
    from simulator.evidence.calibration.store import Calibration
    from simulator.lab.probe.run import Prepared, Probed
    from simulator.lab.trace.tracing import TraceComparison
    from simulator.recipes.check.verdict import Checks
    from simulator.search.space import Ranking
    from simulator.show.report.lab import Validation
    from simulator.show.report.listing import SpecListing
    from simulator.show.report.presentation import Presentation, Section, Style

_Shown = TypeVar("_Shown")
AnswerWriter = Callable[[], Callable[[_Shown, "Presentation"], str | Iterable[str]]]
"""Returns what writes an answer of a type, in one piece or in several."""


class Lazy:
    """A module of the package that is imported when a name of it is first read.

    Beside each stands an import under TYPE_CHECKING, which type checkers and import contracts follow.
    """

    def __init__(self, name: str) -> None:
        self._name = f"simulator.{name}"

    def __getattr__(self, name: str) -> Any:
        """Return what the module holds under a name."""
        return getattr(import_module(self._name), name)


if TYPE_CHECKING:
    from simulator.show.pages import answers as pages
    from simulator.show.report import (
        as_json,
        calibration,
        check,
        compare,
        estimate,
        lab,
        listing,
        plan,
        ranking,
    )
else:
    pages = Lazy("show.pages.answers")
    as_json, calibration, check = (Lazy(f"show.report.{name}") for name in ("as_json", "calibration", "check"))
    compare, estimate, lab = (Lazy(f"show.report.{name}") for name in ("compare", "estimate", "lab"))
    listing, plan, ranking = (Lazy(f"show.report.{name}") for name in ("listing", "plan", "ranking"))


class Answer(Generic[_Shown]):
    """An answer of a type and its forms, in the order in which `--format` lists them; the first is the default."""

    def __init__(
        self,
        table: AnswerWriter[_Shown],
        json: AnswerWriter[_Shown],
        *,
        html: AnswerWriter[_Shown] | None = None,
        **others: AnswerWriter[_Shown],
    ) -> None:
        self.table = table
        self.writers = {"json": json, **others, **({"html": html} if html else {})}
        self.formats = ("table", "json", *others, "markdown", *(["html"] if html else []))

    def write(self, value: _Shown, form: str, presentation: Presentation) -> Iterable[str]:
        """Return the text of an answer, in one piece or in several."""
        style: Style = "markdown" if form == "markdown" else "table"
        text = self.writers.get(form, self.table)()(value, replace(presentation, style=style))
        return (text,) if isinstance(text, str) else text

    def text(self, value: _Shown, form: str, presentation: Presentation) -> str:
        """Return the text of an answer in one piece."""
        return "".join(self.write(value, form, presentation))


def _json(name: str) -> AnswerWriter[Any]:
    return lambda: partial(as_json.json_text, name)


def _sections(part: Callable[[], Callable[[Any], Iterable[Section]]]) -> AnswerWriter[Any]:
    """Return what writes the sections of a report as tables."""
    return lambda: lambda value, shown: shown.sections(part()(value))


_ESTIMATES: Final[Mapping[str, AnswerWriter[Estimate | Ranking]]] = {
    "jsonl": lambda: as_json.json_lines,
    "csv": lambda: as_json.estimates_csv,
}
_LISTING: Final[Mapping[str, AnswerWriter[SpecListing]]] = {
    "json": lambda: listing.listing_json,
    "jsonl": lambda: listing.listing_jsonl,
    "csv": lambda: listing.listing_csv,
    "html": lambda: pages.listing_page,
}
_ERRORS: Final[Mapping[str, AnswerWriter[Sequence[JudgedRun]]]] = {
    "json": lambda: calibration.accuracy_json,
    "csv": lambda: calibration.rows_csv,
    "html": lambda: pages.accuracy_page,
}
ANSWERS: Final[Mapping[str, Answer[Any]]] = {
    "ranking": Answer["Ranking"](
        lambda: ranking.ranking_table,
        lambda: as_json.ranking_json,
        sliders=lambda: pages.sliders_page,
        **_ESTIMATES,
        html=lambda: pages.ranking_page,
    ),
    "estimate": Answer["Estimate"](
        lambda: estimate.estimate_table,
        _json("estimate"),
        **_ESTIMATES,
        html=lambda: pages.estimate_page,
    ),
    "plan": Answer["Plan"](
        lambda: plan.plan_table,
        _json("plan"),
        csv=lambda: plan.plan_csv,
        html=lambda: pages.plan_page,
    ),
    "comparison": Answer["Comparison"](
        lambda: compare.compare_table,
        _json("comparison"),
        html=lambda: pages.compare_page,
    ),
    "explanation": Answer["Explanation"](lambda: estimate.explain_table, _json("explanation")),
    "sweep": Answer["Sweep"](lambda: plan.sweep_table, _json("sweep")),
    "validation": Answer["Validation"](lambda: lab.validate_table, _json("validation")),
    "trace": Answer["TraceComparison"](lambda: lab.trace_table, _json("trace")),
    "probe": Answer["Probed"](lambda: lab.probe_table, _json("probe")),
    "probe plan": Answer["Prepared"](lambda: lab.outlook_table, _json("probe_plan")),
    "verdicts": Answer["Checks"](
        lambda: check.check_table,
        _json("verdicts"),
        github=lambda: check.check_github,
        junit=lambda: check.check_junit,
        sarif=lambda: check.check_sarif,
        html=lambda: pages.check_page,
    ),
    "accuracy": Answer["Sequence[JudgedRun]"](_sections(lambda: calibration.class_sections), **_ERRORS),
    "accuracy by row": Answer["Sequence[JudgedRun]"](_sections(lambda: calibration.row_sections), **_ERRORS),
    "own accuracy": Answer["Sequence[OwnError]"](
        _sections(lambda: calibration.own_sections),
        lambda: calibration.own_json,
        csv=lambda: calibration.own_csv,
        html=lambda: pages.own_page,
    ),
    "calibration": Answer["Sequence[Calibration]"](
        _sections(lambda: calibration.calibration_sections),
        lambda: calibration.calibration_json,
        yaml=lambda: calibration.calibration_yaml,
    ),
    "coefficients": Answer[None](_sections(lambda: calibration.meaning_sections), lambda: calibration.meaning_json),
    "listing": Answer["SpecListing"](lambda: listing.listing_table, **_LISTING),
    "spec listing": Answer["SpecListing"](lambda: listing.listing_table, **_LISTING, yaml=lambda: listing.listing_yaml),
}

_BY_TYPE: Final = {"Checks": "verdicts"}  # names of answers that are not those of their types


def answer_json(answer: object) -> str:
    """Return an answer as `--format json` writes it. Raises UnsupportedError for one that no command gives."""
    from simulator.show.report.presentation import Presentation  # noqa: PLC0415  start-up time

    kind = type(answer).__name__
    if (name := _BY_TYPE.get(kind, kind.lower())) not in ANSWERS:
        raise UnsupportedError(f"{kind}: no command writes it as JSON")
    return ANSWERS[name].text(answer, "json", Presentation())
