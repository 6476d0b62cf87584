"""Commands of the lab: `validate` launches layouts, `trace` counts a stage's bytes, `calibrate --probe` measures.

`simulator.lab` is imported where a command runs, as launches exist on POSIX alone.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from simulator.errors import InputError, UnsupportedError
from simulator.late import Lazy
from simulator.question.origin import ARGUMENT, OPTION
from simulator.question.scenario.inputs import DEFAULTS
from simulator.question.scenario.layout import Layout
from simulator.records import replace
from simulator.show.cli import options
from simulator.show.cli.question import question_on_line, require_model
from simulator.show.cli.streams import colour_of, note, presentation, verbosity_of, write, write_answer
from simulator.show.forms import ANSWERS

if TYPE_CHECKING:
    from simulator.answers import cases, ranking
    from simulator.cost.pricing.estimate import Estimate
    from simulator.lab.probe import run as probing
    from simulator.lab.runner import campaign, engines
    from simulator.lab.runner import engine as launching
    from simulator.lab.trace import tracing
    from simulator.question.question import Question
    from simulator.question.specs import catalogue, names
    from simulator.question.specs.hardware import HardwareSpec
    from simulator.show.report import lab as report
else:
    cases, ranking, catalogue = map(Lazy, ("answers.cases", "answers.ranking", "question.specs.catalogue"))
    campaign, launching, engines = (Lazy(f"lab.runner.{name}") for name in ("campaign", "engine", "engines"))
    probing, tracing, report = map(Lazy, ("lab.probe.run", "lab.trace.tracing", "show.report.lab"))
    names = Lazy("question.specs.names")

_FRAMEWORKS = {"reference": "torch", "megatron": "megatron", "paddle": "paddle"}
_SMALL = {"seq_length": 256, "global_batch_size": 8}
_LARGE = {name: DEFAULTS[name] for name in _SMALL}
"""Default sizes: `_SMALL` on processors, so that a launch takes seconds, else the usual ones."""
_MOST_RANKED = 256  # most layouts of the ranking from which launches are chosen


def validate(ctx: click.Context, values: Mapping[str, Any]) -> None:
    """Plan, launch, compare, and leave with the exit code; the engine is the framework, and trains all weights.

    Raises UnsupportedError where there is no POSIX.
    """
    if os.name != "posix":
        raise UnsupportedError("simulate validate: launches need Linux or another POSIX system")
    quiet = verbosity_of(ctx) < 0
    hardware, question = _question(ctx, values)
    space = ranking.space_of(question, across_nodes=values["allow_tp_across_nodes"])
    rank = partial(ranking.rank, space=space, top=_MOST_RANKED, variants=True)
    _check_options(values)
    record = campaign.RowsFile(Path(values["output"] or _work_folder(values) / f"{hardware.name}.csv"))
    learned_file = record.path.with_suffix(".yaml")
    if values["calibrate"] and values["calibration"] is None and learned_file.is_file():
        question = question.changed(calibration=str(learned_file))
        note(f"ranked by {learned_file}, of earlier launches", quiet=quiet)
    pick = _pick(values, question, record.table)
    engine = _engine(values, hardware)
    launcher = launching.Launcher(endpoint=values["rdzv_endpoint"] or "", node_rank=values["node_rank"])
    launcher.check(pick.scenario.nodes)
    if not values["dry_run"]:
        engine.check()
        record.check()
    ranked = rank(question)
    if not ranked.estimates:
        raise UnsupportedError("nothing to launch: no layout fits; `simulate rank` with the same options says why")
    planner = partial(campaign.Planner, engine=engine, pick=pick, record=record)
    plan = _planned(ctx, values, planner, ranked.estimates)
    if values["dry_run"]:
        write(report.dry_run_text(plan, launcher), None)
        return
    _warn(values, hardware, engine, plan, quiet=quiet)
    keeper = record if values["node_rank"] == 0 else None
    launched = campaign.run(plan, launcher, engine, keeper, lambda line: note(line, quiet=quiet))
    learned = None
    if values["calibrate"] and keeper and any(compared.ran for compared in launched.comparisons):
        rows = [row for row in record.rows() if row.hardware in (values["hardware"], hardware.name)]

        def ranked_again(file: str) -> Sequence[Estimate]:
            return rank(question.changed(calibration=file)).estimates

        learned = campaign.learn(rows, learned_file, before=ranked.estimates, rank=ranked_again, top=values["top"])
    validation = report.Validation(campaign=launched, rows_file=record.path, learned=learned)
    shown = replace(presentation(ctx), colour=colour_of(ctx, None))
    write(ANSWERS["validation"].write(validation, values["format"], shown), None)
    if launched.unwritten and not launched.interrupted_by:
        raise InputError(launched.unwritten)
    note(launched.unwritten, quiet=not launched.unwritten)
    ctx.exit(128 + launched.interrupted_by if launched.interrupted_by else int(not launched.all_well))


def _planned(
    ctx: click.Context,
    values: Mapping[str, Any],
    planner: Callable[..., campaign.Planner],
    estimates: Sequence[Estimate],
) -> campaign.LaunchPlan:
    """Return the launches, whose files are written; a folder in which there is nothing to launch goes."""
    work, quiet = _work_folder(values), verbosity_of(ctx) < 0
    folder = campaign.shared_folder(work, values["node_rank"]) if values["rdzv_endpoint"] else campaign.run_folder(work)
    try:
        plan = planner(
            folder=folder,
            top=values["top"],
            repeats=values["repeat"],
            limit_seconds=float(values["time_limit"]),
            resume=values["resume"],
            retry_failed=values["retry_failed"],
        ).plan(estimates)
    finally:
        with suppress(OSError):
            folder.rmdir()
    top, launchable = values["top"], len(plan.layouts)
    if launchable < top and not options.left_to_default(ctx, "top"):
        note(f"--top {top}: the ranking has {launchable} of different splits that can be launched", quiet=quiet)
    if plan.failed_before:
        note(f"layouts that failed earlier: {plan.failed_before}; --retry-failed launches them again", quiet=quiet)
    return plan


def _work_folder(values: Mapping[str, Any]) -> Path:
    return Path(values["work_folder"] or "simulate-validate")


def _question(ctx: click.Context, values: Mapping[str, Any]) -> tuple[HardwareSpec, Question]:
    """Return the hardware, and the question of a ranking."""
    require_model(values)
    if ":" in values["hardware"]:
        raise UnsupportedError("--hardware: launches run on one kind of device")
    hardware = catalogue.load_hardware(values["hardware"])
    sizes = _SMALL if hardware.family == "cpu" else _LARGE
    question = question_on_line(ctx, many=True)
    usual = {name: size for name, size in sizes.items() if name not in question.inputs}
    return hardware, question.changed(ARGUMENT, framework=_FRAMEWORKS[values["engine"]], **usual)


def _pick(values: Mapping[str, Any], question: Question, table: str) -> launching.Pick:
    """Return the question of every launch, with a placeholder for the layout."""
    question = replace(question, layout={})
    return launching.Pick(
        scenario=cases.scenario_of(question),
        layout=Layout(),
        question=question,
        steps=values["steps"],
        warmup_steps=values["warmup"],
        table=table,
    )


def _engine(values: Mapping[str, Any], hardware: HardwareSpec) -> launching.Engine:
    path = values["engine_path"] or ""
    if values["engine"] != "reference":
        why = "needs --engine reference: outside frameworks choose their own"
        options.refuse_options(values, ("backend", "communication"), why)
    if values["engine"] == "megatron":
        return engines.MegatronEngine(path=path)
    if values["engine"] == "paddle":
        return engines.PaddleEngine(path=path)
    if path:
        raise click.UsageError("--engine-path: the reference trainer comes with the simulator")
    backend = values["backend"] or engines.usual_backend(hardware.family)
    if (backend == "cpu") != (hardware.family == "cpu"):
        raise click.UsageError(
            f"--backend {backend}: the hardware {hardware.name} is of family {hardware.family}, and rows would be "
            "measured on something else; --hardware says what is measured"
        )
    return engines.ReferenceEngine(backend=backend, communication=values["communication"] or "")


def _warn(
    values: Mapping[str, Any],
    hardware: HardwareSpec,
    engine: launching.Engine,
    plan: campaign.LaunchPlan,
    *,
    quiet: bool,
) -> None:
    """Warn before a launch of what makes figures of this machine misleading. Raises without the devices."""
    warnings: Iterable[str] = ()
    # An outside framework looks for its own devices.
    if values["engine"] == "reference" and plan.launches:
        first = plan.launches[0]
        ranks = first.pick.scenario.devices // first.nodes
        if hardware.family == "cpu":
            warnings = [engines.crowded(ranks)]
        else:
            devices = engines.ask(values["backend"] or engines.usual_backend(hardware.family))
            warnings = engines.contradictions(devices, hardware, names.spec_names("hardware"))
    unproven = f"experimental: {engine.experimental}" if engine.experimental else ""
    for text in filter(None, (*warnings, unproven)):
        note(text, quiet=quiet)


def _check_options(values: Mapping[str, Any]) -> None:
    """Raise for options that would be ignored, or that separately started nodes cannot share."""
    output, endpoint = values["output"], values["rdzv_endpoint"]
    hidden = options.listed("gone_validate")
    gone = next((option.opts[0] for option in hidden if set(values[option.name or ""]) - {"local"}), "")
    for is_wrong, why in (
        (gone, f"{gone} is gone: examples/validate/slurm.sbatch launches as one Slurm job"),
        (
            values["retry_failed"] and not values["resume"],
            "--retry-failed needs --resume: without it everything is launched",
        ),
        (
            output and Path(output).is_dir(),
            f"--output {output}: is a folder; expected a file of rows, such as ROWS.csv",
        ),
        (values["calibrate"] and values["dry_run"], "--calibrate needs launches: leave --dry-run out"),
        (endpoint and values["resume"], "--rdzv-endpoint: without --resume, so that all nodes launch the same"),
        (endpoint and not re.fullmatch(r".+:[0-9]{1,5}", endpoint), f"--rdzv-endpoint {endpoint}: must be HOST:PORT"),
    ):
        if is_wrong:
            raise click.UsageError(why)


def trace(ctx: click.Context, values: Mapping[str, Any]) -> None:
    """Count the bytes of a stage, of tensors of PyTorch with all weights, and show them beside the predicted ones."""
    require_model(values)
    question = question_on_line(ctx).changed(OPTION, framework="torch", calibration="none")
    case = cases.priceable(cases.case_of(question))
    write_answer(ctx, "trace", tracing.trace(case.scenario, case.layout, values["stage"]), presentation(ctx))


_NOT_PROBE = ("files", "family", "from_log", "option", "rows_only")


def probe(ctx: click.Context, values: Mapping[str, Any]) -> None:
    """Plan, measure, launch and fit, and write how to use the result."""
    request, shown = _probe_request(values), presentation(ctx)
    form, allowed = values["format"], ANSWERS["probe"].formats
    if form not in allowed:
        raise UnsupportedError(f"--format {form} and --probe: allowed are {', '.join(allowed)}")
    if values["dry_run"]:
        write(ANSWERS["probe plan"].write(probing.outlook(request), form, shown), None)
        return

    def tell(line: str) -> None:
        note(line, quiet=shown.verbosity < 0)

    request.check()
    if request.backend != "cpu":
        tell("experimental: --probe has been walked on processors only, on no accelerator")
    probed = probing.launch_all(probing.prepare(request, tell), tell)
    write(ANSWERS["probe"].write(probed, form, shown), None)
    signal = probed.campaign.interrupted_by
    ctx.exit(128 + signal if signal else 0 if probed.campaign.all_well and probed.calibration_file else 1)


def _probe_request(values: Mapping[str, Any]) -> probing.ProbeRequest:
    for name in _NOT_PROBE:
        if values[name]:
            option = "FILES" if name == "files" else f"--{name.replace('_', '-')}"
            raise click.UsageError(f"--probe and {option}: a probe measures rows of its own")
    if values["hardware"] is None:
        raise click.UsageError("--probe needs --hardware: the spec that comes nearest; `simulate hardware` lists them")
    hardware = catalogue.load_hardware(values["hardware"])
    backend = values["backend"] or engines.usual_backend(hardware.family)
    return probing.ProbeRequest(
        hardware=values["hardware"],
        devices=values["devices"] or (2 if backend == "cpu" else hardware.devices_per_node),
        folder=Path(values["output"] or probing.FOLDER),
        model=values["model"],
        precision=values["precision"] or "bf16",
        backend=backend,
        launches=values["launches"] or 20,
        limit_seconds=float(values["time_limit"] or 600),
        resume=values["resume"],
    )
