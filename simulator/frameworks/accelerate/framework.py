"""accelerate's folder: a table of words that stand beside other trainers'. It has no launches of its own."""

from typing import Final

from simulator.frameworks.framework import Framework

FRAMEWORK: Final = Framework(title="accelerate", profile="torch", tables=("accelerate",))
