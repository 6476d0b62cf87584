"""All cases of a parametrised function as one test: what a worker of the suite runs."""

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

import pytest

ANEW: Final = {"tmp_path", "monkeypatch"}
"""What each case of a function has anew."""
AROUND: Final = {"bare", "without_advice", "closed_switches", "monkeypatch", "tmp_path_factory", "request"}
"""What may stand around all cases of a function that does not ask for it."""


def stands_alone(item: pytest.Item) -> bool:
    """Whether a test is a case of a function of a module that takes its parameters and what each case has anew."""
    if not isinstance(item, pytest.Function) or item.cls is not None or not hasattr(item, "callspec"):
        return False
    given, named = set(item.callspec.params), set(inspect.signature(item.obj).parameters)
    of_hypothesis = getattr(item.obj, "is_hypothesis_test", False)
    others = {*item.fixturenames} - given
    return not (
        of_hypothesis or item.callspec.marks or given - named or named - given - ANEW or others - named - AROUND
    )


def as_one(cases: Sequence[pytest.Function]) -> Callable[..., None]:
    """A function that tries every case, and tells of each that failed by its name."""
    function: Callable[..., None] = cases[0].obj

    def every_case(**fixtures: Any) -> None:
        failed: list[BaseException] = []
        left: BaseException | None = None
        for number, case in enumerate(cases):
            try:
                with _anew(fixtures, number) as own:
                    function(**case.callspec.params, **own)
            except (pytest.skip.Exception, pytest.xfail.Exception) as outcome:
                left = outcome
            except (Exception, pytest.fail.Exception) as error:  # noqa: BLE001  raised below
                error.add_note(f"in {case.name}")
                failed.append(error)
        if failed:
            raise BaseExceptionGroup(f"{len(failed)} of {len(cases)} cases", failed)
        if left is not None:
            raise left

    every_case.__doc__, every_case.__wrapped__ = function.__doc__, function  # type: ignore[attr-defined]
    names = sorted(inspect.signature(function).parameters.keys() & ANEW)
    asked = [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY) for name in names]
    every_case.__signature__ = inspect.Signature(asked)  # type: ignore[attr-defined]
    marks = getattr(function, "pytestmark", [])
    every_case.pytestmark = [mark for mark in marks if mark.name != "parametrize"]  # type: ignore[attr-defined]
    return every_case


@contextmanager
def _anew(fixtures: Mapping[str, Any], number: int) -> Iterator[dict[str, Any]]:
    """A folder of a case's own, and patches that end with it."""
    own = dict(fixtures)
    if "tmp_path" in own:
        own["tmp_path"] = fixtures["tmp_path"] / str(number)
        own["tmp_path"].mkdir()
    with pytest.MonkeyPatch.context() as patches:
        yield own | ({"monkeypatch": patches} if "monkeypatch" in own else {})
