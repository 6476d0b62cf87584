"""Remarks on keys of a configuration file that its reader does not take: not priced, or unknown."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from simulator.frameworks.arguments import Arguments
from simulator.frameworks.documents import Key
from simulator.frameworks.flags import table_of
from simulator.frameworks.names import plain


def remark_keys(arguments: Arguments, keys: Iterable[tuple[str, Key]], *frameworks: str) -> None:
    """Remark keys that are not priced or not known; each pair has the key's name in the frameworks' tables."""
    table = table_of(*frameworks)
    aside = Arguments(arguments.file, table, complete=True)
    for name, key in keys:
        flag, text = table.get(plain(name)), " ".join(value.text for value in key.values)
        if flag is not None and flag.is_off(text) and all(value.known for value in key.values):
            continue
        aside.add(name, key.values, key.line, key.file)
        entries = aside.entries[plain(name)]
        entries[-1] = dataclasses.replace(entries[-1], spelled=key.dotted[:80])
    aside.remark_unread()
    arguments.remarks += aside.remarks
