"""The HTML page: Python collects the data, and the script in `assets` draws them."""
