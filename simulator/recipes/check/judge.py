"""Judge of recipe files: each is read, priced and compared with the gates; every file gets an answer."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from simulator.answers.cases import Blocked, Case, OtherHardwareError, case_of
from simulator.answers.explain import Change, Explanation, changes_for
from simulator.answers.gates import FIRM, CheckOutcome, Gates
from simulator.answers.memories import hardware_meant
from simulator.answers.models import ContradictionError
from simulator.answers.ranking import estimate_of
from simulator.answers.rules import READER_RULES, findings
from simulator.cost.pricing.estimate import Estimate, ThroughputEstimate, Verdict
from simulator.errors import (
    AbsentFileError,
    InputError,
    NoRecipeError,
    PrecisionError,
    SimulateError,
    UndecidedError,
    UnsupportedError,
)
from simulator.evidence.cluster import cluster
from simulator.late import deferred
from simulator.question.frameworks.stacks import IN_16_BITS
from simulator.question.frameworks.stacks import framework as framework_profile
from simulator.question.origin import Place, Remark, Severity
from simulator.question.question import Question
from simulator.question.recipe import UNREAD, Recipe
from simulator.question.specs.catalogue import load_model
from simulator.question.units import to_gib
from simulator.question.vocabulary import FRAMEWORKS, NARROW
from simulator.recipes.check import reading as readings
from simulator.recipes.check import verdict
from simulator.recipes.check.folders import expanded, require_file, require_size
from simulator.recipes.check.reading import Reading, Reread
from simulator.recipes.check.repository import NAME as SETTINGS_FILE
from simulator.recipes.check.repository import CommentError, OwnWords, Repository, forget_files, silenced
from simulator.recipes.check.verdict import Checked, peaks_of, room_of
from simulator.records import names_taken, replace
from simulator.search.build import estimate_layout

if TYPE_CHECKING:
    from simulator.search.rank import Progress

T = TypeVar("T")
_SEVERITIES = ("error", "warning", "note")
_BESIDE_SPEED: Final[Mapping[str, Any]] = {"interval_seconds": None, "parts_seconds": {}, "stages": ()}
UNTIMED: Final = ThroughputEstimate(
    **{name: _BESIDE_SPEED.get(name, 0.0) for name in names_taken(ThroughputEstimate) if name != "schedule"}
)  # stands for a speed that a defect hides


def check_files(  # noqa: PLR0913, PLR0917  what a question about files is made of
    files: Iterable[str],
    options: Question,
    gates: Gates,
    settings: Mapping[str, str] | None = None,
    environment: Mapping[str, str] | None = None,
    root: Path | None = None,
    *,
    base: Path | None = None,
    progress: Progress | None = None,
) -> tuple[Checked, ...]:
    """Judge every launch of every file, in order; a folder stands for the possible recipes below it.

    What a repository says of its files (`check.repository`) counts where the options do not say it; with `base`, a
    checkout of what a change is merged into, that of the base. An error in one file becomes its result and does not
    stop the others. Nothing outside `root`, by default the repository of each file, is read. `progress` is called with
    the number of judged files and of all. Raises InputError for errors of the question itself, whatever the file.
    """
    _check_options(options)
    reading = Reading(options=options, settings=settings or {}, environment=environment, root=root)
    forget_files()
    repository = Repository(base, root)
    every = list(expanded(files))
    results: list[Checked] = []
    for number, (file, walked) in enumerate(every):
        try:
            words = repository.words(file)
        except CommentError as error:
            results.append(_failed(file, "", error))
            continue
        if Path(file).name == SETTINGS_FILE or words.excluded is not None:
            results += _passed_over(file, words, repository)
            continue
        own = reading.with_words(words, repository.folder_of(file))
        judged = _checked(file, own, gates, skips=walked or gates.skip_non_recipes)
        results += [_in_repository(verdict.graded(result, gates), words, own) for result in judged]
        if progress is not None:
            progress(number + 1, len(every))
    # A setting that no file uses is remarked once, and not at all where a file uses it.
    read = [result for result in results if result.framework]
    unused = [{remark for remark in result.remarks if remark.rule == UNUSED_SETTING} for result in read]
    left = set.intersection(*unused) if unused else set()
    results_once: list[Checked] = []
    for result in results:
        remarks = tuple(remark for remark in result.remarks if remark.rule != UNUSED_SETTING or remark in left)
        left = left - set(remarks)
        results_once.append(replace(result, remarks=remarks))
    return tuple(results_once)


def _passed_over(file: str, words: OwnWords, repository: Repository) -> Iterator[Checked]:
    """Yield the result of settings that a change brings, or of a file that they leave out. Raises InputError."""
    skipped = Checked(file=file, outcome="skipped", passed=True)
    if words.excluded is not None:
        why = f"{file}{verdict.LEFT_OUT}{words.excluded.file}:{words.excluded.line}"
        yield replace(skipped, reasons=(why,))
        return
    remarks = [*repository.unmatched(file)]
    if (changed := repository.changed(file)) is not None:
        remarks.append(changed)
    if remarks:
        yield replace(skipped, reasons=(f"{file}{verdict.OWN_SETTINGS}",), remarks=tuple(remarks))


def _in_repository(result: Checked, words: OwnWords, reading: Reading) -> Checked:
    """Return a result with what the repository ignores, and without remarks on its settings that the file lacks."""
    repeated = tuple(f"--set {name[:60]}=" for name in words.settings if reading.settings[name] == words.settings[name])
    unused = {x for x in result.remarks if x.rule == UNUSED_SETTING and x.message.startswith(repeated)}
    left = (remark for remark in result.remarks if remark not in unused)
    return silenced(replace(result, remarks=(*left, *words.remarks)), words.ignored)


def _checked(file: str, reading: Reading, gates: Gates, *, skips: bool) -> Iterator[Checked]:
    """Yield the verdict on every launch of a file; `skips` passes over one that starts no training."""
    try:
        require_file(file)
        if skips:
            require_size(file)
        for recipe, reread in reading.launches(file):
            yield check_recipe(recipe, reading.options, gates, reread)
    except NoRecipeError as error:
        failed = _failed(file, "", error)
        yield replace(failed, outcome="skipped", passed=True) if skips else failed
    except SimulateError as error:
        yield _failed(file, "", error)
    except Exception as error:  # noqa: BLE001  no file may hide the verdicts of the others
        yield _failed(file, "", _defect(file, error))


def _check_options(options: Question) -> None:
    """Raise InputError for unknown hardware, an unknown model or an invalid switch."""
    cluster(options.value("hardware"), *(options.stated(name) for name in ("nodes", "devices", "calibration")))
    if (model := options.stated("model")) is not None:
        load_model(model)
    framework = options.stated("framework")
    known = (framework,) if framework else FRAMEWORKS
    for name, text in options.options.items():
        errors = [error for each in known if (error := _switch_error(each, name, text)) is not None]
        if len(errors) == len(known):
            raise errors[0]


def _switch_error(framework: str, name: str, value: str) -> SimulateError | None:
    try:
        framework_profile(framework, {name: value})
    except SimulateError as error:
        return error
    return None


UPPER_BOUND = "upper-bound"
"""Rule of an unpriced setting that only lowers the need: what does not fit without it may fit with it."""
ACTIVATIONS_BOUND = "activations-bound"
"""The same for a setting that only lowers activations: state above the capacity stays so."""
DEVICE_BOUND = "device-bound"
"""The same for a setting that only lowers the devices' need: a host that is too small stays so."""
BOUND_DECIDES = "bound-decides"
"""Rule of such a setting where the recipe without it does not fit, so that no verdict is firm."""
LONGEST, READING = "longest-sample-decides", "reading-decides"
"""Rule of a bound, such as the model's longest sample, by which a recipe does not fit though the shortest does."""
MEMORY_UNSAID = "memory-unsaid"
"""Rule of a verdict that depends on the memory of a device whose name leaves it open."""
UNDECIDED = "interval-reaches-capacity"
"""Rule of a need whose range reaches the capacity: a run decides."""
WEIGHT_CACHE = "fp8-weight-cache"
"""Rule of a verdict that depends on 8-bit copies of weights between micro batches."""
UNUSED_SETTING = "unused-setting"
"""Rule of the remark on a `--set` that the file does not use."""


