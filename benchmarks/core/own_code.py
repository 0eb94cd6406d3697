"""What goes wrong in code that users bring: their tasks, methods and policies.

In Python such an exception stays as it is, with notes on where the run was. The command line, and
the processes of a pool, tell it in one line that names the place in the user's file.
"""

from __future__ import annotations

import logging
import sys
import sysconfig
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from trimtab.errors import TrimtabError
from trimtab.files import atomic_write_text
from trimtab.plugins import plugins

__all__ = ["TRACEBACK", "fault_of_own_code", "in_a_line", "keep_traceback"]

logger = logging.getLogger(__name__)

TRACEBACK = "traceback.txt"
"""File of a run's folder: the traceback of what ended it; gone once it has gone on."""
_COMPILED = (".pyx", ".pxd", ".pxi")  # such frames name the file that was compiled somewhere else
_INSTALLED = tuple(str(Path(sysconfig.get_path(name))) for name in ("purelib", "platlib"))


def fault_of_own_code(error: BaseException) -> str | None:
    """Return in one line what failed where, if an exception came out of code that a user brought.

    Code is a user's if this package called it, and it is neither of this package nor of Python nor
    of an installed distribution that is no plug-in.
    """
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    lines = [line for _, line in traceback.walk_tb(error.__traceback__)]
    places = [index for index, frame in enumerate(frames) if _is_own(frame)]
    if isinstance(error, TrimtabError) or not places:
        return None
    first, last = frames[places[0]], frames[places[-1]]
    what = " ".join(f"{type(error).__name__}: {error}".split())[:300]
    where = f"{Path(last.f_code.co_filename).name} line {lines[places[-1]]}"
    return f"{first.f_code.co_qualname} of your own failed with {what} ({where})"


def _is_own(frame: FrameType) -> bool:
    spec = frame.f_globals.get("__spec__")  # knows the name of a module that runs as __main__
    top = str(getattr(spec, "name", frame.f_globals.get("__name__", ""))).partition(".")[0]
    file = frame.f_code.co_filename
    if top == "trimtab" or top in sys.stdlib_module_names - {"__main__"} or file.startswith("<"):
        return False
    if file.endswith(_COMPILED):
        return False
    return not file.startswith(_INSTALLED) or top in {plugin.package for plugin in plugins()}


def keep_traceback(error: Exception, folder: Path, where: str) -> None:
    """Write the traceback of what ended a run into its folder, and note on the error where it is.

    What has its one line already keeps it alone.
    """
    if isinstance(error, TrimtabError):
        return
    text = "".join(traceback.format_exception(error))
    try:
        atomic_write_text(folder / TRACEBACK, text)
    except TrimtabError:  # the disk may be what failed
        error.add_note(where)
        return
    error.add_note(
        f"{where}; its traceback is in {folder / TRACEBACK}; mend it and run the same command to "
        "resume"
    )


@contextmanager
def in_a_line() -> Iterator[None]:
    """Tell what fails in a user's own code in one line, with the notes on where that was.

    Raises:
        TrimtabError: in the place of the exception; ``TRIMTAB_LOG=debug`` shows its traceback.
    """
    try:
        yield
    except (KeyboardInterrupt, GeneratorExit):
        raise
    except BaseException as error:  # a simulator may call sys.exit, or have its own kind
        line = fault_of_own_code(error)
        if line is None:
            raise
        logger.debug("%s", line, exc_info=error)
        notes = getattr(error, "__notes__", ["TRIMTAB_LOG=debug shows its traceback"])
        raise TrimtabError("; ".join([line, *notes])) from error
