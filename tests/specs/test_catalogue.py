"""Specs are found by name or path, fast, and unknown names are answered with known ones."""

import json
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from simulator import files
from simulator.errors import InputError
from simulator.question.specs import names as folders
from simulator.question.specs.catalogue import load_hardware, load_model, spec_text
from simulator.question.specs.names import hardware_names, model_names


def test_own_yaml_by_path(tmp_path: Path) -> None:
    own = tmp_path / "own.yml"
    shutil.copy(folders.spec_folder("model") / "qwen3-4b.yaml", own)
    assert load_model(str(own)) == load_model("qwen3-4b")
    shutil.copy(folders.spec_folder("hardware") / "h20.yaml", own)
    assert load_hardware(str(own)) == load_hardware("h20")


def test_a_spec_is_written_as_a_file_to_start_from(tmp_path: Path) -> None:
    own = tmp_path / "own.yaml"
    for name in hardware_names():
        own.write_text(spec_text("hardware", name), encoding="utf-8")
        assert load_hardware(str(own)) == load_hardware(name)
    booked = spec_text("hardware", "h100-sxm-80g@network=200Gbit/s@leaf=32").replace(
        "h100-sxm-80g@network", "own-network"
    )
    own.write_text(booked.replace("=", "-").replace("200Gbit/s@leaf-32", "200").replace("/s@", "-"), encoding="utf-8")
    assert load_hardware(str(own)).links[-1].bandwidth_bytes_per_second == 25e9
    keys = {"num_hidden_layers": 2, "hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4}
    keys |= {"num_key_value_heads": 2}
    config = tmp_path / "config.json"
    config.write_text(json.dumps({"model_type": "qwen3", "vocab_size": 128} | keys), encoding="utf-8")
    own.write_text(spec_text("model", str(config)), encoding="utf-8")
    assert load_model(str(own)).shape() == load_model(str(config)).shape()


def test_every_problem_of_a_file_is_told_at_once(tmp_path: Path) -> None:
    file = tmp_path / "own.yaml"
    text = spec_text("hardware", "h100-sxm-80g").replace('bf16: {value: "989 TFLOP/s"', 'bf16: {value: "989 TB"')
    text = text.replace("vendor: NVIDIA\n", "vendor: NVIDIA\nwidth: 3\n").replace("memory_bandwidth:", "memory_rate:")
    file.write_text(text, encoding="utf-8")
    with pytest.raises(InputError) as caught:
        load_hardware(str(file))
    told = str(caught.value)
    assert told.startswith(f"{file}: 4 problems: width: unknown key; memory_rate: unknown key, did you mean ")
    assert "memory_bandwidth: is missing" in told
    assert "peak_flops.bf16: compute rate '989 TB'" in told
    # What does not fit together is told together too.
    text = spec_text("hardware", "h100-sxm-80g").replace(
        '"81559 MiB", source: nvidia-smi, status: ver', '"9 GiB", source: memo, status: ver'
    )
    file.write_text(text.replace("devices: {value: 8", "devices: {value: 3"), encoding="utf-8")
    with pytest.raises(InputError) as caught:
        load_hardware(str(file))
    for part in ("exceeds memory_capacity 9 GiB", "3 devices must be a part", "'memo' is not a key of sources"):
        assert part in str(caught.value)


def test_names_are_the_files() -> None:
    assert model_names() == tuple(sorted(model_names()))
    assert "llama3.1-8b" in model_names()
    assert "z2000" in hardware_names()


def test_a_wheel_carries_the_specs_inside(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    inside = tmp_path / "simulator" / "_data" / "model_specs"
    inside.mkdir(parents=True)
    (inside / "only.yaml").touch()
    monkeypatch.setattr(files, "PACKAGE", tmp_path / "simulator")
    assert folders.model_names() == ("only",)
    assert folders.spec_file("model", "only") == inside / "only.yaml"
    assert (folders.spec_file("model", "new"), folders.shipped_name("model", "New")) == (None, None)
    (inside / "new.yaml").touch()
    assert folders.model_names() == ("new", "only"), "a file that comes is seen"
    assert folders.spec_file("model", "new") == inside / "new.yaml"
    assert folders.shipped_name("model", "New") == "new"
    assert folders.hardware_names() == ()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("llama3-8", "unknown model 'llama3-8', did you mean 'llama3-8b'?"),
        ("zzz", "unknown model 'zzz'; `simulate models` lists the shipped ones"),
        ("", "unknown model ''; `simulate models`"),
        (".", "unknown model '.', a folder without config.json; `simulate models`"),
        ("..", "unknown model"),
        ("../model_specs/llama3-8b", "a path must end in .yaml, .yml, .json, or a folder with config.json"),
        ("none.yaml", "none.yaml: no such file"),
        ("none.json", "none.json: no such file"),
        ("a\0b", "NUL"),
        ("x" * 100_000, "unknown model"),
    ],
)
def test_unknown_models(name: str, message: str) -> None:
    with pytest.raises(InputError) as caught:
        load_model(name)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_unknown_hardware() -> None:
    with pytest.raises(InputError, match="unknown hardware 'h100-sx', did you mean 'h100-sxm-80g'"):
        load_hardware("h100-sx")
    with pytest.raises(InputError, match=r"a path must end in \.yaml, \.yml$"):
        load_hardware("some/config.json")


