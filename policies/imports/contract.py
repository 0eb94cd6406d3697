"""What somebody else's network file does not say: the contract, a small YAML file beside it.

Which tensor is what, what the joints are called and in which order each side has them, how an
observation is put together, what an output means. ``docs/foreign-policies.md`` explains it entry by
entry. All lists have the robot's order, or are mappings by joint; nothing is guessed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from trimtab.errors import TrimtabError, nearest, yaml_fault
from trimtab.files import decoded, read_bytes
from trimtab.policies.bundle.limits import Limits

__all__ = ["ForeignContract", "History", "State", "Term", "read_contract", "read_entries"]

Numbers = tuple[float, ...]

_LAST = ("raw", "clipped", "scaled")
_ORDERS = ("listed", "sorted")
_HISTORY: Mapping[str, tuple[str, ...]] = {
    "order": ("oldest_first", "newest_first"),
    "layout": ("terms", "frames"),
    "fill": ("first", "zeros"),
}
_MOST_HISTORY = 1000


@dataclass(frozen=True)
class State:
    """One recurrent state of the network.

    Attributes:
        name: of the input tensor.
        next: of the output tensor with its value at the next decision.
        initial: numbers as an episode begins; empty for zeros.
    """

    name: str
    next: str
    initial: Numbers = ()


@dataclass(frozen=True)
class Term:
    """One term of the observation that the network reads.

    Attributes:
        name: of the term.
        size: how many numbers one observation has of it.
        joints: whether they belong to the joints, one each.
        last_action: empty where the robot gives the term. ``raw``: the network's last output,
            which the policy remembers itself; ``clipped``: after the action's clip; ``scaled``:
            after its scale too.
        subtract: taken off first, ``[size]``, in the robot's order and units.
        scale: factors ``[size]``.
        clip: lower and upper limit, or None.
        clip_first: whether it is clipped before it is scaled.
        low: where values usually begin, ``[size]``.
        high: where they usually end, ``[size]``.
        names: of its entries.
        units: of its entries.
        history: observations of it that the network reads; 0 for as many as of the others.
    """

    name: str
    size: int
    joints: bool
    last_action: str
    subtract: Numbers
    scale: Numbers
    clip: tuple[float, float] | None
    clip_first: bool
    low: Numbers
    high: Numbers
    names: tuple[str, ...]
    units: tuple[str, ...]
    history: int = 0


@dataclass(frozen=True)
class History:
    """How past observations stand in the vector that the network reads.

    Attributes:
        length: observations, the present one included.
        order: ``oldest_first`` or ``newest_first``.
        layout: ``terms``: all past values of the first term, then of the second; ``frames``: whole
            observations one after another.
        fill: what stands for observations before an episode's first: that one, or ``zeros``.
    """

    length: int = 1
    order: str = "oldest_first"
    layout: str = "terms"
    fill: str = "first"


@dataclass(frozen=True)
class ForeignContract:
    """What is known of a network beside its file.

    Attributes:
        where: names the file, for messages.
        task: id of a task, or empty.
        control_rate: decisions a second in Hz, or None.
        observation: name of the input tensor of the observation, or empty.
        action: name of the output tensor of the action, or empty.
        noise: name of the input tensor of the noise, or empty.
        states: recurrent states.
        robot: names of the actions in the robot's order; empty where they have none.
        network: the same names in the network's order.
        terms: in the order in which the robot gives them.
        order: names of the terms in the order in which the network reads them.
        history: of the observation.
        pose: added to a scaled output, ``[A]``, the robot's order.
        scale: factors of an output, ``[A]``, the robot's order.
        clip: limits of an output before it is scaled, or None.
        low: lower limits of an action ``[A]``, raw units; empty for the task's.
        high: upper limits.
        units: of the actions.
        act_steps: actions that are played of a chunk.
        limits: of rates, as ``save_bundle`` takes them.
        gains: ``stiffness`` and ``damping`` of the joints ``[A]``, the robot's order.
    """

    where: str
    task: str
    control_rate: float | None
    observation: str
    action: str
    noise: str
    states: tuple[State, ...]
    robot: tuple[str, ...]
    network: tuple[str, ...]
    terms: tuple[Term, ...]
    order: tuple[str, ...]
    history: History
    pose: Numbers
    scale: Numbers
    clip: tuple[float, float] | None
    low: Numbers
    high: Numbers
    units: tuple[str, ...]
    act_steps: int
    limits: Mapping[str, Any] = field(default_factory=dict)
    gains: Mapping[str, Numbers] = field(default_factory=dict)

    @property
    def observed(self) -> tuple[Term, ...]:
        """The terms that the robot gives, in its order."""
        return tuple(term for term in self.terms if not term.last_action)

    @property
    def remembers_last(self) -> str:
        """Which last action the policy remembers; empty if it reads none."""
        return next((term.last_action for term in self.terms if term.last_action), "")

    def frames_of(self, term: Term) -> int:
        """Return how many observations of a term the network reads."""
        return term.history or self.history.length

    @property
    def width(self) -> int:
        """How many numbers the network reads."""
        return sum(term.size * self.frames_of(term) for term in self.terms)

    def term(self, name: str) -> Term:
        """Return a term by its name."""
        return next(term for term in self.terms if term.name == name)


def read_contract(
    path: str | Path, count_actions: Callable[[str, Sequence[str]], int]
) -> ForeignContract:
    """Read a contract.

    Args:
        path: the YAML file. No tag of it is carried out.
        count_actions: returns how many numbers an action has, from the name of the network's output
            (empty where the contract has none) and the names of outputs that are states.

    Raises:
        TrimtabError: naming the entry that is missing, unknown, malformed or contradicts another.
    """
    return _Reader(f"contract {path}", count_actions).read(read_entries(path))


def read_entries(path: str | Path) -> Any:
    """Return what the YAML of a contract holds, of data, of a weight file or of an ONNX file.

    Raises:
        TrimtabError: if it cannot be read. No tag of it is carried out.
    """
    where = f"contract {path}"
    try:
        # By the reader of settings, which knows 1e-3 for a number and refuses a key that is twice.
        return OmegaConf.to_container(OmegaConf.create(decoded(read_bytes(path))))
    except (yaml.YAMLError, OmegaConfBaseException) as error:
        raise TrimtabError(f"{where}: is no YAML ({yaml_fault(error)})") from error
    except (OSError, ValueError, RecursionError) as error:
        raise TrimtabError(
            f"{where}: cannot be read ({yaml_fault(error)}); check the path"
        ) from error
    except AssertionError:  # what OmegaConf raises of a single value
        return None


class _Reader:
    """Reads the sections of one contract.

    Args:
        where: names the file.
        count_actions: as of :func:`read_contract`.
    """

    def __init__(self, where: str, count_actions: Callable[[str, Sequence[str]], int]) -> None:
        self.where, self.count_actions = where, count_actions
        self.actions = 0
        self.robot: tuple[str, ...] = ()
        self.permuted = False  # whether the network has its joints in another order
        self.pose: Numbers = ()
        self.units: tuple[str, ...] = ()

    def read(self, value: Any) -> ForeignContract:
        top = self.section(
            value, "", "task", "control_rate", "network", "joints", "observation", "action",
            "limits", "gains",
        )  # fmt: skip
        tensors = self.section(
            top.get("network"), "network", "observation", "action", "noise", "states"
        )
        states = self.states(tensors.get("states"))
        output = self.text(tensors.get("action"), "network.action")
        self.actions = self.count_actions(output, [one.next for one in states])
        self.robot, network = self.joints(top.get("joints"))
        self.permuted = network != self.robot
        action = self.section(
            top.get("action"), "action", "default", "scale", "clip", "low", "high", "units",
            "act_steps",
        )  # fmt: skip
        self.pose = self.by_joint(action.get("default", 0.0), "action.default")
        self.units = self.texts(action.get("units"), "action.units", self.actions)
        observation = self.section(
            top.get("observation"), "observation", "order", "terms", "clip", "clip_first", "history"
        )
        terms = self.terms(observation)
        clip = self.clip(action.get("clip"), "action.clip")
        if clip is None and any(term.last_action == "clipped" for term in terms):
            raise self.refusal(
                "observation.terms: last_action is clipped, and action.clip says no limits; add "
                "them, or write raw or scaled"
            )
        low, high = self.ends(action)
        gained = self.section(top.get("gains"), "gains", "stiffness", "damping")
        gains = {name: self.by_joint(value, f"gains.{name}") for name, value in gained.items()}
        for name, values in gains.items():
            if min(values) < 0:
                raise self.refusal(f"gains.{name}: must be at least 0, got {min(values):g}")
        limits = {} if top.get("limits") is None else top["limits"]
        if not isinstance(limits, dict):
            raise self.refusal("limits: must be a mapping, such as velocity: 2.0")
        limits |= {
            name: list(self.by_joint(limits[name], f"limits.{name}"))
            for name in limits.keys() - {"workspace"}
            if isinstance(limits[name], dict)
        }
        if "default" in action:
            self.inside(action, "action")
            self.inside(limits, "limits")
        if limits:
            limits = Limits.parse(limits, self.where).to_json()
        rate = top.get("control_rate")
        if "control_rate" not in top:
            raise self.refusal("control_rate: is missing; give decisions a second, or null")
        right = rate is None or (_is_number(rate) and rate > 0)
        self.checked(rate, "control_rate", right, "decisions a second")
        return ForeignContract(
            where=self.where, task=self.text(top.get("task"), "task"),
            control_rate=None if rate is None else float(rate),
            observation=self.text(tensors.get("observation"), "network.observation"),
            action=output, noise=self.text(tensors.get("noise"), "network.noise"), states=states,
            robot=self.robot, network=network, terms=terms,
            order=self.order(observation.get("order"), [term.name for term in terms]),
            history=self.history(observation.get("history"), terms),
            pose=self.pose, scale=self.by_joint(action.get("scale", 1.0), "action.scale"),
            clip=clip, low=low, high=high,
            units=self.units,
            act_steps=self.whole(action.get("act_steps", 1), "action.act_steps"),
            limits=limits, gains=gains,
        )  # fmt: skip

    def joints(self, value: Any) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Return the names in the robot's order, and in the network's."""
        section = self.section(value, "joints", "robot", "network")
        if not section:
            return (), ()
        if "robot" not in section:
            raise self.refusal("joints.robot: is missing; list the joints in your robot's order")
        robot = self.names(section["robot"], "joints.robot")
        network = self.names(section.get("network", list(robot)), "joints.network")
        for one, other, what in ((robot, network, "network"), (network, robot, "robot")):
            if lacking := [name for name in one if name not in other]:
                raise self.refusal(
                    f"joints.{what} lacks {', '.join(lacking)}, which the other list has"
                )
        if len(robot) != self.actions:
            raise self.refusal(
                f"joints.robot: has {len(robot)} names, and the network has {self.actions} actions"
            )
        return robot, network

    def names(self, value: Any, where: str) -> tuple[str, ...]:
        self.checked(value, where, _are_texts(value), "a list of names")
        for name in value:
            if value.count(name) > 1:
                raise self.refusal(f"{where}: has {name!r} twice; each joint has its own name")
        return tuple(value)

    def terms(self, observation: Mapping[str, Any]) -> tuple[Term, ...]:
        """Return the terms, in the order of the file."""
        listed = observation.get("terms")
        if not isinstance(listed, dict) or not listed:
            raise self.refusal(
                "observation.terms: is missing; give each term by its name, such as "
                "base_ang_vel: {size: 3}, in the order in which your robot gives them"
            )
        found = tuple(self.term(str(name), entry, observation) for name, entry in listed.items())
        if not [term for term in found if not term.last_action]:
            raise self.refusal("observation.terms: has none that the robot gives; add one")
        kinds = {term.last_action for term in found if term.last_action}
        if len(kinds) > 1:
            raise self.refusal(f"observation.terms: last_action is {' and '.join(sorted(kinds))}")
        return found

    def term(self, name: str, value: Any, observation: Mapping[str, Any]) -> Term:
        where = f"observation.terms.{name}"
        entry = self.section(
            value, where, "size", "joints", "last_action", "subtract", "scale", "clip",
            "clip_first", "range", "names", "units", "history",
        )  # fmt: skip
        last = self.choice(entry.get("last_action", ""), f"{where}.last_action", ("", *_LAST))
        joints = self.truth(entry.get("joints", False), f"{where}.joints")
        if joints and not self.robot:
            raise self.refusal(f"{where}.joints: the joints have no names; add joints.robot")
        per_joint = joints or bool(last)
        if per_joint and entry.get("size", self.actions) != self.actions:
            raise self.refusal(f"{where}.size: there are {self.actions} actions; leave it out")
        if not per_joint and "size" not in entry:
            raise self.refusal(f"{where}.size: is missing; say how many numbers it has")
        size = self.actions if per_joint else self.whole(entry["size"], f"{where}.size")
        if self.permuted and size == self.actions and not per_joint and "joints" not in entry:
            raise self.refusal(
                f"{where}: has as many numbers as there are joints, which the network has in "
                "another order; write joints: true if they belong to them, or joints: false"
            )
        subtract = entry.get("subtract", 0.0)
        units = self.texts(entry.get("units"), f"{where}.units", size)
        if subtract == "default":
            if not per_joint:
                raise self.refusal(f"{where}.subtract: only a term of joints has a default pose")
            self.one_unit(units, where)
            shift = self.pose
        else:
            shift = self.numbers(subtract, f"{where}.subtract", size, per_joint)
        low, high = (tuple(x + step for x in shift) for step in (-1, 1))
        if (usual := entry.get("range")) is not None:
            paired = isinstance(usual, list) and len(usual) == 2
            self.checked(usual, f"{where}.range", paired, "a pair, such as [-1, 1]")
            low, high = (self.numbers(x, f"{where}.range", size, per_joint) for x in usual)
            self.ordered(low, high, f"{where}.range")
        if per_joint and self.robot:
            names = tuple(f"{name}.{joint}" for joint in self.robot)
        else:
            names = (name,) if size == 1 else tuple(f"{name}.{index}" for index in range(size))
        first = entry.get("clip_first", observation.get("clip_first", False))
        clip = self.clip(entry.get("clip", observation.get("clip")), f"{where}.clip")
        scale = self.numbers(entry.get("scale", 1.0), f"{where}.scale", size, per_joint)
        said = "clip_first" in entry or "clip_first" in observation
        if clip is not None and not said and set(scale) != {1.0}:
            raise self.refusal(
                f"{where}: has a clip and a scale; stacks differ in which comes first, so add "
                "clip_first: true (unitree_rl_lab) or clip_first: false (rl_sar)"
            )
        return Term(
            name, size, joints, last, subtract=shift, scale=scale, clip=clip,
            clip_first=self.truth(first, f"{where}.clip_first"), low=low, high=high,
            names=self.texts(entry.get("names"), f"{where}.names", size) or names,
            units=units,
            history=self.whole(entry["history"], f"{where}.history") if "history" in entry else 0,
        )  # fmt: skip

    def one_unit(self, units: tuple[str, ...], where: str) -> None:
        """Check that the pose, which is taken off a term and added to the action, fits both."""
        told = zip(self.pose, units, self.units, strict=True) if units and self.units else ()
        for index, (pose, ours, theirs) in enumerate(told):
            if pose and ours != theirs:
                at = self.robot[index] if self.robot else index
                raise self.refusal(
                    f"{where}.subtract: the default pose of {at} is taken off in {ours} and added "
                    f"to an action in {theirs}; give both sides one unit, or numbers to subtract"
                )

    def inside(self, section: Mapping[str, Any], where: str) -> None:
        """Check that the default pose is within ``low`` and ``high`` of a section that has them."""
        for end, sign in (("low", -1), ("high", 1)):
            stated = section.get(end)
            bounds = self.pose if stated is None else self.by_joint(stated, f"{where}.{end}")
            for index, (pose, bound) in enumerate(zip(self.pose, bounds, strict=True)):
                if sign * pose > sign * bound:
                    at = self.robot[index] if self.robot else index
                    raise self.refusal(
                        f"action.default: {pose:g} of {at} is beyond {where}.{end}, {bound:g}; "
                        "look at its unit and its order"
                    )

    def order(self, value: Any, names: Sequence[str]) -> tuple[str, ...]:
        """Return the terms in the order in which the network reads them."""
        if isinstance(value, list):
            if sorted(map(str, value)) != sorted(names):
                raise self.refusal(
                    f"observation.order: has {', '.join(map(str, value))}; the terms are "
                    f"{', '.join(names)}, each once"
                )
            return tuple(map(str, value))
        if value is None and len(names) > 1:
            raise self.refusal(
                "observation.order: is missing; write listed, sorted (holosoma sorts its terms by "
                "name), or the list of the terms as the network reads them"
            )
        chosen = self.choice(value or "listed", "observation.order", _ORDERS)
        return tuple(sorted(names) if chosen == "sorted" else names)

    def history(self, value: Any, terms: Sequence[Term]) -> History:
        section = self.section(value, "observation.history", "length", *_HISTORY)
        length = self.whole(section.get("length", 1), "observation.history.length")
        if length > _MOST_HISTORY:
            raise self.refusal(f"observation.history.length: at most {_MOST_HISTORY}")
        longest = max(length, *(term.history for term in terms))
        chosen = {}
        for name, known in _HISTORY.items():
            where = f"observation.history.{name}"
            if name in section:
                chosen[name] = self.choice(section[name], where, known)
            elif longest > 1:
                raise self.refusal(f"{where}: is missing; write one of {', '.join(known)}")
        return History(length, **chosen)

    def states(self, value: Any) -> tuple[State, ...]:
        if not isinstance(value or {}, dict):
            raise self.refusal("network.states: must be a mapping, such as h_in: h_out")
        found: list[State] = []
        for name, entry in (value or {}).items():
            where = f"network.states.{name}"
            one = {"next": entry} if isinstance(entry, str) else entry
            section = self.section(one, where, "next", "initial")
            initial = section.get("initial", [])
            if not isinstance(initial, list) or not all(map(_is_number, initial)):
                raise self.refusal(f"{where}.initial: must be a list of finite numbers")
            following = self.text(section.get("next"), f"{where}.next")
            if not following:
                raise self.refusal(f"{where}.next: is missing; name the output that it becomes")
            if taken := [one.name for one in found if one.next == following]:
                raise self.refusal(f"{where}: {following} is the next value of {taken[0]} already")
            found.append(State(str(name), following, tuple(map(float, initial))))
        return tuple(found)

    def ends(self, action: Mapping[str, Any]) -> tuple[Numbers, Numbers]:
        """Return the limits of the actions, both or neither."""
        given = [key for key in ("low", "high") if key in action]
        if len(given) == 1:
            raise self.refusal("action: has one of low and high; give both")
        low, high = (self.by_joint(action[k], f"action.{k}") for k in given) if given else ((), ())
        self.ordered(low, high, "action")
        return low, high

    def ordered(self, low: Numbers, high: Numbers, where: str) -> None:
        for index, (least, most) in enumerate(zip(low, high, strict=True)):
            if least >= most:
                raise self.refusal(f"{where}: low {least:g} is not below high {most:g} at {index}")

    def section(self, value: Any, where: str, *known: str) -> dict[str, Any]:
        """Return a mapping whose names are all known; an empty one for nothing."""
        inside = f"{where}: " if where else ""
        if value is None and where:
            return {}
        if not isinstance(value, dict):
            raise self.refusal(f"{inside}must be a mapping of {', '.join(known)}")
        for name in value:
            if name not in known:
                raise self.refusal(
                    f"{inside}there is no entry {name!r}; {nearest(str(name), known)}"
                )
        return value

    def by_joint(self, value: Any, where: str) -> Numbers:
        return self.numbers(value, where, self.actions, True)

    def numbers(self, value: Any, where: str, size: int, joints: bool) -> Numbers:
        """Return ``size`` numbers: one for all, a list in the robot's order, or by joint."""
        if isinstance(value, dict):
            if not joints or not self.robot:
                raise self.refusal(f"{where}: is a mapping, and these entries have no names")
            for name in [n for n in self.robot if n not in value]:
                raise self.refusal(f"{where}: lacks {name}")
            for name in [n for n in value if n not in self.robot]:
                raise self.refusal(f"{where}: there is no joint {name!r}")
            value = [value[name] for name in self.robot]
        listed = value if isinstance(value, list) else [value] * size
        self.checked(value, where, all(map(_is_number, listed)), "finite numbers")
        if len(listed) != size:
            raise self.refusal(f"{where}: has {len(listed)} numbers, and there are {size} entries")
        return tuple(map(float, listed))

    def clip(self, value: Any, where: str) -> tuple[float, float] | None:
        if value is None:
            return None
        pair = [-value, value] if _is_number(value) else value
        right = isinstance(pair, list) and len(pair) == 2 and all(map(_is_number, pair))
        self.checked(value, where, right, "a number or a pair of them")
        if pair[0] >= pair[1]:
            raise self.refusal(f"{where}: {pair[0]:g} is not below {pair[1]:g}")
        return float(pair[0]), float(pair[1])

    def checked(self, value: Any, where: str, right: bool, what: str) -> Any:
        """Return a value that is right; ``what`` says what it has to be."""
        if not right:
            raise self.refusal(f"{where}: must be {what}, got {repr(value)[:80]}")
        return value

    def whole(self, value: Any, where: str) -> int:
        right = type(value) is int and value >= 1
        return int(self.checked(value, where, right, "a whole number, at least 1"))

    def truth(self, value: Any, where: str) -> bool:
        return bool(self.checked(value, where, isinstance(value, bool), "true or false"))

    def choice(self, value: Any, where: str, known: Sequence[str]) -> str:
        if value not in known:
            raise self.refusal(f"{where}={value}: {nearest(str(value), [k for k in known if k])}")
        return str(value)

    def text(self, value: Any, where: str) -> str:
        right = value is None or (isinstance(value, str) and value != "")
        return self.checked(value, where, right, "a name") or ""

    def texts(self, value: Any, where: str, size: int) -> tuple[str, ...]:
        if value is None:
            return ()
        listed = [value] * size if isinstance(value, str) else value
        self.checked(value, where, _are_texts(listed), f"text, or a list of {size}")
        if len(listed) != size:
            raise self.refusal(f"{where}: has {len(listed)} texts, and there are {size} entries")
        return tuple(listed)

    def refusal(self, why: str) -> TrimtabError:
        return TrimtabError(f"{self.where}: {why}")


def _are_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(text, str) and text for text in value)


def _is_number(value: Any) -> bool:
    """Return whether a value is a finite number that float32 has."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return number and abs(value) <= 3.4e38  # NaN is not
