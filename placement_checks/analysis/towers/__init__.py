"""The towers of a step: which ops, losses and inputs belong to which copy of the model."""
