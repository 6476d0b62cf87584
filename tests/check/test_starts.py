"""Launch scripts of our own: what Megatron-LM refuses as it starts, changes that hold when applied, many launches."""

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from tests.check.bare import no_advice
from tests.check.recipes import checked
from tests.cli.running import refusal, run

H100 = ("--hardware", "h100-sxm-80g")
SHAPE = (
    "--hidden-size 4096 --ffn-hidden-size 14336 --num-attention-heads 32 --group-query-attention --num-query-groups 8 "
    "--swiglu --normalization RMSNorm --untie-embeddings-and-output-weights"
)
RUN = "--micro-batch-size 1 --global-batch-size 128 --bf16 --use-distributed-optimizer"
TENSOR = "--tensor-model-parallel-size 2 --sequence-parallel"
BASE = f"{SHAPE} --num-layers 32 --vocab-size 128256 --seq-length 8192 --max-position-embeddings 8192 {RUN} {TENSOR}"
LAUNCH = "torchrun --nproc-per-node 8 --nnodes 2 pretrain_gpt.py"
FULL = "--recompute-granularity full"


def script(folder: Path, text: str, name: str = "train.sh") -> str:
    file = folder / name
    file.write_text(f"#!/bin/bash\n{text}\n", encoding="utf-8")
    return str(file)


def launched(folder: Path, flags: str, *options: str, code: int = 0) -> dict[str, Any]:
    """The verdict on a launch with one flag on a line."""
    words = [f" --{part.strip()}" for part in f" {flags}".split(" --")[1:]]
    with no_advice():
        (found,) = checked(script(folder, f"{LAUNCH} \\\n" + " \\\n".join(words)), *H100, *options, code=code)
    return found


def errors(found: dict[str, Any]) -> list[str]:
    return [remark["rule"] for remark in found["remarks"] if remark["severity"] == "error"]


@pytest.mark.parametrize(
    ("flags", "rule", "line_of"),
    [
        (BASE.replace("layers 32", "layers 30") + " --pipeline-model-parallel-size 4", "uneven-layers", "--pipeline"),
        (f"{BASE} {FULL} --recompute-num-layers 1", "recompute-method", "--recompute-granularity"),
        (f"{BASE} {FULL} --recompute-method block", "recompute-layers", "--recompute-granularity"),
        (f"{BASE} --recompute-granularity selective --recompute-method uniform", "selective-method", "--recompute-m"),
        (f"{BASE} --recompute-granularity selective --recompute-num-layers 1", "selective-layers", "--recompute-n"),
        (f"{BASE} --overlap-param-gather", "param-gather-reduce", "--overlap-param-gather"),
        (
            BASE.replace("--use-distributed-optimizer", "") + " --overlap-param-gather --overlap-grad-reduce",
            "param-gather-optimizer",
            "--overlap-param-gather",
        ),
        (BASE.replace("embeddings 8192", "embeddings 4096"), "positions", "--max-position"),
        (f"{BASE} --optimizer-cpu-offload", "optimizer-offload", "--optimizer-cpu-offload"),
        (
            f"{BASE} --fine-grained-activation-offloading --offload-modules core_attn --transformer-impl local",
            "offload-modules-local",
            "--transformer-impl",
        ),
        (BASE.replace("--tensor-model-parallel-size", "--tensor_model_parallel_size"), "dashes", "--tensor_model"),
    ],
)
def test_megatron_refuses_at_start(flags: str, rule: str, line_of: str, tmp_path: Path) -> None:
    found = launched(tmp_path, flags, code=1)
    assert (found["outcome"], errors(found)) == ("refused", [f"megatron-{rule}"])
    line = (tmp_path / "train.sh").read_text(encoding="utf-8").splitlines()[found["blame"]["line"] - 1]
    assert line.strip().startswith(line_of)


@pytest.mark.parametrize(
    "flags",
    [
        BASE,
        BASE.replace("layers 32", "layers 30")
        + " --pipeline-model-parallel-size 4 --decoder-first-pipeline-num-layers 7"
        + " --decoder-last-pipeline-num-layers 7",
        f"{BASE} {FULL} --recompute-method uniform --recompute-num-layers 1",
        f"{BASE} --recompute-granularity selective",
        f"{BASE} --overlap-param-gather --overlap-grad-reduce",
        f"{BASE} --optimizer-cpu-offload --use-precision-aware-optimizer",
        f"{BASE} --optimizer-offload-policy static",
    ],
)
def test_megatron_takes_flags_that_go_together(flags: str, tmp_path: Path) -> None:
    assert errors(launched(tmp_path, flags)) == []


