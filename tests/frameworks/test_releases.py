"""Releases: what a stack's release sets for a model, device and precision, and where it has nothing for it."""

from dataclasses import replace
from typing import Any

import pytest

import simulator
from simulator.api import scenario_of
from simulator.errors import InputError
from simulator.question.frameworks.profile import switch_value, switches
from simulator.question.frameworks.stacks import STACKS, Stack, framework, release_recipes, stack_for, suggested
from simulator.question.scenario.layout import BY_NAME
from simulator.question.specs.catalogue import load_hardware, load_model

RELEASES = [stack for stack in STACKS if release_recipes(stack.name)]
PLACES = (
    "src/megatron/bridge/",
    "scripts/performance/",
    "examples/",
    "primus/configs/",
    "launcher_scripts/",
    "torchtitan/",
)
NEWEST = "megatron-bridge@26.08"
ASKED: dict[str, Any] = {"hardware": "gb300-nvl72", "devices": 256, "seq_length": 4096, "global_batch_size": 4096}
PUBLISHED: dict[str, Any] = {"tp": 1, "pp": 2, "ep": 32, "vpp": 8, "micro_batch_size": 1}


def scenario(**asked: Any) -> Any:
    return scenario_of(**{"stack": NEWEST, "precision": "fp8", "model": "deepseek-v3", **ASKED, **asked})


@pytest.mark.parametrize("release", RELEASES, ids=lambda stack: stack.name)
def test_every_value_of_a_release_is_one_of_its_setting(release: Stack) -> None:
    known = {field.name: field for field in switches()}
    usual = framework(release.framework, stack=release.name)
    recipes, of_bridge = release_recipes(release.name), release.name.startswith("megatron-bridge")
    assert len(recipes) > (100 if of_bridge else 7)
    assert len({one.recipe for one in recipes}) == len(recipes)
    for one in recipes:
        assert (load_model(one.model).name, one.hardware and load_hardware(one.hardware).name) == (
            one.model,
            one.hardware,
        )
        assert load_model(one.model).is_moe == one.is_moe
        assert one.devices > 0 or not of_bridge
        assert one.source.rpartition(":")[2].isdecimal()
        assert {BY_NAME[name].key for name in one.layout} == set(one.layout)
        for name, text in one.switches.items():
            switch_value(known[name], text, getattr(usual, name))
        for place in one.lines.values():
            assert place.startswith(PLACES)
            assert int(place.rpartition(":")[2]) > 0


@pytest.mark.parametrize(
    ("stack", "asked", "recipe", "switch"),
    [
        (
            "mindspeed-llm@26.1.0",
            {"hardware": "ascend-910c", "model": "qwen3-235b-a22b"},
            "4k_A3_ptd.sh:1",
            "kept_boundaries",
        ),
        (
            "nemo@24.12",
            {"hardware": "a100-sxm-80g", "model": "llama-2-13b"},
            "llama2_13b.yaml:1",
            "overlap_grad_reduce",
        ),
        (
            "primus@26.5.1",
            {"hardware": "mi355x", "model": "llama3.1-8b"},
            "MI355X/llama3.1_8B-BF16",
            "overlap_grad_reduce",
        ),
        (
            "torchtitan@0.2.2",
            {"hardware": "h100-sxm-80g", "model": "llama3-8b"},
            "llama3_8b.toml:1",
            "expandable_segments",
        ),
    ],
)
def test_releases_of_other_stacks_resolve(stack: str, asked: dict[str, Any], recipe: str, switch: str) -> None:
    profile = "torch" if stack.startswith("torchtitan") else "megatron"
    question: dict[str, Any] = {
        "devices": 64,
        "global_batch_size": 128,
        "precision": "bf16",
        "framework": profile,
        "stack": stack,
    }
    found = scenario_of(**question, **asked).framework
    assert recipe in found.release_source
    assert getattr(found, switch) is True
    name, _, release = stack.partition("@")
    with pytest.raises(InputError, match=rf"{name}@{release}9', did you mean .*{stack}"):
        stack_for(profile, f"{stack}9")


def test_recipes_under_fsdp_are_those_of_who_asks_for_it() -> None:
    """Primus trains the 70B under PyTorch's FSDP, whose switches no layout of Megatron's own optimizer has."""
    asked: dict[str, Any] = {"hardware": "mi300x", "model": "llama3.1-70b", "precision": "bf16"}
    own = scenario(**asked, stack="primus@26.5.1").framework
    assert (own.fully_shard, own.widened_gradients, own.overlap_grad_reduce) == (False, False, True)
    assert "no recipe without FSDP for llama3.1-70b" in own.release
    sharded = scenario(**asked, stack="primus@26.5.1", options={"fully_shard": "true"}).framework
    assert (sharded.fully_shard, sharded.widened_gradients) == (True, True)
    assert "MI300X/llama3.1_70B-BF16" in sharded.release


