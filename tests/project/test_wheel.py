"""The wheel works away from the checkout: it carries the specs, and its command answers from them."""

import os
import shutil
import subprocess
import sys
import zipfile
from functools import cache
from pathlib import Path

import pytest

import simulator._version
from tests.project.tree import DATA_FOLDERS, ROOT, files_under

pytestmark = pytest.mark.package


def run(*command: str | Path, cwd: Path, pythonpath: Path | None = None) -> str:
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    if pythonpath is not None:
        env["PYTHONPATH"] = str(pythonpath)
    done = subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def build(target: str, source: Path, out: Path) -> Path:
    run(sys.executable, "-m", "hatchling", "build", "-t", target, "-d", out, cwd=source)
    [built] = out.iterdir()
    return built


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build("wheel", ROOT, tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("installed")
    pip = (sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--no-compile")
    run(*pip, "--target", target, wheel, cwd=target)
    return target


def test_wheel_carries_the_version(wheel: Path) -> None:
    assert wheel.name == f"simulate_training-{simulator._version.__version__}-py3-none-any.whl"


@pytest.mark.parametrize("folder", DATA_FOLDERS)
def test_wheel_carries_the_data(wheel: Path, folder: str) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    expected = {f"simulator/_data/{path.as_posix()}" for path in files_under(folder)}
    assert expected
    assert {name for name in names if name.startswith(f"simulator/_data/{folder}/")} == expected


def test_wheel_carries_the_manual_and_the_completions(wheel: Path) -> None:
    shared = {name.partition(".data/data/")[2] for name in zipfile.ZipFile(wheel).namelist()}
    assert {path.as_posix() for path in files_under("share")} <= shared
    assert "share/man/man1/simulate.1" in shared


def test_wheel_says_whose_figures_it_holds(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert any(name.endswith("licenses/NOTICE") for name in names)
    notice = (ROOT / "NOTICE").read_text(encoding="utf-8")
    files = {path.name for folder in DATA_FOLDERS for path in files_under(folder) if path.suffix in (".yaml", ".csv")}
    fitted = {"judged.csv", *(path.name for path in (ROOT / "calibration").glob("*.yaml"))} | {
        path.name for part in ("models", "hardware") for path in (ROOT / "calibration").rglob(f"{part}/*.yaml")
    }
    assert all(f"{name}: " in notice for name in files - fitted)


def test_wheel_carries_the_package_and_nothing_else(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    assert "simulator/py.typed" in names
    assert {name.split("/")[0].split("-")[0] for name in names} == {"simulator", "simulate_training"}


def test_wheel_is_small(wheel: Path) -> None:
    assert wheel.stat().st_size <= 2_000_000


def test_source_archive_builds_the_same_wheel(wheel: Path, tmp_path: Path) -> None:
    archive = build("sdist", ROOT, tmp_path / "sdist")
    pip = (sys.executable, "-m", "pip", "wheel", "--quiet", "--no-index", "--no-deps", "--no-build-isolation")
    run(*pip, "--wheel-dir", tmp_path / "wheel", archive, cwd=tmp_path)
    [rebuilt] = (tmp_path / "wheel").iterdir()
    assert rebuilt.read_bytes() == wheel.read_bytes()


def test_the_installed_package_is_imported(installed: Path, tmp_path: Path) -> None:
    code = "import simulator; print(simulator.__file__)"
    found = run(sys.executable, "-c", code, cwd=tmp_path, pythonpath=installed)
    assert Path(found.strip()) == installed / "simulator" / "__init__.py"


def test_the_installed_command_answers_as_python_dash_m_does(installed: Path, tmp_path: Path) -> None:
    question = ("hardware", "z2000")
    as_module = run(sys.executable, "-m", "simulator", *question, cwd=tmp_path, pythonpath=installed)
    as_script = run(installed / "bin" / "simulate", *question, cwd=tmp_path, pythonpath=installed)
    assert as_module == as_script
    assert "z2000" in as_script.lower()


READ_ONLY = """
import os, sys
from simulator.show.cli.main import cli
from simulator.question.specs import documents
parsed = []
documents.__dict__["_parsed"] = lambda file, parsed=parsed, read=documents._parsed, **how: (
    parsed.append(os.path.basename(file)), read(file, **how))[1]
cli.main(sys.argv[1:], standalone_mode=False)
print(parsed, *sorted({"yaml", "pydantic"} & set(sys.modules)))
"""


def copied(installed: Path, folder: Path) -> Path:
    """A copy to change, with what is compiled of the modules and nothing that is remembered of the specs."""
    copy = folder / "copy"
    shutil.copytree(installed, copy, ignore=lambda at, _: {"__pycache__"} if "_data" in Path(at).parts else set())
    return copy


@cache
def asked_without_writing(installed: Path, cwd: Path, *words: str) -> tuple[str, str]:
    """Answer in a process that writes nothing, and the files that it parsed with the modules that it took for that."""
    *answer, parsed = run(sys.executable, "-B", "-c", READ_ONLY, *words, cwd=cwd, pythonpath=installed).splitlines()
    return "\n".join(answer), parsed


QUESTIONS = [
    ("--model", "llama3.1-70b", "--nodes", "8"),
    ("--model", "deepseek-v3", "--hardware", "h20-96g", "--nodes", "64", "--framework", "paddle"),
    ("models",),
    ("hardware",),
]


@pytest.mark.parametrize("question", QUESTIONS)
def test_where_nothing_may_be_written_the_wheel_parses_nothing(
    question: tuple[str, ...], installed: Path, tmp_path: Path
) -> None:
    answer, parsed = asked_without_writing(installed, tmp_path, *question)
    assert parsed in ("[]", "[] pydantic")
    assert answer.splitlines() == run(sys.executable, "-m", "simulator", *question, cwd=ROOT).splitlines()


def test_an_edited_file_of_an_installed_wheel_wins(installed: Path, tmp_path: Path) -> None:
    copy = copied(installed, tmp_path)
    version = run(sys.executable, "-m", "simulator", "--version", cwd=tmp_path, pythonpath=copy)
    assert version == run(sys.executable, "-m", "simulator", "--version", cwd=ROOT)
    file = copy / "simulator/_data/model_specs/llama3.1-8b.yaml"
    text = file.read_text(encoding="utf-8")
    times = file.stat().st_atime_ns, file.stat().st_mtime_ns
    file.write_text(text.replace("_layers: 32", "_layers: 48"), encoding="utf-8")
    os.utime(file, ns=times)
    answer, parsed = asked_without_writing(copy, tmp_path, "models", "llama3.1-8b")
    assert "48" in answer
    assert parsed == "['llama3.1-8b.yaml'] pydantic yaml"
    edited = run(sys.executable, "-m", "simulator", "--version", cwd=tmp_path, pythonpath=copy)
    assert edited != version
    assert edited.endswith(", edited since it was built)\n")


@pytest.mark.parametrize("content", [b"", b"\0\0\0\xff" * 9, b"\0\0\0\x08" + b"\xff" * 99])
def test_a_spoilt_frozen_file_is_not_read(content: bytes, installed: Path, tmp_path: Path) -> None:
    copy = copied(installed, tmp_path)
    (copy / "simulator/_data/frozen.data").write_bytes(content)
    answer, parsed = asked_without_writing(copy, tmp_path, "models", "llama3.1-8b")
    assert parsed.endswith("'llama3.1-8b.yaml'] pydantic yaml")
    assert answer == asked_without_writing(installed, installed, "models", "llama3.1-8b")[0]
