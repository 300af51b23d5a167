// Texts, numbers and elements. Names from a program, graph or log are only set as text.

const byId = id => document.getElementById(id);

/** Creates an element with a class, a text and inner elements. */
function element(tag, look = "", text = null, ...inside) {
  const made = document.createElement(tag);
  if (look) made.className = look;
  if (text !== null) made.textContent = text;
  made.append(...inside.filter(each => each !== null && each !== undefined));
  return made;
}

/** Creates a button with an action and a label for screen readers. */
function button(look, text, action, label = null) {
  const made = element("button", look, text);
  made.type = "button";
  if (action) made.addEventListener("click", action);
  if (label) made.setAttribute("aria-label", label);
  return made;
}

const SVG = "http://www.w3.org/2000/svg";

function svgElement(tag, look, attributes, ...inside) {
  const made = document.createElementNS(SVG, tag);
  if (look) made.setAttribute("class", look);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...inside);
  return made;
}

function plural(number, noun, several = `${noun}s`) {
  return `${number.toLocaleString("en")} ${number === 1 ? noun : several}`;
}

/** Joins texts: `3 and 4`, `1, 2 and 3`. */
function joinAnd(things) {
  if (things.length < 2) return things.join("");
  return `${things.slice(0, -1).join(", ")} and ${things[things.length - 1]}`;
}

/** Joins the first texts, and the number of others. */
function firstOf(things, most) {
  const left = things.length - most;
  return left > 0 ? `${things.slice(0, most).join(", ")} and ${left} more` : joinAnd(things);
}

function bytesText(bytes) {
  for (const [unit, of] of [["GB", 1e9], ["MB", 1e6], ["kB", 1e3]]) {
    if (bytes < of * 0.9995) continue;
    const number = bytes / of;
    return `${number >= 99.5 ? Math.round(number) : number.toPrecision(number >= 9.95 ? 3 : 2)} ${unit}`;
  }
  return `${bytes} B`;
}

/** The size of copies: `1.2 kB`, `6.9 kB/row` if it depends on the rows of the batch, or `?`. */
function amountText(sum) {
  const parts = [];
  if (sum.bytes || !sum.unknown) parts.push(bytesText(sum.bytes));
  if (sum.unknown) parts.push(sum.aRow ? `${bytesText(sum.aRow)}/row` : "?");
  return parts.join(" + ");
}

/** Counts values, the most frequent first: `MatMul ×3, Add`. */
function tally(values, most) {
  const count = new Map();
  for (const value of values) if (value) count.set(value, (count.get(value) || 0) + 1);
  const found = [...count].sort((one, other) => other[1] - one[1]);
  const words = found.slice(0, most).map(([value, n]) => (n > 1 ? `${value} ×${n.toLocaleString("en")}` : value));
  return words.join(", ") + (found.length > most ? ", …" : "");
}
