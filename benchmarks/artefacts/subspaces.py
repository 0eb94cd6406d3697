"""How much of a gradient lies in the few directions in which its loss is curved most.

Schneider et al., "Identifying Policy Gradient Subspaces" (ICLR 2024, arXiv 2401.06604). P projects
onto the k eigenvectors of the loss's Hessian that have the largest eigenvalues:

- share:    mean over minibatches of |P g|^2 / |g|^2, their equation 3; 1: all of g is inside.
  Of random directions it is k / n on average, with n weights.
- overlap:  1/k sum_i |P_1 v_i|^2, their equation 4, where v_i are the eigenvectors at another time.

The actor's loss and the critic's are measured apart, each by its own weights. A Hessian comes from
all gathered pairs, or from as many as one update sees. Lanczos' method finds its eigenvectors from
products with vectors, so that the matrix is never made. On-policy losses are taken where the ratio
of new and old likelihoods is 1, so that no clip is active.

Deviations: by default "all pairs" are 10,000 and not 1,000,000; the gradients are those of the same
pairs, in minibatches (off-policy, of other draws of as many).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse.linalg import ArpackNoConvergence, LinearOperator, eigsh
from torch import Tensor, nn

from trimtab.errors import TrimtabError

__all__ = ["Losses", "Pairs", "Subspaces", "leading_eigenvectors", "overlap", "share", "subspaces"]

Array = NDArray[np.float64]
Data = TypeVar("Data")
_TOLERANCE, _RESTARTS = 1e-4, 500


@dataclass(frozen=True)
class Pairs(Generic[Data]):
    """Pairs of observation and action that losses are computed from.

    Attributes:
        every: all of them.
        update: as many of them as one update sees.
        minibatches: parts of them, each as large as one gradient step's.
    """

    every: Data
    update: Data
    minibatches: Sequence[Data]


@dataclass(frozen=True)
class Losses(Generic[Data]):
    """Losses of a method, by their names, and the weights that each is minimised by.

    Attributes:
        of: from data to the losses; called once for each set of pairs.
        weights: of each loss.
    """

    of: Callable[[Data], Mapping[str, Tensor]]
    weights: Mapping[str, Sequence[nn.Parameter]]


@dataclass(frozen=True)
class Subspaces:
    """Leading eigenvectors of one Hessian, and the shares of gradients in them.

    Attributes:
        loss: its name.
        pairs: what the Hessian comes from: ``all``, or those of one ``update``.
        values: the largest eigenvalues ``[k]``, the largest first.
        vectors: their eigenvectors, the columns of ``[n, k]``.
        shares: of the minibatches' gradients in the first k of them, by k.
    """

    loss: str
    pairs: str
    values: Array
    vectors: Array
    shares: Mapping[int, float]


def subspaces(
    losses: Losses[Data], pairs: Pairs[Data], dimensions: Sequence[int]
) -> list[Subspaces]:
    """Measure every loss, by both of its Hessians.

    Args:
        losses: of the method.
        pairs: what they are computed from.
        dimensions: numbers k of eigenvectors; those that reach the number of weights are left out.

    Raises:
        TrimtabError: if none is left, or Lanczos' method does not find the eigenvectors.
    """
    gradients: dict[str, list[Array]] = {name: [] for name in losses.weights}
    for part in pairs.minibatches:
        for name, loss in losses.of(part).items():
            gradients[name].append(flat(torch.autograd.grad(loss, losses.weights[name])))
    found = []
    for called, data in (("all", pairs.every), ("update", pairs.update)):
        for name, loss in losses.of(data).items():
            weights = losses.weights[name]
            fitting = [k for k in dimensions if k < sum(one.numel() for one in weights)]
            if not fitting:
                raise TrimtabError(
                    f"subspace: the {name} has too few weights for {min(dimensions)} directions"
                )
            values, vectors = leading_eigenvectors(loss, weights, max(fitting))
            shares = {k: share(np.stack(gradients[name]), vectors[:, :k]) for k in fitting}
            found.append(Subspaces(name, called, values, vectors, shares))
    return found


def leading_eigenvectors(
    loss: Tensor, weights: Sequence[nn.Parameter], count: int
) -> tuple[Array, Array]:
    """Return the largest eigenvalues ``[k]`` of a Hessian, and its eigenvectors ``[n, k]``.

    Args:
        loss: a scalar that depends on all of the weights, with its graph.
        weights: n numbers in all; the Hessian is with respect to them.
        count: k, less than n.

    Raises:
        TrimtabError: if they are not found.
    """
    gradient = torch.autograd.grad(loss, weights, create_graph=True)
    like = weights[0]

    def product(vector: Array) -> Array:
        """Return the Hessian times a vector: the gradient of the gradient times the vector."""
        given = torch.as_tensor(vector, dtype=like.dtype, device=like.device).flatten()
        parts = given.split([one.numel() for one in weights])
        along = [part.view_as(one) for part, one in zip(parts, weights, strict=True)]
        # Of a weight that the gradient depends on in a line, such as the last bias, it may be None.
        found = torch.autograd.grad(
            gradient, weights, along, retain_graph=True, materialize_grads=True
        )
        return flat(found)

    size = sum(one.numel() for one in weights)
    start = np.random.default_rng(0).standard_normal(size)  # the same answer each time
    hessian = LinearOperator((size, size), matvec=product, dtype=np.float64)
    try:
        values, vectors = eigsh(
            hessian, k=count, which="LA", tol=_TOLERANCE, maxiter=_RESTARTS, v0=start
        )
    except ArpackNoConvergence as error:
        raise TrimtabError(
            f"subspace: of {count} eigenvectors, {len(error.eigenvalues)} were found in "
            f"{_RESTARTS} restarts of Lanczos' method; ask for fewer dimensions"
        ) from error
    order = np.argsort(values)[::-1]
    return values[order], vectors[:, order]


def share(gradients: Array, vectors: Array) -> float:
    """Return the mean share of gradients ``[M, n]`` that lies in the span of vectors ``[n, k]``.

    A gradient of zero has no direction and is left out; NaN if all are.
    """
    norms = np.square(gradients).sum(1)
    inside = np.square(gradients @ vectors).sum(1)
    return float(np.mean(inside[norms > 0] / norms[norms > 0])) if norms.any() else float("nan")


def overlap(first: Array, second: Array) -> float:
    """Return the overlap of the spans of two sets of k orthonormal vectors ``[n, k]``, 0 to 1."""
    return float(np.square(first.T @ second).sum() / second.shape[1])


def flat(tensors: Sequence[Tensor]) -> Array:
    """Return tensors as one vector of 64 bits."""
    together = torch.cat([one.detach().reshape(-1) for one in tensors])
    return together.cpu().numpy().astype(np.float64)
