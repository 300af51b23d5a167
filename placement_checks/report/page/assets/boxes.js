// The boxes of ops and variables, and their marks.

const MOST_DOTS = 6;

/** Marks a box with objects of findings or with highlighted ops. */
function markBox(box, row, devices, phases) {
  let bad = false, lit = 0;
  for (const device of devices) {
    for (const phase of phases) {
      const key = state.counts.key(row, device, phase);
      bad = bad || state.bad.has(key);
      lit += state.lit.get(key) || 0;
    }
  }
  if (bad) markBad(box);
  if (lit) markLit(box, lit);
  return box;
}

function markBad(box) {
  box.classList.add("bad");
  box.append(element("span", "cross", " ✕"));
}

function markLit(box, number) {
  box.classList.add("lit");
  box.append(element("span", "count", ` ◂${number.toLocaleString("en")}`));
}

/** Trained and other variables: `●●○`, or `●×12 ○×24` for many. */
function dots({trained, other}, most = MOST_DOTS) {
  const each = (number, sign) => (number > most ? `${sign}×${number.toLocaleString("en")}` : sign.repeat(number));
  return [each(trained, "●"), each(other, "○")].filter(Boolean).join(trained > most || other > most ? " " : "");
}

/** The variables of one row on a device, or on each of several equal devices. */
function variableBox(words, row, devices, variables, most = MOST_DOTS) {
  const sum = sumVariables(variables);
  const size = sum.unknown && !sum.bytes ? "" : bytesText(sum.bytes) + (sum.unknown ? " +?" : "");
  const box = element("button", "box variable", null,
    words ? `${words} ` : "", element("span", "dots", dots(sum, most)), ` ${size}`);
  const where = devices.map(device => state.program.label(device)).join(", ");
  const ops = () => variables.map(each => each.op).concat(row < 0 ? [] : state.counts.ops(row, devices, [READ]));
  describe(box, `${where}: variables${words ? ` of ${words}` : ""}`,
    `${plural(sum.trained, "trained variable")} ●, ${sum.other} other ○${size && `, ${size}`}`, ops);
  if (variables.some(each => state.badOps.has(each.op))) markBad(box);
  const lit = variables.filter(each => state.litOps && state.litOps.has(each.op)).length;
  if (lit) markLit(box, lit);
  return box;
}

/** The ops of a row on a host; null if there are none. */
function hostBox(words, row, devices, phases, look) {
  const {counts} = state;
  const [device] = devices;
  const {inStep} = counts.sum(row, device, phases);
  if (!inStep) return null;
  const box = element("button", `box ${look}`, `${words ? `${words} ` : ""}${plural(inStep, "op")}`);
  const ops = () => counts.ops(row, devices, phases).filter(op => state.program.step[op]);
  const strangers = [...state.missing.values()].flatMap(each => [...each]).filter(op => isHere(op, row, device, phases));
  if (strangers.length) {
    box.classList.add("away");
    const {before, requested} = state.program.places;
    const others = tally(strangers.map(op => state.program.label((before || requested)[op])), 2);
    box.append(`, ${strangers.length} ${before ? "from" : "requested on"} ${others}`);
  }
  describe(box, `${state.program.label(device)}: ${words || state.program.rowPath(row) || PHASE_WORDS[phases[0]]}`, "", ops);
  return markBox(box, row, devices, phases);
}

function isHere(op, row, device, phases) {
  const {program, counts} = state;
  return counts.place[op] === device && phases.includes(program.phase[op]) && program.row[op] >= row && program.row[op] < program.rowEnds[row];
}
