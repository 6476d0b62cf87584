"""The oldest-dependencies job tests the lower bounds that pyproject.toml promises."""

import tomllib

from tests.project.tree import ROOT


def test_oldest_requirements_are_the_lower_bounds() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    needed = [*project["dependencies"], *project["optional-dependencies"]["runner"]]
    bounds = dict(requirement.split(">=") for requirement in needed if ">=" in requirement)
    lines = (ROOT / "tests" / "oldest-requirements.txt").read_text(encoding="utf-8").splitlines()
    pins = dict(line.split("==") for line in lines if line and not line.startswith("#"))
    assert pins == bounds