def test_a_recipe_of_the_model_device_and_precision_decides() -> None:
    found = scenario().framework
    assert (found.fp8_recipe, found.expert_dispatch, found.cuda_graphs) == ("mxfp8", "hybridep", "full_iteration")
    assert found.release == f"{NEWEST}: deepseek_v3_pretrain_256gpu_gb300_fp8mx_config, fp8 by mxfp8"
    assert "perf_recipes/deepseek/gb300/deepseek_v3.py:" in found.release_source
    wide = scenario(precision="bf16").framework
    assert (wide.cuda_graphs, wide.overlap_expert_exchange) == ("attention_router", False)
    older = scenario(stack="megatron-bridge@26.04").framework
    assert (older.cuda_graphs, older.overlap_expert_exchange, older.fp8_recipe) == ("none", False, "mxfp8")
    narrow = scenario(stack="megatron-bridge@26.04", model="llama3-70b", precision="fp4", devices=64).framework
    assert "llama3_70b_pretrain_config_gb300_nvfp4_v2" in narrow.release
    assert narrow.cuda_graphs == "none"


@pytest.mark.full_answer
def test_the_newest_release_is_assumed_where_it_has_a_recipe_and_said() -> None:
    asked = {"model": "deepseek-v3", "precision": "fp8", **ASKED}
    found = scenario_of(**asked).framework
    assert (found.stack, found.fp8_recipe) == (NEWEST, "mxfp8")
    assert found.release.startswith(f"{NEWEST} (assumed; --stack default for none): deepseek_v3_pretrain_256gpu_gb300")
    assert replace(found, stack_assumed=False, release="") == replace(scenario().framework, release="")
    assert simulator.rank(**asked, **PUBLISHED).estimates[0].provenance.release == found.release
    # A run that exists need not have it: its switches are among what is open.
    plain = simulator.estimate(**asked, **PUBLISHED)
    assert plain.provenance.release == ""
    assert plain.open is not None
    assert f"recipes of {NEWEST}" in {switch.source for switch in plain.open.switches}


@pytest.mark.parametrize(
    "asked",
    [
        {"stack": "default"},
        {"model": "llama3.1-8b"},
        {"hardware": "h100-sxm-80g"},
        {"precision": "fp16"},
        {"hardware": "gb300-nvl72:32,gb200-nvl72:32", "devices": None},
        {"framework": "torch"},
    ],
)
def test_no_release_is_assumed_elsewhere(asked: dict[str, Any]) -> None:
    question = {"model": "deepseek-v3", "precision": "bf16", **ASKED, **asked}
    assert "@" not in scenario_of(**question).framework.stack


def test_what_the_question_gives_stays() -> None:
    found = scenario(options={"expert_dispatch": "alltoall", "fp8_recipe": "tensorwise"}).framework
    assert (found.expert_dispatch, found.fp8_recipe) == ("alltoall", "tensorwise")
    assert "gb300_fp8cs_config" in found.release


def test_a_model_without_a_recipe_has_what_most_recipes_set_and_says_so() -> None:
    found = scenario(model="mixtral-8x7b-v0.1", devices=64).framework
    assert "no recipe for mixtral-8x7b-v0.1 on gb300-nvl72 in fp8" in found.release
    assert (found.fp8_recipe, found.expert_dispatch) == ("mxfp8", "hybridep")
    far = simulator.estimate(model="llama3.1-8b", hardware="a100-sxm-80g", precision="bf16", stack=NEWEST, tp=2)
    assert "any device" in far.provenance.release
    assert far.verdict == "fits"


def test_an_unknown_release_is_refused_with_those_there_are() -> None:
    with pytest.raises(InputError, match=r"megatron-bridge@26\.07', did you mean .*: default.*megatron-bridge@26\.08"):
        stack_for("megatron", "megatron-bridge@26.07")


def test_the_newest_release_is_suggested_on_blackwell() -> None:
    assert [one.name for one in suggested("megatron", {"NVIDIA"}, {"blackwell"})] == [NEWEST]
    assert [one.name for one in suggested("megatron", {"NVIDIA"}, {"hopper"})] == ["nvidia-recipes"]
    assert [one.name for one in suggested("megatron", {"AMD"}, {"cdna3"})] == ["primus@26.5.1"]
    assert [one.name for one in suggested("megatron", {"Iluvatar"}, {"iluvatar-bi"})] == ["megatron-guide"]


def test_the_published_layout_is_near_the_best() -> None:
    asked = {**ASKED, "model": "deepseek-v3", "precision": "fp8"}
    published = simulator.estimate(**asked, **PUBLISHED, chunk_layers=(4,) * 15 + (1,), stack=NEWEST)
    best = simulator.rank(**asked, tp=1, pp=(1, 2), ep=(32, 64, 128), top=1).estimates[0]
    assert published.verdict == "fits"
    ours, theirs = (one.throughput.tokens_per_second_per_device for one in (published, best))
    assert ours >= 0.95 * theirs
    # NVIDIA-NeMo/Megatron-Bridge 067f987df docs/performance-summary.md:45, the container of this release.
    assert ours == pytest.approx(6288, rel=0.10)


def test_recipes_that_tune_count_only_where_none_trains_from_scratch() -> None:
    found = scenario(model="llama3-70b", devices=32).framework
    assert "llama3_70b_pretrain_64gpu_gb300_fp8mx_config" in found.release
    assert "_sft_" in scenario(model="glm-5.2", hardware="gb200-nvl72", precision="bf16").framework.release
    assert "_peft_" in scenario(model="llama3-70b", devices=8, lora_rank=16).framework.release
