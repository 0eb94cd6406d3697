"""What a suite's file says: read, and its shapes checked."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from trimtab.benchmarks.training.settings.groups import load_group, load_yaml
from trimtab.benchmarks.training.settings.run_settings import MOST_SEED
from trimtab.benchmarks.training.settings.words import nearest
from trimtab.errors import TrimtabError
from trimtab.files import read_bytes

__all__ = ["check_document", "read_document"]

_MOST_BYTES = 1 << 20  # of a suite's file; a larger one is read for minutes
_KEYS: Mapping[str, tuple[type | tuple[type, ...], str]] = {
    "title": (str, "text"),
    "seeds": (list, "a list of whole numbers"),
    "common": (list, "a list of words"),
    "shared": (dict, "lists of words by name"),
    "scale": (dict, "lists of words, or mappings, by name"),
    "grid": (dict, "methods and tasks"),
    "runs": (dict, "runs by name"),
    "baselines": (dict, "methods by name"),
    "controls": (list, "a list of methods"),
    "tables": (list, "a list of further tables"),
    "export": (str, "the name of a run"),
    "figure": (dict, "a figure of its own"),
}
"""What a suite's file may have, and of what type each is."""
_OF_SCALE = frozenset(
    {
        "words", "seeds", "tasks", "bases", "methods", "variants", "published", "clone", "budget",
        "data", "where_known", "leave_out", "seeds_of",
    }
)  # fmt: skip
"""What a scale may have that is a mapping; all but the seeds are lists of words."""
_OF_TASK = ("words", "clone", "budget", "data", "where_known")
_OF_RUN = ("overrides", "with", "base", "seconds", "seeds")


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
    if not isinstance(document, dict):
        raise TrimtabError(f"suite={name}: must be a mapping with a title, seeds and runs")
    for key in document:
        if key not in _KEYS:
            raise TrimtabError(
                f"suite={name}: there is no entry {key!r}; {nearest(str(key), _KEYS)}"
            )
    for key in ("title", "seeds"):
        if key not in document:
            raise TrimtabError(f"suite={name}: it has no {key}")
    for key, (kind, what) in _KEYS.items():
        if key in document and not isinstance(document[key], kind):
            raise TrimtabError(f"suite={name}: {key} must be {what}")
    for key in ("common", "controls", "tables"):
        _check_words(name, key, document.get(key, []))
    for key, words in document.get("shared", {}).items():
        _check_words(name, f"shared.{key}", words)
    for key, scale in document.get("scale", {}).items():
        says = scale if isinstance(scale, dict) else {"words": scale}
        if not isinstance(key, str):
            raise TrimtabError(f"suite={name}: the name of the scale {key} must be text; quote it")
        for part, value in says.items():
            if part not in _OF_SCALE:
                known = nearest(str(part), _OF_SCALE)
                raise TrimtabError(f"suite={name}: there is no scale.{key}.{part}; {known}")
            if part not in {"seeds", "seeds_of"}:
                where = f"scale.{key}" + (f".{part}" if isinstance(scale, dict) else "")
                _check_words(name, where, value)
        if "seeds" in says:
            _check_seeds(name, f"scale.{key}.seeds", says["seeds"])
        of_runs = says.get("seeds_of", {})
        if not isinstance(of_runs, dict):
            raise TrimtabError(f"suite={name}: scale.{key}.seeds_of must be seeds by names of runs")
        for pattern, seeds in of_runs.items():
            _check_seeds(name, f"scale.{key}.seeds_of.{pattern}", seeds)
    _check_grid(name, document.get("grid", {}))
    for run, what in document.get("runs", {}).items():
        _check_run(name, run, what, document.get("shared", {}))
    for label, against in document.get("baselines", {}).items():
        if not isinstance(label, str) or not isinstance(against, str | None):
            raise TrimtabError(f"suite={name}: baselines.{label} must name a method")
    if "figure" in document:
        _check_figure(name, document["figure"])
    _check_seeds(name, "seeds", document["seeds"])
    if not (document.get("runs") or "grid" in document):
        raise TrimtabError(f"suite={name}: it has neither runs nor a grid")


def _check_grid(name: str, grid: Mapping[str, Any]) -> None:
    """Check the shapes of a grid's entries; the names in it are checked where it becomes runs."""
    if not all(isinstance(grid.get(side, {}), dict) for side in ("methods", "tasks")):
        return  # the grid says what it must have
    for side in ("methods", "tasks", "bases"):
        for one, what in _named(name, f"grid.{side}", grid.get(side, {})):
            where = f"grid.{side}.{one}"
            if side == "bases" or not isinstance(what, dict):
                _check_words(name, where, what)
                continue
            for key, value in what.items():
                _check_entry(name, side, f"{where}.{key}", key, value)
    for side in ("variants", "published"):
        for one, words_of in _named(name, f"grid.{side}", grid.get(side, {})):
            if side == "variants" and one not in grid.get("methods", {}):
                known = nearest(one, grid.get("methods", {}))
                raise TrimtabError(f"suite={name}: grid.variants names the method {one}; {known}")
            for inner, words in _named(name, f"grid.{side}.{one}", words_of):
                _check_words(name, f"grid.{side}.{one}.{inner}", words)
    for key in ("clone", "budget", "where_known"):
        _check_words(name, f"grid.{key}", grid.get(key, []))
    if "seconds" in grid:
        _check_seconds(name, "grid.seconds", grid["seconds"])
    if "seeds" in grid:
        _check_seeds(name, "grid.seeds", grid["seeds"])


