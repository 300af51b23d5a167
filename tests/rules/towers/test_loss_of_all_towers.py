from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from support.steps import Program, Value, add_n, apply, mean, split, square, total
from support.towers import GPUS, MIRRORED, accumulating, gradient, host, joint, on, program
from support.verdicts import broken, kept, not_checked, verdicts

from placement_checks import Op, Placement
from placement_checks.core.missing import Missing
from placement_checks.core.strategies import Strategy
from placement_checks.rules.towers.loss_of_all_towers import LossOfAllTowers


def reported(*losses: str, gpus: Sequence[int] = (0, 1), **more: Any) -> Placement:
    return program(gpus=gpus, step={"losses": losses}, **more)


def summaries(
    kind: str, of: str, *ops: Op, gpus: Sequence[int] = (0, 1), lines: bool = True, **more: Any
) -> Placement:
    """A summary of one op in each tower; one line builds all of them, unless `lines` is empty."""
    return program(
        *ops,
        *(on(i, f"tower_{i}/shown", kind, "tag", f"tower_{i}/{of}") for i in range(len(gpus))),
        gpus=gpus,
        lines={f"tower_{i}/shown": "main.py:30 net.py:7" for i in range(len(gpus)) if lines},
        **more,
    )


def reported_without(number: int, count: int) -> Placement:
    """The program returns a list of losses that lacks one tower's."""
    losses = (f"tower_{i}/loss:0" for i in range(count) if i != number)
    return reported(*losses, gpus=range(count))


def merged(*towers: int) -> Placement:
    return program(
        *(on(i, f"tower_{i}/decay", "HistogramSummary", f"tower_{i}/w/MatMul") for i in (0, 1)),
        host("merged", "MergeSummary", *(f"tower_{i}/decay" for i in towers)),
        lines={f"tower_{i}/decay": "train.py:7" for i in (0, 1)},
    )


def partly_merged(summary: str) -> Placement:
    """Of two summaries, one is merged."""
    return program(
        host("all", "ScalarSummary", "tag", "loss"),
        host("last", "ScalarSummary", "tag", "tower_1/loss"),
        host("merge", "MergeSummary", summary),
    )


def histograms(shown: str) -> Placement:
    names = [f"tower_{i}/histogram" for i in (0, 1)]
    return program(
        *(on(i, names[i], "HistogramSummary", shown.format(i)) for i in (0, 1)),
        lines=dict.fromkeys(names, "train.py:7"),
    )


def trained(
    report: Callable[[Sequence[Value]], Value | Sequence[Value]],
    *,
    of_errors: Callable[[Value], Value] = mean,
    gradients: Callable[[Value], Value] = lambda added: added / 2,
    split_batch: bool = True,
    **more: Any,
) -> Placement:
    """A step of two towers that reports what a function makes of their losses.

    Args:
        report: makes the reported numbers of the losses.
        of_errors: makes the loss of the error of each row.
        gradients: makes the applied gradient of the sum of the towers' gradients.
        split_batch: whether the towers share one placeholder.
        more: fields of the placement.
    """
    made = Program()
    w = made.variable("w", (3,))
    whole = split(made.placeholder("x", (None, 3)), 2) if split_batch else ()
    losses = []
    for i in (0, 1):
        with made.tower(i):
            x = whole[i] if whole else made.placeholder("x", (None, 3), i)
            losses.append(of_errors(square(total(x * w.read(), 1))))
    both = add_n([made.gradient(loss, w) for loss in losses])
    reported = report(losses)
    made.train(w.descend(1.0, gradients(both)))
    numbers = [reported] if isinstance(reported, Value) else reported
    placement = made.placement()
    step = placement.step._replace(losses=tuple(each.op for each in numbers))
    return replace(placement, step=step, **more)


def over_constant(errors: Value) -> Value:
    """The sum over rows, divided by the global batch size."""
    return total(errors, 0) / 8.0


def root_over_constant(errors: Value) -> Value:
    """The root of a sum over rows, divided by a constant."""
    return apply("Sqrt", total(errors, 0)) / 8.0


SEEN = program(
    *(on(i, f"tower_{i}/seen", "ScalarSummary", "tag", f"tower_{i}/loss") for i in (0, 1)),
    lines={f"tower_{i}/seen": "net.py:7" for i in (0, 1)},
    step={"losses": ("tower_1/loss:0",)},
)


