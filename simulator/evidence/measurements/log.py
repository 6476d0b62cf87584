"""The user's own training logs to measured rows, whatever framework wrote them."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain
from pathlib import Path

from simulator.errors import InputError
from simulator.evidence.measurements.log_text import Given, LogLine, log_lines
from simulator.evidence.measurements.megatron_log import is_megatron, read_megatron
from simulator.evidence.measurements.paddle_log import is_paddle, read_paddle
from simulator.evidence.measurements.row import MeasuredRow


def read_log(
    path: Path,
    *,
    hardware: str,
    model: str | None = None,
    options: Mapping[str, str] | None = None,
    warmup: int = 2,
) -> tuple[MeasuredRow, ...]:
    """Return the runs of a log as rows; `table` is the file's name without ending.

    `hardware` is a spec's name or path; logs do not say it. `model` is needed only when no shipped spec has the
    logged shape. `options` adds profile switches that a log does not show. `warmup` is the number of logged steps to
    leave out at the start. Raises InputError naming the line for a log that cannot be read.
    """
    if warmup < 0:
        raise InputError(f"warm-up {warmup}: must not be negative")
    given = Given(table=path.stem, hardware=hardware, model=model, options=dict(options or {}), warmup=warmup)
    lines = log_lines(path)
    skipped: list[LogLine] = []
    for line in lines:
        megatron = is_megatron(line.text)
        if megatron or is_paddle(line.text):
            read = read_megatron if megatron else read_paddle
            return read(chain([line], lines), given)
        skipped = [line]
    last = skipped[0].number if skipped else 1
    raise InputError(
        f"{path}:{last}: no training log up to here; expected '--- arguments ---' (Megatron-LM) or "
        "'Training Configuration Arguments' (PaddleNLP, PaddleFormers)"
    )
