"""Base class of answers, `Tabular`: rows, a data frame, a table and a figure of each.

    estimate.rows()    estimate.to_frame()    estimate.plot("step")

An answer has its rows; `show.pages.figures` draws them.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Protocol

Row = Mapping[str, Any]


class Drawing(Protocol):
    """What draws answers."""

    def html(self, answer: Tabular) -> str:
        """Return the terminal's table as HTML."""

    def json(self, answer: Tabular) -> str:
        """Return the answer as JSON. Raises as `Tabular.to_json` does."""

    def figure(self, answer: Tabular, name: str) -> Any:
        """Return the figure of this name, or the first. Raises as `Tabular.plot` does."""


class Tabular:
    """Answer with rows, each a mapping of column to value in base units."""

    __slots__ = ()

    drawing: ClassVar[Drawing]

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
        return self.drawing.json(self)

    def plot(self, figure: str = "") -> Any:
        """Return the figure of this name, or the first, as a `plotly.graph_objects.Figure`.

        Raises UnsupportedError without plotly, and InputError for an unknown name.
        """
        return self.drawing.figure(self, figure)

    def _repr_html_(self) -> str:
        """Return the terminal's table as HTML, for notebooks."""
        return self.drawing.html(self)
