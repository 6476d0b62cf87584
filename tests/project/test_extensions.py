"""What `CONTRIBUTING.md` says an extension takes: each kind is added to a copy of the project, asked, and counted."""

import dataclasses
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from simulator import estimate
from simulator.question.units import to_mib
from tests.project.extensions import EXTENSIONS, MIXER, Asked, Extension
from tests.project.shuttle import FRAMEWORK
from tests.project.tree import DATA_FOLDERS, ROOT

_ASK = """
import contextlib, io, json, os, sys

sys.dont_write_bytecode = True
from simulator.show.cli.main import cli

for command in json.loads(sys.argv[1]):
    out, err, status = io.StringIO(), io.StringIO(), 0
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            cli.main(command.split(), prog_name="simulate")
        except SystemExit as ended:
            status = ended.code or 0
    print(json.dumps({"status": status, "out": out.getvalue(), "err": err.getvalue()}))
"""


_REGENERATE = """
from tests.scenario.typed_fields import generated

for path, text in generated().items():
    path.write_text(text, encoding="utf-8")
"""


def _section(heading: str) -> str:
    """The worked example of CONTRIBUTING.md under a heading."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    return text.split(f"\n### {heading}\n")[1].split("\n#")[0]


def _text(asked: str) -> str:
    """The text of a new file; one that begins as a copy of another has that one's."""
    if not asked.startswith("COPY OF "):
        return asked
    first, _, rest = asked.partition("\n")
    return (ROOT / first.removeprefix("COPY OF ")).read_text(encoding="utf-8") + rest


def _added(extension: Extension, to: Path) -> set[str]:
    """Add an extension to a copy of the project; the files of the project that this touched."""
    for name in ("simulator", *DATA_FOLDERS, "examples"):
        shutil.copytree(ROOT / name, to / name)  # with what is compiled of files that stay as they are
    for name, asked in ({**extension.new, **extension.data}).items():
        (to / name).parent.mkdir(exist_ok=True)
        (to / name).write_text(_text(asked), encoding="utf-8")
    for name, edits in extension.edits.items():
        text = (to / name).read_text(encoding="utf-8")
        for old, new in edits:
            assert text.count(old) == 1, f"{name} holds this {text.count(old)} times: {old}"
            text = text.replace(old, new)
        (to / name).write_text(text, encoding="utf-8")
    if extension.generates:
        environment = {"PYTHONPATH": f"{to}{os.pathsep}{ROOT}"}
        subprocess.run([sys.executable, "-c", _REGENERATE], cwd=to, env=environment, check=True)
    return {*extension.new, *extension.edits}


def _answers(extension: Extension, folder: Path) -> list[dict[str, Any]]:
    """What one process of the extended copy answers to all questions."""
    environment = os.environ | {"PYTHONPATH": str(folder), "NO_COLOR": "1", "COLUMNS": "200"}
    done = subprocess.run(
        [sys.executable, "-c", _ASK, json.dumps([one.command for one in extension.asked])],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.parametrize("extension", [*EXTENSIONS, FRAMEWORK], ids=lambda one: one.heading)
def test_an_extension_takes_the_files_that_contributing_names(extension: Extension, tmp_path: Path) -> None:
    touched = _added(extension, tmp_path)
    named = set(re.findall(r"`((?:simulator|hardware_specs|model_specs)/[^`]+)`", _section(extension.heading)))
    assert touched == named
    assert len(touched) <= extension.most
    for asked, answer in zip(extension.asked, _answers(extension, tmp_path), strict=True):
        told = f"{asked.command}\n{answer['out']}{answer['err']}"
        assert answer["status"] == asked.status, told
        assert asked.says in answer["err" if asked.status else "out"], told
        if asked.status:
            assert answer["err"].count("\n") == 1, told
        if "--format json" in asked.command:
            is_priced_as_gpipe(answer["out"])


def test_a_framework_takes_200_lines_and_a_table() -> None:
    """As many as a framework's folder may have beside its table, in `simulator/frameworks`."""
    lines = [line for name, text in FRAMEWORK.new.items() if not name.endswith(".csv") for line in text.splitlines()]
    assert len(lines) <= 200


def is_priced_as_gpipe(answer: str) -> None:
    """The JSON of an estimate by the added schedule, beside 1F1B's."""
    added = json.loads(answer)["memory"]["stages"]
    stages = estimate(
        model="llama3.2-1b", hardware="h20", devices=2, seq_length=2048, global_batch_size=16, pp=2
    ).memory.stages
    assert [one["stage"] for one in added] == [0, 1]
    # 16 micro batches in flight on both ranks, where 1F1B has two on the first and one on the last.
    for gpipe, stage, held in zip(added, stages, (2, 1), strict=True):
        grown = gpipe["breakdown_mib"]["activations"] / to_mib(stage.parts_bytes["activations"])
        assert grown == pytest.approx(16 / held, rel=0.02)


def test_an_added_mixer_is_refused_where_its_key_value_heads_do_not_divide(tmp_path: Path) -> None:
    """Differential attention, as CONTRIBUTING.md adds a mixer: two maps over the key-value heads of grouped queries."""
    question = "--hardware h100-sxm-80g --nodes 2 --framework torch --tp 16"
    added = dataclasses.replace(
        MIXER,
        new={"simulator/cost/operations/differential.py": _DIFFERENTIAL},
        edits={name: tuple(map(_as_differential, edits)) for name, edits in MIXER.edits.items()},
        data={"differential.yaml": "COPY OF model_specs/llama3.1-8b.yaml\nmixers: [differential]\n"},
        asked=tuple(
            Asked(command=f"estimate --model {name} {question}", says="")
            for name in ("llama3.1-8b", "differential.yaml")
        ),
    )
    _added(added, tmp_path)
    plain, differential = _answers(added, tmp_path)
    for answer in (plain, differential):
        assert "refused: 1 rule broken" in answer["out"]
        assert "8 key-value heads do not divide by tensor parallel 16" in " ".join(answer["out"].split())


_DIFFERENTIAL = '''"""Differential attention: the difference of two maps of scores over the same keys and values."""

from __future__ import annotations

from simulator.cost.operations.record import Conditions
from simulator.cost.operations.attention import grouped_query
from simulator.cost.operations.record import Operation


def differential(conditions: Conditions) -> tuple[Operation, ...]:
    """The operations between the norm and the residual addition."""
    return grouped_query(conditions, mixer="differential")
'''


def _as_differential(edit: tuple[str, str]) -> tuple[str, str]:
    """An edit that adds the mixer `average`, adding this one; it attends, over heads that share keys and values."""
    old, new = edit
    return old, new.replace("average", "differential").replace('"none", "state"', '"key_value", "all"')
