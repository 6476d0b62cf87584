"""The pre-commit hook, the GitHub Action and the page that shows them."""

import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import yaml

from simulator.answers.gates import OUTCOMES
from simulator.show.forms import ANSWERS
from tests.check.recipes import EXAMPLES, ROOT
from tests.cli.running import run
from tests.docs.pages import blocks, code_words, page

PAGE = page("check.md")
CI = PAGE.split("\n## In CI\n", 1)[1]


def hook() -> dict[str, Any]:
    (found,) = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text(encoding="utf-8"))
    assert isinstance(found, dict)
    return found


@pytest.mark.parametrize(
    ("file", "taken"),
    [
        ("recipes/train.sh", True),
        ("team/recipes/llama/train.yaml", True),
        ("recipes/job.toml", True),
        ("recipes/config.json", True),
        ("jobs/train.pbs", True),
        ("jobs/train.job", True),
        ("recipes/README.md", False),
        ("scripts/train.sh", True),
        ("train.slurm", True),
        ("examples/llama/pretrain.sbatch", True),
        ("configs/sft.yml", True),
        ("train.py", False),
        ("recipes/train.shell", False),
    ],
)
def test_hook_takes_recipes(file: str, taken: bool) -> None:
    assert bool(re.search(hook()["files"], file)) == taken


def test_hook_starts_the_command(tmp_path: Path) -> None:
    assert hook()["id"] == "simulate-check"
    words = shlex.split(hook()["entry"])[1:]
    assert run(*words, "--help").exit_code == 0
    (tmp_path / "env.sh").write_text("export A=1\n", encoding="utf-8")
    assert run(*words, str(tmp_path / "env.sh"), "--hardware", "z2000").exit_code == 0
    # What cannot be judged passes, and is counted where the hook shows it.
    (tmp_path / "other.sh").write_text("xtuner train x.py\n", encoding="utf-8")
    passed = run(*words, str(tmp_path / "other.sh"), "--hardware", "z2000")
    assert passed.exit_code == 0
    assert passed.stdout.startswith("1 recipe: none judged; 1 not judged (1 not modelled); 0 failed")
    assert hook()["verbose"] is True
    large = (EXAMPLES / "llama3-8b-megatron.sh").read_text(encoding="utf-8").replace("-size 1 ", "-size 64 ")
    (tmp_path / "large.sh").write_text(large, encoding="utf-8")
    assert run(*words, str(tmp_path / "large.sh"), "--hardware", "z2000").exit_code == 1


def own_hook() -> dict[str, Any]:
    config = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8"))
    (found,) = [one for repo in config["repos"] for one in repo["hooks"] if one["id"] == "simulate-check"]
    assert isinstance(found, dict)
    return found


def test_this_repository_checks_its_own_examples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    files = [path.as_posix() for path in sorted(Path("examples/recipes").iterdir())]
    taken = [file for file in files if re.search(own_hook()["files"], file)]
    assert taken
    assert run(*shlex.split(own_hook()["entry"])[1:], *taken).exit_code == 0


def action() -> dict[str, Any]:
    found = yaml.safe_load((ROOT / "action.yml").read_text(encoding="utf-8"))
    assert isinstance(found, dict)
    return found


def test_action_takes_its_inputs_by_environment_only() -> None:
    steps = action()["runs"]["steps"]
    assert action()["runs"]["using"] == "composite"
    for step in steps:
        assert "${{" not in step.get("run", "")
        assert not step.get("run") or step["shell"] == "bash"
    given = set(re.findall(r"inputs\.([a-z-]+)", str(steps)))
    assert given == set(action()["inputs"])
    assert "--format github" in steps[-1]["run"]
    assert re.search(r' -- "\$\{files\[@\]\}"\s*$', steps[-1]["run"])


def test_action_runs_nothing_that_is_not_pinned() -> None:
    workflow = (ROOT / ".github" / "workflows" / "ci.yml").read_text(encoding="utf-8")
    uses = re.findall(r"uses: (\S+)", workflow + (ROOT / "action.yml").read_text(encoding="utf-8"))
    assert uses
    assert all(re.fullmatch(r"[\w/-]+@[0-9a-f]{40}", one) for one in uses)
    for step in action()["runs"]["steps"]:
        for command in re.findall(r"^ *python .*", step.get("run", ""), re.MULTILINE):
            assert command.strip().startswith("python -I -m ")
    pinned = (ROOT / ".github" / "action-requirements.txt").read_text(encoding="utf-8")
    names = {match[1].lower() for match in re.finditer(r"^([\w-]+)==\S+ \\\n    --hash=sha256:", pinned, re.MULTILINE)}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    needed = [*project["project"]["dependencies"], *project["build-system"]["requires"]]
    assert {re.split(r"[<>=]", one)[0] for one in needed} <= names
    assert names == set(re.findall(r"^([\w-]+)==", pinned, re.MULTILINE))


