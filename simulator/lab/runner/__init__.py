"""Real launches of layouts, on this machine, through Slurm or by an outside framework, and the rows they leave."""
