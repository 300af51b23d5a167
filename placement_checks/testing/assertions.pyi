"""An assertion for each rule, as type checkers read them. Written by python -m tools.generate."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from placement_checks.core.evidence import Evidence
from placement_checks.core.placement import Placement
from placement_checks.core.program import Batch, TargetLike

def assert_placeable(
    evidence: Evidence | Placement,
) -> None:
    """The placer can place every op on the device that the program requests."""

def assert_no_fallback(
    evidence: Evidence | Placement,
    allow: str | Sequence[str] | None = None,
) -> None:
    """No op that requests a GPU is placed on a CPU, or on another GPU because its GPU is
    missing.
    """

def assert_variables_on_host(
    evidence: Evidence | Placement,
    device: str | Sequence[str] | None = None,
    allow: str | Sequence[str] | None = None,
    local: str | Sequence[str] | None = None,
) -> None:
    """Every variable sits on the declared device, /cpu:0 by default."""

def assert_created_in_scope(
    evidence: Evidence | Placement,
    allow: str | Sequence[str] | None = None,
) -> None:
    """Trained variables and optimizer slots are created in the scope of their strategy."""

def assert_variables_shared(
    evidence: Evidence | Placement,
    allow: str | Sequence[str] | None = None,
    layout: Literal["", "central", "mirrored"] | None = None,
) -> None:
    """All towers read the same variables."""

def assert_slots_with_variables(
    evidence: Evidence | Placement,
    allow: str | Sequence[str] | None = None,
) -> None:
    """Optimizer slots and moving averages sit with their variable."""

def assert_no_idle_device(
    evidence: Evidence | Placement,
    allow: str | Sequence[str] | None = None,
) -> None:
    """Every GPU of the machine computes."""

def assert_towers_alike(
    evidence: Evidence | Placement,
    allow: str | Sequence[str] | None = None,
) -> None:
    """The towers are the same computation on different devices."""

def assert_inputs_distinct(
    evidence: Evidence | Placement,
    allow: str | Sequence[str] | None = None,
) -> None:
    """No two towers read the same slice of the batch; input ops are on the CPU and built once."""

def assert_losses_apart(
    evidence: Evidence | Placement,
    allow: str | Sequence[str] | None = None,
) -> None:
    """No tower's loss depends on another tower."""

def assert_gradients_colocated(
    evidence: Evidence | Placement,
    allow: str | Sequence[str] | None = None,
) -> None:
    """Each backward op sits on the device of its forward op."""

def assert_averaging_on_host(
    evidence: Evidence | Placement,
    device: str | Sequence[str] | None = None,
) -> None:
    """The gradients of the towers are combined on the declared device, /cpu:0 by default."""

def assert_every_tower_counts(
    evidence: Evidence | Placement,
    allow: str | Sequence[str] | None = None,
) -> None:
    """Each variable's update depends on the loss of every tower that reads the variable."""

def assert_gradients_averaged(
    evidence: Evidence | Placement,
    scale: float | None = None,
    shares: Sequence[int] | None = None,
    allow: str | Sequence[str] | None = None,
) -> None:
    """Each loss term and penalty counts as much in each update as on one GPU."""

def assert_replicas_in_sync(
    evidence: Evidence | Placement,
    allow: str | Sequence[str] | None = None,
) -> None:
    """The copies of a variable on all replicas start equal and take the same update."""

def assert_aggregated_before_clipped(
    evidence: Evidence | Placement,
    allow: str | Sequence[str] | None = None,
) -> None:
    """The gradients of all replicas are added up before they are clipped."""

def assert_one_update(
    evidence: Evidence | Placement,
    allow: str | Sequence[str] | None = None,
) -> None:
    """One update per variable and step; the step counter increases by one."""

def assert_loss_of_all_towers(
    evidence: Evidence | Placement,
    allow: str | Sequence[str] | None = None,
) -> None:
    """The reported loss includes every tower's loss, and no summary is repeated in each tower."""

def assert_randomness_apart(
    evidence: Evidence | Placement,
    allow: str | Sequence[str] | None = None,
) -> None:
    """No two towers draw the same random numbers."""

def assert_files_apart(
    evidence: Evidence | Placement,
    allow: str | Sequence[str] | None = None,
) -> None:
    """No two ranks of a Horovod program write checkpoints, logs or summaries to the same path."""

def assert_trainables_trained(
    evidence: Evidence | Placement,
    frozen: str | Sequence[str] | None = None,
) -> None:
    """The step updates every trainable variable that a loss reads."""

def assert_names_portable(
    evidence: Evidence | Placement,
    allow: str | Sequence[str] | None = None,
) -> None:
    """A checkpoint saved on one GPU can be restored on several GPUs, and the reverse."""

def assert_update_ops_run(
    evidence: Evidence | Placement,
    tower: str | None = None,
    allow: str | Sequence[str] | None = None,
) -> None:
    """The step updates statistics, such as moving averages, from one tower or from all towers."""

def assert_transfer_budget(
    evidence: Evidence | Placement,
    bytes: int | None = None,
    copies: int | None = None,
    link_bytes: int | None = None,
    link_copies: int | None = None,
    constant_bytes: int | None = None,
    rows: int | None = None,
) -> None:
    """Bytes and copies between devices per step stay under the budget that you declare."""

def assert_shards_balanced(
    evidence: Evidence | Placement,
    by: Literal["", "round-robin", "bytes"] | None = None,
    most: float | None = None,
    job: str | None = None,
    allow: str | Sequence[str] | None = None,
) -> None:
    """Variables are spread over the parameter servers as declared."""

def assert_session_memory(
    evidence: Evidence | Placement,
    fraction: float | None = None,
    others: Sequence[Mapping[str, Any]] | None = None,
) -> None:
    """The session does not take all memory of every GPU."""

def assert_gradients_equal(
    towers: TargetLike,
    single: TargetLike,
    batch: Batch = None,
    *,
    gpus: int = 2,
    tolerance: float | None = None,
    noise: float | None = None,
    scale: float | None = None,
    shares: Sequence[int] | None = None,
    statistics: Literal["batch", "tower"] | None = None,
    allow: str | Sequence[str] | None = None,
    rows: int | None = None,
    seconds: float | None = None,
) -> None:
    """Each variable receives the same gradient as in the program for one GPU."""

def assert_weights_equal(
    towers: TargetLike,
    single: TargetLike,
    batch: Batch = None,
    *,
    gpus: int = 2,
    steps: int | None = None,
    tolerance: float | None = None,
    noise: float | None = None,
    allow: str | Sequence[str] | None = None,
) -> None:
    """After some training steps all variables have the same values as in the reference."""

def assert_towers_overlap(
    towers: TargetLike,
    single: TargetLike,
    batch: Batch = None,
    *,
    gpus: int = 2,
    least: float | None = None,
) -> None:
    """No tower waits for another: all of them compute at once."""
