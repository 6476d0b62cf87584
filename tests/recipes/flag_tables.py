"""The flag tables of docs/recipes.md, made of the readers' own; `python -m tools.regenerate keys` writes them."""

import re
from collections.abc import Mapping
from pathlib import Path

from simulator.frameworks.flags import Flag, table_of
from simulator.recipes.readers import nemo, torchtitan
from tests.recipes.seeds import ROOT

PAGE = ROOT / "docs" / "recipes.md"

TABLES: Mapping[str, Mapping[str, Flag]] = {
    "NeMo and Megatron-Bridge keys": nemo.FLAGS,
    "torchtitan keys": torchtitan.FLAGS,
    "Trainer flags and DeepSpeed keys": {
        name: flag for name, flag in table_of("transformers", "deepspeed").items() if flag.effect == "priced"
    },
}


def rendered(heading: str) -> str:
    table = TABLES[heading]
    rows = [f"| `{name}` | {flag.about} |" for name, flag in table.items()]
    return "\n".join(["| name | read as |", "|---|---|", *rows])


def generated() -> Mapping[Path, str]:
    text = PAGE.read_text(encoding="utf-8")
    for name in TABLES:
        start, rest = text.split(f"\n### {name}\n\n", 1)
        _, table, end = re.split(r"((?:^\|.*\n)+)", rest, maxsplit=1, flags=re.MULTILINE)
        text = f"{start}\n### {name}\n\n{rest[: rest.index(table)]}{rendered(name)}\n{end}"
    return {PAGE: text}