def check_recipe(
    recipe: Recipe, options: Question, gates: Gates, reread: Reread = lambda _values, _options: None
) -> Checked:
    """Judge one launch; `reread` reads it again with other settings and machines."""
    if recipe.hardware is not None and options.stated("hardware") is None:
        options = options.changed(recipe.origin("hardware"), hardware=recipe.hardware)
    judged = _judged_alone(recipe, options, gates)
    if judged.outcome == "cannot_tell":
        anyway = readings.of_any_stage(recipe, options, reread, lambda other, words: _judged_alone(other, words, gates))
        judged = judged if anyway is None else replace(anyway, remarks=_ordered(anyway.remarks))
    if judged.passed or (judged.outcome not in FIRM and not _is_bound(judged)):
        return _advised(judged, gates)
    missing = readings.unstated(recipe, options, reread)
    devices = judged.estimate.devices if judged.estimate else readings.launched_devices(recipe, options)
    elsewhere = ""
    for option, other in readings.other_machines(recipe, options, missing, devices) if missing else ():
        on_other = _judged_alone((reread({}, other) if missing.counted else None) or recipe, other, gates)
        if on_other.passed:
            elsewhere = f"with {option} it passes"
            break
        open_rules = (BOUND_DECIDES, LONGEST, READING, UNDECIDED, WEIGHT_CACHE)
        if not elsewhere and judged.outcome in FIRM and _is_bound(on_other, *open_rules):
            elsewhere = f"with {option} {_failure(on_other)}"
    if not elsewhere:
        return _advised(judged, gates)
    here = f"on {devices} device{'' if devices == 1 else 's'} {_failure(judged)}"
    remarks = judged.case.remarks if judged.case else recipe.remarks
    return _blocked(recipe, (readings.nodes_remark(elsewhere, here, missing),), remarks)


