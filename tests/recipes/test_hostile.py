"""Any file is answered within one budget of work, the same way every time; what it takes in seconds is a benchmark."""

from pathlib import Path

import pytest

from simulator.budget import MAXIMUM_WORK, SpentError, charge, limited
from simulator.errors import InputError, NoRecipeError, SimulateError, UnsupportedError
from simulator.recipes.readers.read import read_recipe
from simulator.recipes.shell.script import read_script
from tests.recipes.hostile import FILES
from tests.recipes.seeds import FOLDER

GIVEN = FOLDER.parent / "hostile"


def work_of(file: Path) -> tuple[int, SimulateError | None]:
    """Work spent on a file, and the error that it ends with."""
    with limited(str(file)) as budget:
        try:
            read_recipe(file)
        except SimulateError as error:
            return budget.spent, error
    return budget.spent, None


@pytest.mark.parametrize("name", FILES)
def test_files_that_take_long(name: str, tmp_path: Path) -> None:
    text, wanted = FILES[name]
    file = tmp_path / name
    file.write_text(text, encoding="utf-8")
    work, error = work_of(file)
    assert work <= MAXIMUM_WORK + 1
    if wanted == "refused":
        assert isinstance(error, InputError)
        assert not isinstance(error, NoRecipeError)
        assert str(error).startswith(str(file))
    else:
        assert error is None or isinstance(error, NoRecipeError | UnsupportedError), error
        assert work < MAXIMUM_WORK


@pytest.mark.skipif(not GIVEN.is_dir(), reason="needs hostile/ of the shared folder (SIMULATE_SHARED)")
def test_files_that_were_given() -> None:
    files = sorted(GIVEN.iterdir())
    assert files
    for file in files:
        work, error = work_of(file)
        assert work <= MAXIMUM_WORK + 1, file
        assert error is None or len(str(error).splitlines()) == 1


def test_real_recipes_take_a_small_part_of_the_budget() -> None:
    folder = FOLDER.parent / "corpus" / "files"
    if not folder.is_dir():
        pytest.skip("needs corpus/ of the shared folder (SIMULATE_SHARED)")
    files = sorted(file for file in folder.rglob("*") if file.is_file())
    assert max(work_of(file)[0] for file in files[::14]) < MAXIMUM_WORK / 10


def test_a_budget_that_is_spent_stays_spent() -> None:
    with limited("a.sh") as budget:
        charge(MAXIMUM_WORK)
        for _ in range(2):
            with pytest.raises(SpentError, match=r"a\.sh: takes more work"):
                charge(1)
        with limited("b.json") as inner:
            assert inner is budget
    charge(MAXIMUM_WORK + 1)  # nothing is being read


def test_what_a_match_decides_is_not_known() -> None:
    text = "X=tp4\n" + "\n".join(
        f"if [[ $X =~ {pattern} ]]; then A{n}=1; else A{n}=0; fi"
        for n, pattern in enumerate(["^tp[[:digit:]]+$", "^(pp|tp)4", "^T", '^"t.4"$', "^$", "[0-9]{2}"])
    )
    text += "\nexport A0 A1 A2 A3 A4 A5\ntorchrun train.py"
    (launch,) = read_script(text, "x.sh", {}, {}).launches
    assert not any(launch.environment[f"A{n}"].known for n in range(6))
