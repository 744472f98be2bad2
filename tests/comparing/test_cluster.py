"""The same records from a real local cluster of two workers, also when one of them is killed."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time

import numpy as np
import pytest

from attnflow import compare
from attnflow.errors import AttnFlowError, InputError
from tests.tiny_models import tiny, tokenizer

TEXTS = ["the key to the cabinets is on the table", "the author talked about the book", "a dull film", "sara was great"]
KEYS = ["example", "method", "reference", "special", "layer"]


@pytest.fixture(scope="module")
def cluster():
    # The name says another system; what it does, read when ray is imported, is to keep a local cluster on 127.0.0.1.
    os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
    ray = pytest.importorskip("ray")
    # Two actors on two processors would leave none to Ray Data for reading.
    ray.init(num_cpus=4, include_dashboard=False, _node_ip_address="127.0.0.1", log_to_driver=False)
    assert ray.nodes()[0]["NodeManagerAddress"] == "127.0.0.1"
    yield ray
    ray.shutdown()


def ordered(result):
    return result.records.sort_values(KEYS).reset_index(drop=True)


@pytest.mark.slow
def test_records_equal_local_ones_with_a_worker_killed(cluster, tmp_path):
    folder, marks = str(tmp_path / "workers"), str(tmp_path / "marks")
    os.makedirs(folder)
    os.makedirs(marks)
    test = os.getpid()

    def slow_and_seen(model, tokenizer, inputs):
        """Tells the test which processes work and how far, and waits for a second one, so that one can be killed."""
        if os.getpid() != test:
            open(os.path.join(folder, str(os.getpid())), "w").close()
            deadline = time.monotonic() + 100
            while len(os.listdir(folder)) < 2 and time.monotonic() < deadline:
                time.sleep(0.05)
            open(os.path.join(marks, str(time.monotonic_ns())), "w").close()
            time.sleep(0.1)
        return np.arange(inputs["input_ids"].shape[1])

    texts = [f"{TEXTS[i % 4]} {' the' * (i % 3)}" for i in range(64)]
    options = {"methods": ("raw", "rollout"), "references": {"gradient": {}, "spy": slow_and_seen}}
    killed = []

    def kill_one():
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline:
            if len(working := os.listdir(folder)) == 2:
                time.sleep(0.5)
                os.kill(int(working[0]), signal.SIGKILL)
                killed.append(len(os.listdir(marks)))
                return
            time.sleep(0.05)

    killer = threading.Thread(target=kill_one)
    killer.start()
    spread = compare(tiny("bert"), tokenizer(), texts, engine="ray", workers=2, out=tmp_path / "run", **options)
    killer.join()
    assert killed and killed[0] < len(texts), "a worker was killed in the middle"
    local = compare(tiny("bert"), tokenizer(), texts, **options)
    a, b = ordered(local), ordered(spread)
    assert not b.duplicated(KEYS).any() and a.drop(columns="value").equals(b.drop(columns="value"))
    np.testing.assert_allclose(a["value"], b["value"], atol=1e-6)
    assert set(spread.costs) == set(local.costs)
    again = compare(tiny("bert"), tokenizer(), texts, out=tmp_path / "run", resume=True, **options)
    assert ordered(again).equals(b), "a run begun on a cluster goes on without one"


@pytest.mark.slow
def test_an_error_on_a_worker_is_the_users_error(cluster):
    with pytest.raises(AttnFlowError, match="Example 1: The text has 62 tokens"):
        compare(tiny("bert"), tokenizer(), [TEXTS[0], "the " * 60], methods="raw", engine="ray", workers=1)


@pytest.mark.slow
def test_too_many_workers_would_starve_the_reader(cluster):
    with pytest.raises(InputError, match="4 workers need one processor each.*the cluster has 4. Use workers=3"):
        compare(tiny("bert"), tokenizer(), TEXTS, engine="ray", workers=4)


def test_without_ray_the_error_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(InputError, match=r"pip install 'attnflow\[ray\]'"):
        compare(tiny("bert"), tokenizer(), TEXTS, engine="ray")
