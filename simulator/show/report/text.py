"""Numbers, units and layouts as text for people; JSON and CSV of plain values.

    gib(2.0**30) == "1.00"    money(258_861) == "259k"    layout_text(layout) == "TP4 PP8 CP2 ..."
    dumps({"step_time_s": 1.5})    significant(1 / 3) == 0.333333333

A table and a sentence that show the same figure get it from the same function here.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import groupby
from math import floor, log10
from typing import Any, assert_never

from simulator.cost.pricing.estimate import (
    Estimate,
    Interval,
    LengthsEstimate,
    MemoryEstimate,
    OpenRange,
    OpenSwitch,
    ThroughputEstimate,
    Verdict,
)
from simulator.late import late_pattern
from simulator.question.scenario.layout import BY_NAME, FIELDS, Layout
from simulator.question.units import MEGA, TERA, to_gib, to_mib

_COLOURS = {"fits": "green", "starved": "yellow", "depends": "yellow", "ran": "green"}
"""Colours of verdicts and outcomes; any other is red."""
_MOST_DECIMALS = 15


def amount(value: float) -> str:
    """Return a number with about four significant digits, never in exponent form below 1e15."""
    size = abs(value)
    if size >= 1e15:
        return f"{value:.4g}"
    if size >= 1000 or value == 0:
        return f"{value:.0f}"
    if size >= 10:
        return f"{value:.1f}"
    return f"{value:.2f}" if size >= 1 else f"{value:.3g}"


def grouped(count: float) -> str:
    """Return a count with commas between groups of three digits."""
    return f"{count:,.0f}"


def batch_text(sequences: object, length: Any, lengths: LengthsEstimate | None = None) -> str:
    """Return a batch in sequences, and in tokens where that is known."""
    if lengths is not None:
        mean = (
            "open below" if lengths.shortest_step_seconds is not None else f"mean {grouped(lengths.sample_tokens)} of"
        )
        of_length = f"{lengths.batching} lengths, {mean} {grouped(length)} tokens"
        return f"{of_length}, global batch {sequences}"
    tokens = sequences * length if isinstance(sequences, int) and isinstance(length, int) else 0
    shown = f"{tokens / MEGA:.1f} M" if tokens >= MEGA else grouped(tokens)
    return f"sequence {length}, global batch {sequences}{f' = {shown} tokens' if tokens else ''}"


def gib(size_bytes: float) -> str:
    """Return bytes as GiB with two decimals."""
    return _without_negative_zero(f"{to_gib(size_bytes):.2f}")


def percent(fraction: float) -> str:
    """Return a fraction as a percentage with one decimal."""
    return _without_negative_zero(f"{100 * fraction:.1f}")


def probability_text(probability: float) -> str:
    """Return a probability in per cent, never as 0 or 100: no estimate is certain."""
    if probability < 0.001:
        return "< 0.1"
    return "> 99.9" if probability > 0.999 else percent(probability)


def fit_text(estimate: Estimate) -> str:
    """Return the probability that an estimate fits, in per cent; a dash where no calibration tells."""
    probability = estimate.memory.fit_probability
    return "-" if probability is None else probability_text(probability)


def need_text(estimate: Estimate) -> str:
    """Return what the fullest device needs of what is usable, and the probability that it fits."""
    memory, fit = estimate.memory, fit_text(estimate)
    need = f"{to_gib(memory.device_bytes):.1f} of {to_gib(memory.capacity_bytes):.1f} GiB"
    return need + (f" (fits {fit} %)" if fit != "-" else "")


def mfu_text(fraction: float) -> str:
    """Return a utilisation in per cent with one decimal, or as many as tell it from 0."""
    return _never_nothing(100 * fraction)


def both_mfu_text(speed: ThroughputEstimate) -> str:
    """Return the MFU, and behind it that of causal attention where it is another."""
    full, causal = mfu_text(speed.mfu), mfu_text(speed.causal_mfu)
    return f"{full} % MFU" + (f" ({causal} % with causal attention)" if causal != full else "")


def teraflops(flops_per_second: float) -> str:
    """Return FLOP/s as TFLOP/s with one decimal, or as many as tell it from 0."""
    return _never_nothing(flops_per_second / TERA)


def elapsed_text(seconds: float) -> str:
    """Return a duration with two decimals, as finer ones differ from run to run."""
    return "under 0.01 s" if seconds < 0.01 else f"{seconds:.2f} s"


def counted(count: int, noun: str) -> str:
    """Return a number of things, such as devices."""
    return f"{grouped(count)} {noun}{'' if count == 1 else 's'}"


def milliseconds(seconds: float) -> str:
    """Return seconds as milliseconds with one decimal."""
    return _without_negative_zero(f"{seconds * 1e3:.1f}")


def money(value: float) -> str:
    """Return an amount of money with three significant digits, as precise as its interval."""
    for suffix, unit in (("B", 1e9), ("M", 1e6), ("k", 1e3)):
        if value >= 0.9995 * unit:
            scaled = value / unit
            decimals = 2 if scaled < 9.995 else 1 if scaled < 99.95 else 0
            return f"{scaled:.{decimals}f}{suffix}"
    return f"{value:.0f}" if value >= 99.95 or value == 0 else f"{value:.3g}"


def step_unit(seconds: float) -> tuple[str, float]:
    """Return the unit that a time of this size is shown in, and how many of it a second has."""
    return ("s", 1.0) if seconds >= 1.0 else ("ms", 1e3)


def ranged(value: float, interval: Interval | None, shown: Callable[[float], str]) -> str:
    """Return a figure with its 90 % interval behind it, where it has one."""
    return shown(value) if interval is None else f"{shown(value)} ({shown(interval.low)}-{shown(interval.high)})"


def span_text(interval: Interval | None, shown: Callable[[float], str], absent: str = "") -> str:
    """Return the ends of an interval; `absent` where there is none."""
    return absent if interval is None else f"{shown(interval.low)} to {shown(interval.high)}"


def count_text(count: int) -> str:
    """Return a number of tokens in the form it is given in, such as ``100B``, where that is exact."""
    for suffix, unit in (("T", 10**12), ("B", 10**9), ("M", 10**6), ("K", 10**3)):
        if count >= unit and count * 10 % unit == 0:
            return f"{count / unit:g}{suffix}"
    return str(count)


def verdict_text(verdict: Verdict, *, colour: bool) -> str:
    """Return the verdict in words, in its colour if ``colour``."""
    return in_colour(words(verdict), verdict, colour=colour)


def in_colour(text: str, verdict: str, *, colour: bool) -> str:
    """Return the text in the colour of a verdict or an outcome if ``colour``."""
    if not colour:
        return text
    from click import style  # noqa: PLC0415  colour codes are wanted on a terminal only

    return style(text, fg=_COLOURS.get(verdict, "red"))


def recompute_text(layout: Layout) -> str:
    """Return the recomputation: ``none``, ``selective moe_act``, ``block 3`` (a chunk), ``full layers 4,5,9``."""
    if layout.recompute == "selective" and layout.recompute_modules != BY_NAME["recompute_modules"].default:
        layers = ",".join(map(str, layout.recompute_layer_list))
        return f"selective {','.join(layout.recompute_modules)}" + f" layers {layers}" * bool(layers)
    if layout.recompute != "full":
        return layout.recompute
    method, count = layout.recompute_method, layout.recompute_layers
    match method:
        case "list":
            return f"full layers {','.join(map(str, layout.recompute_layer_list))}"
        case "uniform":
            return "full" if count == 1 else f"full uniform {count}"
        case "block":
            return f"block {count}"
        case _:
            assert_never(method)


def layout_text(layout: Layout) -> str:
    """Return the layout on one line: parallel sizes always, the rest where it differs from plain."""
    words = [
        f"{field.label}{getattr(layout, field.name)}"
        for field in FIELDS
        if field.group == "size" and (field.name != "expert_tensor_parallel" or layout.expert_tensor_parallel > 1)
    ]
    if layout.schedule != BY_NAME["schedule"].default:
        words.append(f"schedule {layout.schedule}")
    words.append(f"recompute {recompute_text(layout)}")
    if layout.offload != "none":
        words.append(f"offload {layout.offload}")
    if not is_even(layout.stage_layers):
        words.append(f"layers {cut_text(layout)}")
    if layout.chunk_layers:
        words.append(f"chunks {_runs_text(layout.chunk_layers)}")
    return " ".join(words)


def sharded_layout_text(layout: Layout) -> str:
    """Return the layout on one line, with what is sharded beside the split."""
    sequence = ", sequence parallel" if layout.sequence_parallel else ""
    return f"{layout_text(layout)}, ZeRO {layout.zero_stage}{sequence}"


def is_even(cut: tuple[int, ...]) -> bool:
    """Tell whether all stages have as many layers."""
    return len(set(cut)) <= 1


def cut_text(layout: Layout) -> str:
    """Return the layers by stage, ``even`` where they are the same; three equal ones or more as ``8x3``."""
    if is_even(layout.stage_layers):
        return "even"
    return _runs_text(layout.stage_layers)


def short_lists(text: str) -> str:
    """Return options with three equal numbers or more of a list as ``8x3``, which the command line reads too."""
    return _RUN.sub(lambda run: f"{run[1]}x{run[0].count(',') + 1}", text)


_RUN = late_pattern(r"\b(\d+)(?:,\1\b){2,}")


def _runs_text(numbers: tuple[int, ...]) -> str:
    runs = ((layers, len(list(run))) for layers, run in groupby(numbers))
    return ",".join(f"{layers}x{length}" if length > 2 else ",".join([str(layers)] * length) for layers, length in runs)


def interval_text(estimate: Estimate) -> str:
    """Return the 90 % interval of the need, and what of it goes back where it reaches the capacity and yet fits."""
    memory, interval = estimate.memory, estimate.memory.interval_bytes
    if interval is None:
        return "none"
    cached_bytes = memory.device_bytes - memory.need_bytes
    given_back = memory.fits and interval.high > memory.capacity_bytes and to_gib(cached_bytes) >= _SHOWN_GIB
    more = f", {gib(cached_bytes)} of them cached blocks that are given back" if given_back else ""
    return f"{gib(interval.low)} to {gib(interval.high)} GiB{more}"


def need_lines(estimate: Estimate, *, full: bool = False) -> Iterator[str]:
    """Yield the certainty of the verdict; `full` as of `open_lines`."""
    interval, probability = estimate.memory.interval_bytes, estimate.memory.fit_probability
    if interval is not None and probability is not None and estimate.verdict != "refused":
        yield f"90 % interval of the need: {interval_text(estimate)}; fits with {probability_text(probability)} %"
    yield from open_lines(estimate, full=full)
    if (host := host_text(estimate.memory)) is not None:
        yield host


_MOST_NAMED = 2  # open switches that a screen names


def open_lines(estimate: Estimate, *, full: bool = False) -> Iterator[str]:
    """Yield what nobody said of the run: what it is worth together, and what matters most; `full` lists all."""
    span = estimate.open
    if span is None or not span.switches:
        return
    step = estimate.throughput.step_seconds
    slower, faster = (100.0 * (step / seconds - 1.0) for seconds in (span.slowest_seconds, span.fastest_seconds))
    names = span.names
    needs = [f"{to_gib(size):.0f}" for size in (span.least_device_bytes, span.most_device_bytes)]
    worth = f"{slower:+.0f} to {faster:+.0f} % of speed, {needs[0]} to {needs[1]} GiB"
    firsts = {switch.switch: switch for switch in reversed(span.switches)}
    most = " and ".join(" ".join(firsts[name].texts) for name in names[:_MOST_NAMED])
    count = f"{len(names)} switches" if len(names) > 1 else "1 switch"
    yield f"not said: {count}, {worth}; most: {most}"
    for switch in span.switches if full else ():
        counted = "" if switch.share is None else f"{100.0 * switch.share:.0f} % of "
        yield f"  {open_switch_text(switch)}: {counted}{switch.source}"
    if estimate.verdict == "depends" and not estimate.other_memory:
        yield _deciding(estimate, span)


def _deciding(estimate: Estimate, span: OpenRange) -> str:
    """Return what would decide a verdict that depends."""
    memory, first = estimate.memory, span.decisive
    if first is not None:
        near = ", near capacity" if "starved" in (span.usual_verdict, first.verdict) else ""
        options = " ".join(f"--option {text}" for text in first.texts)
        with_other = f"{gib(memory.device_bytes + first.memory_bytes)} with {first.other}"
        return (
            f"decides first: {first.switch}, {gib(memory.device_bytes)} GiB with {first.value}, {with_other}{near} "
            f"({options}, or --stack NAME)"
        )
    if span.most_bytes <= memory.capacity_bytes:
        return "all of it fits by the figures: how well such runs are known decides, and own runs (`calibrate`)"
    if span.least_bytes > memory.capacity_bytes:
        likely = "" if (p := span.favourable_probability) is None else f" and fits with {probability_text(p)} %"
        return f"at its most favourable it needs {gib(span.least_device_bytes)} GiB{likely}"
    return "no single switch decides: say the stack (--stack NAME; `simulate frameworks`) or each (--option)"


def open_switch_text(switch: OpenSwitch) -> str:
    """Return a value that runs may have, with its effect."""
    effects = []
    if abs(switch.speed_change) >= _SHOWN_CHANGE:
        effects.append(f"{100.0 * switch.speed_change:+.0f} % speed")
    if abs(to_gib(switch.memory_bytes)) >= _SHOWN_GIB:
        effects.append(f"{to_gib(switch.memory_bytes):+.1f} GiB")
    return f"{' '.join(switch.texts)} ({', '.join(effects)})" if effects else " ".join(switch.texts)


_SHOWN_CHANGE, _SHOWN_GIB = 0.005, 0.05  # smallest effects on speed and memory that are shown


def host_text(memory: MemoryEstimate) -> str | None:
    """Return the need of offload or loading on a node's host, and whether it fits; None without either."""
    if not memory.host_bytes_per_node:
        return None
    parts = sorted(memory.host_parts_bytes.items(), key=lambda part: -part[1])
    of_what = ", ".join(f"{name.replace('_', ' ')} {gib(size)}" for name, size in parts)
    most = "" if not memory.host_pinned_bytes else f", up to {gib(memory.host_most_bytes)} as pinned blocks are rounded"
    need = f"host memory: {gib(memory.host_bytes_per_node)} GiB a node{most} ({of_what})"
    if memory.host_capacity_bytes is None:
        return f"{need}; the device's spec states none, so host memory is not judged"
    judged = {True: "", False: ", more than there is: does not fit", None: ": a run decides whether it fits"}
    return f"{need} of {gib(memory.host_capacity_bytes)}{judged[memory.fits_host]}"


