"""The variables of a step: their layout, roles, gradients and statistics."""
