"""The rules: one module per rule, and a registry that lists them."""
