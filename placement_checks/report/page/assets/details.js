// Descriptions of boxes and arrows: a short tooltip, and full details in the side panel.

const MOST_OPS = 150;

// For each element: a title, a sentence, and a function that returns its ops.
const descriptions = new WeakMap();

/** Adds a description to a button: a tooltip on hover and focus, and details on click. */
function describe(made, title, sentence, ops, full = null) {
  descriptions.set(made, {title, sentence, ops, full});
  made.dataset.described = "";
  made.setAttribute("aria-label", [title, sentence, made.textContent].filter(Boolean).join(", "));
  made.addEventListener("click", () => showDescription(made));
  return made;
}

function shortLines({title, sentence, ops}) {
  const {program} = state;
  const lines = [title, sentence].filter(Boolean);
  const found = ops();
  if (!found.length) return lines;
  const out = found.filter(op => !program.step[op]).length;
  const run = out === found.length ? ", none in a step" : `, ${found.length - out} of them in a step`;
  lines.push(plural(found.length, "op") + (out ? run : ""));
  lines.push(tally(found.map(op => program.typeOf(op)), 6));
  const built = tally(found.map(op => program.lineOf(op)), 3);
  if (built) lines.push(`built at ${built}`);
  const elsewhere = found.filter(isElsewhere);
  if (elsewhere.length) lines.push(`${elsewhere.length} requested on ${tally(elsewhere.map(op => program.requestOf(op)), 3)}`);
  return lines;
}

/** Whether an op requests a GPU and was assigned to another device. */
function isElsewhere(op) {
  const {requested, assigned} = state.program.places;
  if (!requested || !assigned || requested[op] < 0 || requested[op] === assigned[op]) return false;
  return state.program.devices[requested[op]].gpu;
}

function showDescription(made) {
  const what = descriptions.get(made);
  hideTip();
  const [title, ...sentences] = shortLines(what);
  openDetails(title, ...sentences.map(line => element("p", "", line)), what.full ? what.full() : null, opsTable(what.ops()));
}

function openDetails(title, ...inside) {
  const panel = byId("details");
  const close = button("close", "✕", closeDetails, "close the details");
  panel.replaceChildren(close, element("h2", "", title), ...inside.filter(Boolean));
  const wasHidden = panel.hidden;
  panel.hidden = false;
  document.body.classList.add("with-details");
  if (wasHidden) drawPicture();
  if (matchMedia("(max-width: 1000px)").matches) panel.scrollIntoView({block: "nearest"});
}

function closeDetails() {
  if (byId("details").hidden) return;
  byId("details").hidden = true;
  document.body.classList.remove("with-details");
  drawPicture();
}

function opsTable(ops) {
  if (!ops.length) return null;
  const list = element("ul", "ops");
  for (const op of ops.slice(0, MOST_OPS)) list.append(opItem(op));
  const left = ops.length - MOST_OPS;
  return element("div", "", null, list, left > 0 ? element("p", "small", `and ${left.toLocaleString("en")} more`) : null);
}

function opItem(op) {
  const {program} = state;
  const variable = program.variableOf.get(op);
  const facts = [program.typeOf(op), ...evidenceOf(op)];
  if (variable) facts.push(variable.role && `role: ${variable.role}`, variable.form, variable.bytes === null ? "" : bytesText(variable.bytes));
  if (!program.step[op]) facts.push("not in a step");
  if (program.lineOf(op)) facts.push(program.lineOf(op));
  return element("li", "", null,
    element("span", "name", program.names[op]), element("span", "small", facts.filter(Boolean).join(" · ")));
}

/** The requested, assigned and executed devices of an op, if known and different. */
function evidenceOf(op) {
  const {program} = state;
  const asked = program.requestOf(op);
  const on = view => (program.places[view] && program.places[view][op] >= 0 ? program.label(program.places[view][op]) : "");
  const assigned = on("assigned"), executed = on("executed"), before = on("before");
  const facts = [];
  if (assigned) facts.push(`on ${assigned}`);
  if (asked && on("requested") !== assigned) facts.push(`requests ${asked}`);
  if (!asked && program.places.requested) facts.push("requests no device");
  if (before && before !== assigned) facts.push(`was on ${before}`);
  if (executed && executed !== assigned) facts.push(`ran on ${executed}`);
  return facts;
}

// Tooltips.

function showTip(made) {
  const tip = byId("tip");
  tip.textContent = shortLines(descriptions.get(made)).join("\n");
  tip.hidden = false;
  const at = made.getBoundingClientRect(), own = tip.getBoundingClientRect();
  const below = at.bottom + own.height + 8 <= innerHeight;
  tip.style.left = `${Math.max(4, Math.min(innerWidth - own.width - 8, at.left))}px`;
  tip.style.top = `${below ? at.bottom + 6 : Math.max(4, at.top - own.height - 6)}px`;
}

function hideTip() { byId("tip").hidden = true; }

function listenForPointing() {
  let pressed = ""; // the position of the last click, which opened the details
  addEventListener("click", event => { pressed = `${event.clientX} ${event.clientY}`; }, true);
  addEventListener("mouseover", event => {
    const over = event.target.closest("[data-described]");
    if (over && descriptions.has(over) && pressed !== `${event.clientX} ${event.clientY}`) showTip(over);
    else hideTip();
  });
  addEventListener("focusin", event => {
    if (event.target.matches("[data-described]:focus-visible")) showTip(event.target);
    else hideTip();
  });
}