def _is_bound(judged: Checked, *allowed: str) -> bool:
    """Whether a case was priced and all of its errors have rules in `allowed`, by default `BOUND_DECIDES`."""
    rules = {remark.rule for remark in judged.remarks if remark.severity == "error"}
    return judged.case is not None and bool(rules) and rules <= {*(allowed or (BOUND_DECIDES,))}


def _failure(judged: Checked) -> str:
    """Return in a few words what keeps a recipe from passing."""
    if judged.outcome not in FIRM:
        return f"it is not known to pass ({judged.reasons[0][:200]})"
    if judged.outcome == "refused" or judged.estimate is None:
        return f"it is refused ({judged.reasons[0][:200]})"
    memory = judged.estimate.memory
    return f"it does not pass ({to_gib(memory.device_bytes):.2f} of {to_gib(memory.capacity_bytes):.2f} GiB)"


def _judged_alone(recipe: Recipe, options: Question, gates: Gates) -> Checked:
    """Return the verdict on a launch on the assumed machines, stated or not."""
    if recipe.dialect == UNREAD:
        return _blocked(recipe, (), recipe.remarks)
    try:
        question = options.over(Question.of_recipe(recipe))
        case = case_of(question)
        if isinstance(case, Blocked):
            judged = readings.of_any_vocabulary(question, lambda each: _with_or_without_weight_cache(each, gates))
            if judged is None:
                return _blocked(recipe, case.missing, case.remarks)
            return replace(judged, remarks=_ordered(judged.remarks))
        return _with_or_without_weight_cache(case, gates)
    except Exception as unexpected:  # noqa: BLE001  no launch may hide the verdicts of the others
        error = unexpected if isinstance(unexpected, SimulateError) else _defect(recipe.file, unexpected)
        failed = _failed(recipe.file, recipe.title, error)
        refused = isinstance(error, ContradictionError)
        settings = error.settings if isinstance(error, ContradictionError | OtherHardwareError) else ()
        blame = next((recipe.places[name] for name in settings if name in recipe.places), failed.blame)
        return replace(
            failed,
            framework=recipe.framework,
            dialect=recipe.dialect,
            outcome=_unread(recipe.remarks) or ("refused" if refused else failed.outcome),
            reasons=(*_unread_messages(recipe), *failed.reasons),
            blame=blame,
            remarks=_ordered(recipe.remarks),
        )


