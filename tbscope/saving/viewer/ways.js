// Ways: where things are drawn, and which one a key leads to.

import {CIRCLE, shownFor} from "./graph.js";

/** Returns the middle and the size of what is drawn for a thing, in the units of the drawing. */
export function placeOf(thing) {
  let one = thing;
  while (one.around && !isDrawn(one)) one = one.around;
  if (!one.around) {
    const {width, height} = one.layout;
    return {x: width / 2, y: height / 2, width, height};
  }
  let {x, y, width, height} = one.around.layout.places.get(one.at);
  for (let box = one.around; box.around; box = box.around) {
    const at = box.around.layout.places.get(box.at);
    x += at.x - at.width / 2;
    y += at.y - at.height / 2;
  }
  return {x, y, width, height};
}

function isDrawn(thing) {
  if (thing.kind === CIRCLE) return false;
  for (let one = thing; one.around; one = one.around) {
    if (!one.around.open || !one.around.children.includes(one)) return false;
  }
  return true;
}

/** Returns what is next with the flow (1) or against it (-1): the end of a line, or the box around. */
export function along(from, way) {
  if (!from.around) return from.children[0];
  const thing = shownFor(from), [here, there] = way > 0 ? ["start", "end"] : ["end", "start"];
  const line = thing.around.lines.find((one) => one[here] === thing.at);
  if (line) return thing.around.children.find(({at}) => at === line[there]);
  return thing.around.around ? thing.around : null;
}

/** Returns the nearest thing of the level that is drawn to the right (1) or to the left (-1). */
export function beside(from, right) {
  if (!from.around) return from.children[0];
  const thing = shownFor(from), own = placeOf(thing);
  return thing.around.children.filter((other) => other !== thing)
    .map((other) => [placeOf(other), other])
    .filter(([{x}]) => (x - own.x) * right > 1)
    .sort(([one], [other]) => away(one, own) - away(other, own))
    .map(([, other]) => other)[0];
}

function away(one, other) {
  return Math.abs(one.x - other.x) + 3 * Math.abs(one.y - other.y);
}

/** Returns the first (0) or the last (-1) thing of a level. */
export function endOfLevel(thing, place) {
  return (thing.around || thing).children.at(place);
}

/** Returns the next of all things that are drawn (1), or the one before (-1). */
export function nextOf(thing, way) {
  let root = thing;
  while (root.around) root = root.around;
  const order = inOrder(root);
  const at = order.indexOf(thing);
  return at < 0 ? order[0] : order[at + way];
}

function inOrder(box) {
  return box.children.flatMap((child) => [child, ...child.isBox && child.open ? inOrder(child) : child.circles]);
}
