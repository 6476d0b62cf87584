"""torchtune's folder: which files are its own. `read` says what they mean."""

from typing import Final

from simulator.frameworks.framework import FileForm, Framework
from simulator.frameworks.torchtune.read import is_file, read

FRAMEWORK: Final = Framework(
    title="torchtune",
    profile="torch",
    tables=("torchtune",),
    files=(FileForm(dialect="torchtune-yaml", order=20, is_own=is_file, read=read),),
)
