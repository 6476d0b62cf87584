"""Whatever a file holds, the loaders return a sound spec or raise an error of their own."""

import json
import math
import tempfile
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from simulator.cost.operations.sums import active_parameters, total_parameters
from simulator.errors import SimulateError
from simulator.question.specs.catalogue import load_hardware, load_model
from simulator.question.specs.documents import read_yaml
from simulator.question.specs.names import spec_folder
from tests.memory.counted import mtp_parameters
from tests.specs.published_configs import CONFIGS

FUZZ = settings(suppress_health_check=[HealthCheck.too_slow])
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(-3, 3),
    st.sampled_from([2**31, 2**31 + 1, 2**63, 10**40]),
    st.floats(),
    st.text(max_size=12),
    st.sampled_from(["1 GB/s", "-1 GB/s", "nan", "inf", "9e99 GiB", "0 us", "assumed", "mesh", "mla", "llama"]),
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)


def numbers(value: Any) -> list[float]:
    if isinstance(value, dict):
        return [number for item in value.values() for number in numbers(item)]
    if isinstance(value, list | tuple):
        return [number for item in value for number in numbers(item)]
    return [float(value)] if isinstance(value, int | float) else []


def attempt(load: Callable[[str], Any], suffix: str, content: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / f"file{suffix}"
        file.write_bytes(content)
        try:
            spec = load(str(file))
        except SimulateError as error:
            spec, refusal = None, str(error)
    if spec is None:
        assert len(refusal.splitlines()) == 1
        assert len(refusal) < 3000
        return
    assert all(map(math.isfinite, numbers(asdict(spec))))
    if load is load_model:
        assert 0 < active_parameters(spec, include_input_embedding=False) <= total_parameters(spec)
        assert math.isfinite(float(total_parameters(spec) + mtp_parameters(spec)))
    else:
        for link in spec.links:
            assert math.isfinite(link.bandwidth_bytes_per_second)
            assert link.bandwidth_bytes_per_second > 0


LOADERS = [(load_model, ".yaml"), (load_hardware, ".yaml"), (load_model, ".json")]


@pytest.mark.parametrize(("load", "suffix"), LOADERS)
@FUZZ
@given(content=st.binary(max_size=200))
@example(content=b"")
@example(content=b"\xef\xbb\xbf")
@example(content=b"\xed\xa0\x80")
@example(content=b"[1, 2]")
@example(content=b'"text"')
@example(content=b'{"model_type": "\\ud800"}')
@example(content=b'{"\\ud800": 1, "model_type": "llama"}')
def test_any_bytes(load: Callable[[str], Any], suffix: str, content: bytes) -> None:
    attempt(load, suffix, content)


@pytest.mark.parametrize(("load", "suffix"), LOADERS)
@FUZZ
@given(content=st.text(alphabet="abc012:{}[],-&*!<>|?'\"#%@\n\t .~\\", max_size=120))
def test_any_text_of_marks(load: Callable[[str], Any], suffix: str, content: str) -> None:
    attempt(load, suffix, content.encode())


def mutated(document: Any, data: st.DataObject) -> Any:
    """Change, drop or add one thing somewhere in a copy of `document`."""
    copy = json.loads(json.dumps(document))
    place = copy
    while True:
        keys = list(place) if isinstance(place, dict) else list(range(len(place)))
        if not keys:
            return copy
        key = data.draw(st.sampled_from(keys))
        if isinstance(place[key], dict | list) and data.draw(st.booleans()):
            place = place[key]
            continue
        action = data.draw(st.sampled_from(["change", "drop", "add"]))
        if action == "drop":
            del place[key]
        elif action == "add" and isinstance(place, dict):
            place[data.draw(st.text(max_size=8))] = data.draw(VALUES)
        else:
            place[key] = data.draw(VALUES)
        return copy


# JSON is YAML as far as these documents go, except for NaN and the like, which both loaders must refuse.
SHIPPED = [
    *[(load_model, name) for name in ("llama3-8b", "deepseek-v3", "ernie-4.5-300b-a47b")],
    *[(load_hardware, name) for name in ("ascend-910b-64g", "ascend-910c", "h20")],
]


@pytest.mark.parametrize(("load", "name"), SHIPPED)
@FUZZ
@given(data=st.data())
def test_mutated_specs(load: Callable[[str], Any], name: str, data: st.DataObject) -> None:
    folder = spec_folder("model") if load is load_model else spec_folder("hardware")
    document = read_yaml(folder / f"{name}.yaml")
    for _ in range(data.draw(st.integers(1, 3))):
        document = mutated(document, data)
    attempt(load, ".yaml", json.dumps(document).encode())


@pytest.mark.parametrize("name", CONFIGS)
@FUZZ
@given(data=st.data())
def test_mutated_configs(name: str, data: st.DataObject) -> None:
    document: Any = CONFIGS[name]
    for _ in range(data.draw(st.integers(1, 3))):
        document = mutated(document, data)
    attempt(load_model, ".json", json.dumps(document).encode())


@pytest.mark.parametrize("name", CONFIGS)
def test_no_list_is_laid_out_for_layers_that_no_model_has(name: str, tmp_path: Path) -> None:
    """Some family makes a list as long as each of these keys says: the answer is an error, not gigabytes."""
    counts = ("num_hidden_layers", "n_layer", "n_layers", "first_k_dense_replace", "moe_layer_interval")
    for key in counts:
        if key in CONFIGS[name] or key == "num_hidden_layers":
            path = tmp_path / "config.json"
            path.write_text(json.dumps(CONFIGS[name] | {key: 10**15}))
            with pytest.raises(SimulateError):
                load_model(str(path))