def about_lines(estimate: Estimate, *, colour: bool, full: bool = False, outcome: str = "") -> Iterator[str]:
    """Yield a layout, its verdict (or another `outcome`) and the verdict's certainty; `full` as of `open_lines`."""
    yield sharded_layout_text(estimate.layout)
    yield verdict_sentence(estimate, colour=colour, outcome=outcome)
    yield from length_lines(estimate)
    yield from caution_lines(estimate)
    yield from need_lines(estimate, full=full)


def caution_lines(estimate: Estimate) -> Iterator[str]:
    """Yield what figures leave out of the model, lengths beyond what it was trained for, settings without effect."""
    cautions = (*estimate.provenance.cautions, *estimate.provenance.without_effect)
    yield from (f"{caution[:1].upper()}{caution[1:]}." for caution in cautions)


def length_lines(estimate: Estimate) -> Iterator[str]:
    """Yield what memory is of, where lengths differ, and where a run would fail."""
    lengths = estimate.lengths
    if lengths is None or estimate.verdict == "refused":
        return
    which = f"the longest in {100 * lengths.survive:g} % of steps"
    which = "packed" if lengths.batching.startswith("packed") else which
    text = f"memory is of sequences of {grouped(lengths.priced_tokens)} tokens, {which}"
    if lengths.padding > _LEAST_PADDING:
        text += f"; {percent(lengths.padding)} % of the tokens are padding"
    yield text
    if lengths.fits_to is not None:
        shown = f"fails above {grouped(lengths.fits_to)} tokens"
        steps = 1.0 / lengths.failing_steps if lengths.failing_steps > 0 else 0.0
        often = f"one of {grouped(round(steps))} steps has a longer sequence"
        yield f"{shown}; {often if steps > _FEW_STEPS else f'{percent(lengths.failing_steps)} % of steps have more'}"
    if lengths.shortest_step_seconds is not None:
        short = (lengths.shortest_tokens_per_second_per_device or 0.0) * estimate.devices
        full = cluster_speed(estimate) * estimate.throughput.step_seconds / lengths.shortest_step_seconds
        counted = "" if short > full / 2.0 else f" ({grouped(full)} in a log that counts them as full)"
        yield (
            f"lengths are open below the longest: samples of one token give {short:,.1f} tokens/s{counted}, "
            f"full ones {grouped(cluster_speed(estimate))} (--lengths FILE)"
        )


