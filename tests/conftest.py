"""Makes the helpers that several test folders share importable."""

import os
import sys
from pathlib import Path

import pytest

if "PYTEST_XDIST_WORKER" in os.environ:
    # Before torch is imported: workers side by side, each with a thread for every core, get in each other's way.
    os.environ.setdefault("OMP_NUM_THREADS", "1")

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture
def any_spread_will_do(monkeypatch: pytest.MonkeyPatch) -> None:
    """Costs of few rounds of a millisecond's work, which a busy machine spreads by any factor, count all the same.

    And the device's limits, seconds of work that only floors need, are measured with little of it.
    """
    monkeypatch.setattr("mtp_bench.profile.costs.UNSTABLE_SPREAD", 1e9)
    monkeypatch.setattr("mtp_bench.profile.accounting.COPIED_BYTES", 1 << 20)
    monkeypatch.setattr("mtp_bench.profile.accounting.PRODUCT_SIZE", {"cpu": 64})
