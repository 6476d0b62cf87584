"""Calibration files, the YAML that a fit writes and an estimate reads, and the ranges that their figures have.

The error of a prediction has a standard deviation, in the logarithm, whose square is the sum of those of its
contributions. Each is a size times a unit: of `coefficients` the deviation that their covariance gives the figure, of
`scatter` that of rows around their own source, of `sources` one over the root of the sources of the device family, of
`device` and `stack` one where no row is of the family or of the framework on it, of `nodes` the root of the doublings
of devices beyond the rows, of `layout` the root of the number of features beyond them. Of memory, these five count for
the part that is not parameters, gradients or optimizer state (`memory_spread`). The sizes are those by which ranges
hold 90 % of the rows when each of these is left out in turn.

`calibration.own` fits what is written; `calibration.apply` moves estimates by what is read.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, Final

import numpy as np

from simulator.cost.operations.sums import total_parameters
from simulator.cost.pricing.estimate import Coverage
from simulator.errors import InputError
from simulator.files import data_folder
from simulator.late import late_pattern
from simulator.question.arrays import Matrix, Vector
from simulator.question.coefficients import CoefficientKind, Coefficients, Prior, priors, replaced
from simulator.question.frameworks.profile import FrameworkProfile, switches
from simulator.question.frameworks.stacks import PROFILES, stack_of_file
from simulator.question.scenario.layout import Layout, sizes_text
from simulator.question.scenario.scenario import Scenario
from simulator.question.specs.documents import finite, read_yaml
from simulator.question.vocabulary import StackName
from simulator.records import Bare, NamedTuple, Record, field, replace

LONG_CONTEXT_TOKENS = 8192
"""Sequence length above which a run is one of long context."""
_SIXTEEN_BITS = frozenset({"bf16", "fp16", "fp32"})


def features(scenario: Scenario, layout: Layout) -> tuple[str, ...]:
    """Return the features of a run that many runs lack; formulas alone price one that no run has."""
    present = {
        scenario.precision: scenario.precision not in _SIXTEEN_BITS,
        **_of_layout(layout),
        "experts": scenario.model.is_moe,
        "lora": scenario.lora_rank is not None,
        "long context": scenario.seq_length > LONG_CONTEXT_TOKENS,
        # No run of any source has it.
        "selective_scan": any(kind.mixer == "selective_scan" for kind in scenario.model.layer_kinds),
    }
    return tuple(name for name, there in present.items() if there)


def _of_layout(layout: Layout) -> dict[str, bool]:
    """Return which of the features that its layout decides a run has."""
    return {
        "tensor_parallel": layout.tensor_parallel > 1,
        "pipeline_parallel": layout.pipeline_parallel > 1,
        "context_parallel": layout.context_parallel > 1,
        "zero_stage 3": layout.zero_stage == 3,
        "offload": layout.offload != "none",
    }


class StackCoverage(NamedTuple):
    """Coverage of the rows of one framework on a device family."""

    devices: int
    """Most devices of a row."""
    tokens: int
    """Longest sequence of a row."""
    features: tuple[str, ...]
    """Features that some row has, sorted."""


class Distance(NamedTuple):
    """Distance of a question beyond the rows; all zero and empty inside."""

    device: bool = False
    """Whether no row is of the device family."""
    share_of_source: float = 0.0
    """Inverse of the number of sources of the family; 0 without any."""
    stack: bool = False
    """Whether no row of the family ran the framework, or none ran its operations on the same runtime."""
    doublings: float = 0.0
    """Doublings of the devices beyond the rows of the framework."""
    features: tuple[str, ...] = ()
    """Features that no row of the framework on the family has."""


class RowsCoverage(Record):
    """Coverage of the rows of one kind on a device family; of a family without any, that of all rows."""

    sources: int
    """Sources with rows of the family; 0 where it was never measured."""
    stacks: Mapping[str, StackCoverage]
    """Coverage by framework."""

    def __hash__(self) -> int:
        """Hash by the fields that differ most often."""
        return hash((self.sources, *self.stacks))

    def distances(self, scenario: Scenario) -> Callable[[Layout], Distance]:
        """Return a function from the layouts of a question to their distance beyond the rows."""
        name = scenario.framework.name
        same = [self.stacks[name]] if name in self.stacks else list(self.stacks.values())
        seen = {feature for stack in same for feature in stack.features}
        tokens, devices = (max((getattr(stack, field) for stack in same), default=0) for field in ("tokens", "devices"))
        long = scenario.seq_length > max(tokens, LONG_CONTEXT_TOKENS)

        def beyond(layout: Layout) -> tuple[str, ...]:
            unseen = [feature for feature in features(scenario, layout) if feature not in seen]
            return (*unseen, *(["long context"] if long and "long context" not in unseen else []))

        usual = Distance(
            device=self.sources == 0,
            share_of_source=1.0 / self.sources if self.sources else 0.0,
            stack=name not in self.stacks or scenario.framework.unmeasured_runtime,
            doublings=max(0.0, math.log2(scenario.devices / devices)) if devices else 0.0,
            features=beyond(Layout()),
        )

        def distance(layout: Layout) -> Distance:
            unseen = any(there and feature not in seen for feature, there in _of_layout(layout).items())
            return usual._replace(features=beyond(layout)) if unseen else usual

        return distance

    def __or__(self, other: RowsCoverage) -> RowsCoverage:
        """Return the coverage of both."""
        stacks = [(name, stack) for coverage in (self, other) for name, stack in coverage.stacks.items()]
        return RowsCoverage(max(self.sources, other.sources), _stacks(stacks))

    def as_document(self) -> dict[str, Any]:
        """Return the plain values of a file."""
        stacks = {name: {**stack._asdict(), "features": list(stack.features)} for name, stack in self.stacks.items()}
        return {"sources": self.sources, "stacks": stacks}

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> RowsCoverage:
        """Return the coverage of a file's values. Raises KeyError, TypeError or ValueError for others."""
        stacks = {
            str(name): StackCoverage(
                int(stack["devices"]), int(stack["tokens"]), tuple(str(word) for word in stack["features"])
            )
            for name, stack in document["stacks"].items()
        }
        return cls(int(document["sources"]), stacks)


