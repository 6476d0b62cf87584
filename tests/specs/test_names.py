"""Specs by the names that people write: ids of Hugging Face, of vendors and clouds, in any case."""

import json
from pathlib import Path

import pytest

from simulator.errors import InputError
from simulator.question.specs.catalogue import load_hardware, load_model
from simulator.question.specs.names import SpecKind, hardware_names, known_names, model_names, shipped_name
from tests.cli.running import refusal, run


@pytest.mark.parametrize(
    ("kind", "text", "name"),
    [
        ("model", "meta-llama/Llama-3.3-70B-Instruct", "llama3.1-70b"),
        ("model", "meta-llama/Meta-Llama-3.1-8B", "llama3.1-8b"),
        ("model", "META-LLAMA/llama-3.1-8b", "llama3.1-8b"),
        ("model", "Llama3.1-70B", "llama3.1-70b"),
        ("model", "DeepSeek-V3", "deepseek-v3"),
        ("model", "deepseek-ai/DeepSeek-R1-0528", "deepseek-v3"),
        ("model", "baidu/ERNIE-4.5-21B-A3B-Base-PT", "ernie-4.5-21b-a3b"),
        ("model", "Qwen/Qwen3-235B-A22B-Instruct-2507", "qwen3-235b-a22b"),
        ("model", "meta-llama/Llama-2-7b-chat-hf", "llama-2-7b"),
        ("model", "DeepSeek-V3.1-Terminus", "deepseek-v3"),
        ("model", "Kimi-K2-Instruct-0905", "kimi-k2"),
        ("model", "Qwen3-30B-A3B-2507-mcore", "qwen3-30b-a3b"),
        ("model", "Qwen/Qwen3-32B-FP8", "qwen3-32b"),
        ("model", "Qwen/Qwen3-8B-Base", "qwen3-8b"),
        ("model", "qwen-3-8b", "qwen3-8b"),
        ("model", "qwen3:8b", "qwen3-8b"),
        ("model", "Llama-3_1-8B", "llama3.1-8b"),
        ("model", "qwen-7b", "qwen-7b"),
        ("hardware", "H100 SXM5 80GB", "h100-sxm-80g"),
        ("hardware", "H100SXM", "h100-sxm-80g"),
        ("hardware", "A800-SXM4-80GB", "a800-sxm-80g"),
        ("hardware", "RTX4090", "rtx-4090"),
        ("hardware", "MI300X-OAM", "mi300x"),
        ("hardware", "天数智芯 BI150", "bi150-64g"),
        ("hardware", "华为昇腾 910B", "ascend-910b-64g-8"),
        ("hardware", "Standard_ND96isr_H100_v5", "h100-sxm-80g"),
        ("hardware", "4090", "rtx-4090"),
        ("hardware", "a100-40g", "a100-sxm-40g"),
        ("hardware", "NVIDIA A100 80 GB", "a100-sxm-80g"),
        ("hardware", "h200-141G", "h200-sxm"),
        ("hardware", "Ascend910B3", "ascend-910b-64g-8"),
        ("hardware", "AMD MI300X", "mi300x"),
        ("hardware", "nvidia", None),
        ("hardware", "910B2", "ascend-910b-376t"),
        ("hardware", "Atlas 800T A3", "ascend-910c"),
        ("hardware", "天垓150", "bi150-64g"),
        ("hardware", "h100", "h100-sxm-80g"),
        ("hardware", "H200", "h200-sxm"),
        ("hardware", "NVIDIA H100 80GB HBM3", "h100-sxm-80g"),
        ("hardware", "NVIDIA A100-SXM4-80GB", "a100-sxm-80g"),
        ("hardware", "p5.48xlarge", "h100-sxm-80g"),
        ("hardware", "p4d", "a100-sxm-40g"),
        ("hardware", "a3-megagpu-8g", "h100-sxm-80g"),
        ("hardware", "910B", "ascend-910b-64g-8"),
        ("hardware", "bi150", "bi150-64g"),
        ("model", "somebody/llama3.1-8b", None),
        ("model", "unsloth/gpt-oss-20b", "gpt-oss-20b"),
        ("model", "AI-ModelScope/Yi-1.5-9B-Chat", "yi-1.5-9b"),
        ("model", "unsloth/Qwen3-9B", None),
        ("model", "deepseek-r1-distill-qwen-9b", None),
        ("hardware", "a100", "a100-sxm-80g"),
        ("hardware", "A100 40GB", "a100-sxm-40g"),
        ("hardware", "a100-pcie", "a100-pcie-80g"),
        ("hardware", "NVIDIA A100 80GB PCIe", "a100-pcie-80g"),
        ("hardware", "NVIDIA A100-PCIE-40GB", "a100-pcie-40g"),
        ("hardware", "Standard_NC24ads_A100_v4", "a100-pcie-80g"),
        ("hardware", "NVIDIA RTX 6000 Ada Generation", "rtx-6000-ada"),
        ("hardware", "rtx 6000 ada", "rtx-6000-ada"),
        ("hardware", "2080ti", "rtx-2080-ti"),
        ("hardware", "NVIDIA GeForce RTX 2080 Ti", "rtx-2080-ti"),
        ("hardware", "a5000", "rtx-a5000"),
        ("hardware", "4080", "rtx-4080"),
        ("hardware", "3090ti", "rtx-3090-ti"),
        ("hardware", "RTX 4060 Ti 16GB", "rtx-4060-ti-16g"),
        ("hardware", "RTX 4060 Ti", None),
        ("hardware", "Quadro RTX 8000", "rtx-8000"),
        ("hardware", "TITAN RTX", "titan-rtx"),
        ("hardware", "RTX 5070 Ti", "rtx-5070-ti"),
        ("hardware", "NVIDIA GeForce RTX 4080 SUPER", None),
        ("hardware", "RTX 3060", "rtx-3060-12g"),
        ("hardware", "NVIDIA GeForce RTX 3080 Ti", None),
        ("hardware", "L40S", "l40s"),
        ("hardware", "NVIDIA L40", "l40"),
        ("hardware", "h200", "h200-sxm"),
        ("hardware", "NVIDIA H200 NVL", "h200-nvl"),
        ("hardware", "AMD Instinct MI250X", "mi250x"),
        ("hardware", "tpu-v5p", None),
        ("hardware", "", None),
        ("model", "x" * 300, None),
    ],
)
def test_a_shipped_spec_has_many_names(kind: SpecKind, text: str, name: str | None) -> None:
    assert shipped_name(kind, text) == name
    if name is not None:
        load = load_model if kind == "model" else load_hardware
        assert load(text) == load(name)


