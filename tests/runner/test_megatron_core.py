"""A launch of the real megatron-core, on a CPU: its recipe, its ranks, its log, and the memory it took.

`megatron_shim.py` stands where Megatron-LM has its `pretrain_gpt.py`. Needs torch, megatron-core 0.16.1 and a minute.
"""

import importlib.util
import os
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from simulator.api import estimate, scenario_of
from simulator.evidence.measurements.rows import read_rows, write_rows
from simulator.lab.runner.engine import LaunchOutcome, Pick
from simulator.lab.runner.engines import MegatronEngine
from simulator.lab.runner.processes import Ended, run_guarded
from simulator.question.coefficients import Coefficients
from simulator.question.question import question_of
from simulator.question.units import MIB
from tests.scenario.cases import complete_layout

HERE = Path(__file__).parent
ON = os.environ.get("SIMULATE_MEGATRON") == "1"
FOUND = ON and importlib.util.find_spec("megatron") is not None
pytestmark = [
    pytest.mark.megatron,
    pytest.mark.skipif(not ON, reason="SIMULATE_MEGATRON=1 starts launches of megatron-core; it is not set"),
    pytest.mark.skipif(ON and not FOUND, reason="megatron-core cannot be imported: pip install megatron-core==0.16.1"),
]

QUESTION: dict[str, Any] = {
    "model": str(HERE.parent.parent / "examples" / "models" / "tiny.yaml"),
    "hardware": "local-cpu",
    "devices": 2,
    "seq_length": 256,
    "global_batch_size": 4,
    "framework": "megatron",
    "calibration": "none",
}
LAUNCHED = {"flash_attention": "false", "tp_comm_overlap": "false"}
"""What a recipe says of the run."""
LOCAL_SPEC = LAUNCHED | {
    "fused_rms_norm": "false",
    "fused_swiglu": "false",
    "repeat_kv": "true",
    "keep_qkv_output": "false",
    "rope_tables_per_call": "true",
}
"""What the modules do that megatron-core has of its own, for those of TransformerEngine."""
STATE_BYTES = 18
"""Of a parameter: 16-bit weight, fp32 gradient, fp32 copy and two moments."""
SCORES = 2 * 256 * 256
"""Bytes of one head's scores, which the local attention keeps in a buffer for good."""


def launched(layout: dict[str, Any], folder: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Pick, LaunchOutcome, str]:
    scenario = scenario_of(**QUESTION, options=LAUNCHED)
    pick = Pick(
        scenario=scenario,
        layout=complete_layout(scenario, **layout),
        question=question_of({"model": str(QUESTION["model"]), "hardware": "local-cpu", "options": LAUNCHED}),
        steps=4,
    )
    (folder / "pretrain_gpt.py").symlink_to(HERE / "megatron_shim.py")
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    environment = {"DATA_ARGS": "--mock-data --tokenizer-type NullTokenizer --vocab-size 2047", "OMP_NUM_THREADS": "1"}
    engine = MegatronEngine(path=str(folder), environment=environment)
    command = engine.prepare(pick, folder / "launch")
    log = folder / "launch" / "log.txt"
    found = run_guarded(
        command.arguments,
        folder=command.folder,
        environment={**environment, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29561", **command.environment},
        log=log,
        limit_seconds=300.0,
    )
    ended = Ended(exit_code=found.exit_code, log=log, wall_seconds=found.wall_seconds, timed_out=found.timed_out)
    return pick, engine.outcome(pick, folder / "launch", ended), log.read_text(encoding="utf-8")


def predicted_bytes(layout: dict[str, Any]) -> list[float]:
    """Tensors at the peak of each rank, without the workspace of libraries, which has no tensors on a CPU."""
    priced = estimate(**QUESTION, options=LOCAL_SPEC, **layout)
    workspace = Coefficients().memory.workspace_bytes
    ranks = layout.get("tensor_parallel", 1)
    return [stage.allocated_bytes - workspace for stage in priced.memory.stages for _ in range(ranks)]


@pytest.mark.parametrize(
    ("layout", "held"),
    [
        ({"tensor_parallel": 2, "sequence_parallel": False}, [2_001_152, 2_001_152]),
        ({"pipeline_parallel": 2}, [1_999_872, 2_000_128]),
    ],
    ids=["tp2", "pp2"],
)
def test_a_launch_of_megatron_core(
    layout: dict[str, Any], held: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pick, outcome, log = launched(layout, tmp_path, monkeypatch)
    assert outcome.kind == "ok", (outcome.error, outcome.tail)
    write_rows(tmp_path / "rows.csv", [outcome.row] if outcome.row else [])
    (row,) = read_rows(tmp_path / "rows.csv")
    assert row.step_samples == 2

    losses: dict[str, list[float]] = {}
    for rank, loss in re.findall(r"\[Rank (\d)\] iteration \d+ loss ([0-9.]+)", log):
        losses.setdefault(rank, []).append(float(loss))
    first = next(iter(losses.values()))
    assert len(first) == 6
    assert all(rank == first for rank in losses.values())
    assert len(losses) == pick.layout.tensor_parallel
    assert first[-1] < first[0]

    reports = sorted(re.findall(r"\[Rank (\d)\] .* allocated: ([0-9.]+) \| max allocated: ([0-9.]+)", log))
    heads = 8 // pick.layout.tensor_parallel
    for (_, base, peak), parameters, predicted in zip(reports, held, predicted_bytes(layout), strict=True):
        # Beside the state: the scores' buffer, and less than half a MiB of tables, tokens and what a stage received.
        least = STATE_BYTES * parameters + heads * SCORES
        assert least <= float(base) * MIB < least + MIB / 2
        assert float(peak) * MIB == pytest.approx(predicted, rel=0.03)
    assert row.memory_mib == max(float(peak) for _, _, peak in reports)