def coverage_of(runs: Iterable[tuple[Scenario, Layout]], sources: int) -> RowsCoverage:
    """Return the coverage of runs of `sources` sources of the family."""
    stacks = [
        (scenario.framework.name, StackCoverage(scenario.devices, scenario.seq_length, features(scenario, layout)))
        for scenario, layout in runs
    ]
    return RowsCoverage(sources, _stacks(stacks))


def _stacks(stacks: Iterable[tuple[str, StackCoverage]]) -> dict[str, StackCoverage]:
    """Return the union by framework."""
    result: dict[str, StackCoverage] = {}
    for name, stack in sorted(stacks):
        known = result.get(name, StackCoverage(0, 0, ()))
        result[name] = StackCoverage(
            devices=max(known.devices, stack.devices),
            tokens=max(known.tokens, stack.tokens),
            features=tuple(sorted({*known.features, *stack.features})),
        )
    return result


BEYOND: Final = ("stack", "nodes", "layout")
"""Contributions that also widen the ranges of a cluster with runs of its own."""


DIFFERENCE: Final = "difference"
"""Sort of the difference of two layouts' predictions."""


STATE_SPREAD: Final = 0.2
"""Relative error of parameters, gradients and optimizer state over that of the rest of the memory, far from measured
runs: of the values tried, one at which ranges hold rows left out with the narrowest mean (0.133 of 0.141 without)."""
_OF_ROWS: Final = ("coefficients", "scatter")  # contributions that the rows give for the whole figure


def memory_spread(state_share: float | Vector) -> Vector:
    """Return how much of the memory is uncertain far from measured runs; `state_share` is the state's part of it.

    State is arithmetic over a model's sizes; activations and what lies outside the tensors depend on software.
    """
    return np.asarray(np.hypot(1.0 - state_share, STATE_SPREAD * state_share))


