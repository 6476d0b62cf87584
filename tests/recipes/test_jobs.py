"""Shell within a job's description, options of scripts that are started, files that a script changes before."""

from pathlib import Path

import pytest

from simulator.errors import UnsupportedError
from simulator.question.recipe import Recipe
from simulator.recipes.readers.read import read_recipe

FLAGS = """--tensor-model-parallel-size 2 --num-layers 16 --hidden-size 2048 --num-attention-heads 16 \\
    --seq-length 2048 --max-position-embeddings 2048 --micro-batch-size $MBS \\
    --global-batch-size 64 --bf16 --vocab-size 32000
"""
TASK = f"""num_nodes: 4
resources:
  accelerators: H100:8
envs:
  MBS: 2
setup: pip install megatron-core
run: |
  cd Megatron-LM
  torchrun --nnodes $SKYPILOT_NUM_NODES --nproc_per_node $SKYPILOT_NUM_GPUS_PER_NODE pretrain_gpt.py \\
    {FLAGS}"""
OPTIONS = f"""MBS=1
while getopts ":m:tn:" opt; do
    case "$opt" in
    m) MBS="$OPTARG" ;;
    t) MBS=8 ;;
    n) NODES="$OPTARG" ;;
    esac
done
shift $((OPTIND - 1))
torchrun --nnodes ${{NODES:-1}} --nproc_per_node ${{1:-8}} pretrain_gpt.py {FLAGS}"""


def read(folder: Path, name: str, text: str) -> Recipe:
    (folder / ".git").mkdir(exist_ok=True)
    (folder / name).write_text(text, encoding="utf-8")
    (recipe,) = read_recipe(folder / name)
    return recipe


def test_a_task_runs_on_the_machines_that_it_asks_for(tmp_path: Path) -> None:
    recipe = read(tmp_path, "task.yaml", TASK)
    assert recipe.layout is not None
    assert (recipe.dialect, recipe.nodes, recipe.devices_per_node) == ("megatron-shell", 4, 8)
    assert (recipe.layout.micro_batch_size, recipe.layout.tensor_parallel) == (2, 2)
    assert recipe.places["tp"].line == TASK[: TASK.index("--tensor-model")].count("\n") + 1


def test_a_command_in_a_list_stands_behind_its_shell(tmp_path: Path) -> None:
    command = f"MBS=4; torchrun --nproc_per_node 8 pretrain_gpt.py {FLAGS}".replace("\\\n", " ").strip()
    recipe = read(tmp_path, "run.yaml", f"image: nemo\ncommand: [bash, -c, '{command}']\n")
    assert recipe.layout is not None
    assert recipe.layout.micro_batch_size == 4


