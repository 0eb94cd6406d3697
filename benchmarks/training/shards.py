"""Evaluations in parts: each machine plays some of the episodes, and the parts are one table again.

A part plays its episodes as the whole evaluation would, in as many environments side by side, so
that its rows are those of the whole, bit for bit. A note beside the rows says which part of which
evaluation they are; a reader of rows finds by it whether a part is there twice or not at all.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trimtab.benchmarks.training.base import training
from trimtab.benchmarks.training.evaluate import SUCCESS_RULE, Scores
from trimtab.benchmarks.training.folder import is_run
from trimtab.benchmarks.training.identity import HASH_VERSION, PROTOCOL_REVISION
from trimtab.benchmarks.training.judging import BundleJudge
from trimtab.benchmarks.training.rows import FILE_NAME, EpisodeRow, read_episodes, write_episodes
from trimtab.benchmarks.training.rundir import is_set_aside
from trimtab.benchmarks.training.settings_of import text_of
from trimtab.errors import TrimtabError
from trimtab.files import atomic_directory, atomic_write_json, read_json, sha256_json
from trimtab.policies.bundle.bundle import bundle_hash

__all__ = [
    "WHOLE", "Shard", "check_place", "check_shards", "check_whole", "note_of", "rows_of",
    "shard_of", "write_rows",
]  # fmt: skip

NOTE = "shard.json"
"""Beside the rows of a part: which part they are, of what."""
_FACTS: Mapping[str, type] = {"shard": int, "of": int, "episodes": int, "evaluation": str}
_MOST = 9999


@dataclass(frozen=True)
class Shard:
    """One of several parts of an evaluation, counted from 1."""

    number: int
    of: int

    @property
    def folder(self) -> str:
        """Name of the folder of its rows."""
        return f"shard-{self.number}-of-{self.of}"


WHOLE = Shard(1, 1)


def shard_of(text: str) -> Shard:
    """Return the part that words such as ``2/4`` name.

    Raises:
        TrimtabError: if they name none.
    """
    match = re.fullmatch(r"(\d{1,4})/(\d{1,4})", text)
    if match is None or not 1 <= int(match[1]) <= int(match[2]):
        raise TrimtabError(f"shard={text}: must be like 2/4, from 1/4 to 4/4, up to {_MOST} parts")
    return Shard(int(match[1]), int(match[2]))


def rows_of(judge: BundleJudge, scores: Scores, *, deterministic: bool) -> list[EpisodeRow]:
    """Return a row for each episode in which a finished policy was judged.

    A policy with other inputs than its defaults is one of its own in a table: they stand behind its
    name, and its rows are of no run.
    """
    bundle, spec = judge.bundle, judge.spec
    trained = training(bundle)
    known = trained.get("config_hash")
    config = str(known or bundle_hash(bundle.folder)[:10])
    name = trained.get("policy") or bundle.policy.label
    if judge.inputs:
        known = None
        config = sha256_json({"config": config, "inputs": judge.inputs})[:10]
        name = ", ".join([name, *(f"{key}={_short(x)}" for key, x in judge.inputs.items())])
    return [
        EpisodeRow(
            suite=None,
            env=judge.task,
            algorithm=str(trained.get("algorithm") or "policy"),
            policy=name,
            dataset=trained.get("dataset"),
            base=trained.get("base"),
            seed=int(trained.get("seed") or 0),
            env_steps=int(trained.get("env_steps") or 0),
            updates=int(trained.get("updates") or 0),
            eval_episode=score.eval_episode,
            eval_seed=score.eval_seed,
            return_=score.return_,
            success=score.success,
            length=score.length,
            seconds=score.seconds,
            config_hash=config,
            metrics=score.metrics,
            fingerprint=spec.fingerprint,
            hash_version=HASH_VERSION if known else None,
            protocol_revision=PROTOCOL_REVISION,
            act_steps=judge.act_steps,
            deterministic=deterministic,
            success_rule=SUCCESS_RULE if spec.success_key is not None else None,
            horizon=spec.horizon,
            control_hz=spec.control_rate,
            delay_ms=0.0,
            device="cpu",
        )
        for score in scores.episodes
    ]


def _short(value: Any) -> str:
    """Return an input's value as a name has it."""
    return f"{value:g}" if isinstance(value, float) else str(value)


def note_of(judge: BundleJudge, shard: Shard, asked: Mapping[str, Any]) -> dict[str, Any]:
    """Return the note beside the rows of a part.

    Args:
        judge: what judges it.
        shard: which part it is.
        asked: all that decides the whole evaluation beside the policy: ``episodes``, ``seed`` ….
    """
    evaluation = {
        **asked, "policy": bundle_hash(judge.bundle.folder), "env": judge.task,
        "options": dict(judge.options), "fingerprint": judge.spec.fingerprint,
    } | ({"inputs": judge.inputs} if judge.inputs else {})  # fmt: skip
    return {
        "shard": shard.number, "of": shard.of, "episodes": asked["episodes"],
        "evaluation": sha256_json(evaluation)[:16], "asked": evaluation,
        "policy": str(judge.bundle.folder),
    }  # fmt: skip


