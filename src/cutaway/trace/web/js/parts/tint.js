/**
 * Tints each token of the text by its attention weight or its attribution. The tokens with the largest values
 * are numbered, so that nothing depends on colour alone.
 */

import { el } from "./dom.js";
import { LEVELS, MOST, ordered, tints } from "../figures/inside.js";
import { onPaper } from "../figures/numbers.js";
/** @import { StepInside } from "../state/step-inside.js" */
/** @import { InsideSelection } from "../state/store.js" */

const SCHEME = matchMedia("(prefers-color-scheme: dark)");
const LIGHT = 0.179; // luminance above which black text is easier to read than white

/** @typedef {{back: string, ink: string}} Colour */

/** @param {number} value 0 to 255 @returns {number} as in the definition of luminance */
const linear = (value) => (value / 255 <= 0.03928 ? value / 255 / 12.92 : ((value / 255 + 0.055) / 1.055) ** 2.4);

/** @param {boolean} dark @returns {Colour[]} by level: the highest contrasts most with the background */
const scale = (dark) => Array.from({ length: LEVELS + 1 }, (_, i) => {
  const [red, green, blue] = onPaper(i / LEVELS, dark);
  const luminance = 0.2126 * linear(red) + 0.7152 * linear(green) + 0.0722 * linear(blue);
  return { back: `rgb(${red} ${green} ${blue})`, ink: luminance > LIGHT ? "#000000" : "#ffffff" };
});

const SCALES = { light: scale(false), dark: scale(true) };

/** @returns {Colour[]} by level, in the current colour scheme */
export const colours = () => (SCHEME.matches ? SCALES.dark : SCALES.light);

/** @param {() => void} changed @returns {void} */
export const onScheme = (changed) => SCHEME.addEventListener("change", changed);

/** @returns {HTMLElement} all colours in a row, for a legend */
export const scaleBar = () => el("span", { class: "scale", "aria-hidden": "true" },
  ...colours().map(({ back }) => el("i", { style: { background: back } })));

export class Tint {
  on = false;
  element = el("p", { class: "legend tint faint", hidden: true });
  /** @type {StepInside | null} */
  inside = null;
  chosen = "";
  /** @type {Map<HTMLElement, string>} the level and number of each tinted token */
  shown = new Map();

  constructor() {
    onScheme(() => this.forget());
  }

  /** Draw everything again next time. */
  forget() {
    this.inside = null;
    this.chosen = "";
  }

  /**
   * @param {StepInside | null} inside @param {InsideSelection} selection
   * @param {(position: number) => HTMLElement | undefined} at the element of the token at a position
   */
  show(inside, selection, at) {
    const { by, head } = selection;
    const chosen = `${by} ${head} ${SCHEME.matches}`;
    if (inside === this.inside && chosen === this.chosen) return;
    if (chosen !== this.chosen) this.explain(selection);
    this.inside = inside;
    this.chosen = chosen;
    const levels = inside ? tints(inside, by, head) : new Int8Array();
    /** @type {Map<HTMLElement, string>} */
    const shown = new Map();
    const most = inside ? ordered(inside, by, head).slice(0, MOST) : [];
    const marks = new Map(most.map(({ position }, i) => [position, String(i + 1)]));
    levels.forEach((level, i) => {
      const token = level === 0 ? undefined : at(i);
      if (token) shown.set(token, `${level} ${marks.get(i) ?? ""}`);
    });
    for (const [token] of this.shown) if (!shown.has(token)) clear(token);
    for (const [token, what] of shown) if (this.shown.get(token) !== what) dress(token, what);
    this.shown = shown;
  }

  /** @param {InsideSelection} selection what the colours mean */
  explain({ by, head }) {
    const [name, end] = by === "weight" ? ["attention weight", "1 (square-root scale)"] : ["attribution", "the largest; − is negative"];
    this.element.replaceChildren(`${name}, ${head ? `L${head[0]}.H${head[1]}` : "all heads"}: 0 `, scaleBar(), ` ${end}`);
  }
}

/** @param {HTMLElement} token @param {string} what its level and number */
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
function clear(token) {
  token.style.background = token.style.color = "";
  delete token.dataset["tint"];
}
