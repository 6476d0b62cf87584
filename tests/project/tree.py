"""What the hygiene tests share: the root of the checkout and the files that belong to it."""

import shutil
import subprocess
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DATA_FOLDERS = ("calibration", "hardware_specs", "model_specs")
_SKIPPED = {".git", ".venv", "venv", "build", "dist", "htmlcov", "__pycache__"}


@cache
def project_files() -> list[Path]:
    """Files of the project, relative to its root: as git lists them, or all of them where there is no git."""
    git = shutil.which("git")
    if git is not None and (ROOT / ".git").exists():
        command = [git, "-c", "safe.directory=*", "ls-files", "-z"]
        command += ["--cached", "--others", "--exclude-standard"]
        listed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
        paths = {Path(name) for name in listed.split("\0") if name}
    else:
        paths = {path.relative_to(ROOT) for path in ROOT.rglob("*")}
        paths = {path for path in paths if not _is_leftover(path)}
    return sorted(path for path in paths if (ROOT / path).is_file())


def files_under(folder: str, suffix: str = "") -> list[Path]:
    """Files of the project below a top-level folder, optionally only those whose name ends in `suffix`."""
    return [path for path in project_files() if path.parts[0] == folder and path.name.endswith(suffix)]


def _is_leftover(path: Path) -> bool:
    return any(part in _SKIPPED or part.endswith(("_cache", ".egg-info")) for part in path.parts)
