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
    "divide the loss by the number of rows of all {noun}s: "
    "tf.nn.compute_average_loss(losses, global_batch_size=…)"
)
_ONCE = (
    "let the penalty count once: if gradients are averaged, add it to the loss of every {noun}; "
    "if they are added up, divide it by the number of {noun}s"
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
        f"{_MEAN_OF_ALL_ROWS}; if the program does so already, do not add up the gradients by "
        "hand, as optimizer.apply_gradients adds them up, too",
        "average the gradients once, with op=hvd.Average, or divide each loss by hvd.size()",
    ),
    _STEPS,
    _OF_GRAPH_OR_RUN,
)
SUM_OF_BATCHES = Mistake(
    "sum of batches",
    f"{SUM.what}: the loss is the mean over the rows of one {{noun}}, or each {{noun}} reads the "
    "rows of all",
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
        "gradients is taken; a loss that is a sum over rows has to be their mean: tf.reduce_mean",
        DIVIDED.fix_for("replica"),
        DIVIDED.fix_for("rank"),
    ),
    _STEPS,
    _OF_GRAPH_OR_RUN,
)
SCALED = Mistake(
    "scaled",
    "the whole gradient is multiplied by one number",
    "remove the factor or, if it is a loss scale, divide by it before the gradients are applied: "
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
    "compute the batch statistics over the rows of all {noun}s",
    "the more GPUs share a batch, the fewer rows each statistic is taken over",
    _OF_RUN,
    "whether statistics of each tower's rows are intended",
)
OWN_ROWS = Mistake(
    "own rows",
    "each {noun} combines its own rows alone, and the reference the rows of the whole batch",
    "apply that op to the rows of all {noun}s: before the batch is split, or to the {noun}s' "
    "results after they are joined",
    "the more GPUs share a batch, the fewer rows are combined",
    "the same, and an op of the reference that combines rows",
    "whether each tower shall combine its own rows",
)
_BY_COUNTS = _by_kind(
    "divide by the count of all towers, or weight the towers by their counts: "
    "placement_checks.average_gradients(tower_grads, weights=counts)",
    "divide each loss by the count of all replicas, and by no other number: "
    "tf.distribute.get_replica_context().all_reduce('SUM', count); add up the gradients",
    "divide each loss by the count of all ranks, hvd.allreduce(count, op=hvd.Sum), and add up the "
    "gradients: op=hvd.Sum",
)
OWN_COUNTS = Mistake(
    "counts",
    "each {noun} divides its loss by its own count, such as its number of tokens, and one GPU by "
    "the count of the whole batch",
    _BY_COUNTS,
    "an example counts more in a {noun} with a small count than in the others",
    f"{_OF_RUN}; or both graphs, compared as terms, if the counts differ",
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
    "take the same rows of all inputs, in the same order: an example and its label are in the "
    "same row",
    "the model is trained on examples that are composed of different rows",
    _OF_RUN,
)
PAIRED = Mistake(
    "paired",
    "{text}: gradients and variables are paired wrongly",
    "keep each gradient with its variable; lists that are joined with zip must have the same "
    "entries in the same order",
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
    "let the variable decay once per step, after the gradients are combined, with the coefficient "
    "for one GPU",
    "the weights decay in another way than on one GPU",
    _OF_PROOF,
)
TERMS = Mistake(
    "terms",
    "the loss terms do not count equally; their factors, compared with one GPU: {factors}",
    "average all terms of the losses in the same way, and multiply none by the number of {noun}s",
    "the model is trained by another objective than on one GPU",
    _OF_GRAPH_OR_RUN,
)
MISSING_TERM = Mistake(
    "missing term",
    "{terms} of the loss of {tower} {depend} on this variable and on examples, but {others} of "
    "the loss of another {noun}",
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
    "compare how both programs compute it",
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
        "add one gradient of each tower: look for an index that leaves a tower out, a factor of "
        "zero, a list that each tower overwrites, or a tf.stop_gradient in one tower",
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
        "average its gradient like the gradient of {other}: look for an `if` that skips it, or "
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
    "the step differs from the step of one GPU for the whole batch",
    _OF_PROOF,
)
SECOND_UPDATE = Mistake(
    "second update",
    "{text}: {count} updates in a step change it",
    "update it once per step, for all {noun}s together",
    COEFFICIENT.consequence,
    _OF_PROOF,
)
UPDATES_IN_ANY_ORDER = Mistake(
    "updates in any order",
    "{text}",
    "update it once, after the loop over {noun}s: by the mean of the {noun}s' values",
    "its new value depends on the update that runs last",
    "the order of the ops of the step, in the graph",
    "which of the updates is meant",
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
    "no known mistake explains it; the comparison of both graphs ends here: {text}",
    "compare how both programs compute this value",
    "",
    "numbers that differ, and the op where the proof of the step ends",
    "which of both programs is right",
)
PART_LEFT_OUT = Mistake(
    "part left out",
    "{text}",
    "let every part of the batch count once, and combine the gradients: {average}",
    "some rows of every batch do not count",
    _OF_PROOF,
)
PARTS_PAIRED = Mistake(
    "parts paired",
    "{text}",
    "give each {noun} the same part of all inputs: an example and its label are in the same row",
    MOVED.consequence,
    _OF_PROOF,
    "which rows belong together",
)
DRAWN_APART = Mistake(
    "drawn apart",
    "{one} and {other} draw rows that are paired, but {why}",
    "draw rows that belong together at once: call get_next() once per {noun} for all of them, and "
    "join separate datasets before by tf.data.Dataset.zip((features, labels))",
    MOVED.consequence,
    "the pipelines in the graph, and the losses as terms",
    "which rows belong together",
)
PART_UNUSED = Mistake(
    "part unused",
    "{text}",
    "cut the batch into as many parts as there are {noun}s: tf.split(x, num_gpus)",
    PART_LEFT_OUT.consequence,
    _OF_PROOF,
)
SAME_ROWS = Mistake(
    "same rows",
    "{text}",
    "give each {noun} its own rows and random numbers",
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
    "use the same setting of the optimizer for one and for several GPUs",
    "training has another learning rate, or another optimizer, than on one GPU",
    "equal gradients, and both graphs",
    "which setting is meant, as many programs choose another rate for several GPUs",
)
COPIES_UPDATED_APART = Mistake(
    "copies updated apart",
    "{text}",
    "update every copy in the same way: by the sum of all {noun}s' gradients, with the same "
    "settings and the same weight decay",
    "the copies drift apart: the {noun}s train different models",
    _OF_PROOF,
    "which of the updates is meant",
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
OWN_NUMBER = Mistake(
    "own number",
    "each {noun} updates its copy of {variable} with its own value of {op}",
    "feed the same value in every {noun}",
    DRIFTING.consequence,
    DRIFTING.evidence,
    "which value is meant",
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
# Found in the graph of one program.
_OF_UPDATES = "the updates of the variable in one step, in the graph"
_OF_INPUTS = "the rows that each {noun} reads, in the graph"
_OF_LOSSES = "what each loss is computed from, in the graph"
_OF_SEEDS = "the random ops of the {noun}s and their seeds, in the graph"
_OF_TWO_TOWERS = "the losses of two {noun}s, compared op by op"
_OF_READS = "the variables that each {noun} reads, in the graph"
_OF_COLLECTIONS = "the collections of the program, built for one and for several GPUs"
_WITH_STEP = (
    "optimizer.apply_gradients(…, global_step=tf.compat.v1.train.get_or_create_global_step())"
)
_SCHEDULE = "a schedule that depends on it, such as the decay of the learning rate,"
REUSE = "with tf.compat.v1.variable_scope(tf.compat.v1.get_variable_scope(), reuse=i > 0):"
APPLIED_BY_EACH = Mistake(
    "applied by each tower",
    "one step updates '{variable}' {count} times, by {updates}",
    _by_kind(
        f"apply once, after the loop over towers: optimizer.apply_gradients({AVERAGE})",
        "{average}",
        "{average}",
    ),
    "{count} {how} updates instead of one{parts}",
    _OF_UPDATES,
)
APPLIED_AGAIN = Mistake(
    "applied again",
    APPLIED_BY_EACH.what,
    "apply its gradients once: if several calls of an optimizer list this variable, let one of "
    "them list it",
    "{count} {how} updates instead of one",
    _OF_UPDATES,
    "which of the updates is meant",
)
STATE_OF_EACH = Mistake(
    "state of each tower",
    APPLIED_BY_EACH.what,
    "update it once, after the loop over towers: by the mean of the towers' values, or by the "
    "value that they share",
    "it decays {count} times in a step, and depends on the order of the {noun}s",
    _OF_UPDATES,
)
STATE_OF_LAST = Mistake(
    "state of the last tower",
    APPLIED_BY_EACH.what,
    "create a variable for each {noun}, or update it once, after the loop over towers, by the "
    "mean of the towers' values",
    "it holds the value of one of {count} {noun}s, the last one that runs",
    _OF_UPDATES,
    "whether each tower shall keep a state of its own",
)
STATE_OF_OPTIMIZER = Mistake(
    "state of the optimizer",
    APPLIED_BY_EACH.what,
    "apply the optimizer once, to all of its variables, or create one optimizer for each group of "
    "variables",
    "factors that the optimizer computes from it, such as Adam's bias correction, advance by "
    "{count} steps in each step",
    _OF_UPDATES,
)
COUNTED_AGAIN = Mistake(
    "counted again",
    "the step counter '{counter}' is incremented {count} times",
    f"let one op increment it: {_WITH_STEP}",
    f"{_SCHEDULE} advances {{count}} times as fast",
    _OF_UPDATES,
)
COUNTED_BY_MORE = Mistake(
    "counted by more",
    "the step counter '{counter}' is incremented by {count}",
    "increment it by 1 in each step, for any number of {noun}s",
    COUNTED_AGAIN.consequence,
    _OF_UPDATES,
)
NOT_COUNTED = Mistake(
    "not counted",
    "the step counter '{counter}' is never incremented, though the step reads it",
    f"count the step where gradients are applied: {_WITH_STEP}",
    f"{_SCHEDULE} stays as in the first step",
    _OF_UPDATES,
)
_DISTRIBUTE = (
    "pass strategy.run the values that strategy.experimental_distribute_dataset(dataset) yields, "
    "so that each replica gets its part"
)
EQUAL_ROWS = Mistake(
    "equal rows",
    "{towers} compute with the same examples: {how}",
    _by_kind(
        "give tower i its own rows: x[i * rows : (i + 1) * rows] or tf.split(x, num_gpus)[i]",
        _DISTRIBUTE,
        "{shard}",
    ),
    "they compute the same gradients: the work of one of them is wasted",
    _OF_INPUTS,
)
EQUAL_BATCH = Mistake(
    "equal batch",
    EQUAL_ROWS.what,
    _by_kind(
        "call get_next() once per tower, in the loop, or take tf.split(batch, num_gpus)[i] in "
        "tower i",
        _DISTRIBUTE,
        "{shard}",
    ),
    EQUAL_ROWS.consequence,
    _OF_INPUTS,
)
FED_ALIKE = Mistake(
    "fed alike",
    "{towers} received the same rows, from {one} and {other}",
    _by_kind(
        "feed tower i its part of the batch: dict(zip(inputs, numpy.array_split(rows, num_gpus)))",
        "call dataset.shard(context.num_input_pipelines, context.input_pipeline_id) in the "
        "function that makes the dataset, or use experimental_distribute_dataset(dataset) without "
        "AutoShardPolicy.OFF",
        "{shard}",
    ),
    EQUAL_ROWS.consequence,
    "the values that were fed to the first step, or the first batches of the pipelines",
    "which rows belong to a tower",
)
SHARED_ROWS = Mistake(
    "shared rows",
    f"{EQUAL_ROWS.what}, although {{later}} has its own part of other inputs, such as {{own}}",
    EQUAL_ROWS.fix,
    "these rows count in both {noun}s, and one of them may combine them with rows of other "
    "examples, such as labels with other images",
    _OF_INPUTS,
    "whether all towers compare their rows with these",
)
OVERLAPPING_ROWS = Mistake(
    "overlapping rows",
    "{towers} compute with some of the same examples: {one}, and {other}",
    EQUAL_ROWS.fix,
    "common rows count in both {noun}s, and other rows may be in no {noun}",
    _OF_INPUTS,
    "which rows belong to a tower",
)
SAME_SHARD = Mistake(
    "same shard",
    "the {noun}s on {tower} and {later} take the same shard of the data: the first reads {one}, "
    "and the second reads {other}, which is built in the same way",
    _by_kind(
        "give each tower the loop's index: dataset.shard(num_gpus, i)",
        "{shard}",
        "give each rank its own shard: dataset.shard(hvd.size(), hvd.rank())",
    ),
    "the other shards are never read, and the {noun}s compute the same gradients",
    _OF_INPUTS,
)
SAME_DATA = Mistake(
    "same data",
    "the {noun}s on {tower} and {later} each read all of the data: the first reads {one}, and the "
    "second reads {other}, which is built in the same way",
    "build the pipeline once, before the loop, and call get_next() once per tower, or give each "
    "tower its part: dataset.shard(num_gpus, i)",
    "an epoch reads each example once per {noun}, and all {noun}s may get the same rows",
    _OF_INPUTS,
)
INPUT_ON_GPU = Mistake(
    "input on a GPU",
    "{op} ({type}) is an input op and requests {device}: input ops belong on the CPU",
    "build the pipeline before the loop over towers, under `with tf.device('/cpu:0'):`",
    "without a GPU kernel it fails or runs on the CPU; with a GPU kernel, each batch is copied to "
    "the GPU and back",
    "the devices that input ops request",
)
LOSS_OF_OTHER = Mistake(
    "loss of another tower",
    "the loss of the {noun} on {tower}, {loss}, contains results of the {noun} on {other}, such "
    "as {contained}",
    "add up this tower's results only: if a list collects them, create it in the loop over "
    "towers; if a collection does, build the tower under "
    "`with tf.name_scope('tower_%d' % i) as scope:`, and read "
    "tf.compat.v1.get_collection(key, scope)",
    "the other {noun}'s examples count in both losses, and so more than once",
    _OF_LOSSES,
)
PENALTY_OF_OTHER = Mistake(
    "penalty of another tower",
    LOSS_OF_OTHER.what,
    LOSS_OF_OTHER.fix,
    "the penalty counts once more with every {noun}: weights decay more, the more GPUs there are",
    _OF_LOSSES,
)
LOSS_ON_OTHER_GPU = Mistake(
    "loss on another GPU",
    "the {noun} on {tower} computes its loss, {loss}, with {contained}, but this op requests a "
    "GPU of the {noun} on {other}, which does not use it",
    "build all of tower i under `with tf.device('/gpu:%d' % i):`, and name no fixed GPU, such as "
    "'/gpu:0', inside the model",
    "the {noun} computes on both GPUs, one waits for the other, and values cross between them in "
    "every step",
    _OF_LOSSES,
)
LOSS_WAITS = Mistake(
    "loss that waits",
    "the loss of the {noun} on {tower}, {loss}, waits for {update}, which updates {variable} with "
    "results of the {noun} on {other}",
    "let each tower wait for its own updates only: build the tower under "
    "`with tf.name_scope('tower_%d' % i) as scope:`, and read "
    "tf.compat.v1.get_collection(tf.compat.v1.GraphKeys.UPDATE_OPS, scope)",
    "in every step, the {noun} waits until the other {noun} has computed this value",
    _OF_LOSSES,
    "which updates a tower waits for",
)
_NUMBER_OF_REPLICA = "tf.distribute.get_replica_context().replica_id_in_sync_group"
EQUAL_SEEDS = Mistake(
    "equal seeds",
    "{op} of the {noun} on {later} draws the same random numbers as {first} of the {noun} on "
    "{tower}: their seeds are equal",
    _by_kind(
        "add the tower's number: seed={seed} + i; or omit it, and call {set_seed} before the loop",
        "omit the seed, or use a stateless op, such as tf.random.stateless_uniform, with "
        f"seed=[seed, {_NUMBER_OF_REPLICA}]",
        "let the seed depend on the rank: {set_seed}(seed + hvd.rank())",
    ),
    "the noise is the same in these {noun}s, so their mean does not reduce it",
    _OF_SEEDS,
)
EQUAL_STATELESS_SEEDS = Mistake(
    "equal seeds of stateless ops",
    EQUAL_SEEDS.what,
    _by_kind(
        "add the tower's number: seed=[seed, i]; for layers of Keras, create a separate layer for "
        "each tower, each with its own seed",
        f"add the replica's number to the seed: {_NUMBER_OF_REPLICA}",
        "let the seed depend on the rank: seed=[seed, hvd.rank()]",
    ),
    EQUAL_SEEDS.consequence,
    _OF_SEEDS,
)
ONE_DRAW = Mistake(
    "one draw",
    "{towers} compute with the same random numbers: {op} draws them once, and {users} use them",
    "draw in the loop over towers, once for each; or draw for all rows and give each tower its "
    "part: tf.split(noise, num_gpus)[i]",
    EQUAL_SEEDS.consequence,
    _OF_SEEDS,
)
OTHER_LOSS = Mistake(
    "another loss",
    "{variable} is updated with the gradient of {loss} in the {noun} on {tower}, and of "
    "{expected} in the {noun} on {first}",
    "take the gradient of the same loss in every {noun}",
    "gradients of different losses are averaged, and their mean is the gradient of neither loss",
    _OF_TWO_TOWERS,
)
OTHER_OP = Mistake(
    "another op",
    "the {noun} on {tower} computes {op} ({found}) where the {noun} on {first} computes "
    "{original} ({expected})",
    "build all {noun}s by one function with the same arguments; a loss must not depend on ops "
    "that only one {noun} has",
    "gradients of different models are averaged, and their mean trains none of them",
    _OF_TWO_TOWERS,
)
NAMED_APART = Mistake(
    "variables named apart",
    "the {noun} on {tower} reads {copy}, but the {noun} on {other} reads {original}: they are "
    "{separate}",
    f"remove the tower's number from the name {{name}}, and build each tower under `{REUSE}`",
    "{effect}",
    _OF_READS,
)
MADE_APART = Mistake(
    "variables made apart",
    NAMED_APART.what,
    "in the model use tf.compat.v1.get_variable instead of tf.Variable, and variable_scope "
    f"instead of name_scope, and build each tower under `{REUSE}`",
    NAMED_APART.consequence,
    _OF_READS,
)
BUILT_APART = Mistake(
    "layers built apart",
    NAMED_APART.what,
    "call one layer object once per tower, or use get_variable and build each tower under "
    f"`{REUSE}`",
    NAMED_APART.consequence,
    _OF_READS,
    "which layers the towers share",
)
COPY_OF_OTHER_SUM = Mistake(
    "copy with another sum",
    "{copy}, the copy for the {noun} on {tower}, gets {update}; the other copies, {others}, all "
    "get the same sum of gradients",
    "apply the sum of all {noun}s' gradients to every copy",
    "the copies drift apart: the {noun}s train different models",
    _OF_UPDATES,
    "whether each tower shall have a copy",
)
COPY_LEFT_OUT = Mistake(
    "copy left out",
    "{copy} gets {update}; {other}, its copy for another {noun}, gets the sum of all gradients, "
    "as the copies of other variables do",
    COPY_OF_OTHER_SUM.fix,
    COPY_OF_OTHER_SUM.consequence,
    _OF_UPDATES,
)
OTHER_START = Mistake(
    "copy with another start",
    "{copy} starts with other random values than {first}, which it copies",
    "after the initializer, assign the first copy to the others: sess.run([copy.assign(first) for "
    f"first, copy in pairs]); or share one variable: build each tower under `{REUSE}`",
    "equal updates keep the difference: the {noun}s train different models",
    "the random ops and seeds of the initial values, in the graph",
    "whether copies or one variable are meant",
)
NOT_MIRRORED = Mistake(
    "not mirrored",
    "{variable} is one variable, which {towers} read, but each {noun} should have a copy "
    "(declared: variables-shared.layout=mirrored)",
    "create it once for each tower, in a variable scope of the tower, and apply the same sum to "
    "all copies",
    "its value is sent to the other GPUs in every step",
    _OF_READS,
    "which layout is meant",
)
NOT_CENTRAL = Mistake(
    "not central",
    "{copy} is a copy of {first} for the {noun} on {tower}, but all {noun}s should share one "
    "variable (declared: variables-shared.layout=central)",
    f"build each tower under `{REUSE}`",
    "every GPU holds another copy of the variable and of its slots",
    _OF_READS,
    "which layout is meant",
)
OPTIMIZER_OF_EACH = Mistake(
    "optimizer of each tower",
    "variable '{variable}' exists only when the program is built with more than one "
    "{noun}{readers}",
    "create the optimizer once, before the loop over towers, and call apply_gradients once, after "
    "the loop",
    "each optimizer adapts its steps only to the gradients of its own {noun}",
    _OF_COLLECTIONS,
)
ADDED_BY_ONE = Mistake(
    "variable of one tower",
    OPTIMIZER_OF_EACH.what,
    BUILT_APART.fix,
    "a checkpoint of the program for one GPU cannot be restored: it lacks this variable",
    _OF_COLLECTIONS,
    "whether the towers shall share the variable",
)
ADDED = Mistake(
    "variable of several GPUs",
    OPTIMIZER_OF_EACH.what,
    "create it for any number of GPUs",
    ADDED_BY_ONE.consequence,
    _OF_COLLECTIONS,
    "whether the program for one GPU needs it",
)
NOT_SAVED = Mistake(
    "not saved",
    "variable '{variable}' is trained but not in GLOBAL_VARIABLES: global_variables_initializer() "
    "does not initialize it, and a Saver does not save it",
    "create it without `collections`, or with both: "
    "collections=[tf.compat.v1.GraphKeys.GLOBAL_VARIABLES, "
    "tf.compat.v1.GraphKeys.TRAINABLE_VARIABLES]",
    "",
    "the collections of the program",
)
CATALOG: tuple[Mistake, ...] = tuple(
    value for value in dict(globals()).values() if isinstance(value, Mistake)
)
