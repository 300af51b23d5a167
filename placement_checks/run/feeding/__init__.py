"""The values that are fed to a program: declared, inferred or replayed."""
