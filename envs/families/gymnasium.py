"""Any environment that is registered with Gymnasium, by its own id: ``gymnasium:Pendulum-v1``.

``gymnasium:my_package:MyEnv-v0`` imports ``my_package`` first, as Gymnasium's own ``module:id``
does. An id with a namespace, ``gymnasium:my_package/MyEnv-v0``, imports the package of that name if
nothing has registered it yet. So every process finds the task by its id alone.

Options that not every task has are arguments of the environment's constructor. ``success_key``
names the entry of ``info`` that tells success. The horizon is ``max_episode_steps`` of Gymnasium's
spec; Gymnasium's ``TimeLimit`` is left out, because the suite cuts episodes itself.
"""

from __future__ import annotations

import copy
import functools
import hashlib
import importlib
import importlib.metadata
import importlib.util
import inspect
import json
import sys
from collections.abc import Iterator, Mapping
from types import ModuleType
from typing import Any, TypeGuard

import gymnasium
from gymnasium.envs.registration import EnvSpec as GymnasiumSpec
from gymnasium.envs.registration import load_env_creator

from trimtab.envs.core.faults import in_a_line
from trimtab.envs.core.fingerprint import source_digest
from trimtab.envs.core.options import EVERYWHERE
from trimtab.envs.core.quiet import quiet
from trimtab.envs.core.spec import NO_HORIZON, Family, OpenFamily, RawEnv, Task
from trimtab.envs.engines.mujoco_frames import mujoco_frames
from trimtab.errors import TrimtabError, closest

__all__ = ["OPEN"]

_NAME = "gymnasium"
_SUCCESS_KEY = "success_key"
_OURS = {
    "max_episode_steps": "its length is env_options.horizon",
    "render_mode": "Trimtab chooses it",
}
"""Arguments of ``gymnasium.make`` that are no constructor's."""
_UNSET = object()
_NOT_PHYSICS = frozenset({"numpy", "trimtab", "typing_extensions"})
"""Distributions that decide no physics, as in the families of our own."""


def _find(name: str, options: Mapping[str, Any]) -> Family:
    spec = _registered(name)
    for word, remedy in _OURS.items():
        if word in options:
            raise TrimtabError(f"{_NAME}:{name}: {word} is no option of a task; {remedy}")
    given = {key: value for key, value in options.items() if key not in EVERYWHERE}
    success_key = given.get(_SUCCESS_KEY)
    if success_key is not None and not (isinstance(success_key, str) and success_key):
        raise TrimtabError(
            f"{_NAME}:{name}: success_key={success_key!r} must be the name of an entry of info"
        )
    modules, source = _defined_by(spec)

    def build(task: str, *, render: bool, **arguments: Any) -> RawEnv:
        del task
        return _build(spec, render=render, **arguments)

    task = Task(
        horizon=spec.max_episode_steps or NO_HORIZON,
        success_key=success_key,
        # Whatever is given is allowed: the constructor says what it does not know.
        options={key: (_UNSET, value) for key, value in given.items()},
    )
    return Family(
        name=_NAME,
        install=_NAME,
        packages=_packages(modules),
        tasks={name: task},
        build=build,
        frames=_frames,
        source=source,
    )


def _registered(name: str) -> GymnasiumSpec:
    """Return what Gymnasium knows of an id, once the package that registers it is imported."""
    package, colon, id = name.rpartition(":")
    if colon:
        _import(name, package)
    elif id not in gymnasium.registry and "/" in id:
        namespace = id.partition("/")[0].replace("-", "_")
        if namespace.isidentifier() and importlib.util.find_spec(namespace) is not None:
            _import(name, namespace)
    found = gymnasium.registry.get(id)
    if found is None:
        near = closest(id, gymnasium.registry)
        hint = f"; the nearest is {_NAME}:{near}" if near else ""
        raise TrimtabError(
            f"{_NAME}:{name}: Gymnasium knows no environment {id!r}{hint}; if a package registers "
            f"it, name the package before it: {_NAME}:<package>:{id}"
        )
    return found


def _import(name: str, package: str) -> None:
    try:
        with quiet():
            importlib.import_module(package)
    except (Exception, SystemExit) as error:  # it is a user's, and may hold any fault
        raise TrimtabError(
            f"{_NAME}:{name}: the package {package!r} cannot be imported ({in_a_line(error)}); "
            "install it, or put the folder that it lies in into PYTHONPATH"
        ) from error


