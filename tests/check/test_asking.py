"""What a recipe does not say: assumed and said, or asked for in one line."""

from pathlib import Path
from typing import Any

import pytest

from simulator.answers.gates import Gates
from simulator.frameworks.models import by_name
from simulator.question.question import question_of
from simulator.recipes.check.judge import check_files
from tests.check.recipes import checked, judged, rules
from tests.cli.running import run

H100 = ("--hardware", "h100-sxm-80g")
FLAGS = """--num-layers 20 --hidden-size 2048 --ffn-hidden-size 5632 --num-attention-heads 16 --swiglu --bf16 \\
 --seq-length 2048 --max-position-embeddings 2048 --micro-batch-size 1 --global-batch-size 64
"""


def script(folder: Path, text: str) -> str:
    file = folder / "train.sh"
    file.write_text(text, encoding="utf-8")
    return str(file)


@pytest.mark.parametrize(
    ("sizes", "devices"),
    [
        ({}, 8),
        ({"tensor_parallel": 8, "sequence_parallel": True, "pipeline_parallel": 4}, 32),
        ({"pipeline_parallel": 16}, 16),
        ({"model": "qwen3-30b-a3b", "expert_parallel": 16, "pipeline_parallel": 2}, 32),
    ],
)
def test_the_fewest_nodes_that_the_degrees_fill_are_assumed(sizes: dict[str, Any], devices: int) -> None:
    found = judged(nodes=None, devices_per_node=None, zero_stage=1, recompute="full", global_batch_size=256, **sizes)
    assert found.estimate is not None, found.reasons
    assert found.estimate.memory.fits
    assert found.estimate.devices == devices
    assert {"nodes-assumed", "devices-assumed"} <= set(rules(found, "note"))
    (said,) = [remark.message for remark in found.remarks if remark.rule == "nodes-assumed"]
    assert ("one node" if devices == 8 else f"{devices // 8} nodes") in said
    told = judged(
        nodes=None, asked=question_of({"nodes": 8}), zero_stage=1, recompute="full", global_batch_size=256, **sizes
    )
    assert "nodes-assumed" not in rules(told, "note")


def test_what_hangs_on_assumed_nodes_is_no_firm_verdict() -> None:
    sharded: dict[str, Any] = {"model": "llama3.1-70b", "zero_stage": 3, "recompute": "full", "global_batch_size": 512}
    few = judged("torch", nodes=None, **sharded)
    assert (few.outcome, few.passed, few.estimate) == ("cannot_tell", False, None)
    assert "on 8 devices it does not pass" in few.reasons[0]
    assert "(--nodes N)" in few.reasons[0]
    assert judged("torch", nodes=1, **sharded).outcome == "does_not_fit"
    # Replicas help nothing where nothing is sharded: that is certain on any number of nodes.
    assert judged(nodes=None, model="llama3.1-70b", global_batch_size=512).outcome == "does_not_fit"


@pytest.mark.parametrize(
    ("question", "hardware", "outcome"),
    [
        ({"micro_batch_size": 2}, "h100-sxm-80g", "cannot_tell"),
        ({"micro_batch_size": 2, "options": {"fp8_weight_cache": "true"}}, "h100-sxm-80g", "does_not_fit"),
        ({"model": "llama3.1-70b"}, "h100-sxm-80g", "does_not_fit"),
        ({}, "h200-sxm", "fits"),
    ],
)
def test_copies_of_weights_that_nobody_states_decide_no_failure(
    question: dict[str, Any], hardware: str, outcome: str
) -> None:
    """With 8-bit copies and their transposes between micro batches 87 GiB, without them 74."""
    found = judged(asked=question_of({"hardware": hardware}), precision="fp8", recompute="full", **question)
    assert found.outcome == outcome
    assert ("fp8-weight-cache" in rules(found)) == (outcome == "cannot_tell")
    assert outcome != "cannot_tell" or "--option fp8_weight_cache" in found.reasons[0]


PADDLE = "--model_name_or_path meta-llama/Llama-3.2-1B --max_seq_length 2048 --bf16 1 --tensor_parallel_degree 1"


