/**
 * The tint of a text: how much a step looked at each of its tokens, or how far each pushed. Those with
 * most have a number, so that nothing rests on colour.
 */

import { el } from "./dom.js";
import { LEVELS, MOST, ordered, tints } from "../figures/inside.js";
import { onPaper } from "../figures/numbers.js";
/** @import { Look } from "../state/look.js" */
/** @import { Chosen } from "../state/store.js" */

const SCHEME = matchMedia("(prefers-color-scheme: dark)");
const LIGHT = 0.179; // luminance from which on black is easier to read than white

/** @typedef {{back: string, ink: string}} Colour */

/** @param {number} value 0 to 255 @returns {number} */
const linear = (value) => (value / 255 <= 0.03928 ? value / 255 / 12.92 : ((value / 255 + 0.055) / 1.055) ** 2.4);

/** @param {boolean} dark @returns {Colour[]} by level; what has most is farthest from the paper */
const scale = (dark) => Array.from({ length: LEVELS + 1 }, (_, i) => {
  const [red, green, blue] = onPaper(i / LEVELS, dark);
  const luminance = 0.2126 * linear(red) + 0.7152 * linear(green) + 0.0722 * linear(blue);
  return { back: `rgb(${red} ${green} ${blue})`, ink: luminance > LIGHT ? "#000000" : "#ffffff" };
});

const SCALES = { light: scale(false), dark: scale(true) };

/** @returns {Colour[]} of the scheme that is in force */
export const colours = () => (SCHEME.matches ? SCALES.dark : SCALES.light);

/** @param {() => void} changed @returns {void} */
export const onScheme = (changed) => SCHEME.addEventListener("change", changed);

export class Tint {
  on = false;
  element = el("p", { class: "legend tint faint", hidden: true });
  /** @type {Look | null} */
  look = null;
  chosen = "";
  /** @type {Map<HTMLElement, string>} what stands at each token */
  shown = new Map();

  constructor() {
    onScheme(() => this.forget());
  }

  /** What is drawn next is drawn anew. */
  forget() {
    this.look = null;
    this.chosen = "";
  }

  /**
   * @param {Look | null} look @param {Chosen} inside
   * @param {(position: number) => HTMLElement | undefined} at the element of a token
   */
  show(look, inside, at) {
    const chosen = `${inside.by} ${inside.head} ${SCHEME.matches}`;
    if (look === this.look && chosen === this.chosen) return;
    if (chosen !== this.chosen) this.explain(inside);
    this.look = look;
    this.chosen = chosen;
    const levels = look ? tints(look, inside.by, inside.head) : new Int8Array();
    /** @type {Map<HTMLElement, string>} */
    const shown = new Map();
    const best = look ? ordered(look, inside.by, inside.head).slice(0, MOST) : [];
    const marks = new Map(best.map(({ position }, i) => [position, String(i + 1)]));
    levels.forEach((level, i) => {
      const token = level === 0 ? undefined : at(i);
      if (token) shown.set(token, `${level} ${marks.get(i) ?? ""}`);
    });
    for (const [token] of this.shown) if (!shown.has(token)) bare(token);
    for (const [token, what] of shown) if (this.shown.get(token) !== what) dress(token, what);
    this.shown = shown;
  }

  /** @param {Chosen} inside what the colours mean */
  explain({ by, head }) {
    const who = head ? `L${head[0]}.H${head[1]}` : "all heads";
    const ends = by === "weight" ? ["0", "1, on a scale of square roots"] : ["0", "the largest; − negative"];
    const marks = colours().map(({ back }) => el("i", { style: { background: back } }));
    this.element.replaceChildren(`${by === "weight" ? "looked at" : "attribution"} by ${who}: ${ends[0]} `,
      el("span", { class: "scale", "aria-hidden": "true" }, ...marks), ` ${ends[1]}`);
  }
}

/** @param {HTMLElement} token @param {string} what its level and its number */
function dress(token, what) {
  const [level, mark] = what.split(" ");
  const colour = colours()[Math.abs(Number(level))];
  token.style.background = colour?.back ?? "";
  token.style.color = colour?.ink ?? "";
  const sign = Number(level) < 0 ? "−" : "";
  if (sign || mark) token.dataset["tint"] = `${sign}${mark}`;
  else delete token.dataset["tint"];
}

/** @param {HTMLElement} token */
function bare(token) {
  token.style.background = token.style.color = "";
  delete token.dataset["tint"];
}
