"""docs/measure.md says what the code says."""

import ast
import re
import typing
from itertools import pairwise

from simulator.evidence.measurements import rows as module
from simulator.evidence.measurements.rows import COLUMNS, MeasuredRow, RunOutcome
from tests.measurements.shared_tables import ANNOTATIONS, ROOT, ROWS

PAGE = (ROOT / "docs" / "measure.md").read_text(encoding="utf-8")


def documented() -> dict[str, str]:
    """The text under each field."""
    (body,) = (
        node.body
        for node in ast.parse((ROOT / "simulator/evidence/measurements/rows.py").read_text(encoding="utf-8")).body
        if isinstance(node, ast.ClassDef) and node.name == MeasuredRow.__name__
    )
    texts = {}
    for field, text in pairwise(body):
        if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr):
            assert isinstance(field.target, ast.Name)
            assert isinstance(text.value, ast.Constant)
            texts[field.target.id] = " ".join(str(text.value.value).split())
    return texts


def table(heading: str) -> dict[str, str]:
    section = PAGE.split(f"\n## {heading}\n", 1)[1].split("\n## ", 1)[0]
    return dict(re.findall(r"^\| `(\w+)` \| (.*) \|$", section, flags=re.MULTILINE))


def test_every_column_is_documented_in_order() -> None:
    texts = documented()
    assert tuple(texts) == COLUMNS
    shown = table("Columns")
    assert list(shown) == list(COLUMNS)
    assert {name: text.replace("\\|", "|") for name, text in shown.items()} == texts


def test_every_status_is_documented() -> None:
    assert tuple(table("Status")) == typing.get_args(module.RowStatus)


def test_units_are_in_the_names() -> None:
    units = ("_ms", "_s", "_mib", "_gib", "_per_device", "_per_second_per_device")
    numbers = [name for name, hint in typing.get_type_hints(MeasuredRow).items() if hint == float | None]
    assert numbers
    assert all(name.endswith(units) for name in numbers)


def test_the_page_names_tables_and_annotations() -> None:
    for name in (*ROWS, *ANNOTATIONS, *typing.get_args(RunOutcome)):
        assert f"`{name}" in PAGE
