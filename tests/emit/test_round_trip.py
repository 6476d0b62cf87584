"""A layout written as a recipe and checked gives the same estimate back; what has no words is refused."""

import json
from pathlib import Path
from typing import Any

import pytest

from simulator.frameworks.registry import framework_of, writers
from simulator.question.frameworks.stacks import stacks_of
from simulator.question.specs.catalogue import load_hardware
from simulator.question.specs.names import hardware_names
from simulator.question.vocabulary import RECIPE_FORMATS, RecipeFormat
from tests.check.bare import without_open_switches
from tests.cli.running import refusal, run

SUFFIX = {"accelerate": ".sh", "megatron": ".sh", "nemo": ".yaml", "paddle": ".sh", "torchtitan": ".toml"}
LAYOUTS = [
    ("megatron", "--model llama3.1-8b --nodes 4 --tp 2 --pp 2"),
    ("megatron", "--model llama3.1-70b --nodes 8 --tp 4 --pp 8 --cp 2 --vpp 5 --precision fp8"),
    ("megatron", "--model qwen2.5-14b --nodes 2 --pp 4 --recompute full"),
    ("megatron", "--model qwen3-30b-a3b --nodes 4 --tp 2 --ep 8 --pp 2 --global-batch-size 512"),
    (
        "megatron",
        "--model mixtral-8x7b-v0.1 --nodes 8 --tp 4 --etp 4 --ep 2 --pp 4 --recompute-method block",
    ),
    ("megatron", "--model deepseek-v2-lite --nodes 2 --ep 8 --seq-length 4096 --micro-batch-size 2"),
    (
        "megatron",
        (
            "--model deepseek-v3 --nodes 32 --tp 2 --pp 16 --ep 16 --etp 1 --recompute full "
            "--stage-layers 3,4,4,4,4,4,4,4,4,4,4,4,4,4,4,2"
        ),
    ),
    ("megatron", "--model llama3.1-8b --devices 8 --offload optimizer_tensorwise --tp 2"),
    (
        "megatron",
        (
            "--model llama3.1-8b --nodes 2 --pp 4 --stack mindspeed-llm --schedule dualpipev "
            "--option overlap_grad_reduce=false --option overlap_param_gather=false"
        ),
    ),
    (
        "megatron",
        (
            "--model llama3.1-8b --nodes 2 --cp 2 --stack mindspeed-llm --option cp_communication=all_to_all "
            "--option repeat_kv=true"
        ),
    ),
    ("megatron", "--model deepseek-v2-lite --nodes 2 --ep 8 --seq-length 4096 --optimizer muon"),
    ("torchtitan", "--model llama3.1-8b --nodes 2 --pp 4 --schedule zb_v"),
    ("torchtitan", "--model llama3.1-8b --nodes 2 --pp 4 --schedule zb_h1 --vpp 2"),
    ("torchtitan", "--model llama3.1-8b --nodes 1 --stage-layers 10,22"),
    ("torchtitan", "--model llama3.1-8b --nodes 1 --pp 2 --chunk-layers 7,9,8,8"),
    ("torchtitan", "--model llama3.1-8b --nodes 2 --pp 2 --schedule dualpipev"),
    (
        "megatron",
        (
            "--model deepseek-v3 --nodes 32 --pp 16 --ep 16 --recompute-modules moe_act,mla_up_proj "
            "--stage-layers 3,4,4,4,4,4,4,4,4,4,4,4,4,4,4,2 --option expert_dispatch=deepep"
        ),
    ),
    (
        "megatron",
        "--model qwen3-30b-a3b --nodes 2 --ep 16 --option expert_dispatch=hybridep --option overlap_expert_exchange=1",
    ),
    ("megatron", "--model llama3.1-8b --nodes 2 --zero-stage 0 --tp 8 --precision fp16"),
    ("megatron", "--model llama3.1-8b --nodes 2 --tp 4 --precision fp32"),
    ("megatron", "--model ernie-4.5-21b-a3b --nodes 2 --tp 4 --ep 4 --etp 1 --pp 2 --recompute selective"),
    (
        "paddle",
        (
            "--model llama-13b --hardware bi150-64g --nodes 4 --pp 8 --micro-batch-size 2 --global-batch-size 2048 "
            "--seq-length 2048 --precision fp16 --recompute-layer-list 0,1,2,3,6,7,8 --stage-layers 4,5,5,5,5,5,6,5"
        ),
    ),
    (
        "paddle",
        (
            "--model ernie-4.5-21b-a3b --hardware bi150-64g --nodes 1 --tp 4 --pp 4 --ep 4 --lora-rank 32 "
            "--global-batch-size 2 --recompute full"
        ),
    ),
    (
        "paddle",
        (
            "--model ernie-4.5-300b-a47b --hardware ascend-910b-64g --nodes 8 --tp 8 --pp 16 --ep 8 "
            "--global-batch-size 8 --recompute full --offload optimizer"
        ),
    ),
    ("paddle", "--model llama3.1-8b --nodes 1 --tp 2 --zero-stage 3 --global-batch-size 64"),
    ("paddle", "--model qwen3-30b-a3b --nodes 2 --tp 2 --ep 8 --global-batch-size 64 --recompute selective"),
    ("paddle", "--model llama3.1-8b --nodes 1 --pp 2 --vpp 2 --offload optimizer_tensorwise --num-layers 16"),
    (
        "paddle",
        (
            "--model llama3.1-8b --nodes 2 --tp 2 --global-batch-size 64 --recompute attention "
            "--option release_grads=true --option sharding_degree=4 --option vocabulary_parallel_loss=false"
        ),
    ),
    ("megatron", "--model llama3.1-8b --nodes 1 --offload optimizer_tensorwise --option offload_fraction=0.5"),
    ("torchtitan", "--model llama3.1-8b --nodes 2 --cp 2 --global-batch-size 64 --option sharding_degree=4"),
    ("torchtitan", "--model llama3.1-8b --nodes 1 --global-batch-size 64"),
    ("torchtitan", "--model llama3.1-8b --nodes 4 --global-batch-size 64 --option sharding_replicas=4"),
    ("torchtitan", "--model llama3.1-8b --nodes 2 --cp 4 --global-batch-size 64 --option cp_communication=ring"),
    ("megatron", "--model llama3.1-8b --nodes 2 --cp 4 --option cp_communication=all_gather"),
    ("megatron", "--model qwen3-30b-a3b --nodes 2 --ep 8 --option offloaded_modules=core_attn,attn_proj,moe_act"),
    ("megatron", "--model llama3.1-8b --option cuda_graphs=layers"),
    ("megatron", "--model llama3.1-8b --option cuda_graphs=network --option expandable_segments=true"),
    ("megatron", "--model llama3.1-8b --option cuda_graphs=attention"),
    ("megatron", "--model qwen3-30b-a3b --nodes 2 --ep 8 --option cuda_graphs=attention_router"),
    (
        "megatron",
        (
            "--model qwen3-30b-a3b --nodes 2 --ep 8 --option cuda_graphs=full_iteration --option expert_capacity=1.5 "
            "--option expert_stash=1.2 --option expert_dispatch=hybridep --option fused_experts=true"
        ),
    ),
    (
        "megatron",
        "--model llama3.1-8b --nodes 2 --cp 8 --option cp_communication=all_to_all_ring --option cp_inner_degree=2",
    ),
    (
        "torchtitan",
        (
            "--model llama3.1-8b --global-batch-size 64 --precision fp8 --option fp8_param_gather=true "
            "--recompute operations"
        ),
    ),
    (
        "torchtitan",
        "--model llama3.1-8b --global-batch-size 64 --option fused_cross_entropy=true --option loss_bytes_per_logit=4",
    ),
    (
        "megatron",
        "--model llama3.1-8b --nodes 2 --tp 2 --precision fp8 --option fp8_recipe=mxfp8 --option fp8_param_gather=true",
    ),
    (
        "megatron",
        "--model llama3.1-8b --option sharding_replicas=2 --option fused_rotary=false --option optimizer_dtype=fp8",
    ),
    ("torchtitan", "--model llama3.1-70b --nodes 8 --tp 8 --global-batch-size 64 --recompute full"),
    ("torchtitan", "--model llama3.1-8b --nodes 2 --pp 2 --tp 2 --zero-stage 2 --global-batch-size 64"),
    ("torchtitan", "--model qwen3-30b-a3b --nodes 2 --ep 8 --global-batch-size 64"),
    (
        "torchtitan",
        "--model llama3.1-8b --nodes 4 --tp 4 --pp 4 --vpp 2 --global-batch-size 64 --recompute operations",
    ),
    (
        "torchtitan",
        "--model llama3.1-8b --nodes 1 --global-batch-size 64 --option compiled=true --recompute operations",
    ),
    (
        "torchtitan",
        "--model llama3.1-8b --nodes 1 --global-batch-size 64 --recompute-layer-list 2,5,8,11,14,17,20,23,26,29",
    ),
    ("accelerate", "--model llama3.1-8b --nodes 2 --global-batch-size 64 --recompute full"),
    ("accelerate", "--model llama3.1-8b --nodes 2 --global-batch-size 64 --zero-stage 2 --precision fp16"),
    (
        "accelerate",
        "--model qwen3-8b --nodes 1 --global-batch-size 64 --zero-stage 3 --lora-rank 16",
    ),
    ("accelerate", "--model llama3.1-8b --nodes 2 --global-batch-size 64 --stack deepspeed --recompute full"),
    (
        "accelerate",
        (
            "--model llama3.1-8b --nodes 1 --global-batch-size 64 --stack deepspeed --zero-stage 1 "
            "--offload optimizer_tensorwise --option flash_attention=false"
        ),
    ),
    ("nemo", "--model llama3.1-8b --hardware h100-sxm-80g --nodes 4 --tp 2 --pp 2 --cp 2 --zero-stage 0"),
    ("nemo", "--model llama3.1-70b --hardware h100-sxm-80g --nodes 8 --tp 4 --pp 8 --cp 2 --vpp 5 --precision fp16"),
    (
        "nemo",
        "--model qwen2.5-14b --hardware h100-sxm-80g --nodes 2 --pp 4 --recompute full --stage-layers 11,12,12,13",
    ),
    ("nemo", "--model llama3.2-1b --hardware h100-sxm-80g --tp 2 --recompute selective --offload optimizer_tensorwise"),
    ("nemo", "--model qwen3-30b-a3b --hardware h100-sxm-80g --nodes 4 --tp 2 --ep 8 --pp 2 --etp 1"),
    (
        "nemo",
        (
            "--model deepseek-v2-lite --hardware h100-sxm-80g --nodes 2 --ep 8 --seq-length 4096 --option "
            "overlap_grad_reduce=true --recompute-modules moe_act"
        ),
    ),
    ("torchtitan", "--model deepseek-v3 --nodes 32 --ep 64 --global-batch-size 512 --recompute full --precision fp8"),
    ("torchtitan", "--model llama3.1-8b --nodes 2 --zero-stage 2 --global-batch-size 64 --precision fp32"),
]


