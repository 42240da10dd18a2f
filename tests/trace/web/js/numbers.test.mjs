// How tokens and measures are shown.

import assert from "node:assert/strict";
import test from "node:test";
import { unescaped } from "../../../../src/cutaway/trace/web/js/state/trace.js";
import { onPaper, surpriseColour, visible } from "../../../../src/cutaway/trace/web/js/figures/numbers.js";

test("invisible characters of a token are made visible, in the notation of Python", () => {
  assert.equal(visible(""), "∅");
  assert.equal(visible(" a "), "␣a␣");
  assert.equal(visible("\n\t\u202e"), "\\n\\t\\u202e");
  assert.equal(visible("\u05b8"), "◌\u05b8"); // a vowel sign has no letter to stand on
  assert.equal(visible("e\u0301"), "e\u0301");
});

test("the colour of 0 is close to the background, and contrast grows with the share, in both schemes", () => {
  const light = (colour) => colour.reduce((sum, value) => sum + value, 0);
  const scale = (dark) => [0, 0.25, 0.5, 0.75, 1].map((share) => light(onPaper(share, dark)));
  const falling = (all) => all.every((value, i) => i === 0 || value < all[i - 1]);
  assert.equal(scale(false)[0], 3 * 255);
  assert.ok(falling(scale(false)));
  assert.ok(falling(scale(true).toReversed()));
  assert.equal(surpriseColour(0), "light-dark(rgb(255 255 255), rgb(0 32 77))");
  assert.equal(surpriseColour(8), "light-dark(rgb(0 32 77), rgb(255 234 70))");
});

test("a name from Python is written like the page's own", () => {
  assert.equal(visible(unescaped("<0x0A><0x0A>a")), "\\n\\na");
  assert.equal(unescaped("<0xE2><0x80><0x8B>"), "\u200b");
  assert.equal(unescaped("<0xE2>x<|im_end|>"), "\\xe2x<|im_end|>");
});
