// The boxes of a row in the lane of a GPU, and their differences from other GPUs.

function wideBox(row, lane, {tight}) {
  const {counts, program} = state;
  const phases = DRAWN_WIDE;
  const {inStep, out} = counts.sum(row, lane[0], phases);
  const fallen = missingFrom(row, lane[0], WIDE_PHASES);
  const number = inStep || out;
  const look = !number ? "none" : inStep ? (counts.any(row, lane[0], [ANY]) ? "any" : "update") : "unused";
  const box = element("button", `box cell ${look}`, number ? (tight ? number.toLocaleString("en") : plural(number, "op")) : "–");
  if (fallen.length) markMissing(box, inStep, fallen, tight);
  describe(box, `${groupName(lane)}: ${program.rowPath(row)}`, "", () => counts.ops(row, [lane[0]], phases).concat(fallen));
  return markBox(box, row, lane, phases);
}

/** The ops of a layer in one pass: `12 ops`, `(12)` if no step runs them, `–` if there are none. */
function passBox(row, lane, phase, {tight}) {
  const {counts, program} = state;
  const [device] = lane;
  const {inStep, out} = counts.at(row, device, phase);
  const fallen = missingFrom(row, device, [phase]);
  const box = element("button", `box cell ${phase === FORWARD ? "forward" : "backward"}`);
  const remarks = lane.length > 1 ? [`on each of ${lane.length} equal GPUs`] : [];
  if (inStep) box.textContent = tight ? inStep.toLocaleString("en") : plural(inStep, "op");
  else if (out) {
    box.classList.add("unused");
    box.textContent = tight ? `(${out})` : `${out} unused`;
    remarks.push("built, but in no step");
  } else {
    box.classList.add("none");
    box.textContent = "–";
  }
  if (fallen.length) markMissing(box, inStep, fallen, tight);
  const odd = fallen.length || !inStep && out ? "" : describeDifference(row, lane, phase);
  if (odd) {
    box.classList.add(inStep ? "odd" : "missing");
    remarks.push(odd);
  }
  const ops = () => counts.ops(row, [device], [phase]).concat(fallen);
  describe(box, `${groupName(lane)}: ${program.rowPath(row)}, ${PHASE_WORDS[phase]}`, remarks.join("; "), ops);
  return markBox(box, row, lane, [phase]);
}

/** Marks the box of missing ops with their devices. */
function markMissing(box, inStep, fallen, tight) {
  const where = [...new Set(fallen.map(op => state.program.label(state.counts.place[op])))];
  const went = state.program.places.before ? "went" : "fell";
  box.classList.add("away");
  box.textContent = tight ? `${inStep} ↗${fallen.length}` : `${inStep || ""} ↗ ${fallen.length} ${went} to ${firstOf(where, 2)}`;
}

/** The difference of a box from most lanes, or ""; if two lanes differ, both are marked. */
function describeDifference(row, lane, phase) {
  const {marks, often, most, sameNumber} = marksOf(row, phase);
  const own = marks.get(lane);
  if (own === undefined || often.size < 2 || (often.get(own) === most && marks.size > 2)) return "";
  return sameNumber ? "as many ops as on other GPUs, but of other types" : "different number of ops than on other GPUs";
}

/** The number and types of ops of each lane, and how many lanes share them. */
function marksOf(row, phase) {
  const key = row * PHASES + phase;
  if (!state.marks.has(key)) state.marks.set(key, newMarks(row, phase));
  return state.marks.get(key);
}

function newMarks(row, phase) {
  const {counts, lanes, program} = state;
  const marks = new Map(), often = new Map(), numbers = new Set();
  // The parts of a split model differ by design.
  const copies = program.towers.every(tower => tower.length === 1);
  for (const lane of copies ? lanes : []) {
    const [device] = lane;
    if (!counts.totals[device].inStep) continue;
    const {inStep, mix} = counts.at(row, device, phase);
    const mark = `${inStep} ${mix}`;
    marks.set(lane, mark);
    numbers.add(inStep);
    often.set(mark, (often.get(mark) || 0) + lane.length);
  }
  return {marks, often, most: Math.max(...often.values()), sameNumber: numbers.size === 1};
}
