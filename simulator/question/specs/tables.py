"""Records whose fields are rows of a CSV table: reading of rows and cells. Holds no value.

`gemm_efficiency: float = TABLED` says name and type of a coefficient; the row `gemm_efficiency` of `coefficients.csv`
says its prior, unit, bounds and meaning.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, TypeVar

from simulator.question import vocabulary

TableRow = Mapping[str, str]
"""Cells of a row by column."""
TABLED: Final[Any] = object()
"""Placeholder default of a field that a table's row describes; `fields_from` replaces it."""
_Record = TypeVar("_Record")


def read_table(beside: str, table: str) -> list[dict[str, str]]:
    """Return the rows of `table`.csv in the folder of the module file `beside`."""
    with Path(beside).with_name(f"{table}.csv").open(newline="", encoding="utf-8") as stream:
        return list(csv.DictReader(stream))


def rows_of(table: str) -> dict[str, dict[str, str]]:
    """Return the rows of a table of this folder by their column `name`, in order."""
    return {row["name"]: row for row in read_table(__file__, table)}


def fields_from(
    rows: Mapping[str, TableRow], made: Callable[[TableRow, str], Any]
) -> Callable[[type[_Record]], type[_Record]]:
    """Return a decorator, used below `@dataclass`, that sets every `TABLED` field to `made(row, type)`.

    Raises TypeError where fields and rows are not the same, in the same order.
    """

    def decorated(record: type[_Record]) -> type[_Record]:
        names = [name for name, value in vars(record).items() if value is TABLED]
        if names != list(rows):
            wrong = sorted(set(names) ^ set(rows)) or "their order"
            raise TypeError(f"{record.__name__}: fields and rows of its table differ: {wrong}")
        for name in names:
            setattr(record, name, made(rows[name], record.__annotations__[name]))
        return record

    return decorated


def words_of(cell: str) -> tuple[Any, ...]:
    """Return the words and whole numbers of a cell; `*NAME` stands for all of a list of `question.vocabulary`."""
    lists = (getattr(vocabulary, word[1:]) if word.startswith("*") else (word,) for word in cell.split())
    return tuple(int(word) if word.isdecimal() else word for words in lists for word in words)


def number_of(cell: str) -> float:
    """Return the number of a cell, an int where it is written as one."""
    return int(cell) if cell.isdecimal() else float(cell)


def value_of(cell: str, annotation: str) -> Any:
    """Return a cell's value in the type of a field's annotation: a number, true or false, words, or text."""
    if annotation.startswith("tuple["):
        return words_of(cell)
    if annotation in ("int", "float"):
        return number_of(cell)
    return {"true": True, "false": False}[cell] if annotation == "bool" else cell
