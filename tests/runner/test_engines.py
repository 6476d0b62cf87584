"""Outside frameworks as engines: from the layout to the recipe, its launch, the log and the measured row.

The frameworks are stand-ins on the PATH that keep what they were called with and print a recorded log (`data`).
"""

import dataclasses
import os
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest

from simulator.api import estimate, scenario_of
from simulator.errors import InputError, UnsupportedError
from simulator.evidence.measurements.question import question
from simulator.evidence.measurements.rows import read_rows, write_rows
from simulator.lab.runner.engine import Command, Engine, LaunchOutcome, Pick, launched_row
from simulator.lab.runner.engines import MegatronEngine, PaddleEngine, ReferenceEngine
from simulator.lab.runner.processes import Ended
from simulator.question.question import question_of
from tests.cli.running import refusal
from tests.cli.running import run as command_line
from tests.scenario.cases import complete_layout

DATA = Path(__file__).parent / "data"
STAND_IN = """#!/bin/bash
printf '%s\\n' "$@" > "$CALLED"
env | sort > "$CALLED.env"
if [ -n "$RANK_LOG" ]; then mkdir -p "$OUTPUT_PATH/logs/0"; cp "$RANK_LOG" "$OUTPUT_PATH/logs/0/workerlog.3"; fi
cat "$RECORDED"
exit "$STATUS"
"""
CLUSTER: dict[str, Any] = {"model": "llama3.1-8b", "hardware": "h800-sxm-80g", "devices": 8, "global_batch_size": 16}


def pick_of(framework: str = "megatron", layout: dict[str, Any] | None = None, **question: Any) -> Pick:
    scenario = scenario_of(**{**CLUSTER, "framework": framework, **question})
    sizes = {"tensor_parallel": 2, "pipeline_parallel": 2, **(layout or {})}
    return Pick(
        scenario=scenario,
        layout=complete_layout(scenario, **sizes),
        question=question_of({name: question.get(name, CLUSTER[name]) for name in ("model", "hardware")}),
    )


def engine_of(name: str, folder: Path, **environment: str) -> Engine:
    (folder / "pretrain_gpt.py").touch()
    if name == "megatron":
        return MegatronEngine(path=str(folder), environment=environment)
    needed = {"MODEL_PATH": "llama3.1-8b", "DATA_PATH": "data"}
    return PaddleEngine(path=str(folder), environment={**needed, **environment})


def stand_ins(folder: Path, recorded: str, status: int = 0, rank_log: str = "") -> dict[str, str]:
    """The environment in which a recipe starts stand-ins for its programs."""
    tools = folder / "tools"
    tools.mkdir(exist_ok=True)
    for name in ("torchrun", "python"):
        (tools / name).write_text(STAND_IN, encoding="utf-8")
        (tools / name).chmod(0o755)
    return {
        "PATH": f"{tools}:{os.environ['PATH']}",
        "CALLED": str(folder / "called"),
        "RECORDED": str(DATA / recorded),
        "RANK_LOG": str(DATA / rank_log) if rank_log else "",
        "STATUS": str(status),
    }


def run(command: Command, folder: Path, recorded: str, **ended: Any) -> Ended:
    """Run what a node runs."""
    node = {"MASTER_ADDR": "node-1", "MASTER_PORT": "29511", "NODE_RANK": "0"}
    environment = {**command.environment, **stand_ins(folder, recorded, **ended), **node}
    log = folder / "launch.log"
    with log.open("wb") as stream:
        done = subprocess.run(
            command.arguments,
            cwd=command.folder,
            env=environment,
            stdout=stream,
            stderr=subprocess.STDOUT,
            check=False,
        )
    return Ended(exit_code=done.returncode, log=log)


def launched(pick: Pick, engine: Engine, folder: Path, recorded: str, **ended: Any) -> LaunchOutcome:
    command = engine.prepare(pick, folder / "launch")
    return engine.outcome(pick, folder / "launch", run(command, folder, recorded, **ended))


def words_of(folder: Path) -> dict[str, str]:
    """What the stand-in was called with, by flag; of a repeated flag the last value, as the frameworks take it."""
    words = (folder / "called").read_text(encoding="utf-8").split("\n")
    return {word: following for word, following in zip(words, [*words[1:], ""], strict=True) if word.startswith("-")}


def test_what_no_real_launch_is_behind_is_experimental(tmp_path: Path) -> None:
    for name in ("megatron", "paddle"):
        assert "stand-ins only" in engine_of(name, tmp_path).experimental
    assert ReferenceEngine(backend="cuda").experimental
    assert ReferenceEngine().experimental == ""


