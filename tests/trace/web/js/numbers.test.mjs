// How tokens are shown: what cannot be seen, as something that can.

import assert from "node:assert/strict";
import test from "node:test";
import { onPaper, surpriseColour, visible } from "../../../../src/cutaway/trace/web/js/figures/numbers.js";

test("a token that cannot be seen is shown all the same", () => {
  assert.equal(visible(""), "∅");
  assert.equal(visible(" a "), "␣a␣");
  assert.equal(visible("\n\t\u202e"), "⏎⇥\\u{202e}");
  assert.equal(visible("\u05b8"), "◌\u05b8"); // a vowel sign has no letter to stand on
  assert.equal(visible("e\u0301"), "e\u0301");
});

test("nothing is nearly the paper and much far from it, in each measure and scheme", () => {
  const light = (colour) => colour.reduce((sum, value) => sum + value, 0);
  const scale = (dark) => [0, 0.25, 0.5, 0.75, 1].map((share) => light(onPaper(share, dark)));
  const falling = (all) => all.every((value, i) => i === 0 || value < all[i - 1]);
  assert.equal(scale(false)[0], 3 * 255);
  assert.ok(falling(scale(false)));
  assert.ok(falling(scale(true).toReversed()));
  assert.equal(surpriseColour(0), "light-dark(rgb(255 255 255), rgb(0 32 77))");
  assert.equal(surpriseColour(8), "light-dark(rgb(0 32 77), rgb(255 234 70))");
});
