// Keys: / for the search, Escape, and arrows between boxes.

const MOVES = {ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0]};

function boxesOfLanes() { return [...document.querySelectorAll("#lanes [role=gridcell] > button")]; }

/** Makes the boxes one tab stop; the arrow keys move between them. */
function oneTabStop(area) {
  const boxes = [...area.querySelectorAll("[role=gridcell] > button")];
  boxes.forEach((box, at) => { box.tabIndex = at ? -1 : 0; });
}

function placeOf(box) {
  const {gridRow, gridColumn} = box.parentNode.style;
  return [parseInt(gridRow, 10), parseInt(gridColumn, 10)];
}

function moveFrom(box, [down, right]) {
  const [row, column] = placeOf(box);
  const distance = other => {
    const [itsRow, itsColumn] = placeOf(other);
    const ahead = down ? (itsRow - row) * down : itsRow === row ? (itsColumn - column) * right : 0;
    return ahead > 0 ? Math.abs(itsRow - row) * 1000 + Math.abs(itsColumn - column) : Infinity;
  };
  const near = boxesOfLanes().map(other => [distance(other), other]).filter(([far]) => far < Infinity);
  if (!near.length) return false;
  const [, next] = near.reduce((best, each) => (each[0] < best[0] ? each : best));
  box.tabIndex = -1;
  next.tabIndex = 0;
  next.focus();
  return true;
}

function listenForKeys() {
  addEventListener("keydown", event => {
    const on = document.activeElement;
    if (event.key === "/" && on.tagName !== "INPUT") {
      event.preventDefault();
      byId("search").focus();
    } else if (event.key === "Escape") {
      hideTip();
      if (on === byId("search")) clearLights();
      closeDetails();
    } else if (MOVES[event.key] && on.matches("#lanes [role=gridcell] > button")) {
      if (moveFrom(on, MOVES[event.key])) event.preventDefault();
    }
  });
}
