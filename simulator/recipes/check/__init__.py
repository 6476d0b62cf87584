"""Check of a recipe against the cluster it is meant for, before it is launched.

`judge` judges a file, `reading` has what is known before it is priced, `room` what it leaves free, `verdict` the
record, `folders` the files of a folder.
"""
