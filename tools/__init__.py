"""What keeps the data files of this project."""
