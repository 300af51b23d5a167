"""The catalog of mistakes that make towers train otherwise than one GPU.

Rules, the proof of a step and the comparison of numbers find mistakes in different ways, and word
them alike: each returns a `Diagnosis`, which an entry of the catalog (`Mistake.stated`) makes of
the facts. docs/mistakes.md is generated from the entries.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypedDict

TowerKind = Literal["tower", "replica", "rank"]


class Words(NamedTuple):
    """The words for one kind of towers, which the texts of mistakes insert.

    Attributes:
        noun: the kind.
        average: how to combine the gradients of all towers.
        clip: how to clip, or otherwise change, the combined gradients.
        shard: how to give each tower its own rows.
    """

    noun: TowerKind
    average: str
    clip: str
    shard: str


AVERAGE = (
    "[(tf.add_n([grad for grad, _ in pairs]) / num_gpus, pairs[0][1]) "
    "for pairs in zip(*tower_grads)]"
)
WORDS: Mapping[TowerKind, Words] = {
    "tower": Words(
        "tower",
        f"average over towers before apply_gradients: {AVERAGE}",
        "clip the averaged gradients, after the loop over towers",
        "give tower i its own rows: tf.split(x, num_gpus)[i]",
    ),
    "replica": Words(
        "replica",
        "add up the gradients of all replicas first, as optimizer.apply_gradients does, or "
        "tf.distribute.get_replica_context().all_reduce('SUM', gradients)",
        "clip the sum: gradients = tf.distribute.get_replica_context().all_reduce('SUM', "
        "gradients), then clip, and apply them without another sum: optimizer.apply_gradients(…, "
        "skip_gradients_aggregation=True) in Keras 2; divide by the number of replicas for an "
        "optimizer of Keras 3 or tf.compat.v1, which adds up once more",
        "give each replica its own rows: strategy.experimental_distribute_dataset(dataset)",
    ),
    "rank": Words(
        "rank",
        "average the gradients of all ranks first: compute them with hvd.DistributedOptimizer "
        "(minimize or compute_gradients) or with hvd.DistributedGradientTape, or call "
        "hvd.allreduce(gradient) before they are applied",
        "clip the average: the gradients that compute_gradients of hvd.DistributedOptimizer "
        "returns, or hvd.allreduce(gradient)",
        "give each rank its own rows: dataset.shard(hvd.size(), hvd.rank()), or a seed that "
        "depends on hvd.rank()",
    ),
}


class Texts(TypedDict):
    """The texts of a finding."""

    message: str
    consequence: str
    fix: str


class Diagnosis(NamedTuple):
    """A mistake of the catalog, with the facts of one program.

    Attributes:
        what: a clause that describes the mistake.
        fix: the change to make, or the option that declares it as intended.
        shown: the evidence, one line each.
        ratio: the number that all gradients are multiplied by, if that is the mistake.
        mistake: the key of the catalog; ``""`` if there is no entry.
        consequence: the effect on the training; ``""`` if it is obvious.
        towers: the towers with the mistake; empty if all towers have it.
        op_type: the type of the op that combines rows, if that is the mistake.
        ops: the names of the ops that show the mistake, if its finder knows them.
    """

    what: str
    fix: str
    shown: tuple[str, ...] = ()
    ratio: float | None = None
    mistake: str = ""
    consequence: str = ""
    towers: tuple[int, ...] = ()
    op_type: str = ""
    ops: tuple[str, ...] = ()

    @property
    def texts(self) -> Texts:
        """The texts of a finding whose message is the mistake alone."""
        return {"message": self.what, "consequence": self.consequence, "fix": self.fix}


@dataclass(frozen=True)
class Mistake:
    """An entry of the catalog.

    The texts are formats: ``{noun}`` and the other fields of `Words` are inserted, and the facts
    that the finder of the mistake states.

    Attributes:
        key: the name of the mistake.
        what: a clause that describes it.
        fix: what to change; a text, or a text for each kind of towers.
        consequence: what it does to the training; ``""`` if that is obvious.
        evidence: what proves it.
        decision: what the user has to decide, if no change of the text is right for each program.
    """

    key: str
    what: str
    fix: str | Mapping[TowerKind, str]
    consequence: str
    evidence: str
    decision: str = ""

    def fix_for(self, kind: TowerKind) -> str:
        """The format of the fix for one kind of towers."""
        return self.fix if isinstance(self.fix, str) else self.fix[kind]

    def stated(
        self,
        kind: TowerKind = "tower",
        *,
        shown: tuple[str, ...] = (),
        ratio: float | None = None,
        at: tuple[int, ...] = (),
        op_type: str = "",
        ops: tuple[str, ...] = (),
        declared: str = "",
        **facts: object,
    ) -> Diagnosis:
        """State the mistake for one program.

        Args:
            kind: the kind of its towers.
            shown: see `Diagnosis`.
            ratio: see `Diagnosis`.
            at: the towers with the mistake; empty if all towers have it.
            op_type: see `Diagnosis`.
            ops: see `Diagnosis`.
            declared: what declares the mistake as intended, such as a text with ``--set``.
            facts: values that the texts insert.

        Raises:
            KeyError: a text inserts a fact that is not given.
        """
        values = {**WORDS[kind]._asdict(), **facts}
        fix = self.fix_for(kind).format_map(values)
        return Diagnosis(
            self.what.format_map(values),
            f"{fix}; {declared}" if declared else fix,
            shown,
            ratio,
            self.key,
            self.consequence.format_map(values),
            at,
            op_type,
            ops,
        )


def _by_kind(tower: str, replica: str, rank: str) -> Mapping[TowerKind, str]:
    return {"tower": tower, "replica": replica, "rank": rank}


_STEPS = (
    "steps of gradient descent are {factor} times as large; Adam hides the mistake, because it "
    "normalizes gradients"
)
_MEAN_OF_ALL_ROWS = (
    "divide by the rows of all {noun}s: tf.nn.compute_average_loss(losses, global_batch_size=…)"
)
_ONCE = (
    "let the penalty count once: add it to the loss of every {noun} and average the gradients, "
    "or, if gradients are added up, add it to the loss of one {noun} only"
)
_OF_GRAPH_OR_RUN = "the coefficients of the losses in both graphs, or the gradients of a run"
_OF_RUN = "the gradients of a run, fitted to the reference's gradients"
_OF_WEIGHTS = "the variables after some steps, while their gradients are equal"
_OF_PROOF = "the proof of the step: both graphs, compared as terms"

SUM = Mistake(
    "sum",
    "the gradients of {towers} {noun}s are added up instead of averaged",
    _by_kind(
        "{average}",
        f"{_MEAN_OF_ALL_ROWS}; if it is already, add up the gradients once: "
        "optimizer.apply_gradients adds them up, too",
        "average the gradients once, op=hvd.Average, or divide each loss by hvd.size()",
    ),
    _STEPS,
    _OF_GRAPH_OR_RUN,
)
SUM_OF_BATCHES = Mistake(
    "sum of batches",
    f"{SUM.what}: the loss is the mean over the rows of one {{noun}}, or of all {{noun}}s",
    f"{_MEAN_OF_ALL_ROWS}; if each {{noun}} reads all rows, {{shard}}",
    _STEPS,
    _OF_RUN,
    "whether each replica shall read all rows",
)
SUM_OF_LOSSES = Mistake(
    "sum of losses",
    "the losses of {towers} {noun}s are added up instead of averaged",
    _by_kind(
        "divide the losses by the number of towers, but not the penalties: "
        "tf.add_n(losses) / num_gpus",
        _MEAN_OF_ALL_ROWS,
        "divide the losses by the number of ranks, hvd.size(), but not the penalties",
    ),
    _STEPS,
    _OF_GRAPH_OR_RUN,
)
DIVIDED = Mistake(
    "divided",
    "it is divided by the number of {noun}s, {towers}, once too often",
    _by_kind(
        "divide the losses by the number of towers or take the mean of the gradients, not both; "
        "if the loss is a sum over rows, add up the gradients",
        "divide the loss by the rows of all replicas alone, as tf.nn.compute_average_loss does, "
        "and add up the gradients: tf.distribute.ReduceOp.SUM",
        "divide once: average the gradients, op=hvd.Average, and leave the losses as they are",
    ),
    _STEPS,
    _OF_GRAPH_OR_RUN,
)
LOSSES_DIVIDED = Mistake(
    "losses divided",
    "the losses are divided by the number of {noun}s, {towers}, once too often",
    _by_kind(
        "divide the losses once by the number of towers, and not at all if the mean of their "
        "gradients is taken",
        DIVIDED.fix_for("replica"),
        DIVIDED.fix_for("rank"),
    ),
    _STEPS,
    _OF_GRAPH_OR_RUN,
)
SCALED = Mistake(
    "scaled",
    "the whole gradient is multiplied by one number",
    "if it is a loss scale, undo it before the gradients are applied: "
    "(gradient / {factor}, variable)",
    _STEPS,
    _OF_GRAPH_OR_RUN,
)
LOSS_SCALE = Mistake(
    "loss scale",
    "{op} multiplies the loss by {factor}, and its gradients are not divided by it",
    "divide the gradients of each {noun} by the factor before they are applied, "
    "(gradient / {factor}, variable), or leave the loss as it is",
    "the gradients of this loss are {factor} times as large; if all losses are multiplied, Adam "
    "hides the mistake, because it normalizes gradients",
    "the coefficients of the losses in both graphs, or the gradients of a run, and the op",
)
NEGATIVE = Mistake(
    "negative",
    SCALED.what,
    SCALED.fix,
    "the steps increase the loss instead of decreasing it",
    _OF_GRAPH_OR_RUN,
    "which sign of the loss is meant",
)
ZERO = Mistake(
    "zero",
    "it is zero",
    "look for a stop_gradient, a mask, or a loss that does not depend on the variables",
    "these variables are never trained",
    _OF_RUN,
    "which variables the loss is meant to train",
)
NOT_FINITE = Mistake(
    "not finite",
    "it is NaN or infinite; the first op that yields such a value is {op}{where}",
    "check what that op receives: a logarithm of zero or a division by zero is a common cause",
    "",
    "the values of a run",
    "which value the op may receive",
)
CHANGED = Mistake(
    "changed",
    "it is clipped or otherwise changed in another way than in the reference",
    "average the gradients first, then change them once, exactly as the reference does, and undo "
    "a loss scale before that",
    "the step has another direction than on one GPU",
    "gradients that are no sum of the reference's gradients, and ops that change them",
    "how the gradients shall be changed: in one place, for one and for several GPUs",
)
CHANGED_OTHERWISE = Mistake(
    "changed otherwise",
    f"{CHANGED.what}: {{text}}",
    CHANGED.fix,
    CHANGED.consequence,
    "ops that change gradients, and the first difference of both graphs",
    CHANGED.decision,
)
COMBINED = Mistake(
    "combined",
    "{op} ({type}) combines the gradients of the {noun}s, in place of a mean",
    "{average}",
    "the step has another direction than on one GPU",
    "gradients that differ, and the op that takes the gradients of several towers",
)
CHANGED_IN_TOWERS = Mistake(
    "changed in towers",
    "each {noun} changes its gradients, by clipping for example, before their mean is taken; the "
    "reference changes the mean",
    "{clip}",
    "only the {noun}s with large gradients are clipped, so the step has another direction than "
    "on one GPU",
    _OF_RUN,
)
# Replaces CHANGED if sparse gradients are clipped: numbers alone cannot distinguish the two.
NORM_OF_SLICES = Mistake(
    "slices",
    "it is clipped by a norm of sparse gradients before rows of the same index are added up, and "
    "the number of such rows depends on the {noun}s",
    "convert the gradients to dense tensors before the norm, in both programs: "
    "tf.convert_to_tensor(gradient)",
    CHANGED.consequence,
    "the same, and a norm of IndexedSlices in the graph",
    "whether dense gradients cost too much memory",
)
STATISTICS = Mistake(
    "statistics",
    "it is the mean over {noun}s of the reference's gradients on each {noun}'s rows alone: batch "
    "statistics, as in batch normalization, are taken over a {noun}'s rows",
    "take them over all {noun}s",
    "the more GPUs share a batch, the fewer rows each statistic is taken over",
    _OF_RUN,
    "whether statistics of each tower's rows are intended",
)
OWN_ROWS = Mistake(
    "own rows",
    "each {noun} combines its own rows alone, and the reference the rows of the whole batch",
    "combine the rows of all {noun}s before that op",
    "the more GPUs share a batch, the fewer rows are combined",
    "the same, and an op of the reference that combines rows",
    "whether each tower shall combine its own rows",
)
_BY_COUNTS = _by_kind(
    "divide by the count of all towers, or weight the towers by their counts: "
    "placement_checks.average_gradients(tower_grads, weights=counts)",
    "divide by the count of all replicas, and add up the gradients: "
    "tf.distribute.get_replica_context().all_reduce('SUM', count)",
    "divide by the count of all ranks, and add up the gradients: hvd.allreduce(count, op=hvd.Sum)",
)
OWN_COUNTS = Mistake(
    "counts",
    "each {noun} divides its loss by its own count, such as its number of tokens, and the "
    "reference by the count of the whole batch",
    _BY_COUNTS,
    "an example counts more in a {noun} with a small count than in the others",
    _OF_RUN,
)
# Replaces STATISTICS if towers also divide by counts: numbers alone cannot distinguish the two.
COUNTS_OR_STATISTICS = Mistake(
    "counts or statistics",
    "it is the mean over {noun}s of the reference's gradients on each {noun}'s rows alone: each "
    "{noun} divides its loss by its own count, such as its number of tokens, or takes batch "
    "statistics over its own rows",
    _BY_COUNTS,
    OWN_COUNTS.consequence,
    "the same, and a division by a count in the graph",
    "whether statistics of each tower's rows are intended",
)
MOVED = Mistake(
    "moved",
    "it is the reference's gradient with {how}",
    "on that line keep the rows of all inputs together, in one order: an example and its label "
    "are in the same row",
    "the model is trained on examples that are composed of different rows",
    _OF_RUN,
)
PAIRED = Mistake(
    "paired",
    "it is the gradient of {other}: gradients and variables are paired wrongly",
    "keep each gradient with its variable; if lists are joined with zip, both must leave out the "
    "same entries",
    "the variable is trained by the gradient of another variable",
    _OF_GRAPH_OR_RUN,
)
ROWS_PAIRED = Mistake(
    "rows paired",
    "it takes the gradients of {left_out}, but not the indices of the rows that they belong to",
    "concatenate the values of all towers, and in the same order their indices: "
    "tf.IndexedSlices(tf.concat([g.values for g in grads], 0) / num_gpus, "
    "tf.concat([g.indices for g in grads], 0))",
    "rows are trained by the gradients of other rows",
    "the values and indices of sparse gradients in the graph",
)
PENALTY_REPEATED = Mistake(
    "repeated penalty",
    "the penalty{op} {counts}",
    _by_kind(_ONCE, "give each replica its part: tf.nn.scale_regularization_loss(penalty)", _ONCE),
    "the more GPUs, the more the weights decay",
    _OF_GRAPH_OR_RUN,
)
PENALTY_TOO_SMALL = Mistake(
    "too small penalty",
    PENALTY_REPEATED.what,
    _by_kind(
        "if gradients are averaged, add the full penalty to the loss of every tower; if they are "
        "added up, add it to the loss of one tower, undivided",
        "divide the penalty once: by tf.nn.scale_regularization_loss if gradients are added up, "
        "and not at all if they are averaged",
        "if gradients are averaged, add the full penalty to the loss of every rank",
    ),
    "the weights decay less than on one GPU",
    _OF_GRAPH_OR_RUN,
)
OTHER_PENALTY = Mistake(
    "other penalty",
    PENALTY_REPEATED.what,
    "use the same coefficient for one and for several GPUs, and add the penalty once to each loss",
    "the weights decay in another way than on one GPU",
    _OF_GRAPH_OR_RUN,
    "which coefficient is meant",
)
DECAY = Mistake(
    "decay",
    "{text}",
    "add the decay once, to the combined gradients, with the coefficient for one GPU",
    "the weights decay in another way than on one GPU",
    _OF_PROOF,
)
TERMS = Mistake(
    "terms",
    "the loss terms do not count equally; their factors, compared with one GPU: {factors}",
    "average all terms of the losses in the same way",
    "the model is trained by another objective than on one GPU",
    _OF_GRAPH_OR_RUN,
)
MISSING_TERM = Mistake(
    "missing term",
    "the loss of {tower} has {terms} on examples that {depend} on it, and the loss of another "
    "{noun} has {others}",
    "give the losses of all {noun}s the same terms: build the part of the model that a loss "
    "lacks in each {noun}",
    "the model is trained by an objective that depends on the {noun}",
    _OF_GRAPH_OR_RUN,
)
UNEVEN = Mistake(
    "weights",
    "the losses of the {noun}s do not count equally; their factors, compared with one GPU: "
    "{factors}",
    _by_kind(
        "multiply the gradients of each tower by its share of the rows: "
        "placement_checks.average_gradients(tower_grads, weights=rows)",
        _MEAN_OF_ALL_ROWS,
        "multiply the gradients of each rank by its share of the rows, and add up: op=hvd.Sum",
    ),
    "the rows of some {noun}s count more than the rows of others",
    _OF_GRAPH_OR_RUN,
)
OPPOSED = Mistake(
    "opposed",
    UNEVEN.what,
    "give the losses of all {noun}s the same sign",
    "the gradients of some {noun}s undo the gradients of others",
    _OF_GRAPH_OR_RUN,
)
SIZES = Mistake(
    "sizes",
    "{noun}s of {sizes} rows are averaged as if they were equal",
    _by_kind(
        "weight each tower by its rows, n_i / n: placement_checks.average_gradients(tower_grads, "
        "weights=rows)",
        _MEAN_OF_ALL_ROWS,
        UNEVEN.fix_for("rank"),
    ),
    "a row counts more in a small {noun} than in a large one",
    _OF_RUN,
)
ROWS = Mistake(
    "rows",
    "rows do not count equally",
    "assign every row to exactly one {noun}, and weight the {noun}s by their rows",
    "some examples train the model more than others",
    _OF_RUN,
    "which tower a row belongs to",
)
ONE_TOWER = Mistake(
    "one tower",
    "only the rows of {noun} {only} count: the gradients of {others} are lost, or computed on the "
    "same rows",
    "take the mean over the gradients of all {noun}s, each computed on its own rows",
    "the results of the other GPUs change nothing: only one of {towers} parts of a batch trains "
    "the model",
    _OF_RUN,
)
FROZEN = Mistake(
    "frozen",
    "{who} nothing to it, as if the variable were frozen there",
    "look for a stop_gradient, a mask, a list of variables or an index that excludes it",
    "the rows of {left_out} train the rest of the model, but not this variable",
    _OF_RUN,
)
TAIL = Mistake(
    "tail",
    "in a batch of {rows} rows, which {towers} {noun}s cannot share evenly, the last {lost} "
    "ignored",
    "give the remaining rows to a {noun}, and weight the {noun}s by their rows",
    "some rows of every such batch train nothing",
    _OF_RUN,
    "whether a batch may have such a size",
)
UNEXPLAINED = Mistake(
    "unexplained",
    "no known mistake explains it",
    "compare the two programs on this batch",
    "",
    "a run",
    "which of both programs is right",
)
# Found by the proof of the step. {text} is the first difference of both graphs.
FIRST_DIFFERENCE = Mistake(
    "first difference",
    "{text}",
    "write this line in the same way for one and for several GPUs",
    "",
    "the first difference of both graphs, for numbers that differ",
    "which of both programs is right",
)
LEFT_OUT = Mistake(
    "left out",
    "{variable} is updated {how}, although {left_out} {reads}",
    "{average}",
    "",
    "the gradients that each update takes, in the graph",
)
LEFT_OUT_OF_SUM = Mistake(
    "left out of the sum",
    LEFT_OUT.what,
    _by_kind(
        "add one gradient of each tower: look for an index that leaves a tower out, a list that "
        "each tower overwrites, or a tf.stop_gradient in one tower",
        "{average}",
        "{average}",
    ),
    "",
    LEFT_OUT.evidence,
)
LEFT_OUT_OF_LOOP = Mistake(
    "left out of the loop",
    LEFT_OUT.what,
    _by_kind(
        "average its gradient, as this line does for {other}: look for an `if` that skips it, or "
        "a tf.stop_gradient in one tower{sparse}",
        "{average}",
        "{average}",
    ),
    "",
    LEFT_OUT.evidence,
)
UNEVEN_PARTS = Mistake(
    "uneven parts",
    "{text}",
    UNEVEN.fix,
    UNEVEN.consequence,
    _OF_PROOF,
)
COEFFICIENT = Mistake(
    "coefficient",
    "{text}",
    "let this term count as often as on one GPU: combine the gradients once, and divide once, by "
    "the number of {noun}s or of rows",
    "the step is not the step for the whole batch",
    _OF_PROOF,
)
NUMBER = Mistake(
    "number",
    "{text}",
    "use the same number for one and for several GPUs",
    "",
    _OF_PROOF,
    "which number is meant",
)
NARROWED = Mistake(
    "narrowed",
    "no known mistake explains it; in the first term that differs between both graphs, {text}",
    "compare how both programs compute this term",
    "",
    "numbers that differ, and the op where the proof of the step ends",
    "which of both programs is right",
)
PART_LEFT_OUT = Mistake(
    "part left out",
    "{text}",
    "let every part of the batch count once, and combine the gradients: {average}",
    "the step is not the step for the whole batch",
    _OF_PROOF,
)
SAME_ROWS = Mistake(
    "same rows",
    "{text}",
    "give each {noun} rows, random numbers and updates of its own",
    "examples or random numbers count several times, and others are missing",
    _OF_PROOF,
    "which rows and seeds belong to a tower",
)
OTHER_FUNCTION = Mistake(
    "other function",
    "{text}",
    "build every {noun} with the same function and the same arguments",
    "the step trains a mixture of different models",
    _OF_PROOF,
)
NOT_UPDATED = Mistake(
    "not updated",
    "{text}",
    "update the variable in the step, with the average of the {noun}s' gradients",
    "the variable is not trained as on one GPU",
    _OF_PROOF,
)
SETTING = Mistake(
    "setting",
    "{text}",
    "use the same setting of the optimizer for one and for several GPUs; if another one is "
    "intended: --set weights-equal.allow=VARIABLE",
    "training has another learning rate, or another optimizer, than on one GPU",
    "equal gradients, and both graphs",
    "which setting is meant, as many programs choose another rate for several GPUs",
)
# Found by the values of variables.
COPIES = Mistake(
    "copies",
    "{noun}s compute with values that the step does not update, such as copies of the variables",
    "let all {noun}s read the variables that the step updates: use get_variable in a reused "
    "scope, without copies",
    "after the first step the gradients are computed from old weights",
    "gradients that are equal at the start, and differ after some steps for equal variables",
    "whether the copies are needed, and when the step refreshes them",
)
COPY = Mistake(
    "copy of a replica",
    "that step changes the copy on {device}{amount} the copy on {first}",
    "update every copy with the same value: a sum over all replicas, and no value that differs "
    "between replicas, such as the replica's number",
    "the copies diverge: each replica trains another model, and only the first replica's is saved",
    _OF_WEIGHTS,
    "which value all copies shall have",
)
DRIFTING = Mistake(
    "drifting copies",
    "each {noun} updates its copy of {variable} from its own results",
    "{average}",
    "the copies drift apart: each {noun} trains its own model, and only the model of the first "
    "{noun} is saved",
    "the examples and random numbers that the update of each copy depends on, in the graph",
    "what the copies shall share: gradients, or averaged weights",
)
OWN_NOISE = Mistake(
    "own noise",
    "each {noun} adds random numbers of its own, {op}, to the update of its copy of {variable}",
    "add the numbers to the gradients before they are combined, or draw the same numbers in each "
    "{noun}: tf.random.stateless_normal(shape, seed=[seed, step])",
    DRIFTING.consequence,
    DRIFTING.evidence,
    "whether the noise belongs to each gradient or to the update",
)
COUNTER = Mistake(
    "counter",
    "{change}",
    "increment it by 1 in each step, for any number of {noun}s and rows",
    "values that depend on it, such as a decaying learning rate, change at another time",
    _OF_WEIGHTS,
)
UNCHANGED = Mistake(
    "unchanged",
    "step {step} does not change it, but changes it in the reference",
    "make sure that the step runs the op that updates it, and that {noun}s share it",
    "it keeps its old value",
    _OF_WEIGHTS,
    "whether the step shall update it",
)
REPEATED = Mistake(
    "repeated",
    "that step changes it {factor} times as much as in the reference: {count} ops in a "
    "step update it",
    "update it once per step for all {noun}s together",
    "",
    _OF_WEIGHTS,
)
OTHER_RATE = Mistake(
    "rate",
    "that step changes it {factor} times as much as in the reference",
    "change it by as much as the reference does: once per step, with the same learning rate, or "
    "with the same decay of an average",
    "",
    _OF_WEIGHTS,
    "which rate is meant",
)
OTHER_UPDATE = Mistake(
    "update",
    "the step changes it in another way than the reference, for an unknown reason",
    "compare the op that updates it{op} in both programs",
    "",
    _OF_WEIGHTS,
    "which of both programs is right",
)
OTHER_OPTIMIZER = Mistake(
    "optimizer",
    "the optimizer, or an op after it, changes the variable in another way than in the reference",
    OTHER_UPDATE.fix,
    "",
    _OF_WEIGHTS,
    OTHER_UPDATE.decision,
)
CATALOG: tuple[Mistake, ...] = tuple(
    value for value in dict(globals()).values() if isinstance(value, Mistake)
)