def _with_or_without_weight_cache(case: Case, gates: Gates) -> Checked:
    """Return the verdict of a case; `cannot_tell` where it depends on 8-bit copies of weights.

    TransformerEngine keeps them only of 16-bit weights, and by settings that no recipe states (pull request 1648;
    ROCm's `ENABLE_TRANSPOSE_CACHE`). What fits with them fits without them.
    """
    judged, profile = _judged(case, gates), case.scenario.framework
    stated = "fp8_weight_cache" in case.question.switches
    narrow = case.scenario.precision in NARROW and profile.fp8_weight_cache and not stated
    if judged.passed or judged.estimate is None or judged.outcome == "refused" or not narrow:
        return judged
    scenario = replace(case.scenario, framework=replace(profile, fp8_weight_cache=False))
    other = _judged(replace(case, scenario=scenario), gates)
    if (other.outcome, other.passed) == (judged.outcome, judged.passed) or other.estimate is None:
        return judged
    needs = (to_gib(estimate.memory.device_bytes) for estimate in (judged.estimate, other.estimate))
    with_copies, without_copies = (f"{need:.2f}" for need in needs)
    message = (
        f"whether {case.scenario.precision} copies of the weights stay between micro batches is not known: it needs "
        f"{with_copies} GiB with them, {without_copies} without, of {to_gib(judged.estimate.memory.capacity_bytes):.2f}"
    )
    # A verdict that a range leaves to a run stays so; the note names the option that may settle it.
    severity: Severity = "error" if judged.outcome in FIRM else "note"
    remark = Remark(WEIGHT_CACHE, severity, message, fix="--option fp8_weight_cache=true, or =false")
    remarks = _ordered((remark, *judged.remarks))
    if severity == "note":
        return replace(judged, remarks=remarks)
    return replace(judged, outcome="cannot_tell", reasons=(_sentence(remark), *judged.reasons), remarks=remarks)


def _judged(case: Case, gates: Gates) -> Checked:
    recipe = case.recipe
    estimate = estimate_of(case)
    marks = verdict.marks_of(recipe.file)
    errors = (each for each in case.remarks if each.severity == "error" and each.rule not in READER_RULES)
    refusals = (*findings(case.launch(marks), estimate.violations), *errors, *_loose(case, estimate))
    # Unpriced and unknown parts come before the framework's refusals.
    refusals = tuple(sorted(refusals, key=lambda remark: remark.rule not in _UNREAD))
    outcome: CheckOutcome = "refused" if refusals else estimate.verdict
    outcome = _unread(refusals) or outcome
    firm = outcome in ("fits", "starved", "does_not_fit")
    device = _unsure(estimate, recipe.unpriced_bytes) if firm and not _starts(case, estimate) else ()
    unsure = (*device, *_unsure_host(estimate)) if firm else ()
    broken = gates.broken(estimate)
    unsaid = gates.unsaid(estimate) if firm and not unsure else ""
    if unsaid or (estimate.other_memory and outcome == "depends"):
        outcome, fix = "depends", f"--hardware {', or '.join(hardware_meant(case.question))}"
        unsure = (Remark(MEMORY_UNSAID, "error", unsaid or estimate.provenance.cautions[0], fix=fix),)
    passed = outcome in ("fits", "starved") and not broken and not unsure
    host = tuple(_host(estimate))
    unmet = [remark for remark in host if remark.severity == "error"]
    reasons = tuple(remark.message for remark in (*refusals, *unsure, *unmet)) or broken
    priced = outcome not in ("not_modelled", "cannot_tell")
    others = (remark for remark in case.remarks if remark.severity != "error")
    idle = (Remark("inactive-flag", "note", sentence) for sentence in estimate.provenance.without_effect)
    return Checked(
        file=recipe.file,
        title=recipe.title,
        framework=case.scenario.framework.name,
        dialect=recipe.dialect,
        outcome="cannot_tell" if unsure and outcome != "depends" else outcome,
        passed=passed,
        reasons=reasons,
        remarks=_ordered((*refusals, *unsure, *host, *idle, *others)),
        blame=None if passed else _blame(case, estimate, refusals),
        estimate=estimate if priced else None,
        case=case,
    )


