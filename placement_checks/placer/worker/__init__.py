"""TensorFlow's placer in a process of its own, reached through `client.PlacerProcess`.

`main` is the program of this process. Only `main` uses `gpu_less_server` and `network`.
"""
