"""``trimtab dataset``: list, make, check, describe and convert offline data."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from trimtab.benchmarks.cli.screen import print_json, print_line, print_rows, progress_bar
from trimtab.benchmarks.training.data.dataset_figure import check_place, draw
from trimtab.benchmarks.training.data.dataset_replay import (
    check_replay,
    not_replayed,
    with_task_limits,
)
from trimtab.benchmarks.training.data.offline_data import (
    is_large,
    memory_bytes,
    open_dataset,
    summary_of,
)
from trimtab.benchmarks.training.data.published import EQUAL, compare, published_name
from trimtab.benchmarks.training.data.recipes import is_recipe, make_dataset, recipe_folder
from trimtab.benchmarks.training.dataset import check_no_errors
from trimtab.benchmarks.training.settings import config, groups
from trimtab.benchmarks.training.settings.words import nearest
from trimtab.datasets import catalog, lint
from trimtab.datasets.episodes import Dataset
from trimtab.datasets.formats.base import Format
from trimtab.datasets.formats.findings import noted
from trimtab.datasets.formats.hints import Hints
from trimtab.datasets.formats.minari.metadata import read_metadata
from trimtab.datasets.formats.minari.reader import load as load_minari
from trimtab.datasets.formats.minari.writer import check_id
from trimtab.datasets.formats.own import missing_ends
from trimtab.datasets.formats.registry import choose_output_format, recognise
from trimtab.datasets.sources.streaming import UnevenInfosError, with_env
from trimtab.envs.registry import is_task
from trimtab.errors import TrimtabError
from trimtab.files import resolved

_HINTS = ("env", "id", "mask", "horizon", "control_rate", "keys", "frames")
_MADE_BELOW = "runs"  # the default of out=
_STREAM_ABOVE = 1 << 28  # bytes of a file; a run, which reads it again and again, takes more


def dataset(action: str, out: str, format: str, **words: Any) -> int:
    """List, make, check, describe or convert offline data."""
    if action in ("list", "convert"):
        for word in words["overrides"]:
            raise TrimtabError(
                f"dataset: {word}: is a recipe's setting; action={action} takes none"
            )
    if action == "list":
        return _list(out, format)
    if action == "convert":
        return _convert(words, format)
    if words["figure"]:
        check_place(Path(words["figure"]))
    place, loaded, kind = _open(action, out, words)
    if action == "check":
        return _check(place, loaded, format)
    summary = {"path": str(place), "format": kind, **catalog.summary(loaded)}
    summary["published"] = _published(place, loaded)
    summary["left_out"] = _left_out(loaded)
    summary["findings"] = [vars(finding) for finding in noted(loaded.recipe)]
    if words["figure"]:
        draw(loaded, Path(words["figure"]))
        summary["figure"] = words["figure"]
    if format == "json":
        print_json(summary)
    else:
        apart = ("obs_min", "obs_max", "action_min", "action_max", "action_low", "action_high")
        hidden = (*apart, "left_out", "only_reward", "findings")
        if summary["only_reward"] is not None:
            summary["return"] = f"none: every reward is {summary['only_reward']:g}"
        rows = [{"what": k, "value": v} for k, v in summary.items() if k not in hidden]
        print_rows(loaded.id, rows)
        print_rows("observations", _per_dimension(summary, "obs_min", "obs_max"))
        print_rows("actions", _per_dimension(summary, *apart[2:]))
        print_line("\n".join([catalog.success_sentence(loaded), *_left_out_lines(loaded)]))
    return 0


def _list(out: str, format: str) -> int:
    made = catalog.made_datasets()
    rows = [
        {
            "recipe": name,
            **{key: recipe.get(key) for key in ("id", "env")},
            **{key: made.get(name, {}).get(key) for key in ("episodes", "steps", "megabytes")},
            "content_hash": made.get(name, {}).get("content_hash"),
        }
        for name, recipe in _recipes().items()
    ]
    place = Path(out) / "datasets"
    here = catalog.list_datasets(place) if place.is_dir() else []
    for row in here:
        row["published"] = None if row["problem"] else _published(Path(row["folder"]))
    others = [
        {**vars(entry), "path": str(entry.path), "on disk": entry.path.exists()}
        for entry in catalog.external_datasets().values()
    ]
    if format == "json":
        print_json({"recipes": rows, "made": here, "external": others})
    else:
        for row in rows:
            row["content_hash"] = (row["content_hash"] or "")[:8]
            del row["env"]  # as in its id; format=json has all of it
        print_rows("recipes (MIT licence), and what each gives on the pinned packages", rows)
        print_rows(f"on disk below {out}/datasets", here)
        shown = ("id", "path", "on disk")
        short = [{key: entry[key] for key in shown} for entry in others]
        print_rows("external datasets, used if their files are on disk", short)
    return 0


def _published(place: Path, loaded: Dataset | None = None) -> str | None:
    """Compare a dataset with the published dataset of its recipe.

    Args:
        place: the dataset's folder; a recipe's dataset lies in ``<identity>/<id>``.
        loaded: the dataset. With None it is read, but only if its metadata do not give the answer.

    Returns:
        The result in words, or None if there is no published dataset.
    """
    names = (published_name(part) for part in place.parts)
    name = next((name for name in names if name is not None), None)
    if name is None:
        return None
    known = catalog.made_datasets()[name]
    if not catalog.is_dataset(place) or not str(place).endswith(str(known["id"])):
        return None
    if loaded is None:
        told = read_metadata(place).get("trimtab_content_hash")
        if told == known["content_hash"]:
            return EQUAL
        try:
            loaded = load_minari(place)
        except TrimtabError as error:
            return str(error)
    return compare(name, loaded).text


def _open(action: str, out: str, words: dict[str, Any]) -> tuple[Path, Dataset, str]:
    """Return the place, the content and the format of the dataset that the words name."""
    name, path = words["dataset"], words["path"]
    if words["overrides"] and not name:
        raise TrimtabError(
            f"dataset: {words['overrides'][0]} is a recipe's setting; add dataset=<recipe>"
        )
    if bool(name) == bool(path):
        raise TrimtabError(
            f"dataset: action={action} takes either dataset=<recipe> or path=<file or folder>"
        )
    if path:
        if out != _MADE_BELOW:
            raise TrimtabError(f"dataset: out={out} is where datasets are made; leave it out")
        found = recognise(path)
        return Path(path), _load(found, Path(path), _hints(found, words)), found.name
    given = [hint for hint in _HINTS if words[hint]]
    if given:
        raise TrimtabError(f"dataset: {given[0]}= describes a file; give path=<file>")
    if name in catalog.external_datasets():
        if action == "make":
            raise TrimtabError(
                f"dataset={name}: an external dataset cannot be made; use action=info"
            )
        for word in words["overrides"]:
            raise TrimtabError(
                f"dataset={name}: an external dataset is used as it is; leave {word} out"
            )
        path = catalog.external_datasets()[name].path
        return path, catalog.load_external(name), recognise(path).name
    given, name = name, groups.name_in_group("dataset", name)
    recipes = _recipes()
    if name not in recipes and name != given:
        raise TrimtabError(
            f"dataset={given}: is no recipe; one has id, env and a controller, as in docs/suites.md"
        )
    if name not in recipes:
        raise TrimtabError(f"dataset={name}: there is no such recipe; {nearest(name, recipes)}")
    recipe = config.recipe_with(name, words["overrides"])
    with progress_bar(name) as tell:
        loaded = make_dataset(recipe, Path(out), lambda share: tell(share, ""))
    place = recipe_folder(recipe, Path(out))
    return place, loaded, recognise(place).name


def _hints(format: Format, words: dict[str, Any]) -> Hints:
    given = {name: words[name] for name in _HINTS if words[name]}
    other = sorted(given.keys() - format.hints)
    if other:
        raise TrimtabError(
            f"dataset: {other[0]}= does not apply to {format.name} data; leave it out"
        )
    if "id" in given:
        check_id(given["id"])
    hints: Hints = {}
    hints.update(given)  # type: ignore[typeddict-item]
    return hints


def _load(format: Format, path: Path, hints: Hints) -> Dataset:
    """Read a file, with the hints that the user gives about it; a large one stays on disk.

    Raises:
        TrimtabError: if ``env`` and the file name different tasks.
    """
    env = hints.pop("env", None)
    if env is not None and "task" in format.hints:
        hints["task"] = env  # it decides what is read
    loaded = _read(format, path, hints)
    if env is None or env == loaded.env:
        return loaded
    if is_task(loaded.env):
        raise TrimtabError(
            f"dataset {path}: the file says that it is of {loaded.env}; leave env= out"
        )
    return with_env(loaded, env)


def _read(format: Format, path: Path, hints: Hints) -> Dataset:
    # Frames are decoded into memory; they are not in the columns of a dataset on disk.
    if format.open is None or "frames" in hints or not is_large(path, _stream_above()):
        return format.load(path, **hints)
    try:
        with progress_bar(path.name) as tell:
            return open_dataset(
                path, Path(_MADE_BELOW), 0, lambda share: tell(share, "to disk"), **hints
            )
    except UnevenInfosError:
        return format.load(path, **hints)


def _stream_above() -> int:
    return min(_STREAM_ABOVE, memory_bytes() // 4)


def _convert(words: dict[str, Any], format: str) -> int:
    for name in ("from", "to"):
        if not words[name]:
            raise TrimtabError(f"dataset: action=convert needs {name}=<file or folder>")
    source, target = Path(words["from"]), Path(words["to"])
    writer = choose_output_format(target, words["as"])
    if os.path.lexists(target) and not (target.is_file() or target.is_dir()):
        raise TrimtabError(f"dataset: to={target}: is neither a file nor a folder; name another")
    reader = recognise(source)
    if resolved(target).is_relative_to(resolved(source)):
        raise TrimtabError(f"dataset: to={target} lies in from={source}; choose another place")
    halves = source.with_name(source.name.replace("-val.", ".")), source
    if target in halves:
        raise TrimtabError(f"dataset: to={target} and from={source} belong together; rename it")
    loaded = _load(reader, source, _hints(reader, words))
    check_no_errors(loaded)
    assert writer.save is not None
    writer.save(loaded, target)
    before, lost = loaded.content_hash, [*missing_ends(loaded), *writer.loses(loaded)]
    left_out, left_out_lines = _left_out(loaded), _left_out_lines(loaded)
    del loaded  # what is written is read now
    written = summary_of(target, Path(_MADE_BELOW), _stream_above())
    result: dict[str, Any] = {
        "from": str(source),
        "from_format": reader.name,
        "to": str(target),
        "to_format": writer.name,
        "id": written.id,
        "env": written.env,
        "episodes": written.episodes,
        "steps": written.steps,
        "content_hash_before": before,
        "content_hash": written.content_hash,
        "lost": lost,
        "left_out": left_out,
    }
    if format == "json":
        print_json(result)
    else:
        del result["lost"], result["left_out"]
        print_rows(f"written: {target}", [{"what": k, "value": v} for k, v in result.items()])
        lines = [*left_out_lines, *(f"lost: {line}" for line in lost)]
        print_line("\n".join(lines or ["nothing is lost"]))
    return 0


def _left_out(loaded: Dataset) -> list[str]:
    """Return the names of what was not read from the external file that the data comes from."""
    names = loaded.recipe.get("left_out")
    return [str(name) for name in names] if isinstance(names, list) else []


def _left_out_lines(loaded: Dataset) -> list[str]:
    source = loaded.recipe.get("imported", "original")  # it may have been converted since
    return [
        f"left out: {name} of the {source} data, because Trimtab reads vectors only"
        for name in _left_out(loaded)
    ]


def _check(place: Path, loaded: Dataset, format: str) -> int:
    findings = [*lint.check(with_task_limits(loaded)), *check_replay(loaded)]
    why = not_replayed(loaded)
    rows = [
        {"level": f.level, "code": f.code, "where": f.where, "message": f.message} for f in findings
    ]
    if format == "json":
        print_json({"path": str(place), "findings": rows, "not_replayed": why or None})
    elif rows:
        print_rows(str(place), rows)
    else:
        print_line(f"{place}: nothing found")
    if why and format != "json":
        print_line(f"no episode was played again: {why}")
    return 1 if any(f.level == "error" for f in findings) else 0


def _per_dimension(summary: dict[str, Any], *keys: str) -> list[dict[str, Any]]:
    columns = zip(*(summary[key] for key in keys), strict=True)
    return [
        {"dimension": index, **{key: f"{x:.6g}" for key, x in zip(keys, row, strict=True)}}
        for index, row in enumerate(columns)
    ]


def _recipes() -> dict[str, dict[str, Any]]:
    """Return the recipes, by name: the files that say how a dataset is made."""
    names = groups.group_options("dataset")
    return {name: groups.load_group("dataset", name) for name in names if is_recipe(name)}
