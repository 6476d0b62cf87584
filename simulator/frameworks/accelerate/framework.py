"""accelerate as a framework: its words alone, which other frameworks' launches stand beside."""

from typing import Final

from simulator.frameworks.framework import Framework

FRAMEWORK: Final = Framework(title="accelerate", profile="torch", tables=("accelerate",))
