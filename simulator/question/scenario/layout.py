"""Layout: the cut of a model over devices, with recomputation and offload.

The fields of `Layout`, each a row of `layout.csv` too, are the one place of layout fields: columns of blocks, axes of a
search, options, keys of JSON, columns of CSV and of measured rows, and texts derive from them; `scenario.typed` and
`.keywords` are written from them.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import accumulate
from operator import attrgetter
from typing import Any, Literal, assert_never

from simulator.errors import InputError
from simulator.files import read_table
from simulator.question import vocabulary
from simulator.question.scenario.inputs import GROUPS, LISTS, InputSetting, settings_of
from simulator.question.vocabulary import (
    RECOMPUTE_MODULES,
    Offload,
    RecomputeMethod,
    RecomputeMode,
    RecomputeModule,
    ScheduleName,
)
from simulator.records import Record


class Layout(Record, kw_only=True):
    """Layout of a training run over its devices; counts are of the whole run unless stated."""

    tensor_parallel: int = 1
    """Ranks that share every weight matrix."""
    pipeline_parallel: int = 1
    """Pipeline ranks; each holds one stage, or `virtual_stages` chunks of one."""
    context_parallel: int = 1
    """Ranks that share one sequence."""
    expert_parallel: int = 1
    """Ranks over which whole routed experts are spread."""
    expert_tensor_parallel: int = 1
    """Ranks that share every routed expert's matrices."""
    data_parallel: int = 1
    """Replicas: devices / (tensor x pipeline x context)."""
    virtual_stages: int = 1
    """Model chunks per pipeline rank; 1 is plain 1F1B, more is the interleaved schedule."""
    schedule: ScheduleName = "1f1b"
    """Order of the passes of a pipeline."""
    micro_batch_size: int = 1
    """Sequences per micro batch on one replica."""
    zero_stage: int = 1
    """0 none, 1 optimizer state (Megatron's distributed optimizer), 2 also gradients, 3 also parameters."""
    sequence_parallel: bool = False
    """Split the activations between the tensor-parallel regions over the tensor-parallel group."""
    recompute: RecomputeMode = "none"
    """Recomputation in the backward pass: nothing, the attention core, whole layers, the attention block, or all
    operations but attention and every second matrix product (torchtitan's per-operation checkpointing)."""
    recompute_modules: tuple[RecomputeModule, ...] = ("core_attn",)
    """Recomputed parts of a layer, for selective recompute."""
    recompute_method: RecomputeMethod = "uniform"
    """Recomputed layers, for full recompute: all in units (`uniform`), the first of each chunk (`block`), or a list."""
    recompute_layers: int = 1
    """Layers per unit (`uniform`) or recomputed layers per chunk (`block`)."""
    recompute_layer_list: tuple[int, ...] = ()
    """Indices of the recomputed layers (`list`)."""
    offload: Offload = "none"
    """Tensors kept in host memory between uses."""
    stage_layers: tuple[int, ...] = ()
    """Layers on each pipeline rank, first to last; empty means the default cut."""
    chunk_layers: tuple[int, ...] = ()
    """Layers of every model chunk in the order of the model, chunk c of rank i at `c p + i`; empty: equal chunks.

    A chunk without layers holds the embedding or the loss alone."""

    def __post_init__(self) -> None:
        """Raise InputError, naming the field, for values that no layout has."""
        for check, value in zip(_CHECKS, _VALUES(self), strict=True):
            check(value)
        modules = self.recompute_modules
        # In the order of the table, so that equal sets are equal layouts.
        object.__setattr__(self, "recompute_modules", tuple(word for word in RECOMPUTE_MODULES if word in modules))
        if len(modules) != len(self.recompute_modules) or not modules:
            raise InputError(f"recompute_modules {list(modules)}: must be one module or more, each once")
        if len(set(self.recompute_layer_list)) != len(self.recompute_layer_list):
            raise InputError(f"recompute_layer_list {list(self.recompute_layer_list)}: names a layer twice")
        if any(layers < 0 for layers in self.chunk_layers):
            raise InputError(
                f"chunk_layers {list(self.chunk_layers)}: every chunk needs a whole number of layers from 0"
            )
        if any(layers < (0 if self.chunk_layers else 1) for layers in self.stage_layers):
            raise InputError(
                f"stage_layers {list(self.stage_layers)}: every stage needs a whole number of layers from 1"
            )

    @property
    def devices(self) -> int:
        """Devices the layout occupies."""
        return self.tensor_parallel * self.pipeline_parallel * self.context_parallel * self.data_parallel

    @property
    def replica(self) -> int:
        """Devices of one replica: tensor x pipeline x context parallel sizes."""
        return self.tensor_parallel * self.pipeline_parallel * self.context_parallel

    @property
    def split(self) -> tuple[int, ...]:
        """Sizes by which a ranking groups layouts: tensor, pipeline, context, expert and expert tensor parallel."""
        return tuple(getattr(self, field.name) for field in SPLIT)