OPEN = {target: (target, options) for target, options in reversed(LAYOUTS)}.values()
"""The first layout of each format: asked with what nobody said. The others have the switches of the answer alone."""


def estimated(target: RecipeFormat, options: list[str], folder: Path) -> tuple[Path, dict[str, Any]]:
    result = run("estimate", "--framework", framework_of(target), *options, "--format", "json")
    assert result.exit_code == 0, result.stderr
    file = folder / "estimate.json"
    file.write_text(result.stdout, encoding="utf-8")
    found: dict[str, Any] = json.loads(result.stdout)
    return file, found


def closed(answer: dict[str, Any], before: dict[str, Any], part: str) -> dict[str, Any]:
    """Figures of an answer, without ranges where switches or a release were open: the script says them."""
    unsaid = before["open"] or "unsaid" in str(before["provenance"])
    ranges = {"interval", "fit_probability"} if unsaid else set()
    return {name: value for name, value in answer[part].items() if name not in ranges}


def _stack(target: RecipeFormat, hardware: str, words: list[str]) -> list[str]:
    """The stack of an estimate: what its release does in its own way stands in no flag."""
    named = words[words.index("--stack") + 1] if "--stack" in words else load_hardware(hardware).stack
    return ["--stack", named] if named in {stack.name for stack in stacks_of(framework_of(target))} else []


