"""Plan as text for people and as CSV: what to book, its layout, a row for each choice; the outcome of a sweep.

    Book: 16 nodes of h800-sxm-80g (128 devices), bf16: 22.1 (18.0-27.1) days, cost 142k (116k-175k), in time: yes.

Days and cost are the likeliest and the range of likely ones; a limit is compared with both ends of the range.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from simulator.answers.plan import Availability, Choice, LimitCheck, Plan
from simulator.answers.sweep import Sweep
from simulator.cost.pricing.estimate import Estimate
from simulator.files import read_words
from simulator.question.units import MEGA
from simulator.show.report import estimate as single
from simulator.show.report import presentation as tables
from simulator.show.report import text as say
from simulator.show.report.presentation import Column, Presentation


def plan_table(plan: Plan, shown: Presentation) -> str:
    """Return the plan for people."""
    best, answer = plan.best, (tables.filled(line, shown.line) for line in plan_answer(plan))
    if shown.verbosity < 0:
        blocks = [shown.sentences([next(answer)])]
    else:
        command = [] if best is None else [tables.command(f"Part by part: {plan.command(best)}", shown.line)]
        title = f"{plan.model}, {say.count_text(plan.train_tokens)} tokens"
        title += "" if plan.deadline_days is None else f", in {plan.deadline_days:g} days"
        title += "" if plan.budget is None else f", for {say.grouped(plan.budget)}"
        blocks = [shown.heading(title), shown.sentences([*answer, *command])]
    left_out: list[Column] = []
    if plan.priced:
        fits, left_out = tables.fitting(list(plan_columns(plan)), shown.line)
        blocks.append(shown.columns(fits))
    if shown.verbosity >= 0:
        narrow = tables.narrow_line(left_out) if shown.verbosity > 0 else ()
        blocks.append(shown.prose([*narrow, *_footer(plan, shown)]))
    return tables.joined(blocks)


def plan_answer(plan: Plan) -> Iterator[str]:
    """Yield what to book, then its layout and the least nodes of every offer."""
    best = plan.best
    if best is None:
        yield "No offer has a layout that is likely enough to fit."
    else:
        word = {"yes": "Book", "maybe": "May do", "no": "Nothing keeps the limits; nearest"}[best.verdict]
        yield f"{word}: {_with_run(best)}."
        if best.estimate is not None:
            figures = f"{say.need_text(best.estimate)}, {say.grouped(say.cluster_speed(best.estimate))} tokens/s"
            yield f"Its layout: {single.brief_layout(best.estimate.layout, best.estimate.framework)}: {figures}."
            yield from say.caution_lines(best.estimate)
            yield single.status_line(best.estimate)
            if (host := say.host_text(best.estimate.memory)) is not None:
                yield f"H{host.removeprefix('h')}."
        if (sooner := plan.sooner) is not None and sooner.run is not None and best.run is not None:
            share = sooner.run.days / best.run.days
            days = "half" if abs(share - 0.5) < _ABOUT_HALF else f"{say.percent(share)} % of"
            yield f"About the same cost, {days} the days: {_with_run(sooner)}."
        yield from _equal_line(plan)
        yield from _measured_lines(plan, best)
    if plan.deadline_days is not None:
        for position in range(len(plan.offers)):
            fewest = plan.least_nodes(position)
            taken = next(choice.hardware for choice in plan.choices if choice.offer == position)
            if fewest is None:
                yield f"{taken}: none of its sizes is in time."
            else:
                maybe = fewest.in_time is not None and fewest.in_time.answer == "maybe"
                chance = f" with probability {limit_text(fewest.in_time).removeprefix('maybe ')}" if maybe else ""
                yield f"{taken}: in time from {say.counted(fewest.nodes, 'node')} on{chance}."


_ABOUT_HALF = 0.05


def _equal_line(plan: Plan) -> Iterator[str]:
    """Yield the choices of other offers that may cost as little, and the surer one of all."""
    if not plan.equal:
        return
    best, surer = plan.best, plan.surer
    figure = "As soon" if best is None or best.run is None or best.run.cost is None else "As cheap"
    equal = ", ".join(f"{say.counted(c.nodes, 'node')} of {c.hardware}" for c in plan.equal)
    text = f"{figure} within what is known: {equal}"
    if best is not None and best.estimate is not None and surer is not None and surer.estimate is not None:
        text += single.surer_text(best.estimate, surer.estimate, _choice_text(surer))
    yield f"{text}."


def _measured_lines(plan: Plan, best: Choice) -> Iterator[str]:
    """Yield the best choice that was measured where the booked one was not, or the reverse."""
    first, measured = plan.first, plan.best_measured
    if not best.measured:
        yield f"No run of {_unmeasured(best)} was measured: its range is as wide as unmeasured devices are missed."
        if measured is not None:
            yield f"Best that was measured: {_with_run(measured)}."
    elif first is not None and not first.measured:
        yield (
            f"Not booked: {_with_run(first)}. No run of {_unmeasured(first)} was measured, and its whole range is not "
            "better; a run of one node would tell."
        )


def _unmeasured(choice: Choice) -> str:
    estimate = choice.estimate
    if estimate is not None and estimate.provenance.device != "never":
        return f"{estimate.framework} on {choice.hardware}"
    return choice.hardware


def _choice_text(choice: Choice) -> str:
    nodes, devices = say.counted(choice.nodes, "node"), say.counted(choice.devices, "device")
    return f"{nodes} of {choice.hardware} ({devices}), {choice.precision}"


def _with_run(choice: Choice) -> str:
    """Return a choice with its days and cost, and whether they keep the limits."""
    words = []
    if choice.run is not None:
        words.append(f"{tables.days_text(choice.run)} days")
        words += [f"cost {tables.cost_text(choice.run)}"] if choice.run.cost is not None else []
    limits = (("in time", choice.in_time), ("in budget", choice.in_budget))
    words += [f"{name}: {limit_text(limit)}" for name, limit in limits if limit is not None]
    return f"{_choice_text(choice)}: {', '.join(words)}"


def limit_text(check: LimitCheck | None) -> str:
    """Return whether a limit is kept, a doubtful one with its probability."""
    if check is None:
        return "-"
    if check.answer != "maybe" or check.probability is None:
        return check.answer
    return f"maybe {say.probability_text(check.probability)} %"


def plan_columns(plan: Plan) -> Iterator[Column]:
    """Yield a column for each figure of the choices that can train, in order."""

    def column(header: str, cell: Callable[[Choice], str], spare: int = 0, *, is_text: bool = False) -> Column:
        return Column(header, tuple(map(cell, plan.priced)), is_text, spare)

    def of(cell: Callable[[Estimate], str]) -> Callable[[Choice], str]:
        return lambda choice: "-" if choice.estimate is None else cell(choice.estimate)

    slowest = max(c.estimate.throughput.step_seconds for c in plan.priced if c.estimate is not None)
    unit, per_second = say.step_unit(slowest)
    yield column("offer", lambda c: c.hardware, is_text=True)
    yield column("device\nknown", of(lambda e: e.provenance.device), 55, is_text=True)
    yield column("nodes", lambda c: str(c.nodes))
    yield column("devices", lambda c: str(c.devices), 60)
    if len({c.precision for c in plan.priced}) > 1:
        yield column("precision", lambda c: c.precision, is_text=True)
    yield column("layout", of(lambda e: say.layout_text(e.layout)), 90, is_text=True)
    yield column("known", of(lambda e: e.provenance.status), 12, is_text=True)
    yield column("memory\nGiB", of(lambda e: say.gib(e.memory.device_bytes)), 80)
    yield column("fit\n%", of(say.fit_text), 70)
    yield column(f"step\n{unit}", of(lambda e: say.amount(e.throughput.step_seconds * per_second)), 50)
    if plan.availability is not None:
        yield column("goodput\n%", lambda c: say.percent(c.goodput.training) if c.goodput else "-", 40)
    yield column("days", lambda c: tables.days_text(c.run) if c.run else "-")
    if any(c.run is not None and c.run.cost is not None for c in plan.priced):
        yield column("cost", lambda c: tables.cost_text(c.run) if c.run else "-", 5)
    if plan.deadline_days is not None:
        yield column("in time", lambda c: limit_text(c.in_time), 6, is_text=True)
    if plan.budget is not None:
        yield column("in budget", lambda c: limit_text(c.in_budget), 7, is_text=True)
    yield column("Pareto", lambda c: "yes" if c.pareto else "", 30, is_text=True)


def _footer(plan: Plan, shown: Presentation) -> Iterator[str]:
    yield from left_out_lines(plan)
    estimates = {choice.hardware: choice.estimate for choice in plan.priced if choice is not plan.best}
    for name, estimate in estimates.items():
        if estimate is not None and estimate.other_memory and (plan.best is None or name != plan.best.hardware):
            yield f"{name}: {estimate.provenance.cautions[0]}."
    if plan.priced:
        yield "Figures in brackets are 90 % intervals; yes and no: the whole interval keeps a limit, or breaks it."
        yield "known: the least that runs say of device, stack and layout: measured, between, beyond or never."
    if shown.verbosity <= 0:
        yield from availability_lines(plan.availability)
        yield "-v: defaults, switches, what each offer rests on. Next: simulate rank, estimate."
        return
    if any(choice.pareto for choice in plan.priced):
        yield "Pareto: no other choice is as fast and as cheap."
    yield from availability_lines(plan.availability)
    yield from single.defaults_line(shown.defaults)
    yield from foundation_lines(plan)


def left_out_lines(plan: Plan) -> Iterator[str]:
    """Yield the choices without a layout, with the reasons."""
    yield from (f"{_choice_text(choice)}: {choice.reason}." for choice in plan.choices if choice.run is None)


def foundation_lines(plan: Plan) -> Iterator[str]:
    """Yield the sources of each offer's numbers, shared ones once, assumptions last."""
    shared: dict[str, dict[str, None]] = {}
    for choice in plan.priced:
        if (estimate := choice.estimate) is not None:
            switches = f"Switches: {single.stack_name(estimate.stack, estimate.framework)}."
            host = say.host_text(estimate.memory)
            lines = [switches, single.status_line(estimate), *single.peak_line(estimate)]
            lines += [] if host is None else [f"{choice.nodes} nodes, {host}."]
            for line in (*lines, *(f"Assumed: {note}" for note in estimate.provenance.notes)):
                shared.setdefault(line, {})[choice.hardware] = None
    for line, hardware in sorted(shared.items(), key=lambda pair: pair[0].startswith("Assumed:")):
        yield f"{', '.join(hardware)}: {line}"


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
        f"{say.percent(availability.evaluation_share)} % of the steps (docs/plan.md: sources)."
    )


