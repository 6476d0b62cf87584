"""Launch files of frameworks are read as the frameworks' own pages and launchers start them."""

import dataclasses
from pathlib import Path

import pytest

from simulator.answers.gates import Gates
from simulator.question.question import question_of
from simulator.question.recipe import Recipe
from simulator.recipes.check.judge import check_files
from simulator.recipes.readers.read import read_recipe
from simulator.recipes.shell import launch
from simulator.recipes.shell.launch import parameters
from tests.cli.running import run
from tests.recipes.corpus import FOLDER, corpus
from tools import starts as maker

SCRIPT = """#!/bin/bash
ENV=$1
SIZE=$2
BATCH=$3
SEQ=${4}
torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 4 --hidden-size 1024 --num-attention-heads 8 --bf16 \\
 --vocab-size 32000 --micro-batch-size $BATCH --global-batch-size 64 --seq-length $SEQ --max-position-embeddings $SEQ
"""
PAGE = """# How to start it
    sh train.sh dsw
```bash
cd /workspace/examples/abacus
sh train.sh  \\
dsw  \\
8B   \\
2 \\
4096
sh train.sh dsw 8B 1 8192
sh elsewhere.sh 1 2 3 4
```
"""
YAML = """MODEL_ARGS:
  --num-layers: 6
  --hidden-size: 1024
  --num-attention-heads: 8
  --vocab-size: 32000
  --seq-length: ${SEQ_LEN}
  --max-position-embeddings: 8192
  --micro-batch-size: ${MBS}
  --global-batch-size: ${GBS}
  --tensor-model-parallel-size: ${TP}
  --pipeline-model-parallel-size: ${PP}
  --moe-token-dispatcher-type: ${MOE_TOKEN_DISPATCHER}
  --bf16: true
"""
CONF = """declare -A CONFIGS=(
    # MODEL: TP PP EP CP VPP MBS GBS LAYERS DISPATCHER GROUPED_GEMM NNODES RUN_TIME PRETRAIN SLEN DATASET
    [Abacus]="  2  4  1  1  1   2   256   6    alltoall     true       3     00:20:00    0     4096  Custom  2 2"
    [Virtual]=" 2  2  1  1  3   2   256   6    alltoall     true       1     00:20:00    0     4096  Custom"
    [Absent]="  2  2  1  1  3   2   256   6    alltoall     true       1     00:20:00    0     4096  Custom"
)
"""


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout of two frameworks, and the table made of it."""
    for name, text in {
        "examples/abacus/train.sh": SCRIPT,
        "examples/abacus/README.md": PAGE,
        "model_configs/benchmarking/Abacus.yaml": YAML,
        "model_configs/benchmarking/Virtual.yaml": YAML,
        "runtime_configs/benchmarking/runtime.conf": CONF,
    }.items():
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
    table = tmp_path / "starts.csv"
    table.write_text(",".join(launch.COLUMNS) + "\n", encoding="utf-8")
    monkeypatch.setattr(launch, "TABLE", table)
    monkeypatch.setattr(maker, "TABLE", table)
    assert remade("Pai-Megatron-Patch", tmp_path) == 1
    assert remade("Megatron-MoE-ModelZoo", tmp_path) == 2
    return tmp_path


@pytest.fixture(autouse=True)
def _forget() -> object:
    yield
    launch._starts.cache_clear()


def remade(framework: str, checkout: Path, version: str = "0123456789") -> int:
    """Make a framework's part of the table anew; how many starts it has."""
    launch._starts.cache_clear()
    return maker.merge(framework, checkout, version)


def said(recipe: Recipe) -> list[str]:
    return [remark.message for remark in recipe.remarks if remark.rule == "example-arguments"]


def unknown(recipe: Recipe) -> set[str]:
    return {unknown.name for unknown in recipe.unknowns}


