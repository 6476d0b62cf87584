"""docs/recipes.md says what the readers do."""

import re

from simulator.question.recipe import Recipe
from tests.recipes.seeds import ROOT

PAGE = (ROOT / "docs" / "recipes.md").read_text(encoding="utf-8")
SOURCES = "\n".join(
    path.read_text(encoding="utf-8")
    for wing in ("answers", "recipes", "frameworks")
    for path in sorted((ROOT / "simulator" / wing).rglob("*.py"))
)


def test_every_remark_is_listed() -> None:
    used = set(re.findall(r"""remark(?:_line)?\(\s*"([a-z-]+)\"""", SOURCES)) | set(
        re.findall(r"""Remark\(\s*"([a-z-]+)\"""", SOURCES)
    )
    for constant in re.findall(r"""[Rr]emark(?:_line)?\(\s*([A-Z_]+),""", SOURCES):
        used |= set(re.findall(rf"""^{constant}: Final = "([a-z-]+)\"""", SOURCES, flags=re.MULTILINE))
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
