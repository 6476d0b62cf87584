"""Origin of a value, that is who said it and where: `Origin`, `Input`, and remarks on a file that says values.

`--tp 4` is `Input(4, Origin("option"))`; line 12 of a launch script is `Origin("file", "train.sh:12")`; a switch that
nobody said is `Input(False, NOBODY)`. `question.question` has all inputs of a question.
"""

from __future__ import annotations

import shlex
from typing import Any, Final, Literal, get_args

from simulator.late import late_pattern
from simulator.records import NamedTuple, Record

_ByTheUser = Literal["argument", "option", "environment", "settings"]
OriginKind = Literal[_ByTheUser, "file", "search", "stack", "hardware", "framework", "follows", "nobody"]
"""Who says a value: an `argument` of a Python program or cell of a table, an `option` of the command line, a variable
of the `environment`, a repository's own `settings`, a `file` (launch script, configuration, log), a `search` that chose
it, a named `stack` or release, the `hardware`'s spec, the `framework`'s own default; it `follows` from other values; or
`nobody`."""
_BY_THE_USER: Final = frozenset(get_args(_ByTheUser))
Severity = Literal["error", "warning", "note"]
Bound = Literal["", "length", "images", "sharding", "adapters", "experts", "types", "units", "state"]
"""Upper bounds whose favourable reading can be priced: the shortest samples, no images, adapters of rank 1, experts of
4 bits without adapters, no state."""


class Origin(NamedTuple):
    """Who said a value."""

    kind: OriginKind
    where: str = ""
    """File and line, name of the stack or release, name of the variable; empty where the kind says all."""

    @property
    def is_user(self) -> bool:
        """Whether the user said it beside any file."""
        return self.kind in _BY_THE_USER


NOBODY: Final = Origin("nobody")
ARGUMENT: Final = Origin("argument")
OPTION: Final = Origin("option")


class Input(NamedTuple):
    """A value of a question with who said it."""

    value: Any
    origin: Origin


class Place(Record):
    """A line of a file."""

    file: str
    """Name of the file."""
    line: int
    """Line number, from 1."""

    @property
    def origin(self) -> Origin:
        """Origin of a value that the line sets."""
        return Origin("file", f"{self.file}:{self.line}")


class Unknown(Record):
    """A value that only the run's environment knows: `$WORLD_SIZE`, `$1`, `$(command)`."""

    name: str
    """Name as in `--set NAME=VALUE`."""
    place: Place
    affects: tuple[str, ...] = ()
    """Settings that depend on it; empty where none that matters does."""


class Remark(Record):
    """A fact about a recipe that its reader should know: an unknown, repeated or contradictory flag, a broken rule."""

    rule: str
    """Stable id, such as `repeated-flag`."""
    severity: Severity
    """How serious it is; an `error` is a refusal or a missing value."""
    message: str
    """The problem, in one sentence."""
    place: Place | None = None
    fix: str = ""
    """What to do about it; empty where nothing is known."""
    source: str = ""
    """Where the framework checks it: repository, version, file and line."""
    bound: Bound = ""
    """What an upper bound is of, where its most favourable reading is known."""


class RecipeFlag(Record):
    """A flag as it stands in the recipe."""

    spelled: str
    """Name as in the recipe, without leading dashes."""
    text: str
    """Its values, joined by blanks; empty for a switch."""
    place: Place

    @property
    def name(self) -> str:
        """Name as in the framework's tables, with underscores."""
        return self.spelled.replace("-", "_").lower()


_FILE: Final = late_pattern(r"[^\s$`(]+(?:\.(?:json|ya?ml|toml|sh|txt|env|cfg|conf|tmpl|template|in)|/[^\s$`(]*)")
"""Names of files, among those of variables and commands."""


def option_for(name: str, *, is_file: bool = False) -> str:
    """Return the option that supplies an unknown: a value, a file's path, or the nodes of a flag's list of hosts."""
    if name.startswith("--"):
        return "--nodes N"
    return f"--set {shlex.quote(f'{name}=PATH' if is_file or _FILE.fullmatch(name) else f'{name}=VALUE')}"
