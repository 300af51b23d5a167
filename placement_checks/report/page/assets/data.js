// Reads the data of a program that page/data.py collects.

// The phases of ops, with the same numbers as in page/layout.py.
const VARIABLE = 0, READ = 1, FORWARD = 2, BACKWARD = 3, AVERAGE = 4, UPDATE = 5, OUTSIDE = 6, ANY = 7;
const PHASES = 8;
const PHASE_WORDS = ["variable", "read", "forward", "backward", "aggregate", "update", "outside a step", ""];
const KINDS = ["parameters", "inputs", "activations", "gradients", "all-reduce", "updates", "other"];
const TRAINED = 1;

/** Reads JSON that page/write.py compressed by gzip. */
async function decompress(text) {
  const bytes = Uint8Array.from(atob(text), character => character.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return JSON.parse(await new Response(stream).text());
}

class Program {
  constructor(data) {
    Object.assign(this, data);
    const ops = data.ops;
    this.names = ops.names;
    this.size = this.names.length;
    this.types = ops.types;
    this.lines = ops.lines;
    this.requests = ops.requests;
    for (const column of ["type", "line", "request", "row", "phase", "step", "tower"]) {
      this[column] = Int32Array.from(ops[column]);
    }
    this.places = {};
    for (const view of data.views) this.places[view] = Int32Array.from(ops[view]);
    this.variables = data.variables.map(([op, bytes, kind, form, readers, role]) => ({op, bytes, kind, form, readers, role}));
    this.variableOf = new Map(this.variables.map(each => [each.op, each]));
    this.readRows(data.rows);
    this.readCopies(data.copies);
  }

  /** Rows are numbered from the top down; a row contains the rows from its number to its `rowEnds`. */
  readRows({names, parents, roles}) {
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

  readCopies({op, from, to, kind, bytes, a_row: aRow}) {
    this.copies = op.map((each, at) => ({
      op: each, from: from[at], to: to[at], kind: kind[at],
      bytes: bytes[at] || 0, unknown: bytes[at] === null ? 1 : 0, aRow: aRow[at],
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
