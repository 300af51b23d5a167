"""Captures programs: runs them until their first training step, and returns what they built.

`programs.load` is the entry point. It returns a `core.program.CapturedProgram`. The class that
looks up details of its ops depends on the origin of the graph:

* `graph.details.LiveGraph`: the program built the graph in this process.
* `eager.reading.TracedGraph`: eager code traced its training step in this process.
* `graph.details.RecordedDetails`: a child process built the graph, and sent the details.
* `graph.details.GraphFile`: the target is a saved graph.
"""
