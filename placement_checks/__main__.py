"""``python -m placement_checks`` is ``placement-checks``."""

from placement_checks.cli import main

main()