_LEAST_PADDING = 0.0005
_FEW_STEPS = 10.0  # steps to a failing one, up to which their share is shown instead


def cluster_speed(estimate: Estimate) -> float:
    """Return the tokens per second of all devices."""
    return estimate.throughput.tokens_per_second_per_device * estimate.devices


def verdict_sentence(estimate: Estimate, *, colour: bool, outcome: str = "") -> str:
    """Return the verdict, or another `outcome`, with its margin and the place that decides it."""
    memory = estimate.memory
    words = verdict_text(estimate.verdict, colour=colour)
    if outcome:
        words = in_colour(outcome.replace("_", " "), outcome, colour=colour)
    if estimate.verdict == "refused":
        broken = len(estimate.violations)
        return f"{words}: {broken} rule{'' if broken == 1 else 's'} broken"
    where = f"stage {memory.binding_stage} binds at {memory.moment}"
    if memory.fits_host is False and memory.fits:
        words += " the host"
    size = f"{gib(memory.device_bytes)} of {gib(memory.capacity_bytes)} GiB usable"
    return f"{words}: needs {size}, {margin_text(memory.headroom_bytes)}; {where}"


def margin_text(headroom_bytes: float) -> str:
    """Return the free or missing part of the capacity."""
    return f"{gib(-headroom_bytes)} GiB over" if headroom_bytes < 0 else f"{gib(headroom_bytes)} GiB spare"


