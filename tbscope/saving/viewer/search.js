// Search: finds boxes, nodes and parameters by any word that their cards tell.

const MOST_HITS = 60;

function searcher(things) {
  let texts = null;
  // Made when somebody searches: of a large graph it is some megabytes.
  const text = (thing) => [thing.name, thing.class, thing.sort,
    ...thing.outputs.map((one) => `${one.sizes} ${one.dtype}`),
    ...thing.facts.filter(([key]) => key !== "kernels").map(([, value]) => value)].join("\n").toLowerCase();
  return (pattern) => {
    const words = pattern.toLowerCase().split(/\s+/).filter((word) => word);
    if (!words.length) return [];
    texts = texts || things.map(text);
    const found = things.filter((thing) => thing.kind !== ROOT &&
      words.every((word) => texts[thing.at].includes(word)));
    return found.map((thing) => [rank(thing, words), thing])
      .sort(([one, first], [other, second]) => one - other || first.at - second.at)
      .map(([, thing]) => thing);
  };
}

/** The label itself first, then what begins with it, other names, and last what a card tells. */
function rank(thing, words) {
  const label = thing.label.toLowerCase(), name = thing.name.toLowerCase();
  const last = words[words.length - 1];
  if (label === last || name === words.join(" ")) return 0;
  if (label.startsWith(last)) return 1;
  if (words.every((word) => name.includes(word))) return thing.isBox ? 2 : 3;
  if (words.every((word) => thing.class.toLowerCase().includes(word))) return 4;
  return 5;
}

function addSearch(input, list, find, view) {
  let hits = [], chosen = -1;
  const mark = (place) => {
    chosen = place;
    [...list.children].forEach((item, at) => item.setAttribute("aria-selected", String(at === place)));
    if (list.children[place]) list.children[place].scrollIntoView({block: "nearest"});
  };
  const go = (thing) => { view.reveal(thing); };
  const update = () => {
    hits = find(input.value);
    const shown = hits.slice(0, MOST_HITS);
    list.replaceChildren(...shown.map((thing, at) => {
      const item = make("li", {role: "option", "aria-selected": "false"},
        make("span", {}, thing.name), make("small", {}, thing.class));
      item.addEventListener("mousedown", (event) => { event.preventDefault(); mark(at); go(thing); });
      return item;
    }));
    if (hits.length > MOST_HITS) list.append(make("li", {class: "more"}, `and ${hits.length - MOST_HITS} more`));
    if (!hits.length && input.value.trim()) list.append(make("li", {class: "more"}, "nothing found"));
    list.hidden = !input.value.trim();
    view.mark(new Set(hits.map((thing) => thing.at)));
    mark(-1);
  };
  input.addEventListener("input", update);
  input.addEventListener("focus", () => { list.hidden = !input.value.trim(); });
  input.addEventListener("blur", () => { list.hidden = true; });
  input.addEventListener("keydown", (event) => {
    const most = Math.min(hits.length, MOST_HITS);
    if (event.key === "ArrowDown" || (event.key === "Enter" && !event.shiftKey)) {
      if (most) { mark((chosen + 1) % most); go(hits[chosen]); }
    } else if (event.key === "ArrowUp" || event.key === "Enter") {
      if (most) { mark((chosen - 1 + most) % most); go(hits[chosen]); }
    } else if (event.key === "Escape") {
      input.value = "";
      update();
      view.focus();
    } else return;
    event.preventDefault();
    event.stopPropagation();
  });
}
