// Colours: what nodes and boxes are filled by, the words that say the same, and the legend.
//
// The colours themselves are properties of the style sheet, `--fill-0` to `--fill-13` with their
// rims, which the palette of the package makes.

import {pairs} from "./graph.js";
import {shorten} from "./layout.js";
import {make, shape} from "./elements.js";

const COLOURS = 14;
// Of what has no text, and of the texts after the most frequent ones: more than 14 colours are not
// apart for all eyes, and a colour that came again would say that two texts are one.
const PLAIN = {name: "plain"};
const FATES = ["added", "removed", "changed", "same"];
const TITLES = {
  label: "color_by", class: "class", kind: "kind of operation", dtype: "element type", device: "device",
  trainable: "trainable", stage: "stage of the step", rank: "rank",
};
const WORDS = "Words", NUMBERS = "Numbers", OVERLAYS = "Overlays";

/**
 * Returns the ways to colour a graph, by what its first answer says that it has.
 *
 * Each has `of(thing)`, a colour; `text(thing)`, the words for it; and `below(thing)`, what of these
 * is written below the label of a node or a closed box. One with `load()` is asked for first: it
 * returns a promise of the ways that stand for it.
 */
export function colourModes(head, words, source) {
  const modes = [];
  const add = (key) => {
    if (!(key in head.modes)) return;
    const found = pairs(head.modes[key]).map(([text, count]) => [words[text], count]);
    modes.push(key === "label" && head.differences.length ? fateMode(found) : wordMode(key, found));
  };
  for (const key of ["label", "class", "kind"]) add(key);
  addDefinitions(modes, head, words);
  for (const key of ["dtype", "device", "trainable", "stage", "rank"]) add(key);
  for (const [key, {title, most}] of Object.entries(head.figures)) {
    modes.push(figureMode(NUMBERS, {key, title, most}, (thing) => thing.figures[key]));
  }
  for (const [key, title] of Object.entries(head.asked)) modes.push(askedMode(NUMBERS, key, title, () => source.figures({key})));
  for (const {tag} of source.overlays ? source.overlays() : []) {
    modes.push(askedMode(OVERLAYS, `overlay ${tag}`, tag.trimEnd(), () => source.figures({overlay: tag})));
  }
  modes.push({key: "none", title: "nothing", of: () => PLAIN, legend: [], text: () => "", below: () => ""});
  return modes;
}

/** Returns the options of the list of modes, in groups. */
export function modeOptions(modes) {
  const groups = new Map(), options = [];
  for (const {key, title, group} of modes) {
    const option = make("option", {value: key}, title);
    if (group && !groups.has(group)) {
      groups.set(group, make("optgroup", {label: group}));
      options.push(groups.get(group));
    }
    if (group) groups.get(group).append(option);
    else options.push(option);
  }
  return options;
}

/** Of two graphs that are compared, colours say what became of each part; what is the same has none. */
function fateMode(found) {
  const order = found.sort(([one], [other]) => FATES.indexOf(one) - FATES.indexOf(other));
  const colours = new Map(order.map(([text]) => [text, text === "same" ? PLAIN : {name: text}]));
  // In every way to colour, the words are in the boxes.
  return {...wordMode("label", order, colours), title: "difference", below: () => ""};
}

function wordMode(key, order, colours = colourEach(order.map(([text]) => text))) {
  const of = (thing) => thing.texts[key] || "";
  // A box that is none of these itself shows the shares of what is in it, the most frequent first.
  const shares = (thing) => {
    if (!thing.isBox || of(thing)) return [];
    const found = new Map(thing.shares[key]), total = [...found.values()].reduce((sum, count) => sum + count, 0);
    return order.filter(([text]) => found.has(text))
      .map(([text]) => ({text, colour: colours.get(text), part: found.get(text) / total}));
  };
  // An open box shows what is in it.
  const text = (thing) => of(thing) || (thing.open ? "" : listed(shares(thing).map((share) => share.text)));
  return {
    key, title: TITLES[key], group: WORDS, text, shares,
    below: (thing) => key === "class" || isWritten(thing, text(thing)) ? "" : text(thing),
    of: (thing) => colours.get(of(thing)) || PLAIN,
    legend: entries(order.map(([name, count]) => ({
      text: name, count, colour: colours.get(name), has: (thing) => of(thing) === name,
      below: (box) => box.below[key].has(name),
    }))),
  };
}

/** Boxes with the same inside have the same colour; a box whose inside occurs once has none. */
function addDefinitions(modes, head, words) {
  const several = [];
  for (let at = 0; at < head.equal.length; at += 3) {
    const [structure, title, count] = head.equal.slice(at, at + 3);
    several.push([structure, words[title], count]);
  }
  if (!several.length) return;
  const colours = colourEach(several.map(([structure]) => structure));
  const names = new Map(several);
  modes.push({
    key: "definition", title: "equal boxes", group: WORDS,
    text: (thing) => names.get(thing.structure) || "", below: () => "",
    of: (thing) => colours.get(thing.structure) || PLAIN,
    legend: entries(several.map(([structure, text, count]) => ({
      text, count, colour: colours.get(structure),
      has: (thing) => thing.structure === structure, below: (box) => box.same.has(structure),
    }))),
  });
}

function colourEach(keys) {
  return new Map(keys.map((key, place) => [key, place < COLOURS ? {name: String(place)} : PLAIN]));
}

