"""Calibration files: what is written is read back, and nothing that is read ends in a traceback."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import simulator
from simulator.errors import InputError, SimulateError
from simulator.evidence.calibration import apply
from simulator.evidence.calibration.store import calibration_text, read_calibration, shipped_calibration
from simulator.question.scenario.layout import Layout
from tests.calibration.pages import FOLDER, SHIPPED, shipped

LAYOUT = Layout(tensor_parallel=2, pipeline_parallel=2, data_parallel=8, sequence_parallel=True)
HARDWARE = {
    "z2000": "z2000",
    "hopper": "h100-sxm-80g",
    "ampere": "a100-sxm-80g",
    "blackwell": "b200-sxm",
    "ascend-910": "ascend-910b-64g-8",
    "cdna3": "mi300x",
    "other": "mi355x",
}


def ask(**question: Any) -> simulator.Estimate:
    return simulator.estimate(model="llama3.1-8b", layout=LAYOUT, devices=32, **question)


@pytest.mark.parametrize("family", SHIPPED)
def test_a_file_is_read_back(family: str, tmp_path: Path) -> None:
    path = tmp_path / "own.yaml"
    path.write_text(calibration_text(shipped(family)), encoding="utf-8")
    assert path.read_text(encoding="utf-8") == (FOLDER / f"{family}.yaml").read_text(encoding="utf-8")
    again = read_calibration(path)
    for part, other in ((again.memory, shipped(family).memory), (again.time, shipped(family).time)):
        assert (part is None) == (other is None)
        if part is not None and other is not None:
            assert dict(part.values) == dict(other.values)
            assert np.array_equal(part.covariance, other.covariance)


@pytest.mark.parametrize(
    ("family", "cluster", "read", "used"),
    [
        ("hopper", "z2000", ["z2000"], ["z2000", "z2000"]),
        ("hopper", "h20", ["h20", "hopper"], ["hopper", "hopper"]),
        ("cpu", None, ["cpu", "other"], ["cpu", "other"]),
    ],
)
def test_files_behind_one_that_has_both_kinds_are_not_read(
    monkeypatch: pytest.MonkeyPatch, family: str, cluster: str | None, read: list[str], used: list[str]
) -> None:
    asked: list[str] = []

    def spied(name: str) -> Any:
        asked.append(name)
        return shipped_calibration(name)

    monkeypatch.setattr(apply, "shipped_calibration", spied)
    found = apply.applied(family, None, cluster)
    assert list(dict.fromkeys(asked)) == read
    assert [found.memory, found.time] == [shipped_calibration(name) for name in used]


@pytest.mark.parametrize("family", SHIPPED)
def test_a_file_gives_the_estimate_of_the_shipped_one(family: str) -> None:
    hardware = HARDWARE[family]
    assert ask(hardware=hardware) == ask(hardware=hardware, calibration=str(FOLDER / f"{family}.yaml"))


def test_the_order_of_a_file_does_not_matter(tmp_path: Path) -> None:
    path = tmp_path / "own.yaml"
    path.write_text(yaml.safe_dump(document(), sort_keys=True), encoding="utf-8")
    assert ask(calibration=str(path)) == ask()


def test_an_unknown_coefficient_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "own.yaml"
    text = (FOLDER / "z2000.yaml").read_text(encoding="utf-8")
    path.write_text(text.replace("workspace_bytes", "workspace"), encoding="utf-8")
    with pytest.raises(InputError, match=r"memory\.coefficients\.workspace: unknown coefficient; allowed: workspace_b"):
        ask(calibration=str(path))


def test_an_edited_value_changes_the_estimate(tmp_path: Path) -> None:
    path = tmp_path / "own.yaml"
    document = yaml.safe_load((FOLDER / "z2000.yaml").read_text(encoding="utf-8"))
    document["time"]["coefficients"]["gemm_efficiency"]["value"] = 0.5
    path.write_text(yaml.safe_dump(document), encoding="utf-8")
    assert ask(calibration=str(path)).throughput.step_seconds > 1.1 * ask().throughput.step_seconds


def test_priors_have_no_interval() -> None:
    plain = ask(calibration="none")
    assert plain.memory.interval_bytes is None
    assert plain.memory.fit_probability is None
    assert plain.throughput.interval_seconds is None
    assert (plain.provenance.calibration, plain.provenance.status) == ("priors", "never")


def document(*, whole: bool = True) -> dict[str, Any]:
    """The shipped document, on demand with whole covariances, as earlier versions wrote them."""
    found: dict[str, Any] = yaml.load((FOLDER / "z2000.yaml").read_text(encoding="utf-8"), Loader=yaml.CSafeLoader)
    for part in (found["memory"], found["time"]) if whole else ():
        rows = [[float(number) for number in str(line).split()] for line in part["covariance"]]
        places = range(len(rows))
        part["covariance"] = [[rows[max(row, at)][min(row, at)] for at in places] for row in places]
    return found


def test_a_whole_covariance_is_read_as_its_lower_half(tmp_path: Path) -> None:
    file = tmp_path / "own.yaml"
    file.write_text(yaml.dump(document(), Dumper=yaml.CSafeDumper, sort_keys=False), encoding="utf-8")
    assert calibration_text(read_calibration(file)) == (FOLDER / "z2000.yaml").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("line", "said"),
    [("-1.0", "symmetric and positive"), ("one", "covariance: must be lines"), ("1 2", "covariance: must be lines")],
)
def test_a_wrong_line_of_a_covariance_is_refused(line: str, said: str, tmp_path: Path) -> None:
    wrong = document(whole=False)
    wrong["time"]["covariance"][0] = line
    file = tmp_path / "own.yaml"
    file.write_text(yaml.dump(wrong, Dumper=yaml.CSafeDumper), encoding="utf-8")
    with pytest.raises(InputError, match=said):
        ask(calibration=str(file))


def changed(path: tuple[str | int, ...], value: object) -> dict[str, Any]:
    """The shipped document with one place changed, or taken out where the value is `...`."""
    whole = document()
    place: Any = whole
    for step in path[:-1]:
        place = place[step]
    if value is ...:
        del place[path[-1]]
    else:
        place[path[-1]] = value
    return whole


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        (("family",), ..., "no 'family'"),
        (("memory", "noise"), 0.0, "memory.noise: 0 is not above 0"),
        (("time", "noise"), -1, "time.noise"),
        (("time", "noise"), 1e9, "time.noise"),
        (("memory", "coefficients"), {}, "must name the coefficients"),
        (("memory",), {"coefficients": {}, "covariance_order": []}, "at least one"),
        (("memory", "covariance_order", 0), "fragmentation", "must name the coefficients, each once"),
        (("memory", "coefficients", "gemm_efficiency"), {"value": 1}, "must name the coefficients, each once"),
        (("time", "coefficients", "gemm_efficiency", "value"), 1.5, "1.5 is outside 0.2 to 0.95"),
        (("time", "coefficients", "gemm_efficiency", "value"), "high", "not a calibration file"),
        (("time", "covariance"), [[1.0]], "finite numbers"),
        (("time", "covariance", 0, 0), -1.0, "symmetric and positive"),
        (("time", "covariance", 0, 1), 0.01, "symmetric and positive"),
        (("time", "covariance", 0, 0), 1e300, "ten times the width"),
        (("time", "covariance", 0), [1.0], "must be lines of numbers"),
        (("range", "sizes", "devices"), [], "not a calibration file"),
        (("range", "sizes", "devices"), ["nan", 8], "not a calibration file"),
        (("range", "sizes", "devices"), [1, "inf"], "not a calibration file"),
        (("range", "sizes", "devices"), [True, 8], "not a calibration file"),
        (("range",), None, "not a calibration file"),
        (("tables",), 5, "not a calibration file"),
        (("memory", "rows_left_out"), [1], "not a calibration file"),
    ],
)
def test_a_wrong_file_is_refused_in_one_line(
    path: tuple[str | int, ...], value: object, said: str, tmp_path: Path
) -> None:
    file = tmp_path / "own.yaml"
    file.write_text(yaml.dump(changed(path, value), Dumper=yaml.CSafeDumper), encoding="utf-8")
    with pytest.raises(InputError) as error:
        ask(calibration=str(file))
    assert said in str(error.value)
    assert "own.yaml" in str(error.value)


@pytest.mark.parametrize("text", ["", "5", "[]", "{", "a: &a [*a]", "family: x\nfamily: y", "\x00"])
def test_what_is_no_mapping_is_refused(text: str, tmp_path: Path) -> None:
    file = tmp_path / "own.yaml"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match=r"own\.yaml"):
        read_calibration(file)


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file"):
        ask(calibration=str(tmp_path / "none.yaml"))
    assert shipped_calibration("no-such-family") is None


def places(value: Any, path: tuple[str | int, ...] = ()) -> list[tuple[str | int, ...]]:
    """Every place of a document."""
    found = [path] if path else []
    if isinstance(value, dict):
        found += [place for key, item in value.items() for place in places(item, (*path, key))]
    elif isinstance(value, list):
        found += [place for index, item in enumerate(value[:3]) for place in places(item, (*path, index))]
    return found


SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(10**400), 10**400)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=8)
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
PLACES = places(document())


@settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(st.lists(st.tuples(st.sampled_from(PLACES), VALUES | st.just(...)), min_size=1, max_size=3))
def test_no_file_ends_in_a_traceback(tmp_path: Path, changes: list[tuple[tuple[str | int, ...], Any]]) -> None:
    whole: Any = document()
    for path, value in changes:
        try:
            place = whole
            for step in path[:-1]:
                place = place[step]
            if value is ...:
                del place[path[-1]]
            else:
                place[path[-1]] = value
        except (KeyError, IndexError, TypeError):
            continue  # an earlier change took the place away
    file = tmp_path / "own.yaml"
    file.write_text(yaml.dump(whole, Dumper=yaml.CSafeDumper), encoding="utf-8")
    try:
        found = ask(calibration=str(file))
    except SimulateError:
        return
    for interval in (found.memory.interval_bytes, found.throughput.interval_seconds):
        if interval is not None:
            assert 0.0 <= interval.low <= interval.high < float("inf")
    assert found.memory.fit_probability is None or 0.0 <= found.memory.fit_probability <= 1.0


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.text(max_size=200) | st.binary(max_size=200).map(lambda data: data.decode("latin-1")))
def test_no_text_ends_in_a_traceback(tmp_path: Path, text: str) -> None:
    file = tmp_path / "own.yaml"
    file.write_text(text, encoding="utf-8", errors="replace")
    with pytest.raises(SimulateError):
        read_calibration(file)
