"""Ranking as text for people: the fastest layout in words, a row for each layout, what the numbers rest on.

    Fastest: TP2 PP1 DP8, micro batch 1, no recompute: 151,208 tokens/s (± 9 %), 45.1 % MFU, ...
    #  TP  PP  DP  mbs  re-comp.  tokens/s  MFU %   GiB

A line that is too short for all columns loses those that others tell (`Column.spare`), the highest first.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence

from simulator.answers.run import TrainingRun, ranking_command
from simulator.cost.pricing.estimate import Estimate
from simulator.question.frameworks.stacks import PROFILES
from simulator.question.scenario.layout import FIELDS, MICRO_BATCH_SIZES
from simulator.question.units import to_gib
from simulator.search.alternatives import MIN_CHANGE
from simulator.search.space import FewestNodes, Ranking
from simulator.show.report import estimate as single
from simulator.show.report import presentation as tables
from simulator.show.report import text as say
from simulator.show.report.presentation import Column, Presentation

_NEXT = "-v: command, defaults, search. Next: simulate emit, explain; --format html."
_NEXT_OF_NOTHING = "-v: defaults, search, assumptions. Next: simulate explain, plan."
_STARVED_SHOWN = 3
_LEAST_GAIN = 0.01  # smallest relative gain of speed for which a layout that may not fit is named


def ranking_table(ranking: Ranking, shown: Presentation) -> str:
    """Return the ranking for people: question, table, and what to know about it."""
    blocks, counts = [], ranking.counts
    best = ranking.estimates[0] if ranking.estimates else None
    if shown.verbosity >= 0:
        blocks.append(shown.question_block(ranking_question(ranking)))
    if best is None:
        blocks.append(_nothing_fits(ranking, shown))
        lines = [*_counts_line(ranking), *map(single.basis_line, _priced(ranking)[:1]), _NEXT_OF_NOTHING]
    else:
        if shown.verbosity >= 0:
            answer = [
                *fewest_lines(ranking, shown),
                fastest_line(best, shown),
                *say.caution_lines(best),
                *say.open_lines(best),
                *equal_lines(ranking),
            ]
            blocks.append(shown.prose([*answer, *list(_risky_lines(ranking))[:1]]))
        columns, legend = _fitted(ranking.estimates, shown)
        blocks.append("\n".join([shown.columns(columns), *([shown.prose(legend)] if legend else [])]))
        more = f"{say.grouped(counts.feasible)} of {say.grouped(counts.evaluated)} layouts fit: --top N, --variants."
        lines = [single.basis_line(best), more, _NEXT]
        if shown.verbosity > 0 and (command := ranking_command(ranking)):
            blocks.append(shown.sentences([tables.command(f"Row 1: {command}", shown.line)]))
        if shown.verbosity >= 0:
            several = ranking.fewest is not None and len(ranking.fewest.counts) > 1
            if ranking.fewest is not None and several:
                blocks.append(shown.grid(_COUNT_HEAD, _count_rows(ranking.fewest, best.framework), (1, 4)))
            if not several or shown.verbosity > 0:
                blocks.append(single.launch_block([*single.switch_rows(best), *_other_rows(ranking, best)], shown))
    if shown.verbosity >= 0:
        blocks.append(shown.prose(ranking_footer(ranking, shown) if shown.verbosity > 0 else lines))
    return tables.joined(blocks)


def ranking_question(ranking: Ranking) -> str:
    """Return the question, on one line."""
    query, priced = ranking.query, _priced(ranking)
    devices, nodes = query.get("devices") or (priced[0].devices if priced else None), query.get("nodes")
    cluster = str(query.get("hardware"))
    if isinstance(nodes, int) and nodes:
        cluster = f"{say.counted(nodes, 'node')} of {cluster}"
    if isinstance(devices, int) and devices:
        cluster += f" ({say.counted(devices, 'device')})"
    text = f"{query.get('model')} on {cluster}: {query.get('precision')}"
    if query.get("lora_rank"):
        text += f", {single.adapters_text(query['lora_rank'], ranking.question.options)}"
    batch = say.batch_text(
        query.get("global_batch_size"), query.get("seq_length"), next((e.lengths for e in priced), None)
    )
    framework = str(query.get("framework"))
    if query.get("stack"):
        release = next((estimate.provenance.release for estimate in priced), "")
        framework = single.switches_text(str(query["stack"]), framework, release)
    return f"{text}, {batch}, {framework}"


def _priced(ranking: Ranking) -> tuple[Estimate, ...]:
    return (*ranking.estimates, *ranking.risky, *ranking.starved, *filter(None, [ranking.nearest]))


def _fitted(estimates: Sequence[Estimate], shown: Presentation) -> tuple[list[Column], list[str]]:
    """Return the columns that fit, and the meaning of codes.

    Before figures are left out, columns of sizes are joined and long texts become codes.
    """
    sizes, others = [*_size_columns(estimates)], [*_text_columns(estimates), *_figure_columns(estimates, shown)]
    fits, left_out = tables.fitting([*sizes, *others], shown.line)
    legend: list[str] = []
    for longest, close in _NARROWER:
        short = [tables.coded(c, c.name[0].upper(), longest) if c.is_text else (c, []) for c in others]
        beside = [tables.joined_columns(sizes)] if close else sizes
        narrow, gone = tables.fitting([*beside, *(column for column, _ in short)], shown.line)
        if _needed(gone) < _needed(left_out):
            fits, left_out, headers = narrow, gone, {column.header for column in narrow}
            legend = [line for column, lines in short if column.header in headers for line in lines]
    return fits, [*legend, *(tables.narrow_line(left_out) if shown.verbosity > 0 else ())]


def ranking_columns(estimates: Sequence[Estimate], shown: Presentation) -> list[Column]:
    """Return a column for each size and figure of the layouts, in order."""
    return [*_size_columns(estimates), *_text_columns(estimates), *_figure_columns(estimates, shown)]


def _needed(columns: Sequence[Column]) -> int:
    return sum(0 < column.spare < _NEEDED for column in columns)


_NARROWER = ((10, False), (5, False), (10, True), (5, True))
"""Ways to leave room for figures, the first that does: characters of a text beyond which it is a code, sizes close."""
_NEEDED = 50  # order of leaving out a column that every ranking should show
_PLAIN = 75  # order of leaving out a column with one value for all layouts: after figures that follow from others
_ALWAYS = frozenset({"tensor_parallel", "pipeline_parallel", "data_parallel", "micro_batch_size"})
"""Sizes whose column is never left out."""


def _size_columns(estimates: Sequence[Estimate]) -> Iterator[Column]:
    yield Column("#", tuple(str(rank) for rank in range(1, len(estimates) + 1)))
    for field in FIELDS:
        cells = tuple(str(getattr(e.layout, field.name)) for e in estimates)
        if field.group == "size" and (field.name in _ALWAYS or set(cells) != {"1"}):
            yield Column(field.label, cells)


def _text_columns(estimates: Sequence[Estimate]) -> Iterator[Column]:
    """Yield what is recomputed, and parts of the layout that differ from their default somewhere."""
    policies = tuple(say.recompute_text(e.layout) for e in estimates)
    yield Column("re-\ncomp.", policies, is_text=True, spare=_PLAIN if set(policies) == {"none"} else 0)
    for header, cell, plain, spare in _CHOICES:
        cells = tuple(map(cell, estimates))
        if cells != tuple(map(plain, estimates)):
            yield Column(header, cells, is_text=True, spare=spare)
    if any(estimate.options for estimate in estimates):
        dispatches = [estimate.options.get("expert_dispatch") for estimate in estimates]
        ways = tuple(f"{dispatch} overlapped" if dispatch else "-" for dispatch in dispatches)
        yield Column("ex-\nch.", ways, is_text=True, spare=_PLAIN if len(set(ways)) == 1 else 0)


EstimateCell = Callable[[Estimate], str]
_CHOICES: tuple[tuple[str, EstimateCell, EstimateCell, int], ...] = (
    ("schedule", lambda e: e.layout.schedule, lambda _: "1f1b", 0),
    ("ZeRO", lambda e: str(e.layout.zero_stage), lambda e: str(PROFILES[e.framework].zero_stage_on(e.devices)), 0),
    (
        "seq.\nparallel",
        lambda e: "yes" if e.layout.sequence_parallel else "no",
        lambda e: "yes" if e.layout.tensor_parallel > 1 else "no",
        0,
    ),
    ("offload", lambda e: e.layout.offload, lambda _: "none", 0),
    ("layers by\nstage", lambda e: say.cut_text(e.layout), lambda _: "even", 55),
)  # header, cell, cell of the default, and order of leaving out


def _figure_columns(estimates: Sequence[Estimate], shown: Presentation) -> Iterator[Column]:
    def column(header: str, cell: EstimateCell, spare: int) -> Column:
        return Column(header, tuple(map(cell, estimates)), spare=spare)

    def of_run(text: Callable[[TrainingRun], str]) -> EstimateCell:
        return lambda estimate: "-" if (run := shown.run_of(estimate)) is None else text(run)

    unit, per_second = say.step_unit(max(e.throughput.step_seconds for e in estimates))
    # Days, if asked for, stand for the speed.
    spare = 0 if shown.train_tokens is None else 8
    fastest = max(map(say.cluster_speed, estimates)) or 1.0
    speed = column("tokens/s", lambda e: say.grouped(say.cluster_speed(e)), spare)
    yield speed._replace(bars=tuple(say.cluster_speed(e) / fastest for e in estimates))
    if any(estimate.throughput.interval_seconds is not None for estimate in estimates):
        yield column(
            "±\n%", lambda e: single.half_width_text(e.throughput.step_seconds, e.throughput.interval_seconds), 40
        )
    yield column("tokens/s\n/device", lambda e: say.amount(e.throughput.tokens_per_second_per_device), 85)
    yield column("TFLOPS\n/device", lambda e: say.teraflops(e.throughput.flops_per_second_per_device), 80)
    yield column("MFU\n%", lambda e: say.mfu_text(e.throughput.mfu), 20)
    yield column("causal\nMFU %", lambda e: say.mfu_text(e.throughput.causal_mfu), 82)
    yield column(f"step\n{unit}", lambda e: say.amount(e.throughput.step_seconds * per_second), 60)
    need = column("GiB", lambda e: f"{to_gib(e.memory.device_bytes):.1f}", 15)
    yield need._replace(bars=tuple(e.memory.device_bytes / e.memory.capacity_bytes for e in estimates))
    yield column("spare\nGiB", lambda e: f"{to_gib(e.memory.headroom_bytes):.1f}", 45)
    if any(estimate.memory.fit_probability is not None for estimate in estimates):
        colour = shown.colour
        yield column(
            "fit\n%", lambda e: say.in_colour(say.fit_text(e).replace("> ", ">"), e.verdict, colour=colour), 10
        )
    if shown.train_tokens is not None:
        yield column("train\ndays", of_run(tables.days_text), 2)
        if shown.price_per_device_hour is not None:
            yield column("train\ncost", of_run(tables.cost_text), 4)


def _nothing_fits(ranking: Ranking, shown: Presentation) -> str:
    blocks = [shown.prose(miss_lines(ranking, shown))]
    if ranking.reasons:
        blocks.append(single.rules_block(ranking.reasons, "of a layout it dropped", shown))
    if ranking.remedies:
        blocks.append(shown.grid(*remedies_cells(ranking)))
    else:
        blocks[-1] += "\n" * (1 + bool(ranking.reasons)) + "No single change that was tried makes it fit."
    return "\n\n".join(blocks)


def miss_lines(ranking: Ranking, shown: Presentation) -> Iterator[str]:
    """Yield the margin of the nearest layout, or why there is none."""
    nearest, fewest = ranking.nearest, ranking.fewest
    searched = "" if fewest is None else f" on up to {say.grouped(fewest.most_nodes)} nodes"
    if ranking.risky:
        likeliest = max(ranking.risky, key=lambda estimate: estimate.memory.fit_probability or 0.0)
        limit = f"{_least_probability(ranking)} % is asked for (--min-fit-probability)"
        chance = f"{say.layout_text(likeliest.layout)}, fits with {say.fit_text(likeliest)} %"
        yield f"Nothing is likely enough to fit{searched}: {limit}. The likeliest: {chance}"
        return
    if nearest is None:
        yield f"Nothing fits{searched}: no layout keeps the rules."
        return
    where = "" if fewest is None else f", on {say.grouped(fewest.ranked_nodes)}"
    depends = nearest.verdict == "depends" and not nearest.other_memory
    defaults = " with the defaults of what nobody said" if depends else ""
    searched += f" on {nearest.hardware}" if nearest.other_memory else ""
    yield f"Nothing fits{searched}{defaults}. Nearest miss{where}: {say.layout_text(nearest.layout)}"
    yield say.verdict_sentence(nearest, colour=shown.colour)
    yield from say.caution_lines(nearest)
    yield from say.open_lines(nearest) if defaults else ()
    yield f"largest parts (GiB): {say.largest_parts(nearest.memory.parts_bytes)}"


def _least_probability(ranking: Ranking) -> str:
    return say.percent(float(str(ranking.query.get("min_fit_probability"))))


def remedies_cells(ranking: Ranking) -> tuple[list[str], list[list[str]]]:
    """Return headers and rows of changes that would make a layout fit."""
    rows = [
        [
            remedy.change,
            say.gib(remedy.estimate.memory.device_bytes),
            say.gib(remedy.estimate.memory.headroom_bytes),
            say.teraflops(remedy.estimate.throughput.flops_per_second_per_device),
        ]
        for remedy in ranking.remedies
    ]
    return ["what would make it fit", "memory\nGiB", "headroom\nGiB", "TFLOPS\n/device"], rows


def fastest_line(estimate: Estimate, shown: Presentation) -> str:
    """Return the first of a ranking in words."""
    layout = single.brief_layout(estimate.layout, estimate.framework)
    if dispatch := estimate.options.get("expert_dispatch"):
        layout += f", {dispatch} overlapped"
    return f"Fastest: {layout}: {single.speed_sentence(estimate, shown)}, {say.need_text(estimate)}."


def fewest_lines(ranking: Ranking, shown: Presentation) -> Iterator[str]:
    """Yield the fewest nodes that suffice, where they were searched."""
    fewest, run = ranking.fewest, shown.run_of(ranking.estimates[0])
    if fewest is None:
        return
    few, first = (say.counted(nodes or 0, "node") for nodes in (fewest.nodes, fewest.fitting_nodes))
    if fewest.deadline_days is None or run is None:
        yield f"Fewest that fit: {few}."
        yield from _knee_line(fewest)
        return
    limit = f"{fewest.deadline_days:g} days"
    if fewest.nodes is None:
        near = f"{say.grouped(fewest.ranked_nodes)} take {tables.days_text(run)} days. {first} would fit"
        yield f"Nothing is in time ({limit}) on up to {say.grouped(fewest.most_nodes)} nodes: {near}."
        return
    from simulator.answers.plan import limit_check  # noqa: PLC0415  start-up time
    from simulator.show.report.plan import limit_text  # noqa: PLC0415  start-up time

    sure = limit_text(limit_check(run.days, run.days_interval, fewest.deadline_days))
    yield f"Fewest in {limit}: {few}, {tables.days_text(run)} days (in time: {sure}). {first} would fit."


def _knee_line(fewest: FewestNodes) -> Iterator[str]:
    """Yield the number of nodes from which more of them cost as much a token, if it is not the fewest."""
    knee = fewest.knee
    if knee is None or len(fewest.counts) < 2:
        return
    first = fewest.counts[0]
    if knee.nodes == first.nodes:
        yield "None of the larger sizes costs less a token."
        return
    saved = 1.0 - first.tokens_per_second_per_device / knee.tokens_per_second_per_device
    yield f"{say.grouped(knee.nodes)} nodes (--nodes {knee.nodes}) cost a token {say.percent(saved)} % less."


_COUNT_HEAD = ("nodes", "fastest layout", "tokens/s/device", "cost a token", "")


def _count_rows(fewest: FewestNodes, framework: str) -> list[list[str]]:
    """Return the rows of the numbers of nodes; a token costs what it takes of a device, over the first row's."""
    first = fewest.counts[0].tokens_per_second_per_device
    return [
        [
            say.grouped(count.nodes),
            single.brief_layout(count.layout, framework).split(",")[0],
            say.grouped(round(count.tokens_per_second_per_device)),
            f"{100.0 * (first / count.tokens_per_second_per_device - 1.0):+.0f} %",
            "knee" if count == fewest.knee else "",
        ]
        for count in fewest.counts
    ]


