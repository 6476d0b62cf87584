"""Places and names of the shipped specs. Reads none of them."""

from pathlib import Path
from typing import Final, Literal

SpecKind = Literal["hardware", "model"]
"""Kind of spec."""

_PACKAGE: Final = Path(__file__).resolve().parents[2]
_SUFFIX: Final = ".yaml"
CONFIG_FILE: Final = "config.json"
"""File name Hugging Face gives a model's configuration."""


def data_folder(folder: str) -> Path:
    """Return one of the top-level folders of data.

    A wheel carries it inside the package, under ``_data``; in a checkout it
    stands beside the package.
    """
    installed = _PACKAGE / "_data" / folder
    return installed if installed.is_dir() else _PACKAGE.parent / folder


def spec_folder(kind: SpecKind) -> Path:
    """Return the folder of the shipped specs of one kind."""
    return data_folder(f"{kind}_specs")


def spec_file(kind: SpecKind, name: str) -> Path | None:
    """Return the file of the shipped spec called ``name``, or None if there is none."""
    if not name or len(name) > 100 or name.startswith(".") or not _is_plain(name):
        return None
    file = spec_folder(kind) / f"{name}{_SUFFIX}"
    return file if file.is_file() else None


def spec_names(kind: SpecKind) -> tuple[str, ...]:
    """Return the names of all shipped specs of one kind, in order."""
    return tuple(sorted(file.name.removesuffix(_SUFFIX) for file in spec_folder(kind).glob(f"*{_SUFFIX}")))


def model_names() -> tuple[str, ...]:
    """Return the names of the shipped models, in order."""
    return spec_names("model")


def hardware_names() -> tuple[str, ...]:
    """Return the names of the shipped hardware, in order."""
    return spec_names("hardware")


def _is_plain(name: str) -> bool:
    """Tell whether ``name`` can be a file's stem on every system, without leading anywhere else."""
    return name.isascii() and all(mark.isalnum() or mark in "._+-" for mark in name)
