"""The oldest-dependencies job tests the lower bounds that pyproject.toml promises."""

import re
import tomllib

from tests.project.tree import ROOT


def test_oldest_requirements_are_the_lower_bounds() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    needed = [*project["dependencies"], *project["optional-dependencies"]["runner"]]
    bounds = dict(requirement.split(">=") for requirement in needed if ">=" in requirement and ";" not in requirement)
    lines = (ROOT / "tests" / "oldest-requirements.txt").read_text(encoding="utf-8").splitlines()
    pins = dict(line.split("==") for line in lines if line and not line.startswith("#"))
    assert pins == bounds


def test_the_oldest_versions_that_were_tried_are_the_lower_bounds() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    rows = re.findall(
        r"^\| ([\w-]+) \| ([\d.]+) \| ([\d.]+) \|", (ROOT / "CONTRIBUTING.md").read_text("utf-8"), re.MULTILINE
    )
    bounds: dict[str, list[str]] = {}
    for requirement in project["dependencies"]:
        name, bound = requirement.partition(";")[0].split(">=")
        bounds.setdefault(name, []).append(bound)
    assert {name: [older, newer] for name, older, newer in rows} == {
        name: [each[0], each[-1]] for name, each in bounds.items()
    }