class Unit(NamedTuple):
    """Units of one prediction's contributions."""

    sort: str
    """Sort of the prediction, a word of `SORTS` or `DIFFERENCE`."""
    coefficients: float
    """Relative deviation by the covariance of the coefficients."""
    scatter: float
    """Relative scatter of rows around their own source."""
    distance: Distance
    """Distance of the question beyond the rows."""
    features: int | None = None
    """Number of features beyond the rows; None for those of `distance`."""
    spread: float = 1.0
    """Part of the figure that contributions beyond the rows move: 1 for speed, `memory_spread` for memory."""

    def units(self) -> dict[str, float]:
        """Return the unit of each contribution, as a relative deviation."""
        distance = self.distance
        beyond = {
            "sources": math.sqrt(distance.share_of_source),
            "device": float(distance.device),
            "stack": float(distance.stack),
            "nodes": math.sqrt(distance.doublings),
            "layout": math.sqrt(len(distance.features) if self.features is None else self.features),
        }
        of_rows = {"coefficients": self.coefficients, "scatter": self.scatter}
        return of_rows | {name: unit * self.spread for name, unit in beyond.items()}

    def key(self, name: str) -> str:
        """Return the name of a contribution's size; coefficients and scatter have one per sort."""
        return f"{name} {self.sort}" if name in _OF_ROWS else name

    def deviations(self, sizes: Mapping[str, float]) -> dict[str, float]:
        """Return the relative deviation of each contribution; a missing size is 0, of coefficients and scatter 1."""
        usual, units = {self.key(name): 1.0 for name in _OF_ROWS}, self.units()
        return {name: sizes.get(key := self.key(name), usual.get(key, 0.0)) * unit for name, unit in units.items()}

    def deviation(self, sizes: Mapping[str, float]) -> float:
        """Return the relative deviation of the prediction."""
        return math.hypot(*self.deviations(sizes).values())


def difference_unit(variance: float, *scatter: float) -> Unit:
    """Return the units of the difference of two predictions of one cluster, in which shared errors cancel.

    `variance` is that of the difference by the coefficients, from draws that both predictions share.
    """
    return Unit(DIFFERENCE, math.sqrt(max(variance, 0.0)), math.hypot(*scatter), Distance())


_SIZES = (
    *("tensor_parallel", "pipeline_parallel", "context_parallel", "expert_parallel"),
    *("virtual_stages", "micro_batch_size"),
)  # sizes of a layout that a calibration has a range of; others follow from them and from the devices
_UNSIGNED = _SIZES.index("expert_parallel")  # the one that no signature names
_SPLITS = 3  # the first of them, which are features of a run above 1
PLACE = (*_SIZES, "recompute", "recompute_method", "offload", "zero_stage", "sequence_parallel")
"""Fields of a layout that decide its place beside measured runs: layouts with equal ones share a place."""


def numbers(scenario: Scenario, layout: Layout) -> dict[str, float]:
    """Return the numeric features of a run, by name."""
    return _question_numbers(scenario) | _layout_numbers(layout)


def _question_numbers(scenario: Scenario) -> dict[str, float]:
    return {
        "parameters": float(total_parameters(scenario.model)),
        "seq_length": float(scenario.seq_length),
        "devices": float(scenario.devices),
    }


def _layout_numbers(layout: Layout) -> dict[str, float]:
    return {name: float(getattr(layout, name)) for name in _SIZES}


def words(scenario: Scenario, layout: Layout) -> Mapping[str, str]:
    """Return the features of a run that are words, by name; switches are the last."""
    switched = _switched(scenario.framework, layout.tensor_parallel == 1)
    return _question_words(scenario) | _layout_words(layout) | switched


def _question_words(scenario: Scenario) -> dict[str, str]:
    return {
        "hardware": scenario.hardware_name,
        "framework": scenario.framework.name,
        "precision": scenario.precision,
        "attention": scenario.model.attention,
        "experts": "yes" if scenario.model.is_moe else "no",
        "training": "full" if scenario.lora_rank is None else "lora",
    }


def _layout_words(layout: Layout) -> dict[str, str]:
    return {
        "recompute": layout.recompute if layout.recompute != "full" else f"full {layout.recompute_method}",
        "offload": layout.offload,
        "zero_stage": str(layout.zero_stage),
        "sequence_parallel": str(layout.sequence_parallel == (layout.tensor_parallel > 1)),
    }


@lru_cache(maxsize=64)
def _switched(profile: FrameworkProfile, alone: bool) -> dict[str, str]:  # noqa: FBT001  a key of the cache
    """Return every switch that may have an effect, as in a layout `alone` without tensor parallelism."""
    # No row measures a host.
    measured = (f.name for f in switches() if f.metadata["moves"] != ("host",))
    without = {"tp_comm_overlap"} if alone else set[str]()
    return {f"{_SWITCH}{name}": str(getattr(profile, name)) for name in measured if name not in without}