CASES = {
    **{f"{count} towers": kept(program(gpus=range(count))) for count in (2, 12)},
    "the loss of the last tower": broken(
        reported(
            "tower_1/loss:0",
            lines={
                "tower_1/loss": "main.py:30 net.py:7",
                "tower_1/w/MatMul": "net.py:5",
                "loss": "main.py:40",
            },
        )
    ),
    **{
        f"a list of {count} losses that lacks the {which}": broken(reported_without(number, count))
        for count in (3, 12)
        for which, number in (("first", 0), ("last", count - 1))
    },
    "a list of the losses of both towers": kept(reported("tower_0/loss:0", "tower_1/loss:0")),
    "a mean that lacks one tower": broken(
        program(host("loss", "AddN", "tower_0/loss", "tower_2/loss"), gpus=[0, 1, 2])
    ),
    "one loss of all towers": kept(joint()),
    "a summary of something else": kept(program(host("shown", "ScalarSummary", "tag", "rate"))),
    "a loss of no tower": kept(program(host("l2", "L2Loss", "w"), step={"losses": ("l2:0",)})),
    "a summary of the mean": kept(program(host("shown", "ScalarSummary", "tag", "loss"))),
    "a histogram of one tower": kept(
        program(host("shown", "HistogramSummary", "tag", "tower_1/w/MatMul"))
    ),
    "an accuracy of one tower": kept(
        program(
            on(1, "tower_1/accuracy", "InTopKV2", "tower_1/w/MatMul"),
            host("shown", "ScalarSummary", "tag", "tower_1/accuracy"),
        )
    ),
    "a histogram of one tower's loss": kept(
        program(host("shown", "HistogramSummary", "tag", "tower_1/loss"))
    ),
    "layers that one line builds in every tower": kept(
        program(lines={"tower_0/w/MatMul": "net.py:5", "tower_1/w/MatMul": "net.py:5"})
    ),
    "a line that summarizes one tower and something else": kept(
        program(
            on(0, "shown", "HistogramSummary", "tag", "tower_0/w/MatMul"),
            host("shown_1", "HistogramSummary", "tag", "rate"),
            lines={"shown": "net.py:7", "shown_1": "net.py:7"},
        )
    ),
    "a summary of the mean, and no loss is reported": kept(
        program(host("shown", "ScalarSummary", "tag", "loss"), step={"losses": ()})
    ),
    "summaries of a saved graph": kept(summaries("HistogramSummary", "w/MatMul", lines=False)),
    "a summary of one tower's loss": broken(
        program(
            host("shown", "ScalarSummary", "tag", "tower_1/loss"), lines={"shown": "main.py:50"}
        )
    ),
    # An example is the loss's moving average.
    "a summary of a value that is computed from one tower's loss": broken(
        program(
            host("smooth", "Mul", "tower_1/loss", "decay"),
            host("shown", "ScalarSummary", "tag", "smooth"),
        )
    ),
    "a summary of one tower's loss that is not merged": broken(
        program(
            host("shown", "WriteScalarSummary", "writer", "step", "tag", "tower_1/loss"),
            host("mean", "ScalarSummary", "tag", "loss"),
            host("merged", "MergeSummary", "mean"),
        )
    ),
    "summaries of losses without lines": broken(summaries("ScalarSummary", "loss", lines=False)),
    "summaries that one line builds in every tower": broken(
        summaries("HistogramSummary", "w/MatMul")
    ),
    **{
        f"a {kind} of examples in each tower": broken(summaries(kind, "x"))
        for kind in (
            *("ScalarSummary", "HistogramSummary", "ImageSummary", "AudioSummary"),
            *("AudioSummaryV2", "TensorSummaryV2", "WriteSummary"),
        )
    },
    "images in each of 12 towers": broken(summaries("ImageSummary", "x", gpus=range(12))),
    "a summary on the host of a value of one tower": broken(
        program(
            *(host(f"shown_{i}", "ScalarSummary", "tag", f"tower_{i}/x") for i in (0, 1)),
            *(on(i, f"tower_{i}/x", "IteratorGetNext", "iterator") for i in (0, 1)),
            lines={"shown_0": "net.py:7", "shown_1": "net.py:7"},
        )
    ),
    # The first tower alone writes the weights of every layer.
    "many summaries of one tower on one line": kept(
        program(
            *(on(0, f"shown_{k}", "HistogramSummary", "tag", "tower_0/w/MatMul") for k in (1, 2)),
            lines={"shown_1": "net.py:7", "shown_2": "net.py:7"},
        )
    ),
    "summaries on one line with different callers": kept(
        program(
            *(on(i, f"shown_{i}", "HistogramSummary", "tag", f"tower_{i}/x") for i in (0, 1)),
            lines={"shown_0": "main.py:3 net.py:7", "shown_1": "main.py:4 net.py:7"},
        )
    ),
    # TensorFlow writes only the first replica's summaries: the curve is one replica's loss.
    "images of replicas": kept(summaries("WriteImageSummary", "x", strategy=MIRRORED)),
    "images of towers": broken(summaries("WriteImageSummary", "x")),
    "losses of replicas": broken(summaries("WriteScalarSummary", "loss", strategy=MIRRORED)),
    "replicas return one loss": broken(reported("tower_1/loss:0", strategy=MIRRORED)),
    "a step that returns no loss": not_checked(program(step={"losses": (), "traced": True})),
    "a metric of the loss": not_checked(
        accumulating(
            *(
                on(i, f"tower_{i}/add", "AssignAddVariableOp", f"shown{i}", f"tower_{i}/loss")
                for i in (0, 1)
            ),
            step={"losses": (), "traced": True},
        )
    ),
    # A loop after the towers writes the averaged gradients.
    "summaries of all towers on one line of a loop over variables": kept(
        program(
            *(host(f"shown_{name}", "HistogramSummary", "tag", f"mean/{name}") for name in "ab"),
            variables=["a", "b"],
            lines={"shown_a": "main.py:60", "shown_b": "main.py:60"},
        )
    ),
    "images in each tower, and no loss is reported": broken(
        summaries("ImageSummary", "x", step={"losses": ()})
    ),
    "the losses of both towers are allowed": kept(SEEN, allow=("tower_1/*", "tower_0/*")),
    **{
        f"a loss and summaries of one tower, allowed: {allow}": broken(SEEN, allow=allow)
        for allow in ((), ("tower_0/seen",), ("*/seen",), ("seen", "loss", "Tower_*"))
    },
    "without a placer and a train op": broken(
        program(
            placer=None,
            assigned=Missing("no wheel"),
            step={"train_op": (), "losses": ("tower_1/loss:0",)},
        )
    ),
    "no loss and no summary": not_checked(program(step={"losses": ()})),
    "no loss, and a summary of something else": not_checked(
        program(host("shown", "ScalarSummary", "tag", "rate"), step={"losses": ()})
    ),
    "it is unknown which ops are losses": not_checked(
        program(
            host("shown", "ScalarSummary", "tag", "tower_1/loss"),
            step={"losses": (), "objectives": ()},
        )
    ),
    # As in the CIFAR-10 tutorial, every tower builds summaries; the last tower's are merged.
    "summaries in both towers, and the last is merged": kept(merged(1)),
    "summaries in both towers, which are merged": broken(merged(0, 1)),
    "a loss of all towers with a penalty on gradients": kept(
        program(host("loss", "AddN", "tower_0/loss", "tower_1/loss", gradient(0)))
    ),
    "losses of several types": broken(
        program(
            on(1, "shown", "Sum", "tower_1/w/MatMul"),
            gpus=(0, 1, 2),
            step={"losses": ("tower_0/loss:0", "shown:0")},
        )
    ),
    "the summary of all towers is merged": kept(partly_merged("all")),
    "the summary of one tower is merged": broken(partly_merged("last")),
    # Each summary shows one tower's loss, and one line builds it in every tower.
    **{
        f"summaries of the losses of {count} towers": broken(
            summaries("ScalarSummary", "loss", gpus=range(count))
        )
        for count in (2, 12)
    },
    "towers without inputs": not_checked(
        program(*(on(i, f"tower_{i}/w/MatMul", "ReadVariableOp", "w") for i in (0, 1)))
    ),
    "the mean of the losses": kept(trained(lambda losses: (losses[0] + losses[1]) / 2)),
    "the sum of the losses": kept(trained(add_n)),
    # total = (total + loss) / 2 in the loop.
    "a mean of two at a time": broken(trained(lambda losses: (losses[0] / 2 + losses[1]) / 2)),
    "the loss of the last tower instead of the sum": broken(
        trained(lambda losses: (losses[1] + losses[1]) / 2)
    ),
    "placeholders of unknown sizes, with unequal weights": not_checked(
        trained(lambda losses: losses[0] * 0.25 + losses[1] * 0.75, split_batch=False)
    ),
    "a list of the losses": kept(trained(lambda losses: losses)),
    "a list of the mean, and of the loss of one tower": kept(
        trained(lambda losses: [add_n(losses) / 2, losses[1]])
    ),
    "a list of another loss of all towers, and of the loss of one tower": broken(
        trained(lambda losses: [add_n([square(loss) for loss in losses]), losses[1]])
    ),
    **{
        f"replicas that {what}": expected(
            trained(
                lambda losses: add_n(losses) / 2,
                of_errors=of_errors,
                gradients=lambda added: added,
                strategy=Strategy("MirroredStrategy", GPUS, {}),
            )
        )
        for what, expected, of_errors in (
            ("divide by the global batch, and report the mean", broken, over_constant),
            ("report the mean of means", kept, mean),
            ("report the mean of losses that do not add up", kept, root_over_constant),
        )
    },
    "replicas that divide by their own batch, average gradients and report the mean": kept(
        trained(
            lambda losses: add_n(losses) / 2,
            of_errors=over_constant,
            strategy=Strategy("MirroredStrategy", GPUS, {}),
        )
    ),
    "histograms of a shared variable in both towers": kept(histograms("w")),
    "histograms of a layer in both towers": broken(histograms("tower_{}/w/MatMul")),
}

test_verdicts = verdicts(LossOfAllTowers, CASES)