def test_what_holds_no_shell_stays_not_modelled(tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_text("script: |\n  torchrun ${{ matrix.flags }\n  python train.py\n", encoding="utf-8")
    with pytest.raises(UnsupportedError, match="a command within a configuration file"):
        read_recipe(file)


def started(words: str, folder: Path) -> Recipe:
    (folder / "tune.sh").write_text(OPTIONS, encoding="utf-8")
    head = "setup: |\n  #PBS -l walltime=02:00:00\n"
    return read(folder, "job.yaml", f"{head}run: |\n  mpiexec -n 1 ${{PBS_O_WORKDIR}}/tune.sh {words}\n")


@pytest.mark.parametrize(
    ("words", "nodes", "devices", "micro_batch_size"), [("-m 2 -n 4", 4, 8, 2), ("-t -n 2 -- 4", 2, 4, 8)]
)
def test_options_of_a_script_that_is_started(
    words: str, nodes: int, devices: int, micro_batch_size: int, tmp_path: Path
) -> None:
    recipe = started(words, tmp_path)
    assert recipe.layout is not None
    found = recipe.nodes, recipe.devices_per_node, recipe.layout.micro_batch_size
    assert found == (nodes, devices, micro_batch_size)


@pytest.mark.parametrize("words", ["-m2 -n4 2", "-tn 2 -- 4", "-m 2 -n"])
def test_options_within_a_word_are_not_known(words: str, tmp_path: Path) -> None:
    affected = {name for unknown in started(words, tmp_path).unknowns for name in unknown.affects}
    assert {"nodes", "devices_per_node", "micro_batch_size"} <= affected


RUN = "accelerate launch --num_processes 8 --use_fsdp examples/finetune.py conf.yaml\n"
FILE = "model_name_or_path: meta-llama/Llama-3.2-3B\nper_device_train_batch_size: 1\nmax_length: 512\nbf16: true\n"


@pytest.mark.parametrize(
    ("before", "is_known"),
    [
        ("", True),
        ("sed 's/512/1024/' conf.yaml\ncp conf.yaml other.yaml\n", True),
        ("grep -q bf16 conf.yaml || exit 1\n", True),
        ("sed -i 's/5[0-9]*/1024/' conf.yaml\n", False),
        ("sed -i 's/512/1024/' conf.yaml; sed -i 's/1024/512/' ./conf.yaml\n", True),
        ("yq -i '.max_length = 1024' ./conf.yaml\n", False),
        ("cp other.yaml conf.yaml\n", False),
        ("envsubst < other.yaml > conf.yaml\n", False),
        ("cat > conf.yaml <<EOF\n" + FILE + "EOF\n", True),
    ],
)
def test_a_file_that_the_script_changes_is_not_read_as_it_stands(before: str, is_known: bool, tmp_path: Path) -> None:
    (tmp_path / "conf.yaml").write_text(FILE, encoding="utf-8")
    recipe = read(tmp_path, "sft.sh", before + RUN.replace("finetune", "sft"))
    assert (recipe.seq_length == 512) == is_known
    assert is_known == (not [unknown for unknown in recipe.unknowns if unknown.name in ("conf.yaml", "other.yaml")])


@pytest.mark.parametrize(
    ("select", "command", "nodes"),
    [
        ("select=32:ncpus=8:mpiprocs=8", "sort -u $PBS_NODEFILE | wc -l", 32),
        ("select=4", "wc -l < ${PBS_NODEFILE}", 4),
        ("select=4:mpiprocs=2", "cat $PBS_NODEFILE | wc -l", 8),
        ("select=1:ncpus=8+3:ncpus=4", "sort -u $PBS_NODEFILE | wc -l", None),
    ],
)
def test_hosts_are_those_that_a_job_asks_for(select: str, command: str, nodes: int | None, tmp_path: Path) -> None:
    launch = f"torchrun --nnodes $NODES --nproc_per_node 8 pretrain_gpt.py {FLAGS}".replace("$MBS", "1")
    assert read(tmp_path, "train.sh", f"#!/bin/bash\n#PBS -l {select}\nNODES=$({command})\n{launch}").nodes == nodes


ZERO = "distributed_type: FSDP\nnum_processes: 8\nfsdp_config: {fsdp_sharding_strategy: FULL_SHARD}\n"


@pytest.mark.parametrize(("before", "is_known"), [("", True), ("sed -i s/FULL/NO/ conf.yaml\n", False)])
def test_a_configuration_of_the_launcher_is_asked_for_too(before: str, is_known: bool, tmp_path: Path) -> None:
    (tmp_path / "conf.yaml").write_text(ZERO, encoding="utf-8")
    flags = "--model_name_or_path meta-llama/Llama-3.2-3B --per_device_train_batch_size 1 --max_length 512 --bf16"
    recipe = read(tmp_path, "sft.sh", f"{before}accelerate launch --config_file conf.yaml sft.py {flags}\n")
    assert is_known == (recipe.layout is not None and recipe.layout.zero_stage == 3)


CHART = """
env:
  - name: WORLD_SIZE
    value: "{{ $root.Values.workload.gpus }}"
  - name: NNODES
    value: "{{ $nodes }}"
  {{- if .Values.workload.length }}
  - name: LENGTH
    value: {{ .Values.workload.length }}
  {{- end }}
"""
"""A template as those of charts that start Megatron-Bridge on GKE name their variables."""


def test_a_chart_beside_a_script_gives_its_variables(tmp_path: Path) -> None:
    script = tmp_path / "launcher.sh"
    words = (
        "--num-layers 8 --hidden-size 1024 --num-attention-heads 16 --max-position-embeddings 4096 --vocab-size 32000"
    )
    script.write_text(
        f"mpirun -np $WORLD_SIZE python pretrain_gpt.py {words} --seq-length $LENGTH --micro-batch-size 1 "
        "--global-batch-size 64 --bf16\n",
        encoding="utf-8",
    )
    (alone,) = read_recipe(script)
    assert {unknown.name for unknown in alone.unknowns} >= {"WORLD_SIZE", "LENGTH"}
    (tmp_path / "templates").mkdir()
    (tmp_path / "templates" / "job.yaml").write_text(CHART, encoding="utf-8")
    (tmp_path / "values.yaml").write_text("workload: {gpus: 16, length: 4096, image: null}\n", encoding="utf-8")
    (unpacked,) = read_recipe(script)
    assert unpacked.unknowns == alone.unknowns
    (tmp_path / "Chart.yaml").write_text("name: x\n", encoding="utf-8")
    (run,) = read_recipe(script)
    assert run.seq_length == 4096
    assert not run.unknowns
    (remark,) = (remark for remark in run.remarks if remark.rule == "example-arguments")
    assert remark.message == "the chart beside it says WORLD_SIZE=16 LENGTH=4096"
    (replaced,) = read_recipe(script, {"LENGTH": "2048"})
    assert replaced.seq_length == 2048
    (tmp_path / "templates" / "other.yaml").write_text(CHART.replace("workload.length", "other"), encoding="utf-8")
    (differing,) = read_recipe(script)
    assert [unknown.name for unknown in differing.unknowns] == ["LENGTH"]


COMPOSED = """
services:
  data: {image: x, environment: {MBS: "64", LENGTH: 64, ROOT: /data}}
  trainer:
    image: x
    ENVIRONMENT
    command: COMMAND
"""
STARTS = "torchrun --nproc_per_node 8 pretrain_gpt.py " + FLAGS.replace("\\\n", " ").replace("\n", " ").strip()


@pytest.mark.parametrize("environment", ["environment: {LENGTH: 2048, MBS: 3}", "environment: [LENGTH=2048, MBS=3]"])
@pytest.mark.parametrize("form", ["text", "words", "shell"])
def test_a_service_of_a_compose_file_starts_a_training(environment: str, form: str, tmp_path: Path) -> None:
    command = STARTS.replace("--seq-length 2048", "--seq-length $$LENGTH").replace("$MBS", "$$MBS")
    plain = [*STARTS.replace("$MBS", "3").split(), "--wandb-exp-name", "my run"]
    forms = {"text": f"'{command}'", "words": str(plain), "shell": str(["bash", "-c", command])}
    text = COMPOSED.replace("ENVIRONMENT", environment).replace("COMMAND", forms[form])
    run = read(tmp_path, "compose.yaml", text)
    assert (run.dialect, run.seq_length, run.devices_per_node) == ("megatron-shell", 2048, 8)
    assert run.layout is not None
    assert run.layout.micro_batch_size == 3


@pytest.mark.parametrize(
    ("environment", "size"),
    [
        ("environment: {LENGTH: 2048}", "$$MBS"),
        ("environment: {MBS: 3}", "$MBS"),
        ("environment: [MBS=3, MBS=4]", "$$MBS"),
    ],
)
def test_a_variable_that_a_service_does_not_surely_have_is_open(environment: str, size: str, tmp_path: Path) -> None:
    command = f"'{STARTS.replace('$MBS', size)}'"
    run = read(tmp_path, "compose.yaml", COMPOSED.replace("ENVIRONMENT", environment).replace("COMMAND", command))
    assert [unknown.name for unknown in run.unknowns] == ["MBS"]


@pytest.mark.parametrize(("kind", "saves"), [("FULL_STATE_DICT", "state"), ("SHARDED_STATE_DICT", "none")])
def test_how_the_launcher_s_units_are_saved(kind: str, saves: str, tmp_path: Path) -> None:
    config = ZERO.replace("FULL_SHARD", f"FULL_SHARD, fsdp_state_dict_type: {kind}")
    (tmp_path / "conf.yaml").write_text(config, encoding="utf-8")
    flags = "--model_name_or_path meta-llama/Llama-3.2-3B --per_device_train_batch_size 1 --max_length 512 --bf16"
    recipe = read(tmp_path, "sft.sh", f"accelerate launch --config_file conf.yaml sft.py {flags}\n")
    assert recipe.options["saves_on_host"] == saves