def plan_csv(plan: Plan, _shown: Presentation) -> str:
    """Return a plan as CSV, a row for each choice; unknown values are empty."""
    rows = plan.rows()
    cells = ([say.significant(cell) if isinstance(cell, float) else cell for cell in row.values()] for row in rows)
    return say.table_csv(list(rows[0]), cells)


def sweep_table(sweep: Sweep, shown: Presentation) -> str:
    """Return the outcomes of the questions, and the file of their rows."""
    meanings = read_words("outcomes")
    rows = [[name, say.grouped(count), meanings[name]] for name, count in sweep.outcomes.items()]
    table = shown.grid(["outcome", "questions", "what it means"], rows, (0, 2))
    idle = [f"{text}: {say.counted(count, 'question')}." for text, count in sweep.without_effect.items()]
    rows_in = [f"Rows: {sweep.table}"] if sweep.table else []
    return tables.joined([table, *([shown.prose(idle[:_MOST_IDLE])] if idle else []), *rows_in])


_MOST_IDLE = 3  # settings without effect that are named


def speed_line(sweep: Sweep) -> str:
    """Return the number of questions that were priced this time, and the speed."""
    if not sweep.priced:
        return "nothing was left to price"
    speed = sweep.priced / max(sweep.elapsed_seconds, 1e-3)
    text = f"{say.grouped(sweep.priced)} of {say.grouped(sweep.questions)} questions priced"
    return f"{text} in {sweep.elapsed_seconds:.1f} s, {speed:.1f} a second"
