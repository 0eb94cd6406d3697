"""What a run asks of Ray, and whether there is what could ever have it."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from typing import Any

import yaml

from trimtab.errors import TrimtabError

__all__ = ["ANSWER", "check_needs", "check_room", "cores_here", "line_of", "resources_of"]

ANSWER = 10.0
"""Seconds in which a cluster has to answer at first."""
_LEAST = 0.0001  # the smallest share of a core or a GPU that Ray knows
_HELLO = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
"""How a caller of gRPC begins; a server answers with settings of its own."""


def resources_of(settings: Mapping[str, Any]) -> dict[str, Any]:
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


def check_needs(settings: Mapping[str, Any]) -> None:
    """Check what a run is to ask for, and that the cluster may have it.

    Raises:
        TrimtabError: if a setting is wrong, nobody answers, or this machine alone is too small.
    """
    resources_of(settings)
    if settings["address"] not in ("", "auto"):
        _check_answers(settings["address"])
    if not settings["address"] and settings["cpus"] > cores_here():
        raise TrimtabError(
            f"launcher.cpus={settings['cpus']:g}: this machine has {cores_here()} cores, and Ray "
            "has no other without launcher.address; ask for fewer, or name a cluster's head"
        )


def cores_here() -> int:
    """Return how many cores this machine has."""
    return os.cpu_count() or 1


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
        with socket.create_connection((host, int(port)), timeout=ANSWER) as connection:
            if secured:
                return
            connection.settimeout(ANSWER)
            connection.sendall(_HELLO)
            answer = connection.recv(9)
    except OSError as error:
        raise TrimtabError(
            f"launcher.address={address}: nobody answers there ({line_of(error)}); start the "
            "cluster, or leave the word out to start Ray here"
        ) from error
    if answer[3:4] != b"\x04":
        raise TrimtabError(f"launcher.address={address}: what answers there is not Ray")


def check_room(settings: Mapping[str, Any], nodes: list[dict[str, Any]]) -> None:
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


def line_of(error: BaseException) -> str:
    """Return what an error says, in a line; of one in a task, what it was, and not where."""
    cause = getattr(error, "cause", None)
    if isinstance(cause, BaseException):
        return f"{type(cause).__name__}: {line_of(cause)}"
    return " ".join(str(error).split())[:200] or type(error).__name__
