"""How Megatron's and MindSpeed's flags cut the layers over pipeline ranks and model chunks."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, replace
from typing import Final

from simulator.frameworks.arguments import Arguments as Given
from simulator.question.scenario.layout import model_chunks, rank_layers
from simulator.question.vocabulary import ScheduleName

_MOST_SYMBOLS: Final = 100_000
_REPEATED: Final = re.compile(r"(?:\(([^()]*)\)|([A-Za-z|]))\*(\d{1,6})", re.ASCII)


@dataclass(frozen=True, slots=True)
class Cut:
    """Layers per pipeline rank, and chunks of each."""

    stage_layers: tuple[int, ...] = ()
    """Empty where every rank has as many."""
    chunks: int = 1
    """Model chunks per rank."""
    layers_per_chunk: int | None = None
    """Where the recipe gives them, and nothing else makes the chunks unequal."""
    chunk_layers: tuple[int, ...] = ()
    """Layers of every chunk in the order of the model, where they are unequal."""
    schedule: ScheduleName = "1f1b"


def idle_layers(given: Given) -> frozenset[int]:
    """Layers that MindSpeed's `--noop-layers` leaves without weights; they keep their place in the pipeline."""
    return frozenset(_numbers(given, "noop_layers", "noop-layers"))


def cut_of(given: Given, places: int | None, pipeline: int) -> Cut:
    """The cut; `places` are the layers with those that do nothing."""
    per_chunk = given.integer("layers_per_virtual_stage", "num-layers-per-virtual-pipeline-stage", low=0) or None
    named = ("num-virtual-stages-per-pipeline-rank", "virtual-pipeline-model-parallel-size")
    chunks = given.integer("vpp", *named, high=2**16) or 1
    schedule = _schedule(given, pipeline)
    if schedule == "dualpipev":
        chunks = 2
        sizes = _kept(idle_layers(given), places or 0, pipeline * chunks)
        return replace(_listed(sizes, pipeline, schedule) if sizes else Cut(chunks=chunks), schedule=schedule)
    if per_chunk and places and places % (pipeline * per_chunk) == 0:
        chunks = places // (pipeline * per_chunk)
    text = given.text("stage_layers", "pipeline-model-parallel-layout")
    if text is not None:
        return _described(given, text, pipeline)
    listed = _numbers(given, "stage_layers", "num-layer-list")
    if listed and "pp" not in given.incomplete:
        if len(listed) != pipeline or (places is not None and sum(listed) != places):
            problem = f"must list {pipeline} numbers that add up to the {places} layers"
            raise given.refusal(given.entry("num-layer-list"), problem)
        return Cut(tuple(listed) if len(set(listed)) > 1 else (), chunks) if chunks > 1 else _listed(listed, pipeline)
    idle = idle_layers(given)
    sizes = _kept(idle, places or 0, pipeline * chunks)
    if idle and sizes:
        return _listed(sizes, pipeline)
    accounted = _accounted(given, places, pipeline, chunks, per_chunk)
    if accounted is not None:
        return accounted
    return Cut(_ends(given, places, pipeline), chunks, per_chunk)


def _schedule(given: Given, pipeline: int) -> ScheduleName:
    """MindSpeed's `--schedules-method`; 1F1B without it, and without a pipeline."""
    method = given.text("schedule", "schedules-method")
    if method not in (None, "dualpipev"):
        given.not_modelled(f"--schedules-method {method}: MindSpeed has dualpipev", "schedules-method")
    return "dualpipev" if method == "dualpipev" and pipeline > 1 else "1f1b"


