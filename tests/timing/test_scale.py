"""What grows with the devices, and the network of a booked cluster: options over a spec."""

from typing import Any

import pytest

from simulator.api import estimate
from simulator.errors import InputError
from simulator.question.specs.catalogue import load_hardware

GBIT = 1e9 / 8


def step(hardware: str = "h100-sxm-80g", devices: int = 10_240, **given: Any) -> Any:
    asked: dict[str, Any] = {"model": "llama3.1-70b", "tp": 8, "pp": 4, "global_batch_size": devices // 2}
    return estimate(hardware=hardware, devices=devices, **(asked | given)).throughput


def test_ten_thousand_devices_stay_credible() -> None:
    """Work of a device held, each doubling costs some, none of them much: 80 times the devices, not half the speed."""
    speed = [step(devices=devices).tokens_per_second_per_device for devices in (128, 640, 2560, 10_240)]
    assert speed == sorted(speed, reverse=True)
    assert speed[-1] > 0.85 * speed[0]


def test_broadcasts_go_one_after_the_other() -> None:
    """3.2 ms for every other rank that has a share; none more where sharding stays within a node."""
    one: dict[str, Any] = {
        "model": "llama3.1-8b",
        "tp": 1,
        "pp": 1,
        "global_batch_size": 1024,
        "devices": 256,
        "zero_stage": 1,
        "calibration": "none",
    }
    plain, sent = step(**one), step(**one, options={"zero_broadcasts": "true"})
    # Under ZeRO 1 gradients are reduced to all ranks, too.
    assert sent.step_seconds - plain.step_seconds > 255 * 3.2e-3
    for stage, pays in ((0, 0), (2, 255), (3, 0)):
        asked = one | {"zero_stage": stage, "framework": "torch"}
        without, with_them = (step(**asked, options={"zero_broadcasts": word}) for word in ("false", "true"))
        assert with_them.step_seconds - without.step_seconds == pytest.approx(pays * 3.2e-3)
    inside: dict[str, str] = {"zero_broadcasts": "true", "sharding_degree": "8"}
    asked = one | {"zero_stage": 2, "framework": "torch"}
    beside = step(**asked, options={"sharding_degree": "8"})
    assert step(**asked, options=inside).step_seconds - beside.step_seconds == pytest.approx(7 * 3.2e-3)


def test_the_network_of_a_question_takes_the_place_of_the_spec_s() -> None:
    spec = load_hardware("h100-sxm-80g@network=200Gbit/s")
    assert spec.links[-1].bandwidth_bytes_per_second == pytest.approx(200 * GBIT)
    assert spec.links[:-1] == load_hardware("h100-sxm-80g").links[:-1]
    booked = load_hardware("h100-sxm-80g@network=400Gbit/s@leaf=32@oversubscription=4")
    leaf, spine = booked.links[-2:]
    assert (leaf.devices, spine.devices) == (256, None)
    assert leaf.bandwidth_bytes_per_second == pytest.approx(400 * GBIT)
    assert spine.bandwidth_bytes_per_second == pytest.approx(100 * GBIT)


@pytest.mark.parametrize(
    "texts",
    [
        ("@network=800Gbit/s", "", "@oversubscription=2", "@oversubscription=8"),
        ("@leaf=4", "@leaf=4@oversubscription=8", "@leaf=4@oversubscription=64"),
        ("@leaf=64", "@leaf=64@oversubscription=8"),
    ],
)
def test_less_network_is_no_faster(texts: tuple[str, ...]) -> None:
    given: dict[str, Any] = {"devices": 512, "tp": 1, "pp": 1, "model": "llama3.1-8b", "global_batch_size": 512}
    options = {"overlap_grad_reduce": "false", "overlap_param_gather": "false"}
    seconds = [step(f"h100-sxm-80g{text}", **given, options=options).step_seconds for text in texts]
    assert seconds == sorted(seconds)
    # A leaf that holds all nodes leaves nothing to divide.
    assert (seconds[0] < seconds[-1]) == ("leaf=64" not in texts[0])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("@netwrok=200Gbit/s", "network"),
        ("@network=fast", "bandwidth"),
        ("@oversubscription=0.5", "from 1 to 100"),
        ("@leaf=1", "leaf must be 2 to"),
        ("@leaf=2@leaf=4", "once at most"),
    ],
)
def test_errors_of_a_network_name_the_word(text: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        load_hardware(f"h100-sxm-80g{text}")


def test_groups_of_nodes_may_differ_in_network() -> None:
    found = estimate(
        model="llama3.1-8b", hardware="h800-sxm-80g@network=100Gbit/s:1,bi150-64g:1x8", pp=2, global_batch_size=64
    )
    assert found.throughput.step_seconds > 0
