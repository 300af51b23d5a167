"""The source lines that findings lead to."""
