// The saved page: every answer is in it.

import {start} from "./main.js";

const {words, head, levels, cards, index} = JSON.parse(document.getElementById("data").textContent);

start({
  head: async () => ({words, head}),
  level: async (number) => ({words, level: levels[number]}),
  card: async (number) => ({words, card: {...cards[number], facts: index.facts[number]}}),
  index: async () => ({words, index}),
});
