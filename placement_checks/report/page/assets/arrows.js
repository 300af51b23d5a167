// The copies of a step between hosts and GPUs: an arrow for each kind, lane and direction. Each kind
// has its own position in every lane and its own height, so that arrows do not cross. If there are
// several hosts, or GPUs copy to each other, a kind is a bus with an end at each device.

const THICKEST = 11; // px
const SMALL = 0.003; // of all bytes: smaller kinds are only counted
const TOP = 38, STEP = 25, BUS_STEP = 17, END_STEP = 18; // px
const UPWARDS = ["gradients", "all-reduce", "updates"];

function drawArrows() {
  const area = byId("arrows"), labels = element("div", "labels");
  const canvas = svgElement("svg", "", {"aria-hidden": "true"});
  area.replaceChildren(canvas, labels);
  const {shown, small} = state.view === "assigned" ? bundles() : {shown: [], small: []};
  state.arrows = {shown, small};
  if (!state.lanes.length || !shown.length) {
    area.style.height = state.lanes.length ? "14px" : "10px";
    return;
  }
  new Arrows(area, canvas, labels, shown).draw();
}

/** The copies of each kind, and separately the kinds that are too small to be drawn. */
function bundles() {
  const found = KINDS.map((name, kind) => ({name, kind, bytes: 0, unknown: 0, aRow: 0, copies: []}));
  for (const copy of state.program.copies) addCopy(found[copy.kind], copy);
  const used = found.filter(each => each.copies.length);
  const all = used.reduce((sum, each) => sum + each.bytes, 0);
  const isSmall = each => !each.unknown && (each.bytes < all * SMALL || (each.name === "other" && each.bytes < 4096));
  return {shown: used.filter(each => !isSmall(each)), small: used.filter(isSmall)};
}

class Arrows {
  constructor(area, canvas, labels, shown) {
    Object.assign(this, {area, canvas, labels, shown});
    this.laneOf = new Map(state.lanes.flatMap((lane, at) => lane.map(device => [device, at])));
    this.several = state.hosts.length > 1;
    for (const each of shown) each.isBus = this.several || each.copies.some(copy => this.isGpu(copy.from) && this.isGpu(copy.to));
    this.anyBus = shown.some(each => each.isBus);
    this.places = this.placesInLanes();
    this.height = this.anyBus ? TOP + shown.length * BUS_STEP + this.places.length * END_STEP + 24 : 34 + shown.length * STEP;
    area.style.height = `${this.height}px`;
    this.measure();
  }

  isGpu(device) { return this.laneOf.has(device); }

  /** The positions of kinds in a lane, such as `0in`, `3out`: forward kinds, then backward kinds. */
  placesInLanes() {
    const forward = [], backward = [];
    for (const {kind, name, copies} of this.shown) {
      for (const [direction, end] of [["in", "to"], ["out", "from"]]) {
        if (copies.some(copy => this.isGpu(copy[end]))) (UPWARDS.includes(name) ? backward : forward).push(`${kind}${direction}`);
      }
    }
    return [...forward, ...backward];
  }

  measure() {
    const base = this.area.getBoundingClientRect();
    const box = made => {
      const {left, right} = made.getBoundingClientRect();
      return {left: left - base.left, right: right - base.left};
    };
    this.laneBoxes = [...document.querySelectorAll("#lanes .lane")].map(box);
    this.hostBoxes = [...document.querySelectorAll("#hosts .host")].map(box);
    this.ends = this.laneBoxes.flatMap((_, at) => this.places.map(place => this.x(at, place))).sort((one, other) => one - other);
    this.used = new Set();
    const sums = state.lanes.flatMap(([device]) => [...trafficOf(device).values()].map(each => each.bytes));
    this.most = Math.max(1, ...sums);
  }

  x(lane, place) {
    const {left, right} = this.laneBoxes[lane];
    return left + ((right - left) * (this.places.indexOf(place) + 0.5)) / this.places.length;
  }

