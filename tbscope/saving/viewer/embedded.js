// The saved page: every answer is in it, and its own address names what is selected.

import {follow, start} from "./main.js";

const {words, head, levels, cards, index} = JSON.parse(document.getElementById("data").textContent);

const source = {
  head: async () => ({words, head}),
  level: async (number) => ({words, level: levels[number]}),
  card: async (number) => ({words, card: {...cards[number], facts: index.facts[number]}}),
  index: async () => ({words, index}),
};

const page = {
  read: () => {
    const name = location.hash.slice(1);
    try { return decodeURIComponent(name); } catch { return name; }
  },
  write: (name) => {
    // A page within a notebook has no address of its own.
    if (location.protocol === "about:") return;
    const bare = location.pathname + location.search;
    history.replaceState(null, "", name ? `#${encodeURIComponent(name)}` : bare);
  },
};

window.addEventListener("hashchange", follow);
start(source, page);
