"""The HTML page: the data that Python collects; `assets` holds the script that draws it."""