def run_action(checkout: Path, python: Path, **inputs: str) -> subprocess.CompletedProcess[str]:
    """The last step of the action, as a runner starts it."""
    shell = shutil.which("bash")
    assert shell is not None
    defaults = {name: str(one.get("default", "")) for name, one in action()["inputs"].items()}
    given = {**defaults, "hardware": "z2000", **inputs}
    env = {key.upper().replace("-", "_"): value for key, value in given.items()}
    path = f"{python.parent}{os.pathsep}{os.environ['PATH']}"
    command = [shell, "--noprofile", "--norc", "-eo", "pipefail", "-c", action()["runs"]["steps"][-1]["run"]]
    env |= {"PATH": path, "HOME": str(checkout)}
    return subprocess.run(command, cwd=checkout, env=env, capture_output=True, text=True, check=False)


def test_action_takes_the_words_of_the_base(tmp_path: Path) -> None:
    """A pull request that would quiet the gate fails, and each new word is an annotation; once merged it counts."""
    origin, checkout = tmp_path / "origin", tmp_path / "checkout"
    script = (EXAMPLES / "llama3-8b-megatron.sh").read_text(encoding="utf-8")
    wrong = script.replace("--num-layers 32", "--num-layers 99")

    def git(folder: Path, *words: str) -> None:
        names = ("-c", "user.name=a", "-c", "user.email=a@b")
        subprocess.run(["git", *names, *words], cwd=folder, check=True, capture_output=True)  # noqa: S607  of the PATH

    origin.mkdir()
    git(origin, "init", "--quiet", "--initial-branch", "main")
    (origin / ".simulate.yaml").write_text("hardware: z2000\n", encoding="utf-8")
    (origin / "run.sh").write_text(script, encoding="utf-8")
    git(origin, "add", "-A")
    git(origin, "commit", "--quiet", "-m", "right")
    git(tmp_path, "clone", "--quiet", str(origin), str(checkout))
    right = run_action(checkout, Path(sys.executable), hardware="", base_ref="main")
    assert right.returncode == 0, right.stdout + right.stderr
    (checkout / "run.sh").write_text(f"# simulate: ignore[refused] please\n{wrong}", encoding="utf-8")
    (checkout / ".simulate.yaml").write_text("hardware: z2000\nignore: {refused: please}\n", encoding="utf-8")
    quieted = run_action(checkout, Path(sys.executable), hardware="", base_ref="main")
    assert quieted.returncode == 1, quieted.stdout + quieted.stderr
    assert quieted.stdout.count("title=settings-changed") == 2
    merged = run_action(checkout, Path(sys.executable), hardware="")
    assert merged.returncode == 0, merged.stdout + merged.stderr


HOSTILE_NAMES = (
    "--model=tiny.yaml",
    "--output=x",
    "--exit-zero",
    "-q",
    "--",
    "a b.sh",
    "::error::x.sh",
    "$(touch made).sh",
)


@pytest.fixture
def hostile_checkout(tmp_path: Path) -> Path:
    """A pull request whose files are called like options and modules."""
    script = (EXAMPLES / "llama3-8b-megatron.sh").read_text(encoding="utf-8").replace("-layers 32", "-layers 99")
    folder = tmp_path / "checkout"
    (folder / "recipes").mkdir(parents=True)
    trap = "import pathlib; pathlib.Path('trapped').write_text('run')\nraise SystemExit(0)\n"
    for module in ("pip", "simulator", "click", "numpy", "yaml", "sitecustomize", "json", "tree_sitter"):
        (folder / f"{module}.py").write_text(trap, encoding="utf-8")
    for name in HOSTILE_NAMES:
        (folder / "recipes" / name).write_text(script if "x" in name or " " in name else "ls\n", encoding="utf-8")
        (folder / name).write_text("ls\n", encoding="utf-8")
    (folder / "pip.conf").write_text("[global]\nindex-url = file:///nowhere\n", encoding="utf-8")
    return folder