@pytest.mark.parametrize(("target", "options"), LAYOUTS)
def test_round_trip(target: RecipeFormat, options: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if (target, options) not in OPEN:
        without_open_switches(monkeypatch)
    words = options.split()
    file, before = estimated(target, words, tmp_path)
    recipe = tmp_path / f"recipe{SUFFIX[target]}"
    # A file of estimates does not hold the switches.
    repeated = ("--option", "--optimizer")
    switches = [word for i, word in enumerate(words) if {*repeated} & {*words[max(i - 1, 0) : i + 1]}]
    written = run("emit", str(file), "--framework", target, "--force", "--output", str(recipe), *switches)
    assert written.exit_code == 0, written.stderr
    hardware = words[words.index("--hardware") + 1] if "--hardware" in words else "z2000"
    # A configuration of Megatron-Bridge, or of torchtitan that shards over all that is left, does not hold how many
    # devices start it.
    open_size = target == "nemo" or "data_parallel_shard_degree = -1" in recipe.read_text(encoding="utf-8")
    cluster = ["--devices", str(before["devices"])] if open_size else []
    stack = _stack(target, hardware, words)
    result = run("check", str(recipe), "--hardware", hardware, *cluster, *stack, "--format", "json", "--exit-zero")
    (found,) = json.loads(result.stdout)["results"]
    unsure = {"interval-reaches-capacity"} & {remark["rule"] for remark in found["remarks"]}
    assert found["outcome"] in ("fits", "starved", "cannot_tell" if unsure else "does_not_fit"), found["reasons"]
    after = found["estimate"]
    assert closed(after, before, "memory") == closed(before, before, "memory")
    assert closed(after, before, "throughput") == closed(before, before, "throughput")
    assert after["layout"] == before["layout"]
    assert after["devices"] == before["devices"]


def test_every_framework_has_a_writer_and_layouts() -> None:
    assert tuple(sorted(writers())) == RECIPE_FORMATS
    assert {target for target, _ in LAYOUTS} == set(writers())


def test_a_schedule_gives_its_chunks() -> None:
    asked = "emit --framework torchtitan --force --model llama3.1-8b --nodes 2 --pp 4 --schedule zb_v"
    written = run(*asked.split())
    assert written.exit_code == 0, written.stderr
    assert 'pipeline_parallel_schedule = "ZBVZeroBubble"' in written.stdout
    assert "pipeline_parallel_layers_per_stage = 4" in written.stdout
    question = ["--model", "llama3.1-8b", "--nodes", "2", "--framework", "torch", "--zero-stage", "2"]
    ranked = run(*question, "--pp", "4", "--schedule", "zb_h1", "--top", "1")
    (best,) = [line for line in ranked.stdout.splitlines() if line.startswith("1 ")]
    assert " zb_h1 " in best


def test_options_alone_and_stdin(tmp_path: Path) -> None:
    words = ["--model", "llama3.1-8b", "--tp", "2", "--dp", "4"]
    file, _ = estimated("megatron", words, tmp_path)
    alone = run("emit", "--framework", "megatron", *words)
    piped = run("emit", "-", "--framework", "megatron", input=file.read_text(encoding="utf-8"))
    assert alone.exit_code == piped.exit_code == 0
    assert alone.stdout == piped.stdout
    assert alone.stdout.startswith("#!/bin/bash\n# Written by `simulate emit`: llama3.1-8b on 8 x z2000.\n")


@pytest.mark.parametrize(
    ("options", "export"),
    [
        ("--option offloaded_modules=core_attn,attn_proj", "NVTE_CPU_OFFLOAD_V1=1"),
        ("--option expandable_segments=true", "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"),
        ("--option expandable_segments=true --option cuda_graphs=attention", "NCCL_GRAPH_REGISTER=0"),
    ],
)
def test_exported_variables(options: str, export: str) -> None:
    question = "--model qwen3-30b-a3b --hardware b200-sxm --nodes 1 --ep 8"
    plain = run("emit", "--framework", "megatron", *question.split(), "--option", "expandable_segments=false").stdout
    written = run("emit", "--framework", "megatron", *question.split(), *options.split())
    assert written.exit_code == 0
    assert f"\nexport {export}\n" in written.stdout
    assert export not in plain


def test_a_ranked_layout(tmp_path: Path) -> None:
    file = tmp_path / "ranking.json"
    args = ("--model", "llama3.1-8b", "--nodes", "1", "--top", "2", "--option", "fused_cross_entropy=true")
    assert run("rank", *args, "--format", "json", "--output", str(file)).exit_code == 0
    second = json.loads(file.read_text(encoding="utf-8"))["estimates"][1]["layout"]
    written = run("emit", str(file), "--rank", "2", "--framework", "megatron").stdout
    assert f"--tensor-model-parallel-size {second['tp']} " in written
    assert "--cross-entropy-loss-fusion" in written
    assert "ranks 2 layouts" in refusal("emit", str(file), "--rank", "3", "--framework", "megatron")


@pytest.mark.parametrize(
    ("target", "options", "message"),
    [
        ("megatron", "--model llama3.1-8b --lora-rank 8", "trains no adapters"),
        ("megatron", "--model llama3.1-8b --recompute-layer-list 1,2", "all or the first layers"),
        ("megatron", "--model llama3.1-8b --option loss_bytes_per_logit=4", "has no setting"),
        ("megatron", "--model llama3.1-8b --tp 2 --no-sequence-parallel", "tp_comm_overlap=false"),
        ("megatron", "--model llama3.1-8b --zero-stage 3", "would refuse the layout"),
        (
            "megatron",
            "--model llama3.1-8b --nodes 2 --cp 2 --stack mindspeed-llm --option cp_communication=all_to_all",
            "repeat_kv=true",
        ),
        ("megatron", "--model llama3.1-8b --tp 2 --model-field vocab_size=32001", "pads it to a multiple"),
        ("paddle", "--model llama3.1-8b --offload activations", "there is no word for it"),
        ("paddle", "--model llama3.1-8b --precision fp8", "--precision fp8"),
        ("paddle", "--model llama3.1-8b --precision fp32", "--precision fp32"),
        (
            "paddle",
            "--model llama3.1-8b --recompute-method block --recompute-layers 4",
            "every layer, or all but a list",
        ),
        ("paddle", "--model llama3.1-8b --model-field hidden_size=8192", "names a published model"),
        ("paddle", "--model llama3.1-8b --option expandable_segments=true", "has no setting"),
        ("accelerate", "--model llama3.1-8b --tp 2", "TP 2: accelerate has no word for it"),
        ("accelerate", "--model llama3.1-8b --precision fp8", "in bf16 or fp16"),
        ("accelerate", "--model llama3.1-8b --zero-stage 1", "--stack deepspeed has others"),
        (
            "accelerate",
            "--model llama3.1-8b --option gradient_dtype=bf16",
            "or by DeepSpeed (--option parameter_dtype=bf16",
        ),
        ("accelerate", "--model llama3.1-8b --recompute operations", "every layer, or none"),
        ("nemo", "--model llama3.1-8b --precision fp8", "in bf16 or fp16"),
        ("nemo", "--model llama3.1-8b --option gradient_dtype=bf16", "fp32 gradients"),
        ("nemo", "--model llama3.1-8b --hardware h100 --option fused_rotary=false", "no key that is read so"),
        ("nemo", "--model llama3.1-8b --lora-rank 8", "recipe of Python"),
        ("megatron", "--model llama3.1-8b --recompute attention", "modules or whole layers"),
        ("torchtitan", "--model llama3.1-8b --recompute attention", "keeps some operations"),
        (
            "torchtitan",
            "--model llama3.1-8b --nodes 2 --cp 4 --option sharding_degree=2",
            "whole context groups",
        ),
        ("torchtitan", "--model llama-13b", "no flavor"),
        ("torchtitan", "--model llama3.1-8b --lora-rank 8", "no adapters"),
        ("torchtitan", "--model llama3.1-8b --precision fp16", "bf16, fp8 or fp32"),
        ("torchtitan", "--model llama3.1-8b --offload optimizer", "no key for it"),
        ("torchtitan", "--model llama3.1-8b --zero-stage 1", "shards gradients too"),
        ("torchtitan", "--model llama3.1-8b --tp 2 --no-sequence-parallel", "always has it"),
        ("torchtitan", "--model llama3.1-8b --num-layers 8", "names a published model"),
        ("torchtitan", "--model llama3.1-8b --recompute-method block --recompute-layers 4", "every n-th, or none"),
        ("megatron", "--model ernie-4.5-21b-a3b --hardware h800-sxm-80g:1,bi150-64g:1x8 --pp 2", "one kind of device"),
        (
            "megatron",
            "--model llama3.1-8b --hardware mi355x --precision fp4 --option fp4_recipe=mxfp4",
            "fp4_recipe=mxfp4: Megatron-LM has no setting",
        ),
    ],
)
def test_what_a_framework_cannot_express_is_refused(target: RecipeFormat, options: str, message: str) -> None:
    assert message in refusal("emit", "--framework", target, *options.split(), code=3)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "not valid JSON"),
        ("[]", "must hold an estimate or a ranking"),
        ("{}", "is no estimate"),
        ('{"estimates": 3}', "must be a list"),
        ('{"estimates": []}', "ranks 0 layouts"),
    ],
)
def test_files_that_are_no_layout(text: str, message: str, tmp_path: Path) -> None:
    file = tmp_path / "layout.json"
    file.write_text(text, encoding="utf-8")
    assert message in refusal("emit", str(file), "--framework", "megatron")


