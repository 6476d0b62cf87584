"""The specs that docs/add-hardware-or-model.md prints load, and price layouts."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

import simulator
from simulator.question.specs.catalogue import load_hardware, load_model
from tests.docs.pages import blocks, page

PAGE = page("add-hardware-or-model.md")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The page's files, saved under the names the page gives them."""
    for block in blocks(PAGE, "yaml"):
        named = re.match(r"# (?:hardware|model): (\S+)\n", block)
        assert named, block
        (tmp_path / named[1]).write_text(block, encoding="utf-8")
    [config] = blocks(PAGE, "json")
    (tmp_path / "my-model").mkdir()
    (tmp_path / "my-model" / "config.json").write_text(config, encoding="utf-8")
    return tmp_path


def test_the_hardware_loads(folder: Path) -> None:
    spec = load_hardware(str(folder / "acme-64g.yaml"))
    assert spec.devices_per_node == 8
    assert [link.measured for link in spec.links] == [False, True]
    assert set(spec.peak_flops_per_second) == {"bf16", "fp16"}


def test_the_model_loads(folder: Path) -> None:
    spec = load_model(str(folder / "acme-moe.yaml"))
    assert (spec.num_dense_layers, sum(kind.routed for kind in spec.layers)) == (2, 22)


def test_the_configuration_loads(folder: Path) -> None:
    [config] = blocks(PAGE, "json")
    spec = load_model(str(folder / "my-model" / "config.json"))
    assert spec.name == "my-model"
    assert spec.hidden_size == json.loads(config)["hidden_size"]
    assert load_model(str(folder / "my-model")) == spec


@pytest.mark.parametrize("model", ["acme-moe.yaml", "my-model/config.json", "my-model"])
def test_they_price_layouts(folder: Path, model: str) -> None:
    question: dict[str, Any] = {"model": str(folder / model), "hardware": str(folder / "acme-64g.yaml"), "nodes": 4}
    ranking = simulator.rank(**question)
    assert ranking.counts.feasible > 0
    best = ranking.estimates[0]
    again = simulator.estimate(layout=best.layout, stack=best.stack, **question)
    assert (best.memory, best.throughput) == (again.memory, again.throughput)
    assert best.verdict == "fits"


def test_every_file_the_commands_name_is_on_the_page(folder: Path) -> None:
    for command in blocks(PAGE, "sh"):
        for path in re.findall(r"\./(\S+)", command):
            assert (folder / path).is_file(), path