_SWITCH = "option "  # prefix of a switch's name as a feature


@lru_cache(maxsize=256)
def usual_words(feature: str) -> tuple[str, ...]:
    """Return the frameworks' defaults of a switch, sorted, which ranges do not list; () for other features."""
    name = feature.removeprefix(_SWITCH)
    return () if name == feature else tuple(sorted({str(getattr(profile, name)) for profile in PROFILES.values()}))


@lru_cache(maxsize=16)
def signature(scenario: Scenario, layout: Layout) -> str:
    """Return one line that two identical runs share."""
    usual = _switched(PROFILES[scenario.framework.name], layout.tensor_parallel == 1)
    unusual = ((name, word) for name, word in words(scenario, layout).items() if usual.get(name) != word)
    described = {name: word if name not in usual else f"{name.removeprefix(_SWITCH)}={word}" for name, word in unusual}
    words_of_question = _signed(scenario), _signed_sizes(layout), f"gbs{scenario.global_batch_size}"
    return " ".join([*words_of_question, *described.values()]).strip()


def _signed(scenario: Scenario) -> str:
    """Return the first words of a signature, those of the question."""
    model = scenario.model
    return f"{model.name} {model.num_hidden_layers} {scenario.devices} {scenario.seq_length}"


def _signed_sizes(layout: Layout) -> str:
    """Return the words of a signature that follow."""
    return sizes_text(layout, "tp", "pp", "cp", "vpp", "micro_batch_size")


def stack_text(profile: FrameworkProfile, alone: bool) -> str:  # noqa: FBT001  as of `_switched`
    """Return the framework with the switches that differ from its defaults, in a layout `alone` or not."""
    usual, own = (_switched(each, alone) for each in (PROFILES[profile.name], profile))
    switched = (f"{name.removeprefix(_SWITCH)}={word}" for name, word in own.items() if usual.get(name) != word)
    return " ".join((profile.name, *switched))


class CalibratedRange(NamedTuple):
    """Features of the rows that a calibration used."""

    sizes: Mapping[str, tuple[float, float]]
    """Smallest and largest value by feature."""
    seen: Mapping[str, tuple[str, ...]]
    """Words seen by feature."""
    runs: tuple[str, ...]
    """Signatures of the rows used."""
    stacks: tuple[str, ...] = ()
    """Stacks of the rows used, see `stack_text`."""

    def __hash__(self) -> int:
        """Hash by the fields that differ most often."""
        return hash((len(self.runs), self.stacks))

    def outside(self, scenario: Scenario, layout: Layout) -> Iterator[str]:
        """Return why a layout is outside the range, one phrase per feature."""
        named = self.beyond(numbers(scenario, layout), _question_words(scenario) | _layout_words(layout))
        return (phrase for _, phrase in (*named, *_unseen(self, scenario.framework, layout.tensor_parallel == 1)))

    def beyond(self, numbers: Mapping[str, float], words: Mapping[str, str]) -> Iterator[tuple[str, str]]:
        """Yield the features outside the range, with a phrase each."""
        for name, value in numbers.items():
            low, high = self.sizes.get(name, (0.0, 0.0))
            if not low <= value <= high:
                yield name, f"{name} {value:g} (calibrated {low:g} to {high:g})"
        yield from self.unseen(words)

    def unseen(self, words: Mapping[str, str]) -> Iterator[tuple[str, str]]:
        """Yield the words that no run had, with a phrase each."""
        for name, word in words.items():
            seen = self.seen[name] if name in self.seen else usual_words(name)
            if word not in seen:
                yield name, f"{name} '{word}' (calibrated: {', '.join(w or 'none' for w in seen)})"

    def as_document(self) -> dict[str, Any]:
        """Return the plain values of a file."""
        return {
            "sizes": {name: [low, high] for name, (low, high) in self.sizes.items()},
            "seen": {name: list(seen_words) for name, seen_words in self.seen.items()},
            "runs": list(self.runs),
            "stacks": list(self.stacks),
        }

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> CalibratedRange:
        """Return the range of a file's values. Raises KeyError, TypeError or ValueError for others."""
        return cls(
            sizes={str(k): (finite(v[0]), finite(v[1])) for k, v in document["sizes"].items()},
            seen={str(k): tuple(str(x) for x in v) for k, v in document["seen"].items()},
            runs=tuple(str(x) for x in document["runs"]),
            stacks=tuple(str(x) for x in document.get("stacks", ())),
        )


