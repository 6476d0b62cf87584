"""The command `validate` once its options are read: plan, launch, compare. Imported only when asked for."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from simulator.answers import ranking
from simulator.answers.cases import scenario_of
from simulator.cost.pricing.estimate import Estimate
from simulator.errors import InputError, UnsupportedError
from simulator.lab.runner.campaign import Campaign, LaunchPlan, Planner, Record, Wanted, run, run_folder, shared_folder
from simulator.lab.runner.compare import learn
from simulator.lab.runner.engine import Engine, Launcher, Pick
from simulator.lab.runner.launchers import LocalLauncher, SlurmLauncher
from simulator.lab.runner.outside import MegatronEngine, PaddleEngine
from simulator.lab.runner.reference import ReferenceEngine, ask, contradictions, crowded, usual_backend
from simulator.question.origin import ARGUMENT
from simulator.question.question import Question
from simulator.question.scenario.inputs import DEFAULTS
from simulator.question.scenario.layout import Layout
from simulator.question.specs.catalogue import hardware_names, load_hardware
from simulator.question.specs.hardware import HardwareSpec
from simulator.show.cli.options import left_to_default
from simulator.show.cli.question import question_on_line, require_model
from simulator.show.cli.streams import colour_of, note, presentation, verbosity_of, write
from simulator.show.cli.validate import FOLDER
from simulator.show.report.formats import ANSWERS
from simulator.show.report.validate_table import Validation, dry_run_text

_FRAMEWORKS = {"reference": "torch", "megatron": "megatron", "paddle": "paddle"}
_SMALL = {"seq_length": 256, "global_batch_size": 8}
_LARGE = {name: DEFAULTS[name] for name in _SMALL}
"""Default sizes: `_SMALL` on processors, so that a launch takes seconds, else the usual ones."""
_MOST_RANKED = 256
"""Most layouts of the ranking from which launches are chosen."""


def validate(ctx: click.Context, values: Mapping[str, Any]) -> None:
    """Plan, launch, compare, and leave with the exit code."""
    quiet = verbosity_of(ctx) < 0
    hardware, question = _question(ctx, values)
    searched = ranking.space_of(question, across_nodes=values["allow_tp_across_nodes"])
    work = Path(values["work_folder"] or FOLDER)
    _check_options(ctx, values)
    record = Record(Path(values["output"]) if values["output"] else work / f"{hardware.name}.csv")
    learned_file = record.path.with_suffix(".yaml")
    if values["calibrate"] and values["calibration"] is None and learned_file.is_file():
        question = question.changed(calibration=str(learned_file))
        note(f"ranked by {learned_file}, of earlier launches", quiet=quiet)
    pick = _pick(values, question, record.table)
    engine, launcher = _engine(values, hardware), _launcher(values, hardware)
    launcher.check(pick.scenario.nodes)
    if not values["dry_run"]:
        engine.check()
        record.check()
    ranked = ranking.rank(question, space=searched, top=_MOST_RANKED, variants=True)
    if not ranked.estimates:
        raise UnsupportedError("nothing to launch: no layout fits; `simulate rank` with the same options says why")
    wanted = Wanted(
        top=values["top"],
        repeats=values["repeat"],
        limit_seconds=float(values["time_limit"]),
        resume=values["resume"],
        retry_failed=values["retry_failed"],
    )
    folder = shared_folder(work, values["node_rank"]) if values["rdzv_endpoint"] else run_folder(work)
    try:
        plan = Planner(engine=engine, pick=pick, folder=folder, record=record, wanted=wanted).plan(ranked.estimates)
    finally:
        with suppress(OSError):
            folder.rmdir()  # only compared in which there is nothing to launch
    if (launchable := len(plan.layouts)) < wanted.top and not left_to_default(ctx, "top"):
        note(f"--top {wanted.top}: the ranking has {launchable} of different splits that can be launched", quiet=quiet)
    if plan.failed_before:
        note(f"layouts that failed earlier: {plan.failed_before}; --retry-failed launches them again", quiet=quiet)
    if values["dry_run"]:
        write(dry_run_text(plan, launcher), None)
        return
    _warn(values, hardware, engine, plan, quiet=quiet)
    keeper = record if values["node_rank"] == 0 else None
    campaign = run(plan, launcher, engine, keeper, lambda line: note(line, quiet=quiet))
    learned = None
    if values["calibrate"] and keeper and any(compared.ran for compared in campaign.comparisons):

        def ranked_again(file: str) -> Sequence[Estimate]:
            learned_question = question.changed(calibration=file)
            return ranking.rank(learned_question, space=searched, top=_MOST_RANKED, variants=True).estimates

        rows = [row for row in record.rows() if row.hardware == values["hardware"]]
        learned = learn(rows, learned_file, before=ranked.estimates, rank=ranked_again, top=values["top"])
    validation = Validation(campaign=campaign, rows_file=record.path, learned=learned)
    shown = replace(presentation(ctx), colour=colour_of(ctx, None))
    write(ANSWERS["validation"].write(validation, values["format"], shown), None)
    ctx.exit(_code(campaign))


def _code(campaign: Campaign) -> int:
    if campaign.interrupted_by:
        note(campaign.unwritten, quiet=not campaign.unwritten)
        return 128 + campaign.interrupted_by
    if campaign.unwritten:
        raise InputError(campaign.unwritten)
    return 0 if campaign.all_well else 1


def _question(ctx: click.Context, values: Mapping[str, Any]) -> tuple[HardwareSpec, Question]:
    """Return the hardware, and the question of a ranking."""
    require_model(values)
    if ":" in values["hardware"]:
        raise UnsupportedError("--hardware: launches run on one kind of device")
    hardware = load_hardware(values["hardware"])
    sizes = _SMALL if hardware.family == "cpu" else _LARGE
    question = question_on_line(ctx, many=True)
    usual = {name: size for name, size in sizes.items() if name not in question.inputs}
    return hardware, question.changed(ARGUMENT, framework=_FRAMEWORKS[values["engine"]], **usual)


def _pick(values: Mapping[str, Any], question: Question, table: str) -> Pick:
    """Return the question of every launch, with a placeholder for the layout."""
    question = replace(question, layout={})
    scenario = scenario_of(question)
    return Pick(
        scenario=scenario,
        layout=Layout(),
        question=question,
        steps=values["steps"],
        warmup_steps=values["warmup"],
        table=table,
    )


def _engine(values: Mapping[str, Any], hardware: HardwareSpec) -> Engine:
    path = values["engine_path"] or ""
    if values["engine"] != "reference":
        for name in ("backend", "communication"):
            if values[name]:
                raise click.UsageError(f"--{name} needs --engine reference: outside frameworks choose their own")
    if values["engine"] == "megatron":
        return MegatronEngine(path=path)
    if values["engine"] == "paddle":
        return PaddleEngine(path=path)
    if path:
        raise click.UsageError("--engine-path: the reference trainer comes with the simulator")
    backend = values["backend"] or usual_backend(hardware.family)
    if (backend == "cpu") != (hardware.family == "cpu"):
        raise click.UsageError(
            f"--backend {backend}: the hardware {hardware.name} is of family {hardware.family}, and rows would be "
            "measured on something else; --hardware says what is measured"
        )
    return ReferenceEngine(backend=backend, communication=values["communication"] or "")


def _launcher(values: Mapping[str, Any], hardware: HardwareSpec) -> Launcher:
    if values["launcher"] == "slurm":
        return SlurmLauncher(
            partition=values["slurm_partition"] or "",
            account=values["slurm_account"] or "",
            options=tuple(option.removeprefix("--") for option in values["slurm_option"]),
            gpus=(values["backend"] or usual_backend(hardware.family)) == "cuda",
            queue_seconds=float(values["queue_limit"]),
        )
    for name in ("slurm_partition", "slurm_account", "slurm_option"):
        if values[name]:
            raise click.UsageError(f"--{name.replace('_', '-')} needs --launcher slurm")
    return LocalLauncher(endpoint=values["rdzv_endpoint"] or "", node_rank=values["node_rank"])


def _device(values: Mapping[str, Any], hardware: HardwareSpec) -> Iterator[str]:
    """Yield contradictions between this machine's devices and the spec. Raises UnsupportedError without devices."""
    devices = ask(values["backend"] or usual_backend(hardware.family))
    yield from contradictions(devices, hardware, hardware_names())


