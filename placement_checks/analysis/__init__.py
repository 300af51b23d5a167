"""The analysis of a graph: data flow, towers, variables and transfers. Needs no TensorFlow."""
