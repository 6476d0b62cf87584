"""Files give plain values only; the rest is refused quickly and in one line."""

import marshal
import os
import re
import sys
import time
from dataclasses import FrozenInstanceError
from importlib.util import cache_from_source
from pathlib import Path
from zlib import crc32

import pytest

from simulator.errors import InputError
from simulator.question.specs import documents, yaml_text
from simulator.question.specs.catalogue import load_model
from simulator.question.specs.documents import (
    MAXIMUM_BYTES,
    Frozen,
    plain,
    read_json,
    read_yaml,
    standing_in,
    unpacked,
    validated,
)
from simulator.question.specs.hardware import HardwareSpec
from simulator.question.specs.model import ModelSpec
from simulator.question.specs.names import SpecKind, spec_file, spec_folder, spec_names


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


@pytest.fixture
def shipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file of a folder that ships, whose values may be remembered."""
    monkeypatch.setattr(documents, "_SHIPPED", (tmp_path,))
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    return written(tmp_path, "a: [1, 0.1, null, true, '\u00e9\U0001f600']\n")


def remembered(file: Path) -> Path:
    return Path(cache_from_source(f"{file}.py")).with_suffix(".data")


def test_what_ships_is_parsed_once(shipped: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = read_yaml(shipped)
    monkeypatch.setattr(yaml_text, "parse_yaml", None)
    assert read_yaml(shipped) == first == {"a": [1, 0.1, None, True, "\u00e9\U0001f600"]}
    assert [path.name for path in shipped.parent.iterdir() if path != shipped] == ["__pycache__"]


@pytest.mark.parametrize(("kind", "model"), [("model", ModelSpec), ("hardware", HardwareSpec)])
def test_a_remembered_spec_is_what_validation_left(kind: SpecKind, model: type[Frozen]) -> None:
    for name in spec_names(kind):
        file = spec_file(kind, name)
        assert file is not None
        spec = validated(name, model, read_yaml(file))
        again = unpacked(marshal.loads(marshal.dumps(plain(spec, packed=True))))  # noqa: S302  its own
        assert again == spec
        assert repr(again) == repr(spec), "tuples are tuples"


def test_a_shipped_spec_is_validated_once(shipped: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = (spec_folder("hardware") / "gb200-nvl72.yaml").read_text(encoding="utf-8")
    first = documents.shipped(written(shipped.parent, text), HardwareSpec)
    monkeypatch.setattr(documents, "validated", None)
    assert documents.shipped(shipped, HardwareSpec) == first
    monkeypatch.undo()
    with pytest.raises(InputError, match="unknown key, did you mean 'title'"):
        documents.shipped(written(shipped.parent, text.replace("title:", "titel:", 1)), HardwareSpec)


@pytest.mark.parametrize(("known", "other"), [(b"HardwareSpec", b"HardwareGone"), (b"title", b"titel")])
def test_a_remembered_spec_of_other_classes_or_fields_is_read_anew(shipped: Path, known: bytes, other: bytes) -> None:
    text = (spec_folder("hardware") / "gb200-nvl72.yaml").read_text(encoding="utf-8")
    first = documents.shipped(written(shipped.parent, text), HardwareSpec)
    (cached,) = (shipped.parent / "__pycache__").iterdir()
    content = cached.read_bytes()
    assert known in content
    changed = content[4:].replace(known, other)
    cached.write_bytes(crc32(changed).to_bytes(4) + changed)
    assert documents.shipped(shipped, HardwareSpec) == first
    assert cached.read_bytes() == content


def test_an_edited_file_wins(shipped: Path) -> None:
    assert read_yaml(shipped) != {"a": 2}
    before = shipped.stat()
    written(shipped.parent, "a: 2\n")
    assert read_yaml(shipped) == {"a": 2}
    written(shipped.parent, "a: 3\n")
    os.utime(shipped, ns=(before.st_atime_ns, before.st_mtime_ns + 1))
    assert read_yaml(shipped) == {"a": 3}
    with standing_in(shipped, "a: 4\n"):
        assert read_yaml(shipped) == {"a": 4}
    assert read_yaml(shipped) == {"a": 3}


def test_what_judges_a_spec_is_part_of_what_is_remembered() -> None:
    files = {file.resolve() for file in documents._READERS}
    assert all(file.is_file() for file in files)
    folder = Path(documents.__file__).parent
    for module in ("hardware", "model", "vision"):
        text = (folder / f"{module}.py").read_text(encoding="utf-8")
        for name in re.findall(r"^from simulator\.question\.([\w.]+) import", text, re.MULTILINE):
            assert (folder.parent / f"{name.replace('.', '/')}.py") in files


@pytest.mark.parametrize(
    "content", [b"", b"\xff\x00", b"[]", *(crc32(data).to_bytes(4) + data for data in (b"", b"(", marshal.dumps([7])))]
)
def test_a_spoilt_cache_is_made_again(content: bytes, shipped: Path) -> None:
    wanted = read_yaml(shipped)
    remembered(shipped).write_bytes(content)
    assert read_yaml(shipped) == wanted
    data = remembered(shipped).read_bytes()
    assert documents._loaded(data)[1] == wanted


def test_where_nothing_may_be_written_files_are_read(shipped: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    wanted = read_yaml(shipped)
    assert not remembered(shipped).exists()
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    (shipped.parent / "__pycache__").write_text("no folder")
    assert read_yaml(shipped) == wanted
    (shipped.parent / "__pycache__").unlink()
    monkeypatch.setattr(documents, "_SHIPPED", (shipped.parent / "other",))
    assert read_yaml(shipped) == wanted
    assert not remembered(shipped).exists(), "a file of the user's leaves nothing beside it"


def test_specs_are_frozen() -> None:
    spec = load_model("llama3.1-8b")
    with pytest.raises(FrozenInstanceError):
        spec.hidden_size = 1  # type: ignore[misc]
    with pytest.raises(FrozenInstanceError):
        del spec.hidden_size
    assert load_model("llama3.1-8b").hidden_size == 4096


def test_a_spec_made_by_hand_names_what_is_unknown_and_what_is_missing() -> None:
    with pytest.raises(
        TypeError, match=r"^ModelSpec\(\) got an unexpected .*'depth'; missing required arguments: '\w+'"
    ):
        ModelSpec(name="mine", architecture="llama", depth=2)  # type: ignore[call-arg]
    with pytest.raises(TypeError) as caught:
        ModelSpec(name="mine", architecture="llama")  # type: ignore[call-arg]
    assert "'hidden_size'" in str(caught.value)
    assert "'name'" not in str(caught.value)
