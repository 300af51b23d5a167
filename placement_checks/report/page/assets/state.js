// The state of the page, which draws one program at a time.

const MANY_LANES = 8, MANY_LANES_NARROW = 2;
const PASSES = [FORWARD, BACKWARD];
const WIDE_PHASES = [VARIABLE, READ, AVERAGE, UPDATE, OUTSIDE, ANY]; // outside the passes
const DRAWN_WIDE = [AVERAGE, UPDATE, ANY];

const state = {
  program: null, // the drawn program
  view: "", // the evidence for devices
  counts: null,
  open: new Set(), // rows that show their inner rows
  folded: false, // whether equal devices share a lane
  lanes: [], // of GPUs; each is a list of equal devices
  hosts: [], // of CPUs; each is a list of equal devices
  bad: new Map(), // cells with objects of findings
  lit: new Map(), // cells with highlighted ops
  litDevices: new Set(),
  onlyBroken: false,
};

const isNarrow = () => innerWidth <= 700;

function show(program) {
  state.program = program;
  state.open = new Set();
  state.lit = new Map();
  state.litDevices = new Set();
  state.onlyBroken = false;
  state.folded = gpusOf(program).length > (isNarrow() ? MANY_LANES_NARROW : MANY_LANES);
  setView(program.views[0]);
}

function setView(view) {
  state.view = view;
  state.counts = new Counts(state.program, view);
  const broken = state.program.findings.filter(each => !each.doubt);
  const objects = broken.flatMap(each => (each.rule === "no-fallback" ? each.ops : each.objects));
  state.badOps = new Set(objects);
  state.bad = state.counts.spread(state.badOps);
  state.missing = findMissingOps();
}

function gpusOf(program) {
  return program.devices.map((_, at) => at).filter(at => program.devices[at].gpu);
}

/** The ops missing on each device: ops that fell back to another device, or were moved. */
function findMissingOps() {
  const found = new Map();
  const {program} = state;
  const {before, requested} = program.places;
  if (state.view !== "assigned" || !(before || requested)) return found;
  for (const {rule, ops} of program.findings) {
    if (rule !== (before ? "moved" : "no-fallback")) continue;
    for (const op of ops) {
      const asked = (before || requested)[op];
      if (asked < 0 || asked === program.places.assigned[op]) continue;
      if (!found.has(asked)) found.set(asked, new Set());
      found.get(asked).add(op);
    }
  }
  return found;
}

/** The missing ops of a device in a row and in given phases. */
function missingFrom(row, device, phases) {
  const {program} = state;
  const inside = op => program.row[op] >= row && program.row[op] < program.rowEnds[row] && phases.includes(program.phase[op]);
  return [...(state.missing.get(device) || [])].filter(inside);
}

/** Whether a device is drawn: devices that the machine lacks only if they have ops or variables. */
function present(device) {
  const {counts, program} = state;
  return program.devices[device].exists || holdsAnything(device) || counts.totals[device].inStep > 0;
}

function holdsAnything(device) {
  const {counts} = state;
  for (let phase = 0; phase < PHASES; phase++) if (counts.any(0, device, [phase])) return true;
  return false;
}

/** Groups devices with equal rows, copies and marks. */
function groupAlike(devices) {
  const groups = new Map();
  for (const device of devices) {
    const mark = signature(device);
    if (!groups.has(mark)) groups.set(mark, []);
    groups.get(mark).push(device);
  }
  return [...groups.values()];
}

function signature(device) {
  const {counts, program} = state;
  const parts = [];
  for (const row of program.top) {
    for (let phase = 0; phase < PHASES; phase++) {
      const key = counts.key(row, device, phase);
      const {inStep, out, mix} = counts.at(row, device, phase);
      parts.push(inStep, out, mix, state.bad.has(key) ? "bad" : "");
    }
    const {trained, other, bytes} = sumVariables(counts.variables(row, device));
    parts.push(trained, other, bytes);
  }
  const traffic = [...trafficOf(device)].map(([name, {bytes, copies}]) => `${name} ${bytes} ${copies.length}`);
  parts.push(...traffic.sort());
  parts.push(state.missing.has(device) ? device : "");
  return parts.join();
}

/** The copies to and from a device by kind and direction, such as `3in`. */
function trafficOf(device) {
  if (!state.program.traffic) state.program.traffic = trafficByDevice(state.program);
  return state.program.traffic[device];
}

function trafficByDevice(program) {
  const found = program.devices.map(() => new Map());
  const add = (device, name, copy) => {
    if (!found[device].has(name)) found[device].set(name, {bytes: 0, unknown: 0, aRow: 0, copies: []});
    addCopy(found[device].get(name), copy);
  };
  for (const copy of program.copies) {
    add(copy.to, `${copy.kind}in`, copy);
    add(copy.from, `${copy.kind}out`, copy);
  }
  return found;
}

function addCopy(sum, copy) {
  sum.bytes += copy.bytes;
  sum.unknown += copy.unknown;
  sum.aRow += copy.aRow;
  sum.copies.push(copy);
}