  thickness(bytes) { return Math.max(1.5, THICKEST * Math.sqrt(Math.min(bytes / this.most, 2))); }

  draw() {
    this.shown.forEach((bundle, at) => this.drawBundle(bundle, at));
    this.keepInside();
  }

  /** Moves labels of the last lane into the picture. */
  keepInside() {
    const most = this.area.clientWidth;
    const found = [...this.labels.querySelectorAll(".amount")].map(label => [label, most - label.offsetWidth / 2]);
    for (const [label, left] of found) if (parseFloat(label.style.left) > left) label.style.left = `${left}px`;
  }

  drawBundle(bundle, at) {
    const y = this.anyBus ? TOP + at * BUS_STEP + BUS_STEP / 2 : 14 + at * STEP + STEP / 2;
    this.drawKind(bundle, y);
    const ends = [];
    for (const direction of ["in", "out"]) {
      const place = `${bundle.kind}${direction}`;
      if (this.places.includes(place)) {
        state.lanes.forEach((lane, number) => ends.push(this.drawLaneEnd(bundle, lane, number, place, direction, y)));
      }
      if (bundle.isBus) state.hosts.forEach((host, number) => ends.push(this.drawHostEnd(bundle, host, number, direction, at, y)));
    }
    const xs = ends.filter(x => x !== null);
    if (bundle.isBus && xs.length) this.line(Math.min(...xs), y, Math.max(...xs), y, bundle.name, 3);
  }

  drawKind({name, copies}, y) {
    if (isNarrow()) return;
    const among = copies.some(copy => this.isGpu(copy.from) && this.isGpu(copy.to));
    const down = copies.some(copy => this.isGpu(copy.to)), up = copies.some(copy => this.isGpu(copy.from));
    const words = element("span", `kind ${name}`, `${among ? "⇄" : down && up ? "⇅" : up ? "▲" : "▼"} ${name}`);
    words.style.top = `${y}px`;
    this.labels.append(words);
  }

  /** Draws the end of a bundle at a lane; returns null if there is none. */
  drawLaneEnd(bundle, lane, number, place, direction, y) {
    const {name, isBus} = bundle;
    const sum = trafficOf(lane[0]).get(place);
    const x = this.x(number, place), down = direction === "in";
    const labelY = this.anyBus ? TOP + this.shown.length * BUS_STEP + 12 + this.places.indexOf(place) * END_STEP : y;
    if (!sum) {
      if (this.isMissing(bundle, lane, place, down)) this.drawMissing(name, lane, x, isBus ? y : 4, labelY, down);
      return null;
    }
    const width = this.thickness(sum.bytes), head = width + 4;
    this.line(x, isBus ? y : down ? 0 : head, x, this.height - (down ? head : 0), name, width);
    if (down) this.head(x, this.height, true, name, width);
    else if (!isBus) this.head(x, 0, false, name, width);
    else this.dot(x, y, name, width);
    this.label(x, labelY, amountText(sum), name, `${groupName(lane)}: ${name} ${down ? "in" : "out"}`, sum);
    return x;
  }

  /** Whether a GPU lacks parameters or gradients that other GPUs copy. */
  isMissing({name, kind}, lane, place, down) {
    const {counts} = state;
    const traffic = trafficOf(lane[0]);
    const others = state.lanes.some(other => other !== lane && trafficOf(other[0]).has(place));
    const gives = traffic.has(`${kind}${down ? "out" : "in"}`);
    const needs = down ? name === "parameters" && !sumVariables(counts.variables(0, lane[0])).trained : name === "gradients";
    return others && !gives && needs;
  }

  drawMissing(name, lane, x, from, labelY, down) {
    this.line(x, from, x, this.height - 2, "missing", 1.5);
    const label = this.words(x, labelY, isNarrow() ? "✕" : "✕ none", "missing");
    const why = down ? `no ${name} are copied to it, unlike to other GPUs` : `no ${name} are copied from it, unlike from other GPUs: the tower does not count`;
    describe(label, `${groupName(lane)}: ${name}`, why, () => []);
  }

