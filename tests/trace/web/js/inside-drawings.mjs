// The drawings of the panel Inside, of the step's file that INSIDE names: every mark is a figure of the file.

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import { THICK, arcs } from "../../../../src/cutaway/trace/web/js/drawings/arcs.js";
import { attentionDrawing } from "../../../../src/cutaway/trace/web/js/drawings/attention.js";
import { bands } from "../../../../src/cutaway/trace/web/js/drawings/bands.js";
import { pitchOf, tower } from "../../../../src/cutaway/trace/web/js/drawings/tower.js";
import * as figures from "../../../../src/cutaway/trace/web/js/figures/attention.js";
import { heat } from "../../../../src/cutaway/trace/web/js/figures/catalogue.js";
import { heads, lensRows } from "../../../../src/cutaway/trace/web/js/figures/inside.js";
import { percent, thousands, withSign } from "../../../../src/cutaway/trace/web/js/figures/numbers.js";
import { StepInside } from "../../../../src/cutaway/trace/web/js/state/step-inside.js";

const bytes = readFileSync(process.env.INSIDE);
const file = bytes.buffer.slice(bytes.byteOffset, bytes.byteOffset + bytes.byteLength);
const inside = new StepInside(file);
const ROOM = { width: 400, type: 1 };
const tokenAt = (position) => `t${position}`;

/** Every mark below one, in order, of a name and a class. */
const all = (mark, name, kind = "") => [mark, ...mark.children.filter((child) => typeof child !== "string").flatMap((child) => all(child, ""))]
  .filter((one) => !name || (one.name === name && String(one.attributes.class).split(" ").includes(kind)));
const texts = (mark, kind) => all(mark, "text", kind).map(({ children }) => children.join(""));
const near = (got, expected, within = 0.02) => assert.ok(Math.abs(got - expected) <= within, `${got} is not ${expected}`);

test("a row of the tower for each row of the lens, from the bottom up", () => {
  const lens = lensRows(inside);
  const rows = lens.map(({ id, drawnId, ...row }) => ({ ...row, after: "", name: `n${id}`, isStepToken: id === inside.token, draws: null, same: drawnId === inside.token }));
  const pitch = pitchOf(rows.length, 1);
  const drawing = tower(rows, "ours", { ...ROOM, pitch }, "said");
  assert.equal(drawing.attributes["aria-label"], "said");
  const cells = all(drawing, "rect", "cell");
  assert.deepEqual(cells.map(({ attributes }) => attributes.fill), lens.map(({ probability }) => heat(probability)));
  assert.deepEqual(texts(drawing, "name"), lens.map(({ id }) => `n${id}`));
  assert.deepEqual(cells.map(({ attributes }) => attributes.class.includes("chosen")), lens.map(({ id }) => id === inside.token));
  cells.forEach(({ attributes }, i) => assert.equal(attributes.y - cells.at(-1).attributes.y, (cells.length - 1 - i) * pitch));
  assert.deepEqual(texts(drawing, "figure"), lens.flatMap(({ probability, rank }) => [percent(probability), thousands(rank)]));
  assert.equal(all(drawing, "circle", "luck").length, lens.filter(({ drawnId }) => drawnId === inside.token).length);
  assert.equal(all(drawing, "rect", "hit").length, rows.length);
});

test("the line of ranks is logarithmic, and its points are those of the rows", () => {
  const ranks = [1000, 250, 10, 1];
  const rows = ranks.map((rank, i) => ({ layer: i - 1, after: i ? `layer ${i - 1}` : "", name: "n", probability: 0.5, isStepToken: rank === 1, rank, draws: null, same: false }));
  const drawing = tower(rows, "ours", { ...ROOM, pitch: 20 }, "");
  const points = all(drawing, "circle", "point").map(({ attributes }) => attributes.cx);
  const [far, , , one] = points;
  ranks.forEach((rank, i) => near((points[i] - one) / (far - one), Math.log10(rank) / 3, 0.001));
  const [line] = all(drawing, "path", "rank");
  const xs = line.attributes.d.slice(1).split("L").map((point) => Number(point.split(" ")[0]));
  assert.deepEqual(xs, points);
  const titles = all(drawing, "g", "row").map((row) => row.children[0].children[0]);
  assert.match(titles[0], /^before the first layer: n,/);
  assert.match(titles[1], /^after layer 0: n,/);
  assert.deepEqual(all(drawing, "circle", "point").map(({ attributes }) => attributes.class.includes("chosen")), [false, false, false, true]);
});

