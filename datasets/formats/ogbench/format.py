"""OGBench's npz: trajectories of T+1 rows end to end, and a second file ``-val.npz`` to validate.

The layout: ``ogbench/utils.py`` of OGBench, whose reader passes over arrays that it does not know;
ours begin with ``trimtab``. ``terminals`` marks where a trajectory ends, not that its task did.

A stranger's file has no rewards. With ``env=`` naming one of OGBench's single tasks they are told
from the stored states, as OGBench's own loader does (``ogbench/relabel_utils.py``): 0 less 1 for
each part of the task that the state acted in leaves unsolved, and a bootstrapping mask of 0 where
all are solved. The mask becomes ``terminations``, in the midst of a trajectory too, because a
trajectory does not stop at a goal that only this task has. Learners bootstrap by ``terminations``
alone, so that every transition has the target that it has in OGBench. They also end windows and
returns there, as the task itself would have. Cutting the trajectories there would give the same
transitions, but an episode of one step for every further row that stays at the goal, and returns,
lengths and shares that are no longer those of what was recorded.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Unpack

import numpy as np
import numpy.typing as npt

from trimtab.datasets.episodes import Dataset, Episode, validate
from trimtab.datasets.formats.base import Format
from trimtab.datasets.formats.contents import apply_hints, assemble, contents_of
from trimtab.datasets.formats.hints import Hints
from trimtab.datasets.formats.ogbench.rewards import REWARDS_OF, numbered, solved_parts
from trimtab.datasets.formats.own import (
    Own,
    check_continuous,
    check_no_picture,
    check_replaceable,
    common_infos,
    flag_ends,
    flags_of,
    need,
    no_reward,
    parse,
    text_of,
    uneven_infos,
    with_common_infos,
)
from trimtab.datasets.io.npz import array_names, read_npz, write_npz
from trimtab.datasets.io.sandbox import Blocks
from trimtab.errors import TrimtabError

__all__ = ["FORMAT"]

logger = logging.getLogger(__name__)

Arrays = dict[str, npt.NDArray[Any]]
_Rows = Callable[[Episode], npt.NDArray[Any]]

_REQUIRED = ("observations", "actions", "terminals")
_INFOS = ("qpos", "qvel", "button_states")  # what OGBench itself reads beside the required ones
_LOADED = ("next_observations", "valids")
_KNOWN = frozenset({*_REQUIRED, *_INFOS, *_LOADED, "rewards", "masks"})
_TEXT = "trimtab"
_OWN_INFO = "trimtab_info/"
_FLAGS = ("trimtab_terminations", "trimtab_truncations")
_TRAIN, _VALID = "train", "valid"
_ADVICE = "make the dataset again or fetch a fresh copy"


def _validation_path(path: Path) -> Path:
    return path.with_name(f"{path.stem}-val{path.suffix}")


def _load(path: str | Path, **hints: Unpack[Hints]) -> Dataset:
    """Read a file of OGBench's layout, and the ``-val.npz`` beside it where there is one.

    The episodes of the two files are the masks ``train`` and ``valid`` of the recipe. Where a
    stranger's file has no rewards, and ``env`` (or else ``task``) names a single task whose states
    it holds, rewards, terminations and the info ``success`` are those of that task, which the
    recipe's ``rewards_of`` names. Otherwise rewards are zero unless stored, and nothing is
    terminated; a stored ``masks`` becomes the info ``mask``.

    Raises:
        TrimtabError: if anything is missing, damaged or of a wrong shape, the actions are discrete,
            the arrays are those that OGBench's loader returns, or the two files do not fit.
    """
    path = Path(path)
    where = f"dataset {path}"
    env = hints.get("env") or hints.get("task", "")
    train, own = _load_one(path, env)
    if own is None and REWARDS_OF in train.recipe:
        hints["env"] = env
    beside = _validation_path(path)
    if own is not None and own["order"] is None:
        return apply_hints(train, hints, where)
    if own is None and not beside.is_file():
        return apply_hints(train, hints, where)
    valid, _ = _load_one(beside, env)
    if train.recipe.get(REWARDS_OF) != valid.recipe.get(REWARDS_OF):
        raise TrimtabError(
            f"{where}: rewards can be told from the states of one of it and {beside.name} alone; "
            f"{_ADVICE}"
        )
    for name in ("obs_dim", "action_dim"):
        one, other = getattr(train, name), getattr(valid, name)
        if one != other:
            raise TrimtabError(
                f"{where}: its {name} is {one}, and {beside.name} has {other}; {_ADVICE}"
            )
    episodes = [*train.episodes, *valid.episodes]
    order: Sequence[int] = own["order"] if own is not None else range(len(episodes))
    if sorted(order) != list(range(len(episodes))):
        raise TrimtabError(f"{where}: {beside.name} does not belong to it; {_ADVICE}")
    places = {number: place for place, number in enumerate(order)}
    masks = {
        _TRAIN: [places[number] for number in range(len(train))],
        _VALID: [places[len(train) + number] for number in range(len(valid))],
    }
    joined = dataclasses.replace(
        train,
        episodes=tuple(episodes[number] for number in order),
        recipe={"masks": masks, **train.recipe},
        action_low=tuple(map(min, train.action_low, valid.action_low)),
        action_high=tuple(map(max, train.action_high, valid.action_high)),
    )
    validate(joined, where)
    if own is not None and joined.content_hash != own["whole"]:
        raise TrimtabError(f"{where}: {beside.name} does not belong to it; {_ADVICE}")
    return apply_hints(joined, hints, where)


def _load_one(path: Path, env: str) -> tuple[Dataset, Own | None]:
    where = f"dataset {path}"
    left_out = sorted(name for name in array_names(path) if not _is_read(name))
    if left_out:
        logger.warning("%s: left out, as no arrays of OGBench: %s", where, ", ".join(left_out))
    arrays = read_npz(path, _is_read)
    need(arrays, _REQUIRED, where)
    loaded = [name for name in _LOADED if name in arrays]
    if loaded:
        raise TrimtabError(
            f"{where}, key '{loaded[0]}': only what OGBench's loader returns has it, and there the "
            "last rows of trajectories mean something else; give the file that was loaded"
        )
    check_no_picture(arrays["observations"], f"{where}, key 'observations'")
    check_continuous(arrays["actions"], f"{where}, key 'actions'")
    terminals = flags_of(arrays["terminals"], f"{where}, key 'terminals'")
    rows = len(terminals)
    if not rows or not terminals[-1]:
        raise TrimtabError(f"{where}, key 'terminals': its last row ends no trajectory; {_ADVICE}")
    for name, array in arrays.items():
        if name != _TEXT and array.shape[:1] != (rows,):
            raise TrimtabError(
                f"{where}, key '{name}': shape {array.shape}, expected {rows} rows; {_ADVICE}"
            )
    own = parse(arrays.pop(_TEXT).tobytes(), where) if _TEXT in arrays else None
    if own is not None:
        need(arrays, ["rewards", *_FLAGS, *own["infos"].values()], where)
    recipe: dict[str, Any] = {"imported": "ogbench"}
    solved = None
    if own is None and "rewards" not in arrays:
        try:
            parts = solved_parts(env, arrays)
        except ValueError as error:
            why = error if env else "read it with env=<a single task> to have that task's"
            logger.warning("%s: it has no rewards; they are zero (%s)", where, why)
        else:
            recipe[REWARDS_OF] = numbered(env)
            arrays["rewards"] = parts.sum(axis=1) - parts.shape[1]
            solved = np.asarray(parts.all(axis=1))
    episodes = list(_episodes(arrays, own, solved))
    contents = contents_of(path, episodes, own, left_out=left_out, recipe=recipe)
    return assemble(contents, {}), own


def _is_read(name: str) -> bool:
    return name in _KNOWN or name.startswith(_TEXT)


def _episodes(
    arrays: Arrays, own: Own | None, solved: npt.NDArray[np.bool_] | None
) -> Iterator[Episode]:
    begin = 0
    for index, last in enumerate(np.flatnonzero(arrays["terminals"]).tolist()):
        rows, steps = slice(begin, last), last - begin  # the last row has no action
        flags = flag_ends(steps, terminated=False)
        infos = {name: arrays[name][rows] for name in _INFOS if name in arrays}
        if solved is not None:
            flags = (solved[rows], flags[1] & ~solved[rows])
            infos["success"] = solved[rows]
        elif own is not None:
            flags = (arrays[_FLAGS[0]][rows], arrays[_FLAGS[1]][rows])
            infos = {name: arrays[key][rows] for name, key in own["infos"].items()}
        elif "masks" in arrays:
            infos["mask"] = arrays["masks"][rows]
        with np.errstate(over="ignore"):  # infinity is refused afterwards
            yield Episode(
                observations=arrays["observations"][begin : last + 1],
                actions=arrays["actions"][rows],
                rewards=arrays["rewards"][rows] if "rewards" in arrays else no_reward(steps),
                terminations=flags[0],
                truncations=flags[1],
                infos=infos,
                seed=own["seeds"][index] if own is not None else None,
            )
        begin = last + 1


def _save(dataset: Dataset, path: Path) -> None:
    """Write ``dataset``; the episodes of the recipe's mask ``valid`` go to ``<name>-val.npz``.

    Raises:
        TrimtabError: if the dataset is not valid, something else is in its place, or the disk
            refuses.
    """
    validate(dataset, f"dataset {dataset.id}")
    beside = _validation_path(path)
    ours = _TEXT in array_names(path)
    check_replaceable(path, ours)
    check_replaceable(beside, ours and _TEXT in array_names(beside))  # it belongs to the first
    held = with_common_infos(dataset)
    masks = held.recipe.get("masks")
    chosen = set(masks.get(_VALID, ())) if isinstance(masks, Mapping) else set()
    valid = [index for index in range(len(held)) if index in chosen]
    train = [index for index in range(len(held)) if index not in chosen]
    if not valid or not train:
        beside.unlink(missing_ok=True)
        _save_one(held, path, order=None, whole=None)
        return
    parts = [
        dataclasses.replace(held, episodes=tuple(held.episodes[index] for index in indices))
        for indices in (train, valid)
    ]
    order = np.argsort([*train, *valid]).tolist()
    _save_one(parts[1], beside, order=None, whole=None)
    _save_one(parts[0], path, order=order, whole=held.content_hash)


def _save_one(dataset: Dataset, path: Path, **further: Any) -> None:
    keys = {name: name if name in _INFOS else _OWN_INFO + name for name in common_infos(dataset)[0]}
    text = text_of(dataset, infos=keys, **further).encode()
    episodes = dataset.episodes
    rows = dataset.num_steps + len(dataset)

    def blocks(dtype: npt.DTypeLike, tail: tuple[int, ...], read: _Rows) -> Blocks:
        return Blocks(dtype, (rows, *tail), lambda: map(read, episodes))

    def padded(name: str, dtype: npt.DTypeLike, tail: tuple[int, ...] = ()) -> Blocks:
        return blocks(dtype, tail, lambda episode: _padded(episode.arrays()[name]))

    kinds = common_infos(dataset)[0]
    write_npz(
        path,
        {
            "observations": blocks(np.float32, (dataset.obs_dim,), lambda e: e.observations),
            "actions": padded("actions", np.float32, (dataset.action_dim,)),
            "terminals": blocks(np.float32, (), lambda e: np.arange(len(e) + 1) == len(e)),
            "rewards": padded("rewards", np.float32),
            "masks": blocks(np.float32, (), lambda e: ~_padded(e.terminations)),
            _FLAGS[0]: padded("terminations", np.bool_),
            _FLAGS[1]: padded("truncations", np.bool_),
            **{key: padded(f"infos/{name}", *kinds[name]) for name, key in keys.items()},
            _TEXT: Blocks(np.uint8, (len(text),), lambda: [np.frombuffer(text, np.uint8)]),
        },
    )


def _padded(rows: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return an episode's rows with one more, which has no meaning."""
    return np.concatenate([rows, np.zeros_like(rows[-1:])])


def _recognises(path: Path) -> bool:
    return path.is_file() and set(_REQUIRED) <= array_names(path)


FORMAT = Format(
    name="ogbench",
    description="OGBench's npz of trajectories, with its validation file",
    suffixes=(".npz",),
    load=_load,
    recognises=_recognises,
    save=_save,
    loses=uneven_infos,
    hints=frozenset({"env", "id", "mask", "task"}),
)
