"""The same records from a real local cluster of two workers, also when one of them is killed."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from attnflow import compare
from attnflow.errors import AttnFlowError, InputError
from tests.tiny_models import tiny, tokenizer

TEXTS = ["the key to the cabinets is on the table", "the author talked about the book", "a dull film", "sara was great"]
KEYS = ["example", "method", "reference", "special", "layer"]


@pytest.fixture(scope="module")
def cluster():
    ray = pytest.importorskip("ray")
    from attnflow.comparing.cluster import start

    ray.shutdown()  # A run on Ray in another file leaves its cluster to the next one.
    # Two actors on two processors would leave none to Ray Data for reading.
    start(ray, num_cpus=4)
    yield ray
    ray.shutdown()


def ordered(result):
    return result.records.sort_values(KEYS).reset_index(drop=True)


def listening(session):
    """The addresses on which processes of this Ray session listen."""
    known = {}
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A":
                known[f"socket:[{fields[9]}]"] = fields[1].rpartition(":")[0]
    found = set()
    for process in Path("/proc").iterdir():
        try:
            mine = process.name == str(os.getpid()) or session in (process / "cmdline").read_text()
            found |= {known[os.readlink(f)] for f in (process / "fd").iterdir() if mine and os.readlink(f) in known}
        except (OSError, ValueError):
            continue
    return found


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="the kernel does not show its sockets")
def test_a_cluster_that_is_started_here_listens_on_this_machine_alone(cluster):
    compare(tiny("bert"), tokenizer(), TEXTS, methods="raw", engine="ray", workers=1)
    session = cluster._private.worker._global_node.session_name
    found = listening(session)
    assert found and found <= {"0100007F", "0000000000000000FFFF00000100007F", "00000000000000000000000001000000"}
    assert "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER" not in os.environ


@pytest.mark.slow
def test_records_equal_local_ones_with_a_worker_killed(cluster, tmp_path):
    folder, marks = str(tmp_path / "workers"), str(tmp_path / "marks")
    os.makedirs(folder)
    os.makedirs(marks)
    test = os.getpid()

    def slow_and_seen(model, tokenizer, inputs):
        """Tells the test which processes work and how far; the second waits until a third has taken over."""
        if os.getpid() != test:
            open(os.path.join(folder, str(os.getpid())), "w").close()
            done = len(os.listdir(marks))
            # The first two wait for one another; after some work they wait for the one that takes over.
            needed = 2 if done < 8 else 3
            deadline = time.monotonic() + 100
            while len(os.listdir(folder)) < needed and time.monotonic() < deadline:
                time.sleep(0.05)
            open(os.path.join(marks, str(time.monotonic_ns())), "w").close()
        return np.arange(inputs["input_ids"].shape[1])

    texts = [f"{TEXTS[i % 4]} {' the' * (i % 3)}" for i in range(64)]
    options = {"methods": ("raw", "rollout"), "references": {"gradient": {}, "spy": slow_and_seen}}
    killed, finished = [], threading.Event()

    def kill_one():
        # As long as the run goes on: a busy machine may take minutes to start a cluster.
        while not finished.wait(0.05):
            if len(working := os.listdir(folder)) == 2 and len(os.listdir(marks)) >= 8:
                os.kill(int(working[0]), signal.SIGKILL)
                killed.append(int(working[0]))
                return

    killer = threading.Thread(target=kill_one)
    killer.start()
    try:
        spread = compare(tiny("bert"), tokenizer(), texts, engine="ray", workers=2, out=tmp_path / "run", **options)
    finally:
        finished.set()
        killer.join()
    assert len(killed) == 1 and len(os.listdir(folder)) == 3, "two worked, one was killed, a third took over"
    local = compare(tiny("bert"), tokenizer(), texts, **options)
    a, b = ordered(local), ordered(spread)
    assert not b.duplicated(KEYS).any() and a.drop(columns="value").equals(b.drop(columns="value"))
    np.testing.assert_allclose(a["value"], b["value"], atol=1e-6)
    assert set(spread.costs) == set(local.costs)
    again = compare(tiny("bert"), tokenizer(), texts, out=tmp_path / "run", resume=True, **options)
    assert ordered(again).equals(b), "a run begun on a cluster goes on without one"


PAPER = {"methods": ("raw",), "references": ("gradient", "gradient-paper")}


@pytest.mark.filterwarnings("ignore::attnflow.errors.AttnFlowWarning")
def test_what_is_rounding_error_comes_back_from_a_worker(monkeypatch):
    """The actor as Ray calls it and the table as it comes back, without a cluster: a warning would stay there."""
    import pickle
    import types

    import pyarrow as pa

    from attnflow.comparing.cluster import Actor
    from attnflow.comparing.comparison import Comparison
    from attnflow.comparing.plan import make_plan
    from attnflow.inputs.datasets import Row

    monkeypatch.setitem(sys.modules, "ray", types.SimpleNamespace(get=lambda held: held))
    rest = {"position": None, "unit": "token", "k": 5, "max_length": None, "batch_size": 32, "on_error": "raise"}
    plan = make_plan(PAPER["methods"], PAPER["references"], "spearman", None, None, **rest)
    actor = Actor(tiny("bert"), tokenizer(), pickle.loads(pickle.dumps(plan)))
    sent = actor({"row": [pickle.dumps(Row(i, text)) for i, text in enumerate(TEXTS)]})
    there = Comparison(pa.ipc.open_stream(sent["table"][0]).read_all())
    here = compare(tiny("bert"), tokenizer(), TEXTS, **PAPER)
    assert sent["error"] == [""] and "gradient-paper is rounding error here" in here.to_markdown()
    assert there.to_markdown() == here.to_markdown() and repr(there) == repr(here)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::attnflow.errors.AttnFlowWarning")
def test_what_is_rounding_error_is_known_of_records_from_a_cluster(cluster):
    there = compare(tiny("bert"), tokenizer(), TEXTS, engine="ray", workers=2, **PAPER)
    found = there.records.set_index("reference")["reference_rounding"]
    assert (found["gradient-paper"] < 1e-6).all() and found["gradient"].isna().all()
    assert "\n\ngradient-paper is rounding error here: " in there.to_markdown()


@pytest.mark.slow
def test_an_error_on_a_worker_is_the_users_error(cluster):
    with pytest.raises(AttnFlowError, match="Example 1: The text has 62 tokens"):
        compare(tiny("bert"), tokenizer(), [TEXTS[0], "the " * 60], methods="raw", engine="ray", workers=1)


@pytest.mark.slow
def test_questions_on_a_cluster_are_as_here(cluster, tmp_path):
    from attnflow.answers.questions import cite
    from tests.answers.test_questions import ROWS
    from tests.answers.tiny import causal
    from tests.answers.tiny import tokenizer as plain

    given = {"methods": ["direct", "direct:alti"], "check": 2}
    here = cite(causal(), plain(), ROWS, **given)
    spread = cite(causal(), plain(), ROWS, engine="ray", workers=2, out=tmp_path / "run", **given)
    by = ["example", "method"]
    a, b = (one.records().sort_values(by).reset_index(drop=True) for one in (here, spread))
    numbers = ["share", "without", "logprob"]
    assert a.drop(columns=numbers).equals(b.drop(columns=numbers))
    np.testing.assert_allclose(a[numbers].astype(float), b[numbers].astype(float), atol=1e-5)
    np.testing.assert_allclose(here.to_frame()["precision"], spread.to_frame()["precision"])
    again = cite(causal(), plain(), ROWS, out=tmp_path / "run", resume=True, **given)
    assert again.records().sort_values(by).reset_index(drop=True).equals(b)


@pytest.mark.slow
def test_too_many_workers_would_starve_the_reader(cluster):
    with pytest.raises(InputError, match="4 workers need one processor each.*the cluster has 4. Use workers=3"):
        compare(tiny("bert"), tokenizer(), TEXTS, engine="ray", workers=4)


def test_without_ray_the_error_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(InputError, match=r"pip install 'attnflow\[ray\]'"):
        compare(tiny("bert"), tokenizer(), TEXTS, engine="ray")
