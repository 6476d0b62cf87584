"""What the authors of public recipes say of their memory, beside what is estimated."""

import pytest

from simulator.answers.gates import Gates
from simulator.question.question import question_of
from simulator.question.units import GIB
from simulator.recipes.check.judge import check_files
from simulator.recipes.check.verdict import Checked
from tests.recipes.corpus import public


def judged(family: str, end: str, hardware: str) -> Checked:
    (checked,) = check_files([str(public(family, end))], question_of({"hardware": hardware, "nodes": 1}), Gates())
    return checked


@pytest.mark.parametrize(
    ("family", "end", "hardware", "source"),
    [
        ("swift", "megatron/dense/qwen3_32b.sh", "a100-sxm-80g", "line 1: 8 * 80GiB"),
        ("swift", "train/liger/sft.sh", "a100-sxm-80g", "lines 1 and 2: 4 * A100, 42GB each"),
        ("swift", "deepspeed/train_zero2.sh", "a100-sxm-40g", "line 1: 18GiB * 2"),
        ("swift", "think_model/qwen3_demo2.sh", "a100-sxm-40g", "one device"),
        ("primus", "MI300X/llama3.2_1B-BF16-pretrain.yaml", "mi300x", "folder of the device"),
        ("primus", "MI300X/llama3.2_1B-FP8-pretrain.yaml", "mi300x", "folder of the device"),
        ("primus", "MI300X/mixtral_8x7B_v0.1-BF16-pretrain.yaml", "mi300x", "folder of the device"),
        ("primus", "MI300X/qwen2.5_7B-FP8-pretrain.yaml", "mi300x", "folder of the device"),
        ("primus", "MI300X/qwen3_8B-BF16-pretrain.yaml", "mi300x", "folder of the device"),
    ],
)
def test_what_runs_there_fits_there(family: str, end: str, hardware: str, source: str) -> None:
    found = judged(family, end, hardware)
    assert found.estimate is not None
    assert found.estimate.memory.fits, source
    # Where the range of the need reaches the capacity, a run decides.
    assert found.outcome in ("fits", "starved", "cannot_tell"), source


@pytest.mark.parametrize(
    ("end", "gib"),
    [("train/liger/sft.sh", 42)],  # packed samples and Liger's kernels on four A100
)
def test_a_stated_peak(end: str, gib: float) -> None:
    """What each device needs by the script's own comment."""
    checked = judged("swift", end, "a100-sxm-80g")
    assert checked.passed
    assert checked.estimate is not None
    assert checked.estimate.memory.device_bytes / GIB == pytest.approx(gib, rel=0.1)


@pytest.mark.parametrize(
    ("family", "end"),
    [
        ("swift", "megatron/muon.sh"),
        ("swift", "mcore_bridge/lora/new_special_tokens.sh"),
        ("llamafactory", "ascend/qwen3_full_sft_fsdp2.yaml"),
    ],
)
def test_what_is_only_bounded_is_not_said_to_be_too_large(family: str, end: str) -> None:
    outcome = judged(family, end, "a100-sxm-80g").outcome
    assert outcome in ("depends", "longest_does_not_fit", "not_modelled", "cannot_tell")