def test_layers_of_selective_recompute_are_no_error_of_nemo(tmp_path: Path) -> None:
    sizes = "tensor_model_parallel_size: 1, num_layers: 12, hidden_size: 768, num_attention_heads: 12"
    sizes += ", encoder_seq_length: 1024, vocab_size: 50304"
    batch = "micro_batch_size: 1, global_batch_size: 8, max_position_embeddings: 1024, optim: {name: fused_adam}"
    selective = "activations_checkpoint_granularity: selective, activations_checkpoint_num_layers: 1"
    text = f"trainer: {{devices: 8, num_nodes: 1, precision: bf16}}\nmodel: {{{sizes}, {batch}, {selective}}}\n"
    (tmp_path / "x.yaml").write_text(text, encoding="utf-8")
    with no_advice():
        (found,) = checked(str(tmp_path / "x.yaml"), *H100)
    assert errors(found) == []


def test_options_of_the_user_count_over_the_flags(tmp_path: Path) -> None:
    full = f"{BASE} {FULL}"
    assert errors(launched(tmp_path, full, "--recompute", "full")) == []
    assert errors(launched(tmp_path, full, "--recompute", "none")) == []
    uneven = BASE.replace("layers 32", "layers 30") + " --pipeline-model-parallel-size 4"
    assert errors(launched(tmp_path, uneven, "--stage-layers", "7,8,8,7")) == []
    found = launched(tmp_path, BASE, "--pp", "8", "--num-layers", "30", "--tp", "1", code=1)
    assert errors(found) == ["megatron-uneven-layers"]
    short = BASE.replace("embeddings 8192", "embeddings 4096")
    assert errors(launched(tmp_path, short, "--seq-length", "4096")) == []


def test_an_uneven_cut_is_refused_with_the_flags_that_say_it(tmp_path: Path) -> None:
    flags = BASE.replace("layers 32", "layers 30") + " --pipeline-model-parallel-size 4"
    (said,) = [one for one in launched(tmp_path, flags, code=1)["remarks"] if one["severity"] == "error"]
    assert "--decoder-first-pipeline-num-layers 7 --decoder-last-pipeline-num-layers 7" in said["fix"]


WHOLE = BASE.replace(TENSOR, "").replace(" --use-distributed-optimizer", "")
FSDP2 = "--use-torch-fsdp2 --no-gradient-accumulation-fusion"
FSDP = "--use-megatron-fsdp --data-parallel-sharding-strategy optim"
OWN = f"{FSDP}_grads_params --ckpt-format fsdp_dtensor --use-distributed-optimizer --recompute-granularity full"
OWN += " --recompute-method uniform --recompute-num-layers 1 --no-gradient-accumulation-fusion"


@pytest.mark.parametrize(("flags", "gradient"), [(FSDP2, 2), (OWN, 4)])
def test_fsdp_of_megatron_shards_weights_gradients_and_state(flags: str, gradient: int, tmp_path: Path) -> None:
    parts = launched(tmp_path, f"{WHOLE} {flags}")["estimate"]["memory"]["breakdown_mib"]
    # 8.03e9 parameters over 16 devices: 2 bytes of weights, 12 of master weights and Adam; FSDP2 adds up in 16 bits.
    each = 8_030_261_248 / 16 / 2**20
    assert {name: round(parts[name] / each) for name in ("parameters", "gradients", "optimizer")} == {
        "parameters": 2,
        "gradients": gradient,
        "optimizer": 12,
    }


def test_torch_fsdp2_keeps_8_bit_copies_of_what_it_gathers_for_no_longer_than_it_says(tmp_path: Path) -> None:
    flags = f"{WHOLE} {FSDP2} --fp8-format hybrid"
    shorter = launched(tmp_path, flags, "--seq-length", "2048")
    assert "upper-bound" in [remark["rule"] for remark in shorter["remarks"]]
    large = flags.replace("--micro-batch-size 1", "--micro-batch-size 4")
    assert launched(tmp_path, large, code=3)["outcome"] == "not_modelled"


