"""Decoding steps by a kernel of our own, for ``--engine native``: what ``library.py`` compiles of ``kernels/``."""
