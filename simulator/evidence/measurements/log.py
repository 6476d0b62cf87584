"""The user's own training logs to measured rows, whatever framework wrote them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from simulator.errors import InputError
from simulator.evidence.measurements.log_text import LogContext, LogLine, log_lines
from simulator.evidence.measurements.megatron_log import is_megatron, read_megatron
from simulator.evidence.measurements.paddle_log import is_paddle, read_paddle
from simulator.evidence.measurements.row import MeasuredRow
from simulator.evidence.measurements.step_logs import FORMATS, Format, read_steps


def read_log(  # noqa: PLR0913  what may be known beside a log
    path: Path,
    *,
    hardware: str,
    model: str | None = None,
    options: Mapping[str, str] | None = None,
    warmup: int = 2,
    columns: Mapping[str, Any] | None = None,
    fixed: Collection[str] = (),
) -> tuple[MeasuredRow, ...]:
    """Return the runs of a log as rows; `table` is the file's name without ending.

    `hardware` is a spec's name or path; logs do not say it. `model` is needed only when neither a shipped spec nor the
    log gives the shape whole. `options` adds profile switches that a log does not show. `warmup` is the number of
    logged steps to leave out at the start. `columns` are columns of a row that are known beside the log; those named
    in `fixed` hold whatever it says. Raises InputError naming the line for a log that cannot be read, or listing
    everything that is still missing.
    """
    if warmup < 0:
        raise InputError(f"warm-up {warmup}: must not be negative")
    given = LogContext(
        table=path.stem,
        hardware=hardware,
        model=model,
        options=dict(options or {}),
        warmup=warmup,
        columns=dict(columns or {}),
        fixed=frozenset(fixed),
    )
    return _reader(path)(log_lines(path), given)


def _reader(path: Path) -> Callable[[Iterable[LogLine], LogContext], tuple[MeasuredRow, ...]]:
    """What reads the log: of the trainers whose lines it holds, the one that says most of its runs."""
    forms: dict[str, Format] = {}
    last = 1
    paddle = False
    for line in log_lines(path):
        last = line.number
        if is_megatron(line.text):
            return read_megatron
        paddle = paddle or is_paddle(line.text)
        for form in FORMATS:
            if form.name not in forms and form.begins.search(line.text):
                forms[form.name] = form
    if paddle:
        return read_paddle
    found = next((form for form in FORMATS if form.name in forms), None)
    if found is None:
        raise InputError(
            f"{path}:{last}: no training log up to here; expected '--- arguments ---' or iterations (Megatron-LM), "
            "'Training Configuration Arguments' (PaddleNLP, PaddleFormers), or lines as "
            f"{', '.join(form.name for form in FORMATS)} write them"
        )
    return partial(read_steps, form=found)