@lru_cache(maxsize=64)
def _unseen(known: CalibratedRange, profile: FrameworkProfile, alone: bool) -> tuple[tuple[str, str], ...]:  # noqa: FBT001
    return tuple(known.unseen(_switched(profile, alone)))


def range_of(runs: Iterable[tuple[Scenario, Layout]]) -> CalibratedRange:
    """Return the range that runs cover."""
    sizes: dict[str, tuple[float, float]] = {}
    seen: dict[str, set[str]] = {}
    signatures, stacks = set[str](), set[str]()
    for scenario, layout in runs:
        signatures.add(signature(scenario, layout))
        stacks.add(stack_text(scenario.framework, layout.tensor_parallel == 1))
        for name, value in numbers(scenario, layout).items():
            low, high = sizes.get(name, (value, value))
            sizes[name] = (min(low, value), max(high, value))
        for name, word in words(scenario, layout).items():
            seen.setdefault(name, set()).add(word)
    return CalibratedRange(
        sizes=sizes,
        seen={
            name: tuple(sorted(seen_words))
            for name, seen_words in seen.items()
            if not seen_words <= set(usual_words(name))
        },
        runs=tuple(sorted(signatures)),
        stacks=tuple(sorted(stacks)),
    )


WORST: tuple[Coverage, ...] = ("measured", "between", "beyond", "never")
"""Words of coverage, from the best known to the least."""


class RangeWords(NamedTuple):
    """Coverage of a question by the measured runs, for device, stack and layout."""

    device: Coverage
    stack: Coverage
    layout: Coverage

    @property
    def worst(self) -> Coverage:
        """Worst of the three words."""
        return max(self, key=WORST.index)


@lru_cache(maxsize=16)
def places_beside(
    calibrated: CalibratedRange, covered: RowsCoverage | None, family: str, scenario: Scenario
) -> Callable[[Layout], RangeWords]:
    """Return a function from a question's layouts to their coverage by a calibration of `family`."""
    runs = [run for run in calibrated.runs if run.startswith(f"{_signed(scenario)} ")]
    beyond = {feature for feature, _ in calibrated.beyond(_question_numbers(scenario), _question_words(scenario))}
    distance = None if covered is None else covered.distances(scenario)
    device: Coverage = "beyond" if "hardware" in beyond else "measured"
    if any(hardware.family != family for hardware in scenario.kinds_of_device):
        device = "never"

    @cache
    def stack_of(alone: bool) -> Coverage:  # noqa: FBT001  as of `_switched`
        if device == "never" or (distance(Layout()).stack if distance else "framework" in beyond):
            return "never"
        if _unseen(calibrated, scenario.framework, alone):
            return "beyond"
        return "measured" if stack_text(scenario.framework, alone) in calibrated.stacks else "between"

    def words_of(layout: Layout) -> RangeWords:
        sizes = _signed_sizes(layout) if runs else ""
        if any(sizes in run for run in runs) and signature(scenario, layout) in runs:
            return RangeWords("measured", "measured", "measured")
        stack = stack_of(layout.tensor_parallel == 1)
        if distance is not None and distance(layout).features:
            return RangeWords(device, stack, "never")
        inside = beyond <= {"hardware", "framework"}
        inside = inside and not any(calibrated.beyond(_layout_numbers(layout), _layout_words(layout)))
        return RangeWords(device, stack, "between" if inside else "beyond")

    return words_of


_RUN_SIZES = late_pattern(r"tp(\d+) pp(\d+) cp(\d+) vp(\d+) mbs(\d+) ")  # sizes in a signature, as `_signed_sizes`


