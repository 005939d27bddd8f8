// Export: what is drawn as a picture of its own, the whole graph as a page, and a link to what is
// shown.

import {shape} from "./elements.js";

const AROUND = 16, PIXELS_PER_UNIT = 2;
// Browsers refuse larger canvases.
const MOST_PIXELS = 6e7, MOST_SIDE = 16000;
// What style sheets set for the shapes of the drawing, with the values that need no attribute.
const STYLES = {
  fill: "rgb(0, 0, 0)", "fill-opacity": "1", stroke: "none", "stroke-width": "1px", "stroke-opacity": "1",
  "stroke-dasharray": "none", "stroke-linejoin": "miter", "paint-order": "normal", opacity: "1",
};
const OF_TEXT = {"text-anchor": "start", "font-size": "", "font-weight": "400"};
const OF_STOPS = {"stop-color": "rgb(0, 0, 0)"};
const LEFT_OUT = /^(?:class|style|role|tabindex|data-.*|aria-.*)$/;
const CONTROLS = ".sign, .turn";
const COLOUR = /^color\(srgb ([\d.e-]+) ([\d.e-]+) ([\d.e-]+)(?: \/ [\d.e-]+)?\)$/;

/**
 * Has the menu "Save" work.
 *
 * @param {Element} menu - The menu, in which each button names what it saves.
 * @param {Element} button - What opens it.
 * @param {object} parts - `canvas` and `world`, the drawing; `title()`; `say(text)`; and `page()`,
 *   which may have `link()`, the address of what is shown, and `whole()`, a promise of the page of
 *   the whole graph.
 */
export function addExport(menu, button, {canvas, world, title, say, page}) {
  const saves = {
    svg: async () => download(new Blob([svgOf(canvas, world, title()).text], {type: "image/svg+xml"}), `${fileName(title())}.svg`),
    png: async () => download(await pngOf(svgOf(canvas, world, title())), `${fileName(title())}.png`),
    page: async () => download(await page().whole(), `${fileName(title())}.html`),
    link: async () => showLink(menu, page().link(), say),
  };
  const field = menu.querySelector("input");
  menu.addEventListener("beforetoggle", (event) => {
    if (event.newState !== "open") return;
    field.hidden = true;
    menu.querySelector("[value=page]").hidden = !page().whole;
    menu.querySelector("[value=link]").hidden = !(page().link && page().link());
    const {right, bottom} = button.getBoundingClientRect();
    Object.assign(menu.style, {top: `${bottom + 4}px`, right: `${Math.max(4, window.innerWidth - right)}px`});
  });
  menu.addEventListener("toggle", (event) => {
    if (event.newState === "open") menu.querySelector("button").focus();
  });
  menu.addEventListener("click", async ({target}) => {
    const save = saves[target.value];
    if (!save) return;
    say("");
    try {
      await save();
      if (field.hidden) menu.hidePopover();
    } catch (error) { say(error.message); }
  });
}

/** Returns the drawing as the text of an SVG, with its width and height. */
export function svgOf(canvas, world, title) {
  const drawing = world.firstElementChild;
  const {x, y, width, height} = drawing.getBBox();
  const [wide, high] = [width + 2 * AROUND, height + 2 * AROUND].map(Math.ceil);
  const style = getComputedStyle(canvas);
  const back = getComputedStyle(document.body).backgroundColor;
  const [left, top] = [Math.floor(x - AROUND), Math.floor(y - AROUND)];
  // What is selected is no part of the drawing.
  const marked = [...world.querySelectorAll(".selected, .counterpart, .near")].map((one) => [one, one.getAttribute("class")]);
  for (const [one] of marked) one.classList.remove("selected", "counterpart", "near");
  const svg = shape("svg", {
    width: wide, height: high, viewBox: `${left} ${top} ${wide} ${high}`, role: "img",
    "aria-labelledby": "title", "font-family": style.fontFamily,
  }, shape("title", {id: "title"}, title), copyOf(canvas.querySelector("defs")),
  shape("rect", {x: left, y: top, width: wide, height: high, fill: back}), copyOf(drawing));
  for (const [one, classes] of marked) one.setAttribute("class", classes);
  return {text: new XMLSerializer().serializeToString(svg), width: wide, height: high};
}

/** Copies an element with its computed style as attributes, and without what only controls. */
function copyOf(element) {
  const copy = shape(element.localName);
  for (const {name, value} of element.attributes) if (!LEFT_OUT.test(name)) copy.setAttribute(name, value);
  for (const child of element.childNodes) {
    if (child.nodeType === Node.TEXT_NODE) copy.append(child.data);
    else if (!child.matches(CONTROLS)) copy.append(copyOf(child));
  }
  if (element.localName === "title") return copy;
  const style = getComputedStyle(element);
  const text = element.localName === "text" ? OF_TEXT : element.localName === "stop" ? OF_STOPS : {};
  const own = ["g", "defs", "marker", "linearGradient"].includes(element.localName) ? {opacity: "1"} : {...STYLES, ...text};
  for (const [name, usual] of Object.entries(own)) {
    const value = style.getPropertyValue(name);
    if (value !== usual) copy.setAttribute(name, plainColour(value));
  }
  return copy;
}

/** Returns a computed value as every reader of SVG knows it. */
function plainColour(value) {
  const parts = COLOUR.exec(value);
  if (!parts) return value.replaceAll('"', "");
  return `rgb(${parts.slice(1, 4).map((part) => Math.round(255 * Number(part))).join(", ")})`;
}

/** Returns a promise of the picture of an SVG as a PNG. */
async function pngOf({text, width, height}) {
  const scale = Math.min(PIXELS_PER_UNIT, MOST_SIDE / width, MOST_SIDE / height, Math.sqrt(MOST_PIXELS / width / height));
  const address = URL.createObjectURL(new Blob([text], {type: "image/svg+xml"}));
  try {
    const image = new Image();
    image.src = address;
    await image.decode();
    const canvas = document.createElement("canvas");
    canvas.width = Math.round(width * scale);
    canvas.height = Math.round(height * scale);
    canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
    const data = await new Promise((done) => canvas.toBlob(done, "image/png"));
    if (!data) throw new Error("The browser makes no PNG as large as that: save an SVG, or close some boxes.");
    return data;
  } finally { URL.revokeObjectURL(address); }
}

function download(data, name) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(data);
  link.download = name;
  link.click();
  // A browser may begin to read it later.
  setTimeout(() => URL.revokeObjectURL(link.href), 60000);
}

/** Copies the address of what is shown; where a page may not copy, shows it selected. */
async function showLink(menu, address, say) {
  try {
    await navigator.clipboard.writeText(address);
    say("The link is copied.");
  } catch {
    const field = menu.querySelector("input");
    field.hidden = false;
    field.value = address;
    field.focus();
    field.select();
  }
}

function fileName(title) {
  return title.replace(/[^\p{L}\p{N}._-]+/gu, "_").slice(0, 80) || "graph";
}
