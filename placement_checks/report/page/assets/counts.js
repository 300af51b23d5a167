// Counts ops by row, device and phase, and collects variables by row and device.

const NONE = Object.freeze({inStep: 0, out: 0, mix: 0});

class Counts {
  /** @param view the evidence for devices: assigned, requested, executed or before */
  constructor(program, view) {
    this.program = program;
    this.place = program.places[view];
    this.devices = program.devices.length;
    this.cells = new Map();
    this.totals = program.devices.map(() => ({inStep: 0, out: 0}));
    const {row, phase, step, type} = program;
    for (let op = 0; op < program.size; op++) {
      const device = this.place[op];
      if (device < 0) continue;
      const cell = this.cell(this.key(row[op], device, phase[op]));
      if (step[op]) {
        cell.inStep++;
        cell.mix = (cell.mix + hashType(type[op])) | 0;
      } else cell.out++;
      if (phase[op] === VARIABLE || phase[op] === OUTSIDE) continue;
      this.totals[device][step[op] ? "inStep" : "out"]++;
    }
    this.addToParents();
    this.addVariables();
  }

  key(row, device, phase) { return (row * this.devices + device) * PHASES + phase; }

  cell(key) {
    let found = this.cells.get(key);
    if (!found) this.cells.set(key, found = {inStep: 0, out: 0, mix: 0});
    return found;
  }

  /** Adds each row to its parent, from the last row to the first, since inner rows have higher numbers. */
  addToParents() {
    const {parents} = this.program;
    const inner = this.devices * PHASES;
    const byRow = parents.map(() => []);
    for (const key of this.cells.keys()) byRow[Math.floor(key / inner)].push(key);
    for (let row = parents.length - 1; row > 0; row--) {
      for (const key of byRow[row]) {
        const above = parents[row] * inner + (key % inner);
        if (!this.cells.has(above)) byRow[parents[row]].push(above);
        const from = this.cells.get(key), to = this.cell(above);
        to.inStep += from.inStep;
        to.out += from.out;
        to.mix = (to.mix + from.mix) | 0;
      }
    }
  }

  addVariables() {
    const {parents, row} = this.program;
    this.variablesAt = new Map();
    for (const variable of this.program.variables) {
      const device = this.place[variable.op];
      if (device < 0) continue;
      for (let each = row[variable.op]; each >= 0; each = parents[each]) {
        const key = each * this.devices + device;
        if (!this.variablesAt.has(key)) this.variablesAt.set(key, []);
        this.variablesAt.get(key).push(variable);
      }
    }
  }

  at(row, device, phase) { return this.cells.get(this.key(row, device, phase)) || NONE; }

  sum(row, device, phases) {
    let inStep = 0, out = 0;
    for (const phase of phases) {
      const cell = this.at(row, device, phase);
      inStep += cell.inStep;
      out += cell.out;
    }
    return {inStep, out};
  }

  any(row, device, phases) {
    const {inStep, out} = this.sum(row, device, phases);
    return inStep + out > 0;
  }

  variables(row, device) { return this.variablesAt.get(row * this.devices + device) || []; }

  /** The ops of a row and its inner rows, on given devices and in given phases. */
  ops(row, devices, phases) {
    const {row: rows, phase, size, rowEnds} = this.program;
    const onDevices = new Set(devices), ofPhases = new Set(phases), found = [];
    for (let op = 0; op < size; op++) {
      if (rows[op] >= row && rows[op] < rowEnds[row] && ofPhases.has(phase[op]) && onDevices.has(this.place[op])) {
        found.push(op);
      }
    }
    return found;
  }

  /** Counts given ops by cell, including the cells of outer rows. */
  spread(ops) {
    const {parents, row, phase} = this.program;
    const found = new Map();
    for (const op of ops) {
      if (op < 0 || this.place[op] < 0) continue;
      for (let each = row[op]; each >= 0; each = parents[each]) {
        const key = this.key(each, this.place[op], phase[op]);
        found.set(key, (found.get(key) || 0) + 1);
      }
    }
    return found;
  }
}

/** A hash of a type; the sum of hashes distinguishes equal numbers of ops of different types. */
function hashType(type) {
  let value = Math.imul(type + 1, 2654435761);
  value ^= value >>> 15;
  return Math.imul(value, 2246822519);
}

/** Counts trained and other variables, and their bytes. */
function sumVariables(variables) {
  const sum = {trained: 0, other: 0, bytes: 0, unknown: 0};
  for (const {kind, bytes} of variables) {
    if (kind === TRAINED) sum.trained++;
    else sum.other++;
    if (bytes === null) sum.unknown++;
    else sum.bytes += bytes;
  }
  return sum;
}
