"""The table of docs/rules.md, made of the rules themselves; run as a script, it prints it."""

from simulator.recipes.rules.frameworks import FRAMEWORK_RULES


def rendered() -> str:
    rows = [f"| `{rule.id}` | {rule.about} | {rule.versions} | {rule.source} |" for rule in FRAMEWORK_RULES]
    return "\n".join(["| rule | what must hold | holds for | read at |", "|---|---|---|---|", *rows])


if __name__ == "__main__":
    print(rendered())  # noqa: T201  its output is pasted into the page