def equal_lines(ranking: Ranking) -> Iterator[str]:
    """Yield the rows that may be as fast as the first, and the surer ones of them."""
    if not ranking.equal:
        return
    first, last = ranking.equal[0] + 1, ranking.equal[-1] + 1
    in_a_row = last - first == len(ranking.equal) - 1 > 1
    rows = f"{first} to {last}" if in_a_row else ", ".join(str(position + 1) for position in ranking.equal)
    text = f"As fast within what is known: row{'s' if len(ranking.equal) > 1 else ''} {rows}"
    if ranking.surer is not None:
        surer = ranking.estimates[ranking.surer]
        text += single.surer_text(ranking.estimates[0], surer, f"row {ranking.surer + 1}")
    yield f"{text}."


def ranking_footer(ranking: Ranking, shown: Presentation) -> Iterator[str]:
    """Yield the extent of the search, and the sources of the numbers."""
    yield from _counts_line(ranking)
    yield from _risky_lines(ranking)
    for estimate in ranking.starved[: None if shown.verbosity > 0 else _STARVED_SHOWN]:
        margin = f"{say.layout_text(estimate.layout)}: {say.margin_text(estimate.memory.headroom_bytes)}"
        speed = say.teraflops(estimate.throughput.flops_per_second_per_device)
        yield f"Too near capacity, not recommended: {margin}, {speed} TFLOPS/device if it keeps pace."
    yield from single.defaults_line({name: ranking.query.get(name) for name in ranking.defaults})
    yield from _space_lines(ranking, shown)
    if priced := _priced(ranking):
        yield from single.assumed_lines(priced[0])
        yield from single.provenance_lines(priced[0], shown)