def test_action_on_a_hostile_checkout(hostile_checkout: Path) -> None:
    before = {path: path.read_bytes() for path in hostile_checkout.rglob("*") if path.is_file()}
    python = Path(sys.executable)
    plain = run_action(hostile_checkout, python, files="recipes/a*.sh recipes/*x.sh")
    assert "::error" in plain.stdout
    assert plain.returncode == 1
    for files in (".", "**/*", "-* recipes/*.sh"):
        found = run_action(hostile_checkout, python, files=files)
        assert found.returncode in (0, 1), found.stderr
        assert "no such option" not in found.stderr
    # Only a file's own name starts with it: no line of the log is a command that a file name made.
    assert not re.search(r"^\s*::error::x", found.stdout, re.MULTILINE)
    after = {path: path.read_bytes() for path in hostile_checkout.rglob("*") if path.is_file()}
    assert after == before
    assert run_action(hostile_checkout, python, files="none*.sh").returncode == 2


def environment(folder: Path) -> Path:
    """The interpreter of a new environment with this one's pip, which `venv` would unpack anew."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    pip = find_spec("pip")
    assert pip is not None
    assert pip.origin is not None
    (packages,) = folder.glob("lib/python*/site-packages")
    shutil.copytree(Path(pip.origin).parent, packages / "pip")
    return folder / "bin" / "python"


@pytest.mark.package
def test_action_installs_what_is_pinned(hostile_checkout: Path, tmp_path: Path) -> None:
    python = environment(tmp_path / "venv")
    shell = shutil.which("bash")
    assert shell is not None
    step = next(step for step in action()["runs"]["steps"] if "pip" in step.get("run", ""))
    env = os.environ | {"PATH": f"{python.parent}{os.pathsep}{os.environ['PATH']}", "GITHUB_ACTION_PATH": str(ROOT)}
    subprocess.run([shell, "-eo", "pipefail", "-c", step["run"]], cwd=hostile_checkout, env=env, check=True)
    assert "::error" in run_action(hostile_checkout, python, files="recipes/*").stdout
    assert not (hostile_checkout / "trapped").exists()


def test_page_shows_configuration_that_parses() -> None:
    workflow, gitlab, hooks = (yaml.safe_load(block) for block in blocks(CI, "yaml"))
    used = workflow["jobs"]["check"]["steps"][1]
    assert set(used["with"]) <= set(action()["inputs"])
    assert gitlab["recipes"]["artifacts"]["reports"] == {"junit": "recipes.xml"}
    assert hooks["repos"][0]["hooks"][0]["id"] == hook()["id"]
    command = next(line for line in gitlab["recipes"]["script"] if line.startswith("simulate"))
    assert "--format junit" in command


def test_page_says_what_its_placeholders_stand_for() -> None:
    shown = "\n".join(blocks(CI, "yaml"))
    explained = PAGE.split("\n## In CI\n", 1)[1].split("```", 1)[0]
    assert (
        set(re.findall(r"<[a-z]+>", shown)) == set(re.findall(r"<[a-z]+>", explained)) == {"<owner>", "<repo>", "<tag>"}
    )
    assert not re.search(r"OWNER|example\.com", PAGE)
    workflow, gitlab, hooks = (yaml.safe_load(block) for block in blocks(CI, "yaml"))
    assert workflow["jobs"]["check"]["steps"][1]["uses"] == "<owner>/<repo>@<tag>"
    assert gitlab["recipes"]["script"][0].endswith("/<owner>/<repo>@<tag>")
    assert (hooks["repos"][0]["repo"], hooks["repos"][0]["rev"]) == ("https://github.com/<owner>/<repo>", "<tag>")
    # `uses: ./` takes the action at the top of the repository.
    assert "`uses: ./`" in explained
    assert action()["runs"]["using"] == "composite"


def test_page_names_all_words() -> None:
    words = code_words(PAGE)
    assert set(OUTCOMES) <= words
    assert set(ANSWERS["verdicts"].formats) <= words


def commands() -> list[str]:
    return [line for block in blocks(PAGE, "sh") for line in block.splitlines() if line]


def test_commands_of_the_page_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    monkeypatch.chdir(tmp_path)
    for command in commands():
        words = shlex.split(command)
        assert words[0] == "simulate"
        files = [
            name for word in words[1:] for name in (sorted(map(str, Path().glob(word))) if "*" in word else [word])
        ]
        result = run(*files)
        assert result.exit_code in (0, 1), f"{command}: {result.stderr or result.stdout}"
