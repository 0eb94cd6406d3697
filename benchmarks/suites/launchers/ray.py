"""Runs as tasks of a Ray cluster, on this machine or many: a task a run.

Ray finds room for the runs, and starts one anew elsewhere when its machine is lost. Which runs
there are, what each is known by and where it goes on from stays ours: a task only carries out
words, and finds in the run's folder where an earlier start of it came to.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import logging
import math
import os
import platform
import signal
import threading
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from trimtab.benchmarks.core.mailbox import Mailbox
from trimtab.benchmarks.core.signals import sigterm_as_event
from trimtab.benchmarks.suites.launch import (
    STOPPED,
    Done,
    Kind,
    Launcher,
    Option,
    Start,
    Tell,
    Work,
    attempt,
    settle,
)
from trimtab.benchmarks.suites.ray_needs import (
    ANSWER,
    check_needs,
    check_room,
    cores_here,
    line_of,
    resources_of,
)  # fmt: skip
from trimtab.errors import Stopped, TrimtabError

__all__ = ["LAUNCHER"]

LOOK = 0.2
"""Seconds between two looks at the cluster."""
GRACE = 60.0
"""Seconds that tasks have to save their runs' states when this process is told to end."""
_EVERY = 1.0  # seconds between two times that a task says how far it is
_PATIENCE = 90.0  # and later on, when its machines may have much else to do
_STORE = 200_000_000  # bytes for objects on this machine; outcomes are a few kB each
_LOCALHOST = ("127.0.0.1", "localhost")

OPTIONS = {
    "address": Option("", "host:port of a cluster's head, or auto; empty: start Ray here"),
    "cpus": Option(1.0, "cores of a run"),
    "gpus": Option(0.0, "GPUs of a run; 0.5: two runs share one"),
    "memory_gb": Option(0.0, "memory that a node must have free for a run; 0: any"),
    "resources": Option("", "names that the cluster gives to nodes, such as '{a100: 1}'"),
    "retries": Option(3, "how often a run whose node or process is lost is started again"),
    "grows": Option(0, "1: the cluster gets nodes as they are asked for; do not look for one now"),
}


class _Tasks:
    """Tasks of a cluster as a launcher."""

    def __init__(self, start: Start, told: threading.Event) -> None:
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        self._start, self._told, self._ray = start, told, ray
        here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
        holder: Any = ray.remote(Mailbox)
        self._mailbox = holder.options(num_cpus=0, scheduling_strategy=here).remote()
        try:
            self._task = ray.remote(_carry_out).options(
                **resources_of(start.settings), retry_exceptions=[Stopped],
                max_retries=start.settings["retries"], scheduling_strategy="SPREAD",
            )  # fmt: skip
        except (TypeError, ValueError) as error:
            raise TrimtabError(f"launcher=ray: Ray says: {line_of(error)}") from error
        self._place: dict[str, Any] = {
            "folder": os.getcwd(),
            "variables": {k: v for k, v in os.environ.items() if k.startswith("TRIMTAB_")},
        }  # fmt: skip
        self._waiting: list[tuple[Work, concurrent.futures.Future[Done]]] = []
        self._running: dict[Any, concurrent.futures.Future[Done]] = {}

    def submit(self, work: Work) -> concurrent.futures.Future[Done]:
        """Have a run carried out as soon as the cluster has room."""
        future: concurrent.futures.Future[Done] = concurrent.futures.Future()
        self._waiting.append((work, future))
        return future

    def await_some(
        self, futures: Collection[concurrent.futures.Future[Done]]
    ) -> set[concurrent.futures.Future[Done]]:
        """Return those of the futures that are done, once there is one."""
        while True:
            self._hand_over()
            self._look(LOOK)
            if ready := {future for future in futures if future.done()}:
                return ready
            if self._told.is_set():
                raise Stopped(STOPPED)

    def _hand_over(self) -> None:
        most = self._start.workers or len(self._waiting) + len(self._running)
        while self._waiting and len(self._running) < most:
            work, future = self._waiting.pop(0)
            self._running[self._task.remote(work, self._mailbox, self._place)] = future

    def _look(self, seconds: float) -> None:
        """Wait a while for tasks to end; hand on what was said meanwhile."""
        from ray.exceptions import RayError

        try:
            ended, _ = self._ray.wait(list(self._running), timeout=seconds)
            said = self._ray.get(self._mailbox.take.remote(), timeout=_PATIENCE)
        except RayError as error:
            raise TrimtabError(
                f"launcher=ray: the cluster does not answer any more ({line_of(error)}); run the "
                "same command to go on"
            ) from error
        for label, (share, text) in said.items():
            self._start.tell(label, share, text)
        for task in ended:
            future = self._running.pop(task)
            try:
                settle(future, self._ray.get(task))
            except RayError as error:
                future.set_exception(
                    TrimtabError(f"Ray gave it up: {line_of(error)}; run the same command to go on")
                )

    def end(self) -> None:
        """Have the tasks told to save their runs' states, and wait until they have."""
        from ray.exceptions import RayError

        if not self._running:
            return
        with contextlib.suppress(RayError):
            self._ray.get(self._mailbox.stop.remote(), timeout=GRACE)
            self._ray.wait(list(self._running), num_returns=len(self._running), timeout=GRACE)


