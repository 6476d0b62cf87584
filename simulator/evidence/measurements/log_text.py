"""What is known beside a log, and the settings that some trainers print."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from simulator.frameworks.logs import OUT_OF_MEMORY, LogLine, fuller, log_lines, number, whole

__all__ = ["OUT_OF_MEMORY", "LogContext", "LogLine", "Settings", "fuller", "log_lines", "number", "whole"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LogContext:
    """What a log does not say."""

    table: str
    """Name of the table its rows form."""
    hardware: str
    """Name or path of the hardware spec."""
    model: str | None = None
    """Name or path of the model spec; None to find a shipped one by its shape."""
    options: dict[str, str] = field(default_factory=dict)
    """Profile switches that the log does not show."""
    warmup: int = 2
    """Logged steps to leave out at the start, a count."""
    columns: Mapping[str, Any] = field(default_factory=dict)
    """Columns of a row that are known beside the log: of a recipe, of an estimate, or the user's own."""
    fixed: frozenset[str] = frozenset()
    """Those of them that hold whatever the log says."""


@dataclass(frozen=True, slots=True)
class Settings:
    """The configuration that a run printed, with types; errors name the line."""

    said: Mapping[str, tuple[LogLine, str]]
    """Line and text of each value, by name."""
    blank: frozenset[str]
    """Texts that stand for none."""
    true: frozenset[str]
    """Texts of a switch that is on."""

    def text(self, *names: str) -> str:
        """Return the first value there is; empty without one."""
        texts = (self.said[name][1] for name in names if name in self.said)
        return next((text for text in texts if text not in self.blank), "")

    def flag(self, name: str) -> bool:
        """Return a switch."""
        return self.text(name) in self.true

    def count(self, *names: str) -> int | None:
        """Return the first count there is; versions name one thing differently."""
        named = next((name for name in names if self.text(name)), None)
        return None if named is None else whole(self.said[named][0].where, named, self.text(named))

    def precision(self) -> str | None:
        """Return the 16-bit type that is on, fp32 where both are told to be off; None where nothing is told."""
        on = next((name for name in ("bf16", "fp16") if self.flag(name)), None)
        return on or ("fp32" if self.text("bf16") and self.text("fp16") else None)
