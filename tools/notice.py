"""NOTICE, made of the sources that specs and measured tables name: `python -m tools.regenerate notice` writes it."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Mapping
from itertools import takewhile
from pathlib import Path
from typing import Final

from simulator.question.specs.documents import read_yaml

ROOT: Final = Path(__file__).resolve().parents[1]
NOTICE: Final = ROOT / "NOTICE"
_HEAD: Final = """simulate

Its data files (hardware_specs, model_specs and calibration in a checkout, simulator/_data in a wheel) hold figures that
others measured or published: sizes of models, rates of devices, speed and memory of training runs. Figures alone were
taken, no text, code or weights. Below, every file with the documents that it names; what a document states is
its publisher's. Names of products are trademarks of their owners.
"""
_PROJECT: Final = re.compile(r"(?i)no document|this project|^note$")
"""Sources that are nobody's publication."""


def generated() -> Mapping[Path, str]:
    """The file with the text it should have."""
    return {NOTICE: "\n".join([_HEAD, *_specs("hardware_specs"), *_specs("model_specs"), *_tables()])}


def _specs(folder: str) -> Iterator[str]:
    """Every spec of a folder with the documents behind its numbers."""
    yield f"{folder}\n"
    for file in sorted((ROOT / folder).glob("*.yaml")):
        sources = {key: text for key, text in read_yaml(file)["sources"].items() if key != "note"}
        yield f"{file.name}: {'; '.join(text for text in sources.values() if not _PROJECT.search(text))}"
    yield ""


def _tables() -> Iterator[str]:
    """Every table of measured runs with what its rows' sources begin with."""
    yield "calibration/measured\n"
    for file in sorted((ROOT / "calibration" / "measured").rglob("*.csv")):
        with file.open(encoding="utf-8", newline="") as stream:
            named = dict.fromkeys(row["source"] for row in csv.DictReader(stream))
        yield f"{file.relative_to(ROOT / 'calibration' / 'measured').as_posix()}: {_shared(list(named))}"
    yield ""


def _shared(texts: list[str]) -> str:
    """What texts have in common at their beginning, in whole words; where that is nothing, each."""
    words = takewhile(lambda same: len(set(same)) == 1, zip(*(text.split(" ") for text in texts), strict=False))
    beginning = " ".join(same[0] for same in words).rstrip(",;:(+ ")
    return beginning or "; ".join(dict.fromkeys(re.split(r"[:;(]| \+ ", text)[0].strip() for text in texts))
