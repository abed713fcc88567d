"""Timeouts of runs. Pure values, all of one scale, so that fault campaigns can run faster."""

from __future__ import annotations

from dataclasses import dataclass, fields

# What may pass between an observation and the act upon it, on both sides together.
_MARGIN_S = 5.0
_MOST_DOUBLINGS = 30  # of a run that may fail any number of times


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Waiting times of a run, in seconds.

    Attributes:
        lease_s: How long workers live without hearing from whoever answers for them.
        grace_s: Between SIGTERM, upon which a script may save, and SIGKILL.
        margin_s: Added to lease and grace before workers that nobody hears of count as dead.
        settle_s: How long the primary owners of a cache must stay as they are to count as changed.
        owner_beat_s: How often the owner of a run says that it lives.
        owner_lapse_s: When an owner that has not said so counts as gone.
        pool_lapse_s: When a detached run counts as lost, because none of its hosts has said so. Much longer: the hosts
            succeed each other, and all of them wait while the cluster takes nodes in or out.
        supervisor_lapse_s: When another host takes over from a supervisor that does not say so.
        first_backoff_s: Wait before the first restart; doubled with each failure in a row.
        longest_backoff_s: Where the doubling ends.
        calm_s: A run that ran for so long starts to count its failures anew.
    """

    lease_s: float = 30.0
    grace_s: float = 3.0
    margin_s: float = _MARGIN_S
    settle_s: float = 5.0
    owner_beat_s: float = 3.0
    owner_lapse_s: float = 12.0
    pool_lapse_s: float = 60.0
    supervisor_lapse_s: float = 7.0
    first_backoff_s: float = 1.0
    longest_backoff_s: float = 30.0
    calm_s: float = 600.0

    @property
    def dead_after_s(self) -> float:
        """Silence after which no worker of a host can be alive any more."""
        return self.lease_s + self.grace_s + self.margin_s

    def backoff_s(self, num_failures: int) -> float:
        """Wait before the restart after so many failures in a row."""
        doublings = min(max(num_failures - 1, 0), _MOST_DOUBLINGS)
        return min(self.first_backoff_s * 2.0**doublings, self.longest_backoff_s)

    def scaled(self, divisor: float) -> Timeouts:
        """Divide every time."""
        return Timeouts(**{each.name: getattr(self, each.name) / divisor for each in fields(self)})
