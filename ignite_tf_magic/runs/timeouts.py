"""Timeouts of runs. Pure values, which scale together so that fault tests can run faster."""

from __future__ import annotations

from dataclasses import dataclass, fields

# Allowance for the delay between an observation and the action that follows it, for both sides together.
_MARGIN_S = 5.0
_MOST_DOUBLINGS = 30  # a run may be allowed any number of failures


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Timeouts of a run, in seconds.

    Attributes:
        lease_s: How long workers live without a renewal by the run's owner; for a detached run, by the reconciler.
        grace_s: Time between SIGTERM, which lets a script save, and SIGKILL.
        margin_s: Added to lease and grace before silent workers count as dead.
        settle_s: How long the primary owners of a cache must be stable before a change of owners counts.
        owner_beat_s: Interval of a run owner's heartbeats.
        owner_lapse_s: Time without a heartbeat after which an owner counts as gone.
        pool_lapse_s: Time without a heartbeat of any host after which a detached run counts as lost. Much longer,
            because hosts replace each other, and all of them wait while nodes join or leave the cluster.
        supervisor_lapse_s: Time without a report after which another host takes over from a supervisor.
        first_backoff_s: Wait before the first restart; doubles with each consecutive failure.
        longest_backoff_s: Upper limit of this wait.
        calm_s: After running this long, a run's count of failures starts again at 0.
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
        """Time of silence after which no worker of a host can be alive."""
        return self.lease_s + self.grace_s + self.margin_s

    def backoff_s(self, num_failures: int) -> float:
        """Return the wait before the restart after this number of consecutive failures."""
        doublings = min(max(num_failures - 1, 0), _MOST_DOUBLINGS)
        return min(self.first_backoff_s * 2.0**doublings, self.longest_backoff_s)

    def scaled(self, divisor: float) -> Timeouts:
        """Return these timeouts, each divided by the divisor."""
        return Timeouts(**{each.name: getattr(self, each.name) / divisor for each in fields(self)})
