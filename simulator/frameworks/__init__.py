"""Training frameworks, one folder each: their words, readers of their files and logs, writers of their launches.

A folder registers in its `framework.py` (`framework` has the record, `registry` the list). Beside the folders stands
what they share: `arguments`, `documents`, `flags`, `take`, `write`, `python`.
"""
