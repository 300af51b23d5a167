"""TensorFlow's placer in a process of its own, reached through `client.PlacerProcess`.

`main` is that process; `phantom`, `session`, `grpc_messages` and `network` are used in it alone.
"""
