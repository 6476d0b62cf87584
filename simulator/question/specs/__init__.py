"""Specs of models, hardware, optimizers and stacks, read from files.

`model`, `hardware` and `optimizers` have the fields, `catalogue` and `names` find a file, `documents` checks it,
`families` reads configurations of Hugging Face.
"""
