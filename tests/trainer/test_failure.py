"""How a rank's failure becomes one line, and the line a failure again."""

import pytest

from simulator.errors import InputError, UnsupportedError
from simulator.lab.trainer.process import EXIT_CODES, failure_in, failure_of


@pytest.mark.parametrize(
    "error",
    [
        MemoryError("64 GiB"),
        RuntimeError("[enforce fail at alloc_cpu.cpp:127] DefaultCPUAllocator: can't allocate memory: you tried to"),
        RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB"),
        RuntimeError("NPU out of memory. Tried to allocate 2.00 GiB"),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED"),
        OSError(12, "Cannot allocate memory"),
    ],
)
def test_memory_that_ran_out_is_recognised(error: Exception) -> None:
    failure = failure_of(error, 1)
    assert failure.kind == "out-of-memory"
    assert EXIT_CODES[failure.kind] == 3


def test_a_pipeline_that_wraps_the_failure_hides_nothing() -> None:
    wrapped = RuntimeError("[Stage 1] failed to run forward:\n args: ...")
    wrapped.__cause__ = MemoryError("no room")
    assert failure_of(wrapped, 1).kind == "out-of-memory"
    wrapped.__cause__ = KeyError("labels")
    assert failure_of(wrapped, 1).text == "KeyError: 'labels'"


def test_an_error_raised_on_purpose_is_told_in_its_own_words() -> None:
    refused = UnsupportedError("offload optimizer: none only")
    refused.__cause__ = ValueError("inside")
    assert failure_of(refused, 0).kind == "unsupported"
    assert failure_of(refused, 0).text == "UnsupportedError: offload optimizer: none only"
    assert failure_of(InputError("no such file"), 0).kind == "error"


def test_causes_that_go_round_in_a_circle_end() -> None:
    first, second = RuntimeError("first"), RuntimeError("second")
    first.__cause__, second.__cause__ = second, first
    assert failure_of(first, 0).text == "RuntimeError: second"


def test_a_line_reads_back_equal_also_behind_what_torchrun_puts_in_front() -> None:
    failure = failure_of(RuntimeError("one\ntwo   three"), 12)
    assert failure.line == "simulate-trainer: rank 12: error: RuntimeError: one two three"
    assert failure_in(f"[default12]:{failure.line}\n") == failure
    assert failure_in("simulate-trainer: rank x: error: no number") is None


def test_a_long_text_is_cut() -> None:
    assert len(failure_of(RuntimeError("x" * 10_000), 0).text) == 500