def _build(spec: GymnasiumSpec, *, render: bool, **arguments: Any) -> RawEnv:
    arguments.pop(_SUCCESS_KEY, None)
    plain = copy.copy(spec)
    plain.order_enforce = False  # its wrapper would hide the environment's own attributes
    try:
        with quiet():
            return gymnasium.make(
                plain,
                max_episode_steps=-1,  # no TimeLimit
                disable_env_checker=True,
                **({"render_mode": "rgb_array"} if render else {}),
                **arguments,
            )
    except TypeError as error:
        if not render or "'render_mode'" not in str(error):
            raise
        raise TrimtabError(
            f"{_NAME}:{spec.id} cannot be drawn: its constructor takes no render_mode; add "
            'render_mode=None to it, and let render() return a picture [H, W, 3] for "rgb_array"'
        ) from error
    except ImportError as error:  # pip may know what is missing by another name
        raise TrimtabError(
            f"{_NAME}:{spec.id} cannot be made ({in_a_line(error)}); install what it needs"
        ) from error


def _defined_by(spec: GymnasiumSpec) -> tuple[tuple[ModuleType, ...], str]:
    """Return the modules that define a task, and the SHA-256 of their sources and of the spec.

    They are those of its class and the classes it is made from, or of the function that makes it,
    and those of its wrappers. What comes with Gymnasium is known by Gymnasium's version.
    """
    try:
        with quiet():
            makers = [_loaded(spec.entry_point)]
            makers += [_loaded(wrapper.entry_point) for wrapper in spec.additional_wrappers]
    except Exception as error:  # its simulator may be missing
        raise TrimtabError(
            f"{_NAME}:{spec.id}: what makes it cannot be imported ({in_a_line(error)}); install "
            "what it needs"
        ) from error
    names = dict.fromkeys(name for maker in makers for name in _module_names(maker))
    modules = tuple(sys.modules[name] for name in names if name in sys.modules)
    own = sorted(m.__name__ for m in modules if m.__name__.partition(".")[0] != _NAME)
    document = {
        "sources": {name: source_digest(name) for name in own},
        "kwargs": spec.kwargs,
        "wrappers": [[wrapper.name, wrapper.kwargs] for wrapper in spec.additional_wrappers],
    }
    text = json.dumps(document, sort_keys=True, default=_named)
    return modules, hashlib.sha256(text.encode()).hexdigest()


def _loaded(entry_point: Any) -> Any:
    return load_env_creator(entry_point) if isinstance(entry_point, str) else entry_point


def _module_names(maker: Any) -> Iterator[str]:
    classes = maker.__mro__ if inspect.isclass(maker) else (maker,)
    for one in classes:
        name = getattr(one, "__module__", None)
        if isinstance(name, str) and name.partition(".")[0] not in sys.stdlib_module_names:
            yield name


def _named(value: Any) -> str:
    """Return what JSON has no word for as text without an address in memory."""
    kind = value if inspect.isclass(value) or inspect.isroutine(value) else type(value)
    return f"{kind.__module__}.{kind.__qualname__}"


def _packages(modules: tuple[ModuleType, ...]) -> tuple[str, ...]:
    """Return the distributions of some modules and of all that these import by name."""
    tops = {_NAME} | {module.__name__.partition(".")[0] for module in modules}
    for module in modules:
        for value in list(vars(module).values()):
            if inspect.ismodule(value):
                tops.add(value.__name__.partition(".")[0])
            elif inspect.isclass(value) or inspect.isfunction(value):
                tops.add(str(value.__module__).partition(".")[0])
    known = _distributions()
    # Others may add to a package's folder, as mujoco-mjx does to mujoco's: they are not meant.
    found = {name for top in tops for name in known.get(top, ()) if top not in known[top]}
    found |= {top for top in tops if top in known.get(top, ())}
    return tuple(sorted(found - _NOT_PHYSICS))


@functools.cache
def _distributions() -> Mapping[str, list[str]]:
    return importlib.metadata.packages_distributions()


def _frames(env: RawEnv) -> tuple[float | None, int, str]:
    """Return the clock of an environment, as far as it tells one."""
    bare: Any = env.unwrapped
    try:
        return mujoco_frames(bare)
    except (AttributeError, ImportError, TypeError, ValueError):
        pass
    step, rate = getattr(bare, "dt", None), getattr(bare, "metadata", {}).get("render_fps")
    if _is_positive(step):
        return float(step), 1, "unknown"
    return (1.0 / float(rate) if _is_positive(rate) else None), 1, "unknown"


def _is_positive(value: Any) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and value > 0


def _nearest(word: str) -> str | None:
    package, colon, id = word.rpartition(":")
    known = id in gymnasium.registry or (colon and package)
    return f"{_NAME}:{word}" if known else None


OPEN = OpenFamily(
    name=_NAME,
    how=f"{_NAME}:<id> if Gymnasium knows it, {_NAME}:<package>:<id> if a package registers it",
    find=_find,
    nearest=_nearest,
)
