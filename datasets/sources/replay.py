"""A ring of transitions that forms n-step windows and action chunks when it is sampled.

Rows are stored once, as gathered. What a learner sees (how many rows are summed, where a window has
to stop) is worked out at sampling, so one buffer serves one-step, n-step and chunked learning.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from trimtab.datasets.episodes import Dataset, Episode
from trimtab.datasets.sources.dataset_rows import DatasetRows, rows_in_memory
from trimtab.datasets.sources.drawing import Starting, saved_batch_spec, usable_starts
from trimtab.datasets.sources.observed import NEXT, ObsForm, saved_obs
from trimtab.datasets.sources.random_state import generator_state, generator_words
from trimtab.datasets.sources.returns import FinishedReturns
from trimtab.datasets.sources.rows import AUX, RowArrays, Storage, check_ring, filled, row_values
from trimtab.datasets.sources.spans import DatasetSpans, RingSpans, Spans, needs_spans
from trimtab.datasets.sources.starts import Starts
from trimtab.datasets.sources.steps import episodes_of_columns
from trimtab.datasets.sources.windows import View, WindowRule
from trimtab.errors import TrimtabError
from trimtab.types import Batch, BatchSpec, Obs, Part, RowLog, Tensor

__all__ = ["ReplayBuffer"]

_USUAL = BatchSpec()


class ReplayBuffer:
    """Ring of ``[capacity // num_envs, num_envs]`` transitions; implements ``Source``.

    A start is uniform over all stored rows. Its window ends at the first of: ``window`` rows, the
    end of its episode, the newest stored row of its column. The n-step return over the rows used is
    that of Sutton and Barto (2018), equation 7.1, with the bootstrap left to ``Batch.discount``.

    Args:
        capacity: transitions kept, over all columns; rounded down to a multiple of ``num_envs``.
        obs: length O of a flat observation, or its parts by name, each stored as its own type.
        action_shape: ``(h, A)``: one row holds a chunk of h actions (1 for single steps).
        num_envs: number of columns, one for each environment that is stepped together.
        window: most rows in a sampled window; the batch's horizon is ``window * h``.
        discount: discount for each row, or for each window where ``chunked``.
        chunked: a window is one decision, as in the chunk MDP of DPPO and DSRL (arXiv 2409.00588,
            2506.15799): its rewards are summed as they are and ``discount`` counts once. Without
            it every row is a decision of its own and the window is an n-step return.
        seed: seed of the buffer's own random generator.
        device: where sampled tensors are put.
        aux: name -> shape of further float32 values stored with each row.
        batch_spec: fields that the batches have beside the usual ones.
        held: the rows of a dataset (``from_dataset``); None: an empty ring, to be added to.

    Raises:
        TrimtabError: if a size is not positive or the discount lies outside [0, 1].
    """

    def __init__(
        self,
        capacity: int,
        obs: int | Mapping[str, Part],
        action_shape: tuple[int, int],
        *,
        num_envs: int = 1,
        window: int = 1,
        discount: float = 0.99,
        chunked: bool = False,
        seed: int = 0,
        device: str | torch.device = "cpu",
        aux: Mapping[str, tuple[int, ...]] | None = None,
        batch_spec: BatchSpec = _USUAL,
        held: DatasetRows | None = None,
    ) -> None:
        check_ring(capacity, obs, action_shape, num_envs, window, discount)
        if batch_spec.sequence and window > 1 and not chunked:
            raise TrimtabError(f"replay buffer: sequences of windows of {window} want chunked=True")
        self.num_envs = num_envs
        self.rows = capacity // num_envs
        self.device = torch.device(device)
        self._rule = WindowRule(window, float(discount), chunked, batch_spec.n_step)
        self._batch_spec = batch_spec
        self._form = ObsForm.of(obs)
        self._generator = np.random.Generator(np.random.PCG64(seed))
        self._position = self._written = 0  # the row that is written next; rows ever written
        self._cleared = 0  # number of the first row that was written since the ring was emptied
        self._aux_names = tuple(aux or ())
        self._ring: RowArrays | None = None  # what rows are added to
        self._returns: FinishedReturns | None = None  # of what is added, where they are wanted
        self._storage: Storage
        if held is None:
            values = row_values(self._form, action_shape, aux or {})
            self._ring = RowArrays(self.rows, num_envs, values, returns=batch_spec.mc_return)
            if batch_spec.mc_return:
                self._returns = FinishedReturns(self._ring, float(discount))
            self._storage = self._ring
            self._starts = Starts()
            self._size = 0  # filled rows
            self._dataset_hash: str | None = None
        else:
            self._form = self._form.split(held.parts)
            self._storage = held.storage
            self._starts = held.starts
            self._size = self.rows
            self._dataset_hash = held.content_hash
        self._ring_spans: RingSpans | None = None  # of what is added, where they are wanted
        self._spans: Spans | None = None  # those, or a dataset's
        if needs_spans(batch_spec) and self._ring is not None:
            self._spans = self._ring_spans = RingSpans(self._ring)
        elif needs_spans(batch_spec):
            self._spans = DatasetSpans(self._storage)

    @classmethod
    def from_dataset(
        cls,
        dataset: Dataset,
        *,
        window: int = 1,
        discount: float = 0.99,
        chunked: bool = False,
        seed: int = 0,
        device: str | torch.device = "cpu",
        weights: npt.ArrayLike | None = None,
        successors: bool = True,
        parts: Mapping[str, tuple[int, ...]] | None = None,
        batch_spec: BatchSpec = _USUAL,
    ) -> ReplayBuffer:
        """Return a full, read-only buffer of a dataset's steps, episodes one after another.

        Rows are single environment steps (h = 1) and windows never join two episodes. Batches also
        carry ``mc_return``: the sum of the rewards from the row to its episode's end, discounted as
        the windows are, with nothing bootstrapped. Mix it with an online buffer by ``Mixture``.
        ``weights`` holds a weight for each episode, with which each of its steps is drawn as a
        start; None: all alike. ``successors`` says whether ``next_obs`` is read: if so, a last step
        whose next observation was not recorded is in no window, and windows end before it.
        Cloning sets it false and has every step. ``parts`` names
        entries of an observation (``EnvSpec.obs_parts``); batches then have these parts.

        Raises:
            TrimtabError: if the dataset has no steps, or none with a next observation where that is
                wanted, the weights do not fit, or a part has other entries than an observation.
        """
        return cls(
            dataset.num_steps,
            dataset.obs_dim,
            (1, dataset.action_dim),
            window=window,
            discount=discount,
            chunked=chunked,
            seed=seed,
            device=device,
            batch_spec=batch_spec,
            held=rows_in_memory(
                dataset, discount, window if chunked else 1,
                weights=weights, successors=successors, parts=parts, costs=batch_spec.cost,
            ),
        )  # fmt: skip

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> ReplayBuffer:
        """Return the buffer whose ``state_dict`` this is.

        Of a ``DeviceReplayBuffer`` it has the rows; it draws them by its own generator.

        Raises:
            KeyError: if a part is missing.
            TrimtabError: if it is damaged, or of a buffer that was made from a dataset.
        """
        layout = state["layout"]
        if layout["dataset"] is not None:
            raise TrimtabError("replay buffer: its rows are a dataset's and are not in its state")
        columns = layout["shapes"]["reward"][0]
        shapes = {name: tuple(shape[1:]) for name, shape in layout["shapes"].items()}
        buffer = cls(
            layout["rows"] * columns,
            saved_obs(shapes, layout.get("types", {})),
            shapes["action"],
            num_envs=columns,
            window=layout["window"],
            discount=layout["discount"],
            chunked=layout["chunked"],
            aux={n.removeprefix(AUX): s for n, s in shapes.items() if n.startswith(AUX)},
            batch_spec=BatchSpec(**layout.get("batch_spec", {})),
        )
        buffer.load_state_dict({"generator": generator_state(buffer._generator), **state})
        return buffer

    def episodes(self) -> list[Episode]:
        """Return the stored rows as episodes, one column after another, each from its oldest row.

        An episode that goes on, or whose beginning was overwritten, is kept as far as it is stored;
        one that goes on is marked as truncated.

        Raises:
            TrimtabError: if a row holds a chunk of several actions, whose observations in between
                are not stored, or observations have parts.
        """
        if not self._form.is_flat:
            raise TrimtabError("replay buffer: its observations have parts; a dataset's are flat")
        chunk = self._storage.shapes["action"][0]
        if chunk != 1:
            raise TrimtabError(
                f"replay buffer: its rows are chunks of {chunk} actions, no single steps; "
                "take a run with act_steps=1"
            )
        order = (self._position - self._size + np.arange(self._size)) % self.rows
        return episodes_of_columns(self._storage.take, self._storage.shapes, order, self.num_envs)

    def __len__(self) -> int:
        return self._size * self.num_envs

    @property
    def capacity(self) -> int:
        """Most transitions that are kept."""
        return self.rows * self.num_envs

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays: the buffer's memory."""
        return self._storage.nbytes

    def add(
        self,
        obs: npt.ArrayLike | Obs | Mapping[str, npt.ArrayLike],
        action: npt.ArrayLike | Tensor,
        reward: npt.ArrayLike | Tensor,
        next_obs: npt.ArrayLike | Obs | Mapping[str, npt.ArrayLike],
        terminated: npt.ArrayLike | Tensor,
        truncated: npt.ArrayLike | Tensor,
        aux: Mapping[str, npt.ArrayLike | Tensor] | None = None,
        steps: npt.ArrayLike | None = None,
    ) -> None:
        """Store one row of every column, over the oldest one once the ring is full.

        Args:
            obs: ``[N, O]`` observations acted upon, or a mapping of their parts, each ``[N, ...]``.
            action: ``[N, h, A]`` action chunks, raw units.
            reward: ``[N]`` reward of the chunk.
            next_obs: true next observations, as ``obs`` (never those after a reset).
            terminated: ``[N]`` bool, the task ended.
            truncated: ``[N]`` bool, the episode was cut.
            aux: the declared further values by name, each ``[N, ...]``.
            steps: ``[N]`` how many actions of each chunk were taken, at least 1; None: all. Later
                actions of the chunk are replaced by the last one that was taken, as in a dataset's
                windows.

        Raises:
            TrimtabError: on a wrong shape or type, a missing or unknown part or ``aux`` name, or a
                buffer that was made from a dataset.
        """
        if self._ring is None:
            raise TrimtabError(
                "replay buffer: it holds a dataset and cannot grow; mix it with another buffer"
            )
        given = aux or {}
        if set(given) != set(self._aux_names):
            raise TrimtabError(
                f"replay buffer: aux has {sorted(given)}, declared were {sorted(self._aux_names)}"
            )
        values = {
            **self._form.named("", obs, "replay buffer"),
            **self._form.named(NEXT, next_obs, "replay buffer"),
            **{"action": action, "reward": reward},
            **{AUX + name: given[name] for name in self._aux_names},
        }
        self._ring.write(self._position, values, terminated, truncated, steps)
        if self._returns is not None:
            self._returns.after(self._position)
        if self._ring_spans is not None:
            self._ring_spans.added(self._position)
        self._written += 1
        self._position = self._written % self.rows
        self._size = min(self._size + 1, self.rows)

    def clear(self) -> None:
        """Empty the ring. Numbers of rows go on, so that no saved row is taken for a new one.

        Raises:
            TrimtabError: if it was made from a dataset.
        """
        if self._ring is None:
            raise TrimtabError("replay buffer: it holds a dataset and cannot be emptied")
        self._cleared = self._written = -(-self._written // self.rows) * self.rows
        self._position = self._size = 0
        if self._returns is not None:
            self._returns = FinishedReturns(self._ring, self._rule.discount)
        if self._ring_spans is not None:
            self._ring_spans.restore(0, 0)

    @property
    def ready(self) -> bool:
        """Whether ``sample`` can draw a batch."""
        if self._size == 0 or (self._returns is not None and self._returns.known == 0):
            return False
        # The newest rows of a ring have no next action yet.
        waits = self._batch_spec.next_action and self._dataset_hash is None
        return self._size > (2 * self._rule.window if waits else 0)

    def sample(self, batch_size: int) -> Batch:
        """Return ``batch_size`` windows as tensors on the buffer's device.

        ``action`` is ``[B, window * h, A]``: after the window's end its last real action is
        repeated and ``valid`` is false. ``obs``, ``aux`` and ``mc_return`` are those of the first
        row, ``next_obs`` is that of the last row used.

        Raises:
            TrimtabError: if the buffer is empty or ``batch_size`` is not positive.
        """
        return self.draw(batch_size)[0]

    def draw(self, batch_size: int) -> tuple[Batch, Starting]:
        """Return what ``sample`` returns, and where in their episodes its rows lie.

        Raises:
            TrimtabError: as ``sample``.
        """
        if batch_size < 1 or not self.ready:
            raise TrimtabError(
                f"replay buffer: cannot draw {batch_size} of {len(self)} stored transitions"
            )
        view = self._view()
        # Ages count from the oldest row: the write head is always at the end of the range.
        start = usable_starts(
            view, lambda count: self._starts.draw(self._generator, len(self), count), batch_size,
            next_action=self._batch_spec.next_action, finished=self._returns is not None,
        )  # fmt: skip
        windows = view.windows(start)
        following = view.following(windows, start)[0] if self._batch_spec.next_action else None
        batch = view.batch(windows, start, self._aux_names, self.device, following)
        return batch, Starting(view, windows.first, start)

    def whole(self) -> Batch:
        """Return the windows from every row on, oldest first, without next actions or goals."""
        view, start = self._view(), np.arange(len(self))
        return view.batch(view.windows(start), start, self._aux_names, self.device)

    def _view(self) -> View:
        return View(
            self._storage, self._form, self._rule, (self._position - self._size) % self.rows,
            self._size, self._starts.some_left_out, self._spans, self._batch_spec.history,
            self._batch_spec.sequence,
        )  # fmt: skip

    def _layout(self) -> dict[str, Any]:
        return {
            "rows": self.rows,
            "window": self._rule.window,
            "discount": self._rule.discount,
            "chunked": self._rule.chunked,
            "shapes": {k: [self.num_envs, *shape] for k, shape in self._storage.shapes.items()},
            "dataset": self._dataset_hash,
            **self._starts.identity,
            **({} if self._form.is_flat else {"types": self._form.types}),
            **(
                {}
                if self._batch_spec == _USUAL
                else {"batch_spec": saved_batch_spec(self._batch_spec)}
            ),
        }

    def state_dict(self) -> dict[str, Any]:
        """Return the filled rows, where they lie, and copies of all else: JSON scalars and arrays.

        The rows are a ``RowLog`` and hold until the next ``add``. A buffer made from a dataset
        leaves them out: they are the dataset's, whose content hash is kept and compared instead.
        """
        arrays: Mapping[str, npt.NDArray[Any]] = {}
        if self._ring is not None:
            unknown = 0 if self._returns is None else self._returns.unknown
            settled = max(self._written - unknown, 0)
            arrays = RowLog(self._ring.arrays, self.rows, self._written, settled, self._cleared)
        return {
            "layout": self._layout(),
            "position": self._position,
            "size": self._size,
            "arrays": arrays,
            "generator": generator_state(self._generator),
            "returns": None if self._returns is None else self._returns.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what ``state_dict`` returned; the next samples are then identical.

        Raises:
            TrimtabError: if the state is of a buffer of another layout or dataset, of one on a
                device, or damaged.
        """
        if "device_generator" in state and "generator" not in state:
            raise TrimtabError(
                "replay buffer: its rows were gathered with simulations on a GPU; resume the run "
                "on a machine that has one, or start it again"
            )
        try:
            if dict(state["layout"]) != self._layout():
                raise TrimtabError(
                    "replay buffer: the saved state has another layout, window, discount or "
                    "dataset; resume with the settings of the saved run"
                )
            size, written, cleared = filled(state, self.rows)
            generator_state = generator_words(state["generator"])
            # A damaged state fails here, before anything changes.
            np.random.Generator(np.random.PCG64()).bit_generator.state = generator_state
            if self._ring is not None:
                self._ring.load(state["arrays"], size)
            self._generator.bit_generator.state = generator_state
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            if isinstance(error, TrimtabError):
                raise
            raise TrimtabError(
                f"replay buffer: the saved state is damaged ({error}); resume from another one"
            ) from error
        self._size, self._position, self._written = size, written % self.rows, written
        self._cleared = cleared
        if self._returns is not None:
            self._returns.load_state_dict(state["returns"])
        if self._ring_spans is not None:
            self._ring_spans.restore(size, written - size)
