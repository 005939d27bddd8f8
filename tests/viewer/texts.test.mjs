import assert from "node:assert/strict";
import {test} from "node:test";
import {source, VIEWER} from "./answers.mjs";

const {brief, visible} = await import(`${VIEWER}/elements.js`);
const {searcher} = await import(`${VIEWER}/search.js`);
const {short} = await import(`${VIEWER}/colours.js`);
const {secondLine, shorten} = await import(`${VIEWER}/layout.js`);
const {spoken} = await import(`${VIEWER}/svg.js`);
const {along, endOfLevel, nextOf} = await import(`${VIEWER}/ways.js`);
const {Graph} = await import(`${VIEWER}/graph.js`);

test("control characters and what turns texts are seen as escapes", () => {
  assert.equal(visible("a\x1b\u202eb\u{e0041}\ud800"), "a\\u001b\\u202eb\\udb40\\udc41\\ud800");
  assert.equal(visible("é × 日本\n\t😀"), "é × 日本\n\t😀");
});

test("long texts are cut, and say how long they are", () => {
  assert.equal(brief("abc", 3), "abc");
  assert.equal(brief("a".repeat(1000000), 2), "aa… (1,000,000 letters)");
  assert.ok(shorten("x".repeat(40)).length <= 34);
  assert.ok(shorten("\u202e".repeat(40)).length <= 34);
  assert.equal(shorten("layers"), "layers");
});

test("numbers are short", () => {
  assert.deepEqual([0, 999, 1234, 4.336e9].map((one) => short(one, "flops")), ["0", "999", "1.23 k", "4.34 G"]);
  assert.equal(short(8.5 * 1024 * 1024, "bytes"), "8.50 MiB");
});

test("a search needs all words, and ranks the label itself first", () => {
  const find = searcher({
    name: ["", "a/relu", "relu", "relux", "my_relu"], label: ["", "relu", "relu", "relux", "my_relu"],
    class: ["", "", "", "", "ReLU"], kind: ["", "", "", "", ""], outputs: [[], ["2×4"], [], [], []],
    facts: [[], [], [], [], ["kernels", "secret", "file", "net.py"]],
  });
  assert.deepEqual(find("RELU"), [1, 2, 3, 4]);
  assert.deepEqual(find("relu 2×4"), [1]);
  assert.deepEqual(find("net.py"), [4]);
  assert.deepEqual(find("secret"), []);
  assert.deepEqual(find("  "), []);
});

test("a reader of screens hears name, class, state, contents and output", async () => {
  const answers = source({0: [["net", 1], ["x", 2]], 1: [["n", 3], ["m", 4]]}, {0: {lines: [[1, 2]]}}, {1: 2});
  const graph = new Graph(answers, answers.head, answers.words);
  assert.equal(spoken(graph.at(2)), "x, Class, output 2×2");
  graph.at(1).times = 0;
  assert.equal(spoken(graph.at(1)), "box net, Class, closed, 1 node inside, output 2×2");
  graph.at(1).times = 2;
  await graph.load(graph.at(1));
  assert.match(spoken(graph.at(1)), /block 1 of 2/);
  assert.match(secondLine(graph.at(1)), /^$/);
});

test("keys lead along the flow, to the ends, and to each thing in turn", async () => {
  const answers = source({0: [["x", 10], ["net", 1], ["y", 11]], 1: [["n", 12], ["m", 13]]},
    {0: {lines: [[10, 1], [1, 11]]}, 1: {lines: [[12, 13]]}});
  const graph = new Graph(answers, answers.head, answers.words);
  const [x, net, y] = [10, 1, 11].map((at) => graph.at(at));
  assert.equal(along(x, 1), net);
  assert.equal(along(y, -1), net);
  assert.equal(along(y, 1), null);
  assert.equal(endOfLevel(net, -1), y);
  await graph.load(net);
  net.open = true;
  assert.equal(along(graph.at(13), 1), net);
  const order = [];
  for (let one = graph.root; (one = nextOf(one, 1));) order.push(one.at);
  assert.deepEqual(order, [10, 1, 12, 13, 11]);
  assert.equal(nextOf(net, -1), x);
});
