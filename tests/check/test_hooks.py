"""The pre-commit hook, the GitHub Action and the page that shows them."""

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml

from simulator.recipes.check.verdict import OUTCOMES
from simulator.show.cli.check import CHECK_FORMATS
from tests.check.recipes import ROOT
from tests.cli.running import run
from tests.docs.pages import blocks, code_words, page

PAGE = page("check.md")


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
        ("recipes/README.md", False),
        ("scripts/train.sh", False),
        ("myrecipes/train.sh", False),
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
    assert "simulate check $FILES" in steps[-1]["run"]
    assert "--format github" in steps[-1]["run"]


def test_page_shows_configuration_that_parses() -> None:
    workflow, gitlab, hooks = (yaml.safe_load(block) for block in blocks(PAGE, "yaml"))
    used = workflow["jobs"]["check"]["steps"][1]
    assert set(used["with"]) <= set(action()["inputs"])
    assert gitlab["recipes"]["artifacts"]["reports"] == {"junit": "recipes.xml"}
    assert hooks["repos"][0]["hooks"][0]["id"] == hook()["id"]
    command = next(line for line in gitlab["recipes"]["script"] if line.startswith("simulate"))
    assert "--format junit" in command


def test_page_says_what_its_placeholders_stand_for() -> None:
    shown = "\n".join(blocks(PAGE, "yaml"))
    explained = PAGE.split("\n## In CI\n", 1)[1].split("```", 1)[0]
    assert (
        set(re.findall(r"<[a-z]+>", shown)) == set(re.findall(r"<[a-z]+>", explained)) == {"<owner>", "<repo>", "<tag>"}
    )
    assert not re.search(r"OWNER|example\.com", PAGE)
    workflow, gitlab, hooks = (yaml.safe_load(block) for block in blocks(PAGE, "yaml"))
    assert workflow["jobs"]["check"]["steps"][1]["uses"] == "<owner>/<repo>@<tag>"
    assert gitlab["recipes"]["script"][0].endswith("/<owner>/<repo>@<tag>")
    assert (hooks["repos"][0]["repo"], hooks["repos"][0]["rev"]) == ("https://github.com/<owner>/<repo>", "<tag>")
    # `uses: ./` takes the action at the top of the repository.
    assert "`uses: ./`" in explained
    assert action()["runs"]["using"] == "composite"


def test_page_names_all_words() -> None:
    words = code_words(PAGE)
    assert set(OUTCOMES) <= words
    assert set(CHECK_FORMATS) <= words


def commands() -> list[str]:
    return [line for block in blocks(PAGE, "sh") for line in block.splitlines() if line]


def test_commands_of_the_page_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    monkeypatch.chdir(tmp_path)
    for command in commands():
        words = shlex.split(command)
        assert words[0] == "simulate"
        files = [
            name for word in words[1:] for name in (sorted(map(str, Path().glob(word))) if "*" in word else [word])
        ]
        result = run(*files)
        assert result.exit_code in (0, 1), f"{command}: {result.stderr or result.stdout}"
