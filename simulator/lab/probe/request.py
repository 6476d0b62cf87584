"""Request of a probe: hardware, ranks, folder and limits, and the files in the folder.

Checks before anything starts; starts nothing itself.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from simulator.errors import InputError, UnsupportedError
from simulator.lab.runner.local import LocalLauncher
from simulator.lab.runner.reference import ReferenceEngine
from simulator.question.vocabulary import Precision

FOLDER: Final = "simulate-probe"
"""Default folder."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeRequest:
    """Machine, folder and limits of a probe."""

    hardware: str
    """Name or path of the spec that the measured one is made from."""
    devices: int
    """Ranks of every launch, a count."""
    folder: Path
    model: str | None = None
    """Name or path of the only model to launch; None for shapes of several widths."""
    precision: Precision = "bf16"
    """Type of the matrix products."""
    backend: str = "cpu"
    """Kind of device, in torch's words."""
    launches: int = 20
    limit_seconds: float = 600.0
    """Longest time of one launch, and of measuring the rates."""
    resume: bool = False
    """Whether rates and rows of an earlier probe in the folder are reused."""

    @property
    def rows_file(self) -> Path:
        """File of the measured rows."""
        return self.folder / "rows.csv"

    @property
    def rates_folder(self) -> Path:
        """Folder of the measurement of the rates."""
        return self.folder / "rates"

    @property
    def launch_folder(self) -> Path:
        """Folder of the launches."""
        return self.folder / "launches"

    @property
    def model_folder(self) -> Path:
        """Folder of the specs of launched shapes."""
        return self.folder / "models"

    def check(self) -> None:
        """Raise InputError or UnsupportedError where nothing could be probed, before anything is started."""
        if os.name != "posix":
            raise UnsupportedError("simulate calibrate --probe: launches need Linux or another POSIX system")
        ReferenceEngine(backend=self.backend).check()
        LocalLauncher().check(1)
        if not self.resume and self.rows_file.exists():
            raise InputError(f"--output {self.folder}: holds an earlier probe; --resume continues it")