def _about(row: Mapping[str, str]) -> dict[str, Any]:
    """Return what a row of `layout.csv` says of a field, by the names of `InputSetting`."""
    about: dict[str, Any] = {name: row[name] for name in _TEXTS if row[name]}
    about |= {name: int(row[name]) for name in ("low", "high") if row[name]}
    about |= {name: _values(row[name]) for name in ("choices", "named_choices", "searched") if row[name]}
    marks = row["marks"].split()
    return about | {"split": "split" in marks, "per_block": "per_block" in marks, "of_work": "same_work" not in marks}


_TEXTS = ("key", "label", "group", "kind", "search", "help")


def _values(text: str) -> tuple[Any, ...]:
    """Return the values of a cell: numbers, words, or those of the vocabulary by its name in capitals."""
    if text.isupper():
        return tuple(getattr(vocabulary, text))
    return tuple(int(word) if word.isdecimal() else word for word in text.split())


FIELDS = settings_of(Layout, {row["name"]: _about(row) for row in read_table(__file__, "layout")})
"""Fields of a layout, in order; `layout.csv` says what is known of each."""
_CHECKS, _VALUES = [field.check for field in FIELDS], attrgetter(*(field.name for field in FIELDS))
SPLIT = tuple(field for field in FIELDS if field.split)
PER_BLOCK = tuple(field for field in FIELDS if field.per_block)
"""Fields that all layouts of a block share."""
COLUMNS = tuple(field for field in FIELDS if not field.per_block)
"""Fields of which a block holds one number per layout."""
_CHUNKS = InputSetting(
    name="layers_per_virtual_stage",
    key="layers_per_virtual_stage",
    kind="count",
    default=None,
    help="The same, as layers in a chunk.",
    search="the same, given as layers per chunk",
)
SETTINGS = tuple(
    setting for field in FIELDS for setting in ((field, _CHUNKS) if field.name == "virtual_stages" else (field,))
)
"""Layout settings of a user: the fields, and `layers_per_virtual_stage` as another form of `virtual_stages`."""
BY_NAME: Mapping[str, InputSetting] = {name: setting for setting in SETTINGS for name in (setting.name, setting.key)}
"""Settings by name and by key."""
MICRO_BATCH_SIZES: tuple[int, ...] = BY_NAME["micro_batch_size"].searched
SEARCHED_RECOMPUTE_MODES: tuple[RecomputeMode, ...] = BY_NAME["recompute"].searched
"""Recompute modes that a search tries by default."""


def layout_object(layout: Layout) -> dict[str, Any]:
    """Return the layout as plain values by key: sizes, then recompute, then the rest."""
    ordered = sorted(FIELDS, key=lambda field: GROUPS.index(field.group))
    values = ((field, getattr(layout, field.name)) for field in ordered)
    return {field.key: list(value) if field.kind in LISTS else value for field, value in values}


def layout_of_object(values: Mapping[str, Any]) -> Layout:
    """Return the layout of plain values by key. Raises KeyError, TypeError or InputError for other values.

    Modules, chunks and schedule may be absent: answers of earlier versions have none.
    """
    later = (BY_NAME["recompute_modules"], BY_NAME["chunk_layers"], BY_NAME["schedule"])
    filled = {**{field.key: field.default for field in later}, **values}
    fields: dict[str, Any] = {field.name: filled[field.key] for field in FIELDS}
    layers = {field.name: tuple(map(int, fields[field.name])) for field in FIELDS if field.kind == "layers"}
    words = {field.name: tuple(fields[field.name]) for field in FIELDS if field.kind == "words"}
    return Layout(**(fields | layers | words))


def sizes_text(layout: Layout, *keys: str) -> str:
    """Return fields with their labels in lower case: `tp2 pp4`."""
    settings = (BY_NAME[key] for key in keys)
    return " ".join(f"{setting.label.lower()}{getattr(layout, setting.name)}" for setting in settings)


