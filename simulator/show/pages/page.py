"""Page as one HTML file that needs no network, of texts, figures and tables, by the files of `pages/assets`."""

from __future__ import annotations

import json
import zlib
from base64 import b64encode
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from importlib.resources import files
from importlib.util import find_spec
from string import Template
from typing import Any

from simulator._version import __version__
from simulator.errors import UnsupportedError
from simulator.records import Record
from simulator.show.report.presentation import Column, Presentation

Spec = Mapping[str, Any]
"""A figure as Plotly takes it: `data` and `layout`."""


class Table(Record):
    """Cells as text."""

    headers: Sequence[str]
    rows: Sequence[Sequence[str]]
    text_columns: frozenset[int] = frozenset({0})
    """Columns aligned left."""
    layouts: Sequence[int] = ()
    """Index of the layout that each row's first cell shows; empty for none."""


def columns_table(columns: Iterable[Column], layouts: Sequence[int] = (), first: Sequence[str] = ()) -> Table:
    """Return the columns of a terminal's table for a page; those to see on a phone stand `first`."""
    listed = sorted(columns, key=lambda column: [*first, column.name].index(column.name))
    rows = list(zip(*(column.cells for column in listed), strict=True))
    left = frozenset(position for position, column in enumerate(listed) if column.is_text)
    return Table([column.name for column in listed], rows, left, layouts)


class PageSection(Record):
    """A heading and its contents."""

    title: str
    text: Sequence[str] = ()
    figure: str = ""
    about: str = ""
    """Text alternative of the figure, for screen readers."""
    table: Table | None = None
    folded: bool = False
    """Whether the table is folded away."""
    lines: Sequence[str] = ()
    """Items of a list."""
    code: str = ""
    """Preformatted text, folded away."""
    wide: frozenset[int] = frozenset()
    """Columns of the table that hold sentences."""
    html: str = ""
    """Markup, already escaped."""


def page_html(  # noqa: PLR0913  everything on a page
    shown: Presentation,
    title: str,
    lead: str,
    sections: Sequence[PageSection],
    figures: Mapping[str, Spec],
    *,
    layouts: Sequence[Mapping[str, Any]] = (),
    notes: Sequence[str] = (),
) -> str:
    """Return the page as one file. Raises UnsupportedError without plotly.

    `layouts` are panels, shown one at a time: `title`, `verdict`, `command`, and the figures `memory` and `step`.
    """
    assets = files("simulator.show.pages").joinpath("assets")
    panels = zlib.compress(json.dumps(layouts, allow_nan=False, check_circular=False).encode())
    data = json.dumps({"figures": figures, "layouts": b64encode(panels).decode()}, allow_nan=False)
    return Template(assets.joinpath("page.html").read_text("utf-8")).substitute(
        title=escape(title),
        style=assets.joinpath("page.css").read_text("utf-8"),
        lead=escape(lead),
        sections="".join(f"{_section(number, section)}\n" for number, section in enumerate(sections)),
        notes="".join(f"<li>{escape(note)}</li>" for note in notes),
        version=escape(__version__),
        command=escape(shown.command),
        data=data.replace("</", "<\\/"),
        plotly=plotting_library() if figures or layouts else "",
        script=assets.joinpath("page.js").read_text("utf-8"),
    )


def plotting_library() -> str:
    """Return Plotly's JavaScript. Raises UnsupportedError where plotly is not installed."""
    if find_spec("plotly") is None:
        raise UnsupportedError(
            "--format html: plotly is not installed: pip install '.[html]' in a checkout, else pip install plotly"
        )
    text = files("plotly").joinpath("package_data", "plotly.min.js").read_text("utf-8")
    return text.replace("</script", "<\\/script")


def _section(number: int, section: PageSection) -> str:
    name = f"section-{number}"
    parts = [f'<section aria-labelledby="{name}">', f'<h2 id="{name}">{escape(section.title)}</h2>']
    parts += [f"<p>{escape(text)}</p>" for text in section.text]
    if section.figure:
        parts.append(figure_box(section.figure, section.about))
    parts.append(section.html)
    if section.table is not None:
        table = _table(section.table, section.title, section.wide)
        parts.append(f"<details><summary>Numbers</summary>{table}</details>" if section.folded else table)
    if section.lines:
        parts.append(f"<ul>{''.join(f'<li>{escape(line)}</li>' for line in section.lines)}</ul>")
    if section.code:
        parts.append(f"<details><summary>Patches</summary><pre>{escape(section.code)}</pre></details>")
    return "\n".join([*parts, "</section>"])


def figure_box(name: str, about: str, *, drawn: bool = True) -> str:
    """Return the element of a figure; the script draws one that is not `drawn` at once."""
    which = f'data-figure="{escape(name)}"' if drawn else f'id="figure-{escape(name)}"'
    return f'<div class="figure" {which} role="img" aria-label="{escape(about)}"></div>'


_LONG = 20  # most characters of a cell that a phone may break at every word


def _table(table: Table, caption: str, wide: frozenset[int]) -> str:
    columns = range(len(table.headers))
    side = [
        f"{'text' * (column in table.text_columns)} {'wide' * (column in wide)} "
        f"{'long' * any(len(row[column]) > _LONG for row in table.rows)}".strip()
        for column in columns
    ]
    heads = "".join(
        f'<th scope="col" class="{side[column]}"><button type="button">{escape(header)}</button></th>'
        for column, header in enumerate(header.replace("\n", " ") for header in table.headers)
    )
    body = "".join(_row(table, number, side) for number in range(len(table.rows)))
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(caption)}">'
        f"<table><thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def _row(table: Table, number: int, side: Sequence[str]) -> str:
    cells = []
    for column, text in enumerate(table.rows[number]):
        shown = escape(text)
        if table.layouts and column == 0:
            label = escape(f"Show layout {text}")
            shown = f'<button type="button" data-layout="{table.layouts[number]}" aria-label="{label}">{shown}</button>'
        word = text.split(" ")[0]
        kind = f"{side[column]} {word if word in ('yes', 'no', 'maybe') else ''}".strip()
        cells.append(f'<td class="{kind}">{shown}</td>')
    row = f' data-layout="{table.layouts[number]}"' if table.layouts else ""
    return f"<tr{row}>{''.join(cells)}</tr>"
