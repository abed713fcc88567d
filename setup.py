"""Declares the one thing setup.cfg cannot: the C files of the compiled decode path and of TensorFlow's plugin.

The libraries are loaded with ctypes and link only libc, so one build serves every Python and
TensorFlow. `optional` lets the install succeed without a compiler; the Python path is then used, and
registering the plugin says what is missing.
"""

from setuptools import Extension, setup

setup(
    ext_modules=[
        Extension(
            "ignite_tf_magic.protocol._rows",
            sources=["ignite_tf_magic/protocol/_rows.c"],
            extra_compile_args=["-O3"],
            optional=True,
        ),
        Extension(
            "ignite_tf_magic.tfplugin._filesystem",
            sources=["ignite_tf_magic/tfplugin/_filesystem.c"],
            depends=["ignite_tf_magic/tfplugin/_filesystem.h"],
            extra_compile_args=["-O2", "-fvisibility=hidden"],
            optional=True,
        ),
    ]
)
