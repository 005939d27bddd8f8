// Elements: makes those of HTML and of SVG; every text of a graph is put there as text.

const SVG = "http://www.w3.org/2000/svg";
const MOST_LETTERS_SHOWN = 20000, MOST_LETTERS_BROKEN = 1000;
// The signs of tbscope.messages.visible.
const OBEYED = new RegExp("[\\x00-\\x08\\x0b-\\x1f\\x7f-\\x9f\\xad\\u061c\\u180e\\u200b\\u200e\\u200f\\u2028-\\u202e"
  + "\\u2060-\\u206f\\ufeff\\ufff9-\\ufffb\\p{Surrogate}\\u{e0000}-\\u{e007f}]", "gu");

/** Makes an element of HTML. */
export function make(name, attributes = {}, ...children) {
  return filled(document.createElement(name), attributes, children);
}

/** Makes an element of SVG. */
export function shape(name, attributes = {}, ...children) {
  return filled(document.createElementNS(SVG, name), attributes, children);
}

/** Fills a list with rows of a value and a text; none is chosen where the chosen value is not among them. */
export function fill(select, rows, chosen) {
  select.replaceChildren(...rows.map(([value, text]) => make("option", {value}, text)));
  select.value = chosen;
}

/** Copies a text; returns whether the browser has let it. */
export async function copyText(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    // A page without HTTPS, or the frame of a notebook.
    const field = make("textarea", {readonly: ""});
    field.value = text;
    document.body.append(field);
    field.select();
    const done = document.execCommand("copy");
    field.remove();
    return done;
  }
}

/** Returns a text in parts between which a line may end: in names, behind underscores and dots. */
export function breakable(text, between = /(?<=[_/.])(?=[^_/.\d])/) {
  if (text.length > MOST_LETTERS_BROKEN) return [text];
  return text.split(between).flatMap((part, place) => place ? [make("wbr"), part] : [part]);
}

function filled(element, attributes, children) {
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  element.append(...children.map((child) => typeof child === "string" ? visible(brief(child, MOST_LETTERS_SHOWN)) : child));
  return element;
}

/** Returns a text with escapes for control characters, and for what turns the direction of a text. */
export function visible(text) {
  const unit = (sign, at) => `\\u${sign.charCodeAt(at).toString(16).padStart(4, "0")}`;
  return text.replace(OBEYED, (sign) => unit(sign, 0) + (sign.length > 1 ? unit(sign, 1) : ""));
}

/** Returns a text with most letters; of a longer one, its start and its length. */
export function brief(text, most) {
  return text.length <= most ? text : `${text.slice(0, most)}… (${text.length.toLocaleString("en")} letters)`;
}
