"""The private names of TensorFlow and Keras that this package reads or patches.

Each has one function, and no other module uses it. They exist in TensorFlow 2.15 (with Keras 2)
to 2.21 (with Keras 3). Where one is gone, what needs it raises an `InputError` that names it:
checks that silently see less would report programs as sound that are not. A name is looked up
when it is needed, so that whatever does without it is not affected.

No module here imports TensorFlow itself, as `Behaviour` is used before it is loaded.
"""
