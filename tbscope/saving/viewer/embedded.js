// The saved page: every answer is in it, and its own address names what is selected.

import {follow, start} from "./main.js";
import {decoded, encoded} from "./opened.js";

const {words, head, levels, cards, index, figures, modules, record, version} = JSON.parse(document.getElementById("data").textContent);

const source = {
  head: async () => ({words, head}),
  level: async (number) => ({words, level: levels[number]}),
  card: async (number) => ({words, card: {...cards[number], facts: index.facts[number]}}),
  index: async () => ({words, index}),
  figures: async ({key}) => ({figures: figures[key]}),
  modules: async () => ({words, modules: withCards(modules)}),
  record: async () => {
    if (!record) throw new Error("The page has the drawing alone: the log that it is from had no record of the graph.");
    return {words, record};
  },
};

/** Returns the table of modules with what the index and the cards have, too. */
function withCards({numbers, ...table}) {
  const {at} = table, keys = Object.keys(head.figures);
  const figures = keys.map((key) => [key, at.map((number) => cards[number].figures[key])]);
  return {
    ...table, name: at.map((number) => index.name[number]), class: at.map((number) => index.class[number]),
    numbers: {...Object.fromEntries(figures), ...numbers},
  };
}

const OPEN = "&open=";

const page = {
  read: () => {
    const [node, open] = location.hash.slice(1).split(OPEN);
    return {node: decoded(node), open: open === undefined ? null : decoded(open)};
  },
  link: () => location.protocol === "about:" ? "" : location.href,
  write: ({node, open}, {jump = false} = {}) => {
    // A page within a notebook has no address of its own.
    if (location.protocol === "about:") return;
    const hash = encoded(node) + (open === null ? "" : OPEN + encodeURIComponent(open));
    const address = hash ? `#${hash}` : location.pathname + location.search;
    history[jump ? "pushState" : "replaceState"](null, "", address);
  },
};

/** Reloads the page when its server has another one; the address keeps what is selected and open. */
async function reloadIfNewer() {
  const answer = await fetch("version").catch(() => null);
  if (answer && answer.ok && await answer.text() !== version) location.reload();
}

if (version) setInterval(reloadIfNewer, 1000);
window.addEventListener("hashchange", () => follow());
start(source, page);
