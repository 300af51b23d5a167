"""TensorFlow's placer in a process of its own, reached through `client.PlacerProcess`.

`main` is that process. Only it uses `gpu_less_server` and `network`.
"""
