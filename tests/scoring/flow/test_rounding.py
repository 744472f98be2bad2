import numpy as np
import pytest

from attnflow import Attention
from attnflow.scoring.flow.integers import Layers, Streamed, rounded
from attnflow.scoring.network import Step, network
from tests.scoring.flow.networks import softmax_network


class Net:
    causal = False

    def __init__(self, step):
        self.steps, self.size = (step,), step.size


@pytest.mark.parametrize("bits", [0, 30, 59, 60, 62])
def test_the_kernel_rounds_as_numpy_does(bits):
    for seed in range(12):
        r = np.random.default_rng(seed)
        n = int(r.integers(1, 90))
        weights = r.random((n, n)) ** r.integers(1, 12) * (r.random((n, n)) < 0.9)
        weights = (weights / np.maximum(weights.sum(1, keepdims=True), 1e-9)).astype(np.float32)
        share = np.where(r.random(n) < 0.2, 0.0, r.random(n))
        for given in (weights, np.concatenate([weights, weights], 1)[:, :n]):  # rows that lie apart
            layers = Layers(Net(Step(given, share, n, added=seed % 4 == 0)))
            for start, stop in ((0, n), (n // 2, n), (n // 3, n // 2)):
                for width in (None, stop):
                    found = layers.units(0, start, stop, width, bits - (seed % 4 == 0))
                    expected = rounded(layers.block(0, start, stop, width), bits - (seed % 4 == 0))
                    assert found.shape == expected.shape and (found == expected).all()


def test_a_row_is_the_same_whatever_part_of_it_is_read():
    weights = softmax_network(np.random.default_rng(1), 3, 300, 1.0, causal=True)
    caps = Streamed(Layers(network(Attention.of(weights.astype(np.float32), sinks="renormalise"))), 60)
    for start, stop in ((0, 20), (100, 300)):
        assert (caps.block(1, start, stop, stop) == caps.block(1, start, stop)[:, :stop]).all()


def test_a_view_is_the_window():
    weights = softmax_network(np.random.default_rng(2), 4, 40, 1.0, causal=True)
    caps = Streamed(Layers(network(Attention.of(weights.astype(np.float32), sinks="renormalise"))), 60)
    window, view = caps.window(7, 33), caps.view(7, 33)
    for step in range(4):
        assert (view.block(step, 3, 20) == window.block(step, 3, 20)).all()
        assert (view.block(step, 3, 20, 20) == window.block(step, 3, 20, 20)).all()
    assert (view.steps, view.n, view.bits) == (4, 26, 60) and caps.view(0, 40) is caps