/** Returns what the legend lists: all that has a colour of its own, and the others as one. */
function entries(all) {
  const rest = all.slice(COLOURS);
  if (!rest.length) return all;
  const count = rest.reduce((sum, one) => sum + one.count, 0);
  return [...all.slice(0, COLOURS), {
    text: `${rest.length} ${rest.length === 1 ? "other" : "others"}`, count, colour: PLAIN,
    has: (thing) => rest.some((one) => one.has(thing)), below: (box) => rest.some((one) => one.below(box)),
  }];
}

function listed(texts) {
  const most = 2, rest = texts.length - most;
  return texts.slice(0, most).join(", ") + (rest > 0 ? ` +${rest}` : "");
}

/** Returns whether a text is among the words at a thing anyway. */
function isWritten(thing, text) {
  const words = (all) => ` ${all.toLowerCase().split(/[^\p{L}\p{N}.]+/u).join(" ")} `;
  return words(`${thing.label} ${thing.second}`).includes(words(text));
}

function figureMode(group, {key, title, most}, numberOf) {
  const known = (thing) => typeof numberOf(thing) === "number";
  const text = (thing) => known(thing) ? short(numberOf(thing), key) : "";
  // The square root of a number is the way along the scale: small ones differ more.
  const ticks = [0, Number((most / 9).toPrecision(2)), Number((most * 4 / 9).toPrecision(2)), most]
    .map((number) => ({at: Math.sqrt(number / most), text: short(number, key)}));
  return {
    key, title, group, text, below: text, legend: [],
    of: (thing) => known(thing) ? {heat: Math.sqrt(Math.min(1, numberOf(thing) / most))} : PLAIN,
    scale: {ticks, note: "square root scale"},
  };
}

function askedMode(group, key, title, ask) {
  const load = async () => (await ask()).figures.map((figure, order) => {
    const numbers = new Map(figure.at.map((at, place) => [at, figure.numbers[place]]));
    return {...figureMode(group, figure, (thing) => numbers.get(thing.at)), key: order ? `${key} ${figure.key}` : key};
  });
  return {key, title, group, load};
}

/** Gives a number as people read it: 4.34 G, of bytes 8.11 MiB, of microseconds 1.20 ms. */
export function short(number, key) {
  const bytes = key.endsWith("bytes"), time = key.endsWith("_us"), step = bytes ? 1024 : 1000;
  const units = bytes ? ["B", "KiB", "MiB", "GiB", "TiB", "PiB"] : time ? ["µs", "ms", "s"] : ["", "k", "M", "G", "T", "P"];
  let power = 0;
  while (Math.abs(number) >= step && power < units.length - 1) { number /= step; power += 1; }
  const text = power ? number.toPrecision(3) : String(Number.isInteger(number) ? number : Number(number.toPrecision(3)));
  return units[power] ? `${text} ${units[power]}` : text;
}

/** Sets the stripes of a closed box: each colour as wide as its share. */
export function stripe(group, body, parts, id) {
  const gradient = shape("linearGradient", {id});
  let start = 0;
  for (const {colour, part} of parts) {
    for (const offset of [start, start + part]) {
      const stop = shape("stop", {offset: offset.toFixed(4)});
      paint(stop, colour);
      gradient.append(stop);
    }
    start += part;
  }
  group.append(gradient);
  body.style.fill = `url(#${id})`;
}

/** Sets the colour of an element, which the style sheet makes light or dark. */
export function paint(element, {name, heat}) {
  const hot = `color-mix(in srgb, var(--hot) ${Math.round(heat * 100)}%, var(--cold))`;
  element.style.setProperty("--fill", name ? `var(--fill-${name})` : hot);
  element.style.setProperty("--rim", name ? `var(--rim-${name})` : "var(--heat-rim)");
}

/** Shows what the colours mean; `pick` is called with the entry that is pressed, or with null. */
export function showLegend(holder, mode, pick) {
  holder.replaceChildren();
  if (!mode.legend.length && !mode.scale) return;
  holder.append(make("h2", {}, mode.title));
  if (mode.scale) return showScale(holder, mode.scale);
  const list = make("ul");
  for (const entry of mode.legend) {
    const swatch = make("i");
    paint(swatch, entry.colour);
    const button = make("button", {"aria-pressed": "false", title: entry.text}, swatch,
      make("span", {}, shorten(entry.text)), make("small", {}, String(entry.count)));
    button.addEventListener("click", () => press(list, button, entry, pick));
    list.append(make("li", {}, button));
  }
  list.addEventListener("keydown", (event) => walk(list, event, pick));
  holder.append(list);
}

function press(list, button, entry, pick) {
  const again = !button || button.getAttribute("aria-pressed") === "true";
  for (const one of list.querySelectorAll("button")) one.setAttribute("aria-pressed", String(!again && one === button));
  pick(again ? null : entry);
}

/** Goes to the next entry of a legend or the one before, and on Escape picks none. */
function walk(list, event, pick) {
  const all = [...list.querySelectorAll("button")], at = all.indexOf(event.target.closest("button"));
  const next = {ArrowDown: at + 1, ArrowUp: at - 1, Home: 0, End: all.length - 1}[event.key];
  if (event.key === "Escape") press(list, null, null, pick);
  else if (next === undefined) return;
  else if (all[next]) all[next].focus();
  event.preventDefault();
}

function showScale(holder, {ticks, note}) {
  const marks = ticks.map(({at, text}) => {
    const mark = make("span", {}, text);
    mark.style.left = `${at * 100}%`;
    return mark;
  });
  holder.append(make("div", {class: "scale"}, make("i"), ...marks), make("small", {}, note));
}
