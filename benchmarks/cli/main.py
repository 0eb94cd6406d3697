"""The command line: ``trimtab <command> key=value ...``.

This module imports nothing heavy, so that ``trimtab --help`` answers at once; a command's own
module is imported when the command runs. Wrong input ends as one line on standard error and exit
code 2.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib
import logging
import os
import sys
import threading
from collections.abc import Callable, Sequence

from trimtab.benchmarks.cli.surroundings import (
    answer_alone,
    check_renderer,
    check_streams,
    limits_told,
    log_level,
)
from trimtab.benchmarks.cli.table import COMMANDS
from trimtab.benchmarks.cli.words import HELP, Command, parse, wants_only_text
from trimtab.benchmarks.core.own_code import in_a_line
from trimtab.benchmarks.core.signals import RESUMES, interrupts_noted, sigterm_as_exit
from trimtab.errors import Stopped, TrimtabError, nearest
from trimtab.plugins import add_plugin
from trimtab.version import __version__

logger = logging.getLogger(__name__)

HEADER = """\
Trimtab: a benchmark suite for robot control. In it, small policies steer large generative policies,
fine-tune them and are measured against them.

usage: trimtab <command> key=value ...        trimtab <command> --help explains one command
"""


def main(words: Sequence[str] | None = None) -> None:
    """Carry out the command line and exit with its code."""
    words = list(sys.argv[1:] if words is None else words)
    with interrupts_noted() as interrupted:
        try:
            code = _carried_out(words, interrupted)
        except Exception as error:
            if not interrupted.is_set():
                raise
            code = _interrupted(words, error)
    sys.exit(code)


def console() -> None:
    """Carry out the command line of this process, and end it.

    After an error, C++ libraries that have threads of their own may abort the process while Python
    takes it apart: it would then end with code 134, and not with ours. So it ends after what was
    registered to be done at the end of Python.
    """
    codes: list[int] = []
    atexit.register(_end, codes)  # the first one that is registered is the last one to be called
    try:
        main()
    except SystemExit as ended:
        codes.append(ended.code if isinstance(ended.code, int) else int(ended.code is not None))
        raise
    except KeyboardInterrupt:  # while the first one was told of
        codes.append(130)
        sys.exit(130)
    finally:
        if wants_only_text(sys.argv):  # such as what a simulator prints as it is taken apart
            os.dup2(2, 1)


def _end(codes: Sequence[int]) -> None:
    """End the process with the code of an error, if it ends with one."""
    if codes and codes[0]:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):
                stream.flush()
        os._exit(codes[0])


def _carried_out(words: Sequence[str], interrupted: threading.Event) -> int:
    """Carry out the command line; return its exit code. What is wrong is told in one line."""
    try:
        check_streams()
        check_renderer()
        logging.basicConfig(level=log_level(), format="%(message)s")
        alone = answer_alone() if wants_only_text(words) else contextlib.nullcontext()
        with sigterm_as_exit(_then(words)), in_a_line(), limits_told(), alone:
            code = run(words)
        sys.stdout.flush()
    except TrimtabError as error:
        if interrupted.is_set() and not isinstance(error, Stopped):  # it is what came of that
            return _interrupted(words, error)
        print_error(str(error))
        code = error.exit_code
    except KeyboardInterrupt:
        code = _interrupted(words)
    except SystemExit as ended:  # by a simulator, or by code that Trimtab imported
        if isinstance(ended.__context__, BrokenPipeError):  # rich, where nobody reads a table on
            _silence()
            return 0
        print_error(
            f"something called sys.exit({'' if ended.code is None else repr(ended.code)}) in the "
            "middle of the command; TRIMTAB_LOG=debug shows where"
        )
        logger.debug("sys.exit", exc_info=ended)
        code = 2
    except MemoryError as error:  # such as a buffer or a horizon of billions of steps
        print_error(f"not enough memory: {error or 'close something, or ask for less'}")
        code = 2
    except RecursionError:
        print_error("what was given is nested too deeply, or refers to itself; write it out")
        code = 2
    except ModuleNotFoundError as error:
        print_error(f"{error}; install it, or make an environment from its lock (make install)")
        code = 2
    except BrokenPipeError:
        _silence()
        code = 0
    except OSError as error:
        try:
            sys.stdout.flush()
        except OSError:
            _silence()  # the end of the process would try once more, and tell of it again
        place = f"{error.filename}: " if error.filename else ""
        print_error(f"{place}{error.strerror or error}")
        code = 2
    return code


def _then(words: Sequence[str]) -> str:
    """Return what a person is told whose command was stopped: a server has nothing to resume."""
    return "the server is stopped" if "serve" in words else RESUMES


def _interrupted(words: Sequence[str], error: BaseException | None = None) -> int:
    """Say that the command was interrupted, and what else went wrong in it after that."""
    more = "" if error is None else f" (it ended with: {' '.join(str(error).split())[:300]})"
    print_error(f"interrupted; {_then(words)}{more}")
    return 130


def _silence() -> None:
    """Let nothing more come out of standard output, where it cannot be written."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def print_error(line: str) -> None:
    """Write one line to standard error."""
    sys.stderr.write(f"trimtab: {line}\n")


