"""Questions above a single layout: plans, comparisons, explanations."""
