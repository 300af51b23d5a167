// The lanes of the GPUs: for each layer, a box for the forward and a box for the backward pass.

const LABELS = 168; // px, of the names of rows
const LEAST = 104, LEAST_NARROW = 74; // px of a lane
const ROOMY = 205; // px of a lane in which `12 ops` fits twice

/** The lines of the grid with their boxes. */
class Grid {
  constructor() {
    this.lines = [];
    this.line = 0;
  }

  /** Starts a line, which is a table row for screen readers. */
  next(look = "") {
    this.line++;
    this.row = element("div", `line ${look}`);
    this.row.setAttribute("role", "row");
    this.lines.push(this.row);
    return this;
  }

  put(role, made, column, columns = 1) {
    const side = columns > 1 ? "both" : column % 2 ? "right" : "left"; // of its lane
    const cell = element("div", `at ${column > 1 ? side : ""}`, null, made);
    cell.setAttribute("role", role);
    cell.style.gridColumn = `${column} / span ${columns}`;
    cell.style.gridRow = this.line;
    this.row.append(cell);
    return made;
  }
}

function groupLanes() {
  const gpus = gpusOf(state.program).filter(present);
  state.marks = new Map();
  state.lanes = state.folded ? groupAlike(gpus) : gpus.map(device => [device]);
}

function drawLanes() {
  const {lanes} = state;
  const area = byId("lanes");
  area.replaceChildren();
  if (!lanes.length) return;
  const layout = layoutOf(area);
  const grid = new Grid();
  headings(grid, layout);
  const first = grid.line + 1;
  const rows = shownRows();
  if (lanes.some(([device]) => state.counts.variables(0, device).length)) variableLine(grid, layout);
  if (rows.some(({wide}) => !wide)) passLine(grid);
  for (const row of rows) rowLine(grid, row, layout);
  const foot = element("div", "foot");
  foot.style.gridRow = grid.line + 1;
  area.append(...backgrounds(first, grid.line), ...grid.lines, foot);
  area.setAttribute("aria-rowcount", grid.lines.length);
  oneTabStop(area);
}

/** The widths of columns, and whether boxes have room for words. */
function layoutOf(area) {
  const {lanes} = state;
  const narrow = isNarrow();
  const labels = narrow ? 0 : LABELS, least = narrow ? LEAST_NARROW : LEAST;
  const tight = narrow || (byId("picture").clientWidth - LABELS) / lanes.length < ROOMY;
  area.style.gridTemplateColumns = `${labels}px repeat(${lanes.length * 2}, minmax(${least / 2}px, 1fr))`;
  for (const each of [byId("hosts"), byId("arrows"), area]) {
    each.style.minWidth = `${Math.max(labels + lanes.length * least, labels + state.hosts.length * 140)}px`;
  }
  byId("hosts").style.marginLeft = narrow ? "2px" : `${LABELS + 5}px`;
  return {narrow, tight, last: 1 + lanes.length * 2};
}

function headings(grid, layout) {
  const {lanes, program} = state;
  grid.next();
  lanes.forEach((lane, at) => {
    const [device] = lane;
    const {label, task} = program.devices[device];
    const isOne = lane.length === 1 && task;
    const name = element("h3", "", isOne ? label.slice(task.length + 1) : groupName(lane));
    const head = element("div", "head", null, isOne ? element("span", "task", task) : null, name, ...laneFacts(lane, layout));
    head.dataset.head = at;
    if (lane.some(each => state.litDevices.has(each))) head.classList.add("lit");
    grid.put("columnheader", head, 2 + at * 2, 2);
  });
}

function laneFacts(lane, {tight}) {
  const {counts, program} = state;
  const [device] = lane;
  const {inStep, out} = counts.totals[device];
  const words = [];
  if (lane.length > 1) words.push(`${lane.length} alike, each:`);
  if (inStep) words.push(plural(inStep, "op") + (tight || !program.knows_step ? "" : " in a step"));
  const {tower} = program.devices[device];
  if (tower >= 0 && program.towers[tower].length > 1) words.push(`, part of tower ${tower}`);
  const facts = [element("span", "facts", words.join(" ").replace(" ,", ","))];
  if (!program.devices[device].exists) facts.push(element("span", "flag", "✕ the machine has none"));
  else if (isIdle(device)) facts.push(element("span", "flag", "✕ idle"));
  else if (!inStep && out) facts.push(element("span", "flag", `✕ never used: ${plural(out, "op")}, none in a step`));
  else if (lane.some(each => program.uncounted.includes(each))) facts.push(element("span", "flag", "✕ never counts: its gradients are not used"));
  return facts;
}

function isIdle(device) {
  const {inStep, out} = state.counts.totals[device];
  return !inStep && !out && !state.counts.variables(0, device).length;
}

