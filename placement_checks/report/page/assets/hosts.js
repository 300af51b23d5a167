// The hosts above the GPUs, with their variables and ops.

const MANY_HOSTS = 4;
const MOST_GROUPS = 8; // of towers that share variables

function drawHosts() {
  const {program} = state;
  const devices = program.devices.map((_, at) => at).filter(at => !program.devices[at].gpu && present(at));
  const busy = devices.filter(holdsAnything);
  const named = busy.length || gpusOf(program).some(present) ? busy : devices.slice(0, 1);
  const resting = devices.filter(device => !named.includes(device));
  state.hosts = state.folded || named.length > MANY_HOSTS ? groupAlike(named) : named.map(device => [device]);
  byId("resting").textContent = resting.length
    ? `${firstOf(resting.map(device => program.label(device)), 4)}: no op` : "";
  byId("hosts").classList.toggle("several", state.hosts.length > 1);
  byId("hosts").replaceChildren(...state.hosts.map(hostCard));
}

function hostCard(devices, at) {
  const {counts, program} = state;
  const [device] = devices;
  const variables = counts.variables(0, device), ops = counts.totals[device].inStep;
  const facts = [];
  if (devices.length > 1) facts.push(`${devices.length} alike, each`);
  const {bytes} = sumVariables(variables);
  if (variables.length) facts.push(plural(variables.length, "variable") + (bytes ? `, ${bytesText(bytes)}` : ""));
  facts.push(ops ? `${plural(ops, "op")}${program.knows_step ? " in a step" : ""}` : "no op in a step");
  const card = element("section", "host", null, element("h3", "", groupName(devices)), element("span", "facts", facts.join(" · ")));
  card.dataset.host = at;
  card.setAttribute("aria-label", groupName(devices));
  if (state.litDevices.has(device)) card.classList.add("lit");
  card.append(element("div", "parts", null, ...hostParts(devices)));
  return card;
}

function groupName(devices) {
  const {program} = state;
  const last = devices[devices.length - 1];
  return devices.length === 1 ? program.label(last) : `${program.label(devices[0])} … ${program.label(last)}`;
}

function hostParts(devices) {
  const {counts, program} = state;
  const {roles, top} = program;
  const parts = [];
  const part = (title, boxes, look = "") => {
    const found = boxes.filter(Boolean);
    if (found.length) parts.push(element("div", `part ${look}`, null, element("h4", "", title), element("div", "boxes", null, ...found)));
  };
  const layers = top.filter(row => row !== roles.inputs);
  if (!counts.variables(0, devices[0]).length) part("reads of variables", [hostBox("", 0, devices, [READ], "variable")]);
  part("inputs", [hostBox("", roles.inputs, devices, [FORWARD], "forward")]);
  for (const [title, boxes] of variableParts(devices)) part(title, boxes, "variables");
  part("computed here, forward", layers.map(row => hostBox(program.rowNames[row], row, devices, [FORWARD], "forward")));
  part("computed here, backward", top.map(row => hostBox(program.rowNames[row], row, devices, [BACKWARD], "backward")));
  part("aggregated gradients", [hostBox("", roles.average, devices, [AVERAGE], "update")]);
  part("update", [hostBox("", roles.update, devices, [UPDATE], "update")]);
  part(program.knows_flow ? "other ops" : "ops", top.map(row => hostBox(row === roles.other ? "" : program.rowNames[row], row, devices, [ANY], "any")));
  part("outside a step", [outsideBox(devices)]);
  part("no longer here", [goneBox(devices)]);
  return parts;
}

/** Variables by layer: variables that all towers read, then variables that only some towers read. */
function variableParts(devices) {
  const {counts, program} = state;
  const variables = counts.variables(0, devices[0]);
  const apart = new Map();
  const shared = [];
  for (const variable of variables) {
    const {readers} = variable;
    if (!readers.length || readers.length === program.towers.length) {
      shared.push(variable);
      continue;
    }
    const key = readers.join();
    if (!apart.has(key)) apart.set(key, {readers, variables: []});
    apart.get(key).variables.push(variable);
  }
  const found = [["variables (● trained, ○ other)", byLayer(shared, devices)]];
  for (const {readers, variables: own} of [...apart.values()].slice(0, MOST_GROUPS)) {
    const towers = readers.map(tower => program.towers[tower].map(device => program.label(device)).join(" with "));
    found.push([`read only by ${firstOf(towers, 3)}`, byLayer(own, devices)]);
  }
  return found;
}

function byLayer(variables, devices) {
  const {program} = state;
  const rows = new Map();
  for (const variable of variables) {
    const row = program.topOf(program.row[variable.op]);
    if (!rows.has(row)) rows.set(row, []);
    rows.get(row).push(variable);
  }
  const words = row => (row === program.roles.update || row === program.roles.outside ? "other" : program.rowNames[row]);
  return [...rows].sort(([one], [other]) => one - other).map(([row, of]) => variableBox(words(row), row, devices, of));
}

/** The ops that left a host, with their devices; null if there are none. */
function goneBox([device]) {
  const {counts, missing, program} = state;
  const ops = [...(missing.get(device) || [])];
  if (!ops.length) return null;
  const where = [...new Set(ops.map(op => program.label(counts.place[op])))];
  const box = element("button", "box away", `${plural(ops.length, "op")} ↗ ${firstOf(where, 3)}`);
  return describe(box, `${program.label(device)}: no longer here`, "", () => ops);
}

function outsideBox(devices) {
  const {counts, program} = state;
  const phases = [READ, FORWARD, BACKWARD, AVERAGE, UPDATE, OUTSIDE, ANY];
  const ops = () => counts.ops(0, devices, phases).filter(op => program.phase[op] === OUTSIDE || !program.step[op]);
  const number = counts.sum(0, devices[0], phases).out + counts.at(0, devices[0], OUTSIDE).inStep;
  if (!number) return null;
  const box = element("button", "box unused", plural(number, "op"));
  describe(box, `${program.label(devices[0])}: outside a step`, "initializers, savers, summaries and other ops that no step needs", ops);
  return markBox(box, program.roles.outside, devices, [OUTSIDE]);
}
