"""Budget of work for reading one file, in units instead of time, so that the same file always ends the same way."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final

from simulator.errors import InputError

MAXIMUM_WORK: Final = 50_000_000
"""Most units of work for one file; a unit is about 10 ns of one core, or one byte that is kept."""
CHARACTER_WORK: Final = 10
"""Units of work of a character of a document."""


class SpentError(InputError):
    """Error of a file that takes more work to read than any recipe does."""


class Budget:
    """Work allowed and spent for one file."""

    def __init__(self, file: str, maximum: int = MAXIMUM_WORK) -> None:
        self.file = file
        self.maximum = maximum
        self.spent = 0


_CURRENT: Final[ContextVar[Budget | None]] = ContextVar("budget", default=None)


def charge(units: int) -> None:
    """Take work from the budget of the file being read, if any; once there is too little, raise SpentError."""
    budget = _CURRENT.get()
    if budget is None:
        return
    budget.spent += units
    if budget.spent > budget.maximum:
        # The work is not done, so that its units do not count; nothing is left from now on.
        budget.spent = budget.maximum + 1
        raise SpentError(f"{budget.file}: takes more work to read than is allowed; judge the scripts that it starts")


@contextmanager
def limited(file: str) -> Iterator[Budget]:
    """Read one file within a budget; a file that is read because of another shares the other's."""
    budget = _CURRENT.get()
    if budget is not None:
        yield budget
        return
    budget = Budget(file)
    token = _CURRENT.set(budget)
    try:
        yield budget
    finally:
        _CURRENT.reset(token)
