"""Runs as tasks of a Ray cluster, on this machine or many: a task a run.

Ray finds room for the runs, and starts one anew elsewhere when its machine is lost. A task only
carries out words, and finds in the run's folder, or at its address, how far an earlier start came.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import logging
import math
import os
import platform
import signal
import socket
import threading
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import yaml

from trimtab.benchmarks.core.mailbox import Mailbox
from trimtab.benchmarks.core.signals import sigterm_as_event
from trimtab.benchmarks.suites.launch import (
    STOPPED,
    Done,
    Kind,
    Launcher,
    Option,
    Start,
    Work,
    attempt,
    line_of,
    settle,
)
from trimtab.errors import Stopped, TrimtabError

__all__ = ["LAUNCHER"]

logger = logging.getLogger(__name__)

LOOK = 0.2
"""Seconds between two looks at the cluster."""
GRACE = 60.0
"""Seconds that tasks have to save their runs' states when this process is told to end."""
_ANSWER = 10.0  # seconds in which a cluster's head has to answer
_EVERY = 1.0  # seconds between two times that a task says how far it is
_PATIENCE = 90.0  # seconds for an answer when the machines may have much else to do
_STORE = 200_000_000  # bytes for objects on this machine; outcomes are a few kB each

OPTIONS = {
    "address": Option("", "host:port of a cluster's head, or auto; empty: start Ray here"),
    "cpus": Option(1.0, "cores of a run"),
    "gpus": Option(0.0, "GPUs of a run; 0.5: two runs share one"),
    "memory_gb": Option(0.0, "memory that a node must have free for a run; 0: any"),
    "resources": Option("", "names that the cluster gives to nodes, such as '{a100: 1}'"),
    "retries": Option(3, "how often a run whose node or process is lost is started again"),
}


def _asked(settings: Mapping[str, Any]) -> dict[str, float]:
    """Return what a run asks for, by Ray's names.

    Raises:
        TrimtabError: if ``resources`` is no mapping from names to numbers.
    """
    text = settings["resources"]
    try:
        named: Any = yaml.safe_load(text) if text else {}
    except yaml.YAMLError:
        named = None
    if not isinstance(named, dict) or not all(
        isinstance(key, str) and type(value) in (int, float) and 0 < value <= 1e9
        for key, value in named.items()
    ):
        raise TrimtabError(f"launcher.resources={text}: must be like '{{a100: 1}}'")
    if settings["gpus"] > 1 and settings["gpus"] % 1:
        raise TrimtabError(
            f"launcher.gpus={settings['gpus']}: must be a part of one GPU, or a whole number"
        )
    own = {"CPU": settings["cpus"], "GPU": settings["gpus"], "memory": settings["memory_gb"] * 1e9}
    return named | {key: much for key, much in own.items() if much}


class _Tasks:
    """Tasks of a cluster as a launcher."""

    def __init__(self, start: Start, told: threading.Event) -> None:
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        self._start, self._told, self._ray = start, told, ray
        here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
        holder: Any = ray.remote(Mailbox)
        self._mailbox = holder.options(num_cpus=0, scheduling_strategy=here).remote()
        asked = _asked(start.settings)
        own = {"num_cpus": asked.pop("CPU", 0), "num_gpus": asked.pop("GPU", 0)}
        if memory := asked.pop("memory", 0):
            own["memory"] = int(memory)
        try:
            self._task = ray.remote(_carry_out).options(
                **own, resources=asked, retry_exceptions=[Stopped],
                max_retries=start.settings["retries"], scheduling_strategy="SPREAD",
            )  # fmt: skip
        except (TypeError, ValueError) as error:
            raise TrimtabError(f"launcher=ray: Ray says: {line_of(error)}") from error
        variables = {k: v for k, v in os.environ.items() if k.startswith("TRIMTAB_")}
        self._place = os.getcwd(), variables
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
            most = self._start.workers or math.inf
            while self._waiting and len(self._running) < most:
                work, future = self._waiting.pop(0)
                self._running[self._task.remote(work, self._mailbox, *self._place)] = future
            self._look(LOOK)
            if ready := {future for future in futures if future.done()}:
                return ready
            if self._told.is_set():
                raise Stopped(STOPPED)

    def _look(self, seconds: float) -> None:
        """Wait a while for tasks to end; hand on what was said meanwhile."""
        from ray.exceptions import RayError

        try:
            ended, _ = self._ray.wait(list(self._running), timeout=seconds)
            said = self._ray.get(self._mailbox.take.remote(), timeout=_PATIENCE)
        except RayError as error:
            raise TrimtabError(
                f"launcher=ray: the cluster does not answer any more ({line_of(error)}); run the "
                "same command to resume"
            ) from error
        for label, (share, text) in said.items():
            self._start.tell(label, share, text)
        for task in ended:
            future = self._running.pop(task)
            try:
                settle(future, self._ray.get(task))
            except RayError as error:
                future.set_exception(
                    TrimtabError(
                        f"Ray gave it up: {line_of(error)}; run the same command to resume"
                    )
                )

    def end(self) -> None:
        """Have the tasks told to save their runs' states, and wait until they have."""
        from ray.exceptions import RayError

        if not self._running:
            return
        with contextlib.suppress(RayError):
            self._ray.get(self._mailbox.stop.remote(), timeout=GRACE)
            self._ray.wait(list(self._running), num_returns=len(self._running), timeout=GRACE)


