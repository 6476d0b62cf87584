"""How far off step times are on shapes and layouts that a probe has not seen.

`python -m benchmarks.probe_accuracy FOLDER` takes what `simulate calibrate --probe --output FOLDER` wrote, launches
shapes between those of the probe and layouts of each kind several times, and compares the medians with predictions.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml

from benchmarks.machine import judged, say, say_machine
from simulator import api
from simulator.lab.runner.engine import LOG_NAME, Launch, Launcher, Pick
from simulator.lab.runner.engines import ReferenceEngine
from simulator.question.question import question_of
from simulator.question.scenario.complete import resolve
from simulator.search.build import estimate_layout

TARGET = 0.15
"""Largest relative error of a held-out step time."""
LIMIT_SECONDS = 300.0
HEAD, VOCABULARY = 64, 2048
QUIET = 0.08
"""Busy share of the machine below which it counts as quiet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOut:
    """One shape and layout on two ranks; no probe of shipped sizes launches this width with this sequence."""

    width: int
    layers: int
    tokens: int
    batch: int
    split: dict[str, int]
    micro_batch: int = 1
    recompute: str = "none"

    @property
    def title(self) -> str:
        """The case in a few words."""
        words = [f"h{self.width}", f"l{self.layers}", f"s{self.tokens}", f"gbs{self.batch}", f"mbs{self.micro_batch}"]
        words += [f"{name} {size}" for name, size in self.split.items()]
        return " ".join([*words, *([self.recompute] if self.recompute != "none" else [])])


TENSOR, PIPELINE = {"tensor_parallel": 2}, {"pipeline_parallel": 2}
CASES = (
    HeldOut(width=384, layers=3, tokens=384, batch=4, split=TENSOR),
    HeldOut(width=768, layers=3, tokens=256, batch=6, split=TENSOR, micro_batch=3),
    HeldOut(width=640, layers=2, tokens=640, batch=3, split=TENSOR, recompute="selective"),
    HeldOut(width=384, layers=6, tokens=384, batch=6, split=PIPELINE),
    HeldOut(width=640, layers=4, tokens=640, batch=3, split=PIPELINE, recompute="full"),
    HeldOut(width=768, layers=3, tokens=256, batch=9, split=PIPELINE, micro_batch=3),
    HeldOut(width=384, layers=5, tokens=768, batch=6, split={"zero_stage": 1}),
    HeldOut(width=768, layers=3, tokens=384, batch=12, split={"zero_stage": 3}, micro_batch=3),
    HeldOut(width=640, layers=3, tokens=256, batch=6, split={"zero_stage": 2}, recompute="selective"),
    HeldOut(width=896, layers=2, tokens=384, batch=6, split={"zero_stage": 0}, recompute="full"),
)


def model_file(folder: Path, case: HeldOut) -> Path:
    """Write the spec of a case's model."""
    heads = case.width // HEAD
    document = {
        "name": f"held-out-{case.width}",
        "architecture": "llama",
        "num_hidden_layers": 2,
        "hidden_size": case.width,
        "intermediate_size": case.width * 11 // 4,
        "num_attention_heads": heads,
        "num_key_value_heads": 2,
        "head_dim": HEAD,
        "vocab_size": VOCABULARY,
        "tie_word_embeddings": False,
    }
    path = folder / f"{document['name']}.yaml"
    path.write_text(yaml.safe_dump(document, sort_keys=False), encoding="utf-8")
    return path


def pick_of(case: HeldOut, probe: Path, folder: Path, hardware: str, precision: str) -> Pick:
    """The case as a launch, priced with what the probe wrote."""
    model = str(model_file(folder, case))
    scenario = api.scenario_of(
        model=model,
        hardware=hardware,
        devices=2,
        seq_length=case.tokens,
        global_batch_size=case.batch,
        precision=precision,
        num_layers=case.layers,
        framework="torch",
        calibration=str(probe / "cpu.yaml"),
    )
    fields = {"zero_stage": 1, **case.split, "micro_batch_size": case.micro_batch, "recompute": case.recompute}
    _, layout = resolve(scenario, fields, filled=False)
    return Pick(scenario=scenario, layout=layout, question=question_of({"model": model, "hardware": hardware}))