def test_estimates_of_other_questions(tmp_path: Path) -> None:
    file, _ = estimated("paddle", ["--model", "llama3.1-8b"], tmp_path)
    assert "priced for paddle" in refusal("emit", str(file), "--framework", "megatron")
    options = ["--model", "llama3.1-8b", "--option", "gradient_dtype=bf16"]
    other, _ = estimated("megatron", options, tmp_path)
    assert run("emit", str(other), "--framework", "megatron", "--force").exit_code == 0
    earlier = json.loads(other.read_text(encoding="utf-8"))
    del earlier["question"]  # as versions before it wrote them
    other.write_text(json.dumps(earlier), encoding="utf-8")
    assert "other options or coefficients" in refusal("emit", str(other), "--framework", "megatron")
    assert run("emit", str(other), "--framework", "megatron", "--force", *options[2:]).exit_code == 0
    assert "no such file" in refusal("emit", str(tmp_path / "none.json"), "--framework", "megatron")
    assert "holds one estimate" in refusal("emit", str(file), "--rank", "2", "--framework", "paddle")
    assert "missing option '--model'" in refusal("emit", "--framework", "megatron")


@pytest.mark.parametrize(
    ("framework", "mark"), [("megatron", "pretrain_gpt.py"), ("torch", "torchtitan"), ("paddle", "{")]
)
def test_the_framework_is_that_of_the_answer(framework: str, mark: str, tmp_path: Path) -> None:
    options = ["--framework", framework, "--model", "llama3.1-8b", "--nodes", "2", "--tp", "2", "--recompute", "full"]
    file = tmp_path / "answer.json"
    assert run("estimate", *options, "--format", "json", "--output", str(file)).exit_code == 0
    alone = run("emit", str(file))
    assert mark in alone.stdout
    assert alone.stdout == run("emit", str(file), "--framework", framework).stdout


