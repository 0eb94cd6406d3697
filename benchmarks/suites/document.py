"""What a suite's file says: read, and its shapes checked."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from trimtab.benchmarks.training.settings.groups import load_group, load_yaml
from trimtab.benchmarks.training.settings.run_settings import MOST_SEED
from trimtab.benchmarks.training.settings.words import nearest
from trimtab.errors import TrimtabError
from trimtab.files import read_bytes

__all__ = ["KEYS", "check_document", "read_document"]

_MOST_BYTES = 1 << 20  # of a suite's file; a larger one is read for minutes

Shape = Callable[[str, Any], None]
"""Checks a value: given where it is, for messages, it raises where the value is another."""


def read_document(name: str) -> tuple[str, dict[str, Any]]:
    """Return a suite's name and what its file says.

    Args:
        name: name of a suite of the package, or the path of a YAML file of one's own, whose name
            without its ending is the suite's.

    Raises:
        TrimtabError: if there is no such suite, or its file is none.
    """
    path = Path(name)
    if path.suffix not in {".yaml", ".yml"}:
        if len(path.parts) > 1 or name.startswith("."):
            raise TrimtabError(f"suite={name}: must be a name, or a file that ends in .yaml")
        packaged = load_group("suite", name)
        check_document(name, packaged)
        return name, packaged
    try:
        text = read_bytes(path, _MOST_BYTES)
    except TrimtabError as error:
        raise TrimtabError(f"suite={error}") from error
    except OSError as error:
        raise TrimtabError(f"suite={name}: cannot be read ({error.strerror})") from error
    document: Any = OmegaConf.to_container(load_yaml(text, f"suite={name}"))
    check_document(name, document)
    return path.stem, document


def check_document(name: str, document: Any) -> None:
    """Check what a suite's file says, as far as the shapes of its entries go.

    Args:
        name: what errors call the suite.
        document: what its YAML is.

    Raises:
        TrimtabError: naming the entry that is wrong.
    """
    _DOCUMENT(f"suite={name}:", document)
    if not (document.get("runs") or "grid" in document):
        raise TrimtabError(f"suite={name}: it has neither runs nor a grid")
    for scale, says in document.get("scale", {}).items():
        if isinstance(says, dict):
            _check_scale(f"suite={name}: scale.{scale}", says, document.get("grid"))


def _check_scale(where: str, says: dict[str, Any], grid: dict[str, Any] | None) -> None:
    """Check that a scale says nothing of what the suite has not: it would change no run."""
    if grid is None:
        idle, lacking = {*_SCALE.shapes} - _OF_ALL_RUNS, "a grid"
    elif "bases" in grid:
        idle, lacking = {"published"}, "a grid without bases"
    else:
        idle, lacking = _OF_BASES, "bases"
    for key in says:
        if key in idle:
            raise TrimtabError(f"{where}.{key} needs {lacking}, which the suite has not; remove it")


def _at(where: str, key: object) -> str:
    return f"{where} {key}" if where.endswith(":") else f"{where}.{key}"


class _Fields:
    """A mapping with known keys; some of them required."""

    def __init__(self, shapes: Mapping[str, Shape], *required: str) -> None:
        self.shapes, self.required = shapes, required

    def __call__(self, where: str, value: Any) -> None:
        known = self.required or tuple(self.shapes)
        if not isinstance(value, dict):
            raise TrimtabError(f"{where} must be a mapping with {', '.join(known)}")
        for key in value:
            if key not in self.shapes:
                raise TrimtabError(f"{where} has no {key}; {nearest(str(key), self.shapes)}")
        for key in self.required:
            if key not in value:
                raise TrimtabError(f"{where} must have {', '.join(known)}; it has no {key}")
        for key, one in value.items():
            self.shapes[key](_at(where, key), one)


def _named(shape: Shape) -> Shape:
    """Return the shape of a mapping from names to values of a shape."""

    def check(where: str, value: Any) -> None:
        if not isinstance(value, dict):
            raise TrimtabError(f"{where} must be a mapping, with entries by name")
        for key, one in value.items():
            if not isinstance(key, str):
                raise TrimtabError(f"{where} has the name {key}, which is no text; quote it")
            shape(_at(where, key), one)

    return check


def _words_or(shape: Shape) -> Shape:
    """Return the shape of a list of words, or of a mapping that says more."""
    return lambda where, value: (shape if isinstance(value, dict) else _words)(where, value)


def _is(what: str, right: Callable[[Any], bool]) -> Shape:
    """Return the shape of a value of which something holds."""

    def check(where: str, value: Any) -> None:
        if not right(value):
            raise TrimtabError(f"{where}={value}: must be {what}")

    return check


def _words(where: str, value: Any) -> None:
    if not isinstance(value, list):
        raise TrimtabError(f"{where} must be a list of words")
    for word in value:
        if not isinstance(word, str):
            raise TrimtabError(f"{where} has {word!r}, which is no word; quote it")


def _are_seeds(value: Any) -> bool:
    right = isinstance(value, list) and len({*map(str, value)}) == len(value) > 0
    return right and all(type(seed) is int and 0 <= seed <= MOST_SEED for seed in value)


def _is_time(value: Any) -> bool:
    return type(value) in (int, float) and 0 < value < math.inf


_text = _is("text", lambda value: isinstance(value, str))
_text_or_none = _is("text", lambda value: isinstance(value, str | None))
_flag = _is("true or false", lambda value: isinstance(value, bool))
_seeds = _is("whole numbers, 0 or more, each once", _are_seeds)
_seconds = _is("a number above 0", _is_time)
_whole = _is("a whole number, 0 or more", lambda value: type(value) is int and value >= 0)


def _base(where: str, value: Any) -> None:
    if not isinstance(value, bool | list):
        raise TrimtabError(f"{where} must be true, false or a list of bases")
    _words(where, value if isinstance(value, list) else [])


_SOME = dict.fromkeys(("words", "clone", "budget", "data", "where_known"), _words)
_SCALE = _Fields(
    _SOME
    | dict.fromkeys(("tasks", "bases", "methods", "variants", "published", "leave_out"), _words)
    | {"seeds": _seeds, "seeds_of": _named(_seeds), "words_of": _named(_words)}
)
_OF_ALL_RUNS = {"words", "words_of", "seeds", "seeds_of"}
_OF_BASES = {"bases", "variants", "clone", "budget", "data"}
"""What only a scale of a grid with bases says."""
_PLAIN_METHOD = _Fields({"words": _words, "seconds": _seconds, "tasks": _words}, "words")
_METHOD = _Fields(
    {"words": _words, "base": _base, "budget": _flag, "data": _flag, "seconds": _seconds}, "words"
)
_OF_GRIDS: dict[str, Shape] = {"where_known": _words, "seconds": _seconds, "seeds": _seeds}
_PLAIN_GRID = _Fields(
    {
        "methods": _named(_words_or(_PLAIN_METHOD)), "tasks": _named(_words), **_OF_GRIDS,
        "published": _named(_named(_words)),
    },
    "methods", "tasks",
)  # fmt: skip
_GRID = _Fields(
    {
        "methods": _named(_words_or(_METHOD)), "tasks": _named(_Fields(_SOME, "clone", "words")),
        "bases": _named(_words), "variants": _named(_named(_words)), "clone": _words,
        "budget": _words, **_OF_GRIDS,
    },
    "methods", "tasks",
)  # fmt: skip
_RUN = _Fields(
    {
        "overrides": _words, "with": _words, "base": _text_or_none, "seconds": _seconds,
        "seeds": _seeds, "place": _Fields({"task": _text, "method": _text}, "task", "method"),
    }
)  # fmt: skip
_PANEL = _Fields({"title": _text, "run": _text, "env": _text}, "title", "run", "env")


def _panels(where: str, value: Any) -> None:
    if not isinstance(value, list) or not value:
        raise TrimtabError(f"{where} must be a list of what is drawn")
    for number, panel in enumerate(value):
        _PANEL(f"{where}[{number}]", panel)


_FIGURE_SHAPES = {"open": _text, "seed": _whole, "episodes": _whole, "eval_seed": _whole}
_FIGURE = _Fields({"panels": _panels, **_FIGURE_SHAPES}, "panels", *_FIGURE_SHAPES)


def _grid(where: str, value: Any) -> None:
    (_GRID if isinstance(value, dict) and "bases" in value else _PLAIN_GRID)(where, value)


_DOCUMENT = _Fields(
    {
        "title": _text, "seeds": _seeds, "common": _words, "shared": _named(_words),
        "scale": _named(_words_or(_SCALE)), "grid": _grid, "runs": _named(_RUN),
        "baselines": _named(_text_or_none), "controls": _words, "tables": _words, "export": _text,
        "figure": _FIGURE,
    },
    "title", "seeds",
)  # fmt: skip

KEYS = frozenset().union(
    *(one.shapes for one in (_DOCUMENT, _SCALE, _PLAIN_GRID, _GRID, _PLAIN_METHOD, _METHOD, _RUN))
)
"""Every key that a suite's file may have somewhere, without those of a figure."""
