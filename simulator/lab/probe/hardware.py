"""Measured hardware spec: the nearest shipped one with the probe's figures in place of its own.

Figures that a probe cannot see keep the template's source and status; none is guessed.
"""

from __future__ import annotations

from typing import Any

import yaml

from simulator.lab.probe.summary import Rates
from simulator.lab.trainer.measured_rates import MeasuredRates
from simulator.question.specs.hardware import HardwareSpec
from simulator.question.specs.validation import validated
from simulator.question.units import GIGA, MEGA, MIB, TERA

SOURCE = "probe"


def measured_spec(template: HardwareSpec, measured: MeasuredRates, rates: Rates, date: str) -> dict[str, Any]:
    """Return the document of `template`'s hardware with measured figures in place of its own.

    Figures that the probe cannot see keep the template's values and sources: links between nodes or beyond the ranks of
    the probe, and precisions that the reference trainer lacks.
    """
    document = template.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    document["sources"] = dict(document["sources"]) | {SOURCE: _source(measured, date)}
    document["note"] = (
        f"Measured by `simulate calibrate --probe` with {measured.devices} ranks at once; "
        "rates are the best seen, so coefficients are shares of them."
    )
    document["memory_capacity"] = _known(_mib(measured.memory_bytes))
    document["usable_memory"] = _known(_mib(min(measured.usable_bytes, measured.memory_bytes)))
    document["memory_bandwidth"] = _known(_rate(rates.memory_bandwidth))
    peaks = document["peak_flops"]
    for precision, flops in rates.peak_flops.items():
        peaks[precision] = _known(f"{flops / TERA:.4g} TFLOP/s")
    if rates.host_bandwidth is not None:
        document["host_bandwidth"] = _known(_rate(rates.host_bandwidth))
    elif template.family == "cpu":
        document["host_bandwidth"] = _known(_rate(rates.memory_bandwidth))
    if template.family == "cpu":
        # A device of a processor is a rank: the machine has as many as took part.
        _set_ranks(document, measured.devices)
    if rates.link is not None:
        _measure_link(document, measured.devices, rates)
    return document


def _set_ranks(document: dict[str, Any], devices: int) -> None:
    document["devices_per_node"] = _known(devices)
    level = document["device_links"][-1]
    document["device_links"] = [level | {"devices": _known(devices)}]


def spec_of(document: dict[str, Any], where: str) -> HardwareSpec:
    """Return the spec that a document describes. Raises InputError where it describes none."""
    return validated(where, HardwareSpec, document)


def spec_text(document: dict[str, Any]) -> str:
    """Return the text of the spec's file."""
    head = "# Written by `simulate calibrate --probe`: what one machine measured of itself.\n"
    return head + yaml.safe_dump(document, sort_keys=False, width=120, allow_unicode=True)


def _source(measured: MeasuredRates, date: str) -> str:
    versions = ", ".join(f"{name} {text}" for name, text in measured.versions.items())
    return f"Probe of {measured.device_name}, {versions}, {date}"


def _known(value: str | int) -> dict[str, Any]:
    return {"value": value, "source": [SOURCE], "status": "measured"}


def _mib(size: int) -> str:
    return f"{size // MIB} MiB"


def _rate(bytes_per_second: float) -> str:
    return f"{bytes_per_second / GIGA:.4g} GB/s"


def _measure_link(document: dict[str, Any], devices: int, rates: Rates) -> None:
    """Put the measured link on the innermost level that joins all ranks of the probe."""
    assert rates.link is not None  # noqa: S101  the caller looked
    rate = _known(_rate(rates.link.bandwidth_bytes_per_second))
    latency = _known(f"{rates.link.latency_seconds * MEGA:.4g} us")
    for level in document["device_links"]:
        if level["devices"]["value"] >= devices:
            level["bandwidth"], level["latency"] = rate, latency
            if level["topology"] == "mesh":
                pair = rates.link.bandwidth_bytes_per_second / max(devices - 1, 1)
                level["pair_bandwidth"] = _known(_rate(pair))
            return