def test_what_would_not_run_is_not_written_unasked(tmp_path: Path) -> None:
    file, layout = tmp_path / "run.sh", ("--model", "llama3.1-70b", "--nodes", "1", "--tp", "8")
    done = run("emit", *layout, "--output", str(file))
    assert (done.exit_code, done.stdout) == (1, "")
    assert done.stderr.startswith("simulate: error: the layout does not fit: needs 177.")
    assert done.stderr.endswith("; --force writes it all the same\n")
    assert not file.exists()
    forced = run("emit", *layout, "--force", "--output", str(file))
    assert forced.exit_code == 0
    assert forced.stderr.startswith("simulate: note: the layout does not fit: needs 177.")
    assert "pretrain_gpt.py" in file.read_text(encoding="utf-8")


SMALL = {
    "megatron": (
        "--model llama3.1-8b --devices 16 --tp 2 --pp 2 --recompute full",
        "--model deepseek-v2-lite --devices 16 --ep 8 --seq-length 4096 --global-batch-size 256",
    ),
    "paddle": ("--model llama3.1-8b --devices 16 --tp 2 --pp 2 --recompute full",),
    "torchtitan": ("--model llama3.1-8b --devices 16 --tp 2 --global-batch-size 64 --recompute full",),
}
STACKS = [
    (target, question, "h100-sxm-80g", stack.name)
    for target in SMALL
    for question in SMALL[target]
    for stack in stacks_of(framework_of(target))
    if (target, stack.name) != ("torchtitan", "deepspeed")
]
ONE_OF_EACH_STACK = {load_hardware(name).stack: name for name in hardware_names()}.values()
EVERYWHERE = [
    *(("megatron", SMALL["megatron"][0], name, None) for name in hardware_names()),
    *(
        (target, question, name, None)
        for target in SMALL
        for question in SMALL[target][target == "megatron" :]
        for name in ONE_OF_EACH_STACK
    ),
]


