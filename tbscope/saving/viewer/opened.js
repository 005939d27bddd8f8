// Opened boxes as a text for an address: `encoder(layers(0-11*3(mlp)!norm`.
//
// A bracket leads into a box, "!" is between two boxes of a level, and "*3" is the block that a box
// of equal blocks shows. Brackets at the end are left out: programs that find links in a text cut
// them.

import {blockOf, boxesAround, shownFor, showBlock} from "./graph.js";

const MOST_LETTERS = 1500;

/**
 * Returns the opened boxes as a text, or null if the name of what is selected leads to them.
 *
 * Where the text would be too long for an address, only the boxes around what is selected count.
 */
export function openedText(graph, selected) {
  const text = writeOpened(graph.root, {open: (box) => box.open, shows: (box) => box.shows});
  if (text.length > MOST_LETTERS || text === writeOpened(graph.root, openedBy(graph, selected))) return null;
  return text || ")";
}

/** Returns what is open where only the selected thing is known. */
function openedBy(graph, selected) {
  const shown = new Map(graph.first.map((box) => [box, 0]));
  const around = boxesAround(selected);
  around.forEach((box, depth) => {
    shown.set(box, box.times ? blockOf(box, around[depth + 1] || shownFor(selected)) : 0);
  });
  return {open: (box) => shown.has(box), shows: (box) => box.times ? shown.get(box) : null};
}

function writeOpened(box, state) {
  const parts = [];
  for (const child of childrenOf(box, state.shows(box))) {
    if (!child.isBox || !state.open(child)) continue;
    const shows = state.shows(child), inside = writeOpened(child, state);
    const block = child.times && shows !== 0 ? `*${shows === null ? "all" : shows + 1}` : "";
    parts.push(`${escaped(child.label)}${block}${inside ? `(${inside})` : ""}`);
  }
  return box.around ? parts.join("!") : parts.join("!").replace(/\)+$/, "");
}

function childrenOf(box, shows) {
  const {children} = box.level;
  if (!box.times || shows === null) return children;
  const size = children.length / box.times;
  return children.slice(shows * size, (shows + 1) * size);
}

function escaped(label) {
  const code = (sign) => `%${sign.charCodeAt(0).toString(16)}`;
  return encodeURIComponent(label).replace(/[!*()]/g, code);
}

/** Returns the boxes that a text names: each with its label, the block that it shows, and those inside. */
export function readOpened(text) {
  const root = {inside: []};
  const path = [root];
  for (const [part] of text.matchAll(/[()!]|[^()!]+/g)) {
    const level = path[path.length - 1].inside;
    if (part === "(" && level.length) path.push(level[level.length - 1]);
    else if (part === ")" && path.length > 1) path.pop();
    else if (!"()!".includes(part)) {
      const [label, block] = part.split("*");
      level.push({label: decoded(label), shows: block === "all" ? null : Math.max(0, parseInt(block || "1", 10) - 1) || 0, inside: []});
    }
  }
  return root.inside;
}

/** Returns a name for an address, with its slashes: people read and write it. */
export function encoded(name) {
  return encodeURIComponent(name).replaceAll("%2F", "/");
}

/** Returns the text that was encoded for an address; of one that was not, the text itself. */
export function decoded(text) {
  try { return decodeURIComponent(text); } catch { return text; }
}

/** Opens just the boxes that a text names, as far as the graph has them; for null, those open at first. */
export async function openBoxes(graph, text) {
  for (const thing of graph.things.values()) {
    thing.layout = null;
    if (thing !== graph.root) thing.open = false;
  }
  if (text === null) for (const box of graph.first) box.open = true;
  else await openNamed(graph, readOpened(text), graph.root);
}

async function openNamed(graph, named, around) {
  await Promise.all(named.map(async ({label, shows, inside}) => {
    const box = around.level.children.find((child) => child.isBox && child.label === label);
    if (!box) return;
    await graph.load(box);
    if (box.times) showBlock(box, shows === null ? null : Math.min(shows, box.times - 1));
    box.open = true;
    await openNamed(graph, inside, box);
  }));
}
