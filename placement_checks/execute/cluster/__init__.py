"""A cluster of processes on this machine: what the placer answers for one, tried on a real one."""

from __future__ import annotations

from placement_checks.execute.cluster.cluster import Cluster, Trained
from placement_checks.execute.cluster.local import LocalCluster, local_cluster

__all__ = ["Cluster", "LocalCluster", "Trained", "local_cluster"]
