"""Options of a task, from the words of a command."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from numpy.typing import NDArray

from trimtab.envs.registry import checked_names
from trimtab.errors import TrimtabError
from trimtab.files import decoded, read_bytes
from trimtab.policies.bundle.limits import Limits

__all__ = ["command_limits", "policy_inputs", "setting_choices", "task_options"]


def task_options(command: str, text: str, words: Sequence[str] = ()) -> dict[str, Any]:
    """Return what a task is to be made with.

    Args:
        command: name of the command, for errors.
        text: a mapping, such as ``{reward: sparse}``; or nothing.
        words: single options, ``env_options.<name>=<value>``; they come after the mapping.

    Raises:
        TrimtabError: if something is no YAML, no mapping, or no name of an option.
    """
    options = _yaml(command, f"env_options={text}", text) if text else {}
    if not isinstance(options, dict):
        raise TrimtabError(f"{command}: env_options must be like {{reward: sparse, horizon: 150}}")
    for word in words:
        key, equals, value = word.partition("=")
        name = key.removeprefix("env_options.")
        if not equals or not name or "." in name:
            raise TrimtabError(f"{command}: {word}: write env_options.<name>=<value>")
        options[name] = _yaml(command, word, value)
    return dict(checked_names(options))


def policy_inputs(command: str, text: str) -> dict[str, Any]:
    """Return what a policy's inputs are to be.

    Args:
        command: name of the command, for errors.
        text: a mapping, such as ``{guidance: 3}``; or nothing. A value that ends with ``.npy`` is
            the file of an array, such as ``{noise: ticket.npy}``.

    Raises:
        TrimtabError: if it is no YAML, no mapping, or has a key that is no name, or if a file is
            no array.
    """
    inputs = _yaml(command, f"inputs={text}", text) if text else {}
    if not isinstance(inputs, dict) or not all(isinstance(name, str) for name in inputs):
        raise TrimtabError(f"{command}: inputs={text}: must be like {{guidance: 3}}")
    return {
        name: _array(f"{command}: inputs: {name}={value}", value)
        if isinstance(value, str) and value.endswith(".npy")
        else _number(value)
        for name, value in inputs.items()
    }


def _array(word: str, path: str) -> NDArray[Any]:
    """Return the array in a file that ``np.save`` wrote."""
    try:
        data = io.BytesIO(read_bytes(Path(path).expanduser()))
        read: Any = np.lib.format.read_array  # numpy does not say its types
        array: NDArray[Any] = read(data, allow_pickle=False)
    except Exception as error:  # numpy's reader of a header passes on many kinds
        raise TrimtabError(f"{word}: cannot be read as an array ({error})") from error
    return array


def setting_choices(command: str, text: str) -> Any:
    """Return what ``{sampling_steps: [10, 5]}`` says can be chosen; None if nothing is said.

    Raises:
        TrimtabError: if it is no YAML.
    """
    return _yaml(command, f"choices={text}", text) if text else None


def command_limits(command: str, text: str) -> dict[str, Any]:
    """Return limits of a robot's commands, as a contract has them.

    Args:
        command: name of the command, for errors.
        text: a mapping, such as ``{velocity: 1.0}``, or the path of a YAML file with one.

    Raises:
        TrimtabError: if the file cannot be read, or it is no YAML and no limits.
    """
    word, stated = f"limits={text}", text
    if not text.lstrip().startswith("{"):
        try:
            stated = decoded(read_bytes(Path(text).expanduser()))
        except (OSError, ValueError) as error:
            raise TrimtabError(f"{command}: {word}: cannot be read ({error})") from error
    found = _yaml(command, word, stated)
    return Limits.parse(_number(found), f"{command}: {word}").to_json()


def _number(value: Any) -> Any:
    """Return a value in which a text such as 1e3, which YAML reads as none, is a number."""
    if isinstance(value, list):
        return [_number(one) for one in value]
    if isinstance(value, dict):
        return {name: _number(one) for name, one in value.items()}
    try:
        return float(value) if isinstance(value, str) else value
    except ValueError:  # the policy refuses it
        return value


def _yaml(command: str, word: str, text: str) -> Any:
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise TrimtabError(f"{command}: {word}: not YAML") from error
