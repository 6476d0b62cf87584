"""Documented starts of a framework's launch files, out of a checkout, into the table that the readers use.

    python -m tools.starts Pai-Megatron-Patch ~/Pai-Megatron-Patch --version COMMIT
    python -m tools.starts Megatron-MoE-ModelZoo ~/Megatron-MoE-ModelZoo --version COMMIT
    python -m tools.starts alignment-handbook ~/alignment-handbook --version COMMIT
    python -m tools.starts Megatron-DeepSpeed ~/Megatron-DeepSpeed --version COMMIT
    python -m tools.starts GPT-NeoX ~/gpt-neox --version COMMIT

Pages (`examples/**/README*.md`) are searched for command lines that start a script of the page's own folder with as
many words as it reads, after what the page exports for it in the same block; of a script's lines the first counts. A
page that lists the script's arguments by name tells them in the script's own order where it has dropped one since. Of
command lines with `accelerate launch` (`recipes/**/README.md`) the configuration that they name last is started so. The
MoE model zoo keeps a line of values a model in `runtime.conf`. Megatron-DeepSpeed starts scripts from scripts beside
them, whose variables are filled in, or by their path alone: their arguments are then empty. The table keeps what it has
of other commits: each start tells of one file's text only.
"""

from __future__ import annotations

import argparse
import csv
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict
from difflib import SequenceMatcher
from pathlib import Path

from simulator.recipes.shell.launch import COLUMNS, TABLE, DocumentedStart, argument_names, digest, parameters

_COMMAND = re.compile(r"^(?:sh|bash)[ \t]+([\w.-]+\.sh)[ \t]+(\S[^\n]*)$", re.MULTILINE)
_EXPORT = re.compile(r"^export[ \t]+([A-Za-z_]\w*=[\w.-]+)[ \t]*$", re.MULTILINE)
_LISTED = re.compile(r"^([A-Za-z_]\w*)=\$\{?(\d+)\b", re.MULTILINE)
_ACCELERATED = re.compile(r"\baccelerate launch .*\.yaml.*$", re.MULTILINE)
_CHOICES = re.compile(r"\{([\w,.-]+)\}")
_PATH = "path"
"""What stands for a file or folder of somebody's machine, which says nothing of the training."""
_ROW = re.compile(r'^\s*\[([\w.-]+)\]="([^"]*)"', re.MULTILINE)
_SET = re.compile(r"^(\w+)=\"?([^\s\"]+)", re.MULTILINE)
_VARIABLE = re.compile(r"\$\{?(\w+)\}?")
_BARE = re.compile(r"^bash[ \t]+(\S+\.sh)[ \t]*$", re.MULTILINE)
_VOCABULARY = re.compile(r'"vocab[-_]file": "(?:[^"]*/)?([^"/]+)"')
_RUNTIME = "runtime_configs/benchmarking/runtime.conf"
_NAMES = ("TP", "PP", "EP", "CP", "VPP", "MBS", "GBS", "NUM_LAYERS", "MOE_TOKEN_DISPATCHER", "MOE_GROUPED_GEMM")
_MORE = ("NNODES", "RUN_TIME", "PRETRAIN", "SEQ_LEN", "DATASET", "PP_FIRST", "PP_LAST")
"""What `set_model_configs` of the zoo's runtime.conf calls the words of a model's line, in order."""
_PLACED = ("--pipeline-model-parallel-layout",)
_CHUNKED = (*_PLACED, "--num-virtual-stages-per-pipeline-rank", "--num-layers-per-virtual-pipeline-stage")
_FLEX = ("--moe-token-dispatcher-type=flex", "--moe-flex-dispatcher-backend=deepep", "--tp-comm-overlap=true")
"""What sbatch_benchmarking.sh of the zoo adds where nobody sets DISPATCHER and PR: deepep and bf16 are its defaults."""


