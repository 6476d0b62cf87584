"""Old spellings of switches, which live on for two releases with a warning that names the new one.

`fused_collectives=true` of version 0.4 is dropped with a pointer to `tp_comm_overlap`; `position_bias_tables=true`, a
number since, becomes `position_bias_tables=1`.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Final, NamedTuple


class OldSwitch(NamedTuple):
    """An old spelling of a switch."""

    texts: Mapping[str, str]
    """Values of `name` by the old value, in lower case; empty where it has no effect any more."""
    name: str
    """Switch that holds the meaning now."""
    until: str
    """First version without the old spelling."""


OLD_SWITCHES: Final[Mapping[str, OldSwitch]] = {
    "fused_collectives": OldSwitch({}, "tp_comm_overlap", "0.7"),
    "position_bias_tables": OldSwitch({"true": "1", "false": "0"}, "position_bias_tables", "0.7"),
}
"""Old spellings by the name that they had."""


def current_switches(options: Mapping[str, str]) -> dict[str, str]:
    """Return switches in today's spelling; each old one is warned of (FutureWarning) in one line."""
    current: dict[str, str] = {}
    for name, text in options.items():
        old = OLD_SWITCHES.get(name)
        if old is None or (old.texts and text.lower() not in old.texts):
            current[name] = text
            continue
        meaning = f"{old.name}={old.texts[text.lower()]}" if old.texts else old.name
        verb = "is now" if old.texts else "has no effect any more; see"
        message = f"--option {name}={text[:40]} {verb} {meaning}; the old spelling ends with version {old.until}"
        warnings.warn(message, FutureWarning, stacklevel=2)
        if old.texts:
            current[old.name] = old.texts[text.lower()]
    return current
