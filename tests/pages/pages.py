"""The pages that are looked at; `python -m tests.pages.pages` takes their pictures for the docs."""

import sys
from contextlib import chdir
from pathlib import Path
from shutil import copytree
from tempfile import TemporaryDirectory

from tests.cli.running import run
from tests.docs.pages import DOCS
from tests.pages.browser import browser

COMMANDS: dict[str, tuple[str, ...]] = {
    "rank": ("rank", "--model", "llama3.1-8b", "--hardware", "h100-sxm-80g", "--nodes", "2", "--train-tokens", "1T"),
    "estimate": ("estimate", "--model", "llama3.1-70b", "--nodes", "8", "--tp", "4", "--pp", "8", "--cp", "2"),
    "plan": (
        *("plan", "--model", "llama3.1-70b", "--train-tokens", "300B", "--deadline-days", "30", "--budget", "230000"),
        *("--offer", "h100-sxm-80g:8,16@2.50", "--offer", "h800-sxm-80g:8:32@2.10"),
        *("--offer", "ascend-910b-64g-8:4:64@1.20", "--availability"),
    ),
    "compare": (
        *("compare", "--model llama3.1-70b --hardware h100-sxm-80g --nodes 8 --tp 8 --pp 4"),
        "--model llama3.1-70b --hardware h100-sxm-80g --nodes 8 --tp 4 --pp 4 --cp 2 --recompute full",
    ),
    "check": (
        *("check", "examples/recipes/llama3-8b-megatron.sh", "examples/recipes/llama3-8b-torchtitan.toml"),
        *(
            "examples/recipes/ernie-21b-lora-paddle.sh",
            "short.sh",
            "--hardware",
            "h100-sxm-80g",
            "--nodes",
            "1",
            "--diff",
        ),
    ),
    "accuracy": ("accuracy", "own.csv"),
}


OWN = (
    "model,hardware,devices,seq_length,global_batch_size,micro_batch_size,tensor_parallel,pipeline_parallel,step_time_s,"
    "memory_gib\nllama3.1-8b,h100-sxm-80g,8,8192,128,1,2,1,14.6,61.2\nllama3.1-8b,h100-sxm-80g,8,8192,128,1,4,1,15.3,36.9\n"
    "llama3.1-8b,h100-sxm-80g,8,4096,128,1,2,1,7.0,44.1\nllama3.1-8b,h100-sxm-80g,8,4096,128,1,1,2,7.2,60.3\n"
)


def written(name: str, folder: Path) -> Path:
    """The page of a command, in a folder."""
    page = folder / f"{name}.html"
    if name == "accuracy":
        (folder / "own.csv").write_text(OWN, encoding="utf-8")
    if name == "check":
        copytree(DOCS.parent / "examples", folder / "examples", dirs_exist_ok=True)
        script = (DOCS.parent / "examples/recipes/llama3-8b-megatron.sh").read_text(encoding="utf-8")
        (folder / "short.sh").write_text(script.replace("TP=2", "TP=1").replace("PP=2", "PP=1"), encoding="utf-8")
    with chdir(folder):
        result = run(*COMMANDS[name], "--format", "html", "--output", page.name)
    assert result.exit_code in (0, 1), result.stderr
    return page


PICTURES = (
    ("rank", 1600, False),
    ("estimate", 1600, True),
    ("plan", 400, True),
    ("compare", 1600, False),
)
"""Page, width, and whether it is dark."""


def main(folder: Path) -> None:
    """Take the pictures of the docs."""
    folder.mkdir(exist_ok=True)
    with TemporaryDirectory() as scratch, browser(Path(scratch) / "profile") as shown:
        pages = {name: written(name, Path(scratch)) for name, _, _ in PICTURES}
        for name, width, dark in PICTURES:
            shown.open(pages[name], width, dark=dark)
            shown.screenshot(folder / f"{name}-{width}.png", scale=0.6 if width > 1000 else 0.8)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else DOCS / "images")