def _check_entry(name: str, side: str, where: str, key: Any, value: Any) -> None:
    """Check an entry of a task or of a method; the grid refuses a method's unknown ones."""
    if side == "tasks" and key not in _OF_TASK:
        raise TrimtabError(f"suite={name}: there is no {where}; {nearest(str(key), _OF_TASK)}")
    if side == "methods" and key in {"budget", "data"}:
        if not isinstance(value, bool):
            raise TrimtabError(f"suite={name}: {where} must be true or false")
    elif key == "seconds":
        _check_seconds(name, where, value)
    elif side == "tasks" or key in {"words", "tasks"} or isinstance(value, list):
        _check_words(name, where, value)


def _named(name: str, where: str, value: Any) -> list[tuple[str, Any]]:
    """Return the entries of a part of a grid, whose names must be text."""
    if not isinstance(value, dict):
        raise TrimtabError(f"suite={name}: {where} must have entries by name")
    for key in value:
        if not isinstance(key, str):
            raise TrimtabError(f"suite={name}: {where} has the name {key}; quote it")
    return list(value.items())


def _check_run(name: str, run: Any, what: Any, shared: Mapping[str, Any]) -> None:
    """Check a run of a suite."""
    if not isinstance(run, str):
        raise TrimtabError(f"suite={name}: the name of the run {run} must be text; quote it")
    if not isinstance(what, dict):
        raise TrimtabError(f"suite={name}: the run {run} must be a mapping with its overrides")
    for key in what:
        if key not in _OF_RUN:
            raise TrimtabError(
                f"suite={name}: the run {run} has no entry {key!r}; {nearest(str(key), _OF_RUN)}"
            )
    for key in ("overrides", "with"):
        _check_words(name, f"{run}.{key}", what.get(key, []))
    for part in what.get("with", []):
        if part not in shared:
            raise TrimtabError(
                f"suite={name}: {run} is with {part} of shared; {nearest(part, shared)}"
            )
    if not isinstance(what.get("base"), str | None):
        raise TrimtabError(f"suite={name}: {run}.base must be the name of a run above it")
    _check_seconds(name, f"{run}.seconds", what.get("seconds", 1))
    if "seeds" in what:
        _check_seeds(name, f"{run}.seeds", what["seeds"])


def _check_words(name: str, where: str, value: Any) -> None:
    if not isinstance(value, list):
        raise TrimtabError(f"suite={name}: {where} must be a list of words")
    for word in value:
        if not isinstance(word, str):
            raise TrimtabError(f"suite={name}: {where} has {word!r}, which is no word; quote it")


def _check_figure(name: str, figure: Mapping[str, Any]) -> None:
    """Check a figure of a suite's own."""
    panels = figure.get("panels")
    if not isinstance(panels, list) or not panels:
        raise TrimtabError(f"suite={name}: figure.panels must be a list of what is drawn")
    for number, panel in enumerate(panels):
        for key in ("title", "run", "env"):
            if not isinstance(panel, dict) or not isinstance(panel.get(key), str):
                raise TrimtabError(f"suite={name}: figure.panels[{number}].{key} must be text")
    if not isinstance(figure.get("open"), str):
        raise TrimtabError(f"suite={name}: figure.open must be the id of a maze")
    for key in ("seed", "episodes", "eval_seed"):
        if type(figure.get(key)) is not int or figure[key] < (key == "episodes"):
            least = int(key == "episodes")
            raise TrimtabError(
                f"suite={name}: figure.{key} must be a whole number, {least} or more"
            )


def _check_seconds(name: str, where: str, seconds: Any) -> None:
    right = isinstance(seconds, int | float) and not isinstance(seconds, bool)
    if not right or not 0 < seconds < math.inf:
        raise TrimtabError(f"suite={name}: {where}={seconds}: must be a number above 0")


def _check_seeds(name: str, where: str, seeds: Any) -> None:
    right = isinstance(seeds, list) and seeds and len({*map(str, seeds)}) == len(seeds)
    if not right or not all(type(seed) is int and 0 <= seed <= MOST_SEED for seed in seeds):
        raise TrimtabError(
            f"suite={name}: {where}={seeds}: must be whole numbers, 0 or more, each once"
        )
