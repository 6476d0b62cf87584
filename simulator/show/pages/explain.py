"""Why a layout does not fit, as sections of its page."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from simulator.show.answers.explain import Explanation
from simulator.show.pages.page import PageSection, Table
from simulator.show.report.explain_table import changes_cells, changes_title, longest_text


def explanation_sections(found: Explanation) -> Iterator[PageSection]:
    """The causes, the changes that help, the longest sequence."""
    yield PageSection(title="Why", lines=[f"{cause}." for cause in found.causes])
    if found.changes:
        yield PageSection(title=changes_title(found), table=cells_table(*changes_cells(found)))
    yield PageSection(title="How long a sequence may be", text=[longest_text(found)])


def cells_table(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    """Cells of a terminal's table, whose first column is text."""
    return Table(headers=[header.replace("\n", " ") for header in headers], rows=rows, text_columns=frozenset({0}))
