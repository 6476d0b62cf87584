"""Base of all specs: every number names its source. Holds no unit and no number of its own."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

SourceStatus = Literal["verified", "measured", "assumed"]
"""Certainty of a number.

``verified``: a document that was read states it. ``measured``: a benchmark or
a running framework showed it. ``assumed``: derived, inferred or chosen.
"""

Name = Annotated[str, Field(min_length=1, max_length=100, pattern=r"^[A-Za-z0-9][A-Za-z0-9._+-]*$")]
"""Short identifier: letters, digits and ``. _ + -``."""

_MODEL_ID = r"^[A-Za-z0-9][A-Za-z0-9._+-]*(/[A-Za-z0-9][A-Za-z0-9._-]*)?$"
ModelId = Annotated[str, Field(min_length=1, max_length=200, pattern=_MODEL_ID)]
"""Name of a model, or its id on Hugging Face, `owner/name`."""

Text = Annotated[str, Field(max_length=4000)]
"""Free text for readers."""


def as_tuple(value: object) -> object:
    """Return a single source key as a tuple of one; any other value unchanged."""
    return (value,) if isinstance(value, str) else value


SourceKeys = Annotated[tuple[Name, ...], BeforeValidator(as_tuple), Field(min_length=1, max_length=20)]
"""Keys of the ``sources`` mapping of the same file; YAML may hold one key or a list."""

Sources = Mapping[Name, Annotated[str, Field(min_length=1, max_length=1000)]]
"""Key to description of a document: repository and file, page or listing."""


class Frozen(BaseModel):
    """Base of spec models: immutable, no unknown keys, no non-finite numbers."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        allow_inf_nan=False,
        hide_input_in_errors=True,
        regex_engine="rust-regex",
        defer_build=True,
    )

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """Return pydantic's copy, without the original's cached derived values."""
        copied = super().model_copy(update=dict(update or {}), deep=deep)
        for key in set(copied.__dict__) - set(type(self).model_fields):
            del copied.__dict__[key]
        return copied


class Sourced(Frozen):
    """Base of values that name their source."""

    source: SourceKeys
    """Documents that state it: keys of the file's ``sources``."""
    status: SourceStatus
    """Certainty of the value."""
    note: Text = ""
    """Note on the value for readers."""


def refuse(problems: Iterable[str]) -> None:
    """Raise ValueError, as pydantic expects, with every problem; return where there is none."""
    if listed := "; ".join(problems):
        raise ValueError(listed)


def undefined_sources(model: BaseModel, sources: Mapping[str, str]) -> Iterator[str]:
    """Yield a message on every source key inside ``model`` that is not in ``sources``."""
    defined = ", ".join(sources) or "none"
    for path, part in sourced_parts(model):
        for key in part.source:
            if key not in sources:
                yield f"{path}.source: '{key}' is not a key of sources; defined: {defined}"


def sourced_parts(model: BaseModel, prefix: str = "") -> Iterator[tuple[str, Sourced]]:
    """Yield every sourced value inside ``model`` with its key path."""
    for key, field in type(model).model_fields.items():
        yield from _sourced_in(getattr(model, key), f"{prefix}{field.alias or key}")


def _sourced_in(value: object, path: str) -> Iterator[tuple[str, Sourced]]:
    """Yield the sourced values in one field's value."""
    if isinstance(value, Sourced):
        yield path, value
    if isinstance(value, BaseModel):
        yield from sourced_parts(value, f"{path}.")
    elif isinstance(value, tuple):
        for index, item in enumerate(value):
            yield from _sourced_in(item, f"{path}[{index}]")