def pages(root: Path, name: str, version: str) -> Iterator[DocumentedStart]:
    """Starts that the pages of a repository show."""
    for page in sorted(root.glob("examples/**/README*.md")):
        text = re.sub(r"[ \t]*\\[ \t]*\n[ \t]*", " " * 8, page.read_text(encoding="utf-8"))
        for match in _COMMAND.finditer(text):
            script = page.with_name(match[1])
            words = match[2].split()
            if not script.is_file() or any(word.startswith(("#", "--", "|", ">", "&", "`")) for word in words):
                continue
            content = script.read_text(encoding="utf-8")
            words = words if len(words) == parameters(content) else _renumbered(text, match[1], content, words)
            if words:
                block = text[: match.start()].rpartition("```")[2]
                exported = [word for word in _EXPORT.findall(block) if f"${{{word.partition('=')[0]}}}" in content]
                words = [*exported, *(_PATH if "/" in word else word for word in words)]
                document, file = (path.relative_to(root).as_posix() for path in (page, script))
                yield DocumentedStart(name, version, document, file, digest(content), words)


def _renumbered(page: str, script: str, content: str, words: list[str]) -> list[str]:
    """The words of a page that lists its arguments by name, as a script takes them that has dropped some; else none."""
    listed: list[str] = []
    for match in _LISTED.finditer(page, page.find(script)):
        if int(match[2]) != len(listed) + 1:
            break
        listed.append(match[1])
    names = argument_names(content)
    own = [names.get(number, "") for number in range(1, parameters(content) + 1)]
    moved: list[str] = []
    for change, start, end, first, last in SequenceMatcher(None, listed, own, autojunk=False).get_opcodes():
        if change != "delete" and end - start != last - first:
            return []
        moved += words[start:end] if change != "delete" else []
    return moved if len(listed) == len(words) and "" not in own else []


def accelerated(root: Path, name: str, version: str) -> Iterator[DocumentedStart]:
    """Starts of configurations by `accelerate launch` that the pages of a repository show."""
    for page in sorted(root.glob("recipes/**/README.md")):
        for line in _ACCELERATED.findall(page.read_text(encoding="utf-8")):
            names = _CHOICES.search(line)
            for choice in names[1].split(",") if names else [""]:
                words = _CHOICES.sub(choice, line).split()
                file = next(word for word in reversed(words) if word.endswith(".yaml"))
                if (root / file).is_file():
                    mark = digest((root / file).read_text(encoding="utf-8"))
                    yield DocumentedStart(name, version, page.relative_to(root).as_posix(), file, mark, words)


def _filled(text: str, values: Mapping[str, str]) -> str:
    """The text with the variables' values; unknown ones stand for nothing."""
    return _VARIABLE.sub(lambda match: values.get(match[1], ""), text)


def launched(root: Path, name: str, version: str) -> Iterator[DocumentedStart]:
    """Starts of scripts by scripts beside them, with their variables' values, and by pages that state no argument."""

    def start(page: Path, script: Path, words: list[str]) -> DocumentedStart:
        document, file = (path.relative_to(root).as_posix() for path in (page, script))
        return DocumentedStart(name, version, document, file, digest(script.read_text(encoding="utf-8")), words)

    for page in sorted(root.glob("examples_deepspeed/*/*.sh")):
        text = page.read_text(encoding="utf-8")
        values = dict(_SET.findall(text))
        for script, line in _COMMAND.findall(text):
            file, words = page.with_name(script), _filled(_filled(line, values), values).split()
            if file.is_file() and len(words) == parameters(file.read_text(encoding="utf-8")):
                yield start(page, file, words)
    for page in sorted(root.glob("examples_deepspeed/*/README.md")):
        for script in _BARE.findall(page.read_text(encoding="utf-8")):
            text = (root / script).read_text(encoding="utf-8") if (root / script).is_file() else ""
            if (count := parameters(text)) and "$#" not in text:
                yield start(page, root / script, ["''"] * count)