@pytest.mark.parametrize("more", ["--use-distributed-optimizer", "--pipeline-model-parallel-size 2"])
def test_what_torch_fsdp2_does_not_go_with(more: str, tmp_path: Path) -> None:
    found = launched(tmp_path, f"{WHOLE} {FSDP2} {more}", code=1)
    assert (found["outcome"], "megatron-torch-fsdp2" in errors(found)) == ("refused", True)


@pytest.mark.parametrize(
    ("flags", "rule", "line_of"),
    [
        (f"{WHOLE} --use-torch-fsdp2", "torch-fsdp2-fusion", "--use-torch-fsdp2"),
        (f"{WHOLE} {FSDP2} --ckpt-format torch", "torch-fsdp2-checkpoint", "--ckpt-format"),
        (f"{BASE} {FSDP}", "fsdp-checkpoint", "--use-megatron-fsdp"),
        (f"{BASE} {FSDP} --ckpt-format torch_dist", "fsdp-checkpoint", "--ckpt-format"),
    ],
)
def test_flags_that_fsdp_needs_beside_it(flags: str, rule: str, line_of: str, tmp_path: Path) -> None:
    found = launched(tmp_path, flags, code=1)
    assert (found["outcome"], errors(found)) == ("refused", [f"megatron-{rule}"])
    line = (tmp_path / "train.sh").read_text(encoding="utf-8").splitlines()[found["blame"]["line"] - 1]
    assert line.strip().startswith(line_of)


@pytest.mark.parametrize(
    "flags",
    [
        f"{WHOLE} {FSDP2}",
        f"{WHOLE} {FSDP2} --ckpt-format torch_dcp",
        f"{BASE} {FSDP} --ckpt-format fsdp_dtensor",
        # The older name had no format of its own.
        f"{BASE} --use-custom-fsdp --data-parallel-sharding-strategy optim",
    ],
)
def test_flags_that_fsdp_goes_with(flags: str, tmp_path: Path) -> None:
    assert errors(launched(tmp_path, flags)) == []


@pytest.mark.parametrize(
    ("count", "flags", "refused"),
    [
        (1, f"{BASE} {FSDP} --ckpt-format fsdp_dtensor", True),
        (8, f"{BASE} {FSDP} --ckpt-format fsdp_dtensor", False),
        # Up to core 0.11 PyTorch's goes with one; a flag of 0.12 tells that it is later.
        (1, f"{WHOLE} {FSDP2}", False),
        (1, f"{WHOLE} {FSDP2} --recompute-granularity selective --recompute-modules core_attn", True),
    ],
)
def test_fsdp_needs_more_than_one_connection(count: int, flags: str, refused: bool, tmp_path: Path) -> None:
    export = f"export CUDA_DEVICE_MAX_CONNECTIONS={count}"
    with no_advice():
        (found,) = checked(script(tmp_path, f"{export}\n{LAUNCH} {flags}"), *H100, code=int(refused))
    assert (errors(found) == ["megatron-fsdp-connections"]) == refused
    assert found["outcome"] == ("refused" if refused else "fits")


def test_the_type_of_a_tokenizer_tells_the_vocabulary(tmp_path: Path) -> None:
    flags = BASE.replace("--vocab-size 128256", "--tokenizer-type Llama3Tokenizer --tokenizer-model $2")
    assert launched(tmp_path, flags)["estimate"]["model"] == "llama3-8b"
    unknown = launched(tmp_path, flags.replace("Llama3Tokenizer", "HuggingFaceTokenizer"), "--recompute", "full")
    assert unknown["estimate"]["model"] == "recipe"
    assert "vocabulary-assumed" in [remark["rule"] for remark in unknown["remarks"]]


