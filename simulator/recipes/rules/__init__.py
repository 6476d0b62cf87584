"""Which layouts are valid: named rules, used alike by the single estimate and the ranking."""
