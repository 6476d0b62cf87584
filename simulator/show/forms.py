"""Registry of the answers and the forms each can be written in, behind `--format`; `report/forms.csv` lists them.

    plan,csv,report.plan.plan_csv           of a plan, CSV is what this function of `simulator.show` writes
    plan,json,report.as_json.json_text      JSON by the keys of its object in `keys.csv`
    accuracy,table,….class_sections         sections of a report, written as tables

Choosing a form imports its module and no other. A writer takes the answer and its `Presentation`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from simulator.errors import UnsupportedError
from simulator.files import read_table
from simulator.records import NamedTuple, replace

if TYPE_CHECKING:
    from simulator.show.report.presentation import Presentation, Style
    from simulator.tabular import Tabular


class Answer(NamedTuple):
    """An answer and its forms."""

    name: str
    writers: Mapping[str, str]
    """Function that writes each form; the first is the default."""

    @property
    def formats(self) -> tuple[str, ...]:
        """Words of `--format`, in order; Markdown is the table for a page."""
        pages = [form for form in self.writers if form == "html"]
        return (*(form for form in self.writers if form != "html"), "markdown", *pages)

    def write(self, value: Any, form: str, presentation: Presentation) -> Iterable[str]:
        """Return the text of an answer, in one piece or in several; in a `notebook` too its table."""
        styles: Mapping[str, Style] = {"markdown": "markdown", "notebook": "html"}
        shown = replace(presentation, style=styles.get(form, "table"))
        module, _, function = self.writers.get(form, self.writers["table"]).rpartition(".")
        written = getattr(import_module(f"{__package__}.{module}"), function)
        if function == "json_text":
            written = partial(written, self.name.replace(" ", "_"))
        text = shown.sections(written(value)) if function.endswith("_sections") else written(value, shown)
        return (text,) if isinstance(text, str) else text

    def text(self, value: Any, form: str, presentation: Presentation) -> str:
        """Return the text of an answer in one piece."""
        return "".join(self.write(value, form, presentation))


def _answers() -> dict[str, Answer]:
    writers: dict[str, dict[str, str]] = {}
    for row in read_table(__file__, "report/forms"):
        for name in row["answers"].split(";"):
            writers.setdefault(name, {})[row["form"]] = row["writer"]
    return {name: Answer(name, forms) for name, forms in writers.items()}


ANSWERS: Final[Mapping[str, Answer]] = _answers()
_BY_TYPE: Final = {"Checks": "verdicts"}  # names of answers that are not those of their types


def _answer_of(answer: object) -> Answer | None:
    kind = type(answer).__name__
    return ANSWERS.get(_BY_TYPE.get(kind, kind.lower()))


def answer_json(answer: object) -> str:
    """Return an answer as `--format json` writes it. Raises UnsupportedError for one that no command gives."""
    from simulator.show.report.presentation import Presentation  # noqa: PLC0415  start-up time

    if (forms := _answer_of(answer)) is None:
        raise UnsupportedError(f"{type(answer).__name__}: no command writes it as JSON")
    return forms.text(answer, "json", Presentation())


def answer_html(answer: Tabular) -> str:
    """Return an answer as a line and the terminal's table, or its plain rows if it has no table or is a sweep."""
    from html import escape  # noqa: PLC0415  start-up time

    from simulator.show.report.presentation import Presentation  # noqa: PLC0415  start-up time

    forms, summary = _answer_of(answer), f"<p>{escape(repr(answer))}</p>"
    if forms is not None and forms.name != "sweep":
        return summary + forms.text(answer, "notebook", Presentation(verbosity=0 if forms.name == "verdicts" else -1))
    rows = answer.rows()
    heads = "".join(f"<th>{escape(name)}</th>" for name in (rows[0] if rows else ()))
    body = "".join(f"<tr>{''.join(f'<td>{escape(_cell(cell))}</td>' for cell in row.values())}</tr>" for row in rows)
    return summary + (f"<table><thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table>" if rows else "")


def _cell(value: Any) -> str:
    return f"{value:.5g}" if isinstance(value, float) else "" if value is None else str(value)