def _warn(values: Mapping[str, Any], hardware: HardwareSpec, engine: Engine, plan: LaunchPlan, *, quiet: bool) -> None:
    """Warn before a launch of what makes figures of this machine misleading."""
    warnings: Iterable[str] = ()
    # With Slurm the devices are elsewhere, and an outside framework looks for its own.
    if values["launcher"] == "local" and values["engine"] == "reference" and plan.launches:
        first = plan.launches[0]
        ranks = first.pick.scenario.devices // first.nodes
        warnings = [crowded(ranks)] if hardware.family == "cpu" else _device(values, hardware)
    unproven = f"experimental: {engine.experimental}" if engine.experimental else ""
    for text in filter(None, (*warnings, unproven)):
        note(text, quiet=quiet)


def _check_options(ctx: click.Context, values: Mapping[str, Any]) -> None:
    """Raise for options that would be ignored, or that separately started nodes cannot share."""
    if values["retry_failed"] and not values["resume"]:
        raise click.UsageError("--retry-failed needs --resume: without it everything is launched")
    if values["launcher"] != "slurm" and not left_to_default(ctx, "queue_limit"):
        raise click.UsageError("--queue-limit needs --launcher slurm")
    if values["output"] and Path(values["output"]).is_dir():
        raise InputError(f"--output {values['output']}: is a folder; expected a file of rows, such as ROWS.csv")
    if values["calibrate"] and values["dry_run"]:
        raise click.UsageError("--calibrate needs launches: leave --dry-run out")
    endpoint = values["rdzv_endpoint"]
    if endpoint is None:
        return
    if values["launcher"] != "local":
        raise click.UsageError("--rdzv-endpoint needs --launcher local: Slurm says where the first node is")
    if values["resume"]:
        raise click.UsageError("--rdzv-endpoint: without --resume, so that all nodes launch the same")
    if not re.fullmatch(r".+:[0-9]{1,5}", endpoint):
        raise click.UsageError(f"--rdzv-endpoint {endpoint}: must be HOST:PORT")
