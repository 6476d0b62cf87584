"""Variables that a command passes to what it starts: `env A=1`, `sudo`, `srun --export`, `mpirun -x`, `docker -e`."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise, takewhile
from pathlib import PurePath
from typing import Final

from simulator.recipes.shell.values import Piece, Value
from simulator.recipes.shell.wrappers import FARTHEST, SCRIPTS, SHELLS

_APART: Final = frozenset(["ssh", "pdsh", "clush", "docker", "podman", "nerdctl", "kubectl", "ray"])
"""Commands whose program sees no variable of the shell that starts it, unless one is passed by name."""
_APART_UNLESS: Final = {"sudo": re.compile(r"-E|--preserve-env(=.*)?"), "qsub": re.compile(r"-V")}
"""Commands that are so without an option."""
_ONLY_LISTED: Final = frozenset(["srun", "sbatch", "salloc"])
"""Commands whose `--export` lists all variables that are passed, unless it has `ALL`."""
_PASSING: Final = frozenset(["-e", "-x", "-E", "-env", "--env", "--export"])
"""Options with `NAME=VALUE`, or with names of variables to pass, separated by commas."""
_FOR_CONTAINERS: Final = re.compile(r"(?:SINGULARITY|APPTAINER)ENV_(?=[A-Za-z_])")
"""Beginnings of variables that a container sees without them."""
_PAIRS: Final = frozenset(["-genv", "-env"])
"""Options of MPI with a name and a value."""
_FILES: Final = frozenset(["--env-file", "--runtime-env", "--runtime-env-json"])
_PROGRAM: Final = re.compile(rf"python[0-9.]*|torchrun|deepspeed|accelerate|.*\.(?:py|{'|'.join(SCRIPTS)})")
_COMMA: Final = re.compile(r",[ \t]*(?=[A-Za-z_]\w*(?:=|,|$))", re.ASCII)


def changed(environment: Mapping[str, Value], argv: Sequence[Value]) -> dict[str, Value]:
    """Return an environment as the words in front of a program change it for the program."""
    words = list(takewhile(_in_front, argv[:FARTHEST]))
    if not words:
        return dict(environment)
    names = {PurePath(word.text).name for word in words}
    passing = _PASSING | {"-v"} if "qsub" in names else _PASSING
    passed = [(option, part) for option, value in _options(words) if option in passing for part in _listed(value)]
    exported = {part.text for option, part in passed if option == "--export"}
    left_out = bool(names & _APART) or (bool(exported and names & _ONLY_LISTED) and "ALL" not in exported)
    for program in names & _APART_UNLESS.keys():
        left_out |= not any(_APART_UNLESS[program].fullmatch(word.text) for word in words)
    variables = _assigned({} if left_out else dict(environment), words)
    if names & {"singularity", "apptainer"}:
        variables |= {_FOR_CONTAINERS.sub("", name): value for name, value in variables.items()}
    for _, part in passed:
        name, equals, _ = part.text.partition("=")
        if equals and name.isidentifier():
            variables[name] = part.after(len(name) + 1)
        elif name in environment:
            variables[name] = environment[name]
    for number, word in enumerate(words[:-2]):
        if word.text in _PAIRS and words[number + 1].text.isidentifier():
            variables[words[number + 1].text] = words[number + 2]
    return variables


def files_of_variables(argv: Sequence[Value]) -> Iterator[tuple[str, Value]]:
    """Yield the options that name or hold further variables for a program, each with its value."""
    words = list(takewhile(_in_front, argv[:FARTHEST]))
    return ((option, value) for option, value in _options(words) if option in _FILES)


def _in_front(word: Value) -> bool:
    name = PurePath(word.text).name
    return name not in SHELLS and (word.text[:1] == "-" or "=" in word.text or _PROGRAM.fullmatch(name) is None)


def _options(words: Sequence[Value]) -> Iterator[tuple[str, Value]]:
    """Yield the options of words, `--name=value` or `--name value`, each with its value."""
    for word, after in pairwise([*words, Value()]):
        name, equals, _ = word.text.partition("=")
        if name[:1] == "-":
            yield (name, word.after(len(name) + 1)) if equals else (name, after)


def _listed(word: Value) -> list[Value]:
    """Return the parts of a list with commas."""
    parts: list[list[Piece]] = [[]]
    for piece in word.pieces:
        first, *more = _COMMA.split(piece.text) if piece.known else [piece.text]
        parts[-1].append(dataclasses.replace(piece, text=first))
        parts.extend([dataclasses.replace(piece, text=text)] for text in more)
    return [Value(tuple(part)) for part in parts]


def _assigned(variables: dict[str, Value], words: Sequence[Value]) -> dict[str, Value]:
    """Return variables as `env -u NAME`, `env -i` and `env NAME=VALUE` leave them; `sudo` assigns likewise."""
    assigns = False
    for number, word in enumerate(words):
        name, equals, _ = word.text.partition("=")
        if PurePath(word.text).name in ("env", "sudo"):
            assigns = True
        elif not assigns:
            continue
        elif equals and name.isidentifier():
            variables[name] = word.after(len(name) + 1)
        elif name in ("-i", "-", "--ignore-environment"):
            variables.clear()
        elif name == "--unset" or words[number - 1].text in ("-u", "--unset"):
            variables.pop(word.text.rpartition("=")[2], None)
        else:
            assigns = name[:1] == "-"
    return variables
