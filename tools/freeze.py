"""What the simulator remembers of files that ship: kept in the wheel as one file, or beside the files of a checkout.

`python -m tools.freeze` warms a checkout; the build of a wheel, and an editable install, run it.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class FreezeHook(BuildHookInterface[Any]):
    """Build hook that hatchling finds here."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Read all that ships, in a Python that leaves no modules behind it."""
        command, editable = [sys.executable, "-m", "tools.freeze"], version == "editable"
        self._folder = tempfile.TemporaryDirectory()
        if not editable:
            file = Path(self._folder.name, "frozen.data")
            command[1:1] = ["-X", f"pycache_prefix={self._folder.name}"]
            command.append(str(file))
            build_data["force_include"][str(file)] = "simulator/_data/frozen.data"
        subprocess.run(command, cwd=self.root, check=not editable)  # noqa: S603  fixed command

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove what the wheel has taken, and pack the wheel as tightly as its readers allow."""
        del build_data
        self._folder.cleanup()
        if version != "editable":
            loose = Path(artifact_path).rename(f"{artifact_path}.loose")
            with zipfile.ZipFile(loose) as files, zipfile.ZipFile(artifact_path, "w") as packed:
                for file in files.infolist():
                    packed.writestr(file, files.read(file), zipfile.ZIP_DEFLATED, compresslevel=9)
            loose.unlink()


def read_all() -> None:
    """Read each file that ships, which leaves what is remembered of it."""
    from simulator.files import PACKAGE, data_folder  # noqa: PLC0415  hatchling finds the hook without the package
    from simulator.question.specs import catalogue, names, stacks  # noqa: PLC0415  likewise
    from simulator.question.specs.documents import read_yaml  # noqa: PLC0415  likewise

    for name in names.model_names():
        catalogue.load_model(name)
    for name in names.hardware_names():
        catalogue.load_hardware(name)
    together = {Path(PACKAGE, "frameworks", path) for path in stacks.framework_files()}
    for file in (*data_folder("calibration").glob("*.yaml"), *Path(PACKAGE).rglob("*.yaml")):
        if file not in together:
            read_yaml(file)


def remembered(prefix: Path, root: Path) -> dict[str, bytes]:
    """Return what stands under a prefix of what is remembered of files of `root`, by the name it is looked for."""
    folder, tag = prefix.joinpath(*root.parts[1:]), f".{sys.implementation.cache_tag}"
    files = sorted(folder.rglob("*.data"))
    return {
        file.relative_to(folder).as_posix().replace(tag, "").removesuffix(".data"): file.read_bytes() for file in files
    }


def main() -> None:
    """Read all that ships; with a file, keep there what is remembered."""
    from simulator.files import PACKAGE, data_hash  # noqa: PLC0415  as above
    from simulator.question.specs.documents import packed_data  # noqa: PLC0415  likewise

    sys.dont_write_bytecode = False
    read_all()
    if not sys.argv[1:] or sys.pycache_prefix is None:
        return
    entries = {"hash": packed_data(data_hash()), **remembered(Path(sys.pycache_prefix), Path(PACKAGE).parent)}
    places, end = {}, 0
    for name, data in entries.items():
        places[name] = (end, end := end + len(data))
    index = packed_data(places)
    Path(sys.argv[1]).write_bytes(b"".join([len(index).to_bytes(4), index, *entries.values()]))


if __name__ == "__main__":
    main()