def test_a_script_starts_as_its_page_says(checkout: Path) -> None:
    (recipe,) = read_recipe(checkout / "examples/abacus/train.sh")
    assert (recipe.seq_length, recipe.unknowns) == (4096, ())
    assert recipe.layout is not None
    assert recipe.layout.micro_batch_size == 2
    page = "started as examples/abacus/README.md of Pai-Megatron-Patch (0123456) says first:"
    assert said(recipe) == [f"{page} SIZE=8B BATCH=2 SEQ=4096"]
    (recipe,) = read_recipe(checkout / "examples/abacus/train.sh", {"SEQ": "1024"})
    assert recipe.seq_length == 1024
    # What the user tells is not what the page says.
    assert said(recipe) == [f"{page} SIZE=8B BATCH=2"]


def test_what_the_page_exports_before_counts(checkout: Path) -> None:
    file = checkout / "examples/abacus/train.sh"
    option = 'if [ -n "${FIRST}" ]; then MORE="--decoder-first-pipeline-num-layers ${FIRST}"; fi\n'
    text = SCRIPT.replace("torchrun", f"{option}torchrun").replace(
        "--bf16", "--bf16 --pipeline-model-parallel-size 2 $MORE"
    )
    file.write_text(text, encoding="utf-8")
    lines = "export FIRST=5\n```\n```bash\nexport FIRST=1\nexport OTHER=2\ncd /workspace/examples/abacus"
    page = PAGE.replace("cd /workspace/examples/abacus", lines)
    (checkout / "examples/abacus/README.md").write_text(page, encoding="utf-8")
    remade("Pai-Megatron-Patch", checkout)
    (recipe,) = read_recipe(file)
    assert recipe.layout is not None
    assert recipe.layout.stage_layers == (1, 3)
    assert said(recipe)[0].endswith("says first: FIRST=1 SIZE=8B BATCH=2 SEQ=4096")
    (recipe,) = read_recipe(file, {"FIRST": "3"})
    assert recipe.layout is not None
    assert recipe.layout.stage_layers == (3, 1)
    assert "FIRST" not in said(recipe)[0]


def test_a_line_of_the_page_with_other_words_than_the_script_reads_is_none(checkout: Path) -> None:
    (checkout / "examples/abacus/README.md").write_text(PAGE.replace("8B   \\\n", ""), encoding="utf-8")
    assert remade("Pai-Megatron-Patch", checkout) == 1
    (recipe,) = read_recipe(checkout / "examples/abacus/train.sh")
    assert recipe.seq_length == 8192


@pytest.mark.parametrize(
    ("listed", "starts"),
    [
        ("ENV=$1\nROOT=$2\nSIZE=$3\nBATCH_SIZE=$4\nSEQ=${5}", 1),  # the script has dropped one, and renamed one
        ("ENV=$1\nROOT=$2\nSIZE=$3\nBATCH=$4", 0),  # another number of words
        ("ENV=$1\nROOT=$2\nSEQ=$3\nSIZE=$4\nBATCH=${5}", 0),  # another order
    ],
)
def test_a_page_that_lists_arguments_by_name_tells_those_that_a_script_kept(
    listed: str, starts: int, checkout: Path
) -> None:
    page = f"train.sh takes\n{listed}\n```\nsh train.sh dsw ../.. 8B 2 4096\n"
    (checkout / "examples/abacus/README.md").write_text(page, encoding="utf-8")
    assert remade("Pai-Megatron-Patch", checkout) == starts
    (recipe,) = read_recipe(checkout / "examples/abacus/train.sh")
    assert recipe.seq_length == (4096 if starts else None)
    assert recipe.layout is None or recipe.layout.micro_batch_size == 2


def test_a_script_without_names_for_its_arguments_tells_how_many(checkout: Path) -> None:
    file = checkout / "examples/abacus/train.sh"
    names = {"$BATCH": "$3", "$SEQ": "$4", "ENV=$1": "", "SIZE=$2": "", "BATCH=$3": "", "SEQ=${4}": ""}
    text = SCRIPT
    for name, other in reversed(names.items()):
        text = text.replace(name, other)
    file.write_text(text, encoding="utf-8")
    remade("Pai-Megatron-Patch", checkout)
    (recipe,) = read_recipe(file)
    assert recipe.seq_length == 4096
    assert said(recipe)[0].endswith("(0123456) says, with 4 arguments")