def largest_parts(parts: Mapping[str, float]) -> str:
    """Return the four largest parts in GiB, largest first, without empty ones."""
    ordered = sorted(parts.items(), key=lambda part: (-part[1], part[0]))
    return ", ".join(f"{words(name)} {gib(size)}" for name, size in ordered[:4] if size > 0)


def option_name(name: str) -> str:
    """Return the option that sets the query's ``name``."""
    return "--" + name.replace("_", "-")


def settings_text(settings: Mapping[str, object]) -> str:
    """Return options with their values on one line, without options that have none."""
    named = {name: value for name, value in settings.items() if value not in (None, (), {}, "") and value is not False}
    return ", ".join(f"{option_name(name)} {_value(value)}".rstrip() for name, value in named.items())


def words(name: str) -> str:
    """Return a part's name as words."""
    return name.replace("_", " ")


def _value(value: object) -> str:
    if value is True:
        return ""
    if isinstance(value, Mapping):
        return " ".join(f"{key}={item}" for key, item in value.items())
    if isinstance(value, Iterable) and not isinstance(value, str):
        return ",".join(map(str, value))
    return str(value)


def _never_nothing(value: float) -> str:
    """Return a number with one decimal, or with two significant digits where that would read 0.0."""
    if value == 0 or abs(value) >= 0.05:
        return f"{value:.1f}"
    return f"{value:.{min(1 - floor(log10(abs(value))), _MOST_DECIMALS)}f}"


