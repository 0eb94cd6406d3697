"""Runs as tasks of a Ray cluster, on this machine or many: a task a run.

Ray finds room for the runs, and starts one anew elsewhere when its machine is lost. Which runs
there are, what each is known by and where it goes on from stays ours: a task only carries out
words, and finds in the run's folder where an earlier start of it came to.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import functools
import logging
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
from trimtab.benchmarks.runs.away import scratch_of
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
from trimtab.benchmarks.suites.unshared import Keeper, KeptHome
from trimtab.errors import Stopped, TrimtabError

__all__ = ["LAUNCHER"]

LOOK = 0.2
"""Seconds between two looks at the cluster."""
GRACE = 60.0
"""Seconds that tasks have to save their runs' states when this process is told to end."""
_EVERY = 1.0  # seconds between two times that a task says how far it is
_ANSWER = 10.0  # seconds in which a cluster has to answer at first
_PATIENCE = 90.0  # and later on, when its machines may have much else to do
_LEAST = 0.0001  # the smallest share of a core or a GPU that Ray knows
_STORE = 200_000_000  # bytes for objects on this machine; outcomes are a few kB each
_LOCALHOST = ("127.0.0.1", "localhost")
_HELLO = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
"""How a caller of gRPC begins; who serves it answers with settings of its own."""

OPTIONS = {
    "address": Option("", "host:port of a cluster's head, or auto; empty: start Ray here"),
    "cpus": Option(1.0, "cores of a run"),
    "gpus": Option(0.0, "GPUs of a run; 0.5: two runs share one"),
    "memory_gb": Option(0.0, "memory that a node must have free for a run; 0: any"),
    "resources": Option("", "names that the cluster gives to nodes, such as '{a100: 1}'"),
    "retries": Option(3, "how often a run whose node or process is lost is started again"),
    "shared": Option("true", "false: nodes share no files; runs come back through Ray"),
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
                **_resources(start.settings), retry_exceptions=[Stopped],
                max_retries=start.settings["retries"], scheduling_strategy="SPREAD",
            )  # fmt: skip
        except (TypeError, ValueError) as error:
            raise TrimtabError(f"launcher=ray: Ray says: {_line(error)}") from error
        self._place: dict[str, Any] = {
            "folder": os.getcwd(), "keeper": None,
            "variables": {k: v for k, v in os.environ.items() if k.startswith("TRIMTAB_")},
        }  # fmt: skip
        if start.settings["shared"] == "false":
            keeper: Any = ray.remote(Keeper)
            keeper = keeper.options(num_cpus=0, scheduling_strategy=here)
            self._place["keeper"] = keeper.remote(os.getcwd(), self._place["variables"])
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
                f"launcher=ray: the cluster does not answer any more ({_line(error)}); run the "
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
                    TrimtabError(f"Ray gave it up: {_line(error)}; run the same command to go on")
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
    home = None
    if place["keeper"] is not None:
        node = f"{ray.get_runtime_context().get_node_id()}{place['folder']}"
        call = functools.partial(_called, place["keeper"])
        home = KeptHome(call, node, work.label)
        folder = scratch_of(node)
        folder.mkdir(parents=True, exist_ok=True)
        os.chdir(folder)
    elif os.path.isdir(place["folder"]):
        os.chdir(place["folder"])
    else:
        return {
            "error": f"{platform.node()} does not see the folder {place['folder']}; run the "
            "command where all nodes see it and name runs= there, or add launcher.shared=false"
        }
    with _in_touch(work, mailbox) as (tell, told):
        try:
            return attempt(work, tell, home)
        except Stopped as stopped:
            if not told.is_set():
                raise
            return {"error": str(stopped)}


def _called(keeper: Any, what: str, *said: Any) -> Any:
    """Call a method of the keeper.

    Raises:
        TrimtabError: if it cannot do it, or is gone: the command that asked for the runs has ended.
    """
    import ray
    from ray.exceptions import RayError

    try:
        return ray.get(getattr(keeper, what).remote(*said))
    except RayError as error:
        raise TrimtabError(f"the machine that asked for the run says: {_line(error)}") from error


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
                if ray.get(said, timeout=_ANSWER):
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


