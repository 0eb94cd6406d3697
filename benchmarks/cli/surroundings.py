"""What a process is started with: its open streams, its folder, its environment variables."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, redirect_stdout
from typing import TextIO

from trimtab.errors import TrimtabError
from trimtab.files import limit_reached

__all__ = [
    "LOG", "answer_alone", "answer_stream", "check_renderer", "check_streams", "limits_told",
    "log_level",
]  # fmt: skip


LOG = "TRIMTAB_LOG"
_RENDERERS = {
    *("", "egl", "glx", "osmesa", "glfw", "cgl", "wgl"),
    *("on", "enable", "enabled", "true", "1", "off", "disable", "disabled", "false", "0"),
}
"""Values of ``MUJOCO_GL`` that MuJoCo takes, in small letters."""
_LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")


def check_streams() -> None:
    """Open what of the standard streams is closed, so that no file gets the number of one.

    A library that writes to standard error by its number would write into that file. What standard
    output has no letter for, as in a C locale, is written as Python's escape of it.

    Raises:
        TrimtabError: if standard output is closed: no result could be shown.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest number that is free: this one
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115 - open until the process ends
    if sys.stdout is None:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115 - open until the process ends
        raise TrimtabError("standard output is closed; send it to a file, or to /dev/null")
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


@contextmanager
def limits_told() -> Iterator[None]:
    """Tell in one line what fails because of a limit of the shell (``ulimit``).

    Raises:
        TrimtabError: in the place of the exception.
    """
    try:
        yield
    except Exception as error:
        reason = None if isinstance(error, TrimtabError) else limit_reached(error)
        if reason is None:
            raise
        raise TrimtabError(f"{' '.join(str(error).split())[:200]}; {reason}") from error


def check_renderer() -> None:
    """Check that MuJoCo knows the renderer that is asked for: it would end each import.

    Raises:
        TrimtabError: if it does not.
    """
    given = os.environ.get("MUJOCO_GL", "")
    if given.strip().lower() not in _RENDERERS:
        raise TrimtabError(f"MUJOCO_GL={given}: there are: egl, osmesa, glfw; or leave it out")


def log_level() -> str:
    """Return what is logged, by the environment variable ``TRIMTAB_LOG``; by default warnings.

    Raises:
        TrimtabError: if the variable is no level.
    """
    given = os.environ.get(LOG, "")
    level = given.strip().upper() or "WARNING"
    if level not in _LEVELS:
        raise TrimtabError(f"{LOG}={given}: there are: {', '.join(_LEVELS)}; or leave it out")
    return level


_answers: list[TextIO] = []
"""Where an answer goes while nothing else may go to standard output."""


@contextmanager
def answer_alone() -> Iterator[None]:
    """Let what goes to :func:`answer_stream` through to standard output, and nothing else.

    All else that is written there goes to standard error: also what C code writes by the number of
    the stream, and what child processes write that start meanwhile.
    """
    shown = sys.stdout
    try:
        real = shown.fileno() == 1
    except (OSError, ValueError):  # such as that of a notebook
        real = False
    shown.flush()
    with ExitStack() as stack:
        if real:
            _answers.append(stack.enter_context(open(os.dup(1), "w", encoding="utf-8")))
            stack.callback(os.dup2, _answers[-1].fileno(), 1)
            os.dup2(2, 1)
        else:
            _answers.append(shown)
        stack.callback(_answers.pop)
        stack.callback(shown.flush)  # what somebody has written to it, while it is standard error
        stack.enter_context(redirect_stdout(sys.stderr))
        yield


def answer_stream() -> TextIO:
    """Return what a command's answer is written to, such as its JSON: standard output."""
    return _answers[-1] if _answers else sys.stdout
