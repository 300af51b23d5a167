"""An assertion for each rule. Written by python -m tools.generate."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from placement_checks.core.evidence import Evidence
from placement_checks.core.placement import Placement
from placement_checks.core.program import Batch, Target
from placement_checks.testing.checking import check_rule, check_run


def assert_placeable(
    evidence: Evidence | Placement,
) -> None:
    """Assert `placeable`.

    The placer can place every op on the device that the program requests.

    Without soft placement TensorFlow refuses a graph if an op has no kernel for its requested
    device, requests a device that the machine lacks, or is bound to an op on another device. The
    finding quotes the placer's own reason. With soft placement TensorFlow refuses only ops that no
    device can run; no-fallback reports the ops that it moves.
    """
    __tracebackhide__ = True
    check_rule(evidence, "placeable")


def assert_no_fallback(
    evidence: Evidence | Placement,
    allow: str | Sequence[str] | None = None,
) -> None:
    """Assert `no-fallback`.

    No op that asks for a GPU ends on a CPU, or on another GPU because its own does not exist.

    Soft placement moves such ops silently. Each finding states the reason: the op has no GPU
    kernel, its GPU kernel does not support the type, or the device does not exist. If further ops
    are bound to a moved op, by colocation or by a reference, its finding lists them.

    Not findings: ops in an inner /cpu:0 scope; ops that only follow a variable or another resource
    to the host that it requests, such as its reads and its initialization test; strings,
    summaries, assertions, printed lines, savers, and ops that only these use; and the switch of a
    predicate on the host.

    `allow` lists op types, op names or patterns of names that may fall back.

    Parameters and their defaults:
      no-fallback.allow = ()

    Fields that are not given are those of the program's policy, else the rule's own.
    """
    __tracebackhide__ = True
    check_rule(evidence, "no-fallback", allow=allow)


def assert_variables_on_host(
    evidence: Evidence | Placement,
    device: str | Sequence[str] | None = None,
    allow: str | Sequence[str] | None = None,
    local: str | Sequence[str] | None = None,
) -> None:
    """Assert `variables-on-host`.

    Every variable sits on the declared device, /cpu:0 by default.

    Towers that share variables read them from the host. If a variable is on a GPU, every step
    copies it from that GPU to all others, and it fills the GPU's memory. The usual causes are a
    variable created inside a tower's device scope, a layer that ignores the scope around it, and a
    device function that knows only the ref variable ops (Variable, VariableV2) and not
    VarHandleOp.

    A variable that requests no device is a finding on any device, since another machine may put it
    elsewhere. The exception is an int32 step counter, which TensorFlow updates only on the CPU. A
    variable that requests only a job is judged by its assigned device.

    The role of a variable (docs/roles.md) may allow a GPU as well. A copy of a mirrored variable,
    its slots and statistics, an accumulator and cached inputs may be on the GPU of their tower. A
    part of a model that is split among GPUs, such as an expert or the shard of a table, and its
    slots, may be on the only GPU that computes with it.

    A scalar that is created outside the scope of a strategy, such as the learning rate of an
    optimizer, may be on the GPU of a replica; created-in-scope reports trained variables.

    If get_variable creates separate variables for each tower and no sum of gradients makes them
    copies, variables-shared reports the root cause, and their devices follow from it.

    `device` is a device or a list of allowed devices; a partial name such as /job:ps or /cpu:0
    matches any task. In a cluster /job:ps/cpu:0 is more specific than /cpu:0, which every task
    has. `local` lists other devices for local variables, which are in neither of the collections
    TRAINABLE_VARIABLES and GLOBAL_VARIABLES. `allow` lists variables, or patterns such as
    table/part_*, that may be on any device.

    Parameters and their defaults:
      variables-on-host.device = '/cpu:0'
      variables-on-host.allow = ()
      variables-on-host.local = ()

    Fields that are not given are those of the program's policy, else the rule's own.
    """
    __tracebackhide__ = True
    check_rule(evidence, "variables-on-host", device=device, allow=allow, local=local)


def assert_created_in_scope(
    evidence: Evidence | Placement,
    allow: str | Sequence[str] | None = None,
) -> None:
    """Assert `created-in-scope`.

    Trained variables and optimizer slots are created in the scope of their strategy.

    A variable that is created before `with strategy.scope():` does not belong to the strategy:
    there is only one, on one device, and all replicas read it. Each replica then updates it
    separately, so the updates race, and one step changes it several times. Optimizers of Keras
    refuse such a variable with an error that does not name it.

    Not findings: a variable on the host that one op updates, counters and learning rates of
    optimizers, and towers that are placed by hand. A strategy with one replica is not checked.

    `allow` lists variables, or patterns, that all replicas share on purpose.

    Parameters and their defaults:
      created-in-scope.allow = ()

    Fields that are not given are those of the program's policy, else the rule's own.
    """
    __tracebackhide__ = True
    check_rule(evidence, "created-in-scope", allow=allow)


def assert_variables_shared(
    evidence: Evidence | Placement,
    allow: str | Sequence[str] | None = None,
    layout: Literal["", "central", "mirrored"] | None = None,
) -> None:
    """Assert `variables-shared`.

    All towers read the same variables.

    A tower with its own weights trains them separately: nothing fails, and the averaged gradients
    belong to different weights. The usual causes are tf.Variable instead of get_variable, a
    variable scope that is not reused (or is named after the tower), and a layer that is built
    again for each tower.

    There are two kinds of findings. By data flow: two GPUs read different variables of the same
    shape, dtype and use, and the GPUs do not hold parts of one model. They hold parts if one uses
    results of the other before gradients are combined. By collections: the program is built with 1
    and with N towers, and TRAINABLE_VARIABLES and GLOBAL_VARIABLES must not grow. An optimizer
    slot may only be added along with its variable.

    Mirrored variables are shared too: each tower has a copy, and the same sum of gradients updates
    all copies. A copy that takes another sum, such as its own tower's gradients, or none, is a
    finding. Each tower may have its own variables that belong to copies: slots, averages,
    statistics and frozen weights. It may also have accumulators: variables that only add up values
    to show, or gradients until a step takes them and empties the variables.

    A variable in TRAINABLE_VARIABLES must also be in GLOBAL_VARIABLES. Else it is trained, but
    global_variables_initializer() does not set it and a Saver does not save it. Copies may be
    local: they are set to the first copy's values, which are saved.

    `layout` declares whether the trainable variables of the program are mirrored or central; any
    other layout is then a finding. Without it each variable is judged by the layout that it has.

    `allow` lists variables, or patterns such as tower_*/bn/*, that each tower has separately on
    purpose, or that have another layout than declared.

    Parameters and their defaults:
      variables-shared.allow = ()
      variables-shared.layout = ''

    Fields that are not given are those of the program's policy, else the rule's own.
    """
    __tracebackhide__ = True
    check_rule(evidence, "variables-shared", allow=allow, layout=layout)


def assert_slots_with_variables(
    evidence: Evidence | Placement,
    allow: str | Sequence[str] | None = None,
) -> None:
    """Assert `slots-with-variables`.

    Optimizer slots and moving averages sit with their variable.

    If a slot is on another device, every step sends it there and back. TensorFlow's own optimizers
    bind their slots to the variable. User-defined momenta and averages, and optimizers that create
    their slots under another device, do not.

    The rule recognizes a slot by its colocation with a variable (`_class`), by an update op that
    uses both, or by data flow: it has the variable's shape, no tower reads it, and the update of
    one of them depends on the other. A slot may update several copies of a variable, for example
    if each GPU holds the optimizer state of a part of the variables; then it sits with one of
    them.

    `allow` lists slots, or patterns such as */ExponentialMovingAverage, that may be on any device.

    Parameters and their defaults:
      slots-with-variables.allow = ()

    Fields that are not given are those of the program's policy, else the rule's own.
    """
    __tracebackhide__ = True
    check_rule(evidence, "slots-with-variables", allow=allow)


def assert_no_idle_device(
    evidence: Evidence | Placement,
    allow: str | Sequence[str] | None = None,
) -> None:
    """Assert `no-idle-device`.

    Every GPU of the machine computes.

    A GPU that has only constants, placeholders, variables and copies does nothing in a step: all
    towers were built for another GPU, or no op was pinned and all ops went to GPU 0.

    A GPU that only holds variables, and averages and applies their gradients, is idle too if the
    model is built once for each GPU, because the copies of the model then share the other GPUs.
    The rule counts the copies by comparison with the program for one GPU, or by the losses that
    share only examples and variables. A program that reserves a GPU for variables has fewer
    copies.

    With between-graph replication each worker builds its own graph. If variables are on another
    job, such as ps, and the ops on GPUs name one task of their job, the GPUs of its other tasks
    belong to other graphs and are not judged. If the ops do not name a task, they all go to the
    first one, which is a finding.

    `allow` lists the GPUs that may do nothing, or only hold variables; a partial name such as
    /job:evaluator matches any device of the job.

    Parameters and their defaults:
      no-idle-device.allow = ()

    Fields that are not given are those of the program's policy, else the rule's own.
    """
    __tracebackhide__ = True
    check_rule(evidence, "no-idle-device", allow=allow)


def assert_towers_alike(
    evidence: Evidence | Placement,
    allow: str | Sequence[str] | None = None,
) -> None:
    """Assert `towers-alike`.

    The towers are the same computation, devices apart.

    Towers that differ train different models with one set of weights, and the mean of their
    gradients is the gradient of no model. Nothing fails, as their shapes agree.

    The loss of each tower is followed back together with the first tower's loss, op by op. Each
    difference is a finding: another op, another attribute, another constant. The usual causes are
    an `if` on the number of the tower, and an argument that only one tower gets.

    Not findings: the sizes of the slices that towers cut, seeds, a factor of a whole loss (towers
    of unequal size), a regularization loss that one tower adds for all towers, before or after
    such a factor, and computations outside of the loss, such as an accuracy.

    `allow` lists ops, or patterns such as tower_0/aux/*, in which towers differ on purpose.

    Parameters and their defaults:
      towers-alike.allow = ()

    Fields that are not given are those of the program's policy, else the rule's own.
    """
    __tracebackhide__ = True
    check_rule(evidence, "towers-alike", allow=allow)


def assert_inputs_distinct(
    evidence: Evidence | Placement,
    allow: str | Sequence[str] | None = None,
) -> None:
    """Assert `inputs-distinct`.

    No two towers read the same slice; input ops are on the CPU and built once.

    Towers that read the same examples compute the same gradients: N GPUs do the work of one, and
    the effective batch is smaller than intended.

    Slices are followed from placeholders, iterators and queues into the towers. Two slices are the
    same if they are cut from one tensor in the same way. Scalars, and vectors of fixed length, are
    not examples. Workers in several processes each have their own pipeline: two are the same if
    their first batches are.

    Iterators, queues, readers and decoders under a tower's GPU have no kernel there, or copy each
    batch twice. If they are built again for each tower, they read the same files N times. Ops that
    prefetch batches for a GPU from a pipeline on the CPU belong on that GPU.

    `allow` lists inputs, or patterns, that all towers read whole on purpose.

    Parameters and their defaults:
      inputs-distinct.allow = ()

    Fields that are not given are those of the program's policy, else the rule's own.
    """
    __tracebackhide__ = True
    check_rule(evidence, "inputs-distinct", allow=allow)


def assert_losses_apart(
    evidence: Evidence | Placement,
    allow: str | Sequence[str] | None = None,
) -> None:
    """Assert `losses-apart`.

    No tower's loss depends on another tower.

    The usual cause is a collection of losses that every tower adds up without giving its scope:
    the second tower's loss then contains the first tower's. The first tower's examples count
    twice, and regularization counts once more with every tower.

    The loss of tower A contains the loss of tower B in three cases: A adds or averages a term that
    belongs only to B; A's loss depends on B's computation, but B's loss does not depend on A's;
    or each tower builds the same weight penalty, and A adds both. B's computation counts if it
    combines examples with a variable that both towers read, or have copies of. A layer that
    one GPU computes for all towers is not a finding.

    If the ops on B's GPU serve no loss of B, nothing is mixed: a part of A's model was built on
    the wrong GPU, and the finding says so.

    Towers that depend on each other symmetrically do so on purpose: they share moments of batch
    normalization, or a loss over all examples. The note names the op at which they meet. Two
    towers that take each other's values by mistake look the same.

    `allow` lists losses, or patterns, that read other towers on purpose.

    Parameters and their defaults:
      losses-apart.allow = ()

    Fields that are not given are those of the program's policy, else the rule's own.
    """
    __tracebackhide__ = True
    check_rule(evidence, "losses-apart", allow=allow)


def assert_gradients_colocated(
    evidence: Evidence | Placement,
    allow: str | Sequence[str] | None = None,
) -> None:
    """Assert `gradients-colocated`.

    Each backward op sits on the device of its forward op.

    If a program computes gradients outside the towers' device scopes, the backward ops ask for no
    device. Without any warning, the placer puts the backward pass of every tower on the first GPU,
    which then computes most of the step and holds all activations.

    TensorFlow records the forward op of each backward op. In a saved graph without this record the
    name of the backward op identifies its forward op, and the finding states this.

    Not findings: a backward op on a GPU for a forward op on the host, such as a lookup in a table
    on the host; and a backward op on its own tower's GPU for a forward op on another GPU, if the
    forward op is bound to a variable there, uses an expert or a shard there, or serves several
    towers.

    `allow` lists op types, op names or patterns of names that may sit elsewhere.

    Parameters and their defaults:
      gradients-colocated.allow = ()

    Fields that are not given are those of the program's policy, else the rule's own.
    """
    __tracebackhide__ = True
    check_rule(evidence, "gradients-colocated", allow=allow)


def assert_averaging_on_host(
    evidence: Evidence | Placement,
    device: str | Sequence[str] | None = None,
) -> None:
    """Assert `averaging-on-host`.

    The gradients of the towers are combined on the declared device, /cpu:0 by default.

    If they are averaged on one tower's GPU, all gradients travel to that GPU, and it does this
    work in addition to its own, while the variables wait on the host.

    The ops judged are the first ones that depend on gradients of several towers. If a program
    computes the gradients of one loss for all towers, TensorFlow adds them up in the backward
    pass, by default on the first tower's GPU.

    Sums that update only copies of mirrored variables are not judged: each GPU needs such a sum,
    on any device. If a model is split among GPUs, the gradients of a part may be added up on the
    GPU that has the part. Collective ops, such as NCCL's, combine gradients on no single device.

    `device` is a name or a list of names; a partial name such as /job:ps matches any task.

    Parameters and their defaults:
      averaging-on-host.device = '/cpu:0'

    Fields that are not given are those of the program's policy, else the rule's own.
    """
    __tracebackhide__ = True
    check_rule(evidence, "averaging-on-host", device=device)


def assert_every_tower_counts(
    evidence: Evidence | Placement,
    allow: str | Sequence[str] | None = None,
) -> None:
    """Assert `every-tower-counts`.

    Each variable's update depends on every tower's loss.

    A tower has computed for nothing if the update does not take its gradients. Common causes: only
    the last tower's gradients are applied, one tower's gradients are added twice, or one
    variable's gradient is lost behind a tf.stop_gradient.

    Each variable is judged by the towers that read it, or that read a copy of it if it is
    mirrored. Gradients that are summed up over several steps, in variables or accumulators, count.

    `allow` lists variables, or patterns, that only some towers train on purpose.

    Parameters and their defaults:
      every-tower-counts.allow = ()

    Fields that are not given are those of the program's policy, else the rule's own.
    """
    __tracebackhide__ = True
    check_rule(evidence, "every-tower-counts", allow=allow)


def assert_replicas_in_sync(
    evidence: Evidence | Placement,
    allow: str | Sequence[str] | None = None,
) -> None:
    """Assert `replicas-in-sync`.

    All copies of a variable that a strategy keeps take the same update.

    MirroredStrategy gives each replica a copy of every variable. The copies stay equal as long as
    each takes results that all replicas have computed together. If a replica assigns its own
    result to its own copy, the copies drift apart without an error. An example is assign_sub of a
    replica's own gradient, in a variable that is created without `aggregation`.

    Judged by data flow: the updates of all copies must depend on the same examples, and on the
    same random numbers. If replicas exchange values within the model, such as shared moments, they
    must depend on the same examples outside of the sums over all replicas. Copies that are
    combined when they are read (VariableSynchronization.ON_READ) differ by design, and so do
    variables that collect the gradients of each replica until they are added up. If copies take
    different steps from the same examples, their values differ, and weights-equal reports them.
    variables-shared judges towers that are placed by hand.

    Copies also drift apart if a sum waits for replicas that never join it. An example is a worker
    that builds another model, or that computes alone a sum that all workers must compute.

    A program does not run at all if its first step creates variables together with such sums. An
    optimizer of Keras 3 creates its slots this way in a custom loop (keras-team/keras#23085).

    The moving averages of Keras 3's BatchNormalization drift apart under a strategy, unless the
    layer is created with synchronized=True.

    `allow` lists variables, or patterns such as */moving_mean, with copies that may differ.

    Parameters and their defaults:
      replicas-in-sync.allow = ()

    Fields that are not given are those of the program's policy, else the rule's own.
    """
    __tracebackhide__ = True
    check_rule(evidence, "replicas-in-sync", allow=allow)


def assert_aggregated_before_clipped(
    evidence: Evidence | Placement,
    allow: str | Sequence[str] | None = None,
) -> None:
    """Assert `aggregated-before-clipped`.

    The gradients of all replicas are added up before they are clipped.

    Clipping by a norm or a bound is not linear: a sum of clipped gradients differs from the
    clipped sum, and depends on the number of GPUs. Code for one GPU that clips between
    tape.gradient and optimizer.apply_gradients runs under a strategy without an error, but
    apply_gradients then adds up clipped gradients. So does an optimizer of Keras 3 with
    `clipnorm`.

    Towers that are placed by hand may clip their own gradients on purpose. The rule is then not
    checked; a comparison with a reference shows whether clipping makes a difference.

    `allow` lists variables, or patterns such as *, if each replica clips their gradients on
    purpose.

    Parameters and their defaults:
      aggregated-before-clipped.allow = ()

    Fields that are not given are those of the program's policy, else the rule's own.
    """
    __tracebackhide__ = True
    check_rule(evidence, "aggregated-before-clipped", allow=allow)


def assert_one_update(
    evidence: Evidence | Placement,
    allow: str | Sequence[str] | None = None,
) -> None:
    """Assert `one-update`.

    One update per variable and step; the step counter increases by one.

    Several updates of one variable in one step race: apply_gradients in the loop over towers
    makes N updates instead of one, each from a part of the batch. An optimizer that is applied to
    two groups of variables changes its own scalars, such as Adam's powers of beta, twice. A
    momentum, a moving average or a target network that is updated in the loop over towers decays N
    times a step. A counter that grows by two, or not at all, makes the learning rate decay at the
    wrong time.

    Updates in sequence are allowed if each takes the gradients of all towers, computed after the
    update before it. Examples are the steps up and down of sharpness-aware minimization, and
    several steps of a critic.

    Counters are the variables in the collection GLOBAL_STEP, and integer scalars that start at 0,
    are read by the step, and are set by nothing but their initializer. Floating-point scalars are
    counters if only updates depend on them, through a computation such as the decay of the
    learning rate. If an op that is not part of the step adds to a counter, the rule is not
    checked: the program may run that op together with the step.

    Updates in exclusive branches count once. Updates without a gradient, such as clipped weights
    or a decay, do not count.

    `allow` lists variables, or patterns, that are updated more often on purpose.

    Parameters and their defaults:
      one-update.allow = ()

    Fields that are not given are those of the program's policy, else the rule's own.
    """
    __tracebackhide__ = True
    check_rule(evidence, "one-update", allow=allow)


def assert_loss_of_all_towers(
    evidence: Evidence | Placement,
    allow: str | Sequence[str] | None = None,
) -> None:
    """Assert `loss-of-all-towers`.

    The loss a program reports reads every tower, and summaries are not written once per tower.

    After a loop over towers the loop's variables hold the last tower's values. If the program
    prints that tower's loss, it looks right, except for the noise of a smaller batch.

    The rule judges the `loss` of the Step (a list counts as one loss), and scalar summaries of
    losses.

    If one line builds a summary of examples in every tower, there are N curves of one quantity.
    Summaries of shared variables are equal in all towers, and are not findings. Under a strategy
    only the first replica writes summaries.

    `allow` lists summaries, or patterns such as tower_3/*, that show one tower on purpose.

    Parameters and their defaults:
      loss-of-all-towers.allow = ()

    Fields that are not given are those of the program's policy, else the rule's own.
    """
    __tracebackhide__ = True
    check_rule(evidence, "loss-of-all-towers", allow=allow)


def assert_randomness_apart(
    evidence: Evidence | Placement,
    allow: str | Sequence[str] | None = None,
) -> None:
    """Assert `randomness-apart`.

    No two towers draw the same random numbers.

    If all towers use one dropout mask, or one sample of noise, the mean of their gradients is as
    noisy as the gradient of one tower. The usual causes are a fixed seed in the loop over towers,
    a mask that is drawn before the loop, and a generator with a state that all towers read, such
    as the generator of Keras 3's Dropout in a graph.

    Two stateful random ops draw the same numbers if both seeds are equal and not 0. Two stateless
    random ops do if their seeds are equal by construction; copies of one variable that a strategy
    keeps are equal. Towers share a draw if they compute with the same part of it. Scalars, and
    noise that is added to weights, may be shared.

    `allow` lists random ops, or patterns, that towers share on purpose.

    Parameters and their defaults:
      randomness-apart.allow = ()

    Fields that are not given are those of the program's policy, else the rule's own.
    """
    __tracebackhide__ = True
    check_rule(evidence, "randomness-apart", allow=allow)


def assert_trainables_trained(
    evidence: Evidence | Placement,
    frozen: str | Sequence[str] | None = None,
) -> None:
    """Assert `trainables-trained`.

    The step updates every trainable variable that a loss reads.

    A variable keeps its initial value in three cases: its gradient is averaged, or shown in a
    summary, but not applied; no loss reads it, so it has no gradient; or the step of the reference
    updates it, and this step does not.

    A program that trains some of its variables on purpose takes no gradients of the others: these
    are not findings. Neither is a variable that another step updates, as in two networks that are
    trained alternately. TensorFlow computes the gradients of all inputs of an op; a gradient
    that stays within the backward pass was not asked for.

    A gradient that the program takes and no op uses may be a mistake, or the program may take
    the gradients of all variables and apply only some. The rule is then not checked until the
    variable is declared.

    `frozen` lists variables, or patterns such as resnet/*, that keep their values on purpose.

    Parameters and their defaults:
      trainables-trained.frozen = ()

    Fields that are not given are those of the program's policy, else the rule's own.
    """
    __tracebackhide__ = True
    check_rule(evidence, "trainables-trained", frozen=frozen)


def assert_names_portable(
    evidence: Evidence | Placement,
    allow: str | Sequence[str] | None = None,
) -> None:
    """Assert `names-portable`.

    Variables are named so that a checkpoint moves between one GPU and many.

    A checkpoint holds names. The program for one GPU does not find variables that are named
    tower_0/conv1/weights, nor does any later program that changes the scope.

    With a reference, the program for one GPU, its variables decide: each must exist here with the
    same name and shape, and each variable trained here must exist there. Without a reference, no
    variable may be named after a tower or device.

    A part of a variable's name is a tower's if it has a number, only ops of one tower are in the
    scope of that name, and each other tower has one scope of the same name with another number:
    tower_0 and tower_1, but not conv1 and conv2 of one model. Slots are named after their
    variables and are not reported separately.

    Copies of mirrored variables are named after towers, as they must be: a checkpoint holds one of
    them, and the first copy is compared with the reference. Local variables are in no checkpoint,
    and a tower's accumulators need not be in one. A checkpoint of TensorFlow 2
    (tf.train.Checkpoint, Keras) holds objects: between two such programs names may differ.

    `allow` lists variables, or patterns, that are named so on purpose.

    Parameters and their defaults:
      names-portable.allow = ()

    Fields that are not given are those of the program's policy, else the rule's own.
    """
    __tracebackhide__ = True
    check_rule(evidence, "names-portable", allow=allow)


def assert_update_ops_run(
    evidence: Evidence | Placement,
    tower: str | None = None,
    allow: str | Sequence[str] | None = None,
) -> None:
    """Assert `update-ops-run`.

    The statistics updates are part of the step, of every tower or of one.

    Evaluation uses moments that statistics updates keep, such as batch normalization's. If the
    train op leaves these updates out, they never run, and evaluation uses the initial values.

    Statistics updates are the ops in the collection UPDATE_OPS, and ops that assign a value
    computed on the way to a tower's loss to a variable that is not trained. An update that another
    step of the program runs belongs to that step.

    The updates of a copy of the model that only evaluates must not run in the step: evaluation
    would then use statistics of held-out rows. If these updates do not run, that is right.

    Many programs run the updates of one tower alone, which are as good as all. The rule is then
    kept, with a note, unless it is the last tower: a loop over the towers leaves its updates
    behind by mistake. With the last tower it is kept too if the program has a group for each
    tower's updates, and so has chosen one. If the step runs no updates, and a separate group waits
    for all of them or for the first tower's, the rule is not checked: the program may run that
    group.

    `tower` is the GPU of the one tower whose updates are meant to run, such as /gpu:0, or "all".
    `allow` lists updates, or patterns, that are run by themselves.

    Parameters and their defaults:
      update-ops-run.tower = ''
      update-ops-run.allow = ()

    Fields that are not given are those of the program's policy, else the rule's own.
    """
    __tracebackhide__ = True
    check_rule(evidence, "update-ops-run", tower=tower, allow=allow)


def assert_transfer_budget(
    evidence: Evidence | Placement,
    bytes: int | None = None,
    copies: int | None = None,
    link_bytes: int | None = None,
    link_copies: int | None = None,
    constant_bytes: int | None = None,
    rows: int | None = None,
) -> None:
    """Assert `transfer-budget`.

    Bytes and copies between devices per step stay under the budget.

    Weights on the host travel to every tower in each step, and gradients travel back: this is the
    price of towers. Additional transfers, such as an activation that changes devices or a whole
    batch that is copied to every tower, make N GPUs slower than one.

    The rule counts, in the placed graph, the bytes (shape times size of dtype) of every tensor
    that an op of the step reads from another device. A tensor counts once for each device that it
    is copied to, and a loop counts as one iteration.

    In a cluster the links between tasks matter most: a variable on a parameter server is copied to
    each GPU of a worker separately, and a large constant travels in every step, although the
    reading task could create it.

    `bytes` and `copies` are the budget of one step; `link_bytes` and `link_copies` are the budget
    from one task to another; `constant_bytes` is the size of the largest constant that one task
    may send to another. `rows` is the number of rows of the global batch, for tensors with an
    unknown first dimension. Without a budget the rule judges only constants, but still shows the
    transfers.

    Parameters and their defaults:
      transfer-budget.bytes = None
      transfer-budget.copies = None
      transfer-budget.link_bytes = None
      transfer-budget.link_copies = None
      transfer-budget.constant_bytes = 1048576
      transfer-budget.rows = None

    Fields that are not given are those of the program's policy, else the rule's own.
    """
    __tracebackhide__ = True
    check_rule(
        evidence,
        "transfer-budget",
        bytes=bytes,
        copies=copies,
        link_bytes=link_bytes,
        link_copies=link_copies,
        constant_bytes=constant_bytes,
        rows=rows,
    )


def assert_shards_balanced(
    evidence: Evidence | Placement,
    by: Literal["", "round-robin", "bytes"] | None = None,
    most: float | None = None,
    job: str | None = None,
    allow: str | Sequence[str] | None = None,
) -> None:
    """Assert `shards-balanced`.

    Variables are spread over the parameter servers as declared.

    Every worker fetches every variable in each step, so the server with the most bytes limits the
    speed. `replica_device_setter` assigns variables to the servers in turn, whatever their size:
    if a program alternates weights and biases and there are two servers, one server gets all
    weights.

    A variable that is bound to another one, such as a slot, follows it and is not counted.

    `by` is the intended distribution: "round-robin", each variable on the next server in the order
    of building, or "bytes", no server with more than `most` times its even share, which is at
    least the size of the largest variable. By default either is allowed, as long as no server is
    empty that could hold a variable. `job` is the job of the servers; by default the job ps, or
    the job that holds variables and runs no tower. `allow` lists variables, or patterns such as
    table/part_*, that may be on any server.

    Parameters and their defaults:
      shards-balanced.by = ''
      shards-balanced.most = 1.5
      shards-balanced.job = ''
      shards-balanced.allow = ()

    Fields that are not given are those of the program's policy, else the rule's own.
    """
    __tracebackhide__ = True
    check_rule(evidence, "shards-balanced", by=by, most=most, job=job, allow=allow)


def assert_session_memory(
    evidence: Evidence | Placement,
    fraction: float | None = None,
    others: Sequence[Mapping[str, Any]] | None = None,
) -> None:
    """Assert `session-memory`.

    The session does not take all memory of every GPU.

    TensorFlow 1 takes nearly all memory of every visible GPU when the session starts: a second
    program on the same machine fails, or runs on the CPU. To prevent this, set
    `gpu_options.allow_growth`, `per_process_gpu_memory_fraction`, or `visible_device_list`, which
    leaves the other GPUs free, or TF_FORCE_GPU_ALLOW_GROWTH=true in the environment.

    Most programs set no `gpu_options`, and are the only one on their machine: the rule is then
    not checked, unless `fraction` or `others` are declared.

    `fraction` is the largest share of a GPU's memory that a session may take. `others` lists the
    programs that run on the same machine, each by its gpu_options: the rule adds up the shares of
    all programs on a GPU. Memory that grows on demand adds nothing to the sum, but a program that
    needs it fails next to a program that takes all memory. For the other programs,
    TF_FORCE_GPU_ALLOW_GROWTH is unknown.

    Parameters and their defaults:
      session-memory.fraction = 0.95
      session-memory.others = ()

    Fields that are not given are those of the program's policy, else the rule's own.
    """
    __tracebackhide__ = True
    check_rule(evidence, "session-memory", fraction=fraction, others=others)


def assert_gradients_equal(
    towers: Target,
    single: Target,
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
    """Assert `gradients-equal` by running a program beside the same for one GPU.

    `towers` and `single` are the functions that build the two, with the same names of variables,
    or targets that name them. `batch(rng, n)` gives arrays of n rows by the names of the inputs;
    a target or a saved case will do as well, and without it rows are made up. `gpus` is how many
    the towers are built for.

    Each variable receives the same gradient as in the program for one GPU.

    A sum in place of a mean, a tower left out, labels of other rows: every device is right, the
    loss falls, and the model is worse than a model that a single GPU would train.

    Both programs run, on GPUs or on CPU devices in their place, from equal variables and on the
    same rows. The inputs of the optimizer are compared, not its results: Adam hides a sum in place
    of a mean. The error of a variable is its largest difference over its largest expected value,
    in eps of the dtype of the computation (float32: 1.2e-7). The gradient is equal if the error is
    at most `tolerance` (on two rows up to 16 times that), or at most `noise` times the
    noise of the reference. The noise is the change of the reference's own gradient when its rows
    are put in three other orders, or in twelve if the difference is small. A gradient that is
    mathematically zero consists of rounding errors of the largest gradient, and is reported as too
    noisy to compare. If the dtype cannot show a difference of 1 %, the rule is not checked.

    A finding names the mistake that explains the difference: the gradients are added up, a tower
    or the last rows are left out, unequal towers are averaged as if equal, labels of other rows
    are used, and others.

    `scale`, `shares`, `statistics` and `rows` declare intended differences. `scale` is the factor
    of all gradients (a sum, with a learning rate that is divided by the number of towers; a loss
    scale). `shares` are the relative sizes of the towers' parts, such as [3, 1]. `statistics` =
    "tower" means that batch normalization or clipping uses the rows of each tower alone. `rows` is
    the size of the global batch, if batches are always divided evenly (0: a few rows, and one
    more).

    `allow` lists variables that may differ, or patterns such as bn/*, and `seconds` is the time
    limit of one run.

    Parameters and their defaults:
      gradients-equal.tolerance = 32.0
      gradients-equal.noise = 8.0
      gradients-equal.scale = 1.0
      gradients-equal.shares = ()
      gradients-equal.statistics = 'batch'
      gradients-equal.allow = ()
      gradients-equal.rows = 0
      gradients-equal.seconds = 60.0

    Fields that are not given are those of the program's policy, else the rule's own.
    """
    __tracebackhide__ = True
    check_run(
        "gradients-equal",
        towers,
        single,
        batch,
        gpus,
        tolerance=tolerance,
        noise=noise,
        scale=scale,
        shares=shares,
        statistics=statistics,
        allow=allow,
        rows=rows,
        seconds=seconds,
    )


def assert_weights_equal(
    towers: Target,
    single: Target,
    batch: Batch = None,
    *,
    gpus: int = 2,
    steps: int | None = None,
    tolerance: float | None = None,
    noise: float | None = None,
    allow: str | Sequence[str] | None = None,
) -> None:
    """Assert `weights-equal` by running a program beside the same for one GPU.

    `towers` and `single` are the functions that build the two, with the same names of variables,
    or targets that name them. `batch(rng, n)` gives arrays of n rows by the names of the inputs;
    a target or a saved case will do as well, and without it rows are made up. `gpus` is how many
    the towers are built for.

    After some training steps all variables have the same values as in the reference.

    One gradient does not show mistakes between steps: towers that train separate copies, repeated
    updates, averages that move once per tower, counters that jump.

    Weights, slots, statistics and the step counter start equal, and both programs take the same
    steps. Integers must be equal. Other variables are compared as in gradients-equal; their
    noise is the change of the reference with its rows in three other orders. Optimizers such as
    Adam, which divide the gradient by its size, let rounding decide the direction of elements with
    a gradient next to zero. These elements are left out, and a difference of up to a fiftieth of
    a variable's change is accepted.

    After the last step both programs are given the reference's variables, and the gradients are
    compared once more. This shows copies that no step refreshes, even if the optimizer hides them.

    A step may read a variable and update it in no defined order. An example is a group of moving
    averages and the update, `tf.group(train_op, averages.apply(variables))`: the average takes the
    value before or after the update at random, on one GPU too. Such a variable is left out, and
    the note says so; under `tf.control_dependencies([train_op])` it is compared.

    With statistics of each tower's rows (gradients-equal.statistics) no steps are compared.

    `steps` is the number of steps, at least 3; `allow` lists variables that may differ, or
    patterns such as bn/*. The fields of gradients-equal that declare differences apply here too.

    Parameters and their defaults:
      weights-equal.steps = 3
      weights-equal.tolerance = 32.0
      weights-equal.noise = 8.0
      weights-equal.allow = ()

    Fields that are not given are those of the program's policy, else the rule's own.
    """
    __tracebackhide__ = True
    check_run(
        "weights-equal",
        towers,
        single,
        batch,
        gpus,
        steps=steps,
        tolerance=tolerance,
        noise=noise,
        allow=allow,
    )


def assert_towers_overlap(
    towers: Target,
    single: Target,
    batch: Batch = None,
    *,
    gpus: int = 2,
    least: float | None = None,
) -> None:
    """Assert `towers-overlap` by running a program beside the same for one GPU.

    `towers` and `single` are the functions that build the two, with the same names of variables,
    or targets that name them. `batch(rng, n)` gives arrays of n rows by the names of the inputs;
    a target or a saved case will do as well, and without it rows are made up. `gpus` is how many
    the towers are built for.

    No tower waits for another: all of them compute at once.

    If a control dependency or a value makes one tower wait for another, no number and no device
    changes, but the second GPU saves no time.

    Some steps run and are traced. From the duration of each op, and its inputs in the graphs that
    ran, the rule computes a schedule: every GPU runs one op at a time and waits for nothing
    but inputs. The overlap of two towers is the share of time in which both compute: 1 if
    one of them never computes without the other, 0 if they take turns. The smallest overlap of two
    towers counts. It depends neither on other load of the machine nor on its number of cores. The
    note also has the overlap in the run itself. Few rows or a busy machine make that smaller; if
    it is large enough, the rule is kept.

    The rule is broken if the overlap of two towers is small and a control dependency or a value
    leads from one to the other, or if all towers are on one GPU. Towers that only the host slows
    down, each with separate work, do not break it.

    `least` is the smallest overlap that does not break the rule.

    Parameters and their defaults:
      towers-overlap.least = 0.5

    Fields that are not given are those of the program's policy, else the rule's own.
    """
    __tracebackhide__ = True
    check_run("towers-overlap", towers, single, batch, gpus, least=least)
