// Draws the page, and redraws its parts after changes.

const WORDS_OF_STATES = {broken: "✕ BROKEN", kept: "✓ KEPT", doubtful: "? DOUBTFUL", "not-checked": "? NOT CHECKED", differs: "≠ DIFFERS", placed: ""};
const WORDS_OF_VIEWS = {assigned: "assigned by TensorFlow", requested: "requested", executed: "executed", before: "before"};

const programs = [...document.querySelectorAll("script.program")].map(each => each.textContent);
const loaded = new Map(); // promises of programs, by number
let overview = null; // the rules of all programs
let wanted = 0; // the program that was chosen last

function programAt(number) {
  if (!loaded.has(number)) loaded.set(number, decompress(programs[number]).then(data => new Program(data)));
  return loaded.get(number);
}

async function showProgram(number) {
  wanted = number;
  const chosen = await programAt(number);
  if (number !== wanted) return;
  show(chosen);
  closeDetails();
  const {program} = state;
  byId("program").textContent = program.program;
  byId("conditions").textContent = program.conditions;
  byId("headline").textContent = program.headline;
  byId("verdict").textContent = WORDS_OF_STATES[program.state];
  byId("verdict").hidden = !WORDS_OF_STATES[program.state];
  byId("facts").textContent = [...program.facts, copiedText(program)].join(" ");
  byId("notes").replaceChildren(...program.notes.map(note => element("li", "", note)));
  document.body.dataset.state = program.state;
  document.title = `${program.program}: device placement`;
  byId("only").checked = false;
  byId("said").textContent = "";
  byId("clear").hidden = true;
  drawOverview(number);
  drawRules();
  drawFindings();
  drawViews();
  drawFoldButton();
  drawTimeline();
  if (program.state === "differs") lightChanges(program);
  else drawPicture();
}

/** Highlights moved and new ops. */
function lightChanges({findings}) {
  const ops = findings.flatMap(each => each.ops);
  light(ops, `${plural(ops.length, "op")} highlighted`);
}

function copiedText({copies}) {
  if (!copies.length) return "";
  const sum = {bytes: 0, unknown: 0, aRow: 0, copies: []};
  for (const copy of copies) addCopy(sum, copy);
  const amount = sum.unknown === copies.length && !sum.aRow ? `${plural(copies.length, "tensor")} of unknown size` : amountText(sum);
  return `A step copies ${amount} between devices.`;
}

/** Draws everything that depends on open, highlighted or folded parts. */
function drawPicture() {
  hideTip();
  groupLanes();
  drawHosts();
  drawLanes();
  drawArrows();
  drawLegend();
  byId("picture").classList.toggle("only-broken", state.onlyBroken);
}

/** The table of rules and programs, if there are several programs. */
function drawOverview(chosen) {
  const area = byId("programs");
  area.hidden = programs.length < 2;
  if (area.hidden) return;
  const head = element("tr", "", null, element("th", "", "program"), ...overview.rules.map(rule => {
    const cell = element("th", "upright", null, element("span", "", rule));
    cell.scope = "col";
    return cell;
  }));
  const body = overview.programs.map(({program, cells}, number) => {
    const name = element("th", "", null, button("", program, () => showProgram(number)));
    name.scope = "row";
    const row = element("tr", number === chosen ? "chosen" : "", null, name, ...cells.map(overviewCell));
    if (number === chosen) row.setAttribute("aria-current", "true");
    return row;
  });
  area.replaceChildren(element("table", "", null, element("caption", "", `${plural(programs.length, "program")}: ✕ broken with the number of findings, ✓ kept, ? doubtful, – not checked`), element("thead", "", null, head), element("tbody", "", null, ...body)));
}

function overviewCell([verdict, findings]) {
  const words = verdict ? `${SIGNS[verdict]}${findings > 1 ? findings.toLocaleString("en") : ""}` : "";
  const cell = element("td", verdict || "", words);
  if (verdict) cell.setAttribute("aria-label", verdict.replace("-", " ") + (findings ? `, ${plural(findings, "finding")}` : ""));
  return cell;
}

