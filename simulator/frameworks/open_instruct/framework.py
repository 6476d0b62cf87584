"""open-instruct's folder: which files are its own. `read` says what they mean."""

from typing import Final

from simulator.frameworks.framework import FileForm, Framework
from simulator.frameworks.open_instruct.read import is_file, read

FRAMEWORK: Final = Framework(
    title="open-instruct",
    profile="torch",
    tables=("open_instruct", "transformers", "trl", "deepspeed"),
    files=(FileForm(dialect="open-instruct-yaml", order=30, is_own=is_file, read=read, complete=False),),
)
