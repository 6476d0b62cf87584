"""The command `validate`: the best layouts of a ranking, launched for real and compared with what was predicted."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from simulator.errors import InputError, UnsupportedError
from simulator.show.cli.options import (
    CONTEXT_SETTINGS,
    OUTPUT,
    Option,
    Sectioned,
    general_options,
    layout_options,
    left_to_default,
    question_options,
)
from simulator.show.cli.parameters import Whole, Word
from simulator.show.cli.streams import colour_of, note, verbosity_of, write

if TYPE_CHECKING:
    from simulator.lab.runner.campaign import Campaign, Plan
    from simulator.lab.runner.engine import Engine, Pick
    from simulator.lab.runner.launch import Launcher
    from simulator.question.specs.hardware import HardwareSpec

LAUNCH = "Launch"
ENGINES = ("reference", "megatron", "paddle")
LAUNCHERS = ("local", "slurm")
VALIDATE_FORMATS = ("table", "json")
_FRAMEWORKS = {"reference": "torch", "megatron": "megatron", "paddle": "paddle"}
_FOLDER = "simulate-validate"
_SMALL = {"seq_length": 256, "global_batch_size": 8}
_LARGE = {"seq_length": 8192, "global_batch_size": 1024}
"""Sizes of the question that is asked without any: on processors a launch takes seconds, elsewhere it is the usual."""
_MOST_RANKED = 256
"""Layouts of the ranking among which those to launch are looked for."""
_LONGEST_SECONDS = 10**6


def validate_command() -> click.Command:
    """Return the command."""
    return Sectioned(
        "validate",
        callback=_validate,
        params=[
            *_asked(),
            *layout_options(many=True),
            *_launch_options(),
            *_output_options(),
            *general_options(),
        ],
        help=(
            "Launch the best layouts of a ranking for a few steps, and compare memory and speed with what was "
            "predicted. Options of the question and the layout are those of a ranking."
        ),
        short_help="Launch the best layouts and compare.",
        epilog=(
            "Exit code: 0 all launches ran, 1 one failed or contradicts its verdict, 2 bad input, 3 nothing can be "
            "launched."
        ),
        context_settings=CONTEXT_SETTINGS,
    )


def _asked() -> list[click.Parameter]:
    """The options of a question; what depends on engine and hardware has no default of its own."""
    helps = {
        "seq_length": "Tokens in a sequence; 256 on a processor, else 8192.",
        "global_batch_size": "Sequences in a step; 8 on a processor, else 1024.",
    }
    # What trains decides the profile to predict with.
    found = [param for param in question_options() if param.name != "framework"]
    for param in found:
        if isinstance(param, click.Option) and param.name in helps:
            param.default, param.show_default, param.help = None, False, helps[param.name]
    return found


def _launch_options() -> list[click.Parameter]:
    seconds, slurm = Whole(1, _LONGEST_SECONDS), "With --launcher slurm: "
    several = "Several nodes without Slurm, started alike: "
    words: list[tuple[str, dict[str, Any]]] = [
        ("--top", {"type": Whole(1, 1000), "default": 3, "help": "Layouts to launch, the best of each split."}),
        ("--engine", {"type": Word(ENGINES), "default": "reference", "help": "What trains."}),
        ("--engine-path", {"type": str, "metavar": "DIR", "help": "Folder of the engine's own code."}),
        ("--launcher", {"type": Word(LAUNCHERS), "default": "local", "help": "What starts the ranks."}),
        (
            "--backend",
            {
                "type": str,
                "metavar": "NAME",
                "help": "Kind of device in torch's words; follows from the hardware: cpu, npu (Ascend) or cuda.",
            },
        ),
        (
            "--communication",
            {
                "type": str,
                "metavar": "NAME",
                "help": "Collective library in torch's words (gloo, nccl, hccl); the usual one of the backend.",
            },
        ),
        ("--steps", {"type": Whole(1, 10_000), "default": 8, "help": "Timed steps of a launch."}),
        ("--warmup", {"type": Whole(0, 10_000), "default": 2, "help": "Steps before them."}),
        ("--repeat", {"type": Whole(1, 100), "default": 1, "help": "Launches of each layout."}),
        ("--time-limit", {"type": seconds, "default": 600, "help": "Seconds that a launch may take."}),
        ("--resume", {"is_flag": True, "default": False, "help": "Leave out what the rows hold already."}),
        ("--retry-failed", {"is_flag": True, "default": False, "help": "With --resume: but not what failed."}),
        ("--dry-run", {"is_flag": True, "default": False, "help": "Show what would be started, and start nothing."}),
        ("--rdzv-endpoint", {"type": str, "metavar": "HOST:PORT", "help": several + "where the first node waits."}),
        ("--node-rank", {"type": Whole(0, 2**20), "default": 0, "help": several + "which of them this is."}),
        ("--slurm-partition", {"type": str, "metavar": "NAME", "help": slurm + "the partition."}),
        ("--slurm-account", {"type": str, "metavar": "NAME", "help": slurm + "the account."}),
        (
            "--slurm-option",
            {
                "type": str,
                "metavar": "NAME[=VALUE]",
                "multiple": True,
                "help": slurm + "a further #SBATCH line; repeatable.",
            },
        ),
        ("--queue-limit", {"type": seconds, "default": 3600, "help": slurm + "seconds that a job may wait."}),
    ]
    return [
        Option(
            name,
            section=LAUNCH,
            show_default="default" in attributes and not attributes.get("is_flag"),
            **attributes,
        )
        for name, attributes in words
    ]


def _output_options() -> list[click.Parameter]:
    folder = f"Where launches leave jobs, logs and results.  [default: {_FOLDER}]"
    rows = "Measured rows, added to those that are there.  [default: HARDWARE.csv in the work folder]"
    return [
        Option(
            "--format",
            section=OUTPUT,
            type=Word(VALIDATE_FORMATS),
            default="table",
            show_default=True,
            help="Form of the answer.",
        ),
        Option("--output", section=OUTPUT, type=str, metavar="ROWS.csv", help=rows),
        Option("--work-folder", section=OUTPUT, type=str, metavar="DIR", help=folder),
    ]


def _validate(**values: Any) -> None:
    """Plan, launch, compare, and leave with the exit code."""
    if os.name != "posix":
        raise UnsupportedError("simulate validate: launches need Linux or another POSIX system")
    from simulator import api  # noqa: PLC0415  start-up time
    from simulator.lab.runner.campaign import Planner, Wanted, run, run_folder, shared_folder  # noqa: PLC0415  start-up time
    from simulator.lab.runner.record import Record  # noqa: PLC0415  start-up time
    from simulator.show.cli.layouts import space  # noqa: PLC0415  start-up time
    from simulator.show.report.validate_json import validate_json  # noqa: PLC0415  start-up time
    from simulator.show.report.validate_table import dry_run_text, validate_table  # noqa: PLC0415  start-up time

    ctx = click.get_current_context()
    quiet = verbosity_of(ctx) < 0
    hardware, question = _question(values)
    searched = space(values)
    work = Path(values["work_folder"] or _FOLDER)
    _check_options(ctx, values)
    record = Record(Path(values["output"]) if values["output"] else work / f"{hardware.name}.csv")
    pick = _pick(values, question, record.table)
    engine, launcher = _engine(values, hardware), _launcher(values, hardware)
    launcher.check(pick.scenario.nodes)
    if not values["dry_run"]:
        engine.check()
        record.check()
    ranking = api.rank(**question, space=searched, top=_MOST_RANKED, variants=True)
    if not ranking.estimates:
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
        plan = Planner(engine=engine, pick=pick, folder=folder, record=record, wanted=wanted).plan(ranking.estimates)
    finally:
        with suppress(OSError):
            folder.rmdir()  # only one in which there is nothing to launch
    _few(plan, wanted.top, quiet=quiet or left_to_default(ctx, "top"))
    _failed_before(plan, quiet=quiet)
    if values["dry_run"]:
        write(dry_run_text(plan, launcher), None)
        return
    _warn(values, hardware, plan, quiet=quiet)
    keeper = record if values["node_rank"] == 0 else None
    campaign = run(plan, launcher, engine, keeper, lambda line: note(line, quiet=quiet))
    if values["format"] == "json":
        text = validate_json(campaign, record.path)
    else:
        text = validate_table(campaign, record.path, verbosity_of(ctx), colour=colour_of(ctx, None))
    write(text, None)
    ctx.exit(_code(campaign))


def _code(campaign: Campaign) -> int:
    if campaign.interrupted_by:
        note(campaign.unwritten, quiet=not campaign.unwritten)
        return 128 + campaign.interrupted_by
    if campaign.unwritten:
        raise InputError(campaign.unwritten)
    return 0 if campaign.all_well else 1


def _failed_before(plan: Plan, *, quiet: bool) -> None:
    if plan.failed_before:
        note(f"layouts that failed earlier: {plan.failed_before}; --retry-failed launches them again", quiet=quiet)


def _few(plan: Plan, top: int, *, quiet: bool) -> None:
    if len(plan.layouts) < top:
        note(f"--top {top}: the ranking has {len(plan.layouts)} of different splits that can be launched", quiet=quiet)


def _question(values: Mapping[str, Any]) -> tuple[HardwareSpec, dict[str, Any]]:
    """The hardware, and the arguments of a ranking."""
    from simulator.question.specs.catalogue import load_hardware  # noqa: PLC0415  start-up time
    from simulator.show.cli.layouts import check_cluster, framework_options  # noqa: PLC0415  start-up time

    if not values["model"]:
        raise click.UsageError("missing option '--model'; `simulate models` lists the names")
    if ":" in values["hardware"]:
        raise UnsupportedError("--hardware: launches run on one kind of device")
    check_cluster(values)
    hardware = load_hardware(values["hardware"])
    sizes = _SMALL if hardware.family == "cpu" else _LARGE
    names = ("model", "hardware", "nodes", "devices", "precision", "lora_rank", "num_layers", "calibration")
    return hardware, {
        **{name: values[name] for name in names},
        **{name: values[name] or usual for name, usual in sizes.items()},
        "framework": _FRAMEWORKS[values["engine"]],
        "options": framework_options(values),
    }


def _pick(values: Mapping[str, Any], question: Mapping[str, Any], table: str) -> Pick:
    """What is asked of every launch; the layout is still to be chosen."""
    from simulator.api import scenario_of  # noqa: PLC0415  start-up time
    from simulator.lab.runner.engine import Pick  # noqa: PLC0415  start-up time
    from simulator.question.scenario.layout import Layout  # noqa: PLC0415  start-up time

    scenario = scenario_of(**question)
    return Pick(
        scenario=scenario,
        layout=Layout(),
        model=values["model"],
        hardware=values["hardware"],
        options=question["options"],
        steps=values["steps"],
        warmup_steps=values["warmup"],
        table=table,
    )


def _engine(values: Mapping[str, Any], hardware: HardwareSpec) -> Engine:
    from simulator.lab.runner.engines.megatron import MegatronEngine  # noqa: PLC0415  start-up time
    from simulator.lab.runner.engines.paddle import PaddleEngine  # noqa: PLC0415  start-up time
    from simulator.lab.runner.reference import ReferenceEngine, usual_backend  # noqa: PLC0415  start-up time

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
    from simulator.lab.runner.local import LocalLauncher  # noqa: PLC0415  start-up time
    from simulator.lab.runner.reference import usual_backend  # noqa: PLC0415  start-up time
    from simulator.lab.runner.slurm import SlurmLauncher  # noqa: PLC0415  start-up time

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
    """What is wrong with the devices of this machine. Raises UnsupportedError where it has none of the kind."""
    from simulator.lab.runner.device import ask, contradictions  # noqa: PLC0415  start-up time
    from simulator.lab.runner.reference import usual_backend  # noqa: PLC0415  start-up time
    from simulator.question.specs.catalogue import hardware_names  # noqa: PLC0415  start-up time

    found = ask(values["backend"] or usual_backend(hardware.family))
    yield from contradictions(found, hardware, hardware_names())


def _warn(values: Mapping[str, Any], hardware: HardwareSpec, plan: Plan, *, quiet: bool) -> None:
    """Say what makes figures of this machine misleading, before anything is launched on it."""
    from simulator.lab.runner.device import crowded  # noqa: PLC0415  start-up time

    # With Slurm the devices are elsewhere, and an outside framework looks for its own.
    if values["launcher"] != "local" or values["engine"] != "reference" or not plan.launches:
        return
    first = plan.launches[0]
    if hardware.family == "cpu":
        warnings: Iterable[str] = filter(None, [crowded(first.pick.scenario.devices // first.nodes)])
    else:
        warnings = _device(values, hardware)
    for text in warnings:
        note(text, quiet=quiet)


def _check_options(ctx: click.Context, values: Mapping[str, Any]) -> None:
    """Refuse options that would be ignored, and what nodes that are started by themselves cannot do alike."""
    if values["retry_failed"] and not values["resume"]:
        raise click.UsageError("--retry-failed needs --resume: without it everything is launched")
    if values["launcher"] != "slurm" and not left_to_default(ctx, "queue_limit"):
        raise click.UsageError("--queue-limit needs --launcher slurm")
    if values["output"] and Path(values["output"]).is_dir():
        raise InputError(f"--output {values['output']}: is a folder; expected a file of rows, such as ROWS.csv")
    endpoint = values["rdzv_endpoint"]
    if endpoint is None:
        return
    if values["launcher"] != "local":
        raise click.UsageError("--rdzv-endpoint needs --launcher local: Slurm says where the first node is")
    if values["resume"]:
        raise click.UsageError("--rdzv-endpoint: without --resume, so that all nodes launch the same")
    if not re.fullmatch(r".+:[0-9]{1,5}", endpoint):
        raise click.UsageError(f"--rdzv-endpoint {endpoint}: must be HOST:PORT")
