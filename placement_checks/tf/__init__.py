"""Private names of TensorFlow and Keras, and the global state of the loaded TensorFlow.

Only this room uses private names, and each name occurs in one place: `patches` lists the
attributes that are replaced, and the other modules have functions for all other names. All of them
exist in TensorFlow 2.15 (with Keras 2) to 2.21 (with Keras 3). If the installed version lacks a
name, its use raises an `InputError`. A check that continued without the name could report a broken
program as correct.

`simulated_devices` imports TensorFlow when it is loaded. The other modules do not, because
`process_state.Behavior` is used before TensorFlow is loaded.
"""
