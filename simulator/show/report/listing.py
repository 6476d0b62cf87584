"""Listings of what ships: specs, switches, flags, JSON keys; a line each, or a line per number of one.

    $ simulate models llama3.1-8b
    key                value  unit    source     status
    num_hidden_layers     32  layers  config-hf  published

Each function makes a `SpecListing`, which is written here as a table, as CSV or as JSON.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, get_args

from simulator.answers.enough import Enough
from simulator.cost.operations.sums import active_parameters, total_parameters
from simulator.errors import InputError
from simulator.frameworks.flags import FOLDER, FlagKind, table_file, table_names, table_of
from simulator.question.frameworks.profile import NO_WORD, FrameworkProfile, switch_meanings, switches
from simulator.question.frameworks.stacks import ADAPTER_STACK, PROFILES, framework, on_stack, stacks_of, unreleased
from simulator.question.question import Question
from simulator.question.specs.catalogue import load_hardware, load_model, spec_text
from simulator.question.specs.documents import of_fields, sourced_parts
from simulator.question.specs.hardware import HardwareSpec
from simulator.question.specs.model import ModelSpec
from simulator.question.specs.names import hardware_names, model_names, variants
from simulator.question.units import GIGA, TERA, to_days, to_gib
from simulator.question.vocabulary import TuningMethod
from simulator.records import Record
from simulator.show.report.presentation import BETWEEN, PROSE_WIDTH, Column, Presentation, fitting, joined, narrow_line
from simulator.show.report.text import amount, batch_text, count_text, dumps, table_csv

ListingRow = Mapping[str, str | int | float | bool | None]
"""Row of a listing: column name, with its unit, to value. All records of a listing have the same columns."""


class SpecListing(Record, kw_only=True):
    """Records with the title and notes around them."""

    records: Sequence[ListingRow]
    title: str = ""
    notes: Sequence[str] = ()
    file_text: Callable[[], str] | None = None
    """Reader of the file of the only spec shown; None for several."""


_UNITS = {
    **dict.fromkeys(("num_hidden_layers", "first_k_dense_replace", "num_nextn_predict_layers"), "layers"),
    **dict.fromkeys(("num_attention_heads", "num_key_value_heads"), "heads"),
    **dict.fromkeys(("num_experts", "num_experts_per_tok", "num_shared_experts"), "experts"),
    **dict.fromkeys(("vocab_size", "max_position_embeddings"), "tokens"),
}
_PROSE = frozenset({"note", "meaning", "allowed", "title", "source", "sets", "type", "versions"})
"""Columns of sentences; they are broken into lines on a terminal."""
_LEAST_PROSE = 24  # fewest characters with which sentences stand beside the other columns
_NEVER_SPARED = frozenset(
    {"model", "hardware", "flag", "table", "switch", "key", "value", "parameters_billions", "bf16_tflops", "usable_gib"}
    | {f"{method}_{figure}" for method in get_args(TuningMethod) for figure in ("devices", "days")}
)  # columns that are never left out
_SPARE = {"title": 9, "architecture": 8, "fp16_tflops": 8, "vocab_size": 7, "kv_heads": 6, "heads": 5, "memory_gib": 4}
"""Order of leaving out other columns, the highest first; 1 by default."""
_IMAGE = (1024, 1024)  # pixels of the image whose tokens a listing of models has
_WITHOUT_NUMBER = frozenset({"name", "aliases", "note", "sources", "provenance", "published", "encoder"})


def models_listing(name: str | None = None) -> SpecListing:
    """Return one record for each known model, those that read images behind, or for each number of one.

    `image_tokens` are those of an image of 1024 x 1024 pixels.
    """
    if name is None:
        return SpecListing(records=[_model(load_model(each)) for each in (*model_names(), *variants())])
    spec = load_model(name)
    notes = _notes(spec.sources, spec.note)
    records = list(_model_facts(spec))
    return SpecListing(records=records, title=spec.name, notes=notes, file_text=partial(spec_text, "model", name))


def _model(model: ModelSpec) -> ListingRow:
    return {
        "model": model.name,
        "architecture": model.architecture,
        "layers": model.num_hidden_layers,
        "hidden_size": model.hidden_size,
        "heads": model.num_attention_heads,
        "kv_heads": model.num_key_value_heads,
        "experts": model.num_experts,
        "vocab_size": model.vocab_size,
        "parameters_billions": round(total_parameters(model) / GIGA, 3),
        "active_billions": round(active_parameters(model, include_input_embedding=True) / GIGA, 3),
        "image_tokens": None if model.encoder is None else model.encoder.image(*_IMAGE).tokens,
    }


def _model_facts(model: ModelSpec) -> Iterator[ListingRow]:
    origin = model.provenance
    source: Sequence[str] = () if origin is None else origin.source
    status = "given by the file" if origin is None else origin.status
    for name, value in of_fields(model).items():
        if name not in _WITHOUT_NUMBER and value is not None:
            number = isinstance(value, int) and not isinstance(value, bool)
            unit = _UNITS.get(name, "features" if number else "")
            yield _fact(name, _shown(value), unit, source, (status, ""))
    published = model.published
    if published is not None:
        for name in ("total_parameters", "active_parameters"):
            text = getattr(published, name)
            if text is not None:
                yield _fact(f"published.{name}", text, "parameters", published.source, (published.status, ""))
    yield from _encoder_facts(model)
    active = active_parameters(model, include_input_embedding=True)
    for name, count in (("total_parameters", total_parameters(model)), ("active_parameters", active)):
        yield _fact(name, str(count), "parameters", ("computed from the shape",), ("derived", ""))


def _encoder_facts(model: ModelSpec) -> Iterator[ListingRow]:
    """Yield the parameters of an encoder of images, and what images of usual sizes cost in tokens."""
    if model.encoder is None:
        return
    derived = ("computed from the shape",), ("derived", "")
    yield _fact("encoder.parameters", str(model.encoder.parameters), "parameters", *derived)
    yield _fact("encoder.projector_parameters", str(model.encoder.projector_parameters), "parameters", *derived)
    for width, height in ((448, 448), _IMAGE, (1920, 1080)):
        yield _fact(f"image {width}x{height}", str(model.encoder.image(width, height).tokens), "tokens", *derived)


def hardware_listing(name: str | None = None) -> SpecListing:
    """Return one record for each shipped kind of hardware, or for each number of one."""
    if name is None:
        return SpecListing(records=[_hardware(load_hardware(each)) for each in hardware_names()])
    spec = load_hardware(name)
    records = []
    for path, part in sourced_parts(spec):
        value, _, unit = str(getattr(part, "value", "")).partition(" ")
        records.append(_fact(path, value, unit or "count", part.source, (part.status, part.note)))
    title = f"{spec.name}: {spec.title} ({spec.vendor})"
    notes = _notes(spec.sources, spec.note)
    return SpecListing(records=records, title=title, notes=notes, file_text=partial(spec_text, "hardware", name))


def _hardware(spec: HardwareSpec) -> ListingRow:
    peaks = spec.peak_flops_per_second
    rates = {name: peaks.get(name) for name in ("bf16", "fp16", "fp8")}
    return {
        "hardware": spec.name,
        "title": spec.title,
        "devices_per_node": spec.devices_per_node,
        "memory_gib": round(to_gib(spec.memory_capacity_bytes), 1),
        "usable_gib": round(to_gib(spec.usable_memory_bytes), 1),
        **{f"{name}_tflops": None if peak is None else round(peak / TERA, 1) for name, peak in rates.items()},
        "memory_gb_per_s": round(spec.memory_bandwidth_bytes_per_second / GIGA, 1),
        "network_gb_per_s_per_device": round(spec.links[-1].bandwidth_bytes_per_second / GIGA, 1),
    }


def _fact(key: str, value: object, unit: str, source: Iterable[str], known: tuple[str, str]) -> ListingRow:
    """Return the record of a number; ``known`` is its status and a note."""
    status, note = known
    about = {"source": ", ".join(source), "status": status, "note": note}
    return {"key": key, "value": str(value), "unit": unit, **about}


def _notes(sources: Mapping[str, str], note: str) -> list[str]:
    return [*([note] if note else []), *(f"{key}: {text}" for key, text in sources.items())]


def frameworks_listing(name: str | None = None) -> SpecListing:
    """Return one record for each switch, with its value in every framework, or in every named stack of one."""
    if name is None:
        return SpecListing(records=_switch_rows(PROFILES), notes=("Set one with --option NAME=VALUE.",))
    profile = framework(name)
    stacks = {stack.name: on_stack(profile, stack.name) for stack in unreleased(name)}
    notes = ["Set one with --option NAME=VALUE, a column with --stack NAME."]
    notes.append(f"value: the defaults of {profile.version} (--stack default).")
    notes += [f"{stack.name}: {stack.about}. Source: {stack.source}." for stack in stacks_of(name)]
    return SpecListing(records=_switch_rows({"value": profile, **stacks}), notes=notes, title=profile.name)


def _switch_rows(profiles: Mapping[Any, FrameworkProfile]) -> list[ListingRow]:
    return [
        {
            "switch": spec.name,
            **{name: _shown(getattr(profile, spec.name)) for name, profile in profiles.items()},
            "allowed": _allowed(spec.metadata, spec.default),
            "meaning": switch_meanings()[spec.name],
        }
        for spec in switches()
    ]


_CLASSES = (
    "priced: read, and sets what stands under `sets`, or what the meaning says where code reads it.",
    "no_effect: changes neither memory nor speed as far as they are modelled.",
    "not_modelled: has an effect that is not priced; its weight says what `simulate check` then leaves out.",
    'verdict: any verdict. bound, activations: "does not fit". figure: nothing, it warns.',
    "A flag at its default, or off, counts as absent. One of no table, but trackers', leaves the verdict cannot_tell.",
)  # notes under a table of flags


def flags_listing(name: str | None = None) -> SpecListing:
    """Return one record for each table of flags and keys with its counts, or for each flag of one."""
    if name is None:
        records = [_table(each) for each in table_names()]
        return SpecListing(records=records, notes=("`simulate flags TABLE` lists the flags of one.",))
    return SpecListing(
        records=[
            {
                "flag": flag.name,
                "class": flag.effect,
                "weight": flag.weight,
                "takes": flag.kind,
                "default": flag.default,
                "sets": flag.sets,
                "meaning": flag.about,
                "file": flag.file,
                "versions": flag.first if flag.first == flag.last else f"{flag.first} to {flag.last}",
            }
            for flag in table_of(name).values()
        ],
        notes=_CLASSES,
        title=name,
    )


def _table(name: str) -> ListingRow:
    flags = table_of(name).values()
    counts = {f"{kind}_flags": sum(flag.effect == kind for flag in flags) for kind in get_args(FlagKind)}
    versions = dict.fromkeys(version for flag in flags for version in (flag.first, flag.last) if version)
    file = str(table_file(name).relative_to(FOLDER))
    return {"table": name, **counts, "file": file, "versions": ", ".join(versions)}


def keys_listing(name: str | None = None) -> SpecListing:
    """Return one record for each answer that JSON is written of, or for each key of one."""
    from simulator.show.report.schema import answer_rows, key_rows  # noqa: PLC0415  imports every answer

    if name is not None:
        return SpecListing(records=key_rows(name))
    note = "`simulate schema ANSWER` lists the keys of one; with --format json each is its JSON Schema."
    return SpecListing(records=answer_rows(), notes=(note,))


def listing_columns(listing: SpecListing) -> dict[str, Column]:
    """Return the columns that any record has, by name."""
    records = listing.records
    names = [name for name in _columns(records) if any(record[name] not in ("", None) for record in records)]
    return {name: _column(name, records) for name in names}


def listing_table(listing: SpecListing, shown: Presentation) -> str:
    """Return the records as a table between title and notes, without columns that no record has.

    Sentences stand beside the other columns where a line has room for them, else under their row.
    """
    columns = listing_columns(listing)
    plain, left_out = fitting([column for name, column in columns.items() if name not in _PROSE], shown.line)
    table = _with_prose(plain, [column for name, column in columns.items() if name in _PROSE], shown)
    notes = [line for note in (*narrow_line(left_out), *listing.notes) for line in _lines(note, shown.line)]
    return joined((listing.title, table, "\n".join(notes)) if shown.verbosity >= 0 else (table,))


def _column(name: str, records: Sequence[ListingRow]) -> Column:
    header = "\n".join(name.replace("_per_", "/").rsplit("_", 1)).replace("_", " ")
    for word, unit in (("gib", "GiB"), ("gb/s", "GB/s"), ("tflops", "TFLOPS")):
        header = header.replace(word, unit)
    values = [record[name] for record in records]
    return Column(
        header=header,
        cells=tuple("-" if x is None else amount(x) if isinstance(x, float) else str(x) for x in values),
        is_text=any(isinstance(value, str) for value in values),
        spare=_SPARE.get(name, 0 if name in _NEVER_SPARED else 1),
    )


def _with_prose(plain: Sequence[Column], prose: Sequence[Column], shown: Presentation) -> str:
    width = shown.line
    room = None if width is None else width - sum(column.width + BETWEEN for column in plain)
    if not prose or room is None or room // len(prose) - BETWEEN >= _LEAST_PROSE:
        length = PROSE_WIDTH if room is None or not prose else min(room // len(prose) - BETWEEN, PROSE_WIDTH)
        return shown.columns([*plain, *prose], {column.header: length for column in prose})
    lines = shown.columns(plain).splitlines()
    below = len(lines) - len(prose[0].cells)  # headers may take several lines
    rows = lines[:below]
    for number, row in enumerate(lines[below:]):
        sentences = "; ".join(f"{text.header}: {text.cells[number]}" for text in prose if text.cells[number])
        rows += [row, *(f"    {line}" for line in _lines(sentences, (width or 0) - 4))]
    return "\n".join(rows)


def _lines(text: str, width: int | None) -> list[str]:
    return [text] if width is None else textwrap.wrap(text, width, break_long_words=False, break_on_hyphens=False)


def listing_json(listing: SpecListing, _shown: Presentation) -> str:
    """Return the records as a list of objects."""
    return dumps([dict(record) for record in listing.records]) + "\n"


def listing_jsonl(listing: SpecListing, _shown: Presentation) -> Iterator[str]:
    """Yield each record as one line of JSON."""
    yield from (dumps(dict(record), indent=None) + "\n" for record in listing.records)


def listing_yaml(listing: SpecListing, _shown: Presentation) -> str:
    """Return the file of the spec that is shown, to start an own one from. Raises InputError for several."""
    if listing.file_text is None:
        raise InputError("--format yaml writes one file: name what to start from")
    return listing.file_text()


def listing_csv(listing: SpecListing, _shown: Presentation) -> str:
    """Return the records as CSV."""
    columns = _columns(listing.records)
    return table_csv(columns, ([record[name] for name in columns] for record in listing.records))


def _columns(records: Sequence[ListingRow]) -> list[str]:
    return list(records[0]) if records else []


def _shown(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple):
        return ",".join(map(str, value)) or NO_WORD
    return str(value)


def _allowed(metadata: Mapping[str, object], default: object) -> str:
    if isinstance(default, bool):
        return "true, false"
    choices = metadata["choices"]
    if isinstance(choices, tuple) and choices:
        return ", ".join(choices)
    ends = (metadata[end] for end in ("low", "high"))
    return " to ".join(count_text(end) if isinstance(end, int) else f"{end:g}" for end in ends)


def enough_listing(question: Question, fewest: Iterable[Enough]) -> SpecListing:
    """Return the fewest devices of every kind by method, the smallest memory first, with days for a million samples."""
    by_hardware: dict[str, dict[str, Enough]] = {}
    title = "Nothing fits on any kind of hardware."
    for held in fewest:
        by_hardware.setdefault(held.hardware, {})[held.method] = held
        scenario = held.layout.query.scenario
        batch = batch_text(scenario.global_batch_size, scenario.seq_length)
        stack = question.stated("stack") or ("" if question.stated("framework") else ADAPTER_STACK)
        title = f"{scenario.model.name}: {batch}, {scenario.framework.name}{f' with stack {stack}' if stack else ''}"
    kinds = sorted(map(load_hardware, by_hardware), key=lambda spec: spec.usable_memory_bytes)
    notes = [
        (
            "Fewest devices of a node, or whole nodes, that hold all weights, LoRA, and LoRA over 4 bits (and divide "
            "the global batch); days for a million samples on them."
        ),
        "simulate plan --offer and --train-tokens compare offers; simulate rank shows the layouts.",
    ]
    return SpecListing(records=[_enough(spec, by_hardware[spec.name]) for spec in kinds], title=title, notes=notes)


def _enough(spec: HardwareSpec, by_method: Mapping[str, Enough]) -> ListingRow:
    row: dict[str, str | int | float | bool | None] = {
        "hardware": spec.name,
        "usable_gib": round(to_gib(spec.usable_memory_bytes), 1),
    }
    for method in get_args(TuningMethod):
        held = by_method.get(method)
        row[f"{method}_devices"] = None if held is None else held.devices
        row[f"{method}_days"] = None if held is None else round(to_days(_SAMPLES * held.seconds_per_sample), 1)
    return row


_SAMPLES = 10**6  # samples whose time stands beside the fewest devices
