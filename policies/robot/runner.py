"""A policy on a robot: one observation in and one action out, every control tick."""

from __future__ import annotations

import copy
import operator
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import ArrayLike

from trimtab.errors import TrimtabError
from trimtab.observations import FLAT, called, tree_map
from trimtab.policies.agent import Agent, ArrayObs
from trimtab.policies.bundle.checked import NotFinite, checked_array, checked_parts
from trimtab.policies.bundle.files import Contract
from trimtab.policies.bundle.limits import NO_LIMITS, Limits
from trimtab.policies.bundle.onnx_policy import OnnxPolicy
from trimtab.policies.robot.fallback import Fallback
from trimtab.policies.robot.inference import Inference, InLine, Worker
from trimtab.policies.robot.limits import Limiter
from trimtab.policies.robot.log import TickLog
from trimtab.policies.robot.modes import Mode, RecedingHorizon, check_mode
from trimtab.policies.robot.plan import Array, Chunk
from trimtab.policies.robot.timeline import Timeline
from trimtab.policies.robot.warning import Detector, Unfamiliar, observed_row

__all__ = ["PolicyRunner"]

_NO_FALLBACK = "load_policy(…, fallback=Hold()) says what is played then"


class PolicyRunner(OnnxPolicy):
    """Plays a policy one action a control tick.

    By default a chunk of H actions is predicted when ``act_steps`` actions of the last one were
    played, as at training time. Made by :func:`trimtab.policies.runtime.load_policy`.

    An observation is an array ``[O]``, or a mapping of the parts that ``contract.parts`` names. A
    policy that reads a history is given one observation a tick all the same: the runner remembers
    those of its last decisions, and whatever else of an episode its policy reads.

    Attributes:
        mode: which entries of which chunks are played; the plan of this robot alone.
        fallback: what is played when nothing else can be; None: an error is raised then.
        limits: within which every command of :meth:`step` stays.
        counts: events since the last reset, by name. ``missing``: ticks without an observation that
            can be used; ``refused``: those of them with one that was not finite; ``failed``:
            requests without a usable answer; ``restarted``: processes that were started in the
            place of one that ended or hung; ``empty``: ticks for which the plan had no entry;
            ``fallback``: ticks on which the fallback was played; ``limited``: ticks on which a
            limit changed the action; ``thrown_away``: answers of requests before a reset or a stop;
            ``unlogged``: resets and ticks that the log could not take; ``warned``: ticks with a
            warning; ``outside``: ticks since the robot has left its workspace.
        last_counts: those of the last episode that was stepped, as they were when it was reset;
            after a ``control_loop``, which resets the policy, they are those of the loop.
        outside: in words, what of the robot's position has left the workspace since the last reset;
            empty for nothing. The fallback is played from that tick to the next reset, and no plan.
        warning: what is unfamiliar at the last tick, or None; a bundle without a calibrated warning
            never warns. It changes no action: what follows is the program's to decide.
        score: of the last tick, 1 at the edge of the reference episodes; None where it had no
            observation, or there is no detector.
        chunk_distance: mean distance of the chunk that has come at the last tick from the plan
            before it, over the ticks that they share, in half ranges of the action; None where none
            has come or was there. Only with a detector and the mode of its calibration.

    Args:
        contract: of the bundle.
        model: the bytes of its graph; None where a subclass computes elsewhere.
        where: what errors call it.
        seed: seed of the noise.
        deterministic: whether :meth:`step` uses zero noise; None for what the contract says.
        mode: None for a receding horizon of ``act_steps``.
        fallback: None for errors.
        limits: of the commands, besides those that the contract states.
        inference: where the policy computes; None for here.
        log: of every reset and tick; None for none.
        detector: of what is unfamiliar; None for none.

    Raises:
        TrimtabError: if the graph does not fit the contract, or one of these does not fit it.
    """

    def __init__(
        self,
        contract: Contract,
        model: bytes | None,
        where: str,
        *,
        seed: int = 0,
        deterministic: bool | None = None,
        mode: Mode | None = None,
        fallback: Fallback | None = None,
        limits: Limits | None = None,
        inference: Inference | None = None,
        log: TickLog | None = None,
        detector: Detector | None = None,
    ) -> None:
        super().__init__(contract, model, where)
        self.mode = RecedingHorizon(contract.act_steps) if mode is None else replace(mode)
        self.fallback = fallback
        self._inference = InLine(self.infer) if inference is None else inference
        check_mode(
            self.mode, contract.inputs, horizon=contract.horizon, act_steps=contract.act_steps,
            late=isinstance(inference, Worker),
        )  # fmt: skip
        self._detector = detector
        # Chunks that are asked for more or less often differ less or more than in the calibration.
        self._compares = detector is not None and self.mode == RecedingHorizon(detector.interval)
        self._log = log
        if log is not None:
            self._inference = log.watch(self._inference)
        period = None if contract.control_rate is None else 1.0 / contract.control_rate
        self.limits = (contract.limits or NO_LIMITS).tightened(limits or NO_LIMITS)
        self._limiter = Limiter.of(self.limits, self.action_low, self.action_high, period)
        box = self.limits.workspace
        self._box = None if box is None else contract.box(box)
        if fallback is not None:
            fallback.check(self._limiter.low, self._limiter.high)
        given = contract.evaluate_deterministic if deterministic is None else deterministic
        self._agent = Agent(
            self.infer, 1, self.inputs, act_steps=contract.act_steps, deterministic=given
        )
        self.counts: Counter[str] = Counter()
        self.last_counts: Counter[str] = Counter()
        self._timeline = Timeline(self.mode, self.horizon)
        self._asked: ArrayObs | None = None  # the observation of the request that is in flight
        self.reset(seed)

    @property
    def deterministic(self) -> bool:
        """Whether :meth:`step` uses zero noise."""
        return self._agent.deterministic

    @property
    def tick(self) -> int:
        """The number of the last control tick since the reset; -1 before the first one."""
        return self._timeline.tick

    def reset(
        self,
        seed: int | None = None,
        *,
        action: ArrayLike | None = None,
        **inputs: ArrayLike | None,
    ) -> None:
        """Forget the plan and the history; call it before every episode, and after every stop.

        The answer of a request that is in flight is thrown away when it comes. If something is
        refused, the plan is forgotten, and nothing else changes.

        Args:
            seed: start the noise again from this seed; None lets the noise go on, so that episodes
                differ.
            action: the command in force ``[A]``, raw units: what the robot was last sent, or the
                joints' positions where it stands. A fallback and limits of rates begin there. None
                if it is not known: a fallback then begins with the first action; limits of
                velocities begin at zero, so the robot has to be at rest; and where rates of
                positions are limited, :meth:`step` refuses.
            inputs: values, from now on, of inputs that the policy's user chooses, by name
                (``contract.parts`` with ``given``); the others keep theirs. ``noise``, of one row,
                is that of every decision; None lets it be drawn again.

        Raises:
            TrimtabError: if an input or the seed does not fit, or if rates are limited and the
                command in force is beyond the limits.
        """
        self._timeline.drop_plan()
        if seed is not None and _whole(seed, "seed") < 0:
            raise TrimtabError(f"seed {seed}: give a whole number, at least 0")
        force = None if action is None else checked_array(action, (self.action_dim,), "action")
        self._limiter.check(force)
        if inputs:
            self._agent.set_inputs(inputs)
        self._limiter.begin(force)
        self._agent.reset(seeds=None if seed is None else [seed])
        if self._log is not None:
            self._log.reset(seed, force, inputs)
        if self.tick >= 0:
            self.last_counts = self.counts.copy()
        self._timeline.begin()
        self.counts.clear()
        self._restarts = self._inference.restarts
        self.warning: Unfamiliar | None = None
        self.score: float | None = None
        self.chunk_distance: float | None = None
        self.outside = ""
        self._blind = 0  # ticks in a row without an observation, those left out included
        self._last, self._last_tick = force, -1  # the last command, and its tick

    def step(
        self,
        obs: ArrayLike | Mapping[str, ArrayLike] | None,
        reward: ArrayLike | None = None,
        *,
        tick: int | None = None,
    ) -> Array:
        """Return the action ``[A]`` of this control tick, raw units, inside the limits.

        A command is in force once it is returned. If anything else ends the call, such as Ctrl+C,
        rates are limited from the command before on, and that is what a fallback goes by.

        Args:
            obs: the observation of this tick ``[O]``, or its parts, raw units. It is checked on
                every tick, also on those that play an action predicted earlier. None if there is
                none: the plan is played on for ``fallback.patience`` ticks in a row.
            reward: what came of the action before, where it is known. A policy that is asked for a
                return takes it off what is still to come; without it, it goes on being asked for
                all of it. Other policies do not look at it.
            tick: number of this control tick since the reset; None for the one after the last. The
                plan's actions for ticks that are left out are left out too.

        Raises:
            TrimtabError: if the observation has another shape, is not numeric or lacks a part, if
                the reward is no finite number, if ``tick`` is not after the last one, or if rates
                are limited and the command in force is not known (:meth:`reset`). Where
                there is no fallback, also if the observation is None, not finite or has a masked
                value, if the policy fails or gives an action that is not finite, if the plan has no
                action for this tick, or if the robot has left its workspace.
        """
        self._limiter.require_begun()
        earned = None if reward is None else checked_array(reward, (), "reward")
        now = self.tick + 1 if tick is None else _whole(tick, "tick")
        if now <= self.tick:
            raise TrimtabError(f"tick {now}: the last one was {self.tick}; ticks must increase")
        lost = self._blind > self._patience
        observed = self._usable(obs, now)
        if earned is not None:
            self._agent.rewarded(earned[None])
        if lost and observed is not None:  # the robot is elsewhere: the old plan never resumes
            self._timeline.drop_plan()
        self._watch_workspace(observed)
        action: Array | None = None
        self.chunk_distance = None
        limiter = copy.copy(self._limiter)  # which replaces its arrays, and writes to none
        try:
            action = limiter.apply(self._wanted(observed, now), now - self._last_tick)
            self.counts["limited"] = limiter.count
        except TrimtabError:
            raise
        except BaseException:  # such as Ctrl+C: the answer is lost, or may be
            self._timeline.fail()
            raise
        finally:
            self._warn(observed)
            if self._log is not None:
                reported = None if earned is None else float(earned)
                left = bool(self.outside)
                self._log.tick(now, observed, reported, action, self.score, outside=left)
                self.counts["unlogged"] = self._log.lost
        # Last, so that no interruption comes between; and the caller may write to what it gets.
        self._last, self._last_tick, self._limiter = action.copy(), now, limiter
        return action

    def _wanted(self, observed: ArrayObs | None, now: int) -> Array:
        """Return what is to be played at tick ``now``, not yet limited; ask for a chunk if due."""
        self._timeline.advance(now)
        self._take_answer()
        if observed is not None and self._timeline.due and not self.outside:
            self._ask(observed)
            self._take_answer()
        elif observed is not None:
            self._agent.observe(observed)
        planned = self._timeline.planned()
        self.counts["empty"] += planned is None
        return self._chosen(planned)

    def _watch_workspace(self, observed: ArrayObs | None) -> None:
        """Look whether the robot's position is in its workspace; outside, the plan is dropped.

        Only a reset ends that: the user decides when a robot that was stopped goes on.
        """
        if self._box is None:
            return
        if observed is not None and not self.outside:
            self.outside = self._box.left_by(observed_row(observed, self.contract))
            if self.outside:
                self._timeline.drop_plan()
        self.counts["outside"] += bool(self.outside)

    def _warn(self, observed: ArrayObs | None) -> None:
        """Score this tick."""
        self.score = self.warning = None
        if self._detector is None or observed is None:
            return
        row = observed_row(observed, self.contract)
        self.score, found = self._detector.score(row, self.chunk_distance)
        if self.score > self._detector.threshold:
            self.warning = found
            self.counts["warned"] += 1

    def plan(self) -> Chunk:
        """Return the plan for the ticks to come: what would be played if no chunk came any more.

        It has no action if nothing is planned. Limits are not applied to it.
        """
        return self._planned(self.tick + 1)

    def _planned(self, first: int) -> Chunk:
        actions: list[Array] = []
        while (action := self.mode.at(first + len(actions))) is not None:
            actions.append(action)
        return Chunk(first, np.array(actions, np.float32).reshape(-1, self.action_dim))

    def sample_noise(self, rows: int) -> Array:
        """Return the next noise ``[rows, *noise_shape]``: standard normal, or zeros.

        A log does not have it: played again, the steps after it have other noise.
        """
        return self._agent.draw_noise(rows)

    def close(self) -> None:
        """End the process of the inference, where it has one, and close the log."""
        self._inference.close()
        if self._log is not None:
            self._log.close()

    @property
    def _patience(self) -> int:
        return 0 if self.fallback is None else self.fallback.patience

    def _usable(self, obs: ArrayLike | Mapping[str, ArrayLike] | None, now: int) -> ArrayObs | None:
        """Return an observation of one row, checked, or None if there is none that can be used."""
        if obs is None and self.fallback is None:
            raise TrimtabError(f"observation: is None; {_NO_FALLBACK}")
        found: ArrayObs | None = None
        if obs is not None:
            try:
                found = tree_map(lambda part: part[None], self._observed(obs))
            except NotFinite:
                if self.fallback is None:
                    raise
                self.counts["refused"] += 1
        if found is None:
            self.counts["missing"] += 1
        self._blind = self._blind + now - self.tick if found is None else 0
        return found

    def _observed(self, obs: ArrayLike | Mapping[str, ArrayLike]) -> ArrayObs:
        """Return what the environment has to give of one observation, checked."""
        kinds = self.contract.observed
        if list(kinds) == [FLAT]:
            return checked_array(obs, kinds[FLAT][0], "observation")
        given = checked_parts(obs, self.contract.parts, list(kinds))
        return {
            name: checked_array(given[name], shape, called(name), dtype)
            for name, (shape, dtype) in kinds.items()
        }

    def _ask(self, obs: ArrayObs) -> None:
        read, noise = self._agent.read(obs)
        for name, value in self.mode.inputs(self.tick).items():
            read[name][0] = value
        self._timeline.ask()
        self._asked = obs
        try:
            self._inference.begin(read, noise)
        except TrimtabError as error:
            self._fail(error)

    def _take_answer(self) -> None:
        """Add the answer to the plan, if it has come."""
        if not self._timeline.waiting:
            return
        try:
            answer = self._inference.poll()
            chunk = None if answer is None else self.limited(answer)
        except TrimtabError as error:
            self._fail(error)
            return
        if chunk is None:
            return
        before = self._planned(self.tick) if self._compares else None
        if self._timeline.answer(chunk[0]):
            if before is not None and len(before.actions):
                after = self._planned(self.tick).actions[: len(before.actions)]
                half = np.maximum((self.action_high - self.action_low) / 2, 1e-6)
                apart = np.abs(after - before.actions[: len(after)]) / half
                self.chunk_distance = float(apart.mean()) if len(after) else None
            assert self._asked is not None
            self._agent.decided(self._asked, chunk[:, : self.act_steps])
        else:
            self.counts["thrown_away"] += 1

    def _fail(self, error: TrimtabError) -> None:
        """Count a failed request; without a fallback, raise its error."""
        wanted = self._timeline.fail()
        self.counts["restarted"] = self._inference.restarts - self._restarts
        if self.fallback is None:
            raise error
        self.counts["failed"] += wanted

    def _chosen(self, planned: Array | None) -> Array:
        """Return the planned action, or that of the fallback."""
        if planned is not None and self._blind <= self._patience:
            return planned
        if self.fallback is None and self.outside:
            raise TrimtabError(f"workspace: {self.outside}; {_NO_FALLBACK}")
        if self.fallback is None:
            raise TrimtabError(f"the plan has no action for tick {self.tick}; {_NO_FALLBACK}")
        self.counts["fallback"] += 1
        action = self.fallback.action(self._last, planned)
        if action is None:
            raise TrimtabError(
                "there is no plan yet, and no command to hold; reset(action=…) tells the command "
                "in force"
            )
        return action


def _whole(number: int, what: str) -> int:
    try:
        return operator.index(number)
    except TypeError as error:
        raise TrimtabError(f"{what} {number!r}: give a whole number") from error