def _without_negative_zero(text: str) -> str:
    return text[1:] if text.startswith("-") and not text.strip("-0.") else text


def mib(size_bytes: float) -> float:
    """Return bytes as MiB to three decimals: about a kilobyte."""
    return round(to_mib(float(size_bytes)), 3) + 0.0


def significant(value: float) -> float:
    """Return ``value`` to nine significant digits, so that parts still add up to more than anybody reads."""
    return float(f"{float(value):.9g}") + 0.0


def dumps(value: object, *, indent: int | None = 2) -> str:
    """Return JSON text; a number that is not finite raises ValueError."""
    from pydantic_core import to_json  # noqa: PLC0415  start-up time of tables

    with suppress(ValueError):  # of text that is no UTF-8
        text = to_json(value, indent=indent).decode()
        if "NaN" not in text and "Infinity" not in text:
            return text
    import json  # noqa: PLC0415  start-up time

    text = json.dumps(value, indent=indent, allow_nan=False, ensure_ascii=False)
    # Surrogates, which stand for bytes of a file's name that are no UTF-8, cannot be written unescaped.
    return re.sub("[\ud800-\udfff]", lambda mark: f"\\u{ord(mark[0]):04x}", text)


def table_csv(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return rows under column names; None becomes an empty cell."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows([_cell(value) for value in row] for row in rows)
    return text.getvalue()


def _cell(value: object) -> object:
    if isinstance(value, bool):
        return "true" if value else "false"
    return " ".join(map(str, value)) if isinstance(value, list) else value
