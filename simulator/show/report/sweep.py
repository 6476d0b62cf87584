"""Sweep as text: how many questions were answered, and why others were not; `answers.sweep` writes the rows."""

from __future__ import annotations

from simulator.answers.sweep import Sweep
from simulator.show.report.presentation import Presentation
from simulator.show.report.text import grouped

_SAID = {
    "fits": "has a layout that is likely enough to fit",
    "risky": "fits, but less likely than asked for",
    "starved": "fits too near capacity",
    "does_not_fit": "fits in no layout",
    "no_layout": "no layout keeps the rules",
    "refused": "cannot be priced; the row says why",
    "failed": "a defect of the simulator: please report the row",
}


def sweep_table(sweep: Sweep, shown: Presentation) -> str:
    """Return the outcomes of the questions, and the file of their rows."""
    rows = [[name, grouped(count), _SAID[name]] for name, count in sweep.outcomes.items()]
    table = shown.grid(["outcome", "questions", "what it means"], rows, (0, 2))
    return f"{table}\n\nRows: {sweep.table}\n" if sweep.table else f"{table}\n"


def speed_line(sweep: Sweep) -> str:
    """Return the number of questions that were priced this time, and the speed."""
    if not sweep.priced:
        return "nothing was left to price"
    speed = sweep.priced / max(sweep.elapsed_seconds, 1e-3)
    text = f"{grouped(sweep.priced)} of {grouped(sweep.questions)} questions priced in {sweep.elapsed_seconds:.1f} s"
    return f"{text}, {speed:.1f} a second"
