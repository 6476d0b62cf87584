"""Variables that a command passes to the script or text that it starts, and those that it keeps from it."""

from pathlib import Path

import pytest

from simulator.errors import InputError, UndecidedError
from simulator.question.recipe import Recipe
from simulator.recipes.readers.read import read_recipe
from tests.recipes.test_megatron import BASE

FLAGS = " ".join(BASE.replace("--micro-batch-size 1", "").split())
INNER = f"torchrun --nproc_per_node 8 pretrain_gpt.py {FLAGS} --micro-batch-size ${{MBS:-4}}\n"


def read(folder: Path, text: str) -> Recipe:
    (folder / "inner.sh").write_text(INNER, encoding="utf-8")
    file = folder / "run.sh"
    file.write_text(f"{text}\n", encoding="utf-8")
    (recipe,) = read_recipe(file, {})
    return recipe


def micro_batch(folder: Path, text: str) -> int | None:
    layout = read(folder, text).layout
    assert layout is not None
    return layout.micro_batch_size


@pytest.mark.parametrize(
    "text",
    [
        "env MBS=2 bash inner.sh",
        "nohup env MBS=2 bash inner.sh",
        "env MBS=2 bash -c 'bash inner.sh'",
        "sudo MBS=2 bash inner.sh",
        "mpirun -np 1 -x MBS=2 bash inner.sh",
        "export MBS=2; mpirun -np 1 -x MBS bash inner.sh",
        "mpiexec -genv MBS 2 bash inner.sh",
        "srun --export=ALL,MBS=2 bash inner.sh",
        "srun --export A=1,MBS=2 bash inner.sh",
        "sbatch --export=ALL,A=b,MBS=2 inner.sh",
        "for m in 2; do sbatch --export=MBS=$m inner.sh; done",
        "qsub -v A=1,MBS=2 inner.sh",
        "docker run -v /a:/b -e MBS=2 image bash inner.sh",
        "docker run --env=MBS=2 image bash inner.sh",
        "export MBS=2; docker run -e MBS image bash inner.sh",
        "singularity exec --env A=1,MBS=2 image bash inner.sh",
        "export MBS=2; singularity exec image bash inner.sh",
        "APPTAINERENV_MBS=2 apptainer exec image bash inner.sh",
        'bsub -env "all, MBS=2" bash inner.sh',
        "export MBS=2; sudo -E bash inner.sh",
        "export MBS=2; srun --export=ALL bash inner.sh",
        "export MBS=2; sbatch inner.sh",
    ],
)
def test_a_variable_that_is_passed(text: str, tmp_path: Path) -> None:
    assert micro_batch(tmp_path, text) == 2


@pytest.mark.parametrize(
    "text",
    [
        "export MBS=2; env -u MBS bash inner.sh",
        "export MBS=2; env -i bash inner.sh",
        "export MBS=2; sudo bash inner.sh",
        "export MBS=2; srun --export=NONE bash inner.sh",
        "export MBS=2; sbatch --export=A=1 inner.sh",
        "export MBS=2; docker run image bash inner.sh",
        "export MBS=2; ssh host bash inner.sh",
        "bash inner.sh env MBS=2",
        "bash inner.sh -x MBS=2",
        "env MBS=2 true; bash inner.sh",
        "docker run -v MBS=2 image bash inner.sh",
    ],
)
def test_a_variable_that_is_not(text: str, tmp_path: Path) -> None:
    assert micro_batch(tmp_path, text) == 4


def test_a_value_that_only_the_run_knows(tmp_path: Path) -> None:
    recipe = read(tmp_path, "mpirun -np 1 -x MBS=$(cat size) bash inner.sh")
    assert "micro_batch_size" in {name for unknown in recipe.unknowns for name in unknown.affects}


def test_a_file_of_variables(tmp_path: Path) -> None:
    (tmp_path / "vars.env").write_text("# sizes\nA=1\nMBS=2\n", encoding="utf-8")
    assert micro_batch(tmp_path, "docker run --env-file vars.env image bash inner.sh") == 2


@pytest.mark.parametrize(
    "words",
    ["docker run --env-file other.env image", 'ray job submit --runtime-env-json=\'{"env_vars": {"MBS": "2"}}\' --'],
)
def test_variables_that_are_not_read(words: str, tmp_path: Path) -> None:
    recipe = read(tmp_path, f"{words} bash inner.sh")
    assert "not-read" in {remark.rule for remark in recipe.remarks}


@pytest.mark.parametrize("command", ["flux run -N 2 bash inner.sh", "jsrun -n 4 bash inner.sh", "aprun -n 2 inner.sh"])
def test_a_script_behind_a_command_that_is_not_known(command: str, tmp_path: Path) -> None:
    with pytest.raises(UndecidedError, match=r"run.sh:1: starts a script .*; inner.sh is to be judged by itself"):
        read(tmp_path, command)


@pytest.mark.parametrize("command", ["chmod +x inner.sh", "scp inner.sh host:", "cat inner.sh", "dos2unix inner.sh"])
def test_a_script_that_is_not_started(command: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="starts no training"):
        read(tmp_path, command)


def test_a_last_line_that_goes_on_to_nothing(tmp_path: Path) -> None:
    (tmp_path / "other.sh").write_text(f"{INNER[:-1]} \\\n", encoding="utf-8")
    assert micro_batch(tmp_path, "bash other.sh") == 4


@pytest.mark.parametrize("options", ["-X faulthandler", "-W ignore -u", "-X dev -W error::Warning", "-Xdev -Wd -B"])
def test_options_of_python_with_a_value(options: str, tmp_path: Path) -> None:
    for program in ("pretrain_gpt.py", "-m torch.distributed.run --nproc_per_node 8 pretrain_gpt.py"):
        recipe = read(tmp_path, f"python3 {options} {program} {FLAGS} --micro-batch-size 2")
        assert recipe.layout is not None
        assert recipe.layout.micro_batch_size == 2


@pytest.mark.parametrize(
    "words",
    [
        "nsys profile -o out -t cuda,nvtx",
        "conda run -n env --no-capture-output",
        "poetry run",
        "chrt -f 1",
        "flock /tmp/l",
    ],
)
def test_commands_in_front(words: str, tmp_path: Path) -> None:
    assert micro_batch(tmp_path, f"{words} {INNER}") == 4
    assert micro_batch(tmp_path, f"{words} bash inner.sh") == 4
