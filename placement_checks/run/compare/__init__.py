"""Runs a program and its reference on the same rows and compares the results.

1. `pair` makes both programs runnable on the same kind of device, and chooses how rows are fed
   (`placement_checks.run.feeding`).
2. `sessions` gives both programs equal variables and equal rows. It defines the expected
   gradients: the reference's gradients on all rows, or their mean over the rows of each tower.
3. `measure` compares gradients. If some differ, it also runs the reference on single rows, on the
   rows of each tower and on shifted rows, so that `placement_checks.numerics.diagnosis` can
   find the mistake.
4. `steps` takes training steps of both programs and compares their variables after each.
5. `replayed_checks` decides for scripts with replayed rows on which rows to compare them, and
   whether a difference proves a mistake.
"""