@pytest.mark.parametrize(
    ("launcher", "flags"),
    [
        ("torchrun --nproc_per_node gpu", FLAGS.replace("2048 --m", "2048 --vocab-size 32000 --m")),
        ("deepspeed", FLAGS.replace("2048 --m", "2048 --vocab-size 32000 --m")),
        ("python -m paddle.distributed.launch", f"{PADDLE} --per_device_train_batch_size 1"),
    ],
)
def test_all_devices_of_a_node_are_meant_where_none_are_named(launcher: str, flags: str, tmp_path: Path) -> None:
    (found,) = checked(script(tmp_path, f"{launcher} pretrain.py {flags}"), *H100, code=0)
    assert found["estimate"]["devices"] == 8
    assert "devices-assumed" in [remark["rule"] for remark in found["remarks"]]
    named = script(tmp_path, f"CUDA_VISIBLE_DEVICES=0,1 {launcher} pretrain.py {flags}")
    (found,) = checked(named, *H100)
    assert found["estimate"]["devices"] == 2


def test_the_vocabulary_has_its_own_message(tmp_path: Path) -> None:
    file = script(tmp_path, f"torchrun --nproc_per_node 8 pretrain_gpt.py {FLAGS}")
    (found,) = checked(file, *H100, "--micro-batch-size", "9", "--global-batch-size", "72", code=3)
    assert found["reasons"][0].startswith("the vocabulary is missing")
    assert "--model-field vocab_size=N" in found["reasons"][0]
    (found,) = checked(file, *H100, "--micro-batch-size", "8", "--model-field", "vocab_size=32000")
    assert found["outcome"] == "fits"


@pytest.mark.parametrize(("batch", "outcome", "entries"), [("1", "fits", "262,144"), ("256", "does_not_fit", "32,768")])
def test_a_verdict_that_no_vocabulary_changes_needs_none(
    batch: str, outcome: str, entries: str, tmp_path: Path
) -> None:
    file = script(tmp_path, f"torchrun --nproc_per_node 8 pretrain_gpt.py {FLAGS}")
    (found,) = checked(
        file, *H100, "--micro-batch-size", batch, "--global-batch-size", "2048", code=int(outcome != "fits")
    )
    assert found["outcome"] == outcome
    (said,) = [remark["message"] for remark in found["remarks"] if remark["rule"] == "vocabulary-assumed"]
    assert f"{entries} entries are priced" in said


@pytest.mark.parametrize(
    ("flags", "outcome"),
    [
        ("--lora_r 8 --deepspeed $CONFIG", "fits"),
        ("--deepspeed $CONFIG", "cannot_tell"),  # the state fits sharded only, and the file may offload
        ("--lora_r 8 --deepspeed $CONFIG --model_max_length $LENGTH", "cannot_tell"),
        ("--lora_r 8 --deepspeed $CONFIG --gradient_accumulation_steps $CONFIG", "cannot_tell"),
    ],
)
def test_a_recipe_that_passes_with_every_zero_stage_needs_none(flags: str, outcome: str, tmp_path: Path) -> None:
    text = f"""deepspeed fastchat/train/train_lora.py --model_name_or_path lmsys/vicuna-7b-v1.5 --bf16 True \\
 --per_device_train_batch_size 2 --gradient_checkpointing True --output_dir x --model_max_length 2048 {flags}
"""
    (found,) = checked(script(tmp_path, text), *H100, code=0 if outcome == "fits" else 3)
    assert found["outcome"] == outcome, found["reasons"]
    said = [remark for remark in found["remarks"] if remark["rule"] == "zero-stage-assumed"]
    assert [(remark["severity"], remark["fix"]) for remark in said] == [("warning", "--set CONFIG=PATH")] * (
        outcome == "fits"
    )


