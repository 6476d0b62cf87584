"""Edits of a recipe's text: settings changed at their place, or added. Knows no framework."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

_WORD = r"""(?:"[^"\n]*"|'[^'\n]*'|[^\s"'\\)]+)"""
_HEADER = re.compile(r"#|\s*$")


@dataclass(frozen=True, slots=True, kw_only=True)
class RecipeSetting:
    """A setting in the recipe's text."""

    spelled: str
    """Name without dashes."""
    text: str
    line: int
    """Line of its name, from 1."""


def edited(
    text: str, present: Mapping[str, RecipeSetting], changes: Mapping[str, str], dropped: Sequence[str], *, shell: bool
) -> str | None:
    """Return the text with some flags or keys set and others dropped; None where it offers no place for them.

    A flag with an empty value is a switch.
    """
    lines = text.splitlines(keepends=True)
    added: dict[str, str] = {}
    for name, value in changes.items():
        setting = present.get(name)
        if setting is None:
            added[name] = value
        elif value not in ("", setting.text) and not (
            _set_flag(lines, setting, value) if shell else _set_key(lines, setting, value)
        ):
            return None
    for name in dropped:
        if name in present and not _drop(lines, present[name], shell=shell):
            return None
    if added and not (_add_flags(lines, present, added) if shell else _add_keys(lines, present, added)):
        return None
    return "".join(lines)


def with_variable(text: str, name: str, value: str) -> str:
    """Return a script that exports a variable after its first comments; a variable it sets itself is extended."""
    lines = text.splitlines(keepends=True)
    own = re.compile(rf"^(\s*(?:export\s+)?{name}=)([\"']?)([^\"'\s;]*)\2")
    for number, line in enumerate(lines):
        match = own.match(line)
        if match:
            more = f"{match[3]},{value}" if match[3] else value
            lines[number] = own.sub(lambda match, more=more: f"{match[1]}{match[2]}{more}{match[2]}", line)  # type: ignore[misc]  # binds the loop's value
            return "".join(lines)
    first = next((number for number, line in enumerate(lines) if not _HEADER.match(line)), len(lines))
    return "".join([*lines[:first], f"export {name}={value}\n", *lines[first:]])


def _flag(setting: RecipeSetting) -> re.Pattern[str]:
    name = re.escape(setting.spelled)
    return re.compile(rf"(?<![\w.-])(--?{name}|\+{{0,2}}(?:\w+\.)+{name}(?==))(?![\w-])(?:([ =]+)({_WORD}))?")


def _set_flag(lines: list[str], setting: RecipeSetting, value: str) -> bool:
    """Replace a flag's value, in its variable if that is plain text; False where the text does not allow it."""
    line = lines[setting.line - 1]
    match = _flag(setting).search(line)
    if match is None or match[3] is None:
        return False
    variable = re.fullmatch(r"[\"']?\$\{?(\w+)\}?[\"']?", match[3])
    if variable and _set_variable(lines[: setting.line - 1], lines, variable[1], setting.text, value):
        return True
    lines[setting.line - 1] = line[: match.start(3)] + value + line[match.end(3) :]
    return True


def _set_variable(before: Sequence[str], lines: list[str], name: str, old: str, new: str) -> bool:
    pattern = re.compile(rf"((?:^|[\s;]){name}=[\"']?(?:\$\{{\w+:?-)?){re.escape(old)}(?![\w.])")
    numbers = [number for number, line in enumerate(before) if re.search(rf"(?:^|[\s;]){name}=", line)]
    if not numbers or not pattern.search(lines[numbers[-1]]):
        return False
    lines[numbers[-1]] = pattern.sub(lambda match: match[1] + new, lines[numbers[-1]], count=1)
    return True


def _add_flags(lines: list[str], present: Mapping[str, RecipeSetting], added: Mapping[str, str]) -> bool:
    """Add flags or dotted keys after the value of a present one; False without one."""
    words = "".join(
        f" ++{name}={value or 'true'}" if "." in name else f" --{name} {value}".rstrip()
        for name, value in added.items()
    )
    for setting in present.values():
        match = _flag(setting).search(lines[setting.line - 1])
        if match is not None and match[3] is not None:
            line = lines[setting.line - 1]
            lines[setting.line - 1] = line[: match.end(3)] + words + line[match.end(3) :]
            return True
    return False


def _key(setting: RecipeSetting) -> re.Pattern[str]:
    last = re.escape(setting.spelled.rsplit(".", 1)[-1])
    return re.compile(rf"^(\s*[\"']?{last}[\"']?\s*[:=]\s*)({_WORD}?)")


def _set_key(lines: list[str], setting: RecipeSetting, value: str) -> bool:
    line = lines[setting.line - 1]
    match = _key(setting).match(line)
    if match is None or not match[2]:
        return False
    comma = "," if match[2].endswith(",") else ""
    form = _like(match[2].rstrip(","), value)
    lines[setting.line - 1] = match[1] + form + comma + line[match.end(2) :]
    return True


def _like(old: str, new: str) -> str:
    """Return a value in the form of the old one: quoted, or true and false for 1 and 0."""
    if old[:1] in ("'", '"') and new[:1] not in ("'", '"'):
        return f"{old[0]}{new}{old[0]}"
    if old.lower() in ("true", "false") and new in ("0", "1"):
        return "true" if new == "1" else "false"
    return new


def _add_keys(lines: list[str], present: Mapping[str, RecipeSetting], added: Mapping[str, str]) -> bool:
    """Add keys above one of the same section, in its form; False without one."""
    for name, value in added.items():
        section = name.rpartition(".")[0]
        beside = [setting for other, setting in present.items() if other.rpartition(".")[0] == section]
        anchor = next((setting for setting in beside if _key(setting).match(lines[setting.line - 1])), None)
        if anchor is None:
            return False
        line = lines[anchor.line - 1]
        start = re.sub(re.escape(anchor.spelled.rsplit(".", 1)[-1]), name.rsplit(".", 1)[-1], line, count=1)
        match = re.match(r"^(\s*[\"']?\w+[\"']?\s*[:=]\s*)", start)
        if match is None:
            return False
        json = re.match(r"\s*\"", line) is not None
        comma = "," if json else ""
        value = f'"{value}"' if json and not re.fullmatch(r"-?[0-9.]+|true|false|\[.*\]", value) else value  # noqa: PLW2901
        # In the same item of the list, so that the other lines keep their numbers.
        lines[anchor.line - 1] = f"{match[1]}{value}{comma}\n{line}"
    return True


def _drop(lines: list[str], setting: RecipeSetting, *, shell: bool) -> bool:
    line = lines[setting.line - 1]
    match = (_flag(setting).search if shell else _key(setting).match)(line)
    if match is None:
        return False
    if not shell:
        lines[setting.line - 1] = ""
        return True
    value = match[3] is not None and (not setting.text or match[3].strip("\"'") != "\\") and setting.text
    end = match.end(3) if value else match.end(1)
    rest = (line[: match.start()].rstrip(" ") if not line[: match.start()].strip() else line[: match.start()]) + line[
        end:
    ].lstrip(" ")
    lines[setting.line - 1] = "" if rest.strip() == "\\" else rest
    return True
