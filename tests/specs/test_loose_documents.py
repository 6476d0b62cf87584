"""YAML as the loaders of frameworks read it: 1.1, with aliases."""

import pytest

from simulator.errors import InputError
from simulator.question.specs.yaml_text import parse_yaml


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("a: yes\nb: off\nc: On\nd: NO", {"a": True, "b": False, "c": True, "d": False}),
        ("a: 010\nb: 0x1F\nc: 1_000\nd: -0b11", {"a": 8, "b": 31, "c": 1000, "d": -3}),
        ("a: 1e-5\nb: 1.0e-5\nc: .inf\nd: 1:30", {"a": "1e-5", "b": 1e-5, "c": ".inf", "d": "1:30"}),
        ("a: &x [1, 2]\nb: *x", {"a": [1, 2], "b": [1, 2]}),
        ("a: &x {tp: 2, pp: 4}\nb: {<<: *x, pp: 1}", {"a": {"tp": 2, "pp": 4}, "b": {"tp": 2, "pp": 1}}),
        ("a: &x {tp: 2}\nb: &y {tp: 4, pp: 1}\nc: {<<: [*x, *y]}", None),
        ("a: 1\na: 1", {"a": 1}),
        ("1: x\n2.5: y", {"1": "x", "2.5": "y"}),
        ("a: '<<'", {"a": "<<"}),
    ],
)
def test_what_the_loaders_take(text: str, found: object) -> None:
    wanted = found or {"a": {"tp": 2}, "b": {"tp": 4, "pp": 1}, "c": {"tp": 2, "pp": 1}}
    assert parse_yaml("x", text, loose=True) == wanted


@pytest.mark.parametrize("text", ["a: yes", "a: &x 1\nb: *x", "a: {<<: {b: 1}}", "a: 1\na: 1", "1: x"])
def test_specs_stay_strict(text: str) -> None:
    with pytest.raises(InputError):
        parse_yaml("x", text)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("a: 1\na: 2", "duplicate key 'a'"),
        ("a: *x", "undefined alias|no anchor"),
        ("a: &x [*x]", "no anchor"),
        ("a: {<<: 3}", "merges mappings only"),
        ("a: !!python/name:os.system x", "not allowed"),
        ("? [1]\n: x", "not text"),
    ],
)
def test_what_is_refused(text: str, problem: str) -> None:
    with pytest.raises(InputError, match=problem):
        parse_yaml("x", text, loose=True)


def test_aliases_count_for_what_they_repeat() -> None:
    lines = ["a0: &a0 {}", *(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 9))]
    with pytest.raises(InputError, match="more than 200000 values"):
        parse_yaml("x", "\n".join(lines), loose=True)
