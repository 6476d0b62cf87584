"""Search for layouts: made by `space`, dropped by `rules`, compared by `rank`; `alternatives` asks further."""
