"""How far off the predictions are, by source, class and target: `python -m benchmarks.accuracy [REPORT]`."""
