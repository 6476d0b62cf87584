"""Base class of answers, `Tabular`: rows, a data frame, a table and a figure of each.

    estimate.rows()    estimate.to_frame()    estimate.plot("step")

An answer has its rows; `show.pages.figures` draws them.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

Row = Mapping[str, Any]


class Tabular:
    """Answer with rows, each a mapping of column to value in base units."""

    __slots__ = ()

    forms: ClassVar[Any]
    """Module `show.forms`, which writes answers; the package sets both, as they stand above every answer."""
    figures: ClassVar[Any]
    """Module `show.pages.figures`, which draws answers."""

    @abstractmethod
    def rows(self) -> Sequence[Row]:
        """Return the rows, all with the same columns."""

    def to_frame(self) -> Any:
        """Return the rows as a pandas.DataFrame. Raises ImportError without pandas."""
        from pandas import DataFrame  # noqa: PLC0415  only who asks for a frame needs pandas

        return DataFrame(list(self.rows()))

    def to_json(self) -> str:
        """Return the answer as `--format json` writes it; `simulator.from_json` asks it again.

        Raises UnsupportedError for rows that are no answer of a command.
        """
        text: str = self.forms.answer_json(self)
        return text

    def plot(self, figure: str = "") -> Any:
        """Return the figure of this name, or the first, as a `plotly.graph_objects.Figure`.

        Raises UnsupportedError without plotly, and InputError for an unknown name.
        """
        return self.figures.answer_figure(self, figure)

    def _repr_html_(self) -> str:
        """Return the terminal's table as HTML, for notebooks."""
        text: str = self.forms.answer_html(self)
        return text