def told_apart(calibrated: CalibratedRange, scenario: Scenario) -> Callable[[Matrix], Matrix]:
    """Return a function from columns of `PLACE`, shape (fields, n), to columns that differ where coverage may.

    A size counts as 1 or more, and all by whether the range holds them, and by the runs of the same question with them.
    """
    signed = f"{_signed(scenario)} "
    of_question = (run for run in calibrated.runs if run.startswith(signed))
    sizes_of_runs = (_RUN_SIZES.match(run, len(signed)) for run in of_question)
    of_runs = np.array([[float(size) for size in run.groups()] for run in sizes_of_runs if run], dtype=np.float64)
    limits = np.array([calibrated.sizes.get(name, (0.0, 0.0)) for name in _SIZES])
    low, high = limits[:, :1], limits[:, 1:]

    def told(columns: Matrix) -> Matrix:
        sizes, others = columns[: len(_SIZES)], columns[len(_SIZES) :]
        alike = (of_runs.reshape(-1, len(_SIZES) - 1, 1) == np.delete(sizes, _UNSIGNED, axis=0)).all(axis=1)
        inside = ((low <= sizes) & (sizes <= high)).all(axis=0, keepdims=True)
        return np.concatenate((others, sizes[:_SPLITS] > 1.0, inside, alike))

    return told


KINDS: tuple[CoefficientKind, ...] = ("memory", "time")
OTHER_FAMILY = "other"
"""Name of the calibration for device families without rows."""
_MOST_NAMED = 3
RETIRED = frozenset({"ring_slowdown"})
"""Coefficients of earlier formulas: a file that has one is refused, for its others mean something else too."""
MOST_NOISE = 1.0
"""Largest relative scatter that a file may hold."""
MOST_SIZE = 10.0
"""Largest size of a range's contribution that a file may hold."""
MOST_VARIANCE = 100.0
"""Largest variance that a file may hold, in squares of the width of the coefficient's bounds."""


class FittedPart(Bare):
    """Coefficients of one kind as stored: fitted, or known by how the hardware works."""

    values: Mapping[str, float]
    covariance: Matrix
    """Covariance in the order of `values`; all zero where they are known."""
    noise: float
    """Relative scatter of the rows used."""
    rows_used: tuple[str, ...]
    rows_left_out: Mapping[str, float]
    """Relative error of each row left out."""
    decided_by: Mapping[str, tuple[str, ...]]
    """Rows that decide most of each coefficient."""
    noise_by: Mapping[str, float] = field(default_factory=dict)
    """Relative scatter by sort: `dense` and `moe` models, or kinds of memory figure; may be empty."""
    sizes: Mapping[str, float] = field(default_factory=dict)
    """Sizes of a range's contributions; of coefficients and scatter a missing one is 1, of others 0."""
    coverage: RowsCoverage | None = None
    """Coverage of the rows; None for files without it."""
    known: str = ""
    """Why the values need no rows, in one sentence; empty for fitted ones."""

    @property
    def names(self) -> tuple[str, ...]:
        """Coefficient names in the covariance's order."""
        return tuple(self.values)

    @property
    def vector(self) -> Matrix:
        """Values in the covariance's order."""
        return np.array(list(self.values.values()), dtype=np.float64)


class Calibration(NamedTuple):
    """Coefficients of one hardware family or cluster, with the range of its rows."""

    family: str
    """Hardware family the rows were measured on."""
    tool_version: str
    tables: tuple[str, ...]
    memory: FittedPart | None
    time: FittedPart | None
    range: CalibratedRange
    stack: StackName | None = None
    """Named stack that all of its rows ran; an estimate on the family assumes it."""

    @property
    def name(self) -> str:
        """Name in every estimate's provenance."""
        many = len(self.tables) > _MOST_NAMED
        return f"{self.family} ({f'{len(self.tables)} sources' if many else ', '.join(self.tables) or 'known'})"

    def part(self, kind: CoefficientKind) -> FittedPart | None:
        """Return the coefficients of one kind."""
        return self.memory if kind == "memory" else self.time

    def coefficients(self, base: Coefficients | None = None) -> Coefficients:
        """Return the coefficient set that formulas take; coefficients that were not fitted come from `base`."""
        return coefficients_of(map(self.part, KINDS), self.name, base)


def coefficients_of(parts: Iterable[FittedPart | None], name: str, base: Coefficients | None = None) -> Coefficients:
    """Return the set of fitted parts, by kind in the order of KINDS, over `base`."""
    result = base or Coefficients()
    for kind, part in zip(KINDS, parts, strict=True):
        if part is not None:
            result = replaced(result, kind, part.names, part.vector)
    return replace(result, name=name)