/** The backgrounds of the lanes, with a note on idle ones. */
function backgrounds(first, last) {
  return state.lanes.flatMap(([device], at) => {
    const back = element("div", isIdle(device) ? "lane idle" : "lane");
    back.setAttribute("aria-hidden", "true");
    back.style.gridRow = `1 / ${last + 2}`;
    back.style.gridColumn = `${2 + at * 2} / span 2`;
    if (!isIdle(device) || state.missing.has(device)) return [back];
    const words = element("div", "nothing", null, element("b", "", "nothing"), holdsAnything(device) ? "no op in a step" : "no op");
    words.style.gridRow = `${first} / ${Math.max(last + 1, first + 1)}`;
    words.style.gridColumn = back.style.gridColumn;
    return [back, words];
  });
}

function variableLine(grid, layout) {
  const {lanes, counts} = state;
  grid.next();
  rowLabel(grid, element("span", "", "variables"), layout);
  lanes.forEach((lane, at) => {
    const [device] = lane;
    const variables = counts.variables(0, device);
    if (isIdle(device)) return;
    const box = variables.length ? variableBox("", 0, lane, lane.flatMap(each => (each === device ? variables : [])), 2)
      : element("span", "box none", "–");
    box.classList.add("cell");
    grid.put("gridcell", box, 2 + at * 2, 2);
  });
}

/** The name of a row: before its boxes, or above them on a narrow page. */
function rowLabel(grid, made, {narrow, last}, depth = 0) {
  const holder = element("div", "label", null, made);
  holder.style.paddingLeft = `${depth * 14 + (narrow ? 8 : 0)}px`;
  if (!narrow) {
    grid.put("rowheader", holder, 1);
    return holder;
  }
  grid.put("rowheader", holder, 1, last);
  grid.line++;
  return holder;
}

function passLine(grid) {
  grid.next("passes");
  state.lanes.forEach(([device], at) => {
    const idle = isIdle(device);
    const forward = element("span", "pass", idle ? "" : "fwd ▼"), backward = element("span", "pass", idle ? "" : "▲ bwd");
    forward.title = "forward";
    backward.title = "backward";
    grid.put("columnheader", forward, 2 + at * 2);
    grid.put("columnheader", backward, 3 + at * 2);
  });
}

/** The rows with ops on a GPU; a wide row has no ops of a pass, for example an update. */
function shownRows() {
  const {counts, program, lanes} = state;
  const gpus = lanes.flat();
  const found = [];
  const walk = (row, depth) => {
    const has = (drawn, fallen) => gpus.some(device => counts.any(row, device, drawn) || missingFrom(row, device, fallen).length);
    const passes = has(PASSES, PASSES);
    if (!passes && !has(DRAWN_WIDE, WIDE_PHASES)) return;
    found.push({row, depth, wide: !passes});
    if (state.open.has(row)) for (const each of program.kids[row]) walk(each, depth + 1);
  };
  for (const row of program.top) walk(row, 0);
  return state.onlyBroken ? found.filter(isBroken) : found;
}

/** Whether a row has marks, or differs between lanes. */
function isBroken({row, wide}) {
  const {counts, lanes} = state;
  const phases = wide ? WIDE_PHASES : PASSES;
  return lanes.some(lane => lane.some(device =>
    missingFrom(row, device, phases).length || phases.some(phase => {
      const key = counts.key(row, device, phase);
      const {inStep, out} = counts.at(row, device, phase);
      return state.bad.has(key) || state.lit.has(key) || (out && !inStep) || describeDifference(row, lane, phase);
    })));
}

function rowLine(grid, {row, depth, wide}, layout) {
  const {lanes} = state;
  grid.next();
  rowName(grid, row, depth, layout);
  lanes.forEach((lane, at) => {
    const [device] = lane;
    if (isIdle(device) && !missingFrom(row, device, wide ? WIDE_PHASES : PASSES).length) return;
    if (wide) {
      grid.put("gridcell", wideBox(row, lane, layout), 2 + at * 2, 2);
      return;
    }
    grid.put("gridcell", passBox(row, lane, FORWARD, layout), 2 + at * 2);
    grid.put("gridcell", passBox(row, lane, BACKWARD, layout), 3 + at * 2);
  });
}

function rowName(grid, row, depth, layout) {
  const {program, counts} = state;
  const opens = program.kids[row].length > 0;
  const isOpen = state.open.has(row);
  const sign = element("span", "sign", opens ? (isOpen ? "▾" : "▸") : "");
  let made = element("span", "", null, sign, program.rowNames[row]);
  if (opens) {
    made = button("", null, () => toggleRow(row));
    made.append(sign, program.rowNames[row]);
    made.setAttribute("aria-expanded", isOpen);
    made.dataset.opens = row;
  }
  const holder = rowLabel(grid, made, layout, depth);
  const bytes = program.devices.reduce((sum, _, device) => sum + sumVariables(counts.variables(row, device)).bytes, 0);
  if (bytes && depth === 0) holder.append(element("span", "small", bytesText(bytes)));
}

function toggleRow(row) {
  if (state.open.has(row)) state.open.delete(row);
  else state.open.add(row);
  drawPicture();
  document.querySelector(`[data-opens="${row}"]`)?.focus();
}