PADDLE = (
    "python -m paddle.distributed.launch --gpus 0,1,2,3,4,5,6,7 run_finetune.py "
    "--model_name_or_path meta-llama/Llama-2-13b --max_length 4096 --per_device_train_batch_size 4 "
    "--gradient_accumulation_steps 4 --tensor_parallel_degree 2 --pipeline_parallel_degree 2 --bf16 "
    "--fp16_opt_level O2 --sharding stage1 --recompute 0 --virtual_pp_degree 2 --sequence_parallel 1 "
    '--amp_master_grad 1 --pipeline_parallel_config "disable_partial_send_recv"'
)
TITAN = """
[model]
name = "llama3"
flavor = "8B"
[training]
local_batch_size = 2
seq_len = 8192
[parallelism]
pipeline_parallel_degree = 4
pipeline_parallel_schedule = "Interleaved1F1B"
pipeline_parallel_layers_per_stage = 4
pipeline_parallel_first_stage_less_layers = 0
pipeline_parallel_last_stage_less_layers = 0
data_parallel_shard_degree = 2
[activation_checkpoint]
mode = "none"
"""
CHUNKS = f"{LAUNCH} {BASE} --pipeline-model-parallel-size 2 --num-layers-per-virtual-pipeline-stage 4 --tp-comm-overlap"
RECIPES = {
    "paddle": (PADDLE, H100),
    "titan": (TITAN, (*H100, "--nodes", "1")),
    "megatron": (CHUNKS, ("--hardware", "a100-sxm-40g")),
    "narrow": (f"{LAUNCH} {BASE.replace(TENSOR, '')} --tp-comm-overlap", H100),
    "given": (CHUNKS, ("--hardware", "a100-sxm-40g", "--dp", "4", "--layers-per-virtual-stage", "8")),
    "gated": (CHUNKS, (*H100, "--max-memory-fraction", "40%")),
}


@pytest.mark.full_answer
@pytest.mark.parametrize("name", RECIPES)
def test_changes_hold_when_they_are_applied(name: str, tmp_path: Path) -> None:
    text, options = RECIPES[name]
    if name == "titan":
        (tmp_path / "job.toml").write_text(text, encoding="utf-8")
        file = str(tmp_path / "job.toml")
    else:
        file = script(tmp_path, text)
    result = run("check", file, *options, "--format", "json")
    assert result.exit_code in {1, 3}, "too large, or so large that a run decides"
    (base,) = json.loads(result.stdout)["results"]
    assert base["changes"]
    for change in base["changes"]:
        added = shlex.split(change["options"])
        surely = change["estimate"]["memory"]["fit_probability"] > 0.95
        (again,) = checked(file, *kept_options(options, added), *added, code=0 if surely else 3)
        assert again["outcome"] == ("fits" if surely else "cannot_tell"), change["options"]
        for part in ("memory", "throughput", "layout"):
            assert again["estimate"][part] == change["estimate"][part], change["options"]


def kept_options(options: tuple[str, ...], added: list[str]) -> list[str]:
    """The options that a change does not replace."""
    replaced = set(added) | ({"--layers-per-virtual-stage"} if "--vpp" in added else set())
    pairs = [options[n : n + 2] for n in range(0, len(options), 2)]
    return [word for pair in pairs if pair[0] not in replaced for word in pair]


@pytest.mark.full_answer
def test_a_change_of_the_batch_is_said(tmp_path: Path) -> None:
    said = " ".join(run("check", script(tmp_path, PADDLE), *H100).stdout.split())
    (change,) = re.findall(r"would fit: --tp [0-9]+ \(([^)]*)\)", said)
    assert change.endswith(", batch 32 -> 16")
    (accumulated,) = re.findall(r"--micro-batch-size 1 --global-batch-size 32 \(([^)]*)\)", said)
    assert "batch" not in accumulated


@pytest.mark.full_answer
def test_a_refused_recipe_is_told_what_passes(tmp_path: Path) -> None:
    file = script(tmp_path, f"{LAUNCH} {BASE.replace('layers 32', 'layers 30')} --pipeline-model-parallel-size 4")
    said = run("check", file, *H100).stdout
    assert "would pass: --pp 1" in said
    assert "would fit" not in said
    assert "--nodes" not in said
    row = next(line for line in said.splitlines() if line.startswith(file))
    assert "spare" not in row


def test_a_loop_is_compared_launch_by_launch(tmp_path: Path) -> None:
    file, stored = tmp_path / "train.sh", str(tmp_path / "baseline.json")

    def loop(sizes: str) -> str:
        flags = BASE.replace(TENSOR, "--tensor-model-parallel-size $tp --sequence-parallel")
        file.write_text(f"for tp in {sizes}; do\n{LAUNCH} {flags}\ndone\n", encoding="utf-8")
        return str(file)

    assert run("check", loop("2 4 8"), *H100, "--format", "json", "--output", stored).exit_code == 0
    changed = json.loads(run("check", loop("2 1 8"), *H100, "--format", "json", "--baseline", stored).stdout)["changed"]
    (one,) = changed
    assert (one["kind"], one["title"]) == ("new_failure", "pretrain_gpt.py, launch 2")


