"""The limits of a candidate's process."""

from __future__ import annotations

import subprocess
import sys

import pytest

from conformance.running.isolation import zygote

pytestmark = pytest.mark.skipif(
    bool(zygote.why_impossible()), reason="candidates are isolated on Linux alone"
)

LIMITS = """
import resource, time
from conformance.running.isolation import sandbox

for request in range(2):
    sandbox.allow_time()
    soft, hard = resource.getrlimit(resource.RLIMIT_CPU)
    print(soft - time.process_time() - sandbox._SECONDS, hard == resource.RLIM_INFINITY)
    used = time.process_time()
    while time.process_time() - used < 1.1:
        pass
"""


def test_the_limit_on_processor_time_is_that_of_one_request() -> None:
    """A run may take hours, and so may its candidate's process: none is ended for that."""
    ran = subprocess.run([sys.executable, "-c", LIMITS], capture_output=True, text=True, check=True)
    limits = [line.split() for line in ran.stdout.splitlines()]
    assert [0.0 <= float(left) <= 1.5 for left, _ in limits] == [True, True], limits
    assert {lasts for _, lasts in limits} == {"True"}