def _advised(judged: Checked, gates: Gates) -> Checked:
    """Return a verdict with its speed, its two peaks, its changes and its room, where it was priced."""
    case, estimate = judged.case, judged.estimate
    if case is None or estimate is None:
        return judged
    marks, whole = partial(verdict.marks_of, case.recipe.file), replace(case.layout, offload="none")

    def advice(compute: Callable[[], T], otherwise: T) -> T:
        """Return a field that is computed when it is read; a defect there hides no verdict."""

        def computed() -> T:
            try:
                return compute()
            except Exception as error:  # noqa: BLE001  no launch may hide the verdicts of the others
                warnings.warn(str(_defect(case.recipe.file, error)), RuntimeWarning, stacklevel=2)
                return otherwise

        return deferred(computed)

    def changes() -> tuple[Change, ...]:
        every = ((x, x.estimate) for x in changes_for(case, estimate, marks(), gates))
        verdicts = ((x, y, "depends" if y.memory.undecided else y.verdict) for x, y in every)
        return tuple(replace(x, estimate=replace(y, verdict=verdict)) for x, y, verdict in verdicts)

    verdict_said: Verdict = "refused" if judged.outcome == "refused" else estimate.verdict
    shown = replace(estimate, verdict=verdict_said if judged.outcome in FIRM else "depends")
    return replace(
        judged,
        estimate=replace(shown, throughput=advice(lambda: estimate.throughput, UNTIMED)),
        peaks=advice(lambda: peaks_of(case.scenario, case.layout), None),
        without_offload=None if whole == case.layout else advice(lambda: estimate_layout(case.scenario, whole), None),
        changes=() if judged.passed else advice(changes, tuple[Any, ...]()),
        room=None if judged.outcome == "refused" else advice(lambda: room_of(case, estimate), None),
    )


def _host(estimate: Estimate) -> Iterator[Remark]:
    """Yield the remark on the host memory of offload, and whether a node has it; of loading, saving if it has not."""
    memory, part = estimate.memory, "offload keeps"
    if "loading" in memory.host_parts_bytes:
        part = "loading takes"
    elif set(memory.host_parts_bytes) == {"saving"}:
        part = "saving takes"
    if part != "offload keeps" and memory.fits_host is not False:
        return
    need = f"{part} {to_gib(memory.host_bytes_per_node):.1f} GiB on the host of a node"
    if memory.host_bytes_per_node and memory.fits_host is not None:
        capacity = f"which has {to_gib(memory.host_capacity_bytes or 0.0):.1f}"
        severity: Severity = "note" if memory.fits_host else "error"
        yield Remark(rule="host-memory", severity=severity, message=f"{need}, {capacity}")
    elif memory.host_bytes_per_node and memory.host_capacity_bytes is None:
        message = f"{need}; the spec of {estimate.hardware} states none, so host memory is not judged"
        yield Remark(rule="host-memory-not-judged", severity="note", message=message)


