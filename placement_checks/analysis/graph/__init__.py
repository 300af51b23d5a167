"""The graph of a step: data flow, order of execution, backward pass, updates, equal values."""
