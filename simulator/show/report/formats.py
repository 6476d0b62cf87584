"""Answers and the forms that they are written in, by `formats.csv`, the only place to add a form. Writes none.

A row is a form, the answers that have it (`*`: all that have no row of their own for it above), and what writes it: a
function of an answer and of a `Presentation`, or the form whose function it shares; that of `table` and `markdown`
takes the form as well. The first row of an answer is its default. Each writer is imported when its form is asked for,
so that choices of an option cost no start-up time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

from simulator.question.specs.tables import read_table

if TYPE_CHECKING:
    from simulator.show.report.presentation import Presentation

_STYLES = ("table", "markdown")


class AnswerFormats(NamedTuple):
    """Answer by its name, with its writers."""

    name: str
    writers: Mapping[str, str]
    """Module of `simulator.show` and function by form; the first form is the default."""

    @property
    def formats(self) -> tuple[str, ...]:
        """Forms of the answer."""
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


def _answers() -> Iterator[AnswerFormats]:
    rows = [(row["form"], row["answers"].split(", "), row["writer"]) for row in read_table(__file__, "formats")]
    for name in (name for form, names, _ in rows if form == "table" for name in names):
        writers: dict[str, str] = {}
        for form, names, writer in rows:
            if name in names or names == ["*"]:
                writers.setdefault(form, writers.get(writer, writer))
        yield AnswerFormats(name, writers)


ANSWERS: Mapping[str, AnswerFormats] = {answer.name: answer for answer in _answers()}
"""Answers by name."""