def test_positional_parameters_have_one_example_line(tmp_path: Path) -> None:
    text = f"""#!/bin/bash
LAYERS=$1
export TP="${{2:-}}"
BATCH=${{3}}
torchrun --nproc_per_node 8 pretrain_gpt.py --vocab-size 32000 --tensor-model-parallel-size $2 \\
 {FLAGS.replace("--num-layers 20", "--num-layers $LAYERS").replace("--micro-batch-size 1", "--micro-batch-size $BATCH")}
"""
    file = script(tmp_path, text)
    (found,) = checked(file, *H100, code=3)
    assert "--set 1=LAYERS --set 2=TP --set 3=BATCH" in found["reasons"][0]
    shown = " ".join(run("check", file, *H100).stdout.split())
    assert shown.count("--set 1=LAYERS --set 2=TP --set 3=BATCH") >= 1
    (found,) = checked(file, *H100, "--set", "1=20", "--set", "2=1", "--set", "3=1")
    assert found["outcome"] == "fits"


PLACES = """ENV=$1
if [ $ENV = dsw ]; then
NNODES=1
GPUS_PER_NODE=`python -c "import torch; print(torch.cuda.device_count())"`
elif [ $ENV = dlc ]; then
NNODES=${WORLD_SIZE}
GPUS_PER_NODE=${KUBERNETES_CONTAINER_RESOURCE_GPU}
fi
run="torchrun --nproc_per_node $GPUS_PER_NODE --nnodes $NNODES pretrain_gpt.py --vocab-size 32000"
"""


@pytest.mark.parametrize(
    ("told", "outcome"), [((), "cannot_tell"), (("--nodes", "1"), "fits"), (("--set", "1=dsw"), "fits")]
)
def test_a_branch_for_each_place_leaves_the_machines_to_be_told(
    told: tuple[str, ...], outcome: str, tmp_path: Path
) -> None:
    file = script(tmp_path, f"{PLACES}eval $run {FLAGS}")
    for found in checked(file, *H100, *told, code=0 if outcome == "fits" else 3):
        assert found["outcome"] == outcome, found["reasons"]
        assert ("--set 1=ENV" in " ".join(found["reasons"])) == (outcome == "cannot_tell")


@pytest.mark.parametrize(
    ("name", "model"),
    [
        ("Qwen/Qwen2-7B", "qwen2.5-7b"),
        ("Qwen/Qwen2-1.5B-Instruct", "qwen2.5-1.5b"),
        ("lmsys/vicuna-7b-v1.5", "llama-2-7b"),
        ("lmsys/vicuna-13b-v1.3", "llama-13b"),
        ("model_configs/ERNIE-4p5-21B-A3B/", "ernie-4.5-21b-a3b"),
        ("qwen2p5_7b", "qwen2.5-7b"),
        ("llama3p1-8b", "llama3.1-8b"),
        ("deepseek-ai/DeepSeek-R1", "deepseek-v3"),
        ("deepseek-ai/DeepSeek-R1-Distill-Llama-8B", "llama3.1-8b"),
        ("deepseek-ai/DeepSeek-R1-Distill-Qwen-32B", "qwen2.5-32b"),
        ("x/DeepSeek-R1-Distill-Other-9B", None),
        ("Qwen/Qwen2.5-7B-Instruct-GPTQ-Int4", None),
        ("Qwen/Qwen2-VL-7B", "qwen2-vl-7b"),
        ("Qwen__Qwen2.5-7B", "qwen2.5-7b"),
        ("Qwen.Qwen2.5-VL-7B-Instruct", "qwen2.5-vl-7b"),
        ("x/Eagle3-Llama-3.1-8B", None),
        ("x/MiniCPM-Llama3-8B", None),
        ("lora_llama3_8b_sft", None),
        ("x/Tuned-9B-Llama-3.1-8B", None),
        ("x/Chinese-Llama-2-7b", None),
        ("x/Some-LLaVA-Llama-3-8B", None),
        ("x/Reasoner-Qwen-7B", None),
    ],
)
def test_common_names(name: str, model: str | None) -> None:
    assert by_name(name)[0] == model


EXAMPLE = """#!/bin/bash
# sh train.sh dsw 2 8192 bf16
# sh train.sh dlc 4 8192 fp16
TP=$2
SEQ=$3
torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336 --swiglu \\
 --num-attention-heads 32 --group-query-attention --num-query-groups 8 --vocab-size 128256 \\
 --max-position-embeddings 8192 \\
 --tensor-model-parallel-size $TP --seq-length $SEQ --$4 --micro-batch-size 1 --global-batch-size 64 \\
 --untie-embeddings-and-output-weights --disable-bias-linear --normalization RMSNorm
"""