test("the arcs lead to the eight largest weights in order, as thick as these", () => {
  for (const head of [null, [0, 1]]) {
    const places = figures.arcPlaces(inside, "weight", head);
    const all8 = head ? inside.array("looked.weights").slice((head[0] * inside.heads + head[1]) * 8).slice(0, 8)
      : inside.array("places").slice(0, inside.positions).sort().reverse().slice(0, 8);
    assert.deepEqual(places.map(({ weight }) => weight), [...all8].filter((weight) => weight > 0));
    const targets = places.map(({ position, weight }) => ({ x: 10 * position, top: 40, bottom: 60, share: weight }));
    const drawing = arcs({ x: 300, top: 40, bottom: 60 }, targets);
    const paths = all(drawing, "path", "arc");
    assert.equal(paths.length, places.length);
    paths.forEach(({ attributes: { d, "stroke-width": width } }, i) => {
      near(Number(width), THICK * places[i].weight, 0.0005);
      assert.ok(d.startsWith("M300.0 40.0C"));
      assert.ok(d.endsWith(` ${(10 * places[i].position).toFixed(1)} 40.0`), d);
    });
  }
});

test("an arc to an earlier line stays between the lines, and a negative one is broken", () => {
  const drawing = arcs({ x: 100, top: 70, bottom: 90 }, [{ x: 20, top: 10, bottom: 30, share: 0.5 }, { x: 40, top: 70, bottom: 90, share: -0.25 }]);
  const [up, along] = all(drawing, "path", "arc");
  const ys = up.attributes.d.match(/[\d.]+ ([\d.]+)(?=C| |$)/g).map((point) => Number(point.split(" ")[1]));
  assert.deepEqual([Math.min(...ys), Math.max(...ys)], [30, 70]);
  assert.deepEqual([up, along].map(({ attributes }) => attributes.class.includes("negative")), [false, true]);
  assert.equal(along.attributes["stroke-width"], (THICK / 4).toFixed(3));
});

test("an arc to its own token is a loop", () => {
  const here = { x: 100, top: 70, bottom: 90 };
  const [loop] = all(arcs(here, [{ ...here, share: 1 }]), "path", "arc");
  assert.match(loop.attributes.d, /^M100.0 70.0C88.0 .* 112.0 .* 100.0 70.0$/);
});

test("a head's rows have its scores, and softmax of these is its weights", () => {
  for (const { layer, head, weight } of heads(inside).filter((one) => one.weight > 0)) {
    const read = figures.attention(inside, [layer, head]);
    near(read.rows[0].weight, weight, 0);
    for (const row of read.rows) near(row.weight, Math.exp(row.score - read.whole), 1e-5);
    for (const { score, terms } of read.rows.filter((row) => Number.isFinite(row.score))) {
      const most = Math.max(...terms.map(Math.abs));
      near(terms.reduce((sum, term) => sum + term, 0), score, (terms.length * most) / 32 + 1e-6);
    }
    const drawing = attentionDrawing(read, tokenAt, ROOM, "said");
    assert.deepEqual(texts(drawing, "name"), read.rows.map(({ position }) => tokenAt(position)));
    const shown = texts(drawing, "figure");
    for (const { score, weight: share } of read.rows) {
      assert.ok(shown.includes(percent(share)));
      assert.ok(shown.includes(Number.isFinite(score) ? withSign(score) : "−∞"));
    }
    const strips = all(drawing, "path", "terms").map(({ attributes }) => attributes.d.split("M").length - 1);
    assert.deepEqual(strips, read.rows.map(({ terms }) => terms.filter((term) => term !== 0).length));
    const points = all(drawing, "circle", "point");
    const scored = read.rows.filter(({ score }) => Number.isFinite(score));
    assert.equal(points.length, scored.length);
    const foot = all(drawing, "path", "axis").map(({ attributes }) => /V([\d.]+)$/.exec(attributes.d)?.[1]).filter(Boolean).map(Number);
    assert.deepEqual(points.map(({ attributes }) => attributes.cy), foot); // each stem ends at its point
  }
});

