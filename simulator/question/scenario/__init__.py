"""Scenarios and layouts: `inputs` and `layout` have the fields, `complete` derives omitted ones, `block` has arrays."""
