// Unpacks the data of a program that page/write.py packed.

// The phases of ops, with the same numbers as in page/layout.py.
const VARIABLE = 0, READ = 1, FORWARD = 2, BACKWARD = 3, AVERAGE = 4, UPDATE = 5, OUTSIDE = 6, ANY = 7;
const PHASES = 8;
const PHASE_WORDS = ["variable", "read", "forward", "backward", "aggregate", "update", "outside a step", ""];
const KINDS = ["parameters", "inputs", "activations", "gradients", "all-reduce", "updates", "other"];
const TRAINED = 1;

/** Decodes run lengths: `3*5,4` is 3 3 3 3 3 4. */
function unpackNumbers(text) {
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

/** Like unpackNumbers, for sizes of more than 32 bits. */
function unpackSizes(text) {
  const found = [];
  for (const run of text ? text.split(",") : []) {
    const [value, times] = run.split("*");
    for (let left = times === undefined ? 1 : +times; left; left--) found.push(+value);
  }
  return found;
}

/** Each line has the length of the prefix shared with the last name (two digits of base 36), and the rest. */
function unpackNames(text) {
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
    this.names = unpackNames(ops.names);
    this.size = this.names.length;
    this.types = ops.types;
    this.lines = ops.lines;
    this.requests = ops.requests;
    for (const column of ["type", "line", "request", "row", "phase", "step", "tower"]) {
      this[column] = unpackNumbers(ops[column]);
    }
    this.places = {};
    for (const view of data.views) this.places[view] = unpackNumbers(ops[view]);
    this.variables = data.variables.map(([op, bytes, kind, form, readers, role]) => ({op, bytes, kind, form, readers, role}));
    this.variableOf = new Map(this.variables.map(each => [each.op, each]));
    this.unpackRows(data.rows);
    this.unpackCopies(data.copies);
  }

  /** Rows are numbered from the top down; a row contains the rows from its number to its `rowEnds`. */
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
    const columns = [op, from, to, kind].map(unpackNumbers);
    const sizes = unpackSizes(bytes), perRow = unpackSizes(aRow);
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

  /** The row of the top level that contains a row. */
  topOf(row) {
    while (this.parents[row] > 0) row = this.parents[row];
    return row;
  }
}
