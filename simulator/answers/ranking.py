"""Rankings and single estimates of a question: `Question` in, frozen answer out."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterable
from functools import partial

from simulator.answers.cases import OF_DEVICES, Case, scenario_of, scenario_of_run
from simulator.answers.idle import without_effect, without_effect_on_all
from simulator.answers.lengths import with_failing_length
from simulator.answers.memories import over_memories
from simulator.answers.unsaid import is_open, likely_over_open, over_open
from simulator.cost.derived import pricing_of
from simulator.cost.pricing.estimate import Estimate
from simulator.cost.pricing.price import price
from simulator.errors import InputError
from simulator.late import deferred
from simulator.question.frameworks.stacks import DEFAULT
from simulator.question.question import FOLLOWS, SEARCH, Question
from simulator.question.scenario.inputs import check_count, check_share
from simulator.records import Bare, replace
from simulator.search.alternatives import (
    fewest_nodes,
    in_fp8,
    launchable,
    most_nodes,
    on_other_stacks,
    reasons,
    remedies,
    with_memory,
    with_switches,
)
from simulator.search.build import estimate_layout, estimates_of, estimates_of_block
from simulator.search.rank import (
    Fitting,
    Progress,
    best_of,
    equal_to_first,
    fastest_of,
    less_likely,
    nearest_of,
    progress_part,
    search,
    spread,
    surer_than_first,
)
from simulator.search.space import MIN_FIT_PROBABILITY, Counts, OverOpen, PricedLayout, Query, Ranking, Space

_SEARCHED = "no layout was said: the fastest that is likely to fit is taken"
_NEAREST = "no layout was said, and none is likely to fit: this one is the nearest"
_LIKELIER = "no layout was said, and none is likely to fit: one that may is taken"
_NEAR = 3  # number of best layouts to try first in fp8 and on other stacks
_WITH_DEFAULT = ("hardware", "nodes", "seq_length", "global_batch_size", "precision", "framework")


def estimate_of(case: Case, *, in_short: str = "") -> Estimate:
    """Return the estimate of a case over its device's memories; without a recipe what is open too (`over_open`)."""

    def of_memory(other: str) -> Estimate:
        return _of_one_memory(replace(case, scenario=with_memory(case.scenario, other)))

    estimate = _with_idle(_of_one_memory(case, in_short=in_short), lambda: without_effect(case))
    return over_memories(case.question, estimate, of_memory)


def _with_idle(estimate: Estimate, sentences: Callable[[], Iterable[str]]) -> Estimate:
    """Return the estimate with what changes no figure, found when it is read; what is refused has no figures."""
    if estimate.verdict == "refused":
        return estimate
    idle = deferred(lambda: tuple(sentences()))
    return replace(estimate, provenance=replace(estimate.provenance, without_effect=idle))


def _of_one_memory(case: Case, *, in_short: str = "") -> Estimate:
    """Return the estimate of a case on the hardware that is taken."""
    if case.question.recipe is not None:
        estimate = with_failing_length(estimate_layout(case.scenario, case.layout), case.scenario, case.layout)
        known = estimate.provenance
        cautions = (remark.message for remark in case.remarks if remark.rule in OF_DEVICES and remark.place)
        known = replace(known, cautions=(*cautions, *known.cautions))
        return replace(estimate, question=case.question, provenance=known)
    scenario = scenario_of_run(case)
    release = None if scenario is case.scenario else case.scenario.framework
    alone = pricing_of(scenario, case.layout)
    estimate = with_switches(estimates_of_block(price(alone))[0], case.question.options, alone)
    judged = over_open(case.question, estimate, alone, release, in_short=in_short)
    judged = with_failing_length(judged, scenario, case.layout)
    if case.question.layout_is_searched:
        known, chance = judged.provenance, judged.memory.fit_probability
        unlikely = judged.verdict != "fits" or (chance is not None and chance < MIN_FIT_PROBABILITY)
        note = (_LIKELIER if judged.verdict in ("fits", "depends") else _NEAREST) if unlikely else _SEARCHED
        judged = replace(judged, provenance=replace(known, cautions=(note, *known.cautions)))
    return replace(judged, question=case.question.with_layout(case.layout, FOLLOWS))