def measured(pick: Pick, place: Path) -> float:
    """Median step time of one launch."""
    engine, launcher = ReferenceEngine(backend="cpu"), Launcher()
    launch = Launch(
        title=place.name,
        pick=pick,
        estimate=estimate_layout(pick.scenario, pick.layout),
        command=engine.prepare(pick, place.absolute()),
        limit_seconds=LIMIT_SECONDS,
    )
    outcome = engine.outcome(pick, place, launcher.run(launch))
    if outcome.row is None or outcome.row.step_seconds is None:
        sys.exit(f"{place.name}: {outcome.kind}: {outcome.error}; its log: {place / LOG_NAME}")
    return outcome.row.step_seconds


def busy_share(seconds: float = 2.0) -> float:
    """Share of the processors' time that anything took in the next seconds."""

    def ticks() -> tuple[int, int]:
        words = Path("/proc/stat").read_text(encoding="ascii").split("\n", 1)[0].split()[1:9]
        counts = [int(word) for word in words]
        return sum(counts) - counts[3] - counts[4], sum(counts)

    busy, whole = ticks()
    time.sleep(seconds)
    busy_after, whole_after = ticks()
    return (busy_after - busy) / max(whole_after - whole, 1)


def wait_until_quiet(minutes: float) -> None:
    """Wait for a moment in which nothing else runs."""
    until = time.monotonic() + 60.0 * minutes
    while busy_share() > QUIET and time.monotonic() < until:
        time.sleep(3.0)


def compared(arguments: argparse.Namespace) -> Iterator[tuple[HeldOut, float, list[float]]]:
    """Every case with its predicted step time and those of its launches."""
    probe = Path(arguments.folder)
    folder = probe / "held-out"
    folder.mkdir(exist_ok=True)
    for number, case in enumerate(CASES, start=1):
        pick = pick_of(case, probe, folder, arguments.hardware or str(probe / "local-cpu.yaml"), arguments.precision)
        predicted = estimate_layout(pick.scenario, pick.layout).throughput.step_seconds
        seconds = []
        for repeat in range(1, arguments.repeat + 1):
            wait_until_quiet(arguments.quiet_minutes)
            seconds.append(measured(pick, folder / f"{number}-{repeat}"))
        yield case, predicted, seconds


def main(words: Sequence[str] | None = None) -> None:
    """Launch all cases and print predicted and measured step times."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", help="what a probe wrote")
    parser.add_argument("--hardware", help="measured spec; FOLDER/local-cpu.yaml by default")
    parser.add_argument("--precision", default="bf16", choices=("bf16", "fp32"))
    parser.add_argument("--repeat", type=int, default=3, help="launches of each case")
    parser.add_argument("--quiet-minutes", type=float, default=0.0, help="how long to wait for a quiet moment")
    arguments = parser.parse_args(words)
    say_machine()
    say("case                                             predicted ms  measured ms  spread %  error %")
    errors = []
    for case, predicted, seconds in compared(arguments):
        middle = statistics.median(seconds)
        error = predicted / middle - 1.0
        errors.append(abs(error))
        spread = 100.0 * (max(seconds) / min(seconds) - 1.0)
        say(f"{case.title:<48} {1e3 * predicted:>12.1f} {1e3 * middle:>12.1f} {spread:>9.1f} {100.0 * error:>+8.1f}")
    say(f"median error {100.0 * statistics.median(errors):.1f} %")
    say(f"worst error {100.0 * max(errors):.1f} %, target {100.0 * TARGET:.0f} %: {judged(met=max(errors) <= TARGET)}")


if __name__ == "__main__":
    main()