def _unsure_host(estimate: Estimate) -> Iterator[Remark]:
    """Yield the remark where rounding of pinned blocks decides whether the host suffices."""
    memory = estimate.memory
    if memory.fits_host is not None or memory.host_capacity_bytes is None or estimate.verdict == "does_not_fit":
        return
    need, most, capacity = map(to_gib, (memory.host_bytes_per_node, memory.host_most_bytes, memory.host_capacity_bytes))
    message = (
        f"offload keeps {need:.1f} GiB on the host of a node, up to {most:.1f} as pinned blocks are rounded up to "
        f"powers of two, and there are {capacity:.1f}: a run decides"
    )
    yield Remark(rule=UNDECIDED, severity="error", message=message)


def _starts(case: Case, estimate: Estimate) -> bool:
    """Whether a starved run surely starts: its whole 90 % range is within the limit of starved runs."""
    memory = estimate.memory
    if estimate.verdict != "starved" or memory.interval_bytes is None:
        return False
    most = memory.need_bytes * memory.interval_bytes.high / memory.device_bytes
    return most <= case.scenario.coefficients.memory.starved_to * memory.capacity_bytes


def _unsure(estimate: Estimate, unpriced_bytes: float) -> tuple[Remark, ...]:
    """Return the remark where the 90 % range, or an unpriced part, is too near the capacity for a firm answer."""
    memory = estimate.memory
    need, usable = to_gib(memory.device_bytes), to_gib(memory.capacity_bytes)
    # A host that is too small decides by itself: its memory has no interval.
    if memory.fits_host is not False and memory.interval_bytes is not None and memory.undecided:
        low, high = to_gib(memory.interval_bytes.low), to_gib(memory.interval_bytes.high)
        message = (
            f"the 90 % interval, {low:.2f} to {high:.2f} GiB, reaches the usable {usable:.2f}: it fits with "
            f"probability {100.0 * (memory.fit_probability or 0.0):.0f} %, and a run decides"
        )
        return (Remark(rule=UNDECIDED, severity="error", message=message),)
    most = memory.interval_bytes.high if memory.interval_bytes else memory.device_bytes
    if unpriced_bytes and memory.fits and most + unpriced_bytes > memory.capacity_bytes:
        message = (
            f"needs {need:.2f} of {usable:.2f} GiB and up to {to_gib(unpriced_bytes):.2f} more of a part not priced"
        )
        return (Remark(rule=UNDECIDED, severity="error", message=message),)
    return ()


_UNREAD: dict[str, CheckOutcome] = {
    "not-modelled": "not_modelled",
    "unknown-flag": "cannot_tell",
    "bound-decides": "not_modelled",
    LONGEST: "longest_does_not_fit",
    READING: "depends",
    verdict.LONGEST_STATED: "longest_does_not_fit",
}  # outcomes by the rule of a remark on something unread or unpriced, which rules out a firm answer


def _unread(remarks: Iterable[Remark]) -> CheckOutcome | None:
    rules = {remark.rule for remark in remarks if remark.severity == "error"}
    return next((outcome for rule, outcome in _UNREAD.items() if rule in rules), None)


def _unread_messages(recipe: Recipe) -> Iterator[str]:
    """Return the recipe's own remarks that prevent a firm answer."""
    return (remark.message for remark in recipe.remarks if remark.rule in _UNREAD and remark.severity == "error")