def _carry_out(
    work: Work, mailbox: Any, folder: str, variables: Mapping[str, str]
) -> dict[str, Any]:
    """Carry out one run in a process of Ray's; return what became of it.

    Args:
        work: the run.
        mailbox: where it says how far it is, and hears whether it is to stop.
        folder: the current folder of the command.
        variables: of the command's environment.

    Raises:
        Stopped: if the process is told to end by its machine: the run is started again elsewhere.
    """
    import ray
    from ray.exceptions import RayError

    now: tuple[float, str] = 0.0, "begins"
    told, over = threading.Event(), threading.Event()
    usual = signal.getsignal(signal.SIGTERM)

    def tell(label: str, share: float, text: str) -> None:
        nonlocal now
        now = share, text

    def talk() -> None:
        """Say how far the run is every so often; where it is to stop, tell it as a machine does."""
        while not over.wait(_EVERY):
            share, text = now
            with contextlib.suppress(RayError):  # Ray ends this process where nobody is left
                said = mailbox.say.remote(work.label, share, f"{text} on {platform.node()}")
                if ray.get(said, timeout=_PATIENCE):
                    told.set()
            # A run listens while it is carried out; before, there is no state to save.
            if told.is_set() and signal.getsignal(signal.SIGTERM) != usual:
                os.kill(os.getpid(), signal.SIGTERM)
                return

    if ray.get(mailbox.say.remote(work.label, 0.0, f"begins on {platform.node()}")):
        return {"error": STOPPED}
    os.environ.update(variables)
    if not os.path.isdir(folder):
        return {
            "error": f"{platform.node()} does not see the folder {folder}; run the command in a "
            "folder that all nodes see"
        }
    os.chdir(folder)
    talker = threading.Thread(target=talk, daemon=True)
    talker.start()
    try:
        return attempt(work, tell)
    except Stopped as stopped:
        if not told.is_set():
            raise
        return {"error": str(stopped)}
    finally:
        over.set()
        talker.join(timeout=2)


def _check(settings: Mapping[str, Any]) -> None:
    """Check what a run asks for, and that something answers at the address.

    Raises:
        TrimtabError: if not: Ray itself would try for a minute.
    """
    _asked(settings)
    address = settings["address"]
    if address in ("", "auto"):
        return
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=_ANSWER).close()
    except (OSError, ValueError, OverflowError) as error:
        raise TrimtabError(
            f"launcher.address={address}: nothing answers there ({line_of(error)}); give host:port "
            "of the cluster's head, as ray start says it, or leave the word out to start Ray here"
        ) from error


@contextmanager
def _connected(start: Start) -> Iterator[None]:
    """Be connected with a cluster, one of this machine alone where there is no address.

    Raises:
        TrimtabError: if there is none.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    import ray

    address, asked = start.settings["address"], _asked(start.settings)
    words: dict[str, Any] = {"address": address}
    if not address:
        # As many cores as there are, or more where more runs side by side are asked for.
        cores = max(os.cpu_count() or 1, math.ceil(max(start.workers, 1) * asked.get("CPU", 0)))
        # "local" is a cluster of its own, whatever RAY_ADDRESS says.
        words = {"address": "local", "num_cpus": cores}
        words |= {"include_dashboard": False, "object_store_memory": _STORE}
    handler = signal.getsignal(signal.SIGTERM)
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
        if threading.current_thread() is threading.main_thread():  # Ray has put its own in place
            signal.signal(signal.SIGTERM, handler)
        _warn_of_lacks(asked, ray.cluster_resources())
        yield
    finally:
        ray.shutdown()


def _warn_of_lacks(asked: Mapping[str, float], there: Mapping[str, float]) -> None:
    """Say what the cluster has too little of: runs wait until a node with it joins."""
    lacking = [f"{key}: {much:g}" for key, much in asked.items() if there.get(key, 0) < much]
    if lacking:
        logger.warning("launcher=ray: the cluster has no node with %s; runs wait until one joins",
                       ", ".join(lacking))  # fmt: skip


@contextmanager
def _start(start: Start) -> Iterator[Launcher]:
    with _connected(start), sigterm_as_event() as told:
        tasks = _Tasks(start, told)
        try:
            yield tasks
        finally:
            tasks.end()


LAUNCHER = Kind("ray", _start, OPTIONS, "ray", _check)
