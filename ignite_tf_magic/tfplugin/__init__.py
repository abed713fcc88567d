"""TensorFlow's file-system plugin: a scheme's handler, written in Python, behind one C library.

It knows nothing of Ignite. `igfs` and `dataset` write handlers (`handler.FileSystem`); whoever owns the
process gives them to `registration.register_schemes`.
"""
