"""Flags of PaddleNLP, PaddleFormers and ERNIEKit trainers that a recipe is read from."""

from __future__ import annotations

from typing import Final

from simulator.frameworks.flags import passed_of, read_of

FRAMEWORKS: Final = ("paddlenlp", "paddleformers")
FLAGS: Final = read_of(*FRAMEWORKS)
PASSED: Final = passed_of(*FRAMEWORKS)
"""Flags that change neither memory nor speed as far as it is modelled."""
