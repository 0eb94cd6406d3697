"""Addresses, as libraries are given them."""

from __future__ import annotations

import pyarrow.fs
import pytest

from trimtab.benchmarks.training import storage


@pytest.mark.parametrize(
    ("address", "given"),
    [
        ("gs://bucket/runs", "gs://bucket/runs?retry_limit_seconds=10"),
        ("GCS://b/runs?scheme=http", "GCS://b/runs?scheme=http&retry_limit_seconds=10"),
        ("gs://b/runs?retry_limit_seconds=90", "gs://b/runs?retry_limit_seconds=90"),
        ("s3://gs/runs?region=eu", "s3://gs/runs?region=eu"),
    ],
)
def test_googles_library_is_told_how_long_to_try(address: str, given: str) -> None:
    assert storage._soon_given_up(address) == given
    _, root = pyarrow.fs.FileSystem.from_uri(given.replace("GCS", "gcs"))  # it knows the word
    assert root.endswith("/runs")
