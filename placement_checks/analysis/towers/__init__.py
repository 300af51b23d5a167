"""The towers of a step: the ops, losses and inputs of each copy of the model."""
