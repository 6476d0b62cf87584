"""docs/flags.md, made of the tables of flags: `python -m tools.regenerate flags` writes it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from simulator.frameworks import registry
from simulator.frameworks.flags import Flag, flags_of, table_names

PAGE = Path(__file__).resolve().parents[1] / "docs" / "flags.md"
TITLES = {
    "megatron": "Megatron-LM",
    "mindspeed": "MindSpeed and MindSpeed-LLM",
    "pai": "Pai-Megatron-Patch",
    "flagscale": "FlagScale, beyond Megatron-LM",
    "megatron_deepspeed": "Megatron-DeepSpeed, beyond Megatron-LM",
    "nemo": "NeMo",
    "bridge": "Megatron-Bridge",
    "primus": "Primus, beside Megatron-LM's",
    "swift": "ms-swift, beside Megatron-LM's or the Trainer's",
    "neox": "GPT-NeoX",
    "torchtitan": "torchtitan",
    "transformers": "Hugging Face Trainer",
    "llamafactory": "LLaMA-Factory, beside the Trainer's",
    "deepspeed": "DeepSpeed configurations",
    "paddlenlp": "PaddleNLP",
    "paddleformers": "PaddleFormers and ERNIEKit",
}
_HEAD = """# Flags: what is read, and what is not

Every flag of a framework is one of three: **read**, when it sets something that is priced; **without effect** on memory
and speed as far as they are modelled; **not modelled**, when it has an effect that is not priced. `simulate check` says
nothing firm over what it cannot price:

- a flag that is not modelled and may turn the verdict makes it `not_modelled`, with the line, and exit code 3;
- one that only lessens the need leaves "fits" as it is, and makes `not_modelled` of "does not fit";
- one that moves a figure by less than its uncertainty is warned of;
- a flag that stands in no table makes the verdict `cannot_tell`, with the line, and exit code 3.

A flag that is given its default, or is off (`0`, `false`, `none`), counts as not given.

The names come from the frameworks' own definitions, at the versions named; a name without a version was met in recipes
only. [CONTRIBUTING](../CONTRIBUTING.md) tells how a new release is added. Recipes of Megatron-LM and its relatives are
read with all their tables, and so are those of Paddle; the first that has a name decides.
"""


def page() -> str:
    """The whole page."""
    assert set(TITLES) <= set(table_names())  # noqa: S101  a reader's table is shown
    return "\n".join([_HEAD, *(line for name in TITLES for line in _section(name))])


def _section(framework: str) -> Iterator[str]:
    flags = list(flags_of(framework).values())
    dashes = framework in registry.tables("megatron")
    yield f"## {TITLES[framework]}\n"
    yield f"{_versions(flags)}: {len(flags)} names.\n"
    yield "Read:\n"
    yield "| name | read as |\n|---|---|"
    yield from (f"| {_shown(flag, dashes=dashes)} | {flag.about} |" for flag in flags if flag.effect == "priced")
    yield "\nNot modelled:\n\n| what | then | names |\n|---|---|---|"
    unpriced = [flag for flag in flags if flag.effect == "not_modelled"]
    for weight, then in (
        ("verdict", "no verdict"),
        ("bound", "no “does not fit”"),
        ("activations", "no “does not fit” of what the passes hold"),
        ("figure", "a warning"),
    ):
        for about, names in _grouped((flag for flag in unpriced if flag.weight == weight), dashes=dashes):
            yield f"| {about} | {then} | {names} |"
    yield "\nWithout effect:\n\n| what | names |\n|---|---|"
    idle = (flag for flag in flags if flag.effect == "no_effect")
    yield from (f"| {about} | {names} |" for about, names in _grouped(idle, dashes=dashes))
    yield ""


def _grouped(flags: Iterable[Flag], *, dashes: bool) -> Iterator[tuple[str, str]]:
    groups: dict[str, list[str]] = {}
    for flag in flags:
        groups.setdefault(flag.about, []).append(_shown(flag, dashes=dashes))
    for about in sorted(groups):
        yield about, ", ".join(groups[about])


def _shown(flag: Flag, *, dashes: bool) -> str:
    return f"`--{flag.name.replace('_', '-')}`" if dashes else f"`{flag.name}`"


def _versions(flags: Iterable[Flag]) -> str:
    named = {version for flag in flags for version in (flag.first, flag.last) if version}
    return "Versions " + ", ".join(sorted(named))


def generated() -> Mapping[Path, str]:
    """The page."""
    return {PAGE: page()}
