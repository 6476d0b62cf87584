"""Every shipped hardware spec loads, is complete and says where its numbers come from."""

import json
import math
from dataclasses import replace
from typing import Any

import pytest

from simulator.api import scenario_of
from simulator.errors import UnsupportedError
from simulator.question.specs.catalogue import load_hardware
from simulator.question.specs.documents import plain, sourced_parts, validated
from simulator.question.specs.hardware import PEAK_TYPES, HardwareSpec
from simulator.question.specs.names import hardware_names
from simulator.question.units import GIB, MIB

NAMES = {
    "z2000",
    "h100-sxm-80g",
    "h100-pcie-80g",
    "h800-sxm-80g",
    "h200-sxm",
    "h20",
    "b200-sxm",
    "b300-sxm",
    "gb200-nvl72",
    "gb300-nvl72",
    "rtx-4090",
    "rtx-5090",
    "rtx-pro-6000",
    "l40s",
    "a100-sxm-80g",
    "a100-sxm-40g",
    "a800-sxm-80g",
    "ascend-910b-64g",
    "ascend-910b-64g-8",
    "ascend-910b-280t",
    "ascend-910b-280t-32g",
    "ascend-910b-376t",
    "ascend-910c",
    "ascend-950dt",
    "bi150-64g",
    "bi150-32g",
    "bi-v100",
    "mi300x",
    "mi325x",
    "mi355x",
    "local-cpu",
    "t4",
    "v100-sxm-16g",
    "v100-sxm-32g",
    "a10",
    "a10g",
    "a40",
    "rtx-a6000",
    "rtx-3090",
    "l4",
    "gh200-96g",
    "h100-nvl-94g",
    "mi350x",
    "ascend-910-32g",
    "a100-pcie-80g",
    "a100-pcie-40g",
    "a30",
    "h200-nvl",
    "l40",
    "rtx-6000-ada",
    "rtx-a5000",
    "rtx-4080",
    "rtx-3090-ti",
    "rtx-4060-ti-16g",
    "rtx-4070-ti-super",
    "rtx-5080",
    "rtx-5070-ti",
    "l20",
    "rtx-8000",
    "titan-rtx",
    "rtx-3080-10g",
    "rtx-3080-12g",
    "rtx-3060-12g",
    "rtx-3060-8g",
    "h20-141g",
    "gh200-144g",
    "a800-sxm-40g",
    "rtx-2080-ti",
    "mi250x",
    "mi210",
}
FAMILIES = {
    "hopper",
    "ampere",
    "ampere-rtx",
    "turing",
    "volta",
    "ada",
    "blackwell",
    "blackwell-rtx",
    "ascend-910",
    "ascend-950",
    "iluvatar-bi",
    "cdna2",
    "cdna3",
    "cdna4",
    "cpu",
}

each = pytest.mark.parametrize("name", sorted(NAMES))


def test_all_are_shipped() -> None:
    assert set(hardware_names()) == NAMES


@each
def test_round_trip(name: str) -> None:
    spec = load_hardware(name)
    assert spec.name == name
    assert spec.family in FAMILIES
    assert validated(name, HardwareSpec, json.loads(json.dumps(plain(spec)))) == spec


@each
def test_values_are_positive_and_finite(name: str) -> None:
    spec = load_hardware(name)
    values = [
        spec.memory_capacity_bytes,
        spec.usable_memory_bytes,
        spec.memory_bandwidth_bytes_per_second,
        spec.host_bandwidth_bytes_per_second,
        spec.network.nic_bandwidth.amount,
        *spec.peak_flops_per_second.values(),
    ]
    for link in spec.links:
        values += [
            link.bandwidth_bytes_per_second,
            link.pair_bandwidth_bytes_per_second,
            link.latency_seconds,
        ]
    assert all(math.isfinite(value) and value > 0 for value in values)
    assert spec.usable_memory_bytes <= spec.memory_capacity_bytes


@each
def test_links_go_outwards_to_the_network(name: str) -> None:
    spec = load_hardware(name)
    *inner, network = spec.links
    spans = [link.devices for link in inner]
    assert spans == sorted(span for span in spans if span is not None)
    assert spans[-1] is not None
    assert spans[-1] >= spec.devices_per_node
    assert (network.topology, network.devices) == ("network", None)
    share = spec.network.nics_per_node.value * spec.network.nic_bandwidth.amount / spec.devices_per_node
    assert network.bandwidth_bytes_per_second == share
    for link in inner:
        if link.topology == "mesh":
            assert link.devices is not None
            expected = link.bandwidth_bytes_per_second / (link.devices - 1)
            assert link.pair_bandwidth_bytes_per_second == pytest.approx(expected)
        elif link.topology == "pcie":
            assert link.pair_bandwidth_bytes_per_second <= link.bandwidth_bytes_per_second
        else:
            assert link.pair_bandwidth_bytes_per_second == link.bandwidth_bytes_per_second


@each
def test_sources_are_used_and_explained(name: str) -> None:
    spec = load_hardware(name)
    parts = list(sourced_parts(spec))
    assert {key for _, part in parts for key in part.source} == set(spec.sources)
    for _, part in parts:
        if "assumption" in part.source:
            assert part.status == "assumed"


