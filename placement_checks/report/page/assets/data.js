// A program as it was written into this page, unpacked.

// What an op is for. The same numbers as in phases.py.
const VARIABLE = 0, READ = 1, FORWARD = 2, BACKWARD = 3, AVERAGE = 4, UPDATE = 5, OUTSIDE = 6, ANY = 7;
const PHASES = 8;
const PHASE_WORDS = ["variable", "read", "forward", "backward", "bring together", "update", "outside a step", ""];
const KINDS = ["parameters", "inputs", "activations", "gradients", "all-reduce", "updates", "other"];
const TRAINED = 1;

/** `3*5,4` is 3 3 3 3 3 4. */
function unpackedNumbers(text) {
  const runs = text ? text.split(",").map(run => run.split("*")) : [];
  const found = new Int32Array(runs.reduce((sum, [, times]) => sum + (times === undefined ? 1 : +times), 0));
  let end = 0;
  for (const [value, times] of runs) {
    const start = end;
    end += times === undefined ? 1 : +times;
    found.fill(+value, start, end);
  }
  return found;
}

/** Like unpackedNumbers, for sizes, which may be larger than 32 bits. */
function unpackedSizes(text) {
  const found = [];
  for (const run of text ? text.split(",") : []) {
    const [value, times] = run.split("*");
    for (let left = times === undefined ? 1 : +times; left; left--) found.push(+value);
  }
  return found;
}

/** Each name is how many letters it shares with the one before, two digits of base 36, and the rest. */
function unpackedNames(text) {
  let before = "";
  return (text ? text.split("\n") : []).map(line => {
    before = before.slice(0, parseInt(line.slice(0, 2), 36)) + line.slice(2);
    return before;
  });
}

class Program {
  constructor(data) {
    Object.assign(this, data);
    const ops = data.ops;
    this.names = unpackedNames(ops.names);
    this.size = this.names.length;
    this.types = ops.types;
    this.lines = ops.lines;
    this.requests = ops.requests;
    for (const column of ["type", "line", "request", "row", "phase", "step", "tower"]) {
      this[column] = unpackedNumbers(ops[column]);
    }
    this.places = {};
    for (const view of data.views) this.places[view] = unpackedNumbers(ops[view]);
    this.variables = data.variables.map(([op, bytes, kind, form, readers, role]) => ({op, bytes, kind, form, readers, role}));
    this.variableOf = new Map(this.variables.map(each => [each.op, each]));
    this.unpackRows(data.rows);
    this.unpackCopies(data.copies);
  }

  /** Rows are numbered from the top down, each before those inside it: these are the numbers up to its end. */
  unpackRows({names, parents, roles}) {
    this.rowNames = names;
    this.parents = parents;
    this.roles = roles;
    this.kids = names.map(() => []);
    this.rowEnds = names.map((_, row) => row + 1);
    for (let row = names.length - 1; row > 0; row--) {
      this.kids[parents[row]].unshift(row);
      this.rowEnds[parents[row]] = Math.max(this.rowEnds[parents[row]], this.rowEnds[row]);
    }
    this.top = this.kids[0] || [];
  }

  unpackCopies({op, from, to, kind, bytes, a_row: aRow}) {
    const columns = [op, from, to, kind].map(unpackedNumbers);
    const sizes = unpackedSizes(bytes), perRow = unpackedSizes(aRow);
    this.copies = Array.from(columns[0], (each, at) => ({
      op: each, from: columns[1][at], to: columns[2][at], kind: columns[3][at],
      bytes: sizes[at] < 0 ? 0 : sizes[at], unknown: sizes[at] < 0 ? 1 : 0, aRow: perRow[at],
    }));
  }

  typeOf(op) { return this.types[this.type[op]]; }
  lineOf(op) { return this.lines[this.line[op]]; }
  requestOf(op) { return this.requests[this.request[op]]; }
  label(device) { return device < 0 ? "" : this.devices[device].label; }

  rowPath(row) {
    const path = [];
    for (let each = row; each > 0; each = this.parents[each]) path.unshift(this.rowNames[each]);
    return path.join(" / ");
  }

  /** The row right below the top that a row is in. */
  topOf(row) {
    while (this.parents[row] > 0) row = this.parents[row];
    return row;
  }
}
