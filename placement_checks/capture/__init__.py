"""Captures programs: runs them until their first training step, and returns what they built.

`programs.load` is the entry point. It returns a `core.program.CapturedProgram`, whose details
(`graph.details`) depend on the process that ran the program:

* `LiveGraph`: this process, with a graph that the program built.
* `eager.reading.TracedGraph`: this process, with a traced training step of eager code.
* `RecordedDetails`: a child process, which has recorded the details and sent them.
* `GraphFile`: no process; the target is a saved graph.
"""
