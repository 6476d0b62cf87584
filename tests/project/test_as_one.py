"""Cases that a worker runs as one test: each is tried, has what is its own, and is told of by its name."""

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.as_one import as_one, stands_alone


def cases(function: Any, *numbers: int) -> list[Any]:
    """As pytest collects them."""
    given = (SimpleNamespace(params={"number": number}) for number in numbers)
    return [SimpleNamespace(obj=function, name=f"test_x[{each.params['number']}]", callspec=each) for each in given]


def test_every_case_is_tried_and_those_that_fail_are_named() -> None:
    tried = []

    def odd(number: int) -> None:
        tried.append(number)
        assert number % 2

    with pytest.raises(ExceptionGroup, match="2 of 4 cases") as caught:
        as_one(cases(odd, 1, 2, 3, 4))()
    assert tried == [1, 2, 3, 4]
    assert [error.__notes__ for error in caught.value.exceptions] == [["in test_x[2]"], ["in test_x[4]"]]
    as_one(cases(odd, 1, 3))()


def test_a_case_that_is_skipped_shows_where_none_fails() -> None:
    def skipped(number: int) -> None:
        if number == 2:
            pytest.skip("not here")
        assert number < 9

    with pytest.raises(pytest.skip.Exception, match="not here"):
        as_one(cases(skipped, 1, 2, 3))()
    with pytest.raises(ExceptionGroup, match="1 of 3 cases"):
        as_one(cases(skipped, 1, 2, 9))()


def test_what_does_not_raise_fails() -> None:
    def silent(number: int) -> None:
        with pytest.raises(ValueError, match="no"):
            str(number)

    with pytest.raises(BaseExceptionGroup, match="1 of 1 cases"):
        as_one(cases(silent, 1))()


def test_each_case_has_a_folder_and_patches_of_its_own(tmp_path: Path) -> None:
    def patched(number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        assert "SUITE_CASE" not in os.environ
        monkeypatch.setenv("SUITE_CASE", str(number))
        assert [*tmp_path.iterdir()] == []
        (tmp_path / "file").touch()

    with pytest.MonkeyPatch.context() as outer:
        as_one(cases(patched, 1, 2))(tmp_path=tmp_path, monkeypatch=outer)
    assert "SUITE_CASE" not in os.environ


@pytest.mark.parametrize("number", [1, 2])
def test_what_shares_a_fixture_stays_a_test_of_its_own(number: int, request: pytest.FixtureRequest) -> None:
    assert not stands_alone(request.node)
    assert request.node.callspec.params == {"number": number}
