"""Models compiled once a process: to compile the same again gives an exact copy.

A run makes each of its tasks several times: to read what it is, to act in it, to evaluate. Reading
shapes and pictures from files takes most of that; a copy takes a tenth of it.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import ModuleType
from typing import Any

from trimtab.turns import in_turn, replaced

__all__ = ["StandIn", "is_kept", "models_kept"]

_MOST = 8  # each of some tens of MB
_models: dict[tuple[object, ...], Any] = {}


def is_kept(text: str) -> bool:
    """Return whether a model is kept of a description whose files its text alone tells."""
    return ("text", text) in _models


@contextmanager
def models_kept(
    user: ModuleType, *, named_by_content: bool = False, only_read: bool = False
) -> Iterator[None]:
    """Let a module that compiles models find the last ones in memory.

    Args:
        user: a module that names ``mujoco``; in the block the name stands for a stand-in.
        named_by_content: whether a description's text alone tells what its files are: it names
            them with digests, or they are a library's own and never change.
        only_read: whether nobody writes into the models. Then all are given the same one.
    """
    with in_turn():
        real = vars(user)["mujoco"]
        kept = _Keeping(real.MjModel, named_by_content, only_read)
        with replaced(user, "mujoco", StandIn(real, MjModel=kept)):
            yield


class StandIn:
    """Has what another object has, but for some attributes.

    Args:
        real: the other one.
        own: the attributes.
    """

    def __init__(self, real: Any, **own: Any) -> None:
        self._real = real
        vars(self).update(own)

    def __getattr__(self, attribute: str) -> Any:
        return getattr(self._real, attribute)


class _Keeping(StandIn):
    """Stands for ``mujoco.MjModel``; what is compiled comes from memory.

    Args:
        real: the class.
        named_by_content: as for :func:`models_kept`.
        only_read: as for :func:`models_kept`.
    """

    def __init__(self, real: Any, named_by_content: bool, only_read: bool) -> None:
        super().__init__(real)
        self._named_by_content = named_by_content
        self._only_read = only_read

    def from_xml_path(self, filename: str, assets: Mapping[str, bytes] | None = None) -> Any:
        """Return a model from a file of the library's."""
        return self._given(("path", filename), self._real.from_xml_path, filename, assets)

    def from_xml_string(self, xml: str, assets: Mapping[str, bytes] | None = None) -> Any:
        """Return a model from a description and the files that it names."""
        files = [] if self._named_by_content else sorted((assets or {}).items())
        return self._given(("text", xml, *files), self._real.from_xml_string, xml, assets)

    def _given(self, key: tuple[object, ...], compiled: Any, source: str, assets: Any) -> Any:
        model = _kept(key, compiled, source, assets)
        return model if self._only_read else copy.copy(model)


def _kept(key: tuple[object, ...], compiled: Any, source: str, assets: Any) -> Any:
    if key in _models:
        _models[key] = _models.pop(key)  # the last one is the first to go
    else:
        _models[key] = compiled(source, assets or {})
        while len(_models) > _MOST:
            del _models[next(iter(_models))]
    return _models[key]
