"""YAML of a user's own as plain values; a key that is there twice is refused.

PyYAML takes the last of several equal keys and says nothing, so that a run or a setting would be
lost.
"""

from __future__ import annotations

from typing import Any

import yaml

from trimtab.benchmarks.training.settings.words import yaml_fault
from trimtab.errors import TrimtabError
from trimtab.files import decoded

__all__ = ["plain_yaml"]

_MERGE = "tag:yaml.org,2002:merge"  # "<<", of which there may be several


class _RepeatedKeyError(Exception):
    """A mapping has a key twice."""


class _KeysOnce(yaml.SafeLoader):  # type: ignore[misc]  # PyYAML has no types
    """Reads plain values, from mappings whose keys are there once."""

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        """Return a mapping; its own keys are checked, before others are merged into it."""
        node: yaml.MappingNode = super().compose_mapping_node(anchor)
        lines: dict[object, int] = {}
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode) or key.tag == _MERGE:
                continue
            # As they are read: 1 and 0x1 are one key, and so are yes and true; 1 and true are not.
            read = self.construct_object(key)
            line, name = key.start_mark.line + 1, (type(read), read)
            if name in lines:
                raise _RepeatedKeyError(
                    f"line {line}: {key.value} is there a second time, after line {lines[name]}; "
                    "rename one of them, or remove it"
                )
            lines[name] = line
        return node


def plain_yaml(text: bytes, name: str) -> Any:
    """Return what a YAML text of a user's own says.

    Args:
        text: in UTF-8, or as its byte order mark says.
        name: what errors call it.

    Raises:
        TrimtabError: if it is no YAML, or a key is there twice.
    """
    try:
        reader = _KeysOnce(decoded(text))
        try:
            return reader.get_single_data()
        finally:
            reader.dispose()
    except _RepeatedKeyError as error:
        raise TrimtabError(f"{name}: {error}") from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise TrimtabError(f"{name}: is no YAML ({yaml_fault(error)})") from error
