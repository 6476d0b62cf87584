"""Rows, a data frame, a table and a figure of any answer, for a notebook. Computes no figure that an answer lacks."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any

Row = Mapping[str, Any]


class Tabular:
    """Answer with rows, each a mapping of column to value in base units."""

    __slots__ = ()

    @abstractmethod
    def rows(self) -> Sequence[Row]:
        """Return the rows, all with the same columns."""

    def to_frame(self) -> Any:
        """Return the rows as a pandas.DataFrame. Raises ImportError without pandas."""
        from pandas import DataFrame  # noqa: PLC0415  only who asks for a frame needs pandas

        return DataFrame(list(self.rows()))

    def plot(self, figure: str = "") -> Any:
        """Return the figure of this name, or the first, as a `plotly.graph_objects.Figure`.

        Raises UnsupportedError without plotly, and InputError for an unknown name.
        """
        return _notebook().answer_figure(self, figure)

    def _repr_html_(self) -> str:
        """Return the terminal's table as HTML, for notebooks."""
        text: str = _notebook().answer_html(self)
        return text


def _notebook() -> Any:
    """Import the module that draws answers: it imports every answer, so not at start-up."""
    return import_module("simulator.show.pages.notebook")