@each
def test_a_missing_peak_is_unsupported(name: str) -> None:
    spec = load_hardware(name)
    for precision in PEAK_TYPES:
        if precision in spec.peak_flops_per_second:
            assert spec.peak(precision) == spec.peak_flops_per_second[precision]
        else:
            with pytest.raises(UnsupportedError, match=f"'{name}' has no {precision} peak; it has: .*[bf][fp]16"):
                spec.peak(precision)


def test_an_alias_is_one_device_s() -> None:
    specs = [load_hardware(name) for name in hardware_names()]
    names = [*hardware_names(), *(alias for spec in specs for alias in spec.aliases)]
    assert len(set(names)) == len(names)
    assert all(name == name.lower() for name in names)
    known = {alias: spec.name for spec in specs for alias in spec.aliases}
    assert known["h100"] == known["p5.48xlarge"] == known["nvidia-h100-80gb-hbm3"] == "h100-sxm-80g"
    assert (known["b200"], known["gb300"], known["910b"]) == ("b200-sxm", "gb300-nvl72", "ascend-910b-64g-8")


def test_a_rack_of_trays_joins_equal_parts_of_a_job() -> None:
    rack = load_hardware("gb300-nvl72")
    assert (rack.devices_per_node, [link.devices for link in rack.links]) == (4, [72, None])
    used = {devices: rack.joined_devices(devices) for devices in (1, 4, 8, 36, 64, 72, 128, 144, 216, 256, 1152)}
    # 64 trays: 16 of each of four racks; 36: 18 of two; 54: 18 of three; 288: 18 of sixteen.
    assert used == {1: 4, 4: 4, 8: 8, 36: 36, 64: 64, 72: 72, 128: 64, 144: 72, 216: 72, 256: 64, 1152: 72}
    # A prime number of trays over one rack has no equal parts but single trays.
    assert rack.joined_devices(4 * 37) == 4
    node = load_hardware("h100-sxm-80g")
    assert {node.joined_devices(devices) for devices in (1, 8, 1024)} == {8}
    assert load_hardware("h100-sxm-80g@leaf=32").joined_devices(1024) == 8


def test_numbers_that_the_facts_single_out() -> None:
    box = load_hardware("ascend-910b-64g")
    assert box.devices_per_node == 16
    assert [(link.name, link.devices) for link in box.links] == [("hccs", 8), ("pcie", 16), ("roce", None)]
    assert box.links[0].pair_bandwidth_bytes_per_second == 28e9
    assert box.usable_memory_bytes == pytest.approx(60.96 * GIB)
    assert load_hardware("ascend-910b-64g-8").devices_per_node == 8
    chip = load_hardware("bi150-64g")
    assert (chip.devices_per_node, chip.memory_capacity_bytes) == (16, 32768 * MIB)
    assert chip.peak("bf16") == 96e12
    assert chip.links[0].pair_bandwidth_bytes_per_second == 28.4e9
    # The chip that npu-smi calls 910B4 has 32 GB, 910B4-1 has 64.
    assert load_hardware("Ascend910B4").usable_memory_bytes == pytest.approx(29.49 * GIB)
    assert load_hardware("910b4-1").usable_memory_bytes == pytest.approx(60.96 * GIB)
    bins = {"ascend-910b-280t": (20, 1.5e9), "ascend-910b-376t": (24, 1.8e9)}
    for name, (cores, clock) in bins.items():
        assert load_hardware(name).peak("bf16") == pytest.approx(cores * 8192 * clock, rel=1e-3)
    # What was measured of the bin between them is more than its cores times their clock.
    for name in ("ascend-910b-64g-8", "ascend-910b-64g"):
        assert load_hardware(name).peak("bf16") == 304.3e12 > 20 * 8192 * 1.8e9
    dies = load_hardware("ascend-910c").links
    assert [link.devices for link in dies] == [2, 768, None]
    assert load_hardware("z2000").peak("fp8") == 1979e12
    assert load_hardware("h100-sxm-80g").links[-1].bandwidth_bytes_per_second == 50e9


def test_a_changed_copy_forgets_derived_values() -> None:
    spec = load_hardware("h100-sxm-80g")
    assert len(spec.links) == 2
    assert spec.peak("fp8") > 0
    changed = replace(spec, device_links=(), peak_flops=load_hardware("a100-sxm-80g").peak_flops)
    assert len(changed.links) == 1
    assert "fp8" not in changed.peak_flops_per_second
    assert {spec, load_hardware("h100-sxm-80g")} == {spec}


@pytest.mark.parametrize(("hardware", "flash"), [("v100-sxm-32g", False), ("t4", False), ("a100-sxm-80g", True)])
def test_attention_kernels_that_a_device_lacks_are_no_default(hardware: str, *, flash: bool) -> None:
    asked: dict[str, Any] = {"model": "llama3.2-1b", "hardware": hardware, "framework": "megatron"}
    assert scenario_of(**asked).framework.flash_attention is flash
    for said in ("true", "false"):
        assert scenario_of(**asked, options={"flash_attention": said}).framework.flash_attention is (said == "true")
