"""Registration of oumi: how its files, jobs and command lines are recognised. `read` interprets them."""

from typing import Final

from simulator.frameworks.framework import FileForm, Framework, LaunchForm
from simulator.frameworks.oumi.read import cluster, is_job, is_launch, is_training, read, read_job, read_launch

FRAMEWORK: Final = Framework(
    title="oumi",
    profile="torch",
    tables=("oumi", "transformers", "trl", "deepspeed"),
    launches=(
        LaunchForm(
            dialect="oumi-shell",
            order=10,
            is_own=is_launch,
            read=read_launch,
            cluster=cluster,
            is_named_by_program=True,
        ),
    ),
    files=(
        FileForm(dialect="oumi-yaml", order=20, is_own=is_training, read=read),
        FileForm(dialect="oumi-job-yaml", order=21, is_own=is_job, read=read_job),
    ),
)
