// Search: finds boxes, nodes and parameters by any word of their cards.

import {make} from "./elements.js";

const MOST_HITS = 60;

/** Returns a function from a pattern to the numbers of what it finds, the best first. */
export function searcher(index) {
  const texts = index.name.map((name, at) => [name, index.class[at], index.kind[at], ...index.outputs[at],
    ...index.facts[at].filter((value, place, all) => place % 2 && all[place - 1] !== "kernels"),
  ].join("\n").toLowerCase());
  return (pattern) => {
    const words = pattern.toLowerCase().split(/\s+/).filter((word) => word);
    if (!words.length) return [];
    const found = [];
    // The root, which is the first, is not found.
    for (let at = 1; at < texts.length; at += 1) {
      if (words.every((word) => texts[at].includes(word))) found.push([rank(index, at, words), at]);
    }
    return found.sort(([one, first], [other, second]) => one - other || first - second).map(([, at]) => at);
  };
}

/** The label itself first, then labels that begin so, boxes before nodes, and last other facts. */
function rank(index, at, words) {
  const label = index.label[at].toLowerCase(), name = index.name[at].toLowerCase();
  const last = words[words.length - 1];
  if (label === last || name === words.join(" ")) return 0;
  if (label.startsWith(last)) return 1;
  // Boxes have lower numbers than nodes.
  if (words.every((word) => name.includes(word))) return 2;
  if (words.every((word) => index.class[at].toLowerCase().includes(word))) return 4;
  return 5;
}

export function addSearch(input, list, view) {
  let hits = [], chosen = -1, index = null, find = null, searched = null;
  const mark = (place) => {
    chosen = place;
    [...list.children].forEach((item, at) => item.setAttribute("aria-selected", String(at === place)));
    if (list.children[place]) {
      list.children[place].scrollIntoView({block: "nearest"});
      input.setAttribute("aria-activedescendant", list.children[place].id);
    } else input.removeAttribute("aria-activedescendant");
  };
  const reveal = (shown) => {
    list.hidden = !shown;
    input.setAttribute("aria-expanded", String(Boolean(shown)));
  };
  const update = async () => {
    const pattern = input.value;
    const {graph} = view;
    if (pattern.trim() && searched !== graph) {
      const found = await graph.index();
      // What was typed meanwhile has its own call.
      if (pattern !== input.value || graph !== view.graph) return;
      if (searched !== graph) [index, find, searched] = [found, searcher(found), graph];
    }
    hits = pattern.trim() ? find(pattern) : [];
    list.replaceChildren(...hits.slice(0, MOST_HITS).map((number, at) => {
      const item = make("li", {id: `hit${at}`, role: "option", "aria-selected": "false"},
        make("span", {}, index.name[number]), make("small", {}, index.class[number]));
      item.addEventListener("mousedown", (event) => { event.preventDefault(); mark(at); view.show(number); });
      return item;
    }));
    if (hits.length > MOST_HITS) list.append(make("li", {class: "more"}, `and ${hits.length - MOST_HITS} more`));
    if (!hits.length && pattern.trim()) list.append(make("li", {class: "more"}, "nothing found"));
    reveal(pattern.trim());
    view.mark(hits, index);
    mark(-1);
  };
  let updated = null;
  /** Shows the next or the previous hit, as soon as what was typed has its hits. */
  const step = async (by) => {
    await updated;
    const most = Math.min(hits.length, MOST_HITS);
    if (most) { mark((chosen + by + most) % most); view.show(hits[chosen]); }
  };
  input.addEventListener("input", () => { updated = update(); });
  input.addEventListener("focus", () => reveal(input.value.trim()));
  input.addEventListener("blur", () => reveal(""));
  input.addEventListener("keydown", (event) => {
    if (event.key === "ArrowDown" || (event.key === "Enter" && !event.shiftKey)) {
      step(1);
    } else if (event.key === "ArrowUp" || event.key === "Enter") {
      step(-1);
    } else if (event.key === "Escape") {
      input.value = "";
      update();
      view.focus();
    } else return;
    event.preventDefault();
    event.stopPropagation();
  });
}
