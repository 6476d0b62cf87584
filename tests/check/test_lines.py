"""Hostile names and values in reports: no line of any format is theirs to begin, and no answer is lost to them."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from simulator.answers.gates import Gates
from simulator.question.origin import Place, Remark
from simulator.recipes.check.verdict import Changed, Checked, Checks, Stored
from simulator.show.forms import ANSWERS
from simulator.show.report.check import github_summary
from simulator.show.report.presentation import Presentation
from tests.check.bare import no_advice
from tests.check.junit_schema import violations
from tests.check.recipes import EXAMPLES, judged
from tests.cli.running import run

EVIL = "::error::x\n::stop-commands::y\r\x1b[31m##[group]z\u2028::debug::w\x85::add-mask::v"
PLACE = Place(EVIL, 3)
REMARK = Remark("repeated-flag", "warning", EVIL, PLACE, EVIL)
LONE = "no-utf8-\udcff.sh"


def hostile() -> tuple[Checked, ...]:
    fits, over = judged(tensor_parallel=2, sequence_parallel=True), judged()
    assert fits.estimate is not None
    named = replace(fits.estimate, model=EVIL)
    return (
        replace(fits, file=EVIL, title=EVIL, estimate=named, remarks=(REMARK,)),
        replace(
            over, file=EVIL, title=EVIL, reasons=(EVIL,), remarks=(replace(REMARK, severity="error"),), blame=PLACE
        ),
        Checked(file=EVIL, title=EVIL, outcome="unreadable", passed=False, reasons=(EVIL,), blame=PLACE),
        Checked(file=LONE, outcome="skipped", passed=True, reasons=(EVIL,)),
    )


VERDICTS = ANSWERS["verdicts"]
SHOWN = Presentation(verbosity=1)


def written(form: str) -> str:
    return VERDICTS.text(checks(), form, SHOWN)


def checks() -> Checks:
    before = Stored(outcome="fits", passed=True, device_bytes=2.0**20, step_seconds=2.0)
    changed = (Changed(file=EVIL, title=EVIL, kind="removed", before=before, after=None),)
    return Checks(results=hostile(), gates=Gates(), changed=changed, patches=True)


def commands(text: str) -> list[str]:
    """Lines that a runner of GitHub would take for a command: it passes over spaces in front."""
    return [line for line in text.splitlines() if line.strip().startswith("::") or "##[" in line]


@pytest.mark.parametrize("form", ["table", "markdown", "junit"])
def test_no_name_or_value_begins_a_line(form: str) -> None:
    text = written(form)
    assert commands(text) == []
    assert "\x1b" not in text
    text.encode("utf-8")


def test_annotations_are_our_own() -> None:
    lines = written("github").splitlines()
    assert all(line.startswith(("::error file=", "::warning file=", "3 recipes: ")) for line in lines)
    assert not any("##[" in line for line in lines)
    github_summary(checks(), SHOWN).encode("utf-8")


@pytest.mark.parametrize("form", ["json", "sarif"])
def test_machines_get_whole_json(form: str) -> None:
    text = written(form)
    text.encode("utf-8")
    # Every line of ours begins with a bracket or a quotation mark.
    assert not [line for line in text.split("\n") if line.strip().startswith("::")]
    found = json.loads(text)
    if form == "json":
        assert [result["file"] for result in found["results"]] == [EVIL, EVIL, EVIL, LONE]


def test_junit_is_what_jenkins_takes() -> None:
    root = ET.fromstring(written("junit"))  # noqa: S314  our own text
    assert list(violations(root)) == []
    # The check itself finds what is not allowed.
    root[0][0].set("line", "3")
    ET.SubElement(root[0], "failure")
    del root[0].attrib["tests"]
    assert sorted(violations(root)) == [
        "testcase: attribute line",
        "testsuite: child failure",
        "testsuite: no tests",
    ]


def odd_file(folder: Path) -> bytes:
    """A recipe whose name is no UTF-8."""
    odd = os.fsencode(folder) + b"/odd-\xff.sh"
    with open(odd, "wb") as stream:  # noqa: PTH123  a name that is no text
        stream.write((EXAMPLES / "llama3-8b-megatron.sh").read_bytes())
    return odd


@pytest.mark.parametrize("form", VERDICTS.formats)
def test_a_name_that_is_no_utf8_leaves_the_answer_whole(form: str, tmp_path: Path) -> None:
    files = (os.fsdecode(odd_file(tmp_path)), str(EXAMPLES / "llama3-8b-megatron.sh"))
    with no_advice():
        found = run("check", *files, "--hardware", "z2000", "--format", form)
    assert found.exit_code == 0, found.stderr
    shown = found.stdout_bytes.decode("utf-8")
    if form != "sarif":
        assert "llama3-8b-megatron.sh" in shown or form == "github"
    assert shown


def test_a_process_is_given_such_a_name(tmp_path: Path) -> None:
    command: list[str | bytes] = [sys.executable, "-m", "simulator", "check", odd_file(tmp_path), "--hardware", "z2000"]
    found = subprocess.run(command, capture_output=True, check=False)
    assert found.returncode == 0, found.stderr.decode("utf-8", "replace")
    assert "odd-" in found.stdout.decode("utf-8")
