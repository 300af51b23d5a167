"""Place small programs on two GPUs that need not exist, run them here, and compare their ops.

``python -m tools.gpu_truth`` takes some minutes. It runs the programs on two GPUs of this machine,
and splits a single GPU into two logical GPUs. A line for each program states whether its ops are
on their predicted devices. Then a line for each assumption in docs/machines.md states whether
it holds here. The exit status is 0 if all programs ran as predicted, 1 if one did not, and 2 if
there is no GPU.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

from placement_checks.core.devices import Device
from placement_checks.core.errors import InputError
from placement_checks.core.versions import versions
from placement_checks.tf.startup import hide_deprecations
from placement_checks.util.progress import live
from placement_checks.util.streams import stdout_for_report
from placement_checks.util.text import plural, printable
from placement_checks.verification.placing import prepare

if TYPE_CHECKING:
    from .comparison import ComparedProgram, GpuComparison


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.gpu_truth", description=__doc__)
    parser.add_argument(
        "--simulated",
        action="store_true",
        help="run on CPU devices, which tests this tool and answers nothing about GPUs",
    )
    options = parser.parse_args()
    try:
        with stdout_for_report(), live():
            prepare()  # imports TensorFlow
            hide_deprecations()
            from .comparison import compare_with_gpus

            comparison = compare_with_gpus(simulated=options.simulated)
    except InputError as error:
        parser.error(str(error))
    for line in lines(comparison):
        print(printable(line))
    return int(not comparison.is_as_predicted)


def lines(comparison: GpuComparison) -> Iterator[str]:
    """A line for each program, with its differences, and a line for each assumption."""
    version = versions()["tensorflow"]
    yield f"Predictions of TensorFlow {version} for 2 GPUs, compared with {comparison.devices}:"
    yield ""
    widest = max(len(program.name) for program in comparison.programs)
    for program in comparison.programs:
        yield f"{program.state:<9}  {program.name:<{widest}}  {_result(program)}".rstrip()
        for each in program.differences:
            where = "executed" if each.executed else "placed"
            yield (
                f"{'':9}  {each.op} ({each.type}): predicted {_short(each.predicted)}, {where} on "
                f"{_short(each.found)}"
            )
    yield ""
    yield "Assumptions of predictions:"
    yield ""
    for answer in comparison.answers:
        yield f"{answer.state:<12}  {answer.assumption}"
        yield f"{'':12}  {answer.reason}"
    yield ""
    ran = [program for program in comparison.programs if program.state != "skipped"]
    same = sum(program.state == "same" for program in ran)
    yield f"{same} of {plural(len(ran), 'program')} ran as predicted."


def _result(program: ComparedProgram) -> str:
    if program.state in ("failed", "skipped"):
        return program.reason
    counts = f"{program.ops:,} of {plural(program.predicted, 'op')}"
    if program.differences:
        others = len({each.op for each in program.differences})
        counts += f", {others:,} on other devices than predicted"
    return "; ".join(filter(None, (counts, program.reason)))


def _short(device: str) -> str:
    return Device.parse(device).short


if __name__ == "__main__":
    sys.exit(main())