def _loose(case: Case, estimate: Estimate) -> tuple[Remark, ...]:
    """Return what may lower a need that does not fit, as errors; none where the favourable reading fails too."""
    if estimate.verdict != "does_not_fit":
        return ()
    rules = {UPPER_BOUND}
    rules |= set() if estimate.memory.state_bytes > estimate.memory.capacity_bytes else {ACTIVATIONS_BOUND}
    rules |= set() if estimate.memory.fits_host is False else {DEVICE_BOUND}
    loose = tuple(remark for remark in case.remarks if remark.rule in rules and remark.severity == "warning")
    bounds = tuple(remark for remark in loose if not _is_ended(remark, case))
    unread = tuple(remark for remark in bounds if not remark.bound and remark.rule != ACTIVATIONS_BOUND)
    if unread:
        return tuple(replace(remark, rule=BOUND_DECIDES, severity="error") for remark in unread)
    least_bytes, capacity_bytes = _favourable_bytes(case, estimate, bounds), estimate.memory.capacity_bytes
    interval = estimate.memory.interval_bytes
    surely = 1.0 if interval is None else interval.low / estimate.memory.device_bytes
    if least_bytes * surely > capacity_bytes or estimate.memory.undecided:  # of the latter a run decides
        return ()
    bounds = _that_matter(case, estimate, bounds, least_bytes)
    low, high, usable = map(to_gib, (least_bytes, estimate.memory.device_bytes, capacity_bytes))
    stateless = any(remark.bound in ("state", "sharding") for remark in bounds)
    shortest = "less" if stateless else f"{low:.2f} GiB"
    both = f"by its most favourable reading it needs {shortest}, by this one {high:.2f} GiB of {usable:.2f}"
    stated = "seq_length" in case.recipe.places
    open_bounds = {remark.bound for remark in bounds}
    words = {"length": ": --lengths FILE decides", "images": ": --images NxWxH decides"}
    rule = READING if open_bounds.isdisjoint(words) else LONGEST
    rule = verdict.LONGEST_STATED if stated and open_bounds == {"length"} else rule
    texts = {x: f"{x.message}{f'; {both}' * (x is bounds[-1])}{words.get(x.bound, '')}" for x in bounds}
    return tuple(replace(each, rule=rule, severity="error", message=texts[each]) for each in bounds)


def _that_matter(case: Case, estimate: Estimate, bounds: tuple[Remark, ...], least_bytes: float) -> tuple[Remark, ...]:
    """Return the bounds without which the most favourable need would be larger; all where none is so alone."""
    if len(bounds) < 2:
        return bounds
    others = {each: tuple(other for other in bounds if other is not each) for each in bounds}
    matter = (each for each in bounds if _favourable_bytes(case, estimate, others[each]) > _MORE * least_bytes)
    return tuple(matter) or bounds


_MORE: Final = 1.001  # ratio of two needs that are not the same


def with_bounds(explanation: Explanation, case: Case) -> Explanation:
    """Return the explanation of a recipe with the outcome that its check has where bounds or a run decide."""
    recipe, estimate = case.question.recipe, explanation.estimate
    bounds = () if recipe is None else _loose(case, estimate)
    if recipe is not None and not bounds and estimate.verdict in FIRM[:-1] and not _starts(case, estimate):
        bounds = _unsure(estimate, recipe.unpriced_bytes)
    if not bounds:
        return explanation
    outcome, estimate = _unread(bounds) or "cannot_tell", replace(estimate, verdict="depends")
    return replace(explanation, estimate=estimate, outcome=outcome, bounds=tuple(each.message for each in bounds))


def _is_ended(remark: Remark, case: Case) -> bool:
    """Whether the user says what a bound is of: a sequence length, the sharding, or that there is one device."""
    question, scenario = case.question, case.scenario
    if remark.bound == "length":
        return question.by_user("seq_length") or question.by_user("lengths")
    return remark.bound == "sharding" and (question.by_user("zero_stage") or scenario.devices == 1)


