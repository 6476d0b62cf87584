"""What answers share that a notebook shows: rows, a data frame, an HTML table."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

Row = Mapping[str, Any]


class Tabular:
    """An answer with rows, each a mapping of column to value in base units."""

    __slots__ = ()

    @abstractmethod
    def rows(self) -> Sequence[Row]:
        """The rows, all with the same columns."""

    def to_frame(self) -> Any:
        """The rows as a pandas.DataFrame; pandas is imported here alone. Raises ImportError without it."""
        from pandas import DataFrame  # noqa: PLC0415  only who asks for a frame needs pandas

        return DataFrame(list(self.rows()))

    def _repr_html_(self) -> str:
        """The rows as a table, for notebooks."""
        rows = self.rows()
        heads = "".join(f"<th>{escape(name)}</th>" for name in (rows[0] if rows else ()))
        body = "".join(
            f"<tr>{''.join(f'<td>{escape(_shown(cell))}</td>' for cell in row.values())}</tr>" for row in rows
        )
        summary = f"<p>{escape(repr(self))}</p>"
        return f"{summary}<table><thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table>" if rows else summary


def _shown(value: Any) -> str:
    return f"{value:.5g}" if isinstance(value, float) else "" if value is None else str(value)
