"""Private names of TensorFlow and Keras, and the global state of the loaded TensorFlow.

Only this room uses private names, each in one place: `patches` lists the attributes that are
replaced, the other modules have functions for the rest. All of these names exist in TensorFlow
2.15 (with Keras 2) to 2.21 (with Keras 3). If an installed version lacks one, its use raises an
`InputError` with the name: a check that silently sees less would report broken programs as sound.

`simulated_devices` imports TensorFlow when it is loaded. The other modules do not, because
`process_state.Behavior` is used before TensorFlow is loaded.
"""
