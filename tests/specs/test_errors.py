"""Errors are one line, carry an exit status and name what is near."""

import pytest

from simulator.errors import InputError, SimulateError, UnsupportedError, did_you_mean


def test_statuses() -> None:
    assert (SimulateError.exit_code, InputError.exit_code, UnsupportedError.exit_code) == (1, 2, 3)
    assert issubclass(InputError, SimulateError)
    assert issubclass(UnsupportedError, SimulateError)


def test_message_is_one_printable_line() -> None:
    assert str(InputError("a\nb\t c\x00\x1b[31m\u2028d\ud800e")) == "a b c [31m d e"


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("llama3-8", ", did you mean 'llama3-8b'?"),
        ("LLAMA3-8B", ", did you mean 'llama3-8b'?"),
        ("qwen3", ", did you mean 'qwen3-4b'?"),
        ("gpt", ""),
        ("q", ""),
        ("", ""),
        ("x" * 100_000, ""),
    ],
)
def test_did_you_mean(name: str, expected: str) -> None:
    assert did_you_mean(name, ["llama3-8b", "qwen3-4b"]) == expected


@pytest.mark.parametrize(("name", "expected"), [("--foo", ""), ("--colr", ", did you mean '--color'?")])
def test_dashes_make_no_option_near(name: str, expected: str) -> None:
    assert did_you_mean(name, ["--color", "--format"]) == expected
