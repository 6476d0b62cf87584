"""Lengths that differ: where a run fails, how fast it may be if only the longest is known, those of a data set."""

from __future__ import annotations

import math
import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from simulator.cost.derived import pricing_of
from simulator.cost.pricing.estimate import Estimate, Interval
from simulator.cost.pricing.price import FITS, size
from simulator.errors import InputError, quoted
from simulator.files import reading
from simulator.question.scenario.layout import Layout
from simulator.question.scenario.lengths import Lengths
from simulator.question.scenario.scenario import Scenario
from simulator.question.specs.documents import require_regular
from simulator.records import replace
from simulator.search.build import estimate_layout


def with_failing_length(estimate: Estimate, scenario: Scenario, layout: Layout) -> Estimate:
    """Return an estimate with the longest sequence that fits, and its range over what a bound leaves open."""
    about, lengths = estimate.lengths, scenario.lengths
    if about is None or lengths is None:
        return estimate
    longest = longest_that_fits(scenario, layout, lengths.longest if not lengths.packs else lengths.package)
    if longest is not None:
        samples = scenario.global_batch_size * scenario.framework.sequences_per_sample
        about = replace(about, fits_to=longest, failing_steps=lengths.beyond(longest, samples))
    if not lengths.bound:
        return replace(estimate, lengths=about)
    of_shortest = replace(scenario, lengths=lengths.shortest(scenario.image_tokens))
    shortest, speed = estimate_layout(of_shortest, layout).throughput, estimate.throughput
    about = replace(
        about,
        shortest_step_seconds=shortest.step_seconds,
        shortest_tokens_per_second_per_device=shortest.tokens_per_second_per_device,
    )
    ends = [each.interval_seconds or Interval(each.step_seconds, each.step_seconds) for each in (shortest, speed)]
    interval = Interval(min(end.low for end in ends), max(end.high for end in ends))
    return replace(estimate, lengths=about, throughput=replace(speed, interval_seconds=interval))


def longest_that_fits(scenario: Scenario, layout: Layout, most: int) -> int | None:
    """Return the tokens of the longest sequence that fits, 0 for none; None where one of `most` tokens does."""

    def fits(tokens: int) -> bool:
        return bool(size(pricing_of(scenario.of_length(tokens), layout)).verdict[0] == FITS)

    return None if fits(most) else largest(fits, most - 1)


def largest(fits: Callable[[int], bool], most: int) -> int:
    """Return the largest number up to `most` that fits, 0 for none, where all smaller ones do."""
    return bisect_left(range(1, most + 1), x=True, key=lambda number: not fits(number))


def measured_lengths(file: str, field: str, characters_per_token: float) -> tuple[str, tuple[str, ...]]:
    """Return the lengths of the texts in a field of every line of a file, by their characters, and remarks.

    Lengths are lines of length and count, ascending, under a head; remarks say what they are, and how far they may be
    from tokens. Raises InputError, with the line.
    """
    counts: Counter[int] = Counter()
    kinds: Counter[str] = Counter()
    for number, line in _lines(file):
        text = _text(f"{file}:{number}", line, field)
        listed = [len(re.findall(kind, text)) for kind in _KINDS]
        kinds.update(dict(zip(_CHARACTERS, [*listed, len(text) - sum(listed)], strict=True)))
        counts[max(math.ceil(len(text) / characters_per_token), 1)] += 1
    samples, characters = counts.total(), kinds.total()
    if not samples:
        raise InputError(f"{file}: holds no samples")
    tokens = sum(kinds[name] / usual for name, usual in _CHARACTERS.items())
    usual = characters / tokens if tokens else characters_per_token
    off = max(_LEAST_ERROR, abs(characters_per_token / usual - 1.0))
    lengths = Lengths.read(counts)
    points = ", ".join(f"p{share} {replace(lengths, survive=share / 100.0).fullest(1):,}" for share in (50, 90, 99))
    error = f"of characters / {characters_per_token:g}: ± {100 * off:.0f} %;"
    return (
        "length,count\n" + "".join(f"{length},{count}\n" for length, count in sorted(counts.items())),
        (
            f"{samples:,} samples: mean {lengths.segments(1).mean:,.0f}, {points}, longest {lengths.longest:,} tokens",
            f"{error} by its letters, digits and scripts a token has about {usual:.1f} characters (--chars-per-token)",
        ),
    )


_CHARACTERS: Final = {"letters": 4.4, "digits": 1.6, "marks": 1.8, "wide": 1.4, "others": 2.2}
"""Characters a token of tokenizers with 100,000 to 200,000 entries: Latin letters and spaces, digits, punctuation,
scripts of East Asia, other scripts."""
_LEAST_ERROR: Final = 0.15  # least relative error of a length that is told by characters
_KINDS: Final = (r"[A-Za-z\s]", r"[0-9]", r"[!-/:-@\[-`{-~]", r"[\u2e80-\u9fff\uac00-\ud7af\uf900-\ufaff\uff00-\uffef]")


def _lines(file: str) -> Iterator[tuple[int, str]]:
    """Yield the lines of a file that hold something, with their numbers. Raises InputError."""
    with reading(file):
        if not Path(file).is_fifo():
            require_regular(Path(file))
        with Path(file).open(encoding="utf-8-sig") as stream:
            try:
                yield from ((number, line) for number, line in enumerate(stream, start=1) if line.strip())
            except UnicodeDecodeError as error:
                raise InputError(f"{file}: not UTF-8 text: {error.reason}") from error


def _text(place: str, line: str, field: str) -> str:
    """Return the text of a sample: of the field, or of all messages in it. Raises InputError."""
    import json  # noqa: PLC0415  start-up time

    try:
        sample = json.loads(line)
    except (ValueError, RecursionError) as error:
        why = "nested too deep" if isinstance(error, RecursionError) else error
        raise InputError(f'{place}: no JSON: {why}; a line is a sample, such as {{"text": "..."}}') from error
    if not isinstance(sample, dict) or field not in sample:
        fields = ", ".join(map(str, list(sample)[:8])) if isinstance(sample, dict) else "none"
        raise InputError(f"{place}: has no field {quoted(field)}; its fields: {fields} (--field NAME)")
    value = sample[field]
    if isinstance(value, list):
        parts = [part.get("content", part.get("value", "")) if isinstance(part, dict) else part for part in value]
        value = "\n".join(part for part in parts if isinstance(part, str))
    if not isinstance(value, str):
        raise InputError(f"{place}: field {quoted(field)} holds no text")
    return value