  /** Draws the end of a bus at a host, in a gap between the ends at lanes. */
  drawHostEnd(bundle, host, number, direction, at, y) {
    const sum = trafficOf(host[0]).get(`${bundle.kind}${direction}`);
    if (!sum) return null;
    const down = direction === "in";
    const {left, right} = this.hostBoxes[number];
    const wanted = left + ((right - left) * (at * 2 + (down ? 2 : 1))) / (this.shown.length * 2 + 1);
    const x = this.gapNear(wanted, left + 8, right - 8);
    const width = Math.min(14, this.thickness(sum.bytes));
    this.line(x, down ? width + 4 : 0, x, y, bundle.name, width);
    if (down) this.head(x, 0, false, bundle.name, width);
    else this.dot(x, y, bundle.name, width);
    this.label(x, down ? 25 : 15, amountText(sum), bundle.name, `${groupName(host)}: ${bundle.name} ${down ? "in" : "out"}`, sum);
    return x;
  }

  gapNear(wanted, left, right) {
    const gaps = this.ends.slice(1).map((x, at) => (x + this.ends[at]) / 2);
    const free = gaps.filter(x => !this.used.has(x) && x > left && x < right);
    const x = free.sort((one, other) => Math.abs(one - wanted) - Math.abs(other - wanted))[0] ?? wanted;
    this.used.add(x);
    return x;
  }

  line(x1, y1, x2, y2, name, width) {
    this.canvas.append(svgElement("path", `wire ${name}`, {d: `M${x1} ${y1}L${x2} ${y2}`, "stroke-width": width}));
  }

  head(x, y, down, name, width) {
    const half = Math.max(5, width * 0.9 + 2), high = half * 1.25 * (down ? -1 : 1);
    this.canvas.append(svgElement("path", `tip ${name}`, {d: `M${x - half} ${y + high}h${2 * half}L${x} ${y}z`}));
  }

  dot(x, y, name, width) {
    this.canvas.append(svgElement("circle", `tip ${name}`, {cx: x, cy: y, r: Math.max(3, width / 2)}));
  }

  words(x, y, text, look) {
    const made = button(`amount ${look}`, text);
    made.style.left = `${x}px`;
    made.style.top = `${y}px`;
    this.labels.append(made);
    return made;
  }

  label(x, y, text, look, title, sum) {
    const made = this.words(x, y, text, look);
    const ops = () => [...new Set(sum.copies.map(copy => copy.op))];
    describe(made, title, plural(sum.copies.length, "copy", "copies"), ops, () => copiesInFull(sum));
    made.addEventListener("click", () => light(ops(), title));
  }
}

/** The copies of an arrow by devices and by layers. */
function copiesInFull({copies}) {
  const {program} = state;
  const table = (title, keyOf) => {
    const sums = new Map();
    for (const copy of copies) {
      const key = keyOf(copy);
      if (!sums.has(key)) sums.set(key, {bytes: 0, unknown: 0, aRow: 0, copies: []});
      addCopy(sums.get(key), copy);
    }
    const list = element("ul", "sums");
    const found = [...sums].sort(([, one], [, other]) => other.bytes - one.bytes || other.aRow - one.aRow);
    for (const [words, sum] of found.slice(0, 12)) {
      list.append(element("li", "", `${words}: ${amountText(sum)} in ${plural(sum.copies.length, "copy", "copies")}`));
    }
    return element("div", "", null, element("h3", "", title), list, found.length > 12 ? element("p", "small", `and ${found.length - 12} more`) : null);
  };
  return element("div", "", null,
    table("between", ({from, to}) => `${program.label(from)} → ${program.label(to)}`),
    table("of", ({op}) => program.rowNames[program.topOf(program.row[op])]));
}
