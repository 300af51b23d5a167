"""TensorFlow's placer in a process of its own, asked through `process.PlacerProcess`.

`child` is that process; `phantom`, `session`, `wire` and `port` are used in it alone.
"""
