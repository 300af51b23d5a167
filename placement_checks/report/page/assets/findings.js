// The rules, their findings, and the highlighted ops of the picture.

const SIGNS = {kept: "✓", broken: "✕", doubtful: "?", "not-checked": "–"};
const ORDER = ["broken", "doubtful", "kept", "not-checked"];
const FIRST_FINDINGS = 3; // of a rule
const FIRST_NAMES = 6, FIRST_STEPS = 12;

function drawRules() {
  const {rules} = state.program;
  const list = byId("rules");
  list.className = "";
  const sorted = [...rules].sort((one, other) => ORDER.indexOf(one.state) - ORDER.indexOf(other.state));
  list.replaceChildren(...sorted.map(rule => element("li", "", null, ruleButton(rule))));
  const number = word => rules.filter(each => each.state === word).length;
  const rest = [["kept", "kept"], ["not-checked", "not checked"]].filter(([word]) => number(word));
  if (!rest.length) return;
  const more = button("", rest.map(([word, words]) => `${SIGNS[word]} ${number(word)} ${words}`).join("  ") + "  ▾",
    () => list.classList.add("all"), "show the rules that are kept and not checked");
  list.append(element("li", "rest", null, more));
}

function ruleButton({rule, state: verdict, note, findings}) {
  const words = `${rule}: ${verdict.replace("-", " ")}`;
  const made = button(verdict, null, () => openRule(rule), [words, findings > 1 ? plural(findings, "finding") : ""].filter(Boolean).join(", "));
  made.append(element("span", "sign", SIGNS[verdict]), rule, findings > 1 ? ` ×${findings}` : "");
  made.title = [words, note].filter(Boolean).join("\n");
  return made;
}

function openRule(name) {
  const {findings, rules} = state.program;
  const first = findings.findIndex(each => each.rule === name);
  if (first >= 0) {
    lightFinding(first);
    return;
  }
  const {state: verdict, note, lines} = rules.find(each => each.rule === name);
  openDetails(name, element("p", "", `${verdict.replace("-", " ")}${note ? `: ${note}` : ""}`),
    ...lines.map(line => element("p", "small", line)));
}

function drawFindings() {
  const {findings} = state.program;
  const count = groups => groups.reduce((sum, each) => sum + 1 + each.others.length, 0);
  const doubts = count(findings.filter(each => each.doubt)), number = count(findings) - doubts;
  const differs = state.program.state === "differs";
  const noun = differs ? "difference" : "finding";
  byId("only-what").textContent = `${noun}s`;
  document.body.classList.toggle("clean", !findings.length);
  byId("only").parentNode.hidden = !number;
  const area = byId("findings");
  const counts = [number && plural(number, noun), doubts && plural(doubts, "doubt")].filter(Boolean);
  area.replaceChildren(element("h2", "", counts.join(", ") || `No ${noun}s`));
  const shown = new Map();
  findings.forEach((finding, at) => {
    const before = shown.get(finding.rule) || 0;
    shown.set(finding.rule, before + 1);
    const item = findingItem(finding, at, findings[at + 1]);
    area.append(item);
    if (before < FIRST_FINDINGS) return;
    item.hidden = true;
    item.dataset.more = finding.rule;
    if (findings[at + 1]?.rule !== finding.rule) area.append(moreButton(area, finding.rule, before + 1 - FIRST_FINDINGS));
  });
}

function findingItem(finding, at, next) {
  const {rule, where, source, message, others, path, consequence, fix, follows, doubt, figure} = finding;
  const title = button("rule", rule, () => lightFinding(at), `${rule}: show it in the picture`);
  const item = element("article", doubt ? "finding doubt" : "finding", null, title);
  item.id = `finding-${at}`;
  if (follows) item.append(element("span", "small", ` follows from ${follows}`));
  if (doubt) item.append(element("span", "small", " a doubt: it may be intended"));
  item.append(element("p", "", where ? `${where}: ${message}` : message));
  if (source) item.append(element("pre", "", source));
  if (others.length) item.append(...likewise(others));
  if (path.length) item.append(pathOf(path));
  if (figure.length) item.append(element("pre", "figure", figure.join("\n")));
  const isInNext = next && next.fix === fix && next.rule === rule;
  if (consequence && !isInNext) item.append(element("p", "", consequence));
  if (fix && !isInNext) item.append(element("p", "fix", `→ ${fix}`));
  return item;
}

/** The other objects of a group; many of them are folded. */
function likewise(others) {
  const first = element("p", "", `and likewise ${firstOf(others, FIRST_NAMES)}`);
  if (others.length <= FIRST_NAMES) return [first];
  const all = element("p", "", joinAnd(others));
  return [first, element("details", "", null, element("summary", "", `all ${others.length} others`), all)];
}

function pathOf(path) {
  const list = element("ol");
  for (const words of path.slice(0, FIRST_STEPS)) list.append(element("li", "name", words));
  if (path.length > FIRST_STEPS) list.append(element("li", "", `and ${path.length - FIRST_STEPS} more`));
  return element("details", "", null, element("summary", "", `path: ${plural(path.length, "step")}`), list);
}

function moreButton(area, rule, number) {
  const more = button("more", `${number} more of ${rule}`, () => {
    for (const each of area.querySelectorAll("[data-more]")) if (each.dataset.more === rule) each.hidden = false;
    more.remove();
  });
  return more;
}

// Highlights.

/** Highlights ops in all open and closed rows. */
function light(ops, words, devices = []) {
  state.litOps = new Set(ops);
  state.litDevices = new Set(devices);
  state.lit = state.counts.spread(state.litOps);
  byId("clear").hidden = !ops.length && !devices.length;
  byId("said").textContent = words;
  drawPicture();
}

function lightFinding(at) {
  const {rule, ops, devices} = state.program.findings[at];
  const chosen = byId(`finding-${at}`);
  for (const each of document.querySelectorAll(".finding")) each.classList.toggle("on", each === chosen);
  chosen.hidden = false;
  light(ops, `${rule}: ${plural(ops.length, "op")} highlighted`, devices);
  chosen.scrollIntoView({block: "nearest"});
  document.querySelector("#picture .lit")?.scrollIntoView({block: "nearest", inline: "nearest"});
}

function clearLights() {
  byId("search").value = "";
  for (const each of document.querySelectorAll(".finding.on")) each.classList.remove("on");
  light([], "");
}

/** Highlights the ops with a text in their name, type, row or source line. */
function find(text) {
  const {program} = state;
  const wanted = text.trim().toLowerCase();
  if (!wanted) {
    light([], "");
    return;
  }
  const has = each => each.toLowerCase().includes(wanted);
  const types = program.types.map(has), lines = program.lines.map(has);
  const rows = program.rowNames.map((_, row) => has(program.rowPath(row).replaceAll(" / ", "/")));
  const found = [];
  for (let op = 0; op < program.size; op++) {
    if (types[program.type[op]] || lines[program.line[op]] || rows[program.row[op]] || has(program.names[op])) found.push(op);
  }
  light(found, found.length ? `${plural(found.length, "op")} found` : `no match for ${text.trim()}`);
  if (found.length) openDetails(`${plural(found.length, "op")} found`, opsTable(found));
  else closeDetails();
}
