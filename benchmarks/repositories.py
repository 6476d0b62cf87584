"""What the gate says of whole repositories, as the action runs it: the table of README.md here.

    python -m benchmarks.repositories FOLDER [REPOSITORY ...]

FOLDER holds checkouts, each called owner+name. Prints a row a repository, or part of one, with the hardware that its
files are for (H100 stands in for Hygon's devices).
"""

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

CASES: Final = (
    ("HYGON-AI/Megatron-LM-das", "0685d1f", "h100-sxm-80g", ()),
    ("argonne-lcf/Megatron-DeepSpeed", "ffa3456", "a100-sxm-40g", ()),
    ("verl-project/verl", "1dda039", "h100-sxm-80g", ()),
    ("llm-jp/scripts", "0a70387", "h200-sxm", ()),
    ("AI-Hypercomputer/gpu-recipes", "2e1fd5e", "h100-sxm-80g", ("src/frameworks/a3mega", "training/a3mega")),
    ("AI-Hypercomputer/gpu-recipes", "2e1fd5e", "h200-sxm", ("src/frameworks/a3ultra", "training/a3ultra")),
    ("AI-Hypercomputer/gpu-recipes", "2e1fd5e", "b200-sxm", ("src/frameworks/a4", "training/a4")),
    ("meta-pytorch/torchtune", "bd2a0fc", "a100-sxm-80g", ()),
    ("oumi-ai/oumi", "d8ed077", "a100-sxm-80g", ()),
    ("allenai/OLMo", "59a53e3", "h100-sxm-80g", ()),
    ("huggingface/alignment-handbook", "925acdf", "a100-sxm-80g", ()),
    ("FlagOpen/FlagScale", "da4935e", "a800-sxm-80g", ()),
)
"""Repository, commit, hardware, and the files or folders of one step of the action; none for all."""
FAIL_ON: Final = "does-not-fit,refused"
"""The action's own default."""


def rows(folder: Path, wanted: tuple[str, ...]) -> Iterator[str]:
    """Yield the table's rows: what is judged, the first line of the answer, the exit code; what failed as comments."""
    for repository, commit, hardware, parts in CASES:
        if wanted and repository not in wanted:
            continue
        words = [sys.executable, "-m", "simulator", "check", *(parts or (".",)), "--hardware", hardware]
        start = time.monotonic()
        answer = subprocess.run(  # noqa: S603  this interpreter
            [*words, "--fail-on", FAIL_ON, "--root", "."],
            cwd=folder / repository.replace("/", "+"),
            capture_output=True,
            text=True,
            check=False,
        )
        lines = answer.stdout.splitlines() or answer.stderr.splitlines() or [""]
        shown = " ".join([f"`{hardware}`{',' if parts else ''}", *(f"`{part}`" for part in parts)])
        yield f"| {repository}, {commit} | {shown} | {lines[0]} | {answer.returncode} |"
        failed = [line for line in lines[1:] if "does not fit" in line or "refused" in line]
        yield from (f"<!-- {line[:200]} -->" for line in failed[:20])
        yield f"<!-- {time.monotonic() - start:.1f} s -->"


if __name__ == "__main__":
    for row in rows(Path(sys.argv[1]), tuple(sys.argv[2:])):
        sys.stdout.write(f"{row}\n")
        sys.stdout.flush()