@pytest.mark.parametrize(("target", "question", "hardware", "stack"), [*STACKS, *EVERYWHERE])
def test_hardware_and_stacks(
    target: RecipeFormat, question: str, hardware: str, stack: str | None, tmp_path: Path
) -> None:
    """The recipe says the stack of a hardware's runs, but for z2000's release; another comes back where it is named."""
    words = [*question.split(), "--hardware", hardware, *(["--stack", stack] if stack else [])]
    result = run("estimate", "--framework", framework_of(target), *words, "--format", "json")
    if result.exit_code == 3 and stack is None:
        assert "peak" in result.stderr or "16 devices" in result.stderr, result.stderr
        return
    file, recipe = tmp_path / "estimate.json", tmp_path / f"recipe{SUFFIX[target]}"
    file.write_text(result.stdout, encoding="utf-8")
    before = json.loads(result.stdout)
    written = run("emit", str(file), "--force", "--output", str(recipe))
    if before["precision"] == "fp16" and written.exit_code == 3:  # a device without bf16
        assert "trains in bf16" in written.stderr, written.stderr
        return
    assert written.exit_code == 0, written.stderr
    named = _stack(target, hardware, words) if stack or hardware == "z2000" else []
    checked = run("check", str(recipe), "--hardware", hardware, *named, "--format", "json", "--exit-zero")
    after = json.loads(checked.stdout)["results"][0]["estimate"]
    for part in ("memory", "throughput"):
        assert after[part] == before[part]


def test_a_mixture_on_ascend_is_of_mindspeed() -> None:
    words = "--model deepseek-v3 --hardware ascend-910c --nodes 32 --tp 2 --pp 16 --ep 16 --etp 1 --recompute full"
    cut = "--stage-layers 3,4,4,4,4,4,4,4,4,4,4,4,4,4,4,2"
    script = run("emit", *words.split(), *cut.split(), "--force").stdout
    assert "PYTORCH_NPU_ALLOC_CONF" in script
    assert "--use-mcore-models" in script
    assert "--transformer-impl" not in script
    assert "--tokenizer-type PretrainedFromHF --tokenizer-name-or-path" in script
