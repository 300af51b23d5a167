"""Captures programs: runs them until their first training step, and returns what they built.

`programs.load` is the entry point. A captured program passes through these records:

1. `eager.reading.TracedStep`, only for eager code: the traced training steps as one graph.
2. `in_process.recorder.Built`: a program that this process built, with TensorFlow's live objects.
3. `child_process.snapshot.RecordedProgram`, only for programs in a child process: the same
   properties as plain values, which the child process sends to its parent.
4. `core.program.BuiltProgram`: the result, for the placer, the rules and runs. It is the same for
   all programs.
"""
