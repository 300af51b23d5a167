"""Programs as they are, watched until their first training step."""
