"""The parts of the batch that the inputs of a program are."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from fractions import Fraction
from functools import cached_property
from itertools import combinations, pairwise
from typing import TYPE_CHECKING, Any

from placement_checks.core.op_types import (
    CONST,
    CUTS,
    EXAMPLE_SOURCES,
    GATHERS,
    INDEXED_SLICE,
    ITERATOR_INITIALIZERS,
    ONE_SHOT_ITERATOR,
    OPTIONAL_ELEMENT,
    PARTITIONS,
    PLACEHOLDERS,
    SLICE,
    SPLITS,
    STAGE_OUTPUTS,
    STAGES,
    VARIABLES,
)
from placement_checks.core.placement import producer_of
from placement_checks.step.graph import cone
from placement_checks.step.kinds import AtomId, Form, Kind
from placement_checks.step.parts import WHOLE, Cut, Family, Part, finest
from placement_checks.step.terms import Assumption, Terms
from placement_checks.util.walks import sources_first

if TYPE_CHECKING:
    from placement_checks.step.graph import TensorReader

# Ops between an op that draws and the iterator or queue.
_PASS_HANDLE = frozenset({"Identity", "Enter", OPTIONAL_ELEMENT})

_UNPACKS = frozenset({"DecodeRaw", "DecodePaddedRaw", "ParseTensor"})
_TAKE_ROWS = SPLITS | {SLICE, INDEXED_SLICE, "Reshape"}

# Ops that may take a part of the rows.
_CUTS = CUTS.keys() | PARTITIONS | GATHERS

# Masks of slices that do not take the rows between two given numbers.
_OTHER_MASKS = "end_mask", "ellipsis_mask", "new_axis_mask", "shrink_axis_mask"

# An input of a program: what kind of input it is, and which of them.
LeafKey = tuple[Any, ...]
# Inputs that may be the same input of several towers: the family, the op type, and the outputs.
Group = tuple[Any, ...]


class Batch:
    """The inputs of one program, and the part of the batch that each of them is.

    Attributes:
        leaves: for each input op, the number of the input within a tower, and its part.
        groups: the inputs that the program does not list, as groups of the same kind.
        unused: the inputs of these groups that the step does not reach.
        unmatched: inputs that have no counterpart in the other program.
        sliced: the number of rows that the step reads of inputs with any number of rows.
    """

    def __init__(self, reader: TensorReader) -> None:
        self._reader = reader
        self.leaves: dict[str, tuple[LeafKey, Part]] = {}
        self.groups: defaultdict[Group, list[str]] = defaultdict(list)
        self.unused: defaultdict[Group, list[str]] = defaultdict(list)
        self.unmatched: set[str] = set()
        self.sliced: dict[str, int] = {}
        self._parts_of_objectives: dict[str, Part | None] = {}
        self._sources: dict[str, str] = {}
        self._find_inputs()

    @property
    def listed(self) -> int:
        """The number of inputs that the program lists for each tower; 0 if it lists none."""
        return max(map(len, self._listed_inputs), default=0)

    @cached_property
    def _listed_inputs(self) -> Sequence[Sequence[str]]:
        """The inputs that the program lists for each tower.

        A scalar, or an input of unknown shape, has no rows if no loss depends on it, such as a
        learning rate.
        """
        reader = self._reader
        inputs = reader.placement.step.inputs
        scalars = {
            name for names in inputs for name in names if not reader.shape(producer_of(name))
        }
        if not scalars:
            return inputs
        objectives = [producer_of(each) for call in reader.calls for each in call.objectives]
        behind = cone(objectives, reader.edges)
        return [
            [name for name in names if name not in scalars or producer_of(name) in behind]
            for names in inputs
        ]

    def _find_inputs(self) -> None:
        reader = self._reader
        listed = self._listed_inputs
        for tower, names in enumerate(listed):
            part = (Cut("feed", tower, len(listed)),) if len(listed) > 1 else WHOLE
            for number, name in enumerate(names):
                self.leaves.setdefault(producer_of(name), (("input", number), part))
        for name in reader.graph.sources_of_rows:
            op = reader.ops[name]
            if name in self.leaves:
                continue
            groups = self.groups if name in reader.reached else self.unused
            shapes = tuple(output.shape and output.shape[1:] for output in reader.outputs(name))
            if op.type not in PLACEHOLDERS:
                self._sources[name] = self._source(name)
                groups["draw", op.type, shapes].append(name)
            elif self._has_rows(name):
                groups["feed", reader.dtype(name), shapes].append(name)

    def _source(self, name: str) -> str:
        """The iterator, queue or placeholder of a handle that an op draws from."""
        reader = self._reader
        seen: set[str] = set()
        while name not in seen and name in reader.ops:
            seen.add(name)
            data = reader.data(name)
            is_first = len(seen) == 1
            if not data or not (is_first or reader.ops[name].type in _PASS_HANDLE):
                break
            name = producer_of(data[0])
        return name

    def assign(self, single: Batch, listed: int) -> None:
        """Divide the inputs that the program does not list among the parts.

        Args:
            single: the inputs of the program for one GPU; each tower has as many of a kind.
            listed: the number of inputs that the other program lists for each tower.
        """
        reader = self._reader
        feeds = sorted(
            (name for group, names in self.groups.items() if group[0] == "feed" for name in names),
            key=reader.number.__getitem__,
        )
        if feeds and listed == len(feeds) and not self.listed:
            self.leaves |= {name: (("input", i), WHOLE) for i, name in enumerate(feeds)}
            for group in [each for each in self.groups if each[0] == "feed"]:
                del self.groups[group]
        order = list(single.groups)
        for group, names in self.groups.items():
            everything, of_single = self._all_of(group), single._all_of(group)
            inputs = [of_single.index(name) for name in single.groups.get(group, ())]
            if set(everything) == set(of_single):
                names = of_single  # inputs with the same names are the same
            # The others may be inputs of a tower, if the step does not use its gradients, or of an
            # evaluation that both programs build once.
            are_of_replicas = inputs and len(names) == self._replicas * len(inputs)
            unused, of_one = len(everything) - len(names), len(of_single) - len(inputs)
            is_of_evaluation = inputs and unused == of_one and len(names) % len(inputs) == 0
            is_unused = unused > of_one
            is_multiple = inputs and len(everything) % len(of_single) == 0 and not is_of_evaluation
            if not are_of_replicas and (is_unused or is_multiple):
                names = names if len(names) == len(everything) else everything
                inputs = list(range(len(of_single)))
            count, rest = divmod(len(names), len(inputs)) if inputs else (0, 1)
            if rest:
                self.unmatched |= set(names)
                continue
            family: Family = "feed" if group[0] == "feed" else "draw"
            for tower, number, name in self._by_tower(names, len(inputs), count):
                part = (Cut(family, tower, count),) if count > 1 else WHOLE
                self.leaves[name] = (family, order.index(group), inputs[number]), part
        self.report_mistakes()

    def assign_to_towers(self, towers: Sequence[Collection[str]]) -> None:
        """Divide the inputs that the program does not list, if there is no other program.

        An input that several towers read, or no tower, belongs to the whole batch. Placeholders of
        unknown rank are inputs if one tower alone reads them.

        Args:
            towers: for each tower, the ops that its losses are computed from.
        """
        reader = self._reader
        inputs = {name: group for group in self.groups for name in self._all_of(group)}

        def reading(name: str) -> list[int]:
            return [tower for tower, ops in enumerate(towers) if name in ops]

        for name, op in reader.ops.items():
            is_fed = op.type in PLACEHOLDERS and reader.shape(name) is None
            if is_fed and name not in self.leaves and len(reading(name)) == 1:
                inputs.setdefault(name, ("feed", op.type))
        numbers = {group: number for number, group in enumerate(dict.fromkeys(inputs.values()))}
        counts: Counter[tuple[Group, Part]] = Counter()
        for name in sorted(inputs, key=reader.number.__getitem__):
            group, read = inputs[name], reading(name)
            family: Family = "feed" if group[0] == "feed" else "draw"
            is_own = len(read) == 1 < len(towers)
            part = (Cut(family, read[0], len(towers)),) if is_own else WHOLE
            self.leaves[name] = (family, numbers[group], counts[group, part]), part
            counts[group, part] += 1

    def separate(self) -> None:
        """Take each input with rows for all rows of its own, in a program that is read alone."""
        reader = self._reader
        listed = {producer_of(name) for names in self._listed_inputs for name in names}
        self.leaves = {
            name: ((name,), WHOLE)
            for name, op in reader.ops.items()
            if name in listed
            or op.type in EXAMPLE_SOURCES - PLACEHOLDERS
            or (op.type in PLACEHOLDERS and self._has_rows(name))
            or (op.type in _UNPACKS and self._is_fed_scalar(name))
        }

    @cached_property
    def with_rows(self) -> Collection[str]:
        """The ops that depend on inputs with rows."""
        return cone(self.leaves, self._reader.graph.waiting)

    def _is_fed_scalar(self, name: str) -> bool:
        """Whether an op reads a scalar that is fed, such as rows that are packed in a string."""
        reader = self._reader
        source = producer_of(next(iter(reader.data(name)), ""))
        op = reader.ops.get(source)
        return op is not None and op.type in PLACEHOLDERS and reader.shape(source) == ()

    def _has_rows(self, name: str) -> bool:
        """Whether a placeholder is fed rows, as far as its shape and its readers show.

        A vector of fixed size is assumed to hold class weights or the like, unless it is split or
        has an element for each row of a batch. A tensor of unknown shape is assumed to be a
        scalar, such as a dropout rate, unless rows are cut from it or it is reshaped.
        """
        reader = self._reader
        outputs = reader.outputs(name)
        if not outputs or outputs[0].dtype in ("resource", "variant"):  # a handle, such as a table
            return not outputs
        shape, readers = outputs[0].shape, reader.graph.read_by[name]
        if shape is None:
            return any(map(self._takes_rows, readers))
        if len(shape) != 1 or shape[0] in (None, *self._fixed_rows):
            return len(shape) > 0
        return any(reader.ops[each].type in SPLITS for each in readers)

    def _takes_rows(self, name: str) -> bool:
        """Whether an op cuts rows, or reshapes. A single element may be a size or a setting."""
        kind, details = self._reader.ops[name].type, self._reader.placement.details
        is_element = int(details.attributes(name).get("shrink_axis_mask", 0)) & 1
        return kind in _TAKE_ROWS and not is_element

    @cached_property
    def _fixed_rows(self) -> Collection[int]:
        """Numbers of rows in a batch, if rows are fed: the first dimensions of placeholders.

        Vectors count only if no placeholder has more dimensions. A single vector is not enough,
        and neither are vectors of several lengths.
        """
        reader = self._reader
        kinds = {op.type for op in reader.ops.values()} & EXAMPLE_SOURCES
        if kinds - PLACEHOLDERS:
            return ()
        fed = [name for name, op in reader.ops.items() if op.type in PLACEHOLDERS]
        shapes = [shape for shape in map(reader.shape, fed) if shape]
        tables = {shape[0] for shape in shapes if len(shape) > 1}
        lengths = {shape[0] for shape in shapes}
        found = tables or (lengths if len(shapes) > len(lengths) == 1 else ())
        return [length for length in found if isinstance(length, int)]

    @property
    def _replicas(self) -> int:
        """The number of replicas of a strategy; 0 without a strategy."""
        strategy = self._reader.placement.strategy
        return max(strategy.in_sync, len(strategy.replicas)) if strategy else 0

    def _by_tower(
        self, names: Sequence[str], ones: int, count: int
    ) -> Iterable[tuple[int, int, str]]:
        """The tower of each input of a kind, and the input's number within the tower.

        Towers have iterators or queues of their own, or are built one after the other.
        """
        by_source: defaultdict[str, list[str]] = defaultdict(list)
        for name in names:
            by_source[self._sources.get(name, name)].append(name)
        if len(by_source) == count and all(len(each) == ones for each in by_source.values()):
            towers = list(by_source.values())
        else:
            towers = [list(names[i : i + ones]) for i in range(0, len(names), ones)]
        for tower, own in enumerate(towers):
            for number, name in enumerate(own):
                yield tower, number, name

    def fix_sizes(self) -> Mapping[Part, int] | None:
        """The number of rows of each part, if it is fixed for all inputs; else None."""
        reader, terms = self._reader, self._reader.terms
        sizes: dict[Part, int] = {}
        for name, (_, part) in self.leaves.items():
            shape = reader.shape(name)
            if name not in reader.reached or not shape:
                continue
            if reader.dtype(name) in ("resource", "variant"):
                continue
            rows = shape[0]
            if not isinstance(rows, int) and (rows := self._rows_sliced(name)):
                self.sliced[name] = rows
            if not isinstance(rows, int) or sizes.setdefault(part, rows) != rows:
                return None
        own = {part[0]: rows for part, rows in sizes.items() if len(part) == 1}
        is_complete = own and len(own) == next(iter(own)).parts
        if is_complete and sizes.get(WHOLE, sum(own.values())) != sum(own.values()):
            return None  # an input that has other rows, such as the batch for a staging area
        for part, rows in sizes.items():
            terms.sizes[reader.program, part] = rows
        if self.sliced:
            reader.assume(Assumption.EQUAL_ROWS)
        whole = terms.size(reader.program, WHOLE)
        return {**sizes, WHOLE: whole} if sizes and whole else None

    def _rows_sliced(self, name: str) -> int | None:
        """The number of rows that the step reads of an input with any number of rows.

        It is known if all ops that read the input take slices with constant bounds, which follow
        each other from the first row. Fewer rows would leave towers with fewer rows than others.
        """
        reader = self._reader
        slices = {self._sliced_rows(each) for each in reader.graph.read_by[name] & reader.reached}
        bounds = sorted(each for each in slices if each is not None)
        if len(bounds) < len(slices) or [0, *(end for _, end in bounds[:-1])] != [
            begin for begin, _ in bounds
        ]:
            return None
        return bounds[-1][1]

    def _sliced_rows(self, name: str) -> tuple[int, int] | None:
        """The first row of a slice with constant bounds, and the row after its last row."""
        reader = self._reader
        kind, attributes = reader.ops[name].type, reader.graph.attributes(name)
        if kind not in (SLICE, INDEXED_SLICE):
            return None
        values = [reader.graph.value(producer_of(each)) for each in reader.data(name)[1:]]
        first = [int(each[2]) if each and len(each) > 2 else None for each in values]
        begin, end = first[:2]
        is_open = any(int(attributes.get(mask, 0)) & 1 for mask in _OTHER_MASKS)
        if begin is None or end is None or is_open or first[2:] not in ([], [1]):
            return None
        if int(attributes.get("begin_mask", 0)) & 1:
            begin = 0
        end = end if kind == INDEXED_SLICE or end < 0 else begin + end
        return (begin, end) if 0 <= begin < end else None

    def _all_of(self, group: Group) -> list[str]:
        """The inputs of a group, used or not, in the order of building."""
        names = [*self.groups.get(group, ()), *self.unused.get(group, ())]
        return sorted(names, key=self._reader.number.__getitem__)

    # --- mistakes in inputs ---

    def compare_slices(self, other: Batch, there: str) -> None:
        """Report inputs with any number of rows if both programs read other numbers of rows.

        Args:
            other: the inputs of the other program.
            there: the place of the other program.
        """
        size = self._reader.terms.size
        if size(self._reader.program, WHOLE) == size(other._reader.program, WHOLE):
            return
        for name in {**self.sliced, **other.sliced}:
            ours, theirs = (each.sliced.get(name) for each in (self, other))
            if ours != theirs:
                one, two = (f"the first {n} rows" if n else "other rows" for n in (ours, theirs))
                text = f"the step reads {one} of {name}, but {two} {there}"
                self._reader.report(text, name, is_certain=False)

    def report_mistakes(self) -> None:
        """Report towers that draw the same rows, and losses that pair rows of two draws."""
        for group, names in self.groups.items():
            if group[0] == "draw":
                self._compare_pipelines(names)
        for objective in self._reader.graph.towers:
            if (draws := self.draws_apart(objective)) is not None:
                self._reader.report(f"{objective} pairs rows of two draws", draws[1])

    def _compare_pipelines(self, names: Sequence[str]) -> None:
        """Towers with pipelines of their own must read different rows, by a shard for example."""
        parts = {self.leaves[name][1] for name in names if name in self.leaves}
        reader = self._reader
        sources = sorted(
            source
            for source in {self._sources[name] for name in names}
            if reader.ops[source].type not in PLACEHOLDERS
        )
        if len(parts) < 2 or len(sources) < 2:
            return
        alike: defaultdict[int, list[str]] = defaultdict(list)
        memo: dict[str, int] = {}
        for source in sources:
            alike[self._digest(source, memo)].append(source)
        for same in alike.values():
            if len(same) > 1:
                # A one-shot iterator does not show which dataset it reads.
                is_certain = reader.ops[same[1]].type != ONE_SHOT_ITERATOR or not any(
                    map(self._shuffles_without_seed, reader.ops)
                )
                text = f"{same[1]} reads the same rows as {same[0]}"
                reader.report(text, same[1], is_certain=is_certain)

    def data_of(self, source: str) -> int:
        """A digest of what an iterator or queue reads, in any order."""
        return self._digest(source, self._data, in_order=False)

    @cached_property
    def _data(self) -> dict[str, int]:
        return {}

    def _digest(self, name: str, memo: dict[str, int], *, in_order: bool = True) -> int:
        """A digest of a pipeline: pipelines with equal digests yield the same rows."""
        if name in self._competing:
            return hash(name)  # other elements
        if in_order and self._shuffles_without_seed(name):
            return hash(name)  # in an order of its own
        if name not in memo:
            memo[name] = 0  # in loops
            reader = self._reader
            op = reader.ops[name]
            written = self._writers.get(name, ())
            inner = [*reader.edges[name], *map(producer_of, written)]
            outputs = [each.removesuffix(":0") for each in (*reader.data(name), *written)]
            attributes = sorted(
                (key, str(value))
                for key, value in reader.placement.details.attributes(name).items()
                if key not in ("shared_name", "container")
            )
            details = reader.placement.details
            value = details.value(name) or details.digest(name)
            is_unknown = op.type == CONST and not value
            if is_unknown or op.type in PLACEHOLDERS or op.type in VARIABLES:
                value = name
            digests = tuple(self._digest(each, memo, in_order=in_order) for each in inner)
            numbers = tuple(each.partition(":")[2] for each in outputs)
            memo[name] = hash((op.type, tuple(attributes), str(value), digests, numbers))
        return memo[name]

    def _shuffles_without_seed(self, name: str) -> bool:
        """Whether an op shuffles rows, and its seeds are 0 or not known."""
        reader = self._reader
        kind, details = reader.ops[name].type, reader.placement.details
        if kind.startswith("RandomShuffle"):  # also RandomShuffleQueue
            attributes = details.attributes(name)
            return not any(attributes.get(key) for key in ("seed", "seed2"))
        if not kind.startswith("Shuffle") or "Dataset" not in kind:
            return False
        seeds = [details.value(producer_of(each)) for each in reader.data(name)[2:4]]
        return not any(seed and any(seed[2:]) for seed in seeds)

    @cached_property
    def _writers(self) -> Mapping[str, Sequence[str]]:
        """For each iterator, queue or read of a staging area, the tensors that are put into it."""
        writers: defaultdict[str, list[str]] = defaultdict(list)
        reader = self._reader
        staged: defaultdict[Hashable, list[str]] = defaultdict(list)
        for name, op in reader.ops.items():
            data = reader.data(name)
            if op.type in ITERATOR_INITIALIZERS and len(data) > 1:
                writers[producer_of(data[1])].append(data[0])
            elif op.type.startswith("QueueEnqueue") and data:
                writers[producer_of(data[0])] += data[1:]
            elif op.type in STAGES:
                staged[self._staging_area(name)] += data
        for name in self._sources:
            if reader.ops[name].type in STAGE_OUTPUTS:
                writers[name] += staged[self._staging_area(name)]
        return writers

    def _staging_area(self, name: str) -> Hashable:
        """The name of the staging area that an op uses; ops without such a name share none."""
        attributes = self._reader.placement.details.attributes(name)
        shared = str(attributes.get("shared_name") or "")
        return (shared, str(attributes.get("container") or "")) if shared else name

    @cached_property
    def _competing(self) -> Collection[str]:
        """Queues, and ops that draw, each of which takes other elements of one source."""
        reader = self._reader
        enqueues: defaultdict[str, list[str]] = defaultdict(list)
        for name, op in reader.ops.items():
            if op.type.startswith("QueueEnqueue"):
                values = map(producer_of, reader.data(name)[1:])
                for draw in cone(values, reader.edges) & self._sources.keys():
                    enqueues[draw].append(name)
        takers: defaultdict[str, set[str]] = defaultdict(set)
        for name, source in self._sources.items():
            into = {producer_of(reader.data(each)[0]) for each in enqueues[name]}
            if not into or (len(into) > 1 and self._are_run_together(enqueues[name])):
                into = {name}
            # A reader takes the names of files from a queue.
            for each in {source, *map(producer_of, reader.data(name))}:
                takers[each] |= into
        return {name for names in takers.values() if len(names) > 1 for name in names}

    def _are_run_together(self, ops: Iterable[str]) -> bool:
        """Whether an op waits for several of these ops, so that one run executes them."""
        after = [cone([op], self._reader.graph.waiting) for op in ops]
        return any(one & other for one, other in combinations(after, 2))

    def draws_apart(self, objective: str) -> tuple[str, str] | None:
        """Two draws of which a loss takes other components, such as features and labels.

        They are of one pipeline, so their rows do not belong together.
        """
        reader = self._reader
        ops = reader.graph.towers[objective]
        used: defaultdict[str, set[str]] = defaultdict(set)
        for name in ops:
            for source in reader.data(name):
                used[producer_of(source)].add(source.partition(":")[2])
        for group, names in self.groups.items():
            drawn = [name for name in names if name in ops] if group[0] == "draw" else []
            for one, other in pairwise(drawn):
                is_apart = used[one] and used[other] and not used[one] & used[other]
                if self._sources[one] == self._sources[other] and is_apart:
                    return one, other
        return None

    def draws_in_any_order(self, objective: str) -> tuple[str, str] | None:
        """Draws of two pipelines whose rows a loss pairs, if several towers draw from both.

        Towers that do not wait for each other may get the features of one element and the labels
        of another one.
        """
        reader, terms = self._reader, self._reader.terms
        drawn = self._unordered.keys() & reader.graph.towers[objective]
        if len({self._sources[name] for name in drawn}) < 2:
            return None
        found: dict[AtomId, Collection[str]] = {}
        for each in sources_first(
            terms.atoms_in(reader.value(objective)), terms.atoms_of_operands
        ):
            atom = terms[each]
            names = {name for below in terms.atoms_of_operands(each) for name in found[below]}
            if atom.op == "Leaf" and atom.origin and atom.origin.op in drawn:
                names.add(atom.origin.op)
            found[each] = names
            first = {self._sources[name]: name for name in sorted(names)}
            if atom.status.kind is Kind.ROWS and len(first) > 1:
                one, other = sorted(first.values(), key=reader.number.__getitem__)[:2]
                return one, other
        return None

    @cached_property
    def _unordered(self) -> Mapping[str, str]:
        """The pipelines of draws, if two ops draw from them that do not wait for each other."""
        reader, found = self._reader, dict[str, str]()
        by_source: defaultdict[str, list[str]] = defaultdict(list)
        for name, source in self._sources.items():
            if name in reader.reached:
                by_source[source].append(name)
        for source, names in by_source.items():
            before = {name: cone([name], reader.edges) for name in names}
            pairs = combinations(names, 2)
            if any(one not in before[other] and other not in before[one] for one, other in pairs):
                found |= dict.fromkeys(names, source)
        return found

    # --- towers ---

    def part_of(self, objectives: Collection[str]) -> Part | None:
        """The part of the batch that objectives are computed from; None if it is not one part."""
        found = {self._part_of(objective) for objective in objectives} - {None}
        return found.pop() if len(found) == 1 else None

    def _part_of(self, objective: str) -> Part | None:
        memo = self._parts_of_objectives
        if objective not in memo:
            memo[objective] = None  # while slices are evaluated
            parts, is_complete = self._parts_read(objective)
            if not is_complete:
                del memo[objective]
                return finest(parts)
            memo[objective] = finest(parts)
        return memo[objective]

    def _parts_read(self, objective: str) -> tuple[Collection[Part], bool]:
        """The parts of the inputs and slices that an objective reads.

        They are incomplete while a tensor is evaluated that one of the slices is computed from.
        """
        reader = self._reader
        ops = reader.graph.towers.get(objective) or reader.graph.losses[objective]
        parts: set[Part] = set()
        is_complete = True
        for name in sorted(ops, key=reader.number.__getitem__):
            if name in self.leaves and reader.shape(name) != ():
                parts.add(self.leaves[name][1])
            elif (
                reader.ops[name].type in _CUTS
                and name not in reader.graph.behind_random
                and not reader.graph.is_in_loop(name)
            ):
                for source in self._readers_of(name):
                    if reader.graph.read_by[source].isdisjoint(ops):
                        continue
                    if reader.is_being_evaluated(source):
                        is_complete = False
                    else:
                        parts |= reader.terms.parts(reader.value(source))
        return parts, is_complete

    def _readers_of(self, name: str) -> Iterable[str]:
        return [f"{name}:{i}" if i else name for i in range(len(self._reader.outputs(name)))]

    def first_row(self, part: Part) -> Form:
        """The number of the first row of a part within the whole batch."""
        terms: Terms = self._reader.terms
        if not part:
            return terms.number(0.0)
        around, cut = part[:-1], part[-1]
        first = self.first_row(around)
        if cut.family in ("feed", "draw"):
            before = [
                terms.rows((*around, Cut(cut.family, i, cut.parts))) for i in range(cut.number)
            ]
            return terms.add((first, 1.0), *((each, 1.0) for each in before))
        if cut.family == "rows":
            return terms.add((first, 1.0), (terms.number(cut.rows[0]), 1.0))
        begin = cut.begin if cut.family == "range" else Fraction(cut.number, cut.parts)
        return terms.add((first, 1.0), (terms.rows(around), float(begin)))
