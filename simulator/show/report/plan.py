"""A plan for people and as CSV: what to book, its layout, a row for each choice, what the figures rest on."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from simulator.question.units import MEGA
from simulator.show.answers.availability import Availability
from simulator.show.answers.plan import Choice, LimitCheck, Plan
from simulator.show.report.estimate import (
    assumptions_line,
    brief_layout,
    command_lines,
    defaults_line,
    peak_line,
    stack_name,
    status_line,
    wrapped,
)
from simulator.show.report.presentation import Presentation, cost_text, days_text
from simulator.show.report.tables import Column, Style, columns_grid, fitting, heading, narrow_line, paragraph
from simulator.show.report.text import (
    amount,
    count_text,
    devices_text,
    fit_text,
    gib,
    grouped,
    host_text,
    layout_text,
    percent,
    probability_text,
    significant,
    step_unit,
    table_csv,
)


def plan_table(plan: Plan, presentation: Presentation, style: Style) -> str:
    """Return the plan for people."""
    width = presentation.width if style == "table" else None
    if presentation.verbosity < 0:
        blocks = [paragraph(wrapped(list(plan_answer(plan))[:1], presentation, style), style)]
    else:
        answer = wrapped(plan_answer(plan), presentation, style)
        best = plan.best
        command = [command_lines(f"Part by part: {plan.command(best)}", width)] if best is not None else []
        blocks = [heading(_question(plan), style), paragraph([*answer, *command], style)]
    left_out: list[Column] = []
    if plan.priced:
        shown, left_out = fitting(list(_columns(plan)), width)
        blocks.append(columns_grid(shown, style))
    if presentation.verbosity >= 0:
        lines = [*(narrow_line(left_out) if presentation.verbosity > 0 else ()), *_footer(plan, presentation)]
        blocks.append(paragraph(wrapped(lines, presentation, style), style))
    return "\n\n".join(block.rstrip("\n") for block in blocks if block) + "\n"


def _question(plan: Plan) -> str:
    text = f"{plan.model}, {count_text(plan.train_tokens)} tokens"
    if plan.deadline_days is not None:
        text += f", in {plan.deadline_days:g} days"
    return text if plan.budget is None else f"{text}, for {grouped(plan.budget)}"


def plan_answer(plan: Plan) -> Iterator[str]:
    """Yield what to book, then its layout and the least nodes of every offer."""
    best = plan.best
    if best is None:
        yield "Nothing that is offered can train it."
    else:
        word = {"yes": "Book", "maybe": "May do", "no": "Nothing keeps the limits; nearest"}[best.verdict]
        yield f"{word}: {choice_text(best)}: {', '.join(_run_words(best))}."
        yield f"Its layout: {_of(best, lambda e: brief_layout(e.layout, e.framework))}."
        yield _of(best, status_line)
        if best.estimate is not None and (host := host_text(best.estimate.memory)) is not None:
            yield f"H{host.removeprefix('h')}."
        yield from measured_lines(plan, best)
    if plan.deadline_days is not None:
        for position, offer in enumerate(plan.offers):
            fewest = plan.least_nodes(position)
            if fewest is None:
                yield f"{offer.hardware}: none of its sizes is in time."
            else:
                maybe = fewest.in_time is not None and fewest.in_time.answer == "maybe"
                chance = f" with probability {limit_text(fewest.in_time).removeprefix('maybe ')}" if maybe else ""
                yield f"{offer.hardware}: in time from {_nodes(fewest)} on{chance}."


def measured_lines(plan: Plan, best: Choice) -> Iterator[str]:
    """Yield the best choice that was measured where the booked one was not, or the reverse."""
    first, measured = plan.first, plan.best_measured
    if not best.measured:
        yield f"No run of {_unmeasured(best)} was measured: its range is as wide as unmeasured devices are missed."
        if measured is not None:
            yield f"Best that was measured: {choice_text(measured)}: {', '.join(_run_words(measured))}."
    elif first is not None and not first.measured:
        yield (
            f"Not booked: {choice_text(first)}: {', '.join(_run_words(first))}. No run of {_unmeasured(first)} was "
            "measured, and its whole range is not better; a run of one node would tell."
        )


def _unmeasured(choice: Choice) -> str:
    estimate = choice.estimate
    if estimate is not None and estimate.provenance.device != "never":
        return f"{estimate.framework} on {choice.hardware}"
    return choice.hardware


def choice_text(choice: Choice) -> str:
    """Return a choice on one line."""
    return f"{_nodes(choice)} of {choice.hardware} ({devices_text(choice.devices)}), {choice.precision}"


def _nodes(choice: Choice) -> str:
    return f"{grouped(choice.nodes)} node{'' if choice.nodes == 1 else 's'}"


def _run_words(choice: Choice) -> Iterator[str]:
    if choice.run is not None:
        yield f"{days_text(choice.run)} days"
        if choice.run.cost is not None:
            yield f"cost {cost_text(choice.run)}"
    for name, limit in (("in time", choice.in_time), ("in budget", choice.in_budget)):
        if limit is not None:
            yield f"{name}: {limit_text(limit)}"


def limit_text(check: LimitCheck | None) -> str:
    """Return whether a limit is kept, a doubtful one with its probability."""
    if check is None:
        return "-"
    if check.answer != "maybe" or check.probability is None:
        return check.answer
    return f"maybe {probability_text(check.probability)} %"


def _columns(plan: Plan) -> Iterator[Column]:
    def column(header: str, cell: Callable[[Choice], str], spare: int = 0, *, is_text: bool = False) -> Column:
        return Column(header=header, cells=tuple(map(cell, plan.priced)), is_text=is_text, spare=spare)

    slowest = max(c.estimate.throughput.step_seconds for c in plan.priced if c.estimate is not None)
    unit, per_second = step_unit(slowest)
    yield column("offer", lambda c: c.hardware, is_text=True)
    yield column("device\nknown", lambda c: _of(c, lambda e: e.provenance.device), 55, is_text=True)
    yield column("nodes", lambda c: str(c.nodes))
    yield column("devices", lambda c: str(c.devices), 60)
    if len({c.precision for c in plan.priced}) > 1:
        yield column("precision", lambda c: c.precision, is_text=True)
    yield column("layout", lambda c: _of(c, lambda e: layout_text(e.layout)), 90, is_text=True)
    yield column("known", lambda c: _of(c, lambda e: e.provenance.status), 8, is_text=True)
    yield column("memory\nGiB", lambda c: _of(c, lambda e: gib(e.memory.device_bytes)), 80)
    yield column("fit\n%", lambda c: _of(c, fit_text), 70)
    yield column(f"step\n{unit}", lambda c: _of(c, lambda e: amount(e.throughput.step_seconds * per_second)), 50)
    if plan.availability is not None:
        yield column("goodput\n%", lambda c: percent(c.goodput.training) if c.goodput else "-", 40)
    yield column("days", lambda c: days_text(c.run) if c.run else "-")
    if any(c.run is not None and c.run.cost is not None for c in plan.priced):
        yield column("cost", lambda c: cost_text(c.run) if c.run else "-", 5)
    if plan.deadline_days is not None:
        yield column("in time", lambda c: limit_text(c.in_time), 10, is_text=True)
    if plan.budget is not None:
        yield column("in budget", lambda c: limit_text(c.in_budget), 12, is_text=True)
    yield column("Pareto", lambda c: "yes" if c.pareto else "", 30, is_text=True)


def _of(choice: Choice, shown: Callable[..., str]) -> str:
    return "-" if choice.estimate is None else shown(choice.estimate)


def _footer(plan: Plan, presentation: Presentation) -> Iterator[str]:
    yield from left_out_lines(plan)
    if plan.priced:
        yield "Figures in brackets are 90 % intervals; yes and no: the whole interval keeps a limit, or breaks it."
        yield "known: the least that runs say of device, stack and layout: measured, between, beyond or never."
    if presentation.verbosity <= 0:
        yield from availability_lines(plan.availability)
        yield "-v: defaults, switches, what each offer rests on. Next: simulate rank, estimate."
        return
    if any(choice.pareto for choice in plan.priced):
        yield "Pareto: no other choice is as fast and as cheap."
    yield from availability_lines(plan.availability)
    yield from defaults_line(dict(presentation.defaults))
    yield from foundation_lines(plan, presentation.verbosity)


def left_out_lines(plan: Plan) -> Iterator[str]:
    """Yield the choices without a layout, with the reasons."""
    yield from (f"{choice_text(choice)}: {choice.reason}." for choice in plan.choices if choice.run is None)


def foundation_lines(plan: Plan, verbosity: int) -> Iterator[str]:
    """Yield the sources of each offer's numbers, shared ones once."""
    shared: dict[str, dict[str, None]] = {}
    notes: dict[str, dict[str, None]] = {}
    for choice in plan.priced:
        if (estimate := choice.estimate) is not None:
            switches = f"Switches: {stack_name(estimate.stack, estimate.framework)}."
            for line in (switches, status_line(estimate), *peak_line(estimate)):
                shared.setdefault(line, {})[choice.hardware] = None
            if (host := host_text(estimate.memory)) is not None:
                shared.setdefault(f"{choice.nodes} nodes, {host}.", {})[choice.hardware] = None
            for note in estimate.provenance.notes:
                notes.setdefault(f"Assumed: {note}", {})[choice.hardware] = None
    lines = {**shared, **notes} if verbosity > 0 else shared
    for line, hardware in sorted(lines.items(), key=lambda pair: pair[0].partition(":")[0] == "Assumed"):
        yield f"{', '.join(hardware)}: {line}"
    if notes and verbosity <= 0:
        yield assumptions_line(len(notes))


def availability_lines(availability: Availability | None) -> Iterator[str]:
    """Yield the inputs of the goodput."""
    if availability is None:
        yield "Days and cost count training steps alone: --availability adds failures, checkpoints and evaluation."
        return
    every = availability.checkpoint_minutes
    interval = "at the interval that loses least" if every is None else f"every {every:g} minutes"
    yield (
        f"Goodput: a device fails every {availability.device_mtbf_hours:,.6g} hours, a restart takes "
        f"{availability.restart_minutes:g} minutes, checkpoints {interval} with "
        f"{availability.checkpoint_bandwidth_per_device / MEGA:.0f} MB/s from a device, evaluation "
        f"{percent(availability.evaluation_share)} % of the steps (docs/plan.md: sources)."
    )


def plan_csv(plan: Plan, _presentation: Presentation) -> str:
    """Return a plan as CSV, a row for each choice; unknown values are empty."""
    rows = plan.rows()
    cells = ([significant(cell) if isinstance(cell, float) else cell for cell in row.values()] for row in rows)
    return table_csv(list(rows[0]), cells)
