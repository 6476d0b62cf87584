"""Everything that is generated is as its generator writes it, and one command writes all of it."""

from pathlib import Path

import pytest

from tests.project.tree import ROOT, files_under
from tools import regenerate


@pytest.mark.parametrize("name", regenerate.GENERATORS)
def test_generated_files_are_current(name: str) -> None:
    for path, text in regenerate.generated(name).items():
        assert path.read_text(encoding="utf-8") == text, f"stale: python -m tools.regenerate {name}"


def test_every_generator_is_named() -> None:
    modules = {
        ".".join(path.with_suffix("").parts)
        for folder in ("tests", "tools", "benchmarks")
        for path in files_under(folder, ".py")
        if "\ndef generated() -> " in (ROOT / path).read_text(encoding="utf-8")
    }
    assert modules == set(regenerate.GENERATORS.values())


def test_a_stale_file_is_listed_and_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "page.md"
    page.write_text("old\n", encoding="utf-8")
    monkeypatch.setattr(regenerate, "ROOT", tmp_path)
    monkeypatch.setattr(regenerate, "generated", lambda _name: {page: "new\n"})
    assert regenerate.main(["types", "--check"]) == 1
    assert capsys.readouterr().out == "stale: page.md\n"
    assert page.read_text(encoding="utf-8") == "old\n"
    assert regenerate.main(["types"]) == 0
    assert capsys.readouterr().out == "written: page.md\n"
    assert page.read_text(encoding="utf-8") == "new\n"
    assert regenerate.main(["types", "--check"]) == 0


def test_an_unknown_name_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        regenerate.main(["helpp"])
    assert ended.value.code == 2
    assert "unknown: helpp; allowed are coefficients, types" in capsys.readouterr().err