def test_megatron_from_layout_to_row(tmp_path: Path) -> None:
    pick = pick_of()
    engine = engine_of("megatron", tmp_path)
    engine.check()
    outcome = launched(pick, engine, tmp_path, "megatron-ok.log")
    assert outcome.kind == "ok", outcome.error
    assert outcome.tail == ()
    row = outcome.row
    assert row is not None
    # Lines cover two iterations each: of the medians 2404.2, 2398.7, 2401.1 and 2409.8 ms per iteration.
    assert row.step_time_ms == 2402.65
    assert row.step_samples == 4
    assert row.memory_mib == 42517.25  # rank 0 is the fullest of those that report
    assert row.memory_kind == "allocated"
    assert row.memory_reserved_mib == 43926.0
    assert "The device showed 45974 MiB." in row.evidence
    assert question(row)[1] == pick.layout
    assert question(row)[0].framework == pick.scenario.framework
    assert row.speed_counts
    assert row.memory_counts
    write_rows(tmp_path / "rows.csv", [row])
    assert read_rows(tmp_path / "rows.csv") == (row,)


def test_megatron_is_told_to_run_shortly_on_mock_data(tmp_path: Path) -> None:
    launched(pick_of(), engine_of("megatron", tmp_path), tmp_path, "megatron-ok.log")
    words = words_of(tmp_path)
    assert words["--train-iters"] == "10"  # two warm-up and eight timed ones
    assert words["--log-interval"] == "2"
    assert words["--eval-iters"] == "0"
    assert "--mock-data" in words
    assert words["--tokenizer-type"] == "NullTokenizer"
    assert words["--vocab-size"] == "128255"  # that tokenizer adds one
    assert "--data-path" not in words
    assert words["--master_addr"] == "node-1"
    assert words["--master_port"] == "29511"
    called = (tmp_path / "called").read_text(encoding="utf-8")
    assert f"{tmp_path}/pretrain_gpt.py\n" in called


def test_odd_numbers_of_steps_end_with_a_line_of_the_log(tmp_path: Path) -> None:
    pick = dataclasses.replace(pick_of(), warmup_steps=3, steps=5)
    command = engine_of("megatron", tmp_path).prepare(pick, tmp_path / "launch")
    assert command.environment["TRAIN_ITERS"] == "10"


def test_own_data_of_the_environment_is_kept(tmp_path: Path) -> None:
    command = engine_of("megatron", tmp_path, DATA_PATH="corpus").prepare(pick_of(), tmp_path / "launch")
    assert "DATA_ARGS" not in command.environment
    small = pick_of(model="examples/models/tiny.yaml", layout={"pipeline_parallel": 1})
    with pytest.raises(UnsupportedError, match="token ids up to 4095"):
        engine_of("megatron", tmp_path).prepare(small, tmp_path / "tiny")
    assert engine_of("megatron", tmp_path, DATA_PATH="corpus").prepare(small, tmp_path / "tiny").files


def test_paddle_from_layout_to_row(tmp_path: Path) -> None:
    pick = pick_of("paddle")
    engine = engine_of("paddle", tmp_path)
    engine.check()
    outcome = launched(pick, engine, tmp_path, "paddle-ok.log")
    assert outcome.kind == "ok", outcome.error
    row = outcome.row
    assert row is not None
    assert row.step_samples == 8
    assert row.step_time_ms == 2479.7
    assert row.memory_mib == 37288
    assert row.memory_kind == "allocated"
    assert question(row)[1] == pick.layout
    words = words_of(tmp_path)
    assert words["--max_steps"] == "10"
    assert words["--logging_steps"] == "1"
    assert words["--master"] == "node-1:29511"
    assert words["--log_dir"] == f"{tmp_path / 'launch'}/logs/0"
    assert words["--output_dir"] == f"{tmp_path / 'launch'}/checkpoints"
    assert "test_ci_no_save_model=1" in (tmp_path / "called.env").read_text(encoding="utf-8")


def test_memory_of_the_first_rank_is_none_of_a_fuller_stage(tmp_path: Path) -> None:
    pick = pick_of("paddle", layout={"stage_layers": (6, 26)})
    assert estimate(**{**CLUSTER, "framework": "paddle"}, layout=pick.layout).memory.binding_stage == 1
    outcome = launched(pick, engine_of("paddle", tmp_path), tmp_path, "paddle-ok.log")
    assert outcome.row is not None
    assert outcome.row.memory_bytes is None
    assert outcome.row.reserved_bytes is None
    assert outcome.row.speed_counts
    assert "first stage only, 37288 MiB; stage 1" in outcome.row.evidence