def default_cut(layers: int, pipeline_parallel: int) -> tuple[int, ...]:
    """Return the layers per pipeline rank when the user gives no cut.

    An even cut where it exists. Otherwise the layers left over go to the middle stages, since the first and the
    last also hold the embedding and the output layer (what Megatron's first/last-stage options are used for).
    """
    base, remainder = divmod(layers, pipeline_parallel)
    cut = [base] * pipeline_parallel
    # Middle stages first, then the first, and the last only when every other stage has one more.
    order = [*range(1, pipeline_parallel - 1), 0, pipeline_parallel - 1]
    for stage in order[:remainder]:
        cut[stage] += 1
    return tuple(cut)


def balanced_chunks(layers: int, predicted: int, chunks: int) -> tuple[int, ...]:
    """Return the layers of `chunks` model chunks, counting embedding, loss and prediction modules as a layer each.

    Remaining layers go to the chunks before the last, one each: a run of them is spread over the ranks evenly, the
    last chunk has the output layer, and later chunks are in flight for fewer micro batches. A chunk whose share is one
    holds the embedding alone, or the loss.
    """
    share, remainder = divmod(layers + predicted + 2, chunks)
    sizes = [share + (chunks - 1 - remainder <= index < chunks - 1) for index in range(chunks)]
    sizes[0] -= 1
    sizes[-1] -= 1 + predicted
    while sizes[-1] < 0:
        # Prediction modules and loss exceed the share: another chunk gives up a layer.
        sizes[max(range(chunks), key=lambda index: (sizes[index], index))] -= 1
        sizes[-1] += 1
    return tuple(sizes)


def rank_layers(
    chunk_layers: tuple[int, ...], pipeline_parallel: int, schedule: ScheduleName = "1f1b"
) -> tuple[int, ...]:
    """Return the layers on each pipeline rank from those of every model chunk; () from ()."""
    p, chunks = pipeline_parallel, chunk_layers
    if pipeline_shape(schedule, p, len(chunks) // max(p, 1)) == "there_and_back":
        return tuple(chunks[rank] + chunks[-1 - rank] for rank in range(p))
    return tuple(sum(chunks[rank::p]) for rank in range(p if chunks else 0))


PipelineShape = Literal["round", "there_and_back", "both_ends"]
"""Placement of model chunks on pipeline ranks. `round`: in order, starting again at the first rank. `there_and_back`:
a second chunk per rank in reverse order. `both_ends`: every rank also holds the chunk of its mirror rank."""


def pipeline_shape(schedule: ScheduleName, pipeline_parallel: int, virtual_stages: int) -> PipelineShape:
    """Return the shape a schedule needs; `round` where the pipeline cannot have it, which the rules refuse."""
    match schedule:
        case "1f1b" | "zb_h1":
            pass
        case "zb_v" | "dualpipev":
            if pipeline_parallel > 1 and virtual_stages == _THERE_AND_BACK:
                return "there_and_back"
        case "dualpipe":
            if pipeline_parallel % 2 == 0 and virtual_stages == 1:
                return "both_ends"
        case _:
            assert_never(schedule)
    return "round"


_THERE_AND_BACK = 2  # chunks of a rank in a pipeline that goes there and back
ROUND: tuple[ScheduleName, ...] = ("1f1b", "zb_h1")
"""Schedules of pipelines that go round and round."""


def model_chunks(
    stage_layers: tuple[int, ...],
    virtual_stages: int,
    chunk_layers: tuple[int, ...] = (),
    schedule: ScheduleName = "1f1b",
) -> tuple[tuple[tuple[int, int], ...], ...]:
    """Return (first layer, layers) of every model chunk of every pipeline rank.

    Interleaved chunks take turns: chunk c of rank i is the `c p + i`-th of the model (Narayanan et al. 2021). Without a
    list the chunks of a rank are equal; a rank whose layers they do not divide has one chunk.
    """
    v, p = virtual_stages, len(stage_layers)
    shape = pipeline_shape(schedule, p, v)
    sizes = stage_layers
    if len(chunk_layers) == v * p:
        sizes = chunk_layers
    elif v > 1 and not any(layers % v for layers in stage_layers):
        each = tuple(layers // v for layers in stage_layers)
        sizes = (*each, *each[::-1]) if shape == "there_and_back" else each * v
    starts = (0, *accumulate(sizes))
    if shape == "there_and_back" and len(sizes) == 2 * p:
        return tuple(tuple((starts[at], sizes[at]) for at in (rank, 2 * p - 1 - rank)) for rank in range(p))
    if shape == "both_ends":
        ends = (sorted((rank, p - 1 - rank)) for rank in range(p))
        return tuple(tuple((starts[at], sizes[at]) for at in pair) for pair in ends)
    return tuple(tuple((starts[at], sizes[at]) for at in range(rank, len(sizes), p)) for rank in range(p))
