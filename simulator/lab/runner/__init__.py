"""Real launches of layouts: locally, through Slurm or by an outside framework, and the rows they leave."""