def _counts_line(ranking: Ranking) -> Iterator[str]:
    counts = ranking.counts
    looked_at = f"{say.grouped(counts.evaluated)} layouts in {say.elapsed_text(counts.elapsed_seconds)}"
    reasons = sorted(counts.rejected.items(), key=lambda reason: (-reason[1], reason[0]))
    rejected = ", ".join(f"{say.grouped(count)} {reason}" for reason, count in reasons if count)
    yield f"{looked_at}: {say.grouped(counts.feasible)} fit{f'; rejected: {rejected}' if rejected else ''}."


def _risky_lines(ranking: Ranking) -> Iterator[str]:
    """Yield layouts faster than the best recommended one, and why they are not recommended."""
    best = ranking.estimates[0].throughput.step_seconds if ranking.estimates else math.inf
    for estimate in ranking.risky:
        if estimate.throughput.step_seconds * (1.0 + _LEAST_GAIN) < best:
            gain = say.percent(best / estimate.throughput.step_seconds - 1.0) if math.isfinite(best) else ""
            faster = f"{gain} % faster, " if gain else ""
            chance = f"fits with {say.fit_text(estimate)} %, {_least_probability(ranking)} % is asked for"
            layout = single.brief_layout(estimate.layout, estimate.framework)
            yield f"Risky, not recommended: {layout}: {faster}{chance}."