test("all heads together have weights and no scores, as files before them", () => {
  const read = figures.attention(inside, null);
  assert.equal(read.whole, null);
  const drawing = attentionDrawing(read, tokenAt, ROOM, "");
  const measured = all(drawing, "rect", "measured");
  const largest = measured[0].attributes.width / read.rows[0].weight;
  measured.forEach(({ attributes }, i) => near(attributes.width, largest * read.rows[i].weight));
  assert.equal(all(drawing, "path", "curve").length, 0);
  near(read.rows.reduce((all8, row) => all8 + row.weight, read.other.weight), 1, 1e-5);
  const old = new StepInside(file);
  for (const name of ["looked.scores", "looked.terms", "looked.most"]) old.arrays.delete(name);
  assert.deepEqual(figures.attention(old, [0, 1]).rows.map(({ score }) => score), read.rows.map(() => null));
});

test("where no layer attends, attribution tints the text", () => {
  const selection = { by: "weight", map: "attribution", head: null, part: null };
  assert.equal(figures.tintedBy(inside, selection), "weight");
  const none = new StepInside(file);
  none.arrays.set("first_seen", new Int32Array(inside.layers).fill(inside.positions));
  assert.equal(figures.tintedBy(none, selection), "attribution");
  assert.match(figures.stateSentence(none), /^No layer of this model attends: each keeps a state\./);
});

test("in a place too narrow for them drawings are scaled down", () => {
  const room = { width: 40, type: 1.5 };
  const rows = [{ layer: -1, after: "", name: "n", probability: 0.5, isStepToken: false, rank: 7, draws: null, same: false }];
  const narrow = [tower(rows, "ours", { ...room, pitch: 20 }, ""), ...[null, [0, 1]].map((head) => attentionDrawing(figures.attention(inside, head), tokenAt, room, ""))];
  const sizes = narrow.flatMap((drawing) => all(drawing, "rect", "hit").concat(all(drawing, "rect", "measured")).map(({ attributes }) => attributes.width));
  assert.ok(sizes.length > 16 && sizes.every((width) => width >= 0), String(sizes));
});

test("a band for each layer with a state, as opaque as its tokens' shares", () => {
  const layers = figures.stateLayers(inside);
  assert.deepEqual(layers.map(({ layer }) => layer), inside.value("kept") ?? []);
  for (const { keeps, half } of layers) {
    near(keeps.reduce((sum, share) => sum + share, 0), 1, 1e-4);
    const last = (count) => keeps.slice(keeps.length - count).reduce((sum, share) => sum + share, 0);
    assert.ok(last(half) >= 0.4999 && last(half - 1) < 0.5);
  }
  if (!layers.length) return assert.equal(figures.stateSentence(inside), "");
  assert.equal(figures.stateSentence(inside), "L0, L2 do not attend: they keep a state.");
  assert.deepEqual(figures.layersAttending(inside), [false, true, false, true]);
  const drawing = bands(layers, tokenAt, ROOM, "said");
  const shown = all(drawing, "rect", "band").map(({ attributes }) => attributes.fill);
  assert.deepEqual(shown, layers.flatMap(({ keeps }) => Array.from(keeps, (share) => heat(share / Math.max(...keeps)))));
});
