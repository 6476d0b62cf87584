"""Offers of hardware: kinds, numbers of nodes, price of a device hour. Reads and checks; plans nothing."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from simulator.errors import InputError
from simulator.question.scenario.inputs import check_count

MOST_SIZES = 64
"""Most numbers of nodes in one offer."""
_OFFER = re.compile(
    r"(?P<name>.+?):(?:(?P<low>\d{1,7}):(?P<high>\d{1,7})(?::(?P<step>\d{1,7}))?|(?P<list>\d{1,7}(?:,\d{1,7})*))"
    r"(?:@(?P<price>\d{1,9}(?:\.\d{1,6})?))?"
)
_FORM = "NAME:NODES[,NODES...][@PRICE] or NAME:LOW:HIGH[:STEP][@PRICE], such as h100-sxm-80g:8,16@2.50"


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """Numbers of nodes of one kind of hardware, to book one of."""

    hardware: str
    """Name or path of the hardware."""
    nodes: tuple[int, ...]
    """Numbers of nodes on offer, ascending."""
    price_per_device_hour: float | None = None
    """Price of one device for one hour, in any currency; None if unknown."""

    def __post_init__(self) -> None:
        """Raise InputError for an offer that cannot be booked."""
        for nodes in self.nodes:
            check_count(f"offer {self.hardware}: nodes", nodes)
        if not self.nodes:
            raise InputError(f"offer {self.hardware}: names no number of nodes")
        if len(self.nodes) > MOST_SIZES:
            raise InputError(f"offer {self.hardware}: {len(self.nodes)} numbers of nodes; at most {MOST_SIZES}")
        price = self.price_per_device_hour
        if price is not None and not (math.isfinite(price) and price >= 0):
            raise InputError(f"offer {self.hardware}: price {price!r} must be 0 or more")


def parse_offer(text: str) -> Offer:
    """Return the offer in a text such as `h100-sxm-80g:8,16@2.50` or `ascend-910b-64g-8:4:64@1.20`.

    `LOW:HIGH` doubles from LOW to HIGH, with HIGH itself; `LOW:HIGH:STEP` counts up. Raises InputError.
    """
    match = _OFFER.fullmatch(text.strip())
    shown = text if len(text) <= 60 else f"{text[:60]}..."
    if match is None:
        raise InputError(f"offer '{shown}': write {_FORM}")
    price = None if match["price"] is None else float(match["price"])
    if match["list"] is not None:
        nodes = tuple(sorted({int(size) for size in match["list"].split(",")}))
        return Offer(hardware=match["name"], nodes=nodes, price_per_device_hour=price)
    low, high, step = int(match["low"]), int(match["high"]), int(match["step"] or 0)
    if low < 1 or low > high or match["step"] == "0":
        raise InputError(f"offer '{shown}': LOW must be from 1 to HIGH, STEP from 1")
    if step and (high - low) // step >= MOST_SIZES:
        raise InputError(f"offer '{shown}': names more than {MOST_SIZES} numbers of nodes")
    counted = range(low, high + 1, step) if step else (low * 2**power for power in range((high // low).bit_length()))
    sizes = {size for size in counted if size <= high} | (set() if step else {high})
    return Offer(hardware=match["name"], nodes=tuple(sorted(sizes)), price_per_device_hour=price)
