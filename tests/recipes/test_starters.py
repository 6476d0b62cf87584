"""How many processes a launch starts where `srun`, `mpirun` or `python` alone does it."""

from pathlib import Path

import pytest

from simulator.answers.gates import Gates
from simulator.errors import InputError
from simulator.question.question import question_of
from simulator.question.recipe import Recipe
from simulator.recipes.check.judge import check_files
from simulator.recipes.readers.read import read_recipe
from tests.recipes.test_megatron import BASE

TRAIN = f"python -u pretrain_gpt.py {' '.join(BASE.split())} --recompute-activations"
HEADER = "#!/bin/bash\n#SBATCH --nodes=4\n#SBATCH --ntasks-per-node=8\n"


def read(text: str, folder: Path, **settings: str) -> Recipe:
    file = folder / "run.sh"
    file.write_text(text, encoding="utf-8")
    (recipe,) = read_recipe(file, settings)
    return recipe


@pytest.mark.parametrize(
    ("text", "nodes", "devices"),
    [
        (TRAIN, 1, 1),
        (f"srun -N 2 --ntasks-per-node 8 {TRAIN}", 2, 8),
        (f"srun -n 32 -N4 {TRAIN}", 4, 8),
        (f"{HEADER}srun {TRAIN}", 4, 8),
        (f"{HEADER}srun -l --container-image x sh -c '{TRAIN}'", 4, 8),
        (f"{HEADER}srun -N 2 {TRAIN}", 2, 8),
        (f"mpirun -np 32 -npernode 8 --hostfile h {TRAIN}", 4, 8),
        (f"mpirun -np 16 --map-by ppr:8:node {TRAIN}", 2, 8),
        (f"mpiexec -n 16 -ppn 4 {TRAIN}", 4, 4),
    ],
)
def test_processes(text: str, nodes: int, devices: int, tmp_path: Path) -> None:
    recipe = read(text, tmp_path)
    assert (recipe.nodes, recipe.devices_per_node) == (nodes, devices)


def test_a_job_has_the_nodes_that_its_submission_asks_for(tmp_path: Path) -> None:
    job = f"#!/bin/bash\n#SBATCH -t 0:30:00 --exclusive --mem=0 --nodes=2 --ntasks-per-node=8\nsrun -l {TRAIN}\n"
    (tmp_path / "job.sh").write_text(job, encoding="utf-8")
    assert (read("sbatch job.sh", tmp_path).nodes, read("N=4; sbatch -N $N job.sh", tmp_path).nodes) == (2, 4)


def test_a_list_of_data_that_is_made_at_the_start_leaves_sizes_known(tmp_path: Path) -> None:
    made = "python format.py > $W/{name}.sh\nsource $W/{name}.sh\nsrun -N $N --ntasks-per-node 8 "
    assert read("N=4\n" + made.format(name="data_config") + TRAIN, tmp_path).nodes == 4
    assert read("N=4\n" + made.format(name="config") + TRAIN, tmp_path).nodes is None


@pytest.mark.parametrize("flags", ["--use-mpi", "--rank $OMPI_COMM_WORLD_RANK --world-size 16 --dist-url tcp://a:1"])
def test_one_of_many_processes_that_are_started_elsewhere(flags: str, tmp_path: Path) -> None:
    recipe = read(f"{TRAIN} {flags} --tensor-model-parallel-size 2 --pipeline-model-parallel-size 2", tmp_path)
    assert (recipe.nodes, recipe.devices_per_node) == (None, None)
    (found,) = check_files([str(tmp_path / "run.sh")], question_of({"hardware": "h100-sxm-80g"}), Gates())
    assert found.outcome == "fits"
    assert found.estimate is not None
    assert found.estimate.devices == 8


def test_a_number_of_processes_alone(tmp_path: Path) -> None:
    recipe = read(f"mpirun -np 32 --hostfile hosts {TRAIN} --tensor-model-parallel-size 4", tmp_path)
    assert (recipe.nodes, recipe.devices_per_node) == (None, None)
    assert recipe.layout is not None
    assert recipe.layout.devices == 32
    (found,) = check_files([str(tmp_path / "run.sh")], question_of({"hardware": "h100-sxm-80g"}), Gates())
    assert found.estimate is not None
    assert found.estimate.layout.devices == 32


def test_processes_that_only_the_run_knows(tmp_path: Path) -> None:
    recipe = read(f"srun {TRAIN}", tmp_path)
    affected = {unknown.name: unknown.affects for unknown in recipe.unknowns if unknown.affects}
    assert affected == {"SLURM_NNODES": ("nodes",), "SLURM_NTASKS_PER_NODE": ("devices_per_node",)}
    recipe = read(f"srun {TRAIN}", tmp_path, SLURM_NNODES="2", SLURM_NTASKS_PER_NODE="8")
    assert (recipe.nodes, recipe.devices_per_node) == (2, 8)
    recipe = read(f"mpirun -np $NP {TRAIN}", tmp_path)
    assert [unknown.affects for unknown in recipe.unknowns] == [("devices",)]


def test_a_wrong_number_of_processes(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"run\.sh:1: tasks: 'many' given; must be a whole number"):
        read(f"mpirun -np many {TRAIN}", tmp_path)