def _resources(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return what Ray is told of a task's needs.

    Raises:
        TrimtabError: if there is a number that Ray does not take, or ``resources`` is no mapping
            from names to numbers.
    """
    for key in ("cpus", "gpus"):
        if 0 < settings[key] < _LEAST:
            raise TrimtabError(f"launcher.{key}={settings[key]}: must be 0, or {_LEAST} or more")
    if settings["gpus"] > 1 and settings["gpus"] % 1:
        raise TrimtabError(
            f"launcher.gpus={settings['gpus']}: must be a part of one GPU, or a whole number"
        )
    text = settings["resources"]
    try:
        named: Any = yaml.safe_load(text) if text else {}
    except yaml.YAMLError:
        named = None
    right = isinstance(named, dict) and all(
        isinstance(key, str) and type(value) in (int, float) and _LEAST <= value <= 1e9
        for key, value in named.items()
    )
    if not right or {"CPU", "GPU", "memory"} & set(named):
        raise TrimtabError(f"launcher.resources={text}: must be like '{{a100: 1}}'")
    found = {"num_cpus": settings["cpus"], "num_gpus": settings["gpus"], "resources": named}
    if settings["memory_gb"]:
        found["memory"] = int(settings["memory_gb"] * 1e9)
    return found


def _check(settings: Mapping[str, Any]) -> None:
    _resources(settings)
    if settings["shared"] not in ("true", "false"):
        raise TrimtabError(f"launcher.shared={settings['shared']}: must be true or false")
    if settings["address"] not in ("", "auto"):
        _check_answers(settings["address"])


def _check_answers(address: str) -> None:
    """Check that a server of gRPC is at an address: Ray itself would try for a minute.

    Raises:
        TrimtabError: if there is none.
    """
    host, _, port = address.rpartition(":")
    if not host or "/" in host or not port.isdigit() or not 0 < int(port) < 65536:
        raise TrimtabError(
            f"launcher.address={address}: must be host:port of the cluster's head, as ray start "
            "says it, or auto"
        )
    secured = os.environ.get("RAY_USE_TLS", "0") not in ("", "0")
    try:
        with socket.create_connection((host, int(port)), timeout=_ANSWER) as connection:
            if secured:
                return
            connection.settimeout(_ANSWER)
            connection.sendall(_HELLO)
            answer = connection.recv(9)
    except OSError as error:
        raise TrimtabError(
            f"launcher.address={address}: nobody answers there ({_line(error)}); start the "
            "cluster, or leave the word out to start Ray here"
        ) from error
    if answer[3:4] != b"\x04":
        raise TrimtabError(f"launcher.address={address}: what answers there is not Ray")


def _check_room(settings: Mapping[str, Any], nodes: list[dict[str, Any]]) -> None:
    """Check that some node of the cluster could ever carry out a run.

    Raises:
        TrimtabError: naming what no node has.
    """
    asked = {"CPU": settings["cpus"], "GPU": settings["gpus"]}
    asked |= {"memory": settings["memory_gb"] * 1e9}
    asked |= yaml.safe_load(settings["resources"] or "{}")
    alive = [node["Resources"] for node in nodes if node["Alive"]]
    if any(all(node.get(key, 0) >= much for key, much in asked.items()) for node in alive):
        return
    has = sorted({key for node in alive for key in node if not key.startswith("node:")})
    lacking = {
        key: much for key, much in asked.items() if all(node.get(key, 0) < much for node in alive)
    }
    want = ", ".join(f"{key}: {much:g}" for key, much in (lacking or asked).items())
    raise TrimtabError(
        f"launcher=ray: no node of the cluster has {want}; nodes have {', '.join(has)}; where "
        "nodes come as they are asked for, add launcher.grows=1"
    )


def _line(error: BaseException) -> str:
    """Return what an error says, in a line; of one in a task, what it was, and not where."""
    cause = getattr(error, "cause", None)
    if isinstance(cause, BaseException):
        return f"{type(cause).__name__}: {_line(cause)}"
    return " ".join(str(error).split())[:200] or type(error).__name__


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
        cores = (start.workers or os.cpu_count() or 1) * max(start.settings["cpus"], 1)
        # "local" is one of its own, whatever RAY_ADDRESS says.
        words = {"address": "local", "num_cpus": int(cores)}
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
        raise TrimtabError(f"launcher=ray: Ray did not start: {_line(error)}") from error
    try:
        if main:  # Ray has put its own in its place
            signal.signal(signal.SIGTERM, handler)
        if not start.settings["grows"]:
            _check_room(start.settings, ray.nodes())
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


LAUNCHER = Kind("ray", _start, OPTIONS, "ray", _check)
