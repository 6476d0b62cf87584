"""Files give plain values only; the rest is refused quickly and in one line."""

import time
from pathlib import Path

import pytest

from simulator.errors import InputError
from simulator.question.specs.documents import MAXIMUM_BYTES, read_json, read_yaml


def written(folder: Path, content: str | bytes) -> Path:
    file = folder / "file"
    file.write_bytes(content.encode() if isinstance(content, str) else content)
    return file


def test_plain_yaml(tmp_path: Path) -> None:
    content = "a: 1\nb: [x, '2', 2.5, true, null, -3]\nc: {d: \"two words\"}\nday: 2024-01-02\n"
    assert read_yaml(written(tmp_path, content)) == {
        "a": 1,
        "b": ["x", "2", 2.5, True, None, -3],
        "c": {"d": "two words"},
        "day": "2024-01-02",
    }
    assert read_yaml(written(tmp_path, "a: 1e999\n")) == {"a": "1e999"}
    assert read_yaml(written(tmp_path, "")) is None
    assert read_yaml(written(tmp_path, "---\na: b\n...\n")) == {"a": "b"}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("a: 1\nb: 2\na: 3\n", ":3: duplicate key 'a'"),
        ("a: &x [1]\nb: *x\n", ":2: aliases are not allowed"),
        ("a: &x [*x]\n", ":1: aliases are not allowed"),
        ("a: {<<: {b: 1}}\n", ":1: '<<' (merge) is not allowed"),
        ("a: .nan\n", ":1: '.nan' is not a plain finite number"),
        ("a: -.inf\n", "'-.inf' is not a plain finite number"),
        ("a: 1.0e+999\n", "'1.0e+999' is not a plain finite number"),
        ("a: 0x10\n", "'0x10' (int) is not allowed"),
        ("a: 1:30\n", "'1:30' (int) is not allowed"),
        ("a: yes\n", "'yes' is ambiguous; write true or false"),
        ("1: a\n", "key '1' is not text"),
        ("? [a]\n: b\n", "is not text"),
        ("a: !!python/object/apply:os.system [ls]\n", "is not allowed"),
        ("a: !!python/name:os.system\n", "is not allowed"),
        ("a: !!binary aGk=\n", "is not allowed"),
        ("a: !!set {b}\n", "is not allowed"),
        ("a: 1\n---\nb: 2\n", "more than one YAML document"),
        ("a: [1\n", "not valid YAML"),
        ("a: \x00\n", "not valid YAML"),
        ("\t- a", "not valid YAML"),
        (b"\xff\xfe\x00", "not UTF-8 text"),
        ("x" * (MAXIMUM_BYTES + 1), "too large"),
        ("a: " + "9" * 31, "is not allowed"),
    ],
)
def test_refused_yaml(content: str | bytes, message: str, tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        read_yaml(written(tmp_path, content))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "content",
    [
        "[" * 900_000,
        "{a: " * 200_000,
        "- " * 450_000,
        "? " * 450_000,
        "\n".join(" " * depth + "a:" for depth in range(1_300)),
        "a0: &a0 [x,x]\n" + "\n".join(f"a{i + 1}: &a{i + 1} [*a{i},*a{i}]" for i in range(60)),
    ],
    ids=["lists", "mappings", "dashes", "questions", "indents", "laughs"],
)
def test_bombs_are_refused_quickly(content: str, tmp_path: Path) -> None:
    start = time.monotonic()
    with pytest.raises(InputError):
        read_yaml(written(tmp_path, content))
    assert time.monotonic() - start < 5


def test_plain_json(tmp_path: Path) -> None:
    assert read_json(written(tmp_path, '\ufeff{"a": [1, 2.5, null, true]}')) == {"a": [1, 2.5, None, True]}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"a": 1, "a": 2}', "duplicate key 'a'"),
        ('{"a": NaN}', "NaN is not a finite number"),
        ('{"a": -Infinity}', "-Infinity is not a finite number"),
        ('{"a": 1e999}', "1e999 is not a finite number"),
        ('{"a": ' + "9" * 5000 + "}", "not valid JSON"),
        ("[" * 100_000, "not valid JSON"),
        ('{"a": [' * 100_000, "not valid JSON"),
        ("", ":1: not valid JSON"),
        ("{'a': 1}", ":1: not valid JSON"),
    ],
)
def test_refused_json(content: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        read_json(written(tmp_path, content))
    assert message in str(caught.value)


def test_missing_files_and_folders(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "none", tmp_path / ("x" * 5000)):
        with pytest.raises(InputError):
            read_yaml(path)