def test_the_line_of_aliases_is_all_that_is_read() -> None:
    shipped: dict[SpecKind, tuple[str, ...]] = {"model": model_names(), "hardware": hardware_names()}
    for kind, names in shipped.items():
        words: dict[str, str] = {}
        for name in names:
            spec = load_model(name) if kind == "model" else load_hardware(name)
            for word in (name, *spec.aliases):
                assert shipped_name(kind, word) == name, word
                assert words.setdefault(word.lower(), name) == name
    # Two models do not share the end of an id.
    ends = [word for word in known_names("model") if "/" in word]
    assert all(known_names("model")[word] == known_names("model")[word.rpartition("/")[2]] for word in ends)


@pytest.mark.parametrize(
    ("kind", "text", "near"),
    [
        ("hardware", "b500", "b300-sxm"),
        ("hardware", "mi400x", "mi300x"),
        ("hardware", "acend-910b", "ascend-910b-64g-8"),
        ("hardware", "hh100", "h100-sxm-80g"),
        ("hardware", "a100x8", "a100-sxm-80g"),
        ("hardware", "trn2", ""),
        ("model", "Qwen/Qwen3-9B", "qwen3.5-vl-9b"),
        ("model", "somebody/llama3.1-8b", "llama3.1-8b"),
        ("model", "google/gemma-3-9b-it", "gemma-2-9b"),
        ("model", "bloom-7b", "bloomz-7b1"),
        ("model", "jurassic-7b", ""),
        ("hardware", "tpu-v5p", ""),
        ("model", "llama3.1-8c", "llama3.1-8b"),
        ("model", "qwen3-235b-a2", "qwen3-235b-a22b"),
    ],
)
def test_suggestions_stay_with_the_maker(kind: SpecKind, text: str, near: str) -> None:
    with pytest.raises(InputError) as caught:
        (load_model if kind == "model" else load_hardware)(text)
    said = str(caught.value)
    assert (f"did you mean '{near}'" in said) if near else ("did you mean" not in said)
    assert "`simulate hardware h100-sxm-80g --format yaml > mine.yaml`" in said or kind == "model"


def cached(home: Path, owner_and_name: str, config: dict[str, object], *, main: bool = True) -> None:
    folder = home / "hub" / f"models--{owner_and_name.replace('/', '--')}"
    (folder / "snapshots" / "0a1b").mkdir(parents=True)
    (folder / "snapshots" / "0a1b" / "config.json").write_text(json.dumps(config), encoding="utf-8")
    if main:
        (folder / "refs").mkdir()
        (folder / "refs" / "main").write_text("0a1b", encoding="utf-8")


QWEN = {
    "model_type": "qwen3",
    "num_hidden_layers": 2,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 128,
}


@pytest.mark.parametrize("main", [True, False])
def test_a_model_of_the_local_cache(main: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    monkeypatch.delenv("HF_HUB_CACHE", raising=False)
    asked = ("estimate", "--model", "Acme/own-model", "--hardware", "h20", "--devices", "2")
    said = refusal(*asked)
    assert "`hf download Acme/own-model config.json` puts it into the cache" in said
    cached(tmp_path, "acme/Own-Model", QWEN, main=main)
    assert load_model("Acme/own-model").hidden_size == 64
    assert run(*asked).stdout.startswith("own-model on 2 devices of h20")


def test_what_the_cache_holds_may_be_broken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    folder = tmp_path / "hub" / "models--acme--own"
    (folder / "snapshots").mkdir(parents=True)
    (folder / "refs").mkdir()
    (folder / "refs" / "main").write_text("../../../../etc\0", encoding="utf-8")
    with pytest.raises(InputError, match=r"hf download acme/own config\.json"):
        load_model("acme/own")


def test_answers_say_the_shipped_name() -> None:
    shown = run("estimate", "--model", "Qwen/Qwen3-8B", "--hardware", "NVIDIA H100 80GB HBM3", "--tp", "2")
    assert shown.stdout.startswith("qwen3-8b on 8 devices of h100-sxm-80g")
    groups = run("estimate", "--model", "llama3.2-1b", "--hardware", "h800:1x2,bi150:1x2", "--format", "json")
    assert json.loads(groups.stdout)["hardware"] == "h800-sxm-80g:2,bi150-64g:2"
    assert (
        run("hardware", "H100", "--format", "yaml").stdout == run("hardware", "h100-sxm-80g", "--format", "yaml").stdout
    )
