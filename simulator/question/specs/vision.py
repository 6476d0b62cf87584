"""Encoders of images: their parameters, and what an image of a size becomes, by the rule of the model.

    >>> encoder_of({"model_type": "qwen2_5_vl", "vision_config": {}}, {}).image(1024, 1024)
    Image(patches=5476, tokens=1369)

`families/encoders.yaml` has the encoders that are known, a row each; `memory.encoder` and `timing.step` price them.
"""

from __future__ import annotations

import ast
import math
import operator
import re
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, Final

import numpy as np

from simulator.errors import InputError, did_you_mean, quoted
from simulator.late import late_pattern
from simulator.question.specs.documents import Frozen, read_yaml, validated
from simulator.records import NamedTuple

_LARGEST: Final = 2**24
_LARGEST_SIZE: Final = 2**32
_MAY_BE_NONE: Final = frozenset(("b", "c", "d", "n", "head"))
_TEXT: Final = (("text_config", "llm_config"), ("vision_config", "vit_config"))


class Image(NamedTuple):
    """An image as a model sees it."""

    patches: int
    """Patches that the encoder reads, of all tiles."""
    tokens: int
    """Places that it takes in the language model's sequence, without the marks before and after."""


class Encoder(Frozen):
    """A network that turns images into tokens, with the projector behind it."""

    kind: str
    """Row of the known encoders."""
    sizes: Mapping[str, int]
    """Sizes by the names of that table."""

    def problems(self) -> Iterator[str]:
        """Yield the first problem."""
        if self.kind not in encoders():
            yield f"kind '{self.kind[:40]}'{did_you_mean(self.kind, encoders())}: is no known encoder"
        elif self.sizes.keys() ^ encoders()[self.kind]["sizes"].keys():
            yield f"sizes: {self.kind} has {', '.join(encoders()[self.kind]['sizes'])}"
        else:
            for name, size in self.sizes.items():
                if not (0 if name in _MAY_BE_NONE else 1) <= size <= _LARGEST_SIZE:
                    yield f"sizes: {name} {size}: must be from 1 to {_LARGEST_SIZE}"
                    return

    def __hash__(self) -> int:
        """Hash by the kind and the sizes."""
        return hash((self.kind, *self.sizes.values()))

    def _value(self, name: str) -> int:
        return _evaluated(str(encoders()[self.kind][name]), self._names)

    @cached_property
    def _names(self) -> dict[str, int]:
        row, names = encoders()[self.kind], dict(self.sizes)
        for name in ("i", "g", "t", "k"):
            if name not in names:
                names[name] = _evaluated(str(row.get(name, "1")), names)
        return names | {"m": names["h"] * names["g"] ** 2}

    @cached_property
    def parameters(self) -> int:
        """Parameters of the encoder, without the projector."""
        return self.layers * self._value("layer") + self._value("around")

    @cached_property
    def projector_parameters(self) -> int:
        """Parameters between the encoder and the language model."""
        return self._value("projector")

    @property
    def adapted_widths(self) -> int:
        """Rows and columns of the matrices of all layers: parameters of adapters per rank."""
        gates = 2 + bool(encoders()[self.kind].get("gated"))
        return self.layers * (6 * self.width + gates * (self.width + self._names["i"]))

    @property
    def layers(self) -> int:
        """Layers of the encoder."""
        return self.sizes["L"]

    @property
    def width(self) -> int:
        """Numbers of a patch between two layers."""
        return self.sizes["h"]

    @property
    def widths(self) -> tuple[float, float]:
        """Numbers per patch of a layer that are alive at most at once, and those that its backward pass needs."""
        wide, gated = self._names["i"], bool(encoders()[self.kind].get("gated"))
        return max(6.0 * self.width, 2.0 * self.width + (2 + gated) * wide), 8.0 * self.width + (2 + 2 * gated) * wide

    def attended_patches(self, image: Image, frames: int = 1) -> float:
        """Return the patches that a patch attends to, over the layers: of its image, its frames, tile or window."""
        names, rule = self._names, encoders()[self.kind]["rule"]
        tiled = rule in ("tiles", "canvas", "anyres")
        whole = (names["e"] // names["p"]) ** 2 if tiled else image.patches / -(-frames // names["t"])
        if "w" not in names:
            return whole
        inside = min((names["w"] // names["p"]) ** 2, whole)
        return (names["c"] * whole + (self.layers - names["c"]) * inside) / self.layers

    def image(self, width: int, height: int, frames: int = 1) -> Image:
        """Return the patches and tokens of an image, or of a video. Raises InputError for what the model refuses."""
        if not (1 <= width <= _LARGEST and 1 <= height <= _LARGEST):
            raise InputError(f"images {width}x{height}: a side is from 1 to {_LARGEST} pixels")
        names, row = self._names, encoders()[self.kind]
        if frames == 1:
            return _RULES[row["rule"]](names, width, height, row)
        match row.get("video"):
            case "merged":  # frames of a patch follow each other; the last one is repeated
                image, times = self.image(width, height), -(-frames // names["t"])
                return Image(image.patches * times, image.tokens * times)
            case "tile":
                return Image(*_tiled(names, frames))
            case "pooled":  # two by two, and a mark at the end
                side = names["e"] // names["p"]
                return Image(frames * side**2, frames * (-(-side // 2)) ** 2 + 1)
        raise InputError(f"images {width}x{height}x{frames}: how {self.kind} reads videos is not known")


class Images(NamedTuple):
    """Images of a sequence, each of one size, and what of their encoder is trained."""

    number: int
    width: int
    height: int
    trained: str = "frozen"
    """`frozen`: neither encoder nor projector. `projector`: it alone. `trained`: both. `lora8`: the projector, and
    adapters of rank 8 at the matrices of the encoder's layers."""
    fills: bool = False
    """Whether they are as many as a sequence has room for, whatever its length."""
    frames: int = 1
    """Frames of each, of a video more than one."""

    @staticmethod
    def read(text: Any) -> Images:
        """Return the images of a text such as 4x1024x768@trained, or 1x448x448x32, a video. Raises InputError."""
        matched = _IMAGES.fullmatch(str(text).strip().lower().replace("×", "x"))
        if matched is None:
            such = "such as 4x1024x768 or 1x448x448@trained (frozen, projector, trained, lora8)"
            raise InputError(f"images {quoted(text)}: write NUMBERxWIDTHxHEIGHT or, of videos, ...xFRAMES, {such}")
        number, width, height = (int(matched[group]) for group in (1, 2, 3))
        return Images(number, width, height, matched[5] or "frozen", frames=int(matched[4] or 1))

    @staticmethod
    def filling(encoder: Encoder, tokens: int, trained: str) -> Images:
        """Return the images that fill a sequence of so many tokens with the most patches; none where no image fits."""
        sizes = (encoder.image(side, side) for side in _SIDES)
        most = max(range(len(_SIDES)), key=[tokens // size.tokens * size.patches for size in sizes].__getitem__)
        side = _SIDES[most]
        return Images(tokens // encoder.image(side, side).tokens, side, side, trained, fills=True)

    def each(self, encoder: Encoder) -> Image:
        """Return the patches and tokens of one of them."""
        return encoder.image(self.width, self.height, self.frames)

    @property
    def shown(self) -> str:
        """What they are, in words: `4 images of 1024x1024`."""
        kind, long = ("image", "") if self.frames == 1 else ("video", f"{self.frames} frames of ")
        return f"{self.number} {kind}{'s' if self.number > 1 else ''} of {long}{self.width}x{self.height}"

    @property
    def rank(self) -> int:
        """Rank of the encoder's adapters; 0 without."""
        return int(self.trained.removeprefix("lora")) if self.trained.startswith("lora") else 0

    @property
    def trains_encoder(self) -> bool:
        """Whether the encoder is trained, or adapters of it are."""
        return self.trained == "trained" or self.rank > 0

    @property
    def trains_projector(self) -> bool:
        """Whether the projector is trained."""
        return self.trained != "frozen"

    def trained_parameters(self, encoder: Encoder) -> int:
        """Return the trained parameters of encoder, its adapters and projector."""
        own = self.rank * encoder.adapted_widths if self.rank else encoder.parameters * self.trains_encoder
        return own + encoder.projector_parameters * self.trains_projector

    def frozen_parameters(self, encoder: Encoder) -> int:
        """Return the parameters of encoder and projector that are not trained."""
        own = encoder.parameters * (self.trained != "trained")
        return own + encoder.projector_parameters * (not self.trains_projector)


_SIDES: Final = (256, 448, 1024, 2048)  # sides of square images that may fill a sequence, in pixels
_IMAGES: Final = late_pattern(
    r"([1-9][0-9]{0,5})x([1-9][0-9]{0,7})x([1-9][0-9]{0,7})(?:x([1-9][0-9]{0,4}))?(?:@(frozen|projector|trained|lora[1-9][0-9]{0,3}))?"
)


@lru_cache(maxsize=1)
def encoders() -> Mapping[str, Mapping[str, Any]]:
    """Return the known encoders by model type."""
    table: Mapping[str, Mapping[str, Any]] = read_yaml(Path(__file__).with_name("families") / "encoders.yaml")
    return {kind: table[row["as"]] if "as" in row else row for kind, row in table.items()}


def encoder_of(config: Mapping[str, Any], pixels: Mapping[str, Any], where: str = "config.json") -> Encoder | None:
    """Return the encoder of a configuration and its preprocessor's; None where its kind is unknown or it has none."""
    kind = str(config.get("model_type", ""))
    text, vision = (next((config[key] for key in keys if isinstance(config.get(key), dict)), None) for keys in _TEXT)
    if kind not in encoders() or vision is None:
        return None
    sections = {"text": text or {}, "whole": config, "pixels": pixels}
    sizes = {name: _size(key, vision, sections) for name, key in encoders()[kind]["sizes"].items()}
    return validated(f"{where}: vision_config", Encoder, {"kind": kind, "sizes": sizes})


def _size(key: str, vision: Mapping[str, Any], sections: Mapping[str, Any]) -> Any:
    """Return the number at a key, of a list its length or first entry, of a text its digits; else the default."""
    path, _, default = key.partition("=")
    first, _, rest = path.partition(".")
    value: Any = sections.get(first, vision)
    for part in (rest if first in sections else path).split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    if isinstance(value, list):
        value = len(value) if "indexes" in path else (value or [None])[0]
    if isinstance(value, str):
        value = int(digits[:12]) if (digits := "".join(re.findall("[0-9]", value))) else value
    return int(default) if value is None else value


_OPERATORS: Final[Mapping[type, Callable[[int, int], int]]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
}


def _evaluated(text: str, names: Mapping[str, int]) -> int:
    """Return the value of a sum of products of named sizes."""

    def value(node: ast.expr) -> int:
        if isinstance(node, ast.BinOp):
            return _OPERATORS[type(node.op)](value(node.left), value(node.right))
        return names[node.id] if isinstance(node, ast.Name) else int(ast.literal_eval(node))

    return value(ast.parse(text, mode="eval").body)


_Sizes = Mapping[str, int]


def _grid(n: _Sizes, width: int, height: int, row: Mapping[str, Any]) -> Image:
    """Sides become multiples of a merged patch, the area stays between two bounds."""
    factor, frames = n["p"] * n["g"], n["t"] if row.get("frames") else 1
    if frames > 1 and min(width, height) < factor:
        scale = max(factor / height, factor / width)
        width, height = int(width * scale), int(height * scale)
    if max(width, height) > 200 * min(width, height):
        raise InputError(f"images {width}x{height}: one side is more than 200 times the other, which the model refuses")
    rounded = [round(side / factor) * factor for side in (height, width)]
    area, low, high = math.prod(rounded) * frames, n["low"], n["high"]
    if area > high:
        beta = math.sqrt(frames * height * width / high)
        rounded = [max(factor, math.floor(side / beta / factor) * factor) for side in (height, width)]
    elif area < low:
        beta = math.sqrt(low / (frames * height * width))
        rounded = [math.ceil(side * beta / factor) * factor for side in (height, width)]
    patches = math.prod(side // n["p"] for side in rounded)
    return Image(patches, patches // n["g"] ** 2)


def _shrunk(n: _Sizes, width: int, height: int, _: Mapping[str, Any]) -> Image:
    """Larger images shrink to the most patches; sides are padded to multiples of a merged patch."""
    p, factor = n["p"], n["p"] * n["g"]
    most = math.sqrt(n["high"] / (max(1.0, width // p) * max(1.0, height // p)))
    scale = min(1.0, most, n["side"] * p / width, n["side"] * p / height)
    sides = [min(max(1, int(side * scale)), n["side"] * p) for side in (width, height)]
    patches = math.prod(-(-side // factor) * n["g"] for side in sides)
    return Image(patches, patches // n["g"] ** 2)


def _tiled(n: _Sizes, tiles: int) -> tuple[int, int]:
    """Return patches and tokens of tiles."""
    side = n["e"] // n["p"]
    return tiles * (side**2 + 1), tiles * side**2 // n["g"] ** 2


def _tiles(n: _Sizes, width: int, height: int, _: Mapping[str, Any]) -> Image:
    """Tiles in the grid of the closest aspect ratio, larger ones while less than half empty, and one of the whole."""
    grids = [(x, y) for x in range(1, n["most"] + 1) for y in range(1, n["most"] // x + 1)]
    best, nearest = (1, 1), math.inf
    for columns, rows in sorted(grids, key=math.prod):
        off = abs(width / height - columns / rows)
        if off < nearest or (off == nearest and width * height > 0.5 * n["e"] ** 2 * columns * rows):
            best, nearest = (columns, rows), off
    count = math.prod(best)
    return Image(*_tiled(n, count + (count > 1)))


def _canvas(n: _Sizes, width: int, height: int, _: Mapping[str, Any]) -> Image:
    """Tiles of the smallest canvas onto which the image need not shrink, else shrinks least, and one of the whole."""
    grids = [(y, x) for y in range(1, n["most"] + 1) for x in range(1, n["most"] // y + 1)]
    # Scales are compared as numbers of 32 bits.
    scales = {(y, x): float(np.float32(min(y * n["e"] / height, x * n["e"] / width))) for y, x in grids}
    larger = [scale for scale in scales.values() if scale >= 1.0]
    chosen = min(larger) if larger else max(scales.values())
    rows, columns = min((grid for grid in grids if scales[grid] == chosen), key=math.prod)
    count = rows * columns
    patches, tokens = _tiled(n, count + (count > 1))
    return Image(patches, tokens + (rows * columns if count > 1 else 0))


def _anyres(n: _Sizes, width: int, height: int, _: Mapping[str, Any]) -> Image:
    """The best of the canvases of up to 6 x 6 tiles without its padding, a token for each row, and the whole image."""
    best, most, waste = (1, 1), 0, math.inf
    for rows, columns in ((y, x) for y in range(1, 7) for x in range(1, 7)):
        scale = min(columns * n["e"] / width, rows * n["e"] / height)
        used = min(int(width * scale) * int(height * scale), width * height)
        left = rows * columns * n["e"] ** 2 - used
        if used > most or (used == most and left < waste):
            best, most, waste = (rows, columns), used, left
    side = n["e"] // n["p"]
    tall, wide = side * best[0], side * best[1]
    if width / height > wide / tall:
        tall -= (tall - int(round(height * (wide / width), 7))) // 2 * 2
    else:
        wide -= (wide - int(round(width * (tall / height), 7))) // 2 * 2
    features, lines = tall * wide, tall
    ratio = math.sqrt(features / (n["most"] * side**2))
    if ratio > 1.1:
        features, lines = int(tall // ratio) * int(wide // ratio), int(tall // ratio)
    return Image((math.prod(best) + 1) * side**2, features + lines + side**2)


def _budget(n: _Sizes, width: int, height: int, _: Mapping[str, Any]) -> Image:
    """The image grows or shrinks to the most tokens, its sides multiples of what a token pools; patches are padded."""
    step = n["p"] * n["g"]
    factor = math.sqrt(n["k"] * step**2 / (width * height))
    tall, wide = (math.floor(factor * side / step) for side in (height, width))
    if not tall and not wide:
        raise InputError(f"images {width}x{height}: the model has no size for it")
    if not tall or not wide:
        long = max(width, height) // min(width, height)
        return Image(n["k"] * n["g"] ** 2, min(long, n["k"]))
    return Image(n["k"] * n["g"] ** 2, tall * wide)


_RULES: Final[Mapping[str, Callable[[_Sizes, int, int, Mapping[str, Any]], Image]]] = {
    "grid": _grid,
    "shrunk": _shrunk,
    "tiles": _tiles,
    "canvas": _canvas,
    "anyres": _anyres,
    "fixed": lambda n, *_: Image((n["e"] // n["p"]) ** 2, n["k"]),  # every image has one size
    "budget": _budget,
}
