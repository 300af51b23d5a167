// The timeline of one step, with a lane for each device.

const TIME_WIDTH = 960, TIME_LABELS = 130, TIME_LANE = 30, TIME_GAP = 8, TIME_AXIS = 30;
const TICKS = 8;

function drawTimeline() {
  const area = byId("timeline");
  const {timeline} = state.program;
  area.hidden = !timeline;
  if (!timeline) return;
  const {seconds, lanes, caption} = timeline;
  const height = lanes.length * (TIME_LANE + TIME_GAP) + TIME_AXIS;
  const scale = (TIME_WIDTH - TIME_LABELS - 20) / (seconds || 1);
  const canvas = svgElement("svg", "", {viewBox: `0 0 ${TIME_WIDTH} ${height}`, role: "img", "aria-label": caption});
  canvas.append(...ticks(seconds, scale, height), ...lanes.flatMap((lane, at) => timeLane(lane, at, scale)));
  area.replaceChildren(element("h2", "", "Timeline of one step"), element("p", "small", caption), canvas);
}

function timeLane({label, gpu, spans}, at, scale) {
  const y = at * (TIME_LANE + TIME_GAP);
  const name = svgElement("text", "", {x: 0, y: y + TIME_LANE / 2 + 4});
  name.textContent = label;
  const boxes = spans.map(([op, ops, start, length]) => {
    const words = svgElement("title", "", {});
    words.textContent = `${ops > 1 ? `${ops} ops, ${op} the first` : op}: ${milliseconds(length)}`;
    const look = gpu ? "span gpu" : "span cpu";
    const width = Math.max(0.6, length * scale);
    return svgElement("rect", look, {x: TIME_LABELS + start * scale, y, width, height: TIME_LANE}, words);
  });
  return [name, ...boxes];
}

function ticks(seconds, scale, height) {
  if (seconds <= 0) return [];
  const power = 10 ** Math.floor(Math.log10(seconds / TICKS));
  const step = [1, 2, 5, 10].map(times => times * power).find(each => each >= seconds / TICKS);
  const found = [];
  for (let time = 0; time <= seconds; time += step) {
    const x = TIME_LABELS + time * scale;
    const words = svgElement("text", "tick", {x, y: height - 8, "text-anchor": "middle"});
    words.textContent = milliseconds(time);
    found.push(svgElement("line", "tick", {x1: x, x2: x, y1: 0, y2: height - TIME_AXIS + 4}), words);
  }
  return found;
}

function milliseconds(seconds) { return `${+(1000 * seconds).toPrecision(4)} ms`; }