def test_a_wrong_file_names_file_and_key(tmp_path: Path) -> None:
    text = (folders.spec_folder("hardware") / "h20.yaml").read_text(encoding="utf-8")
    own = tmp_path / "own.yaml"
    cases = {
        (
            '"4000 GB/s"',
            '"4000 GBs"',
        ): "memory_bandwidth: bandwidth '4000 GBs': unknown unit 'GBs', did you mean",
        ('"4000 GB/s"', "4000"): "memory_bandwidth.value: '4000': must be text",
        ('"4000 GB/s"', '"0 GB/s"'): "memory_bandwidth: '0 GB/s' must be greater than zero",
        (
            "status: assumed",
            "status: guess",
        ): "usable_memory.status: 'guess' is not allowed; allowed: 'verified', 'measured' or 'assumed'",
        ("status: assumed", "state: assumed"): "state: unknown key, did you mean 'status'?",
        (
            "source: msmodeling",
            "source: nobody",
        ): "devices_per_node.source: 'nobody' is not a key of sources; ",
        (
            "topology: switch",
            "topology: mesh",
        ): "device_links[0]: pair_bandwidth is given for topology 'mesh',",
        ("topology: switch", "topology: network"): "device_links[0].topology: 'network' is not allowed",
        (
            "devices: {value: 8",
            "devices: {value: 3",
        ): "device_links: 3 devices must be a part or a multiple of",
        ("devices: {value: 8", "devices: {value: 4"): "device_links must join all 8 devices of a node",
        ('"97871 MiB"', '"97 GB"'): "usable_memory 97871 MiB exceeds memory_capacity 97 GB",
    }
    for (before, after), message in cases.items():
        assert before in text
        own.write_text(text.replace(before, after, 1), encoding="utf-8")
        with pytest.raises(InputError) as caught:
            load_hardware(str(own))
        assert str(caught.value).startswith(f"{own}: ")
        assert message in str(caught.value)


def test_loading_one_pair_is_fast() -> None:
    def seconds() -> float:
        start = time.perf_counter()
        load_hardware("ascend-910b-64g")
        load_model("ernie-4.5-300b-a47b")
        return time.perf_counter() - start

    assert min(seconds() for _ in range(5)) < 0.025


def test_names_need_neither_yaml_nor_pydantic() -> None:
    code = (
        "import sys, simulator.question.specs.names as f; f.model_names(); "
        "print(sorted({'yaml', 'pydantic'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        check=True,
        capture_output=True,
        text=True,
        cwd=Path(folders.__file__).parents[3],
    )
    assert done.stdout.strip() == "[]"
