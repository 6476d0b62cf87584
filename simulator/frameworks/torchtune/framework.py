"""Registration of torchtune: how its launches and files are recognised. `read` interprets them."""

from typing import Final

from simulator.frameworks.framework import FileForm, Framework, LaunchForm
from simulator.frameworks.torchtune.read import is_file, is_launch, read, read_launch

FRAMEWORK: Final = Framework(
    title="torchtune",
    profile="torch",
    tables=("torchtune",),
    launches=(LaunchForm(dialect="torchtune-shell", order=10, is_own=is_launch, read=read_launch),),
    files=(FileForm(dialect="torchtune-yaml", order=20, is_own=is_file, read=read),),
)
