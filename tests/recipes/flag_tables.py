"""The flag tables of docs/recipes.md, made of the readers' own; run as a script, it prints them."""

from collections.abc import Mapping

from simulator.recipes.readers import deepspeed, nemo, torchtitan
from simulator.recipes.readers.given import Flag

TABLES: Mapping[str, Mapping[str, Flag]] = {
    "NeMo and Megatron-Bridge keys": nemo.FLAGS,
    "torchtitan keys": torchtitan.FLAGS,
    "Trainer flags and DeepSpeed keys": deepspeed.FLAGS,
}


def rendered(heading: str) -> str:
    table = TABLES[heading]
    rows = [f"| `{name}` | {flag.about} |" for name, flag in table.items()]
    return "\n".join(["| name | read as |", "|---|---|", *rows])


if __name__ == "__main__":
    for name in TABLES:
        print(f"### {name}\n\n{rendered(name)}\n")  # noqa: T201  its output is pasted into the page
