"""Declares the one thing setup.cfg cannot: the C file of the compiled decode path.

The library is loaded with ctypes and links only libc, so one build serves every Python and
TensorFlow. `optional` lets the install succeed without a compiler; the Python path is then used.
"""

from setuptools import Extension, setup

setup(
    ext_modules=[
        Extension(
            "ignite_tf_magic.protocol._rows",
            sources=["ignite_tf_magic/protocol/_rows.c"],
            extra_compile_args=["-O3"],
            optional=True,
        )
    ]
)
