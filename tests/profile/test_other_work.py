"""How much of the processors others used, from the kernel's accounts."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from mtp_bench.cli.decoding import other_work_in_words
from mtp_bench.profile import other_work
from mtp_bench.profile.other_work import Meanwhile

TICKS = os.sysconf("SC_CLK_TCK")


def account(path: Path, **seconds: float) -> None:
    names = ("user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal", "guest", "guest_nice")
    line = " ".join(str(round(TICKS * seconds.get(name, 0))) for name in names)
    path.write_text(f"cpu  {line}\ncpu0 {line}\nintr 1 2 3\n")


@pytest.fixture
def accounts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(other_work, "ACCOUNTS", tmp_path / "stat")
    own = iter([(1.0, 1.0, 0.0, 0.0, 9.0), (50.0, 3.0, 8.0, 1.0, 99.0)])
    monkeypatch.setattr(other_work.os, "times", lambda: next(own))
    return tmp_path / "stat"


def test_shares_of_the_time_since(accounts: Path) -> None:
    """200 s of processors: 100 of programs, of which 60 are ours, 70 idle, 10 waiting for disks, 20 stolen."""
    account(accounts, user=1000, nice=5, system=50, idle=4000, iowait=3, steal=7, guest=400)
    meanwhile = Meanwhile()
    account(accounts, user=1060, nice=15, system=78, idle=4070, iowait=13, softirq=2, steal=27, guest=430)
    found = meanwhile.other_work()
    assert found == {"programs": 0.2, "stolen": 0.1}
    assert other_work_in_words(found) == (
        "other programs used 20% of the processors' time, and the host gave 10% of it to other guests"
    )
    assert other_work_in_words({"programs": 0.0, "stolen": 0.004}) == "other programs used 0% of the processors' time"


def test_rounded_ticks_are_not_less_than_nothing(accounts: Path) -> None:
    account(accounts, user=10, idle=10)
    meanwhile = Meanwhile()
    account(accounts, user=69.9, idle=50)
    assert meanwhile.other_work() == {"programs": 0.0, "stolen": 0.0}


@pytest.mark.parametrize("text", [None, "", "cpu  1 2 3\n", "cpu  a b c d e f g h\n"])
def test_without_accounts_nothing_is_claimed(accounts: Path, text: str | None) -> None:
    if text is not None:
        accounts.write_text(text)
    assert Meanwhile().other_work() is None


@pytest.mark.skipif(not Path("/proc/stat").exists(), reason="this system keeps no such accounts")
def test_own_work_shows_in_the_real_accounts() -> None:
    before = other_work._accounts()
    end = os.times().user + 0.5
    while os.times().user < end:
        sum(range(1000))
    after = other_work._accounts()
    assert before is not None
    assert after is not None
    total, busy, stolen, own = (late - early for early, late in zip(before, after, strict=True))
    assert own >= 0.5 - 1e-6
    # What this process used is among what all used, give or take the ticks in which both are kept.
    assert own - 0.1 <= busy <= total + 0.1
    assert 0 <= stolen <= total


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="this system keeps no such accounts")
def test_what_helpers_of_ours_use_is_our_own_work() -> None:
    """While they run and after they have ended, those that they started themselves included."""
    burn = "import os; exec('while sum(os.times()[:2]) < 0.6: pass'); print('done', flush=True); input()"
    code = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {burn!r}])"
    before = other_work._accounts()
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as helper:
        assert helper.stdout is not None
        assert helper.stdout.readline() == b"done\n"
        during = other_work._accounts()
        helper.communicate(b"\n")
    after = other_work._accounts()
    assert before is not None
    assert during is not None
    assert after is not None
    assert during[3] - before[3] >= 0.5
    assert after[3] >= during[3] - 0.1
