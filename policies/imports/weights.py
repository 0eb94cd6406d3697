"""The actor of a weight file, recognised by what is in it.

Exactly one layout of :mod:`trimtab.policies.imports.libraries` must recognise a file. Files of
Stable-Baselines3 are zips in which there is another one, and policies of LeRobot are folders.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from trimtab.errors import TrimtabError
from trimtab.files import read_json, read_whole
from trimtab.policies.imports.actors import FILE, NONE, TANH, Actor, Unsaid
from trimtab.policies.imports.chunks import ChunkActor, lerobot
from trimtab.policies.imports.libraries import LAYOUTS
from trimtab.policies.imports.sb3 import actor_from_sb3
from trimtab.policies.imports.torch_archive import Opaque, TensorArchive, readable

__all__ = ["is_lerobot", "read_actor"]

OTHER_WAY = "export it as ONNX where it was trained, and import that"
_MOST_NAMED = 12


def read_actor(path: str | Path, unsaid: Unsaid) -> tuple[Actor | ChunkActor, str]:
    """Return the actor of a weight file, and the library that wrote it. Nothing is executed.

    Args:
        path: of the file, or of LeRobot's folder.
        unsaid: what the file does not say.

    Raises:
        TrimtabError: if no library, or more than one, writes such files; if it is damaged, or
            cannot be taken over; if ``unsaid`` lacks what the file does not say.
    """
    path = Path(path)
    if is_lerobot(path):
        return lerobot(path, unsaid), "lerobot"
    data = read_whole(path)
    if b"policy.pth" in data:
        _check_asked(path, unsaid, ("statistics",))
        return actor_from_sb3(path, unsaid), "stable_baselines3"
    if data[:2] != b"PK" and data[:1] != b"\x80":
        raise TrimtabError(f"{path}: is neither a file of torch nor a pickle; {OTHER_WAY}")
    archive = TensorArchive(data, str(path))
    known = [layout for layout in LAYOUTS if layout.recognises(archive.content)]
    if len(known) != 1:
        names = " and ".join(layout.library for layout in known)
        raise TrimtabError(
            f"{path}: is {'as files of ' + names if known else 'of no library that is known'}; it "
            f"holds {_seen(archive.content)}; {OTHER_WAY}"
        )
    _check_asked(path, unsaid, known[0].asks)
    with readable(str(path)):
        return known[0].read(archive, unsaid), known[0].library


def _check_asked(path: Path, unsaid: Unsaid, asks: Sequence[str]) -> None:
    """Check that a contract says nothing that would be passed over."""
    named = unsaid.statistics not in (None, NONE, FILE)
    for entry, said in (("output", unsaid.output == TANH), ("statistics", named)):
        if said and entry not in asks:
            raise TrimtabError(
                f"{path}: its library leaves no choice of {entry}; take {entry}: "
                f"{getattr(unsaid, entry)} out of the contract"
            )


def _seen(content: Any, deeper: bool = True) -> str:
    """Return in a few words what a file holds: keys, and those below the first of them."""
    if isinstance(content, Opaque):
        return content.class_name.replace(" ", ".")
    if isinstance(content, list | tuple) and deeper:
        inside = ", ".join(_seen(value, False) for value in islice(content, _MOST_NAMED))
        return f"a sequence of {inside or 'nothing'}"
    if not isinstance(content, dict):
        return type(content).__name__
    texts = [str(name)[:60] for name in islice(content, _MOST_NAMED)]
    below = zip(texts, content.values(), strict=False) if deeper else ()
    inner = (f"; in {name}: {_seen(kept, False)}" for name, kept in below if isinstance(kept, dict))
    return (", ".join(texts) or "nothing") + next(inner, "")


def is_lerobot(folder: Path) -> bool:
    """Return whether a folder is a policy of LeRobot."""
    try:
        config = read_json(folder / "config.json", "policy of LeRobot")
    except TrimtabError:
        return False
    return isinstance(config, dict) and {"type", "input_features"} <= set(config)
