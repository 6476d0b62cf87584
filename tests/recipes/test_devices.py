"""The devices that a recipe's own words name: what is taken of them, and what is asked."""

from pathlib import Path

import pytest

from simulator.answers.cases import Blocked, Case, case_of_recipe
from simulator.answers.ranking import estimate_of
from simulator.question.origin import OPTION
from simulator.question.question import Question
from simulator.question.recipe import Recipe
from simulator.question.specs.names import clusters_meant
from simulator.recipes.readers.read import read_recipe
from tests.cli.running import refusal

_LAUNCH = (
    "torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 16 --hidden-size 2048 --num-attention-heads 16 "
    "--seq-length 2048 --max-position-embeddings 2048 --micro-batch-size 1 --global-batch-size 8 --bf16 "
    "--vocab-size 32000 --train-iters 5 --tokenizer-type NullTokenizer\n"
)


def _read(folder: Path, head: str, name: str = "run.sh", tail: str = "") -> Recipe:
    file = folder / "work" / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f"{head}\n{_LAUNCH.rstrip()} {tail}\n")
    return read_recipe(file)[0]


@pytest.mark.parametrize(
    ("head", "hardware"),
    [
        ("#SBATCH --gres=gpu:h100:8", "h100"),
        ("#SBATCH --gpus-per-node=a100:4", "a100"),
        ("#SBATCH --constraint=v100-32g", "v100-sxm-32g"),
        ("#SBATCH -C v100-32g", "v100-sxm-32g"),
        ("#SBATCH -p gpu_h100", "h100"),
        ("#SBATCH -p gpu_a100_40gb", "a100-sxm-40g"),
        ("#SBATCH --gres=gpu:a100:8 --constraint=a100-40gb", "a100-sxm-40g"),
        ("#SBATCH --partition=boost_usr_prod", None),
        ("export GPU_TYPE=MI300X", "mi300x"),
        ("srun --container-image=registry/cann-910c-toolkit:8.3 true", "ascend-910c"),
        ("# export GPU_TYPE=MI300X", None),
        ("export CUDA_VISIBLE_DEVICES=0,1 NCCL_DEBUG=INFO", None),
    ],
)
def test_words_that_name_one_device_choose_it(tmp_path: Path, head: str, hardware: str | None) -> None:
    recipe = _read(tmp_path, head)
    assert recipe.hardware == hardware
    if hardware is not None:
        assert recipe.places["hardware"].line == 1
        case = case_of_recipe(recipe, Question().changed(OPTION, precision="fp16"))
        assert isinstance(case, Case)
        assert case.scenario.hardware_name == clusters_meant(hardware)[0]
        assert any("which the recipe names" in remark.message for remark in case.remarks)


@pytest.mark.parametrize(
    ("head", "tail", "maker", "choice"),
    [
        ("export ASCEND_RT_VISIBLE_DEVICES=0,1", "", "Huawei", "ascend-910c"),
        ("NPUS_PER_NODE=8", "", "Huawei", "ascend-910b-64g-8"),
        ("source /usr/local/Ascend/ascend-toolkit/set_env.sh", "", "Huawei", "ascend-910c"),
        ("", "--device npu", "Huawei", "ascend-910b-376t"),
        ("", "--device iluvatar_gpu", "Iluvatar", "bi150-32g"),
        ("export PADDLE_XCCL_BACKEND=iluvatar_gpu", "", "Iluvatar", "bi150-64g"),
        ("export HIP_VISIBLE_DEVICES=0", "", "AMD", "mi300x"),
        ("export MUSA_VISIBLE_DEVICES=0", "", "Moore Threads", ""),
    ],
)
def test_words_that_name_a_maker_ask_for_the_device(
    tmp_path: Path, head: str, tail: str, maker: str, choice: str
) -> None:
    recipe = _read(tmp_path, head, tail=tail)
    assert (recipe.hardware, recipe.maker) == (None, maker)
    blocked = case_of_recipe(recipe, Question())
    assert isinstance(blocked, Blocked)
    (asked,) = (remark for remark in blocked.missing if remark.rule == "unknown-hardware")
    assert maker in asked.message
    assert (choice or "of your own") in asked.fix
    # The user's own word counts, and one of another maker is remarked.
    other = case_of_recipe(recipe, Question().changed(OPTION, hardware="h100-sxm-80g"))
    assert isinstance(other, Case)
    assert "other-devices" in {remark.rule for remark in other.remarks if remark.severity == "warning"}
    if choice:
        same = case_of_recipe(recipe, Question().changed(OPTION, hardware=choice))
        assert isinstance(same, Case)
        assert "other-devices" not in {remark.rule for remark in same.remarks}


def test_names_of_files_count_where_no_word_does(tmp_path: Path) -> None:
    assert _read(tmp_path, "", "configs/MI300X/run.sh").hardware == "mi300x"
    assert _read(tmp_path, "", "train_a10.sh").hardware is None
    assert _read(tmp_path, "#SBATCH --gres=gpu:h200:8", "configs/MI300X/run.sh").hardware == "h200-sxm"
    ascend = "export HCCL_CONNECT_TIMEOUT=1800"
    assert _read(tmp_path, ascend, "pretrain_A3.sh").hardware == "ascend-910c"
    assert _read(tmp_path, "", "train_v100_16g.sh").hardware == "v100-sxm-16g"
    assert _read(tmp_path, "", "train_v100.sh").hardware == "v100"
    assert _read(tmp_path, ascend, "a100/run.sh").hardware is None
    assert _read(tmp_path, "export HIP_VISIBLE_DEVICES=0 ASCEND_RT_VISIBLE_DEVICES=0").maker == ""


def test_keys_of_clusters_count(tmp_path: Path) -> None:
    job = "name: a\nresources:\n  accelerators: {}\nrun: |\n  " + _LAUNCH
    (tmp_path / "sky.yaml").write_text(job.format('"A100-80GB:8"'))
    assert read_recipe(tmp_path / "sky.yaml")[0].hardware == "a100-sxm-80g"
    pod = "spec:\n  nodeSelector:\n    {}\n  containers:\n  - command: [bash, -c, '{}']\n"
    for label in ("nvidia.com/gpu.product: NVIDIA-H100-80GB-HBM3", "cloud.google.com/gke-accelerator: nvidia-gb200"):
        (tmp_path / "pod.yaml").write_text(pod.format(label, _LAUNCH.strip()))
        assert read_recipe(tmp_path / "pod.yaml")[0].hardware in {"h100-sxm-80g", "gb200-nvl72"}


def test_an_answer_says_whose_devices_the_recipe_names(tmp_path: Path) -> None:
    recipe = _read(tmp_path, "export ASCEND_RT_VISIBLE_DEVICES=0")
    script = str(tmp_path / "work" / "run.sh")
    assert "--hardware NAME, of ascend-910-32g" in refusal("explain", script)
    for hardware, said in (("h100-sxm-80g", True), ("ascend-910c", False)):
        case = case_of_recipe(recipe, Question().changed(OPTION, hardware=hardware))
        assert isinstance(case, Case)
        cautions = " ".join(estimate_of(case).provenance.cautions)
        assert ("devices of Huawei; priced on" in cautions) == said