def test_a_comment_of_the_script_stands_above_the_page(checkout: Path) -> None:
    file = checkout / "examples/abacus/train.sh"
    file.write_text(SCRIPT.replace("ENV=", "# sh train.sh dsw 8B 1 2048\nENV="), encoding="utf-8")
    remade("Pai-Megatron-Patch", checkout)
    (recipe,) = read_recipe(file)
    assert recipe.seq_length == 2048


@pytest.mark.parametrize(
    ("old", "new", "missing"),
    [
        ("BATCH=$3\nSEQ=${4}", "BATCH=${4}\nSEQ=$3", {"3", "4"}),  # as many arguments, in another order
        ("${4}", "${5}", {"3", "5"}),
        ("--bf16", "--fp16", {"3", "4"}),  # the same arguments, in a version that nobody documented
    ],
)
def test_another_text_of_that_name_is_not_started_so(old: str, new: str, missing: set[str], checkout: Path) -> None:
    file = checkout / "examples/abacus/train.sh"
    file.write_text(SCRIPT.replace(old, new), encoding="utf-8")
    (recipe,) = read_recipe(file)
    assert (said(recipe), unknown(recipe)) == ([], missing)
    (result,) = check_files([str(file)], question_of({"hardware": "h100-sxm-80g"}), Gates())
    assert result.outcome == "cannot_tell"


def test_a_script_of_another_name_is_not_started_so(checkout: Path) -> None:
    file = checkout / "examples/abacus/tune.sh"
    file.write_text(SCRIPT, encoding="utf-8")
    (recipe,) = read_recipe(file)
    assert (said(recipe), unknown(recipe)) == ([], {"3", "4"})