/** The choice of the evidence for devices, if there is any. */
function drawViews() {
  const area = byId("views");
  const {views} = state.program;
  area.hidden = views.length < 2;
  area.replaceChildren(element("legend", "", "devices"), ...views.map(view => {
    const choice = element("input");
    choice.type = "radio";
    choice.name = "view";
    choice.checked = view === state.view;
    choice.addEventListener("change", () => {
      setView(view);
      light([...(state.litOps || [])], byId("said").textContent, [...state.litDevices]);
    });
    return element("label", "", null, choice, ` ${WORDS_OF_VIEWS[view]}`);
  }));
}

function drawFoldButton() {
  const number = gpusOf(state.program).length, made = byId("fold");
  made.hidden = number <= (isNarrow() ? MANY_LANES_NARROW : MANY_LANES);
  made.textContent = state.folded ? `show all ${number} GPUs` : "combine equal GPUs";
}

function drawLegend() {
  const {program, arrows, view} = state;
  const item = (look, text, words) => element("span", "", null, element("span", `box ${look}`, text), ` ${words}`);
  const items = [];
  if (program.knows_flow) {
    items.push(item("forward", "12", "forward"), item("backward", "12", "backward"), item("update", "12", "aggregated gradients, update"));
  } else items.push(item("any", "12", "ops"));
  items.push(item("variable", "●○", "variables: trained, other"));
  if (program.knows_step) items.push(item("unused", "(5)", "not in a step"));
  if (document.querySelector("#lanes .odd, #lanes .missing")) items.push(item("odd", "3", "different from other GPUs"));
  if (program.state === "differs") items.push(item("lit", "3 ◂2", "moved or new"), item("away", "↗ 2", "were here"));
  else if (program.findings.some(each => !each.doubt)) items.push(item("bad", "3 ✕", "broken"));
  for (const {name} of arrows.shown) {
    const arrow = svgElement("svg", "", {viewBox: "0 0 34 10", "aria-hidden": "true"},
      svgElement("path", `wire ${name}`, {d: "M0 5H26", "stroke-width": 4}), svgElement("path", `tip ${name}`, {d: "M24 0L34 5L24 10z"}));
    items.push(element("span", "", null, arrow, ` ${name}`));
  }
  if (byId("arrows").textContent.includes("?")) items.push(element("span", "", null, element("b", "", "?"), " of unknown size"));
  const small = arrows.small.flatMap(each => each.copies);
  if (small.length) {
    items.push(element("span", "", `not drawn: ${plural(small.length, "small copy", "small copies")}, ${bytesText(small.reduce((sum, each) => sum + each.bytes, 0))}`));
  }
  if (view !== "assigned" && program.copies.length) items.push(element("span", "", "arrows: only between assigned devices"));
  byId("legend").replaceChildren(...items);
}

function listen() {
  let waiting = 0;
  byId("search").addEventListener("input", event => {
    clearTimeout(waiting);
    waiting = setTimeout(() => find(event.target.value), 120);
  });
  byId("only").addEventListener("change", event => {
    state.onlyBroken = event.target.checked;
    drawPicture();
  });
  byId("clear").addEventListener("click", clearLights);
  byId("fold").addEventListener("click", () => {
    state.folded = !state.folded;
    drawFoldButton();
    drawPicture();
  });
  listenForPointing();
  listenForKeys();
  let width = innerWidth;
  addEventListener("resize", () => {
    if (innerWidth !== width) drawPicture();
    width = innerWidth;
  });
  // On paper the whole picture is shrunk, so that arrows still meet their boxes.
  const picture = byId("picture");
  addEventListener("beforeprint", () => {
    const wide = picture.scrollWidth;
    picture.style.width = `${wide}px`;
    picture.style.zoom = Math.min(1, 700 / wide);
  });
  addEventListener("afterprint", () => {
    picture.style.width = picture.style.zoom = "";
    drawArrows();
  });
}

async function start() {
  if (typeof DecompressionStream === "undefined") {
    document.body.dataset.state = "unreadable";
    byId("headline").textContent = "This browser cannot read the page. Open it with Chrome 80, Firefox 113, Safari 16.4 or a newer version.";
    return;
  }
  overview = await decompress(byId("overview").textContent);
  await showProgram(0);
  listen();
}

start();
