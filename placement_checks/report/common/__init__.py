"""Parts that several formats share: groups of findings, JSON, source lines and baselines."""
