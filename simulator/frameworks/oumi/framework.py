"""oumi's folder: which files and jobs are its own. `read` says what they mean."""

from typing import Final

from simulator.frameworks.framework import FileForm, Framework
from simulator.frameworks.oumi.read import is_job, is_training, read, read_job

FRAMEWORK: Final = Framework(
    title="oumi",
    profile="torch",
    tables=("oumi", "transformers", "trl", "deepspeed"),
    files=(
        FileForm(dialect="oumi-yaml", order=20, is_own=is_training, read=read),
        FileForm(dialect="oumi-job-yaml", order=21, is_own=is_job, read=read_job),
    ),
)
