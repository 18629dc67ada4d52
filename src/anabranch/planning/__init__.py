"""Capacity: what latency, throughput and cost a number of replicas would give.

Recorded trajectories are decoded again by the fork-join machine, in virtual time, on engines that
take as long as a profile says. Measuring a profile is :mod:`anabranch.engines.profile_measure`.
"""

from anabranch.planning.queueing import ProfiledReplica, Work
from anabranch.planning.simulate import Arm, Figures, Traffic, simulate

__all__ = ["Arm", "Figures", "ProfiledReplica", "Traffic", "Work", "simulate"]
