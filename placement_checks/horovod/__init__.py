"""A stand-in for the package ``horovod``, so that each rank of a program can be captured.

`activate.stand_in_for_horovod` lets ``import horovod.tensorflow`` import `tensorflow`, and
``horovod.keras`` import `keras`. Names, arguments and results are as in Horovod 0.28. Neither
Horovod nor MPI is needed, and nothing is sent: each rank runs alone, as if all other ranks had
computed the same values. In a graph, each collective is one op with the attribute
`core.ranks.COLLECTIVE`, so that the collectives of all ranks can be joined by name.
"""
