"""Private names of TensorFlow and Keras, and the global state of the loaded TensorFlow.

Only this room uses a private name, and each name in one function only. All of these names exist in
TensorFlow 2.15 (with Keras 2) to 2.21 (with Keras 3). If an installed version lacks one, the
function raises an `InputError` with the name: a check that silently sees less would report broken
programs as sound. Names are looked up at the time of use, so a missing name affects only the code
that needs it.

`simulated_devices` imports TensorFlow when it is loaded. The other modules do not, because
`process_state.Behavior` is used before TensorFlow is loaded.
"""
