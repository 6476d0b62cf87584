"""The reference engine with ranks that train nothing and need no torch."""

import sys
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from simulator import api
from simulator.cost.pricing.estimate import Estimate
from simulator.lab.runner.engine import Command, Pick
from simulator.lab.runner.engines import ReferenceEngine
from simulator.question.question import question_of
from simulator.question.scenario.layout import Layout

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
HARDWARE = ROOT / "hardware_specs" / "local-cpu.yaml"
TINY = ROOT / "examples" / "models" / "tiny.yaml"
QUESTION: dict[str, Any] = {
    "model": str(TINY),
    "hardware": "local-cpu",
    "devices": 2,
    "framework": "torch",
    "seq_length": 256,
    "global_batch_size": 8,
}


class FakeEngine(ReferenceEngine, kw_only=True):
    """Leaves jobs and reads results as the real engine does."""

    worker: tuple[str, ...] = (str(HERE / "fake_worker.py"),)

    def check(self) -> None:
        """Nothing is needed."""

    def prepare(self, pick: Pick, folder: Path) -> Command:
        command = ReferenceEngine.prepare(self, pick, folder)
        ranks = str(pick.scenario.devices // pick.scenario.nodes)
        start = (sys.executable, str(HERE / "fake_torchrun.py"), ranks)
        return replace(command, arguments=(*start, sys.executable, *self.worker, str(command.files[0])))


def pick(**changes: Any) -> Pick:
    scenario = api.scenario_of(**QUESTION)
    plain = Pick(
        scenario=scenario,
        layout=Layout(),
        question=question_of({"model": str(TINY), "hardware": "local-cpu"}),
        steps=3,
        table="own",
    )
    return replace(plain, **changes)


def narrow_hardware(folder: Path) -> Path:
    """The local processor as nodes of one device, so that two devices take two nodes."""
    text = HARDWARE.read_text(encoding="utf-8")
    path = folder / "narrow.yaml"
    text = text.replace("devices_per_node: {value: 8,", "devices_per_node: {value: 1,")
    path.write_text(text.replace("devices: {value: 8,", "devices: {value: 1,"), encoding="utf-8")
    return path


@cache
def ranked() -> tuple[Estimate, ...]:
    """The ranking of the tiny question, with every variant."""
    return api.rank(**QUESTION, top=256, variants=True).estimates