def test_a_file_is_the_same_however_it_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    file = script(tmp_path, f"{LAUNCH} {BASE}")
    assert run("check", "train.sh", *H100, "--format", "json", "--output", "baseline.json").exit_code == 0
    for name in ("./train.sh", file):
        assert "nothing changed" in run("check", name, *H100, "--baseline", "baseline.json").stdout


def test_the_table_names_what_was_priced(tmp_path: Path) -> None:
    file = script(tmp_path, f"{LAUNCH} {BASE}")
    said = run("check", file, *H100, "--lora-rank", "8", env={"COLUMNS": "240"}).stdout
    assert "llama3-8b on 16 x h100-sxm-80g, bf16, TP2 " in said
    assert "seq 8192 batch 128 SP ZeRO 1 LoRA of rank 8" in said
    assert "no hardware was named: priced on z2000" in run("check", file, "--tp", "4").stdout


@pytest.mark.parametrize(
    ("text", "line", "code"),
    [
        ("a=1\ntorchrun train.py (\n", 3, 2),
        (f"a=1\n{LAUNCH} \\\n {BASE.replace(TENSOR, '')} \\\n --tensor-model-parallel-size 3\n", 5, 1),
    ],
)
def test_errors_with_a_line_are_shown_there(text: str, line: int, code: int, tmp_path: Path) -> None:
    file = script(tmp_path, text)
    (found,) = checked(file, *H100, code=code)
    assert found["blame"] == {"file": file, "line": line}
    assert f"line={line}," in run("check", file, *H100, "--format", "github").stdout


def test_files_that_are_no_recipes_may_be_passed_over(tmp_path: Path) -> None:
    good, helper = script(tmp_path, f"{LAUNCH} {BASE}"), script(tmp_path, "export NCCL_DEBUG=INFO", "env.sh")
    (tmp_path / "ds.json").write_text('{"zero_optimization": {"stage": 3}}', encoding="utf-8")
    files = (good, helper, str(tmp_path / "ds.json"))
    assert [one["outcome"] for one in checked(*files, *H100, code=2)] == ["fits", "unreadable", "unreadable"]
    found = checked(*files, *H100, "--skip-non-recipes")
    assert [one["outcome"] for one in found] == ["fits", "skipped", "skipped"]
    report = run("check", *files, *H100, "--skip-non-recipes", "--format", "junit").stdout
    assert 'skipped="2"' in report
    broken = script(tmp_path, "if true; then", "broken.sh")
    assert checked(broken, *H100, "--skip-non-recipes", code=2)[0]["outcome"] == "unreadable"


def test_a_value_that_no_file_needs_is_warned_of_once(tmp_path: Path) -> None:
    first = script(tmp_path, f"{LAUNCH} {BASE} --seed $SEED --micro-batch-size $SIZE", "a.sh")
    second = script(tmp_path, f"{LAUNCH} {BASE}", "b.sh")

    def unused(*settings: str) -> list[tuple[str, str]]:
        found = checked(first, second, *H100, *settings)
        return [
            (Path(one["file"]).name, remark["message"].split(":")[0])
            for one in found
            for remark in one["remarks"]
            if remark["rule"] == "unused-setting"
        ]

    assert unused("--set", "SIZE=1", "--set", "OTHER=2") == [("a.sh", "--set OTHER=2")]
    assert unused("--set", "SIZE=1") == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--hardware", "nope"), "unknown hardware 'nope'"),
        ((*H100, "--model", "nope-7b"), "nope-7b"),
        ((*H100, "--model-field", "num_hidden_layers=0"), "--model-field num_hidden_layers=0"),
        ((*H100, "--set", "X"), "such as WORLD_SIZE=4"),
    ],
)
def test_wrong_options_are_said_once(options: tuple[str, ...], message: str, tmp_path: Path) -> None:
    files = [script(tmp_path, f"{LAUNCH} {BASE}", name) for name in ("a.sh", "b.sh")]
    assert message in refusal("check", *files, *options)