def query_of(question: Question, space: Space | None = None, min_fit_probability: float = 0.0) -> Query:
    """Return the search of a question, in `space` or over the sets that its layout leaves.

    Raises InputError for what is wrong and UnsupportedError for what cannot be priced.
    """
    check_share("min_fit_probability", min_fit_probability)
    scenario, space = scenario_of(question, recommended=True), space_of(question) if space is None else space
    query = Query(question=question, scenario=scenario, space=space, min_fit_probability=min_fit_probability)
    return launchable(replace(query, over_open=OverOpen(likely_over_open, _judged)))


def space_of(question: Question, *, across_nodes: bool = False) -> Space:
    """Return the space that the layout fields of a question leave, each one value or several."""
    axes = {name: value if isinstance(value, tuple) else (value,) for name, value in question.layout_values.items()}
    return Space(**axes, tensor_parallel_across_nodes=across_nodes)


def rank(  # noqa: PLR0913  what a ranking may be asked for
    question: Question,
    *,
    space: Space | None = None,
    top: int = 10,
    variants: bool = False,
    progress: Progress | None = None,
    min_fit_probability: float = MIN_FIT_PROBABILITY,
    train_tokens: int | None = None,
    deadline_days: float | None = None,
) -> Ranking:
    """Rank the layouts of a question, fastest first; see `simulator.rank`."""
    check_count("top", top)
    fewest = None
    if (most := most_nodes(question.stated("nodes"))) is not None:
        if "devices" in question.inputs:
            raise InputError("give nodes or devices, not both")
        origin = question.origin("nodes")
        small = query_of(question.changed(origin, nodes=1), space, min_fit_probability)
        fewest = fewest_nodes(small, most, train_tokens, deadline_days, progress)
        question, progress = question.changed(origin, nodes=fewest.ranked_nodes), None
    elif deadline_days is not None:
        raise InputError('deadline_days needs nodes="auto"; a plan compares offers')
    query = query_of(question, space, min_fit_probability)
    return replace(_ranked(query, top, progress, variants=variants), fewest=fewest)


def _ranked(query: Query, top: int, progress: Progress | None, *, variants: bool) -> Ranking:
    """Return the ranking of a question with remedies, reasons and alternatives."""
    started = time.perf_counter()
    searched = search(query, top=top, variants=variants, progress=progress_part(progress, 0, 2))
    if not searched.evaluated:
        raise InputError(
            f"no layout to search: the parallel sizes given must multiply to a divisor of {query.scenario.devices} "
            f"devices, with at most {query.scenario.model.num_hidden_layers} pipeline ranks"
        )
    risky = searched.risky
    if risky and not searched.fastest and (likeliest := less_likely(query)) is not None:
        first = (likeliest.layout, likeliest.query.chosen)
        risky = (likeliest, *(each for each in risky if (each.layout, each.query.chosen) != first))
    shown = (searched.fastest, risky, searched.starved)
    layouts = [layout for each in shown for layout in each]
    bare = estimates_of(layouts)
    if searched.fastest:
        bare[0] = with_switches(bare[0], query.options, pricing_of(query.scenario, layouts[0].layout))
    of_each = map(_judged, layouts, bare)
    best, unlikely, starved = ([next(of_each) for _ in each] for each in shown)
    if best:
        best[0] = _with_idle(best[0], partial(without_effect_on_all, tuple(best)))
    sized = {"nodes"} if "devices" in query.question.inputs or query.question.has_groups else set()
    unsaid = (name for name in _WITH_DEFAULT if name not in query.question.inputs and name not in sized)
    near = [estimate.layout for estimate in best[:_NEAR]]
    misses = (*searched.starved, *searched.nearest)
    equal = equal_to_first(searched.fastest, (*searched.risky, *searched.starved))
    side = progress_part(progress, 1, 2)
    fp8 = in_fp8(query, near)
    side(1, 2)
    stacks = tuple(on_other_stacks(query, near))
    side(2, 2)
    return Ranking(
        query=_inputs(query),
        question=query.question,
        defaults=tuple(unsaid),
        estimates=tuple(best),
        risky=tuple(unlikely),
        starved=tuple(starved),
        nearest=None if best else next((_judged(each, *estimates_of([each])) for each in misses), None),
        remedies=() if best else tuple(remedies(query, lawful=any((*shown, searched.nearest)))),
        reasons=() if best else tuple(reasons(query, searched)),
        equal=equal,
        surer=surer_than_first(best, equal),
        fp8=fp8,
        stacks=stacks,
        counts=Counts(
            evaluated=searched.evaluated,
            feasible=searched.feasible,
            rejected=searched.rejected,
            elapsed_seconds=time.perf_counter() - started,
        ),
    )


