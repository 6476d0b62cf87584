"""Whatever a file holds, reading it ends soon, with recipes or with one clear line."""

import time
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from simulator.errors import SimulateError
from simulator.recipes.readers.read import read_recipe
from simulator.recipes.shell.script import read_script
from tests.recipes.seeds import DATA

LONGEST_S = 10
OWN = sorted(path for path in DATA.rglob("*") if path.is_file())
SHELL = [path.read_text(encoding="utf-8") for path in OWN if path.suffix == ".sh"]
SIGNS = [
    *"\"'`$(){}[]|&;<>\\\n\t =!*?~#%é",
    "${",
    "$((",
    "))",
    "[[ ",
    " ]]",
    "<<E\n",
    "\nE\n",
    "9" * 30,
    "**",
    "? 1 : ",
]
WORDS = [
    "if ",
    "then ",
    "fi\n",
    "else ",
    "case x in ",
    "esac\n",
    "for i in ",
    "while ",
    "do ",
    "done\n",
    "f() { f; }\n",
    "eval ",
    "exit 1\n",
    "set -- a b\n",
    "shift\n",
    "unset TP\n",
    "A+=(",
    "$1",
    "${10}",
    "${!x}",
    "${x:-",
    "${x//a/b}",
    "torchrun ",
    "-m ",
    "declare -A ",
    "]=",
    "let ",
    "printf -v x ",
    "read a <<< ",
    "for ((",
    "$(echo ",
    "$(f)",
    "<<EOF\n",
    "=~ ",
    "srun bash -c '",
    'ssh h "',
    '"$@" ',
    "$EXTRA ",
    "${oc.env:",
    "${.a}",
    "???",
]
EDIT = st.tuples(st.floats(0, 1), st.integers(0, 40), st.sampled_from(["", *SIGNS, *WORDS]))
SLOW = settings(suppress_health_check=list(HealthCheck))


def edited(text: str, edits: list[tuple[float, int, str]]) -> str:
    for place, cut, sign in edits:
        at = int(place * len(text))
        text = text[:at] + sign + text[at + cut :]
    return text


def ends_well(file: Path, given_values: dict[str, str] | None = None) -> None:
    started = time.monotonic()
    try:
        recipes = read_recipe(file, given_values)
    except SimulateError as error:
        assert len(str(error).splitlines()) == 1  # noqa: PT017  both outcomes are fine
    else:
        assert recipes
    assert time.monotonic() - started < LONGEST_S


@SLOW
@given(text=st.sampled_from(SHELL), edits=st.lists(EDIT, min_size=1, max_size=6), values=st.booleans())
def test_edited_scripts(text: str, edits: list[tuple[float, int, str]], values: bool, tmp_path: Path) -> None:
    file = tmp_path / "run.sh"
    file.write_text(edited(text, edits), encoding="utf-8")
    ends_well(file, {"1": "single", "2": "14B", "3": "1", "4": "4", "5": "full"} if values else None)


@SLOW
@given(words=st.lists(st.sampled_from([*SIGNS, *WORDS, "a", "b=1", "x.py"]), max_size=40))
def test_words_in_any_order(words: list[str]) -> None:
    try:
        read_script("".join(words), "x.sh", {"a": "1"}, {})
    except SimulateError as error:
        assert str(error).startswith("x.sh")  # noqa: PT017  both outcomes are fine


@SLOW
@given(
    path=st.sampled_from([path for path in OWN if path.suffix != ".sh"]),
    edits=st.lists(
        st.tuples(st.floats(0, 1), st.integers(0, 40), st.sampled_from(["", *SIGNS, "-1", "1e999", "null"]))
    ),
)
def test_edited_documents(path: Path, edits: list[tuple[float, int, str]], tmp_path: Path) -> None:
    file = tmp_path / f"x{path.suffix}"
    file.write_text(edited(path.read_text(encoding="utf-8"), edits), encoding="utf-8")
    ends_well(file)


@SLOW
@given(data=st.binary(max_size=300), suffix=st.sampled_from([".sh", ".yaml", ".json", ".toml", ""]))
def test_any_bytes(data: bytes, suffix: str, tmp_path: Path) -> None:
    file = tmp_path / f"x{suffix}"
    file.write_bytes(data)
    ends_well(file)
