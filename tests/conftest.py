"""Makes the helpers that several test folders share importable."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture
def any_spread_will_do(monkeypatch: pytest.MonkeyPatch) -> None:
    """Costs of few rounds of a millisecond's work, which a busy machine spreads by any factor, count all the same."""
    monkeypatch.setattr("mtp_bench.profile.costs.UNSTABLE_SPREAD", 1e9)
