"""Device of a rank and its process group: the one place where a processor, CUDA, NPU and other kinds differ."""

from __future__ import annotations

import importlib
import importlib.util
import os
import platform
import resource
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import torch
from torch import distributed

from simulator.errors import InputError
from simulator.lab.trainer.job import RatesJob, TrainingJob
from simulator.question.units import MIB

_EXTENSIONS: Final = {"npu": "torch_npu", "mlu": "torch_mlu", "musa": "torch_musa"}
"""Packages that add a kind of device to torch when they are imported."""
_STALLED: Final = timedelta(minutes=10)  # time for which a rank waits for another one before it gives up

BESIDE_TENSORS_BYTES: Final = 32 * MIB
"""Memory that a rank on a processor maps beside its tensors: stacks and heaps of its compute threads."""


DeviceJob = TrainingJob | RatesJob


class Backend:
    """Device of one rank, with one interface for all kinds."""

    def __init__(self, job: DeviceJob) -> None:
        """Select the rank's device. Raises InputError where torch does not know the kind, or sees none."""
        if job.backend in _EXTENSIONS:
            with suppress(ImportError):
                importlib.import_module(_EXTENSIONS[job.backend])
        self.kind = job.backend
        self.module: Any = None if self.kind == "cpu" else _device_module(self.kind)
        if self.module is None:
            self.device = torch.device("cpu")
            torch.set_num_threads(job.threads)
        else:
            index = int(os.environ.get("LOCAL_RANK", "0")) % self.module.device_count()
            self.device = torch.device(self.kind, index)
            self.module.set_device(self.device)

    def join(self, job: DeviceJob, rank: int) -> None:
        """Join the process group of all ranks."""
        library = job.communication or distributed.get_default_backend_for_device(self.kind)
        alone = job.layout.devices == 1
        distributed.init_process_group(
            library,
            store=distributed.HashStore() if alone else None,
            rank=rank,
            world_size=job.layout.devices,
            timeout=_STALLED,
            device_id=None if self.module is None else self.device,
        )
        self.library = library

    def limit_memory(self, size: int | None) -> None:
        """Limit a processor's process to `size` bytes of tensors beyond its memory now, where the system tells that."""
        mapped = Path("/proc/self/statm")
        if size is None or self.module is not None or not mapped.is_file():
            return
        pages = int(mapped.read_text(encoding="ascii").split()[5])
        used = pages * resource.getpagesize()
        _, highest = resource.getrlimit(resource.RLIMIT_DATA)
        resource.setrlimit(resource.RLIMIT_DATA, (used + size + BESIDE_TENSORS_BYTES, highest))

    def synchronize(self) -> None:
        """Wait until the device has finished its queued work."""
        if self.module is not None:
            self.module.synchronize()

    def release_unused(self) -> None:
        """Release the allocator's unused blocks, such as whole weights from the start."""
        if self.module is not None:
            self.module.empty_cache()

    def settled_bytes(self) -> int | None:
        """Forget the allocator's peaks and return the bytes allocated now; None on a processor, which has none."""
        if self.module is None:
            return None
        self.module.reset_peak_memory_stats()
        return self.allocator("memory_allocated")

    def allocator(self, figure: str) -> int:
        """Return a figure of the device's allocator in bytes, such as `max_memory_allocated`."""
        return int(getattr(self.module, figure)())

    def device_bytes(self) -> int | None:
        """Return the bytes of the device in use by all processes; None where torch cannot ask."""
        ask = getattr(self.module, "mem_get_info", None)
        if ask is None:
            return None
        free, whole = ask()
        return int(whole - free)

    @property
    def name(self) -> str:
        """Device in its driver's words."""
        if self.module is None:
            return _processor()
        return str(self.module.get_device_name(self.device))

    @property
    def versions(self) -> dict[str, str]:
        """Versions of the software that figures depend on, where they can be asked for."""
        by_name = {"python": platform.python_version(), "torch": torch.__version__, "communication": self.library}
        for name in ("cuda", "hip"):
            version = getattr(torch.version, name, None)
            if self.module is not None and version:
                by_name[name] = version
        with suppress(AttributeError, RuntimeError, OSError):
            if self.library == "nccl":
                by_name["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))
        if self.kind == "cuda":
            by_name |= {"driver": driver} if (driver := _nvidia_driver()) else {}
        extension = importlib.import_module(_EXTENSIONS[self.kind]) if self.kind in _EXTENSIONS else None
        if extension is not None:
            by_name[extension.__name__] = str(getattr(extension, "__version__", "unknown"))
        return by_name


def _device_module(kind: str) -> ModuleType:
    try:
        module = torch.get_device_module(kind)
        there = bool(module.is_available()) and module.device_count() > 0
    except RuntimeError as error:
        extension = _EXTENSIONS.get(kind)
        missing = extension is not None and importlib.util.find_spec(extension) is None
        needs = f" without {extension}, which is not installed" if missing else ""
        raise InputError(f"backend {kind}: this torch does not know such a device{needs}: {error}") from error
    if not there:
        raise InputError(f"backend {kind}: torch {torch.__version__} sees no such device on this machine")
    return module


def _lines(file: Path) -> list[str]:
    return file.read_text(encoding="utf-8", errors="replace").splitlines() if file.is_file() else []


def _nvidia_driver() -> str:
    words = next(iter(_lines(Path("/proc/driver/nvidia/version"))), "").split()
    # The first word with two dots or one is the version: "... Kernel Module  550.54.15  Release Build ..."
    return next((word for word in words if word.replace(".", "").isdigit() and "." in word), "")


def _processor() -> str:
    lines = _lines(Path("/proc/cpuinfo"))
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, platform.processor() or platform.machine())
