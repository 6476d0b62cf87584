"""A configuration file that a launch names: beside the recipe, or written by the script itself."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path, PurePath

from simulator.frameworks.documents import Key, beside, keys_of, read_document, written_keys
from simulator.frameworks.home import told
from simulator.frameworks.launch import LaunchCommand


@dataclass(frozen=True, slots=True)
class Configuration:
    """What a configuration file holds."""

    file: str
    """The file that its lines are of: the script, where that writes it."""
    keys: tuple[Key, ...]


def configuration(launch: LaunchCommand, file: str, name: str, line: int) -> Configuration | None:
    """The file as the launch names it; None where the script writes one of several and only the run knows which.

    Raises InputError where it is neither written nor beside the recipe, or is no such file.
    """
    written = launch.written(name)
    if written is not None:
        if written.pieces and not any(piece.known for piece in written.pieces):
            return None
        where = f"{file}:{max(written.line, 1)}: {name[:200]}"
        return Configuration(file, tuple(written_keys(where, name, written)))
    path = beside(file, name if told(name) is not None else _in_own_folder(file, name), line)
    return Configuration(str(path), tuple(keys_of(path, read_document(path))))


def _in_own_folder(file: str, name: str) -> str:
    """A name from the top of a repository, of a file in the recipe's own folder: the launch is started at the top."""
    folders = PurePath(name).parent.parts
    own = Path(file).resolve().parent.parts
    return PurePath(name).name if folders and own[-len(folders) :] == folders else name