def check_place(out: Path, shard: Shard, note: Mapping[str, Any]) -> Path:
    """Return the folder of a part's rows; an earlier call may have written the same part there.

    Args:
        out: folder of the evaluation; the part has a folder of its own in it.
        shard: which part it is.
        note: beside its rows.

    Raises:
        TrimtabError: if something else is there, such as the rows of another evaluation.
    """
    if is_run(out) or (os.path.lexists(out) and not out.is_dir()):
        what = "is a run, whose own rows those would contradict" if out.is_dir() else "is no folder"
        raise TrimtabError(f"out={out}: {what}; name another folder")
    folder = out / shard.folder
    for other in sorted(out.glob(f"shard-*-of-{shard.of}/{NOTE}")):
        there = _note(other)
        if other.parent != folder and there["evaluation"] != note["evaluation"]:
            raise TrimtabError(
                f"out={out}: {other.parent.name} there is a part of another evaluation"
                f"{_differing(there, note)}; name another folder, or give the same words"
            )
    if not os.path.lexists(folder):
        return folder
    if not (folder / NOTE).is_file():
        raise TrimtabError(f"out={folder}: something is there that this command has not made")
    there = _note(folder / NOTE)
    if there["evaluation"] != note["evaluation"]:
        raise TrimtabError(
            f"out={folder}: the rows of another evaluation are there"
            f"{_differing(there, note)}; name another folder, or give the same words"
        )
    return folder


def write_rows(out: Path, rows: list[EpisodeRow], shard: Shard, note: Mapping[str, Any]) -> Path:
    """Write the rows of a part of an evaluation, with its note; return their folder.

    Raises:
        TrimtabError: as :func:`check_place`, or if they cannot be written.
    """
    folder = check_place(out, shard, note)
    with atomic_directory(folder) as beside:
        write_episodes(beside / FILE_NAME, rows)
        atomic_write_json(beside / NOTE, note)
    return folder


def check_whole(file: Path) -> None:
    """Check that a file of rows is a whole evaluation, and not one of its parts.

    Raises:
        TrimtabError: if it is one.
    """
    beside = file.parent / NOTE
    if file.name == FILE_NAME and beside.is_file() and (note := _note(beside))["of"] > 1:
        raise TrimtabError(
            f"shards: {file} is part {note['shard']}/{note['of']} of an evaluation; name the "
            "folder that has all of its parts"
        )


def check_shards(place: Path) -> None:
    """Check that every evaluation of which there is a part below a folder is there whole, and once.

    Raises:
        TrimtabError: naming the parts that are there twice, or are missing.
    """
    found: dict[str, dict[int, tuple[Path, Mapping[str, Any]]]] = {}
    for file in sorted(place.rglob(NOTE)):
        parts = file.relative_to(place).parts
        if any(part.startswith(".") or is_set_aside(part) for part in parts):
            continue
        note = _note(file)
        shards = found.setdefault(note["evaluation"], {})
        for other, before in shards.values():
            if before["of"] != note["of"]:
                raise TrimtabError(
                    f"shards: {other} is one of {before['of']} parts of an evaluation, and "
                    f"{file.parent} one of {note['of']} parts of the same; remove one division"
                )
        if note["shard"] in shards:
            twice = shards[note["shard"]][0]
            raise TrimtabError(
                f"shards: {twice} and {file.parent} are the same part, {note['shard']}/"
                f"{note['of']}; remove one"
            )
        shards[note["shard"]] = file.parent, note
    for shards in found.values():
        _check_whole(shards, [part for other in found.values() for part in other.values()])


def _differing(there: Mapping[str, Any], here: Mapping[str, Any]) -> str:
    """Return in which words two evaluations differ, from the notes beside their parts."""
    one, two = there.get("asked"), here.get("asked")
    if not isinstance(one, dict) or not isinstance(two, dict):
        return ""
    names = [name for name in two if one.get(name) != two[name]]
    both = [f"{name}={text_of(one.get(name))} against {text_of(two[name])}" for name in names]
    return f" ({', '.join(both)})" if both else ""


def _check_whole(
    shards: Mapping[int, tuple[Path, Mapping[str, Any]]],
    everything: Sequence[tuple[Path, Mapping[str, Any]]],
) -> None:
    """Check that the parts of one evaluation are all there, and every episode of it once.

    Args:
        shards: its parts by their numbers.
        everything: all parts of all evaluations that are there.

    Raises:
        TrimtabError: naming the parts that are missing, or an episode that is.
    """
    folder, note = next(iter(shards.values()))
    lacking = [n for n in range(1, note["of"] + 1) if n not in shards]
    if lacking:
        named = ", ".join(f"{n}/{note['of']}" for n in lacking[:5])
        more = f" and {len(lacking) - 5} more" if len(lacking) > 5 else ""
        others = (
            f"; {path} is part {one['shard']}/{one['of']} of another one{_differing(one, note)}"
            for path, one in everything
            if one["evaluation"] != note["evaluation"]
            and (one["shard"], one["of"]) == (lacking[0], note["of"])
        )
        raise TrimtabError(
            f"shards: beside {folder}, the part {named}{more} of the evaluation of "
            f"{note.get('policy')} is missing{next(others, '')}; carry it out with the same words "
            f"and shard={lacking[0]}/{note['of']}"
        )
    counts = [0] * note["episodes"]
    for path, _ in shards.values():
        for episode in read_episodes(path / FILE_NAME)["eval_episode"].to_pylist():
            if episode >= len(counts):
                raise TrimtabError(f"shards: {path} has an episode {episode}, which is none of its")
            counts[episode] += 1
    wrong = next((episode for episode, count in enumerate(counts) if count != 1), None)
    if wrong is not None:
        raise TrimtabError(
            f"shards: episode {wrong} is there {counts[wrong]} times in {folder} and beside it; "
            "evaluate again"
        )


def _note(file: Path) -> dict[str, Any]:
    """Return what the note beside a part says.

    Raises:
        TrimtabError: if it is damaged.
    """
    note = read_json(file, "shard")
    right = isinstance(note, dict) and all(type(note.get(k)) is kind for k, kind in _FACTS.items())
    if not right or not (
        1 <= note["shard"] <= note["of"] <= _MOST and 1 <= note["episodes"] <= 1e7
    ):
        raise TrimtabError(f"shard: {file} does not say which part it is of; evaluate it again")
    return dict(note)
