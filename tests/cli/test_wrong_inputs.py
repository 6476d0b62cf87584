"""Wrong inputs of every command, as people make them: one line says what is wrong, and the exit code is right.

`wrong_inputs.csv` has a command line a row, its exit code, and what the line must say. Its files are made here: empty,
binary, cut short, or of another kind than is asked for.
"""

import csv
import shlex
from collections import defaultdict
from pathlib import Path

import pytest

from tests.cli.running import run

_ROWS: dict[str, list[dict[str, str]]] = defaultdict(list)
with Path(__file__).with_name("wrong_inputs.csv").open(encoding="utf-8", newline="") as _stream:
    for _row in csv.DictReader(_stream):
        _ROWS[_row["command"].split(" ", 1)[0]].append(_row)
_LEAST = 25
"""Fewest wrong inputs of a command."""
_TEXTS = {
    **dict.fromkeys((f"empty{suffix}" for suffix in ("", ".json", ".yaml", ".csv", ".sh")), ""),
    "list.json": "[1]",
    "cut.json": '{"a": ',
    "nan.json": '{"model_type":"llama","hidden_size":NaN}',
    "deep.json": "[" * 100_000,
    "t.csv": "foo,bar\n1,2\n",
    "x.jsonl": '{"a":1}\n',
    "q.yaml": "model: llama3.2-1b\nhardware: h20\nnodes: 1\n",
    "node.yaml": "model: llama3.2-1b\nnode: 1\n",
    "model.yaml": "model: lama3.2-1b\n",
    "hardware.yaml": "model: llama3.2-1b\nhardware: hh100\n",
    "length.yaml": "model: llama3.2-1b\nseq_length: 8G\n",
    "negative.yaml": "model: llama3.2-1b\nnodes: [-1]\n",
    "infinite.yaml": "model: llama3.2-1b\nnodes: .inf\n",
    "precision.yaml": "model: llama3.2-1b\nprecision: bfloat16\n",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("wrong")
    for name, text in _TEXTS.items():
        (made / name).write_text(text, encoding="utf-8")
    for suffix in ("", ".json", ".yaml", ".csv", ".sh", ".txt", ".log"):
        (made / f"bin{suffix}").write_bytes(bytes(range(256)) * 20)
    (made / "dir").mkdir()
    return made


@pytest.mark.parametrize("command", sorted(_ROWS))
def test_a_wrong_input_is_one_line(command: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    assert len(_ROWS[command]) >= _LEAST
    for row in _ROWS[command]:
        words = shlex.split(row["command"])
        answer = run(*words)
        said = answer.stderr or answer.stdout
        assert answer.exit_code == int(row["code"]), (words, said)
        # A file that `check` cannot read is a verdict; all else is one line.
        assert answer.stderr.count("\n") == (0 if row["says"] == "unreadable" else 1), (words, answer.stderr)
        assert "Traceback" not in said
        assert "internal error" not in said
        assert all(part in said for part in row["says"].split(" ... ")), (words, said, row["says"])


def test_every_command_has_wrong_inputs() -> None:
    from simulator.show.cli.main import cli  # noqa: PLC0415  as late as the tests that run it

    assert set(_ROWS) == set(cli.commands)
