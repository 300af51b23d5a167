"""A record of the verdicts on many programs, which proves that a refactoring changes none.

``python -m tools.verdicts record OUT`` judges the programs of `programs`, and `compare OLD NEW`
lists the differences between two records.
"""
