"""Probe of a machine from request to calibration: rates measured, launches planned and made, their rows fitted.

    >>> request = ProbeRequest(hardware="local-cpu", devices=2, folder=Path("mine"))
    >>> launch_all(prepare(request, print), print).calibration_file
    PosixPath('mine/cpu.yaml')

`outlook` returns the plan and starts nothing.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from itertools import product
from pathlib import Path
from typing import Any, Final

import numpy as np
import yaml

from simulator.cost.derived import Pricing
from simulator.cost.memory.peak import memory_by_stage
from simulator.cost.pricing.estimate import Estimate
from simulator.cost.pricing.price import FITS, verdicts
from simulator.cost.stages import usable_bytes
from simulator.cost.timing.step import step_seconds
from simulator.errors import InputError, SimulateError, UnsupportedError, one_line
from simulator.evidence.calibration.cluster import Known, names_of, prepared
from simulator.evidence.calibration.own import OwnFit, fit_own, known_memory
from simulator.evidence.calibration.store import calibration_text
from simulator.evidence.measurements.rows import MeasuredRow
from simulator.files import write_file
from simulator.lab.probe.rates import Rates, assumed_rates, from_rates, measured_spec, rates_job, rates_of, spec_text
from simulator.lab.runner.campaign import Campaign, LaunchPlan, RowsFile, Tell, launches_of, run, run_folder
from simulator.lab.runner.engine import LOG_NAME, Command, Engine, Launch, Launcher, Pick, diagnosis
from simulator.lab.runner.engines import WORKER, ReferenceEngine
from simulator.lab.trainer.job import RATES_NAME, MeasuredRates, RatesJob, TrainingJob, from_json, refused, to_json
from simulator.question.arrays import Matrix, Vector
from simulator.question.coefficients import CoefficientKind, Coefficients, priors, replaced
from simulator.question.frameworks.stacks import profile_of
from simulator.question.question import question_of
from simulator.question.scenario.block import block_of
from simulator.question.scenario.layout import Layout, default_cut
from simulator.question.scenario.scenario import Scenario
from simulator.question.specs.catalogue import load_hardware, load_model
from simulator.question.specs.documents import validated
from simulator.question.specs.hardware import HardwareSpec
from simulator.question.specs.model import ModelSpec
from simulator.question.vocabulary import Precision
from simulator.records import Record
from simulator.search.build import estimate_layout

MOST_CANDIDATES = 800
"""Largest number of candidates that are priced: more are thinned out evenly."""
_PROCESSOR_WIDTHS = (256, 512, 1024)
_ACCELERATOR_WIDTHS = (2048, 4096, 8192)
_DEEPEST = 8  # most layers that a probe trains
NOISE: dict[CoefficientKind, float] = {"time": 0.04, "memory": 0.01}
"""Expected relative scatter of a short launch."""
KINDS: tuple[CoefficientKind, ...] = ("time", "memory")
STEP = 0.02
"""Relative step of the finite differences."""
PINNED = 0.8
"""Largest share of its standard deviation that a launch leaves of a coefficient which it pins down."""


class Reach(Record, kw_only=True):
    """Values of each size that candidates combine."""

    models: tuple[tuple[str, ModelSpec], ...]
    """Shapes, each with the name or path that a measured row gives it."""
    layers: tuple[int, ...]
    seq_lengths: tuple[int, ...]
    micro_batch_sizes: tuple[int, ...] = (1, 2, 4)
    micro_batches: tuple[int, ...] = (2, 4, 8)
    """Micro batches per replica."""


class Candidate(Record):
    """Possible launch."""

    model: str
    """Name or path of the model spec."""
    scenario: Scenario
    """Scenario with the model cut to the layers that are trained."""
    layout: Layout

    @property
    def title(self) -> str:
        """Launch in a few words."""
        scenario, layout, model = self.scenario, self.layout, self.scenario.model
        sizes = {"tp": layout.tensor_parallel, "pp": layout.pipeline_parallel, "vp": layout.virtual_stages}
        sizes |= {"dp": layout.data_parallel, "mbs": layout.micro_batch_size}
        words = [f"h{model.hidden_size}x{model.head_dim}", f"l{model.num_hidden_layers}", f"s{scenario.seq_length}"]
        words += [f"gbs{scenario.global_batch_size}", *(f"{name}{size}" for name, size in sizes.items() if size > 1)]
        words += [f"zero{layout.zero_stage}"] * (layout.data_parallel > 1)
        return "-".join([*words, *([layout.recompute] if layout.recompute != "none" else [])])


def candidates(hardware: HardwareSpec, devices: int, precision: Precision, reach: Reach) -> tuple[Candidate, ...]:
    """Return all candidates within reach that the trainer accepts, thinned out to MOST_CANDIDATES."""
    common: dict[str, Any] = {"hardware": hardware, "devices": devices, "precision": precision}
    common["framework"] = profile_of("torch")
    every = [
        Candidate(name, Scenario(model=cut, seq_length=tokens, global_batch_size=sequences, **common), layout)
        for (name, model), layers in product(reach.models, reach.layers)
        for cut in (model.with_layers(layers),)
        for layout, sequences in _layouts(devices, layers, reach)
        for tokens in reach.seq_lengths
    ]
    accepted = [candidate for candidate in every if _runs(candidate)]
    # A stride without a common factor with the sizes above, so that every one of them stays in the pool.
    return tuple(accepted[:: (-(-len(accepted) // MOST_CANDIDATES)) | 1])


def _runs(candidate: Candidate) -> bool:
    try:
        return refused(TrainingJob.of(candidate.scenario, candidate.layout)) is None
    except SimulateError:
        return False


def _layouts(devices: int, layers: int, reach: Reach) -> Iterator[tuple[Layout, int]]:
    """Yield layouts of all devices with the sequences of a step."""
    ranks = range(1, devices + 1)
    splits = [(tensor, pipeline) for tensor, pipeline in product(ranks, ranks) if devices % (tensor * pipeline) == 0]
    for tensor, pipeline in splits:
        data = devices // (tensor * pipeline)
        for variant in _variants(layers, tensor, pipeline, data) if pipeline <= layers else ():
            for size, count in product(reach.micro_batch_sizes, reach.micro_batches):
                yield replace(variant, micro_batch_size=size), size * count * data


def _variants(layers: int, tensor: int, pipeline: int, data: int) -> Iterator[Layout]:
    plain = Layout(
        tensor_parallel=tensor,
        pipeline_parallel=pipeline,
        data_parallel=data,
        sequence_parallel=tensor > 1,
        stage_layers=default_cut(layers, pipeline),
    )
    yield plain
    yield replace(plain, recompute="full")
    yield replace(plain, recompute="selective")
    if data > 1:
        yield from (replace(plain, zero_stage=stage) for stage in (0, 2, 3))
    if pipeline > 1:
        yield replace(plain, virtual_stages=2)


def reach(backend: str, model: str | None, folder: Path) -> Reach:
    """Return the sizes of launches: the user's model cut to a few layers, or shapes of three widths in `folder`."""
    layers: tuple[int, ...] = (2, 4, _DEEPEST)
    if model is None:
        named = [(str(file), document) for file, document in _shapes(backend, folder)]
        models = [(name, validated(name, ModelSpec, document)) for name, document in named]
    else:
        models, most = [(model, load_model(model))], load_model(model).num_hidden_layers
        layers = tuple(count for count in layers if count <= most) or (most,)
    lengths = (128, 256, 512, 1024) if backend == "cpu" else (2048, 4096, 8192, 16384)
    return Reach(models=tuple(models), layers=layers, seq_lengths=lengths)


