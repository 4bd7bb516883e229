"""Kernels of our own for onnxruntime, in C++: optional, and faster than the standard operators they stand for.

``kernels/`` holds the sources, :mod:`models.native.library` builds and finds them. The graphs of bundles hold the same
numbers as a function of standard operators, which runs wherever there are no kernels.
"""