def _carry_out(work: Work, mailbox: Any, place: Mapping[str, Any]) -> dict[str, Any]:
    """Carry out one run in a process of Ray's; return what became of it.

    Raises:
        Stopped: if the process is told to end by its machine: the run is started again elsewhere.
    """
    import ray

    if ray.get(mailbox.say.remote(work.label, 0.0, f"begins on {platform.node()}")):
        return {"error": STOPPED}
    os.environ.update(place["variables"])
    if os.path.isdir(place["folder"]):
        os.chdir(place["folder"])
    else:
        return {
            "error": f"{platform.node()} does not see the folder {place['folder']}; run the "
            "command where all nodes see it, or name an address with runs="
        }
    with _in_touch(work, mailbox) as (tell, told):
        try:
            return attempt(work, tell)
        except Stopped as stopped:
            if not told.is_set():
                raise
            return {"error": str(stopped)}


@contextmanager
def _in_touch(work: Work, mailbox: Any) -> Iterator[tuple[Tell, threading.Event]]:
    """Say how far a run is every so often, and have it stop when that is asked for.

    Yields:
        What is told how far the run is, and what is set once it is to stop.
    """
    import ray

    now: tuple[float, str] = 0.0, "begins"
    told, over = threading.Event(), threading.Event()
    usual = signal.getsignal(signal.SIGTERM)

    def tell(label: str, share: float, text: str) -> None:
        nonlocal now
        now = share, text

    def talk() -> None:
        while not over.is_set():
            with contextlib.suppress(Exception):  # Ray ends this process where nobody is left
                share, text = now
                said = mailbox.say.remote(work.label, share, f"{text} on {platform.node()}")
                if ray.get(said, timeout=ANSWER):
                    told.set()
            # A run listens while it is carried out; before, there is no state to save.
            if told.is_set() and signal.getsignal(signal.SIGTERM) != usual:
                os.kill(os.getpid(), signal.SIGTERM)
                return
            over.wait(_EVERY)

    talker = threading.Thread(target=talk, daemon=True)
    talker.start()
    try:
        yield tell, told
    finally:
        over.set()
        talker.join(timeout=2)


@contextmanager
def _connected(start: Start) -> Iterator[None]:
    """Be connected with a cluster, one of this machine alone where there is no address.

    Raises:
        TrimtabError: if there is none, or no node has what a run asks for.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    import ray

    address = start.settings["address"]
    words: dict[str, Any] = {"address": address}
    if not address:
        # As many as there are, or more where more runs side by side are asked for.
        cores = max(cores_here(), math.ceil(start.workers * start.settings["cpus"]))
        # "local" is one of its own, whatever RAY_ADDRESS says.
        words = {"address": "local", "num_cpus": cores}
        words |= {"include_dashboard": False, "object_store_memory": _STORE}
    elif address.rpartition(":")[0] in _LOCALHOST:  # a cluster that this machine has for itself
        words["_node_ip_address"] = _LOCALHOST[0]
    handler = signal.getsignal(signal.SIGTERM)
    main = threading.current_thread() is threading.main_thread()
    try:
        ray.init(**words, log_to_driver=False, logging_level=logging.ERROR)
    except (ConnectionError, RuntimeError, ValueError, OSError, ray.exceptions.RayError) as error:
        if "AuthToken" in str(error):  # Ray's own line is as long as a page
            raise TrimtabError(
                f"launcher.address={address}: the cluster asks for a token; set RAY_AUTH_MODE=token"
                " and have its token in ~/.ray/auth_token"
            ) from error
        raise TrimtabError(f"launcher=ray: Ray did not start: {line_of(error)}") from error
    try:
        if main:  # Ray has put its own in its place
            signal.signal(signal.SIGTERM, handler)
        if not start.settings["grows"]:
            check_room(start.settings, ray.nodes())
        yield
    finally:
        ray.shutdown()


@contextmanager
def _start(start: Start) -> Iterator[Launcher]:
    with _connected(start), sigterm_as_event() as told:
        tasks = _Tasks(start, told)
        try:
            yield tasks
        finally:
            tasks.end()


LAUNCHER = Kind("ray", _start, OPTIONS, "ray", check_needs)