def test_a_script_starts_as_its_own_comment_says(tmp_path: Path) -> None:
    (found,) = checked(script(tmp_path, EXAMPLE), *H100, code=1)
    assert found["outcome"] == "does_not_fit"
    assert found["estimate"]["layout"]["tp"] == 2
    (said,) = [remark for remark in found["remarks"] if remark["rule"] == "example-arguments"]
    assert (said["severity"], said["place"]["line"]) == ("note", 2)
    # What the user tells, by number or by the variable's name, stands above the comment.
    for told in ("2=8", "TP=8"):
        (found,) = checked(script(tmp_path, EXAMPLE), *H100, "--set", told)
        assert found["outcome"] == "fits"
        assert found["estimate"]["layout"]["tp"] == 8
        assert "unused-setting" not in {remark["rule"] for remark in found["remarks"]}


@pytest.mark.parametrize(("comment", "outcome"), [("# sh train.sh dsw 8 4096 bf16", "fits"), ("", "cannot_tell")])
def test_a_start_at_hand_sets_no_other_variables(comment: str, outcome: str, tmp_path: Path) -> None:
    text = EXAMPLE.replace("TP=$2", "if [ $MOE = true ]; then MORE='--num-experts 64'; fi\nTP=$2")
    text = text.replace("--untie", "$MORE --untie").replace("# sh train.sh dsw 2 8192 bf16", comment)
    words = [] if comment else ["--set", "2=8", "--set", "3=4096", "--set", "4=bf16"]
    text = text if comment else text.replace("# sh train.sh dlc", "# sh other.sh dlc")
    (found,) = checked(script(tmp_path, text), *H100, *words, code=0 if comment else 3)
    assert found["outcome"] == outcome, found["reasons"]
    assert any("$MOE" in remark["message"] for remark in found["remarks"] if remark["rule"] == "assumed-unset") == bool(
        comment
    )


@pytest.mark.parametrize(
    "changed",
    [
        EXAMPLE.replace("# sh train.sh", "# sh finetune.sh"),  # another script
        EXAMPLE.replace(" bf16\n", "\n").replace(" fp16\n", "\n"),  # of an older version, with fewer words
        EXAMPLE.replace("dsw 2", "dsw <TP>").replace("dlc 4", "dlc $TP"),  # left to the reader
        EXAMPLE.replace("# sh", "echo sh"),  # not a comment
    ],
)
def test_a_comment_that_tells_no_arguments_is_no_example(tmp_path: Path, changed: str) -> None:
    (found,) = checked(script(tmp_path, changed), *H100, code=3)
    assert found["outcome"] == "cannot_tell"


COUNTS = """NODE=COMMAND
ALL=$(($(ds_ssh nvidia-smi --query-gpu=name --format=csv,noheader | wc -l)-2))
torchrun --nproc_per_node $NODE pretrain_gpt.py --num-layers 20 --hidden-size 2048 --num-attention-heads 16 --swiglu \\
 --ffn-hidden-size 5632 --bf16 --seq-length 2048 --max-position-embeddings 2048 --vocab-size 32000 \\
 --micro-batch-size 1 --global-batch-size $((8 * ALL))
"""


@pytest.mark.parametrize(
    "command",
    [
        "$(nvidia-smi --query-gpu=name --format=csv,noheader | wc -l)",
        "$(nvidia-smi -L | wc -l)",
        """$(python -c 'import torch; print(torch.cuda.device_count())')""",
        """`python -c "import torch; print(torch.cuda.device_count())"`""",
    ],
)
def test_a_script_that_counts_its_devices(command: str, tmp_path: Path) -> None:
    file = script(tmp_path, COUNTS.replace("COMMAND", command))
    (found,) = checked(file, *H100)
    assert (found["outcome"], found["estimate"]["devices"], found["estimate"]["layout"]["dp"]) == ("fits", 8, 8)
    assert len([remark for remark in found["remarks"] if remark["rule"] == "devices-counted"]) == 2
    # Steps of 8 micro batches a device, whatever their number.
    (twice,) = checked(file, *H100, "--nodes", "2")
    assert twice["estimate"]["devices"] == 16
    (smaller,) = checked(file, "--hardware", "bi150-64g")
    assert smaller["estimate"]["devices"] == 16


