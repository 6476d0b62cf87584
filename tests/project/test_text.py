"""Text that must not be in the tree: unfinished notes, a developer's paths, a registry's address."""

import re

import pytest

from tests.project.tree import ROOT, project_files

# One letter of each word stands in brackets so that this file passes its own test.
FORBIDDEN = {
    "unfinished note": re.compile(r"\b(?:T[O]DO|F[I]XME|X[X]X)\b"),
    "path on one machine": re.compile(r"(?<![\w.~-])/(?:w[o]rk|r[o]ot|h[o]me|U[s]ers)/"),
    "package registry": re.compile(r"py[p]i\.org|python[h]osted\.org|npm[j]s\.(?:org|com)"),
}


def text_files() -> dict[str, str]:
    texts = {}
    for path in project_files():
        data = (ROOT / path).read_bytes()
        if b"\0" not in data:
            texts[path.as_posix()] = data.decode("utf-8")
    return texts


def hits(kind: str, texts: dict[str, str]) -> list[str]:
    return [
        f"{name}:{number}: {line.strip()}"
        for name, text in texts.items()
        for number, line in enumerate(text.splitlines(), start=1)
        if FORBIDDEN[kind].search(line)
    ]


@pytest.mark.parametrize("kind", FORBIDDEN)
def test_tree_holds_no(kind: str) -> None:
    assert hits(kind, text_files()) == []


@pytest.mark.parametrize(
    ("kind", "line"),
    [
        ("unfinished note", "# TO" + "DO: later"),
        ("path on one machine", "open('/ho" + "me/someone/specs.yaml')"),
        ("package registry", "--index-url https://py" + "pi.org/simple"),
    ],
)
def test_pattern_finds(kind: str, line: str) -> None:
    assert hits(kind, {"file": line}) == [f"file:1: {line}"]


def test_text_files_end_with_one_newline() -> None:
    wrong = [name for name, text in text_files().items() if text and not re.search(r"[^\n]\n\Z", text)]
    assert wrong == []
