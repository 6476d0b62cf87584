"""Families of models that are priced, by Hugging Face's `model_type`: the entries of families.yaml."""

import re
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Final

from pydantic import AfterValidator

from simulator.errors import did_you_mean

FAMILIES_FILE: Final = Path(__file__).with_name("families") / "families.yaml"
"""Table of families."""


@lru_cache(maxsize=1)
def architectures() -> tuple[str, ...]:
    """Return the `model_type` of every family, read from the heads of the table's entries without parsing it."""
    text = FAMILIES_FILE.read_text(encoding="utf-8")
    return tuple(re.findall(r"^([a-z][a-z0-9_.-]*):", text, re.MULTILINE))


def _known(name: str) -> str:
    names = architectures()
    if name not in names:
        near = did_you_mean(name, names) or f"; known: {', '.join(names)}"
        raise ValueError(f"'{name[:60]}' is not a family that is priced{near}")
    return name


Architecture = Annotated[str, AfterValidator(_known)]
"""Hugging Face ``model_type`` of the family the model belongs to."""