def _kept(idle: frozenset[int], places: int, chunks: int) -> list[int]:
    """Layers of each chunk but those that do nothing; nothing where the chunks are not equal with them."""
    if not places or places % chunks:
        return []
    kept = Counter(place * chunks // places for place in range(places) if place not in idle)
    return [kept[chunk] for chunk in range(chunks)]


def _described(given: Given, text: str, pipeline: int) -> Cut:
    """`--pipeline-model-parallel-layout`: E embedding, t layer, m next-token layer, L loss, | between chunks."""
    name = "pipeline-model-parallel-layout"
    chunks = _expanded(given, text.strip("\"' ").replace(",", "").replace(" ", "")).split("|")
    if any(re.search(r"[^EtmL]", chunk) for chunk in chunks) or len(chunks) % pipeline:
        raise given.refusal(given.entry(name), f"must be E, t, m and L in a multiple of {pipeline} parts")
    if "E" not in chunks[0] or "L" not in chunks[-1] or any("m" in chunk for chunk in chunks[:-1]):
        given.not_modelled(f"--{name}: the cut of embedding, loss or next-token layers", name)
    return _listed([chunk.count("t") for chunk in chunks], pipeline)


def _expanded(given: Given, text: str) -> str:
    """The text with `x*3` and `(tt|)*3` written out."""
    while match := _REPEATED.search(text):
        inner = match[1] if match[1] is not None else match[2]
        if len(inner) * int(match[3]) + len(text) > _MOST_SYMBOLS:
            raise given.refusal(given.entry("pipeline-model-parallel-layout"), "describes too many layers")
        text = text[: match.start()] + inner * int(match[3]) + text[match.end() :]
    return text


def _listed(sizes: list[int], pipeline: int, schedule: ScheduleName = "1f1b") -> Cut:
    """The cut of a list of chunks in the order of the model."""
    listed, chunks = tuple(sizes), len(sizes) // pipeline
    stages = rank_layers(listed, pipeline, schedule)
    equal = model_chunks(stages, chunks, (), schedule)
    if min(stages) > 0 and equal == model_chunks(stages, chunks, listed, schedule):
        return Cut(stages if len(set(stages)) > 1 else (), chunks)
    return Cut(stages, chunks, chunk_layers=listed)


def _accounted(given: Given, places: int | None, pipeline: int, chunks: int, per_chunk: int | None) -> Cut | None:
    """The cut where embedding or loss count as a layer each: first and last chunk hold one layer less."""
    names = "account-for-embedding-in-pipeline-split", "account-for-loss-in-pipeline-split"
    first, last = (given.switch("stage_layers", name) for name in names)
    if not (first or last) or places is None or pipeline == 1 or "pp" in given.incomplete:
        return None
    items = places + first + last
    if per_chunk:
        chunks = max(items // (pipeline * per_chunk), 1)
    size, left = divmod(items, pipeline * chunks)
    if left or size < 1 or (per_chunk and size != per_chunk):
        said = f"{places} layers, with {first + last} more for embedding and loss, do not divide over {pipeline} stages"
        used = [name for name in names if given.has(name)]
        given.remark("no-even-share", "error", f"{said} of {chunks} chunks" if chunks > 1 else said, *used)
        return Cut((), chunks)
    sizes = [size] * (pipeline * chunks)
    sizes[0] -= first
    sizes[-1] -= last
    return _listed(sizes, pipeline)


def _ends(given: Given, layers: int | None, pipeline: int) -> tuple[int, ...]:
    """Layers per stage, where the first or the last is given."""
    names = "decoder-first-pipeline-num-layers", "decoder-last-pipeline-num-layers"
    first = given.integer("stage_layers", names[0], "num-layers-in-first-pipeline-stage", low=0)
    last = given.integer("stage_layers", names[1], "num-layers-in-last-pipeline-stage", low=0)
    if layers is None or (first is None and last is None):
        return ()
    inner = pipeline - (first is not None) - (last is not None)
    rest = layers - (first or 0) - (last or 0)
    if inner <= 0 or rest < 0 or rest % inner or inner > 4096:
        said = f"{layers} layers on {pipeline} stages with {first} first and {last} last leaves no even share"
        given.remark("no-even-share", "error", said, *names)
        return ()
    ends = (() if first is None else (first,)), (() if last is None else (last,))
    return (*ends[0], *([rest // inner] * inner), *ends[1])


def _numbers(given: Given, option: str, name: str) -> list[int]:
    """Whole numbers, by commas or blanks."""
    text = (given.text(option, name) or "").strip("\"' ")
    words = [word for word in re.split(r"[\s,]+", text) if word]
    if not all(re.fullmatch(r"[0-9]{1,6}", word, re.ASCII) for word in words) or len(words) > 4096:
        raise given.refusal(given.entry(name), f"'{text[:40]}' given; must be whole numbers")
    return [int(word) for word in words]