def test_no_checkpoint_of_ernie_either(tmp_path: Path) -> None:
    pick = pick_of("paddle", model="ernie-4.5-21b-a3b", layout={"tensor_parallel": 4, "expert_parallel": 4})
    command = engine_of("paddle", tmp_path, EXTRA_ARGS="--seed 1").prepare(pick, tmp_path / "launch")
    assert command.environment["EXTRA_ARGS"] == "--seed 1 --sft_benchmark 1"


@pytest.mark.parametrize(
    ("framework", "recorded", "rank_log", "kind", "message"),
    [
        ("megatron", "megatron-out-of-memory.log", "", "oom", "torch.OutOfMemoryError: CUDA out of memory. Tried"),
        ("megatron", "megatron-refused.log", "", "error", "unrecognized arguments: --tp-comm-overlap"),
        ("megatron", "megatron-raised.log", "", "error", "ValueError: Number of attention heads (32) must be a"),
        ("paddle", "paddle-out-of-memory.log", "paddle-workerlog.3", "oom", "Out of memory error on GPU 3. Cannot"),
        ("paddle", "paddle-out-of-memory.log", "", "error", " Exit code 1 (exit code 1)"),
    ],
)
def test_launches_that_fail(  # noqa: PLR0917
    framework: str, recorded: str, rank_log: str, kind: str, message: str, tmp_path: Path
) -> None:
    pick = pick_of(framework)
    outcome = launched(pick, engine_of(framework, tmp_path), tmp_path, recorded, status=1, rank_log=rank_log)
    assert outcome.kind == kind
    assert message in outcome.error
    text = (DATA / recorded).read_text(encoding="utf-8")
    assert 0 < len(outcome.tail) <= 20
    assert all(line in text for line in outcome.tail)
    assert outcome.row is not None
    assert outcome.row.outcome == kind
    assert outcome.row.error == outcome.error
    assert question(outcome.row)[1] == pick.layout
    assert not outcome.row.memory_counts
    assert not outcome.row.speed_counts


def test_a_log_of_another_layout_is_no_measurement(tmp_path: Path) -> None:
    pick = pick_of(layout={"tensor_parallel": 4, "pipeline_parallel": 1})
    outcome = launched(pick, engine_of("megatron", tmp_path), tmp_path, "megatron-ok.log")
    assert outcome.kind == "error"
    assert outcome.error.endswith("the log says tensor_parallel 2, launched was 4")


def test_a_launch_that_prints_no_log(tmp_path: Path) -> None:
    outcome = launched(pick_of(), engine_of("megatron", tmp_path), tmp_path, "README.md")
    assert outcome.kind == "error"
    assert "no training log up to here" in outcome.error


def test_limits_and_interruptions(tmp_path: Path) -> None:
    engine, pick = engine_of("megatron", tmp_path), pick_of()
    log = DATA / "megatron-ok.log"
    late = engine.outcome(pick, tmp_path, Ended(exit_code=None, log=log, timed_out=True))
    assert (late.kind, late.error) == ("timeout", "did not end within the time limit")
    assert late.row is not None
    assert late.row.outcome == "error"
    full = Ended(exit_code=None, log=DATA / "megatron-out-of-memory.log", timed_out=True)
    assert engine.outcome(pick, tmp_path, full).kind == "oom"  # the other ranks may wait for good
    stopped = engine.outcome(pick, tmp_path, Ended(exit_code=None, log=log, interrupted=True))
    assert (stopped.kind, stopped.row, stopped.error, stopped.tail) == ("interrupted", None, "", ())


def test_what_the_framework_cannot_run_is_skipped_with_its_reason(tmp_path: Path) -> None:
    listed = {"recompute": "full", "recompute_method": "list", "recompute_layer_list": (0, 1)}
    for framework in ("megatron", "paddle"):
        with pytest.raises(UnsupportedError, match="--recompute-layer-list: a measured row has no words for it"):
            engine_of(framework, tmp_path).prepare(pick_of(framework, layout=listed), tmp_path / framework)
        assert not (tmp_path / framework).exists()


