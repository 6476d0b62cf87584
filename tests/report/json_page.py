"""The tables of docs/json.md, made of the schema; `python -m tools.regenerate json` writes them into the page."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from simulator.show.report.schema import ROOTS, schema

PAGE = Path(__file__).resolve().parents[2] / "docs" / "json.md"
MARK = "<!-- keys: python -m tools.regenerate json -->\n"


def tables() -> str:
    return "\n".join(line for name, found in schema()["$defs"].items() for line in _table(name, found))


def _table(name: str, found: dict[str, Any]) -> Iterator[str]:
    yield f"\n{'##' if name in ROOTS else '###'} {name}\n\n{found['description']}\n"
    yield "| key | type | meaning |\n|---|---|---|"
    for key, value in found["properties"].items():
        optional = "" if key in found["required"] else ", or left out"
        yield f"| `{key}` | {_type(value)}{optional} | {value['description'].replace('|', chr(92) + '|')} |"


def _type(value: dict[str, Any]) -> str:
    if "anyOf" in value:
        return " or ".join(map(_type, value["anyOf"]))
    if "$ref" in value:
        name = value["$ref"].rpartition("/")[2]
        return f"[{name}](#{name})"
    if "enum" in value:
        return ", ".join(f"`{word}`" for word in value["enum"])
    if value.get("type") == "array":
        return f"list of {_type(value['items'])}"
    if "additionalProperties" in value:
        return f"{_type(value['additionalProperties'])} by name"
    return str(value.get("type", "anything"))


def generated() -> Mapping[Path, str]:
    return {PAGE: PAGE.read_text(encoding="utf-8").partition(MARK)[0] + MARK + tables() + "\n"}
