"""Run a program and its reference on the same rows, and compare the results.

1. `pair` makes both programs runnable on the same kind of device, and chooses how rows are fed
   (`placement_checks.run.feeding`).
2. `sessions` gives both programs equal variables and equal rows. It defines the expected
   gradients: the reference's gradients on all rows, or their mean over the rows of each tower.
3. `measure` compares gradients. If some differ, it also runs the reference on single rows, on the
   rows of each tower and on shifted rows, so that `placement_checks.numerics.diagnosis` can
   find the mistake.
4. `steps` takes training steps of both programs, and compares their variables after each step.
5. For scripts with replayed rows, `replayed_checks` decides which rows are compared, and whether a
   difference proves a mistake.
"""