def _favourable_bytes(case: Case, estimate: Estimate, bounds: Sequence[Remark]) -> float:
    """Return the need by the most favourable reading of some bounds: the shortest samples, or state on the host."""
    if not bounds:
        return estimate.memory.device_bytes
    scenario, layout = case.scenario, case.layout
    kinds = {remark.bound for remark in bounds}
    if kinds & {"length", ""}:
        shortest = 2 * layout.context_parallel * layout.tensor_parallel
        scenario = scenario.of_length(min(shortest, scenario.seq_length))
    if "images" in kinds and scenario.images is not None:
        trained = case.recipe.encoder_training or "frozen"
        scenario = replace(scenario, images=scenario.images._replace(number=0, trained=trained, fills=False))
    if "adapters" in kinds:
        scenario = replace(scenario, lora_rank=1)
    if "experts" in kinds:
        narrow = replace(scenario.framework, expert_adapters="false", quantised_experts=True)
        scenario = replace(scenario, framework=narrow)
    if "types" in kinds:
        scenario = replace(scenario, framework=replace(scenario.framework, **IN_16_BITS, frozen_dtype="compute"))
    if "units" in kinds:
        scenario = replace(scenario, framework=replace(scenario.framework, flat_parameters=False))
    memory = estimate_layout(scenario, layout).memory
    if kinds & {"state", "sharding"}:  # what a step holds beside its state; its temporaries are as large as that
        return memory.parts_bytes.get("activations", 0.0) + memory.parts_bytes.get("logits", 0.0)
    return memory.device_bytes


def _blame(case: Case, estimate: Estimate, refusals: Sequence[Remark]) -> Place | None:
    """Return the line of the flag that decides: a refusal's, else that of the largest part on the binding stage."""
    places = case.recipe.places
    place = next((refusal.place for refusal in refusals if refusal.place is not None), None)
    if place is not None:
        return place
    parts = estimate.memory.parts_bytes
    heaviest = max(parts, key=lambda name: parts[name]) if parts else ""
    order = (*_DECIDES.get(heaviest, ()), "pp", "tp", "micro_batch_size", "model", "nodes")
    return next((places[name] for name in order if name in places), None)


_DECIDES: dict[str, tuple[str, ...]] = {
    "activations": ("recompute", "micro_batch_size", "seq_length", "cp"),
    "logits": ("micro_batch_size", "seq_length"),
    "optimizer": ("zero_stage", "offload", "pp"),
    "gradients": ("zero_stage", "pp"),
    "parameters": ("pp", "tp"),
}


def _blocked(recipe: Recipe, missing: tuple[Remark, ...], remarks: tuple[Remark, ...]) -> Checked:
    """Return the answer for a recipe that lacks values."""
    line = readings.arguments_line(recipe, missing)
    lines = missing if line is None else (line, *missing)
    return Checked(
        file=recipe.file,
        title=recipe.title,
        framework=recipe.framework,
        dialect=recipe.dialect,
        outcome=_unread(recipe.remarks) or "cannot_tell",
        passed=False,
        reasons=(*_unread_messages(recipe), *(_sentence(remark) for remark in lines)),
        remarks=_ordered((*lines, *remarks)),
        blame=next((remark.place for remark in missing if remark.place), None),
    )


def _sentence(remark: Remark) -> str:
    place = f"line {remark.place.line}: " if remark.place else ""
    return f"{place}{remark.message}" + (f" ({remark.fix})" if remark.fix else "")


def _defect(file: str, error: Exception) -> InputError:
    """Return the error for an internal failure, lack of memory included."""
    message = f"{type(error).__name__}: {error}"[:200]
    return InputError(f"{file}: cannot be judged: internal error: {message}; please report it")


def _failed(file: str, title: str, error: SimulateError) -> Checked:
    outcome: CheckOutcome = "unreadable"
    if isinstance(error, UnsupportedError | UndecidedError | AbsentFileError):
        outcome = "not_modelled" if isinstance(error, UnsupportedError) else "cannot_tell"
    if isinstance(error, PrecisionError):
        outcome = "refused"
    place = _LINE.match(str(error))
    blame = Place(place["file"], int(place["line"])) if place else None
    return Checked(file=file, title=title, outcome=outcome, passed=False, reasons=(str(error),), blame=blame)


_LINE = re.compile(r"(?P<file>\S[^:\n]{0,4000}):(?P<line>[1-9][0-9]{0,6}): ")
"""File and line at the start of an error message."""


def _ordered(remarks: Iterable[Remark]) -> tuple[Remark, ...]:
    """Return the distinct remarks, errors first."""
    return tuple(sorted(dict.fromkeys(remarks), key=lambda remark: _SEVERITIES.index(remark.severity)))
