"""todo"""
import numpy as np
def floor_of(caps, sinks, threads):
    return np.zeros((0, caps.n), np.int64)