def test_the_very_file_is_known_wherever_it_stands(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(checkout / "examples/abacus")
    (recipe,) = read_recipe(Path("train.sh"))
    assert recipe.seq_length == 4096
    file = checkout / "train.sh"
    file.write_bytes(SCRIPT.replace("=$2\n", "=$2  \n").encode() + b"\n")  # blanks at a line's end and below
    (recipe,) = read_recipe(file)
    assert recipe.seq_length == 4096


def test_one_text_in_two_folders_is_told_by_its_folder(checkout: Path) -> None:
    for name, text in {"train.sh": SCRIPT, "README.md": PAGE.replace("4096", "1024")}.items():
        (checkout / "examples/beads").mkdir(exist_ok=True)
        (checkout / "examples/beads" / name).write_text(text, encoding="utf-8")
    assert remade("Pai-Megatron-Patch", checkout) == 2
    for folder, length in {"abacus": 4096, "beads": 1024}.items():
        (recipe,) = read_recipe(checkout / "examples" / folder / "train.sh")
        assert recipe.seq_length == length
    (checkout / "train.sh").write_text(SCRIPT, encoding="utf-8")
    (recipe,) = read_recipe(checkout / "train.sh")
    assert unknown(recipe) == {"3", "4"}


def test_starts_of_other_commits_stay(checkout: Path) -> None:
    file = checkout / "examples/abacus/train.sh"
    file.write_text(SCRIPT.replace("--bf16", "--fp16"), encoding="utf-8")
    assert remade("Pai-Megatron-Patch", checkout, "abcdef0123") == 1
    for text, version in {SCRIPT: "0123456", SCRIPT.replace("--bf16", "--fp16"): "abcdef0"}.items():
        file.write_text(text, encoding="utf-8")
        (recipe,) = read_recipe(file)
        assert version in said(recipe)[0]


@pytest.mark.parametrize("style", ["table", "markdown", "github"])
def test_a_documented_start_is_shown_and_fails_nothing(style: str, checkout: Path) -> None:
    file = checkout / "examples/abacus/train.sh"
    answer = run("check", str(file), "--hardware", "h100-sxm-80g", "--format", style)
    assert answer.exit_code == 0, answer.stderr
    assert "says first: SIZE=8B BATCH=2 SEQ=4096" in " ".join(answer.stdout.split())


def test_a_script_starts_as_the_script_beside_it_does(checkout: Path) -> None:
    for name, text in {
        "toy/train.sh": SCRIPT,
        "toy/start.sh": '# SIZE=7B\nSIZE=8B\nTAG="x_${SIZE}"\nbash train.sh dsw $TAG 2 4096\n',
        "bare/train.sh": "if [ $1 ]; then\nexit\nfi\n"
        + SCRIPT.replace("=$2", "=1").replace("$3", "2").replace("${4}", "8"),
        "bare/README.md": "bash examples_deepspeed/bare/train.sh convert\nbash examples_deepspeed/bare/train.sh\n",
        "counted/train.sh": "while [ $# -gt 0 ]; do shift; done\n" + SCRIPT,
        "counted/README.md": "bash examples_deepspeed/counted/train.sh\n",
    }.items():
        file = checkout / "examples_deepspeed" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
    assert remade("Megatron-DeepSpeed", checkout) == 2
    for folder, length in (("toy", 4096), ("bare", 8)):
        (recipe,) = read_recipe(checkout / "examples_deepspeed" / folder / "train.sh")
        assert (recipe.seq_length, recipe.unknowns) == (length, ())


def test_a_file_beside_a_configuration_states_its_vocabulary(checkout: Path) -> None:
    sizes = '"num_layers": 6, "hidden_size": 512, "num_attention_heads": 8, "seq_length": 2048, "precision": "fp16"'
    keys = f'{sizes}, "tokenizer_type": "HFTokenizer", "train_micro_batch_size_per_gpu": 32, "pipe_parallel_size": 1'
    for name, text in {
        "docker/abacus-paths.yml": '{"vocab-file": "/data/20B_tokenizer.json", "save": "/data"}',
        "abacus/70M.yml": f"{{{keys}}}",
        "abacus/14M.yml": f'{{{keys}, "vocab_file": "/data/other.json"}}',
    }.items():
        file = checkout / "configs" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
    assert remade("GPT-NeoX", checkout) == 1
    (recipe,) = read_recipe(checkout / "configs/abacus/70M.yml")
    assert recipe.model_fields["vocab_size"] == 50304
    assert said(recipe) == [
        "beside it stands configs/docker/abacus-paths.yml of GPT-NeoX (0123456): vocab_file=20B_tokenizer.json"
    ]
    (recipe,) = read_recipe(checkout / "configs/abacus/70M.yml", {"vocab_file": "mine.json"})
    assert "vocab_size" not in recipe.model_fields


def test_a_configuration_starts_as_its_launcher_tells(checkout: Path) -> None:
    (recipe,) = read_recipe(checkout / "model_configs/benchmarking/Abacus.yaml")
    layout = recipe.layout
    assert layout is not None
    sizes = (layout.tensor_parallel, layout.pipeline_parallel, layout.micro_batch_size, recipe.global_batch_size)
    assert sizes == (2, 4, 2, 256)
    assert (recipe.nodes, recipe.seq_length, recipe.unknowns) == (3, 4096, ())
    # 6 layers on 4 ranks: the launcher adds the first and the last rank's own numbers.
    assert layout.stage_layers == (2, 1, 1, 2)
    assert "repeated-flag" not in {remark.rule for remark in recipe.remarks}
    # The dispatcher's variable is not among them: the launcher replaces the flag that it stands in.
    (message,) = said(recipe)
    assert message == (
        "started as runtime_configs/benchmarking/runtime.conf of Megatron-MoE-ModelZoo (0123456) says: "
        "TP=2 PP=4 MBS=2 GBS=256 NNODES=3 SEQ_LEN=4096 --moe-token-dispatcher-type=flex "
        "--moe-flex-dispatcher-backend=deepep --tp-comm-overlap=true --decoder-first-pipeline-num-layers=2 "
        "--decoder-last-pipeline-num-layers=2"
    )
    (recipe,) = read_recipe(checkout / "model_configs/benchmarking/Virtual.yaml")
    assert recipe.layout is not None
    assert recipe.layout.virtual_stages == 3


def test_what_the_launcher_replaces_of_a_configuration_is_named(checkout: Path) -> None:
    file = checkout / "model_configs/benchmarking/Abacus.yaml"
    file.write_text(YAML.replace("${MOE_TOKEN_DISPATCHER}", "alltoall"), encoding="utf-8")
    remade("Megatron-MoE-ModelZoo", checkout)
    (recipe,) = read_recipe(file)
    assert said(recipe)[0].endswith(", in place of the file's --moe-token-dispatcher-type=alltoall")


def test_another_configuration_of_that_name_is_untouched(checkout: Path) -> None:
    file = checkout / "model_configs/benchmarking/Abacus.yaml"
    own = {"SEQ_LEN": "2048", "MBS": "1", "GBS": "64", "TP": "4", "PP": "1", "MOE_TOKEN_DISPATCHER": "alltoall"}
    text = YAML
    for name, value in own.items():
        text = text.replace(f"${{{name}}}", value)
    file.write_text(text, encoding="utf-8")
    (recipe,) = read_recipe(file)
    assert recipe.layout is not None
    assert (recipe.layout.tensor_parallel, recipe.layout.pipeline_parallel, recipe.nodes) == (4, 1, None)
    assert (said(recipe), recipe.layout.stage_layers) == ([], ())


def test_what_the_user_tells_replaces_all_that_the_launcher_tells(checkout: Path) -> None:
    (recipe,) = read_recipe(checkout / "model_configs/benchmarking/Abacus.yaml", {"PP": "2"})
    assert said(recipe) == []
    assert unknown(recipe) >= {"TP", "MBS", "GBS", "SEQ_LEN"}


def test_the_table_names_what_it_was_made_of() -> None:
    table = [start for named in launch._starts().values() for start in named]
    assert {start.framework for start in table} == set(maker.FRAMEWORKS)
    for start in table:
        assert all(dataclasses.astuple(start))
        assert (len(start.version), len(start.digest)) == (40, 16)
    files = [(start.framework, start.version, start.file) for start in table]
    assert len(files) == len(set(files))


def test_every_start_has_a_word_for_each_argument_of_its_file() -> None:
    families = {"Pai-Megatron-Patch": "pai", "Megatron-MoE-ModelZoo": "megatron-moe-zoo"}
    public = {(row.family, row.path): row.file.read_text(encoding="utf-8") for row in corpus()}
    seen = 0
    for start in [start for named in launch._starts().values() for start in named]:
        text = public.get((families.get(start.framework, ""), start.file))
        if text is not None:
            seen += 1
            assert start.digest == launch.digest(text), start.file
            assert start.file.endswith(".yaml") or len(start.words) - len(start.exported) == parameters(text), (
                start.file
            )
    assert seen > 10


def test_a_page_states_no_number_of_nodes() -> None:
    """Zephyr-141B was trained on 4 nodes; its page shows the configuration of one node."""
    root = FOLDER.parent / "corpus2" / "huggingface+alignment-handbook"
    file = root / "recipes/zephyr-141b-A35b/orpo/config_full.yaml"
    if not file.is_file():
        pytest.skip("needs the repositories beside the checkout (SIMULATE_SHARED)")
    (checked,) = check_files([str(file)], question_of({"hardware": "a100-sxm-80g"}), Gates(), root=root)
    assert (checked.outcome, "--nodes" in checked.reasons[0]) == ("cannot_tell", True)
    (checked,) = check_files([str(file)], question_of({"hardware": "h200-sxm", "nodes": 8}), Gates(), root=root)
    assert checked.outcome == "fits"
