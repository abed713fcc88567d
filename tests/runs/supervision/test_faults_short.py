"""A short form of the fault campaign (benchmarks/faults.py): one round of some faults, on one bed.

Attached runs use divided timeouts. Detached runs, which hosts supervise, use the full ones: on a busy machine a fourth
of
the silence after which hosts treat each other as lost passes without any fault.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from benchmarks.fault_kinds import FAULTS
from benchmarks.fault_results import DIVISOR
from benchmarks.faults import Campaign
from tests.bed.bed import BedKind

pytestmark = pytest.mark.faults

HAS_HOSTS = BedKind.best() is BedKind.NAMESPACES
LONG = ("agent_kill", "cable_3s", "power_off", "node_kill")
PLAYED = {  # the value says whether the run is detached
    "worker_kill": True,
    "agent_kill": True,
    "cable_3s": False,
    "power_off": True,
    "node_kill": False,
    "owner_kill_attached": False,
}


@pytest.fixture(scope="module")
def campaign(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Campaign]:
    folder = tmp_path_factory.mktemp("faults")
    folder.chmod(0o700)
    with Campaign(folder, print) as campaign:
        yield campaign


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.nightly if name in LONG else ())
        for name in PLAYED
        if HAS_HOSTS or not FAULTS[name].needs_hosts
    ],
)
def test_a_run_ends_as_stated_when(campaign: Campaign, name: str):
    fault = replace(FAULTS[name], training_s=6.0)
    is_detached = PLAYED[name]
    outcome = campaign.play(fault, 0, 1 if is_detached else DIVISOR, detached=is_detached)
    assert outcome.problems == []
    assert outcome.struck
