"""A run on many machines, by Ray Data: each worker has an actor that loads the model once.

Workers send back whole examples and the one process that started the run writes them, so that nothing need be
shared but the cluster. A worker that dies is started again and its examples are done again: only finished ones
ever arrive, so none is lost or doubled.
"""

from __future__ import annotations

import math
import os
import pickle
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice
from typing import TYPE_CHECKING, Any

from attnflow import errors
from attnflow.comparing.records import Records, to_table
from attnflow.errors import InputError
from attnflow.inputs.datasets import Row

if TYPE_CHECKING:
    import pyarrow as pa

    from attnflow.comparing.runs import Job, Worker

# Rows that are handed to the cluster at a time, and examples that a worker takes at a time.
SLICE, TASK = 50_000, 16
_SWITCH = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"


def run(
    model: Any,
    tokenizer: Any,
    job: Job,
    rows: Iterator[Row],
    records: Records,
    advance: Callable[[int], None],
    workers: int | None = None,
) -> None:
    """Make the records of ``rows`` on the cluster and keep them in ``records`` as they arrive.

    A cluster that is connected already is used, else the one that ``RAY_ADDRESS`` names, else a local one that only
    this machine can reach.
    """
    ray = _ray()
    if not ray.is_initialized():
        start(ray)
    processors = int(ray.cluster_resources().get("CPU", 1))
    count = workers or max(1, processors // 2)
    if count >= processors:
        raise InputError(
            f"{count} workers need one processor each, and Ray Data one more to read: the cluster has {processors}. "
            f"Use workers={max(1, processors - 1)}, or start it with more:  ray start --head --num-cpus {count + 2}"
        )
    held = model if isinstance(model, str) else ray.put(model)
    with _quiet():
        while part := list(islice(rows, SLICE)):
            for table in _tables(ray, part, {"model": held, "tokenizer": tokenizer, "job": job}, count):
                records.add(table)
                advance(len(set(table.column("example").to_pylist())))


def _ray() -> Any:
    try:
        import ray
        import ray.data
    except ImportError:
        raise InputError("engine='ray' needs Ray, which is not installed:  pip install 'attnflow[ray]'") from None
    return ray


def start(ray: Any, **options: Any) -> None:
    """Connect to the cluster that ``RAY_ADDRESS`` names, or start one here that listens on 127.0.0.1 alone.

    Whoever reaches a port of Ray can run code, and by default Ray opens several to the network. It has no option for
    this but a switch that is named after other systems; what it does is to keep a local cluster on the loopback.
    """
    quiet = {"include_dashboard": False, "log_to_driver": False, **options}
    if os.environ.get("RAY_ADDRESS"):
        ray.init(**quiet)
        return
    from ray._private import ray_constants

    before, known = os.environ.get(_SWITCH), ray_constants.ENABLE_RAY_CLUSTER
    os.environ[_SWITCH], ray_constants.ENABLE_RAY_CLUSTER = "0", False
    try:
        ray.init(_node_ip_address="127.0.0.1", **quiet)
    finally:
        ray_constants.ENABLE_RAY_CLUSTER = known
        if before is None:
            del os.environ[_SWITCH]
        else:
            os.environ[_SWITCH] = before


def _tables(ray: Any, rows: list[Row], given: dict[str, Any], workers: int) -> Iterator[pa.Table]:
    import pyarrow as pa

    items = [{"row": pickle.dumps(row)} for row in rows]
    data = ray.data.from_items(items, override_num_blocks=math.ceil(len(items) / TASK))
    # Ray Data's actors restart, and their tasks are tried again, without limit unless told otherwise.
    made = data.map_batches(
        Actor,
        fn_constructor_kwargs=given,
        batch_size=TASK,
        compute=ray.data.ActorPoolStrategy(size=workers),
        num_cpus=1,
    )
    for found in made.iter_rows():
        if found["table"]:
            yield pa.ipc.open_stream(found["table"]).read_all()
        if found["error"]:
            kind, _, message = found["error"].partition(" ")
            raise getattr(errors, kind)(message)


class Actor:
    """What runs on a worker: it holds the model and turns rows into records."""

    def __init__(self, model: Any, tokenizer: Any, job: Job) -> None:
        import ray

        self.worker: Worker | None = None
        self.failure, self.layout = "", job.layout
        try:
            self.worker = job.worker(model if isinstance(model, str) else ray.get(model), tokenizer)
        except errors.AttnFlowError as error:
            self.failure = f"{type(error).__name__} {error}"

    def __call__(self, batch: dict[str, Any]) -> dict[str, list[Any]]:
        """Rows in, one table of whole examples out, as bytes, because Ray would drop its metadata.

        An error that the user caused is sent as text, together with the records made before it: as an exception
        it would arrive wrapped beyond recognition.
        """
        made: list[dict[str, Any]] = []
        if self.worker is None:
            return {"table": [b""], "error": [self.failure]}
        failure = ""
        try:
            for row in batch["row"]:
                made += self.worker.records(pickle.loads(row))
        except errors.AttnFlowError as error:
            failure = f"{type(error).__name__} {error}"
        table = _to_bytes(to_table(made, self.worker.take_costs(), self.layout)) if made else b""
        return {"table": [table], "error": [failure]}


def _to_bytes(table: pa.Table) -> bytes:
    import pyarrow as pa

    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as stream:
        stream.write_table(table)
    return bytes(sink.getvalue().to_pybytes())


@contextmanager
def _quiet() -> Iterator[None]:
    """Switch Ray's own progress bars off: the run has one."""
    from ray.data import DataContext

    context = DataContext.get_current()
    before = context.enable_progress_bars
    context.enable_progress_bars = False
    try:
        yield
    finally:
        context.enable_progress_bars = before