def test_other_commands_stay_unknown(tmp_path: Path) -> None:
    file = script(tmp_path, COUNTS.replace("COMMAND", "$(nvidia-smi -L | grep H100 | wc -l)"))
    (found,) = checked(file, *H100, code=3)
    assert found["outcome"] == "cannot_tell"


@pytest.mark.parametrize(
    ("second", "outcomes"),
    [
        ("torchrun --nproc_per_node 8 train.py --model big --batch_size 64", ["fits", "not_modelled"]),
        ("torchrun --nproc_per_node 8 train.py $WORDS", ["fits", "cannot_tell"]),
        ("python3 format_data.py --out data", ["fits"]),
    ],
)
def test_a_launch_beside_one_that_is_read_is_not_passed_over(second: str, outcomes: list[str], tmp_path: Path) -> None:
    first = f"torchrun --nproc_per_node 8 --nnodes 1 pretrain_gpt.py {FLAGS}".replace("\\\n", " ").strip()
    file = script(tmp_path, f"{first} --vocab-size 32000\n{second}\n")
    found = checked(file, *H100, "--fail-on", "does-not-fit")
    assert [one["outcome"] for one in found] == outcomes


TUNED = "--model_name_or_path x/llama-2-7b-hf --per_device_train_batch_size 1 --model_max_length 2048 --bf16"


@pytest.mark.parametrize(
    ("text", "fix"),
    [
        (f"deepspeed --num_gpus 8 train.py --deepspeed ds.json {TUNED}", "--set ds.json=PATH"),
        (
            f"sed s/2/3/ in.json > ds.json\ndeepspeed --num_gpus 8 t.py --deepspeed ds.json {TUNED}",
            "--set in.json=PATH",
        ),
        (f"jq . in.json | tee x.json\ndeepspeed --num_gpus 8 t.py --deepspeed x.json {TUNED}", "--set x.json=PATH"),
        (f"deepspeed --num_gpus 8 --hostfile hosts train.py --zero_stage 2 {TUNED}", "--nodes N"),
        ("torchrun --nproc_per_node 8 pretrain_gpt.py $ARGS", "--set ARGS=VALUE"),
        ('torchrun --nproc_per_node 8 pretrain_gpt.py "$@"', "--set @=VALUE"),
        ("source ./env/conf\ntorchrun --nproc_per_node 8 pretrain_gpt.py $ARGS", "--set ARGS=VALUE"),
    ],
)
def test_what_is_asked_for_is_taken(text: str, fix: str, tmp_path: Path) -> None:
    file = script(tmp_path, text)
    (asking,) = check_files([file], question_of({"hardware": "h100-sxm-80g"}), Gates())
    assert fix in " ".join(asking.reasons)
    (tmp_path / "told.json").write_text('{"zero_optimization": {"stage": 2}}', encoding="utf-8")
    name, _, kind = fix.removeprefix("--set ").partition("=")
    settings = {name: f"{tmp_path}/told.json" if kind == "PATH" else "--bf16"} if kind else {}
    asked = question_of({"hardware": "h100-sxm-80g", "nodes": None if kind else 2})
    (found,) = check_files([file], asked, Gates(), settings)
    assert fix not in " ".join(found.reasons)
    assert "unused-setting" not in rules(found)


def test_a_path_that_leads_nowhere_is_said(tmp_path: Path) -> None:
    file = script(tmp_path, f"deepspeed --num_gpus 8 t.py --deepspeed ds.json {TUNED}")
    (found,) = check_files([file], question_of({"hardware": "h100-sxm-80g"}), Gates(), {"ds.json": "nope"})
    assert (found.outcome, found.reasons) == ("unreadable", ("--set ds.json=nope: no such file",))