def _shapes(backend: str, folder: Path) -> Iterator[tuple[Path, dict[str, Any]]]:
    """Yield dense decoders of three widths with their files, the narrowest with heads of two widths."""
    small = backend == "cpu"
    widths, narrow, vocabulary = (_PROCESSOR_WIDTHS, 32, 2048) if small else (_ACCELERATOR_WIDTHS, 64, 32000)
    for width, head in ((widths[0], narrow), *((width, 2 * narrow) for width in widths)):
        name = f"probe-{width}-{head}"
        yield (
            folder / f"{name}.yaml",
            {
                "name": name,
                "architecture": "llama",
                "num_hidden_layers": 2,
                "hidden_size": width,
                "intermediate_size": width * 11 // 4,
                "num_attention_heads": width // head,
                "num_key_value_heads": max(width // head // 2, 1),
                "head_dim": head,
                "vocab_size": vocabulary,
                "tie_word_embeddings": False,
            },
        )


class Effort(Record, kw_only=True):
    """Limits of a plan: launches and their time."""

    launches: int = 20
    start_seconds: float = 8.0
    """Time to start the ranks and to end them."""
    steps: int = 8
    """Steps of a launch, warm-up included."""
    longest_seconds: float = 30.0
    shortest_step_seconds: float = 0.08
    """Shortest step: shorter ones are mostly noise."""
    spread: float = 1.0
    """Factor on the priors' spreads in the fit that the launches are for."""


class Planned(Record, kw_only=True):
    """Launch of a plan."""

    candidate: Candidate
    step_seconds: float
    """Step time predicted before any launch."""
    launch_seconds: float
    """Expected time of the launch."""
    pins: tuple[str, ...]
    """Coefficients whose uncertainty it reduces markedly, most first, after the launches before it."""


class ProbeDesign(Record, kw_only=True):
    """Launches in order, and the uncertainty that they leave."""

    launches: tuple[Planned, ...]
    """Launches in order."""
    left: dict[str, float]
    """Share of its prior's standard deviation that is left of every fitted coefficient."""

    @property
    def seconds(self) -> float:
        """Expected seconds of all launches."""
        return sum(planned.launch_seconds for planned in self.launches)


class _Priced(Record):
    candidate: Candidate
    seconds: float
    slopes: dict[CoefficientKind, Vector]
    """Slopes of the logarithm of the kind's figure by those of the coefficients."""


def plan(candidates: Sequence[Candidate], base: Coefficients, effort: Effort) -> ProbeDesign:
    """Return the chosen launches; candidates that do not fit, or last too long or too short, are passed over."""
    moved = {kind: names_of(kind, base, every=True) for kind in KINDS}
    names = {kind: listed for kind, listed in moved.items() if listed}
    kinds = tuple(names)
    priced = [launch for candidate in candidates if (launch := _priced(candidate, base, names, effort)) is not None]
    spreads = {kind: [priors(kind)[name].spread for name in names[kind]] for kind in kinds}
    known = {kind: effort.spread**2 * np.diag(np.square(spreads[kind])) for kind in kinds}
    before = {kind: np.sqrt(np.diag(known[kind])) for kind in kinds}
    chosen: list[Planned] = []
    while priced and len(chosen) < effort.launches:
        gains = [_gain(launch, known) / _launch_seconds(launch.seconds, effort) for launch in priced]
        best = priced.pop(int(np.argmax(gains)))
        after = {kind: _updated(known[kind], best.slopes[kind], NOISE[kind]) for kind in kinds}
        deviations = [
            (float(np.sqrt(after[kind][i, i] / known[kind][i, i])), name)
            for kind, listed in names.items()
            for i, name in enumerate(listed)
        ]
        chosen.append(
            Planned(
                candidate=best.candidate,
                step_seconds=best.seconds,
                launch_seconds=_launch_seconds(best.seconds, effort),
                pins=tuple(name for left, name in sorted(deviations) if left <= PINNED),
            )
        )
        known = after
    left = {
        name: float(deviation)
        for kind in kinds
        for name, deviation in zip(names[kind], np.sqrt(np.diag(known[kind])) / before[kind], strict=True)
    }
    return ProbeDesign(launches=tuple(chosen), left=left)


def _launch_seconds(step: float, effort: Effort) -> float:
    return effort.start_seconds + effort.steps * step


def _priced(
    candidate: Candidate, base: Coefficients, moved: dict[CoefficientKind, tuple[str, ...]], effort: Effort
) -> _Priced | None:
    """Return step time and slopes of a candidate; None where it does not fit or lasts too long or too short."""
    scenario, block = candidate.scenario, block_of([candidate.layout])
    figures: dict[CoefficientKind, Vector] = {}
    for kind, names in moved.items():
        values = np.array([float(getattr(getattr(base, kind), name)) for name in names])
        # One column for `base`, and two for each coefficient, a step to either side.
        sides = np.exp(STEP * np.hstack([np.zeros((len(names), 1)), np.eye(len(names)), -np.eye(len(names))]))
        sets = replace(scenario, coefficients=replaced(base, kind, names, values[:, None] * sides))
        several = Pricing(sets, block.take(np.zeros(sides.shape[1], dtype=np.intp)))
        memory = memory_by_stage(several)
        if kind == "memory":
            figures[kind] = np.asarray(np.max(memory.device, axis=0))
            continue
        figures[kind] = step_seconds(several, memory).total
        fullness = np.max(memory.need[:, :1] / usable_bytes(scenario, memory.contents), axis=0)
        if verdicts(scenario, fullness)[0] != FITS:
            return None
    seconds = float(figures["time"][0])
    if seconds < effort.shortest_step_seconds or _launch_seconds(seconds, effort) > effort.longest_seconds:
        return None
    return _Priced(candidate, seconds, {kind: _slopes(figure) for kind, figure in figures.items()})


def _slopes(figures: Vector) -> Vector:
    count = (len(figures) - 1) // 2
    return np.asarray(np.log(figures[1 : count + 1] / figures[count + 1 :]) / (2.0 * STEP))


def _gain(launch: _Priced, known: dict[CoefficientKind, Matrix]) -> float:
    return sum(
        float(np.log1p(slopes @ known[kind] @ slopes / NOISE[kind] ** 2)) for kind, slopes in launch.slopes.items()
    )


def _updated(covariance: Matrix, slopes: Vector, noise: float) -> Matrix:
    """Return the covariance after one more launch (Sherman and Morrison)."""
    reach = covariance @ slopes
    return np.asarray(covariance - np.outer(reach, reach) / (noise**2 + slopes @ reach))


FOLDER: Final = "simulate-probe"
_BUSY = 0.3  # load of a processor, per rank, from which timings are off
SPREAD: Final = 3.0
"""Factor on the priors' spreads in the fit: rates of single operations determine a step only roughly."""
TIMED_STEPS, WARM_UP_STEPS, COUNTED_STEPS = 8, 2, 1
_START_SECONDS: Final = (8.0, 25.0)  # time to start a launch on a processor and on an accelerator
_LONGEST_SECONDS: Final = (30.0, 120.0)  # longest launch on a processor and on an accelerator
UNDETERMINED: Final = 0.95
"""Smallest share of its prior's standard deviation with which a coefficient counts as undetermined."""


class ProbeRequest(Record, kw_only=True):
    """Machine, folder and limits of a probe."""

    hardware: str
    """Name or path of the spec that the measured one is made from."""
    devices: int
    """Ranks of every launch, a count."""
    folder: Path
    model: str | None = None
    """Name or path of the only model to launch; None for shapes of several widths."""
    precision: Precision = "bf16"
    """Type of the matrix products."""
    backend: str = "cpu"
    """Kind of device, in torch's words."""
    launches: int = 20
    limit_seconds: float = 600.0
    """Longest time of one launch, and of measuring the rates."""
    resume: bool = False
    """Whether rates and rows of an earlier probe in the folder are reused."""

    @property
    def rows_file(self) -> Path:
        """File of the measured rows."""
        return self.folder / "rows.csv"

    @property
    def rates_folder(self) -> Path:
        """Folder of the measurement of the rates."""
        return self.folder / "rates"

    @property
    def model_folder(self) -> Path:
        """Folder of the specs of launched shapes."""
        return self.folder / "models"

    def check(self) -> None:
        """Raise InputError or UnsupportedError where nothing could be probed, before anything is started."""
        if os.name != "posix":
            raise UnsupportedError("simulate calibrate --probe: launches need Linux or another POSIX system")
        ReferenceEngine(backend=self.backend).check()
        Launcher().check(1)
        if not self.resume and self.rows_file.exists():
            raise InputError(f"--output {self.folder}: holds an earlier probe; --resume continues it")


def rates_command(request: ProbeRequest) -> Command:
    """Return the command that measures the rates; write nothing."""
    job = request.rates_folder.absolute() / "job.json"
    ranks = ("--standalone", "--nproc-per-node", str(request.devices), "--max-restarts", "0")
    return Command(
        arguments=(sys.executable, "-m", "torch.distributed.run", *ranks, "-m", WORKER, "rates", str(job)),
        environment={"OMP_NUM_THREADS": "1"} if request.backend == "cpu" else {},
        folder=job.parent,
    )


def known_rates(request: ProbeRequest) -> MeasuredRates | None:
    """Return the rates of an earlier probe in the folder; None without. Raises UnsupportedError for another file."""
    path = request.rates_folder / RATES_NAME
    try:
        return from_json(MeasuredRates, path.read_text(encoding="utf-8")) if path.exists() else None
    except (OSError, ValueError) as error:
        raise UnsupportedError(f"{path}: not the rates of a probe: {one_line(str(error))}; remove it") from error


def measured_rates(request: ProbeRequest, tell: Tell, job: RatesJob | None = None) -> MeasuredRates:
    """Measure the rates. Raises UnsupportedError with the reason where that fails."""
    folder = request.rates_folder
    folder.mkdir(parents=True, exist_ok=True)
    (folder / RATES_NAME).unlink(missing_ok=True)
    job = job or rates_job(request.devices, request.backend)
    (folder / "job.json").write_text(to_json(job), encoding="utf-8")
    busy = os.getloadavg()[0] / request.devices
    if request.backend == "cpu" and busy > _BUSY:
        tell(f"the machine is busy (load {os.getloadavg()[0]:.1f}): what is measured now will be too slow")
    tell(f"rates: {len(job.timings)} operations on {request.devices} ranks")
    log = folder / LOG_NAME
    ended = rates_command(request).run(log, request.limit_seconds, {})
    if ended.interrupted:
        raise KeyboardInterrupt
    tell(f"rates: after {ended.wall_seconds:.1f} s")
    measured = known_rates(request) if ended.exit_code == 0 else None
    if measured is None:
        raise UnsupportedError(f"--probe: rates could not be measured: {diagnosis(ended).error}; see {log}")
    return measured


class Prepared(Record, kw_only=True):
    """State of a probe before its first launch."""

    request: ProbeRequest
    hardware: HardwareSpec
    measured: MeasuredRates | None
    """Measured rates; None where the plan rests on the template's own numbers."""
    rates: Rates
    base: Coefficients
    """Rates as coefficients: start and priors of the fit."""
    design: ProbeDesign

    @property
    def spec_file(self) -> Path:
        """Path of the measured spec."""
        return self.request.folder / f"{self.hardware.name}.yaml"


def prepare(request: ProbeRequest, tell: Tell, job: RatesJob | None = None) -> Prepared:
    """Measure the rates, or read those of the resumed probe; write the spec and plan the launches."""
    request.folder.mkdir(parents=True, exist_ok=True)
    measured = known_rates(request) if request.resume else None
    if measured is None:
        measured = measured_rates(request, tell, job)
    prepared = _prepared(request, measured)
    document = _document(request, measured)
    if request.model is None:
        request.model_folder.mkdir(parents=True, exist_ok=True)
        for file, shape in _shapes(request.backend, request.model_folder):
            head = "# A shape that `simulate calibrate --probe` trains.\n"
            file.write_text(head + yaml.safe_dump(shape, sort_keys=False), encoding="utf-8")
    write_file(prepared.spec_file, spec_text(document))
    return prepared


def outlook(request: ProbeRequest) -> Prepared:
    """Return the plan without starting anything: from the rates in the folder, else from the spec's own numbers."""
    return _prepared(request, known_rates(request))


def _document(request: ProbeRequest, measured: MeasuredRates) -> dict[str, Any]:
    made = datetime.fromtimestamp((request.rates_folder / RATES_NAME).stat().st_mtime, UTC)
    return measured_spec(load_hardware(request.hardware), measured, rates_of(measured), made.date().isoformat())


def _prepared(request: ProbeRequest, measured: MeasuredRates | None) -> Prepared:
    template = load_hardware(request.hardware)
    if measured is not None and measured.devices != request.devices:
        raise InputError(
            f"--devices {request.devices}: the rates in {request.rates_folder} are of {measured.devices}; use another "
            "--output"
        )
    hardware, rates = template, assumed_rates(template)
    if measured is not None:
        rates = rates_of(measured)
        if request.precision not in rates.attention:
            raise UnsupportedError(f"--precision {request.precision}: the device has no attention kernel for it")
        hardware = validated(f"--probe of {template.name}", HardwareSpec, _document(request, measured))
    base = Coefficients()
    known = known_memory(hardware.family)
    if known is not None:
        base = replaced(base, "memory", known.names, known.vector)
    base = from_rates(rates, request.precision, base)
    sizes = reach(request.backend, request.model, request.model_folder)
    pool = candidates(hardware, request.devices, request.precision, sizes)
    kind = 0 if request.backend == "cpu" else 1
    effort = Effort(
        launches=request.launches,
        start_seconds=_START_SECONDS[kind],
        steps=TIMED_STEPS + WARM_UP_STEPS + COUNTED_STEPS,
        longest_seconds=_LONGEST_SECONDS[kind],
        spread=SPREAD,
    )
    design = plan(pool, base, effort)
    if not design.launches:
        raise UnsupportedError(
            f"--probe: of {len(pool)} launches that could be made, none fits {hardware.name} and lasts between "
            f"{effort.shortest_step_seconds:g} s a step and {effort.longest_seconds:g} s in all; give a --model of "
            "another size"
        )
    return Prepared(request=request, hardware=hardware, measured=measured, rates=rates, base=base, design=design)


class Compared(Record, kw_only=True):
    """Step time of a launch as predicted before, as measured, and by the fit."""

    planned: Planned
    measured_seconds: float | None
    """Measured step time; None for a launch that failed."""
    after_seconds: float | None
    """Step time by the fit; None without a fit."""


class Probed(Prepared, kw_only=True):
    """Result of a probe."""

    campaign: Campaign
    fitted: OwnFit | None
    """Fit; None where all launches failed."""
    compared: tuple[Compared, ...]
    """Comparison of every launch."""
    calibration_file: Path | None
    """Stored calibration; None where nothing could be stored."""
    undetermined: tuple[str, ...]
    """Coefficients that stay at their priors, as no launch depends on them."""


def launch_all(
    ready: Prepared, tell: Tell, *, engine: Engine | None = None, launcher: Launcher | None = None
) -> Probed:
    """Run the plan, fit its rows and write the calibration; by default with the reference trainer on this machine."""
    request = ready.request
    engine = engine or ReferenceEngine(backend=request.backend)
    record = RowsFile(request.rows_file)
    record.check()
    campaign = run(launch_plan(ready, engine, record), launcher or Launcher(), engine, record, tell)
    if campaign.unwritten:
        tell(campaign.unwritten)
    rows = [row for compared in campaign.comparisons for row in compared.ran]
    family = ready.hardware.family
    known = {kind: Known.of_priors(kind, ready.base, spread=SPREAD, noise=NOISE["time"]) for kind in KINDS}
    fitted = fit_own(family, prepared(rows), known, ready.base) if rows else None
    stored = None
    if fitted is not None and (fitted.stored("time") or fitted.stored("memory")):
        stored = request.folder / f"{family}.yaml"
        write_file(stored, calibration_text(fitted.calibration()))
    after = fitted.coefficients(ready.base) if fitted is not None and fitted.stored("time") else None
    return Probed(
        **vars(ready),
        campaign=campaign,
        fitted=fitted,
        compared=tuple(_compared(ready, campaign, after)),
        calibration_file=stored,
        undetermined=undetermined(fitted, ready.base) if fitted is not None else (),
    )


def launch_plan(ready: Prepared, engine: Engine, record: RowsFile) -> LaunchPlan:
    """Return the design's launches, with their files written; those that the record holds are left out."""
    before = record.rows() if ready.request.resume else ()
    folder = run_folder(ready.request.folder / "launches")
    layouts: list[tuple[str, Estimate]] = []
    launches: list[Launch] = []
    known: dict[str, list[MeasuredRow]] = {}
    for number, planned in enumerate(ready.design.launches, start=1):
        title = f"{number}-{planned.candidate.title}"
        pick = Pick(
            scenario=replace(planned.candidate.scenario, coefficients=ready.base),
            layout=planned.candidate.layout,
            question=question_of({"model": planned.candidate.model, "hardware": str(ready.spec_file)}),
            steps=TIMED_STEPS,
            warmup_steps=WARM_UP_STEPS,
            table=record.table,
        )
        estimate = estimate_layout(pick.scenario, pick.layout)
        layouts.append((title, estimate))
        known[title] = launches_of(pick, before)
        if known[title]:
            continue
        launches.append(
            Launch(
                title=title,
                pick=pick,
                estimate=estimate,
                command=engine.prepare(pick, (folder / title).absolute()),
                number=len(launches) + 1,
                limit_seconds=ready.request.limit_seconds,
            )
        )
    return LaunchPlan(layouts=tuple(layouts), launches=tuple(launches), known=known, refused=())


def _compared(ready: Prepared, campaign: Campaign, after: Coefficients | None) -> Iterator[Compared]:
    for planned, comparison in zip(ready.design.launches, campaign.comparisons, strict=True):
        candidate = planned.candidate
        fitted = None
        if after is not None:
            scenario = replace(candidate.scenario, coefficients=after)
            fitted = estimate_layout(scenario, candidate.layout).throughput.step_seconds
        step = comparison.step
        yield Compared(
            planned=planned,
            measured_seconds=None if step is None else step.measured,
            after_seconds=fitted,
        )


def undetermined(fitted: OwnFit, base: Coefficients) -> tuple[str, ...]:
    """Return the coefficients whose deviation after the fit is that of their prior."""
    reasons: list[str] = []
    for part in fitted.fits.values():
        known = priors(part.kind)
        values = getattr(base, part.kind)
        for name, error in zip(part.names, np.sqrt(np.diag(part.covariance)), strict=True):
            if error >= UNDETERMINED * (SPREAD * known[name].spread * abs(float(getattr(values, name)))):
                reasons.append(name)
    return tuple(reasons)
