"""Declares the one thing setup.cfg cannot: the C files of the decode path, of TensorFlow's plugin and of ports.

The libraries are loaded with ctypes and link only libc, so one build serves every Python and
TensorFlow. `optional` lets the install succeed without a compiler; the Python path is then used, registering
the plugin says what is missing, and runs say that ports of their workers are open to other machines. The library of
ports is loaded into any program, and links nothing: the symbols are those of the program's own libc.
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
        Extension(
            "ignite_tf_magic.runs._loopback",
            sources=["ignite_tf_magic/runs/_loopback.c"],
            extra_compile_args=["-O2"],
            extra_link_args=["-nostdlib"],
            optional=True,
        ),
    ]
)