def _gain(other: Estimate, best: Estimate) -> float:
    """Return the speed of a device over that with the best layout, less one."""
    base = best.throughput.tokens_per_second_per_device
    return other.throughput.tokens_per_second_per_device / base - 1.0 if base > 0 else 0.0


def _other_rows(ranking: Ranking, best: Estimate) -> Iterator[list[str]]:
    """Yield the gains of fp8 and of another stack; only faster ones, or the framework's defaults."""
    others = [(f"--stack {stack.stack}", stack.estimate) for stack in ranking.stacks]
    for name, other in [("--precision fp8", ranking.fp8), *others]:
        if other is None and name.startswith("--stack"):
            yield [name, "-", "-", "nothing fits likely"]
        if other is None or (other is ranking.fp8 and _gain(other, best) < MIN_CHANGE):
            continue
        note = "" if other.layout.split == best.layout.split else "another layout"
        if other.precision != best.precision and other.provenance.assumed_peak:
            note = f"{note}{', ' if note else ''}its peak is assumed"
        grown = other.memory.device_bytes - best.memory.device_bytes
        yield [name, f"{100.0 * _gain(other, best):+.1f} %", f"{to_gib(grown):+.2f}", note]


def _space_lines(ranking: Ranking, shown: Presentation) -> Iterator[str]:
    """Yield the axes of the search with default values, and the layouts that were therefore not tried."""
    query = ranking.query.get("space")
    space: Mapping[str, object] = query if isinstance(query, Mapping) else {}
    usual = PROFILES[str(ranking.query.get("framework"))].zero_stage_on(int(str(ranking.query.get("devices") or 0)))
    searched = [
        ("zero_stage", f"--zero-stage {usual}", "other --zero-stage"),
        ("offload", "--offload none", "--offload"),
        ("micro_batch_size", f"--micro-batch-size {','.join(map(str, MICRO_BATCH_SIZES))}", "other --micro-batch-size"),
        ("sequence_parallel", "sequence parallelism where TP is above 1", "--no-sequence-parallel"),
    ]
    if ranking.query.get("nodes") != 1:
        searched.append(("tensor_parallel_across_nodes", "TP within a node", "--allow-tp-across-nodes"))
    plain = [(value, other) for axis, value, other in searched if axis not in space]
    lines = [", ".join(value for value, _ in plain)] if plain else []
    if not shown.variants and ranking.estimates:
        lines.append("best of each TP/PP/CP/EP/ETP split (--variants lists all)")
    if lines:
        yield f"Search defaults: {'; '.join(lines)}."
    if plain:
        yield f"Not searched unless asked: {', '.join(other for _, other in plain)}."