def run(words: Sequence[str]) -> int:
    """Carry out the command that ``words`` name; return the exit code.

    Raises:
        TrimtabError: on wrong input.
    """
    words = _with_plugins(words)
    if not words or words[0] in (*HELP, "help"):
        sys.stdout.write(overview())
        return 0
    if words[0] in ("--version", "version"):
        sys.stdout.write(f"trimtab {__version__}\n")
        return 0
    name, rest = words[0], list(words[1:])
    if name not in COMMANDS:
        raise TrimtabError(f"{name}: there is no such command; {nearest(name, COMMANDS)}")
    command = COMMANDS[name]
    if {*HELP} & {*rest}:
        sys.stdout.write(explain(name, command, rest))
        return 0
    module, _, attribute = command.function.partition(":")
    if command.settings is None:
        function: Callable[..., int] = getattr(importlib.import_module(module), attribute)
        return function(rest)
    kept = [word for word in rest if word.startswith(command.within)]
    settings = parse(name, command, [word for word in rest if word not in kept])
    if command.within:
        settings["overrides"] = kept
    function = getattr(importlib.import_module(module), attribute)
    return function(**settings)


def _with_plugins(words: Sequence[str]) -> list[str]:
    """Use the plug-ins that ``--with`` names; return the other words."""
    left: list[str] = []
    named = iter(words)
    for word in named:
        option, equals, folder = word.partition("=")
        if option != "--with":
            left.append(word)
            continue
        folder = folder if equals else next(named, "")
        if not folder:
            raise TrimtabError("--with: name the folder of a plug-in, such as --with ./mine")
        add_plugin(folder)
    return left


def overview() -> str:
    """Return what ``trimtab --help`` prints."""
    lines = [HEADER, "commands:"]
    lines += [f"  {name:<12} {command.summary}" for name, command in COMMANDS.items()]
    lines += [
        "",
        "start here:",
        "  trimtab bench suite=quickstart    demonstrations, training, steering, a leaderboard",
        "  trimtab list env                  the tasks",
        "  trimtab check env=gymnasium:<id>  a task of your own, before it is trained on",
        "  trimtab list algorithm            the methods and their papers",
        "  trimtab train --help              every setting of a run; algorithm=<name> adds its own",
        "",
        "trimtab --with ./mine <command> uses methods, tasks and settings of your own.",
        "TRIMTAB_LOG=INFO shows what a command is doing.",
    ]
    return "\n".join(lines) + "\n"


def explain(name: str, command: Command, words: Sequence[str] = ()) -> str:
    """Return what ``trimtab <command> --help`` prints; ``words`` stand beside ``--help``.

    Raises:
        TrimtabError: if a word names a method or a policy that does not exist.
    """
    lines = [f"trimtab {name}: {command.summary}", "", "examples:"]
    lines += [f"  {example}" for example in command.examples]
    lines += ["", "settings:"]
    if command.settings is not None:
        for key, setting in command.settings.items():
            default = "required" if setting.default is ... else f"default {setting.default!r}"
            choices = f" ({', '.join(setting.choices)})" if setting.choices else ""
            of = f"{command.by}={' or '.join(setting.of)}: " if setting.of else ""
            lines.append(f"  {key:<14} {of}{setting.help}{choices}; {default}")
    else:
        lines += importlib.import_module("trimtab.benchmarks.cli.commands.train").explain_run(words)
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    console()