def calibration_text(calibration: Calibration) -> str:
    """Return the text of a calibration's file."""
    document = {
        "family": calibration.family,
        "tool_version": calibration.tool_version,
        "tables": list(calibration.tables),
        **({} if calibration.stack is None else {"stack": calibration.stack}),
        "range": calibration.range.as_document(),
    }
    for kind in KINDS:
        if (part := calibration.part(kind)) is not None:
            document[kind] = _part_document(kind, part)
    known = all(part is None or part.known for part in (calibration.memory, calibration.time))
    fitted = "known without measured runs" if known else "fitted by `simulate calibrate`"
    head = (
        f"# Coefficients of family {calibration.family}, {fitted}.\n"
        "# docs/calibration.md explains each.\n"
        "# Edit a value to try it; fit again to replace the file.\n"
    )
    import yaml  # noqa: PLC0415  start-up time

    return head + yaml.safe_dump(document, sort_keys=False, width=120, allow_unicode=True)


def _part_document(kind: CoefficientKind, part: FittedPart) -> dict[str, Any]:
    known = priors(kind)
    if part.known:
        named = {
            name: {"value": _rounded(value), "unit": known[name].unit, "about": known[name].about}
            for name, value in part.values.items()
        }
        return {"known": part.known, "noise": _rounded(part.noise), "coefficients": named}
    # Of the rounded covariance, so that a file read and written again is the same.
    errors = [math.sqrt(_rounded(float(variance))) for variance in np.diag(part.covariance)]
    coefficients = {
        name: {
            "value": _rounded(value),
            "standard_error": _rounded(error),
            "unit": known[name].unit,
            "about": known[name].about,
            "decided_by": list(part.decided_by.get(name, ())),
        }
        for (name, value), error in zip(part.values.items(), errors, strict=True)
    }
    by_sort = {"noise_by": {sort: _rounded(noise) for sort, noise in part.noise_by.items()}} if part.noise_by else {}
    return {
        "noise": _rounded(part.noise),
        **by_sort,
        **({"sizes": {name: _rounded(size) for name, size in part.sizes.items()}} if part.sizes else {}),
        **({} if part.coverage is None else {"coverage": part.coverage.as_document()}),
        "coefficients": coefficients,
        "covariance_order": list(part.names),
        "covariance": [
            " ".join(str(_rounded(float(x))) for x in row[:count]) for count, row in enumerate(part.covariance, 1)
        ],
        "rows_used": list(part.rows_used),
        "rows_left_out": {key: _rounded(value) for key, value in part.rows_left_out.items()},
    }


def _rounded(value: float) -> float:
    """Return a value with eight significant digits: files do not differ in the last bit of a fit."""
    return float(f"{value:.8g}")


def read_calibration(path: Path) -> Calibration:
    """Read a calibration file. Raises InputError naming the file and the key."""
    document = read_yaml(path)
    if not isinstance(document, dict):
        raise InputError(f"{path}: a calibration is a mapping with the keys family, tables, range, memory, time")
    try:
        return Calibration(
            family=str(document["family"]),
            tool_version=str(document["tool_version"]),
            tables=tuple(str(t) for t in document["tables"]),
            memory=_read_part(path, "memory", document.get("memory")),
            time=_read_part(path, "time", document.get("time")),
            range=CalibratedRange.from_document(document["range"]),
            stack=stack_of_file(document.get("stack")),
        )
    except KeyError as error:
        raise InputError(f"{path}: not a calibration file: no {error}") from error
    except (TypeError, ValueError, AttributeError, IndexError, OverflowError) as error:
        raise InputError(f"{path}: not a calibration file: {error}") from error


