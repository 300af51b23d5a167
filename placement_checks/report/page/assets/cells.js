// The boxes of a row in a lane of a GPU, and what tells them from those of other GPUs.

function wideBox(row, lane, {tight}) {
  const {counts, program} = state;
  const phases = DRAWN_WIDE;
  const {inStep, out} = counts.sum(row, lane[0], phases);
  const fallen = fallenFrom(row, lane[0], WIDE_PHASES);
  const number = inStep || out;
  const look = !number ? "none" : inStep ? (counts.any(row, lane[0], [ANY]) ? "any" : "update") : "unused";
  const box = element("button", `box cell ${look}`, number ? (tight ? number.toLocaleString("en") : counted(number, "op")) : "–");
  if (fallen.length) markFallen(box, inStep, fallen, tight);
  tells(box, `${groupName(lane)}: ${program.rowPath(row)}`, "", () => counts.ops(row, [lane[0]], phases).concat(fallen));
  return marked(box, row, lane, phases);
}

/** `12 ops` of a layer in one pass; `(12)` where no step runs them, `–` where there are none. */
function passBox(row, lane, phase, {tight}) {
  const {counts, program} = state;
  const [device] = lane;
  const {inStep, out} = counts.at(row, device, phase);
  const fallen = fallenFrom(row, device, [phase]);
  const box = element("button", `box cell ${phase === FORWARD ? "forward" : "backward"}`);
  const remarks = lane.length > 1 ? [`on each of ${lane.length} alike`] : [];
  if (inStep) box.textContent = tight ? inStep.toLocaleString("en") : counted(inStep, "op");
  else if (out) {
    box.classList.add("unused");
    box.textContent = tight ? `(${out})` : `${out} unused`;
    remarks.push("built, but in no step");
  } else {
    box.classList.add("none");
    box.textContent = "–";
  }
  if (fallen.length) markFallen(box, inStep, fallen, tight);
  const odd = fallen.length || !inStep && out ? "" : oddness(row, lane, phase);
  if (odd) {
    box.classList.add(inStep ? "odd" : "missing");
    remarks.push(odd);
  }
  const ops = () => counts.ops(row, [device], [phase]).concat(fallen);
  tells(box, `${groupName(lane)}: ${program.rowPath(row)}, ${PHASE_WORDS[phase]}`, remarks.join("; "), ops);
  return marked(box, row, lane, [phase]);
}

/** Mark the box where ops asked to be, and say where they are. */
function markFallen(box, inStep, fallen, tight) {
  const where = [...new Set(fallen.map(op => state.program.label(state.counts.place[op])))];
  const went = state.program.places.before ? "went" : "fell";
  box.classList.add("away");
  box.textContent = tight ? `${inStep} ↗${fallen.length}` : `${inStep || ""} ↗ ${fallen.length} ${went} to ${firstOf(where, 2)}`;
}

/** Why a box is unlike that of most lanes; "" where it is not. Of two lanes that differ both are. */
function oddness(row, lane, phase) {
  const {marks, often, most, sameNumber} = marksOf(row, phase);
  const own = marks.get(lane);
  if (own === undefined || often.size < 2 || (often.get(own) === most && marks.size > 2)) return "";
  return sameNumber ? "as many ops as on other GPUs, of other types" : "another number of ops than on other GPUs";
}

/** What tells the boxes of a row apart: by lane the number and types of ops, and how often each occurs. */
function marksOf(row, phase) {
  const key = row * PHASES + phase;
  if (!state.marks.has(key)) state.marks.set(key, newMarks(row, phase));
  return state.marks.get(key);
}

function newMarks(row, phase) {
  const {counts, lanes, program} = state;
  const marks = new Map(), often = new Map(), numbers = new Set();
  // Parts of one model differ, and are no copies of each other.
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
