"""What `CONTRIBUTING.md` says of the package is so: its rooms are those of the tree, and units stand in one place."""

import ast
import operator
import re
from collections.abc import Iterator, Mapping

import pytest

from tests.project.tree import ROOT, files_under

FACTORS = {10**6, 10**9, 10**12, 10**15, 1024, 1024**2, 1024**3, 1024**4}
UNITS = "simulator/question/units.py"
_SCALES = (ast.Mult, ast.Div, ast.FloorDiv)
_POWERS = {ast.Pow: operator.pow, ast.LShift: operator.lshift}


def _documented_rooms() -> Mapping[str, set[str]]:
    """Rooms by wing, as the table of layers names them."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").split("| wing | rooms")[1].split("\n\n")[0]
    rows = [line.split("|") for line in text.splitlines() if line.startswith("| `")]
    wings = [(re.findall(r"`(\w+)`", row[1]), row[2]) for row in rows]
    rooms = {names[0]: re.findall(r"(?:^|; |, )`(\w+)`(?=[:,])", cell.strip()) for names, cell in wings}
    found = {wing: set(named) for wing, named in rooms.items() if (ROOT / "simulator" / wing).is_dir()}
    return {"": {name for names, _ in wings for name in names}, **found}


def _rooms(wing: str) -> set[str]:
    """Modules and packages of a wing, or of the package itself; of one without rooms of their own, packages only."""
    paths = [
        path.relative_to(f"simulator/{wing}") for path in files_under("simulator") if wing in (*path.parts[1:2], "")
    ]
    return {path.parts[0].removesuffix(".py") for path in paths if not path.parts[0].startswith(("_", "py.typed"))}


@pytest.mark.parametrize("wing", _documented_rooms())
def test_the_table_of_rooms_is_the_tree(wing: str) -> None:
    told = _documented_rooms()[wing]
    assert told == _rooms(wing) if told else not any((ROOT / "simulator" / wing).glob("*/__init__.py"))


def _value(node: ast.expr) -> float | None:
    """A number as it is written, powers included; None for what is none."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, int | float) else None
    power = _POWERS.get(type(node.op)) if isinstance(node, ast.BinOp) else None
    if power is None or not isinstance(node, ast.BinOp):
        return None
    base, exponent = _value(node.left), _value(node.right)
    return None if base is None or exponent is None else power(base, exponent)


def _conversions(text: str) -> Iterator[int]:
    """Lines that scale something by a factor of units."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.BinOp) and isinstance(node.op, _SCALES):
            sides = (_value(node.left), _value(node.right))
            if any(side in FACTORS for side in sides):
                yield node.lineno


def test_conversions_are_seen() -> None:
    assert list(_conversions("a = 2\nb = a / 1e9\nc = a * 2**30\nd = a * 1000\nhigh = 2**20\n")) == [2, 3]


def test_factors_of_units_stand_in_one_place() -> None:
    paths = [path for path in files_under("simulator", ".py") if path.as_posix() != UNITS]
    texts = {path.as_posix(): (ROOT / path).read_text(encoding="utf-8") for path in paths}
    assert {path: lines for path, text in texts.items() if (lines := list(_conversions(text)))} == {}