def _read_part(path: Path, kind: CoefficientKind, document: Any) -> FittedPart | None:
    if document is None:
        return None
    reason = str(document.get("known") or "")
    entries = document["coefficients"]
    order = list(map(str, entries if reason else document["covariance_order"]))
    if sorted(order) != sorted(map(str, entries)):
        raise InputError(f"{path}: {kind}.covariance_order: must name the coefficients, each once")
    values = {
        name: _read_value(f"{path}: {kind}.coefficients", kind, entries, name, known=bool(reason)) for name in order
    }
    if not values:
        raise InputError(f"{path}: {kind}.coefficients: at least one is needed")
    noise = float(document["noise"])
    noise_by = {str(sort): float(value) for sort, value in (document.get("noise_by") or {}).items()}
    for name, value in {"noise": noise, **{f"noise_by.{sort}": value for sort, value in noise_by.items()}}.items():
        if not 0.0 < value <= MOST_NOISE:
            raise InputError(f"{path}: {kind}.{name}: {value:g} is not above 0 and at most {MOST_NOISE:g}")
    if reason:
        return FittedPart(values, np.zeros((len(values), len(values))), noise, (), {}, {}, known=reason)
    sizes = {str(name): float(size) for name, size in (document.get("sizes") or {}).items()}
    for name, size in sizes.items():
        if not 0.0 <= size <= MOST_SIZE:
            raise InputError(f"{path}: {kind}.sizes.{name}: {size:g} is not from 0 to {MOST_SIZE:g}")
    covered = document.get("coverage")
    where = f"{path}: {kind}.covariance"
    covariance = _read_covariance(where, document["covariance"])
    _check_covariance(where, covariance, [priors(kind)[name] for name in values])
    return FittedPart(
        values=values,
        covariance=covariance,
        noise=noise,
        rows_used=tuple(str(k) for k in document["rows_used"]),
        rows_left_out={str(k): float(v) for k, v in document["rows_left_out"].items()},
        decided_by={
            str(name): tuple(str(k) for k in entry.get("decided_by", ()))
            for name, entry in document["coefficients"].items()
        },
        noise_by=noise_by,
        sizes=sizes,
        coverage=None if covered is None else RowsCoverage.from_document(covered),
    )


def _read_covariance(where: str, lines: Any) -> Matrix:
    """Return the matrix of which lines hold the lower half, or of an earlier version's rows. Raises InputError."""
    try:
        rows = [[*map(float, line if isinstance(line, list) else str(line).split())] for line in lines]
        if [*map(len, rows)] != [*range(1, len(rows) + 1)]:
            return np.array(rows, dtype=np.float64)
    except (TypeError, ValueError):
        raise InputError(f"{where}: must be lines of numbers, the lower half of a matrix") from None
    half = np.array([[*row, *[0.0] * (len(rows) - len(row))] for row in rows], dtype=np.float64)
    return half + np.tril(half, -1).T


def _read_value(where: str, kind: CoefficientKind, entries: Any, name: str, *, known: bool) -> float:
    """Return a coefficient's value; a `known` one may be 0, whatever the bounds of a fit. Raises InputError."""
    prior = priors(kind).get(name)
    if name in RETIRED:
        raise InputError(f"{where}.{name}: the file is of earlier formulas; fit it again with `simulate calibrate`")
    if prior is None:
        raise InputError(f"{where}.{name}: unknown coefficient; allowed: {', '.join(priors(kind))}")
    value, low = float(entries[name]["value"]), 0.0 if known else prior.low
    if not (math.isfinite(value) and low <= value <= prior.high):
        raise InputError(f"{where}.{name}: {value:g} is outside {low:g} to {prior.high:g}")
    return value


def _check_covariance(where: str, covariance: Matrix, known: Sequence[Prior]) -> None:
    """Raise InputError for a matrix that is no covariance of coefficients with these bounds."""
    count = len(known)
    if covariance.shape != (count, count) or not np.isfinite(covariance).all():
        raise InputError(f"{where}: must be {count} x {count} finite numbers")
    # In units of the bounds' width, so that no figure over- or underflows.
    widths = np.array([prior.high - prior.low for prior in known])
    scaled = covariance / widths[:, None] / widths[None, :]
    if not np.isfinite(scaled).all() or np.abs(scaled).max() > MOST_VARIANCE:
        raise InputError(f"{where}: a standard error is beyond ten times the width of the bounds")
    if not np.allclose(scaled, scaled.T) or np.linalg.eigvalsh(scaled).min() < -1e-6 * np.abs(scaled).max():
        raise InputError(f"{where}: must be symmetric and positive")


def shipped_names() -> tuple[str, ...]:
    """Return the hardware families and clusters for which a calibration ships."""
    return tuple(sorted(path.stem for path in data_folder("calibration").glob("*.yaml")))


@lru_cache(maxsize=32)
def shipped_calibration(name: str) -> Calibration | None:
    """Return the calibration shipped for a hardware family, or for a cluster by its spec's name; None without one."""
    path = data_folder("calibration") / f"{name}.yaml"
    return read_calibration(path) if path.is_file() else None
