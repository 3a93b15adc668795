"""Preloaded by the server of `forked.py`: the libraries, excluded from garbage collection.

Otherwise each process would traverse PyTorch's 400 000 objects once, which takes longer than its three steps.
"""

import faulthandler
import gc

import numpy  # noqa: F401 - imported for the processes to come
import sklearn.datasets  # noqa: F401
import torch._dynamo  # noqa: F401

import headrace.check.segment  # noqa: F401

faulthandler.enable()  # a process that dies by a signal shows where it was
gc.collect()
gc.freeze()