def test_unknown_values_are_quoted_for_the_shell(tmp_path: Path) -> None:
    file = script(tmp_path, f"{LAUNCH} {BASE.replace('layers 32', 'layers $(cat layers)')}")
    (found,) = checked(file, *H100, code=3)
    (fix,) = {remark["fix"] for remark in found["remarks"] if remark["rule"] == "unknown-value"}
    assert fix == "--set '$(cat layers)=VALUE'"
    (told,) = checked(file, *H100, *shlex.split(fix.replace("VALUE", "32")))
    assert told["outcome"] == "fits"


def test_an_override_is_no_repetition(tmp_path: Path) -> None:
    (tmp_path / "sft.yaml").write_text(
        "model_name_or_path: baidu/ERNIE-4.5-0.3B-Paddle\nmax_seq_len: 4096\ntensor_parallel_degree: 1\nbf16: true\n"
        "per_device_train_batch_size: 1\ngradient_accumulation_steps: 8\nfp16_opt_level: O2\nstage: SFT\n",
        encoding="utf-8",
    )
    text = "export CUDA_VISIBLE_DEVICES=0,1,2,3\nerniekit train sft.yaml tensor_parallel_degree=2"
    (found,) = checked(script(tmp_path, text), *H100)
    rules = {remark["rule"]: remark for remark in found["remarks"]}
    assert "repeated-flag" not in rules
    assert (rules["override"]["severity"], found["estimate"]["layout"]["tp"]) == ("note", 2)


_BEHIND = (
    "torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 8 --hidden-size 1024 --num-attention-heads 16 "
    "--seq-length 4096 --max-position-embeddings 4096 --micro-batch-size $MBS --global-batch-size 64 "
    "--vocab-size 32000 --bf16 --data-path $DATA"
)


@pytest.mark.parametrize(
    "before",
    [
        'DATA=""\nif [ -z "$DATA" ]; then echo "set it"; exit 1; fi',
        'DATA="<your path>"\nif [ "$DATA" = "<your path>" ]; then exit 1; fi',
        'DATA=""\n[[ -n "$DATA" ]] || exit 1',
        'DATA=path/to/data\n[[ "$DATA" != path/to/data ]] || { echo; exit 1; }',
    ],
)
@pytest.mark.parametrize("start", ["{}", 'RUN="docker run x"\nCMD="{}"\n$RUN bash -c "$CMD"'])
def test_a_launch_behind_a_stop_is_judged_with_the_value_open(before: str, start: str, tmp_path: Path) -> None:
    file = tmp_path / "run.sh"
    file.write_text(f"MBS=1\n{before}\n{start.format(_BEHIND)}\n", encoding="utf-8")
    (result,) = checked(str(file), "--hardware", "h100-sxm-80g")
    assert result["outcome"] == "fits"


def test_a_stop_whose_value_decides_asks_for_it_and_a_setting_beats_the_script(tmp_path: Path) -> None:
    file = tmp_path / "run.sh"
    file.write_text(f'MBS=\nDATA=a\nif [ -z "$MBS" ]; then exit 1; fi\n{_BEHIND}\n', encoding="utf-8")
    (result,) = checked(str(file), "--hardware", "h100-sxm-80g", code=3)
    assert "--set MBS=VALUE" in result["reasons"][0]
    (result,) = checked(str(file), "--hardware", "h100-sxm-80g", "--set", "MBS=4")
    assert result["estimate"]["layout"]["micro_batch_size"] == 4
    file.write_text(f"MBS=1\nDATA=a\nDATA=$DATA/b\n{_BEHIND}\nexit 1\n", encoding="utf-8")
    (result,) = checked(str(file), "--hardware", "h100-sxm-80g", "--set", "MBS=2")
    assert result["estimate"]["layout"]["micro_batch_size"] == 2


def test_a_stop_on_every_path_is_none_to_pass_over(tmp_path: Path) -> None:
    file = tmp_path / "run.sh"
    file.write_text(f"MBS=1\nDATA=\nexit 1\n{_BEHIND}\n", encoding="utf-8")
    assert checked(str(file), "--hardware", "h100-sxm-80g", code=3)[0]["outcome"] == "cannot_tell"
