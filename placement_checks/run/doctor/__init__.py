"""Programs that ``placement-checks doctor`` runs to check this machine."""
