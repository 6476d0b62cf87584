"""What a log says of a launch that failed."""

from pathlib import Path

import pytest

from simulator.lab.runner.engine import TAIL_LINES, LaunchOutcome, diagnosis, tail_of
from simulator.lab.runner.processes import Ended

TORCHRUN = "[default0]:Traceback (most recent call last):"


def diagnosed(folder: Path, text: str, code: int | None = 1, *, timed_out: bool = False) -> LaunchOutcome:
    log = folder / "log.txt"
    log.write_text(text, encoding="utf-8")
    return diagnosis(Ended(exit_code=code, log=log, timed_out=timed_out))


@pytest.mark.parametrize(
    "line",
    [
        "simulate-trainer: rank 3: out-of-memory: RuntimeError: whatever it says",
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 95 GiB",
        "torch.cuda.OutOfMemoryError: CUDA out of memory.",
        "RuntimeError: CUDA error: out of memory",
        "ncclUnhandledCudaError: Call to CUDA function failed. Cuda failure 2 'out of memory'",
        "RuntimeError: NPU out of memory. Tried to allocate 52.00 MiB (NPU 0; 60.96 GiB total capacity)",
        "Out of memory error on GPU 0. Cannot allocate 98.0MB memory on GPU 0, 6.0GB memory has been allocated",
        "RuntimeError: [enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory: you",
        "RuntimeError: [enforce fail at alloc_cpu.cpp:75] DefaultCPUAllocator: not enough memory: you tried",
        "MemoryError",
        "terminate called after throwing an instance of 'std::bad_alloc'",
        "slurmstepd: error: Detected 1 oom_kill event in StepId=12.0. Some of the step tasks have been OOM Killed.",
    ],
)
def test_memory_that_ran_out_is_told(line: str, tmp_path: Path) -> None:
    text = f"{TORCHRUN}\n[default1]:{line}\n[default0]:RuntimeError: connection closed by peer\n"
    told = diagnosed(tmp_path, text)
    assert (told.kind, told.error) == ("oom", line)
    assert told.tail == (line,)


def test_memory_is_the_reason_where_other_ranks_then_hung(tmp_path: Path) -> None:
    assert diagnosed(tmp_path, "[default1]:MemoryError\n", None, timed_out=True).kind == "oom"


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("  exitcode  : -9 (pid: 4021)\n", 1),
        ("srun: error: n1: task 1: Killed\n", 1),
        ("nothing\n", 137),
    ],
)
def test_a_killed_rank_is_no_proof_of_memory_that_ran_out(text: str, code: int, tmp_path: Path) -> None:
    told = diagnosed(tmp_path, text, code)
    assert (told.kind, told.error) == ("error", "killed, perhaps out of the host's memory")


def test_a_library_that_ended_a_rank_is_the_reason_not_the_lost_connection(tmp_path: Path) -> None:
    text = (
        "[default0]:simulate-trainer: rank 0: error: RuntimeError: Read error [127.0.0.1]:4: Connection reset by peer\n"
        "[default1]:terminate called after throwing an instance of 'gloo::EnforceNotMet'\n"
        "[default1]:  what():  [enforce fail at pair.cc:460] op.preamble.length <= op.nbytes. 32768 vs 16384\n"
        "[default2]:  what():  Socket closed\n"
    )
    said = "what(): [enforce fail at pair.cc:460] op.preamble.length <= op.nbytes. 32768 vs 16384"
    assert diagnosed(tmp_path, text).error == said


def test_a_rank_that_broke_is_no_killed_one(tmp_path: Path) -> None:
    text = "0: ValueError: wrong\nsrun: error: n1: task 1: Killed\n"
    told = diagnosed(tmp_path, text, 137)
    assert (told.kind, told.error) == ("error", "ValueError: wrong")


def test_the_first_error_is_the_reason_not_what_follows_from_it(tmp_path: Path) -> None:
    text = (
        "[default0]:simulate-trainer: rank 0: error: RuntimeError: Connection closed by peer [127.0.0.1]:4\n"
        "[default1]:ValueError: shapes do not match\n"
        "[default1]:simulate-trainer: rank 1: error: ValueError: shapes do not match\n"
        "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: \n"
    )
    told = diagnosed(tmp_path, text)
    assert told.error == "simulate-trainer: rank 1: error: ValueError: shapes do not match"
    assert told.tail == (
        "ValueError: shapes do not match",
        "simulate-trainer: rank 1: error: ValueError: shapes do not match",
    )


def test_a_hang_is_a_timeout(tmp_path: Path) -> None:
    told = diagnosed(tmp_path, "step 1\nstep 2\n", None, timed_out=True)
    assert (told.kind, told.error) == ("timeout", "did not end within the time limit")
    assert told.tail == ("step 1", "step 2")


def test_what_a_launcher_adds_is_told(tmp_path: Path) -> None:
    text = "simulate: job 7 waited in the queue for 5 s\n"
    assert diagnosed(tmp_path, text, None, timed_out=True).error == "job 7 waited in the queue for 5 s"
    assert diagnosed(tmp_path, "simulate: sbatch: invalid partition\n").error == "sbatch: invalid partition"


def test_without_a_sign_the_last_line_and_the_code_are_told(tmp_path: Path) -> None:
    assert diagnosed(tmp_path, "one\ntwo\n\n", 4).error == "two (exit code 4)"
    assert diagnosed(tmp_path, "", 4).error == "exit code 4"
    assert diagnosed(tmp_path, "", None).error == "ended without an exit code"
    assert diagnosis(Ended(exit_code=2, log=tmp_path / "none")).error == "exit code 2"


def test_a_reason_is_one_line_of_bounded_length(tmp_path: Path) -> None:
    told = diagnosed(tmp_path, f"ValueError: {'x' * 1000}\n")
    assert len(told.error) <= 303
    assert diagnosed(tmp_path, "ValueError: a\tb\n").error == "ValueError: a b"


def test_the_tail_has_the_last_lines(tmp_path: Path) -> None:
    log = tmp_path / "log.txt"
    log.write_text("".join(f"line {n}\n" for n in range(100)), encoding="utf-8")
    assert tail_of(log) == tuple(f"line {n}" for n in range(100 - TAIL_LINES, 100))