def completed(root: Path, name: str, version: str) -> Iterator[DocumentedStart]:
    """GPT-NeoX' configurations without a vocabulary, with that of `configs/docker/NAME-paths.yml` for folder NAME."""
    for page in sorted(root.glob("configs/docker/*-paths.yml")):
        words = [f"vocab_file={file}" for file in _VOCABULARY.findall(page.read_text(encoding="utf-8"))]
        for file in sorted(root.glob(f"configs/{page.name.removesuffix('-paths.yml')}/*.yml")):
            content = file.read_text(encoding="utf-8")
            if words and not _VOCABULARY.search(content):
                document, own = (path.relative_to(root).as_posix() for path in (page, file))
                yield DocumentedStart(name, version, document, own, digest(content), words)


def zoo(root: Path, name: str, version: str) -> Iterator[DocumentedStart]:
    """Starts of the zoo's configurations, as its runtime.conf and sbatch_benchmarking.sh make them."""
    launcher = root / "sbatch_benchmarking.sh"
    flex = _FLEX if not launcher.is_file() or "DISPATCHER" in launcher.read_text(encoding="utf-8") else ()
    for model, line in _ROW.findall((root / _RUNTIME).read_text(encoding="utf-8")):
        file = f"model_configs/benchmarking/{model}.yaml"
        if (root / file).is_file():
            content = (root / file).read_text(encoding="utf-8")
            flags = set(re.findall(r"^\s*(--[\w-]+):", content, re.MULTILINE))
            told = dict(zip((*_NAMES, *_MORE), line.split(), strict=False))
            yield DocumentedStart(name, version, _RUNTIME, file, digest(content), _zoo_words(told, flags, flex))


def _zoo_words(told: dict[str, str], flags: set[str], flex: Iterable[str]) -> list[str]:
    layers, stages, chunks = (int(told[key]) for key in ("NUM_LAYERS", "PP", "VPP"))
    first, last = told.pop("PP_FIRST", ""), told.pop("PP_LAST", "")
    uneven = layers % stages != 0
    told |= {"PP_FIRST": first if uneven else "false", "PP_LAST": last if uneven else "false"}
    told["LAYERS_PER_VP"] = str(layers // stages // chunks) if chunks > 1 else "false"
    added = list(flex)
    if chunks > 1 and not flags & {*_CHUNKED}:
        added.append(f"--num-virtual-stages-per-pipeline-rank={chunks}")
    if uneven and not flags & {*_PLACED}:
        added += [f"--decoder-first-pipeline-num-layers={first}", f"--decoder-last-pipeline-num-layers={last}"]
    return [*(f"{key}={value}" for key, value in told.items()), *added]


FRAMEWORKS: dict[str, Callable[[Path, str, str], Iterator[DocumentedStart]]] = {
    "Pai-Megatron-Patch": pages,
    "Megatron-MoE-ModelZoo": zoo,
    "alignment-handbook": accelerated,
    "Megatron-DeepSpeed": launched,
    "GPT-NeoX": completed,
}


def merge(name: str, root: Path, version: str, file: str = "") -> int:
    """Write the starts of a framework's commit, or of one `file` in it, into the table; return their number."""
    with TABLE.open(encoding="utf-8", newline="") as stream:
        kept = [row for row in csv.DictReader(stream) if (row["framework"], row["version"]) != (name, version)]
    found: dict[str, DocumentedStart] = {}
    for start in (start for start in FRAMEWORKS[name](root, name, version) if file in ("", start.file)):
        found.setdefault(start.file, start)
    rows = [{**asdict(start), "words": " ".join(start.words)} for start in found.values()]
    with TABLE.open("w", encoding="utf-8", newline="") as stream:
        writer = csv.DictWriter(stream, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(sorted([*kept, *rows], key=lambda row: (row["framework"], row["file"], row["version"])))
    return len(rows)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="documented starts of a framework's launch files, into the table")
    parser.add_argument("framework", choices=sorted(FRAMEWORKS))
    parser.add_argument("checkout", type=Path)
    parser.add_argument("--version", required=True, help="commit of the checkout")
    parser.add_argument("--file", default="", help="only this launch file, relative to the checkout")
    options = parser.parse_args()
    count = merge(options.framework, options.checkout, options.version, options.file)
    sys.stdout.write(f"{options.framework}: {count} starts\n")
