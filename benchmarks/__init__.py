"""Measurements of the project itself, run by hand: speed, accuracy, what tests notice. No test asserts a time.

One thread per process: a figure per core means one core.
"""

import os

THREAD_SETTINGS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
"""Environment variables that say how many threads numpy's libraries start."""

for _name in THREAD_SETTINGS:
    os.environ[_name] = "1"  # before numpy is imported; children inherit it
