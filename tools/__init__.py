"""Commands that write the project's own data files. None is part of the package: users never run them."""