def test_stages_between_the_ends_may_differ(tmp_path: Path) -> None:
    uneven = pick_of(layout={"pipeline_parallel": 4, "stage_layers": (7, 8, 9, 8)})
    engine_of("megatron", tmp_path).prepare(uneven, tmp_path / "uneven")
    recipe = (tmp_path / "uneven" / "recipe.sh").read_text(encoding="utf-8")
    assert "--pipeline-model-parallel-layout" in recipe


@pytest.mark.parametrize(
    ("engine", "message"),
    [
        (MegatronEngine(environment={}), "--engine-path DIR or MEGATRON_PATH"),
        (MegatronEngine(environment={"MEGATRON_PATH": "nowhere"}), "nowhere/pretrain_gpt.py: no such file"),
        (PaddleEngine(environment={}), "--engine-path DIR or PADDLE_PATH"),
        (PaddleEngine(environment={"PADDLE_PATH": "nowhere"}), "nowhere: no such folder"),
        (PaddleEngine(path=".", environment={"MODEL_PATH": "m"}), "DATA_PATH is not set"),
    ],
)
def test_what_every_launch_needs_is_asked_for_first(engine: Engine, message: str) -> None:
    with pytest.raises(InputError, match=message):
        engine.check()


def test_a_dry_run_needs_nothing(tmp_path: Path) -> None:
    command = MegatronEngine(environment={}).prepare(pick_of(), tmp_path / "launch")
    (recipe,) = command.files
    assert recipe.read_text(encoding="utf-8").startswith(
        "#!/bin/bash\n# Written by `simulate emit`: llama3.1-8b on 8 x"
    )
    assert shlex.join(command.arguments) == "bash recipe.sh"
    assert "MEGATRON_PATH" not in command.environment


def test_a_truncated_model_is_named_with_its_layers() -> None:
    row = launched_row(pick_of(num_layers=8), "error", "none")
    assert row.num_layers == 8
    assert launched_row(pick_of(), "error", "none").num_layers is None


VALIDATE = (
    *("validate", "--engine", "megatron", "--model", "llama3.1-8b", "--hardware", "h800-sxm-80g", "--devices", "8"),
    *("--global-batch-size", "16", "--tp", "2", "--pp", "2", "--vpp", "1", "--micro-batch-size", "1"),
    *("--recompute", "none", "--top", "1"),
)


def test_validate_launches_the_recipe_and_records_the_row(tmp_path: Path) -> None:
    (tmp_path / "pretrain_gpt.py").touch()
    where = ("--engine-path", str(tmp_path), "--work-folder", str(tmp_path / "work"))
    result = command_line(*VALIDATE, *where, "--format", "json", env=stand_ins(tmp_path, "megatron-ok.log"))
    assert result.exit_code == 0, result.stderr
    (row,) = read_rows(tmp_path / "work" / "h800-sxm-80g.csv")
    assert (row.outcome, row.memory_mib, row.step_time_ms) == ("ok", 42517.25, 2402.65)
    assert row.source_ref == "run-1/1-llama3.1-8b-tp2-pp2-dp2-mbs1-zero1"


def test_validate_tells_of_memory_that_ran_out(tmp_path: Path) -> None:
    (tmp_path / "pretrain_gpt.py").touch()
    where = ("--engine-path", str(tmp_path), "--work-folder", str(tmp_path / "work"))
    environment = stand_ins(tmp_path, "megatron-out-of-memory.log", status=1)
    result = command_line(*VALIDATE, *where, env=environment)
    assert result.exit_code == 1
    assert "predicted to fit, ran out of memory" in result.stdout
    assert "CUDA out of memory" in result.stdout
    (row,) = read_rows(tmp_path / "work" / "h800-sxm-80g.csv")
    assert row.outcome == "oom"


def test_a_dry_run_shows_recipe_and_command(tmp_path: Path) -> None:
    result = command_line(*VALIDATE, "--work-folder", str(tmp_path), "--dry-run")
    assert result.exit_code == 0, result.stderr
    assert "/recipe.sh <<'END'\n#!/bin/bash\n# Written by `simulate emit`: llama3.1-8b on 8 x" in result.stdout
    assert "TRAIN_ITERS=10 LOG_INTERVAL=2" in result.stdout
    assert result.stdout.endswith(" bash recipe.sh\n")


def test_validate_without_the_framework_says_what_it_needs(tmp_path: Path) -> None:
    said = refusal(*VALIDATE, "--work-folder", str(tmp_path), env={"MEGATRON_PATH": ""})
    assert said.startswith("--engine megatron: the folder of Megatron-LM is not known")
