"""Private names of TensorFlow and Keras, and the state of the TensorFlow that is loaded.

A private name is used in this room only, in one function. All of them exist in TensorFlow 2.15
(with Keras 2) to 2.21 (with Keras 3). If TensorFlow no longer has one, the function raises an
`InputError` that names it: a check that silently sees less would report broken programs as sound.
Names are looked up when they are needed, so that code that does not need them is not affected.

`global_state` and `simulated_devices` import TensorFlow when they are loaded; the other modules do
not, as `process_state.Behaviour` is used before TensorFlow is loaded.
"""
