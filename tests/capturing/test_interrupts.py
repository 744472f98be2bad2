"""Ctrl-C at any moment, and a fork while another thread captures, leave nothing behind."""

from __future__ import annotations

import os
import random
import signal
import sys
import threading
import time
from typing import Any

import pytest
import torch
from transformers.modeling_utils import AttentionInterface

from attnflow import capture
from attnflow.capturing import state
from tests.capturing import tiny
from tests.capturing.test_restore import fingerprint

TIMES = int(os.environ.get("ATTNFLOW_INTERRUPTS", "300"))


def _lines(call: Any) -> int:
    """How many lines of Python a call runs in the capture package."""
    count = 0

    def trace(frame: Any, event: str, _: Any) -> Any:
        nonlocal count
        if "attnflow/captur" not in frame.f_code.co_filename:
            return None
        count += event == "line"
        return trace

    sys.settrace(trace)
    try:
        call()
    finally:
        sys.settrace(None)
    return count


def _interrupted(call: Any, at: int) -> bool:
    """The call, with Ctrl-C at line number ``at`` of those; False if it was over before."""
    count, sent = 0, False

    def trace(frame: Any, event: str, _: Any) -> Any:
        nonlocal count, sent
        if "attnflow/captur" not in frame.f_code.co_filename:
            return None
        count += event == "line"
        if count == at and not sent:
            sent = True
            signal.raise_signal(signal.SIGINT)
        return trace

    sys.settrace(trace)
    try:
        call()
    except KeyboardInterrupt:
        pass
    finally:
        sys.settrace(None)
    return sent


@pytest.mark.parametrize("name", ["bert", "mpnet"])
@pytest.mark.parametrize("own", [False, True])
def test_an_interrupt_at_any_line_leaves_nothing(name: str, own: bool) -> None:
    model, ids = tiny.model(name, num_hidden_layers=1).train(), torch.tensor([tiny.IDS])

    def once() -> None:
        if own:
            with capture(model):
                model(ids)
        else:
            capture(model, None, tiny.IDS)

    once()
    before, handler, total = fingerprint(model), signal.getsignal(signal.SIGINT), _lines(once)
    for at in range(1, total + 1, 1 if total < 400 else total // 400):
        _interrupted(once, at)
        assert fingerprint(model) == before, at
        assert signal.getsignal(signal.SIGINT) is handler and torch.is_grad_enabled(), at
        assert not state._open and not state._switched, at
        assert not state._guard._is_owned() and not state.lock_of(model)._is_owned(), at


@pytest.mark.slow
@pytest.mark.parametrize("own", [False, True])
def test_hundreds_of_interrupts_at_any_time(own: bool) -> None:
    """Real signals, at moments that nobody chose: a stray hook once in some hundred would be seen here."""
    model, ids = tiny.model("bert").train(), torch.tensor([tiny.IDS])
    before, handler, chance = fingerprint(model), signal.getsignal(signal.SIGINT), random.Random(0)
    main, stopped = threading.main_thread().ident, 0
    assert main is not None

    def once() -> None:
        if own:
            with capture(model):
                model(ids)
        else:
            capture(model, None, tiny.IDS)

    once()
    begun = time.perf_counter()
    once()
    usual = time.perf_counter() - begun
    for _ in range(TIMES):
        timer = threading.Timer(chance.uniform(0, 1.2) * usual, signal.pthread_kill, (main, signal.SIGINT))
        try:
            timer.start()
            once()
            timer.join()
            time.sleep(0.001)
        except KeyboardInterrupt:
            stopped += 1
        timer.join()
        assert fingerprint(model) == before and signal.getsignal(signal.SIGINT) is handler
        assert not state._open and not state._switched and not state._guard._is_owned()
    assert stopped > TIMES // 2


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_fork_while_another_thread_captures() -> None:
    model, inside, over = tiny.model("bert").train(), threading.Event(), threading.Event()

    def hold() -> None:
        with capture(model):
            inside.set()
            over.wait()

    job = threading.Thread(target=hold)
    job.start()
    inside.wait()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            torch.set_num_threads(1)
            clean = model.training and "eager" not in AttentionInterface._global_mapping
            clean = clean and not any(m._forward_pre_hooks or "forward" in m.__dict__ for m in model.modules())
            status = 0 if clean and len(capture(model, None, tiny.IDS).layers) == 2 else 2
        finally:
            os._exit(status)
    deadline, done = time.monotonic() + 60, (0, 0)
    while done[0] == 0 and time.monotonic() < deadline:
        done = os.waitpid(child, os.WNOHANG)
        time.sleep(0.05)
    over.set()
    job.join()
    if done[0] == 0:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        pytest.fail("the child hangs")
    assert os.waitstatus_to_exitcode(done[1]) == 0
    assert model.training
