"""Version of the package; the build reads it from here, and it is written nowhere else."""

__version__ = "0.5.0.dev0"
