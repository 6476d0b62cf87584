"""Write everything in the project that is generated: `python -m tools.regenerate [NAME...] [--check | --no-fit]`.

A generator is a module with a function `generated`, which returns the files it owns with the text they should have.
Without names all of them run, the fit of the coefficients first, since the others quote what it gives; it takes
minutes, and `--no-fit` leaves it out. With `--check` nothing is written or fitted: stale files are listed, and the exit
code is 1 where there are any.

What is measured is not generated: `python -m benchmarks.quote` writes benchmarks/README.md on a quiet machine, and
`python -m tests.pages.pages` takes the pictures of docs/images in Chromium.
"""

from __future__ import annotations

import argparse
import importlib
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
FIT: Final = "coefficients"
FIT_COMMAND: Final = ("-m", "tests.calibration.pages")
"""Fits the shipped coefficients and writes the pages that quote them. Its last digits differ between machines, so no
text is compared: tests/calibration compares the figures."""
GENERATORS: Final[Mapping[str, str]] = {
    "types": "tests.scenario.typed_fields",
    "notice": "tools.notice",
    "rules": "tests.check.rule_table",
    "glossary": "tests.docs.glossary",
    "example": "tests.docs.worked_example",
    "manual": "tools.manual",
    "commands": "tests.docs.ran",
    "traces": "tests.docs.traced",
    "readme": "tests.docs.readme",
    "reports": "tests.report.cases",
}
"""Name on the command line and module of each generator, in the order in which they run."""


def generated(name: str) -> Mapping[Path, str]:
    """The files that a generator owns, with the text they should have."""
    files: Mapping[Path, str] = importlib.import_module(GENERATORS[name]).generated()
    return files


def stale(files: Mapping[Path, str]) -> list[Path]:
    """Files whose text is another than it should be."""
    return [path for path, text in files.items() if not path.is_file() or path.read_text(encoding="utf-8") != text]


def regenerate(name: str, *, write: bool) -> list[Path]:
    """The stale files of a generator, which are written where asked for."""
    files = generated(name)
    old = stale(files)
    if write:
        for path in old:
            path.write_text(files[path], encoding="utf-8")
    return old


def main(arguments: Sequence[str]) -> int:
    """Regenerate or check; 1 where a check finds stale files."""
    parser = argparse.ArgumentParser(prog="python -m tools.regenerate", description="Write what is generated.")
    allowed = ", ".join((FIT, *GENERATORS))
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"one of {allowed}; default: all")
    only = parser.add_mutually_exclusive_group()
    only.add_argument("--check", action="store_true", help="list stale files, write none")
    only.add_argument("--no-fit", action="store_true", help=f"all but {FIT}")
    options = parser.parse_args(arguments)
    if unknown := set(options.names) - {FIT, *GENERATORS}:
        parser.error(f"unknown: {', '.join(sorted(unknown))}; allowed are {allowed}")
    names = options.names or [FIT, *GENERATORS]
    if FIT in names and not (options.check or options.no_fit):
        subprocess.run([sys.executable, *FIT_COMMAND], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)  # noqa: S603  ours
    old = [path for name in GENERATORS if name in names for path in regenerate(name, write=not options.check)]
    sys.stdout.writelines(f"{'stale' if options.check else 'written'}: {path.relative_to(ROOT)}\n" for path in old)
    return int(options.check and bool(old))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
