"""Files that once took minutes or gigabytes to read, and others of their kind."""

from collections.abc import Mapping

_LAUNCH = "\ntorchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 2 --hidden-size 512\n"
_DOUBLED = "X='%s%s%s%s%s%s%s%s'\n" + 'X="$X$X"\n' * 9
_LEVELS = "".join(f'b{n}: "{f"${{b{n + 1}}}" * 15}"\n' for n in range(16)) + 'b16: "a"\n'
_NEMO = "trainer:\n  devices: 8\n  num_nodes: 1\nmodel:\n  tensor_model_parallel_size: 1\n"


def _script(body: str) -> str:
    return "#!/bin/bash\n" + body + _LAUNCH


def _looped(body: str, rounds: int = 200) -> str:
    return f"for i in {' '.join(map(str, range(rounds)))}; do\n{body}\ndone"


FILES: Mapping[str, tuple[str, str]] = {
    # Matches that try every way.
    "optional-letters.sh": (
        _script("X=" + "a" * 50 + "\n[[ $X =~ ^" + "a?" * 50 + "a" * 50 + "$ ]] && Y=1"),
        "answered",
    ),
    "alternatives.sh": (_script("X=" + "a" * 39 + "b\n[[ $X =~ ^(a|a)*$ ]] && Y=1"), "answered"),
    "nested-stars.sh": (_script("X=" + "a" * 5000 + "\n[[ $X =~ ^((a*)*)*b$ ]] && Y=1"), "answered"),
    "counted.sh": (_script("X=" + "a" * 99 + "\n[[ $X =~ (((a{99}){99}){99}){99} ]] && Y=1"), "answered"),
    "stars.sh": (_script("X=" + "a" * 4000 + "\n[[ $X == " + "*a" * 90 + "b ]] && Y=1"), "answered"),
    "trimmed.sh": (_script(f"X={'a' * 4096}\n" + _looped('Y="${X%%' + "*?a" * 60 + 'b}"')), "answered"),
    # Copies.
    "printf.sh": (_script(_DOUBLED + _looped('printf -v Y "$X" a b c')), "refused"),
    "doubled.sh": (_script("X=a\n" + _looped('X="$X$X"', 19) + "\n" + _looped('Y="$X"')), "refused"),
    "echoed.sh": (_script("X=" + "a" * 100_000 + "\n" + _looped('Y="$Y$(echo "$X")"')), "refused"),
    "split.sh": (_script("X='" + "a " * 50_000 + "'\n" + _looped("set -- $X")), "refused"),
    "replaced.sh": (_script("X=" + "a" * 4096 + "\n" + _looped('Y="${X//a/' + "b" * 190 + '}"')), "answered"),
    "array.sh": (_script(_looped("A+=($(echo 1 2 3 4 5 6 7 8 9) ${A[@]})")), "refused"),
    "variables.sh": (_script("".join(f"a{n}=1\n" for n in range(15_000)) + _looped('Y="$(echo 1)"')), "refused"),
    "environment.sh": (_script("".join(f"export a{n}=1\n" for n in range(3_500)) + _looped("b", 250)), "answered"),
    # Text that is parsed again.
    "eval-comment.sh": (_script("X='#" + "a" * 2000 + "'\n" + 'X="$X$X"\n' * 6 + _looped('eval "$X"')), "refused"),
    "eval-errors.sh": (_script("X='" + "a||)" * 8000 + "'\n" + _looped('eval "$X"')), "refused"),
    "recovery.sh": (_script("a||)" * 25_000), "refused"),
    "brackets.sh": (_script("$[" * 20_000 + "a+=(b) " * 5_000), "refused"),
    "heredocs.sh": (_script("<<-E\n\tE\n" * 12_000), "refused"),
    # Arithmetic through names, numbers without end.
    "names.sh": (
        _script("a0=1\n" + "".join(f"a{n + 1}='{'+'.join([f'a{n}'] * 90)}'\n" for n in range(8)) + "x=$((a8))"),
        "refused",
    ),
    "digits.sh": (_script("X=${" + "9" * 4301 + "}\nY=$" + "9" * 4301), "answered"),
    "positional.sh": (_script("set -- a\nX=${" + "9" * 4301 + "}"), "answered"),
    "flags.sh": (_LAUNCH.rstrip() + "".join(f" --flag-{n} {n}" for n in range(9_000)), "refused"),
    "launches.sh": ("\n".join(["torchrun pretrain_gpt.py --num-layers 2"] * 500), "refused"),
    "judged.sh": (_looped(_LAUNCH.strip(), 55), "refused"),  # quick to read, and each launch takes time to judge
    # Documents.
    "dots.yaml": (_NEMO + 'note: "' + "." * 95_000 + '!"\n', "answered"),
    "words.yaml": (_NEMO + 'note: "' + "a." * 95_000 + '!"\n', "answered"),
    "spaces.yaml": (_NEMO + 'note: "' + "a " * 95_000 + '!"\n', "answered"),
    "same-keys.yaml": (_NEMO + "".join(f"k{n}:\n  a: 1\n" for n in range(15_000)), "answered"),
    "interpolation.yaml": (_NEMO + _LEVELS, "answered"),
    "interpolation-unknown.yaml": (_NEMO + _LEVELS.replace('"a"', '"${nothing}"'), "answered"),
    "paths.yaml": (_NEMO + "x: " + "${b}" * 240_000 + "\n", "answered"),
    "interpolation-self.yaml": (_NEMO + 'a: "' + "${a}" * 900 + '"\n', "answered"),
    "directives.yaml": ("".join(f"%TAG !a{n}! b\n" for n in range(50_000)) + "--- a\n", "refused"),
    "flow.yaml": ("[" * 500_000, "refused"),
    "items.yaml": ("a: [" + "1," * 490_000 + "1]\n", "refused"),
    "dotted.toml": (".".join(["a"] * 45_000) + " = 1\n", "refused"),
    "dotted-quotes.toml": ('"a" . ' * 45_000 + "b = 1\n", "refused"),
    "dotted-table.toml": ("[" + ".".join(["a"] * 45_000) + "]\n", "refused"),
    "tables.toml": ("[[a]]\n" * 160_000, "refused"),
    "number.toml": ("a = " + "1" * 900_000 + "\n", "refused"),
    "quotes.toml": ('a = """' + '\\\\""" ' * 150_000, "refused"),
    "nested.toml": ("a = " + "[" * 400_000, "refused"),
    "text.toml": ('a = """' + "a.b.c." * 100_000 + '"""\n', "answered"),
    "nested.json": ("[" * 900_000, "refused"),
    "number.json": ('{"a": ' + "1" * 900_000 + "}", "refused"),
    "items.json": ('{"a": [' + "[]," * 300_000 + "1]}", "answered"),
}
"""Text by the file's name, and whether it is read to its end or refused for what it takes."""
