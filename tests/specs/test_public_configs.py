"""The public configurations of the shared folder: priced, with exactly the parameters that their classes have."""

import json
import os
from pathlib import Path

import pytest

import simulator
from simulator.cost.operations.sums import total_parameters
from simulator.errors import UnsupportedError
from simulator.question.specs.families.reading import read_config
from tests.check.bare import without_advice, without_open_switches
from tests.project.tree import ROOT

FOLDER = Path(os.environ.get("SIMULATE_SHARED") or ROOT.parent / "shared") / "configs"

pytestmark = pytest.mark.skipif(not FOLDER.is_dir(), reason="needs configs/ of the shared folder (SIMULATE_SHARED)")

PARAMETERS = {
    "DeepSeek-V2-Lite": 15_706_484_224,
    "GLM-4-9B-0414": 9_400_094_720,
    "Llama-3.3-70B-Instruct": 70_553_706_496,
    "MiniMaxAI--MiniMax-M2.7": 228_689_748_992 + 62 * 256,
    "MiniMaxAI--MiniMax-M3": 426_174_565_632 + 57 * 128,
    "OLMo-2-32B": 32_234_279_936,
    "Qwen--Qwen3-0.6B": 596_049_920,
    "Qwen--Qwen3-1.7B": 1_720_574_976,
    "Qwen--Qwen3-30B-A3B": 30_532_122_624,
    "Qwen--Qwen3-32B": 32_762_123_264,
    "Qwen--Qwen3-32B-FP8": 32_762_123_264,
    "Qwen--Qwen3-32B-FP8-Static-PerTensor": 32_762_123_264,
    "Qwen--Qwen3-8B": 8_190_735_360,
    "Qwen--Qwen3-Coder-480B-A35B-Instruct": 480_154_875_392,
    "Qwen--Qwen3-VL-32B-Thinking": 32_762_123_264,
    "Qwen--Qwen3.5-122B-A10B": 122_111_526_912,
    "Qwen--Qwen3.5-27B": 26_895_998_464,
    "Qwen--Qwen3.5-35B-A3B": 34_660_610_688,
    "Qwen2-57B-A14B": 57_408_658_944,
    "Qwen2.5-32B": 32_763_876_352,
    "XiaomiMiMo--MiMo-7B-Base": 7_622_619_136,
    "XiaomiMiMo--MiMo-V2-Flash": 308_778_768_832 + 47 * 256,
    "deepseek-ai--DeepSeek-R1": 671_026_404_352 + 58 * 256,
    "deepseek-ai--DeepSeek-V3": 671_026_404_352 + 58 * 256,
    "deepseek-ai--DeepSeek-V3.2": 671_877_929_216 + 58 * 256,
    "deepseek-ai--DeepSeek-V4-Flash": 284_332_230_231 + 40 * 256,
    "deepseek-ai--DeepSeek-V4-Pro": 1_572_997_179_491 + 58 * 384,
    "sgl-project--DeepSeek-V4-Flash-FP8": 284_332_230_231 + 40 * 256,
    "sgl-project--DeepSeek-V4-Pro-FP8": 1_572_997_179_491 + 58 * 384,
    "gemma-2-27b": 27_227_128_320,
    "meta-llama--Llama-4-Scout-17B-16E-Instruct": 107_769_861_120,
    "meta-llama--Meta-Llama-3.1-405B": 405_853_388_800,
    "meta-llama--Meta-Llama-3.1-70B": 70_553_706_496,
    "meta-llama--Meta-Llama-3.1-8B": 8_030_261_248,
    "moonshotai--Kimi-K2-Instruct": 1_026_408_209_408 + 60 * 384,
    "moonshotai--Kimi-K2.5": 1_026_408_209_408 + 60 * 384,
    "nvidia--Llama-3.1-70B-Instruct-FP8": 70_553_706_496,
    "nvidia--NVIDIA-Nemotron-3-Nano-30B-A3B-BF16": 31_577_937_344 + 23 * 128,
    "nvidia--NVIDIA-Nemotron-3-Super-120B-A12B-FP8": 120_668_687_360 + 40 * 512,
    "nvidia--NVIDIA-Nemotron-3-Ultra-550B-A55B-BF16": 549_308_968_960 + 48 * 512,
    "nvidia--NVIDIA-Nemotron-3-Ultra-550B-A55B-FP8": 549_308_968_960 + 48 * 512,
    "nvidia--Nemotron-H-56B-Base-8K": 56_324_350_464,
    "openai--gpt-oss-120b": 116_829_156_672,
    "openai--gpt-oss-20b": 20_914_757_184,
    "pythia-12b": 11_846_072_320,
    "stepfun-ai--Step-3.7-Flash": 195_844_496_640 + 42 * 288,
    "stepfun-ai--Step-3.7-Flash-FP8": 195_844_496_640 + 42 * 288,
    "zai-org--GLM-5-FP8": 743_911_199_232 + 75 * 256,
    "zai-org--GLM-5.1": 743_911_199_232 + 75 * 256,
    "zai-org--GLM-5.1-FP8": 743_911_199_232 + 75 * 256,
    "zai-org--GLM-5.2-FP8": 743_377_000_704 + 75 * 256,
}
"""Parameters by transformers 5.23.0 on meta tensors, and the corrections of routers, which are buffers there.

MiMo-7B's class is code beside the checkpoint: a Qwen2 with an MTP module, counted by hand as Qwen2.
"""


@pytest.mark.parametrize("name", PARAMETERS)
def test_the_count_is_exact(name: str) -> None:
    assert total_parameters(read_config(FOLDER / name / "config.json")) == PARAMETERS[name]


def priced(file: Path) -> bool:
    """Whether a layout of the model has a figure, whether or not it fits."""
    try:
        estimate = simulator.estimate(
            model=str(file),
            hardware="h100-sxm-80g",
            nodes=64,
            seq_length=4096,
            global_batch_size=512,
            tp=1,
            pp=2,
            micro_batch_size=1,
        )
    except UnsupportedError:
        return False
    return estimate.verdict != "refused" and 0.0 < estimate.throughput.mfu < 1.0


def counted() -> dict[str, int]:
    """Configurations, and those of them that are priced."""
    files = sorted(FOLDER.glob("*/config.json"))
    return {"given": len(files), "priced": sum(map(priced, files))}


def test_all_are_priced(monkeypatch: pytest.MonkeyPatch) -> None:
    without_advice(monkeypatch)
    without_open_switches(monkeypatch)
    found = counted()
    assert found["given"] == found["priced"] >= len(PARAMETERS) == 51
    record = json.loads((ROOT / "calibration" / "accuracy.json").read_text(encoding="utf-8"))
    assert found == record["configurations"]
