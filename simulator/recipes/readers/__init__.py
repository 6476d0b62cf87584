"""Reading of launch scripts and configuration files without running them.

`read` finds the reader of a file, `formats` has forms of files of no framework, `cluster` the jobs that start them,
`recognition` whether a file trains; `recipes.shell` reads scripts, `frameworks` the words.
"""
