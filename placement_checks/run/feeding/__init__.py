"""Feed rows to a program and its reference.

Both programs must compute on the same rows before their numbers can be compared. There are two
ways to find the tensors that hold rows. Each implements `interface.Feeding`:

- *Declared* (`declared`): the builders return their inputs, as mappings of names to placeholders,
  one mapping for each tower or one mapping for all towers. Otherwise, the keys of a batch must be
  names of placeholders. A batch function of the user returns arrays by these names; by default,
  random rows are generated. The rows are cut into one part for each tower.
- *Replayed* (`replayed`): a whole script declares nothing, but the values that it fed to its first
  training step were recorded. `inferred` matches the fed tensors of the two programs, and infers
  which tensors hold the rows of each tower. The recorded rows are fed again in other orders.

`batches` loads a batch that the user names: a function, or a saved case. A case contains the
batches and initial values of a run with a difference, so that the run can be repeated.
"""
