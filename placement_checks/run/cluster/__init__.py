"""A cluster of processes on this machine: what the placer answers for one, tried on a real one."""

from __future__ import annotations

from placement_checks.run.cluster.local import LocalCluster, local_cluster
from placement_checks.run.cluster.training import Cluster, Trained

__all__ = ["Cluster", "LocalCluster", "Trained", "local_cluster"]
