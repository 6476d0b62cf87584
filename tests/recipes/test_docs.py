"""docs/recipes.md says what the readers do."""

import re

import pytest

from simulator.recipes.recipe import Recipe
from tests.recipes.flag_tables import TABLES, rendered
from tests.recipes.seeds import ROOT
from tools import flags_page

PAGE = (ROOT / "docs" / "recipes.md").read_text(encoding="utf-8")
SOURCES = "\n".join(
    path.read_text(encoding="utf-8")
    for wing in ("recipes", "frameworks")
    for path in sorted((ROOT / "simulator" / wing).rglob("*.py"))
)


@pytest.mark.parametrize("heading", TABLES)
def test_flag_tables_are_the_readers_own(heading: str) -> None:
    section = PAGE.split(f"\n### {heading}\n", 1)[1].split("\n### ", 1)[0].split("\n## ", 1)[0]
    assert rendered(heading) in section, "run `python -m tests.recipes.flag_tables`"


def test_the_page_of_flags_is_current() -> None:
    assert flags_page.PAGE.read_text(encoding="utf-8") == flags_page.page(), "run `python -m tools.flags_page`"


def test_every_remark_is_listed() -> None:
    used = set(re.findall(r"""remark\(\s*"([a-z-]+)\"""", SOURCES)) | set(
        re.findall(r"""Remark\(\s*"([a-z-]+)\"""", SOURCES)
    )
    section = PAGE.split("\n## Remarks\n", 1)[1].split("\n## ", 1)[0]
    assert set(re.findall(r"^\| `([a-z-]+)` \|", section, flags=re.MULTILINE)) == used


def test_dialects_are_listed() -> None:
    dialects = set(
        re.findall(
            r'"((?:megatron|paddle|nemo|torchtitan|deepspeed|trainer|primus|swift|llamafactory|neox)-(?:shell|yaml|json|toml))"',
            SOURCES,
        )
    )
    assert dialects
    assert all(f"`{dialect}`" in PAGE for dialect in dialects)
    assert Recipe.__doc__
