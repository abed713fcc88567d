"""TensorFlow's file-system plugin: one C library that calls handlers for URI schemes, written in Python.

It does not depend on Ignite. `igfs` and `dataset` implement handlers (`handler.FileSystem`), and the code
that sets up the process passes them to `registration.register_schemes`.
"""