def _judged(layout: PricedLayout, estimate: Estimate) -> Estimate:
    """Return the estimate of a layout over what nobody said of its run and device, as `simulate estimate` judges it."""

    def over(query: Query, estimate: Estimate) -> Estimate:
        question = query.question.with_switches(query.chosen, SEARCH)
        if not is_open(question, query.scenario):
            return estimate
        return over_open(question, estimate, pricing_of(query.scenario, layout.layout))

    def with_other(name: str) -> Estimate:
        scenario = with_memory(layout.query.scenario, name)
        return over(replace(layout.query, scenario=scenario), estimate_layout(scenario, layout.layout))

    return over_memories(layout.query.question, over(layout.query, estimate), with_other)


def _inputs(query: Query) -> dict[str, object]:
    """Return every input with its value after defaults."""
    scenario, space, model = query.scenario, query.space, query.question.value("model")
    return {
        "model": model if isinstance(model, str) else scenario.model.name,
        "hardware": scenario.hardware_name,
        "nodes": scenario.nodes,
        "devices": scenario.devices,
        **scenario.workload,
        "num_layers": scenario.model.num_hidden_layers,
        "framework": scenario.framework.name,
        "optimizer": scenario.framework.optimizer,
        "options": query.options,
        "stack": scenario.framework.stack,
        "calibration": scenario.coefficients.name,
        "space": {f.name: getattr(space, f.name) for f in dataclasses.fields(space) if getattr(space, f.name)},
        "min_fit_probability": query.min_fit_probability,
    }


class Fastest(Bare):
    """Fastest layout of a question."""

    recommended: Estimate | None
    """Fastest estimate that is likely enough to fit; None where none is."""
    nearest: Estimate | None
    """Without a recommended one: the fastest that may fit, else the smallest need; None where all break rules."""


def fastest(
    question: Question, *, space: Space | None = None, min_fit_probability: float = MIN_FIT_PROBABILITY
) -> Fastest:
    """Return the first layout of `rank`, without the rest of the ranking."""
    query = query_of(question, space, min_fit_probability)
    best = best_of(query)
    if (layout := best or nearest_of(query)) is None:
        return Fastest(None, None)
    judged = _judged(layout, *estimates_of([layout]))
    estimate = _with_idle(judged, partial(without_effect_on_all, (judged,)))
    return Fastest(None, estimate) if best is None else Fastest(estimate, None)


def with_best_layout(question: Question, space: Space | None = None) -> Question:
    """Return the question with the fastest layout that is likely to fit, else the nearest; itself if it says a layout.

    Its switches are those with which a search recommends it; where nothing is likely to fit, those of a stack that
    nobody said stay open.
    """
    if question.layout or question.recipe is not None:
        return question
    best = fastest(question, space=space)
    estimate = best.recommended or best.nearest
    if estimate is None:
        return question
    as_said = question.stated("stack") or estimate.stack == DEFAULT or best.recommended is None
    named = {} if as_said else {"stack": estimate.stack}
    return question.with_layout(estimate.layout).with_switches(estimate.options, SEARCH).changed(SEARCH, **named)


def feasible(layouts: Fitting, most: int = 1000) -> tuple[Estimate, ...]:
    """Return the layouts that fit without intervals; of more than `most` those of `spread`."""
    spreads = [spread(alternative, blocks, max(most // len(layouts), 1)) for alternative, blocks in layouts]
    return tuple(estimate for each in spreads for estimate in estimates_of(each, intervals=False))


def recommended_among(layouts: Fitting, size: int) -> Estimate | None:
    """Return what `fastest` recommends with a micro batch of one `size`, among the layouts of all that fit."""
    sized = ((each, [(part, part.block.micro_batch_size == size) for part in blocks]) for each, blocks in layouts)
    bests = filter(None, (fastest_of(each, among=among) for each, among in sized))
    best = min(bests, key=lambda layout: layout.step_seconds, default=None)
    return None if best is None else estimates_of([best])[0]
