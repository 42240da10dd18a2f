/**
 * Tints each token of the text by its attention weight or its attribution. The tokens with the largest values
 * are numbered, so that nothing depends on colour alone, and arcs lead to them from where the step's token is written.
 */

import { heat } from "../figures/catalogue.js";
import { arcPlaces, headName, tintedBy } from "../figures/attention.js";
import { LEVELS, tints } from "../figures/inside.js";
import { Arcs } from "./arcs.js";
import { el, scale } from "./dom.js";
/** @import { PositionFigures } from "../figures/inside.js" */
/** @import { StepInside } from "../state/step-inside.js" */
/** @import { InsideSelection } from "../state/store.js" */

export class Tint {
  on = false;
  element = el("p", { class: "legend tint faint", hidden: true });
  /** @type {StepInside | null} */
  inside = null;
  shownKey = "";
  /** @type {Map<HTMLElement, string>} the level and number of each tinted token */
  tintByToken = new Map();
  arcs = new Arcs();

  /** Draw everything again next time. */
  forget() {
    this.inside = null;
    this.shownKey = "";
  }

  /**
   * @param {StepInside | null} inside @param {InsideSelection} selection
   * @param {(position: number) => HTMLElement | undefined} at the element of the token at a position
   */
  show(inside, selection, at) {
    const { head } = selection;
    const by = inside ? tintedBy(inside, selection) : selection.by;
    const key = `${by} ${head}`;
    if (inside === this.inside && key === this.shownKey) return this.arcs.placeSoon();
    if (key !== this.shownKey) this.explain({ by, head });
    this.inside = inside;
    this.shownKey = key;
    const levels = inside ? tints(inside, by, head) : new Int8Array();
    /** @type {Map<HTMLElement, string>} */
    const tintByToken = new Map();
    const top = inside ? arcPlaces(inside, by, head) : [];
    const marks = new Map(top.map(({ position }, i) => [position, String(i + 1)]));
    levels.forEach((level, i) => {
      const token = level === 0 ? undefined : at(i);
      if (token) tintByToken.set(token, `${level} ${marks.get(i) ?? ""}`);
    });
    for (const [token] of this.tintByToken) if (!tintByToken.has(token)) clear(token);
    for (const [token, tint] of tintByToken) if (this.tintByToken.get(token) !== tint) dress(token, tint);
    this.tintByToken = tintByToken;
    this.showArcs(inside ? at(inside.positions) : undefined, top, by, at);
  }

  /**
   * @param {HTMLElement | undefined} from the step's token @param {PositionFigures[]} top @param {"weight" | "attribution"} by
   * @param {(position: number) => HTMLElement | undefined} at
   */
  showArcs(from, top, by, at) {
    const largest = by === "weight" ? 1 : 2 * Math.abs(top[0]?.attribution ?? 1);
    const towards = top.flatMap((place) => {
      const element = at(place.position);
      return element ? [{ element, share: place[by] / largest }] : [];
    });
    this.arcs.show(from?.closest(".tokens") ?? null, from, towards);
  }

  /** @param {Pick<InsideSelection, "by" | "head">} selection what the colours mean */
  explain({ by, head }) {
    const [name, end] = by === "weight" ? ["attention weight", "1 (square-root scale)"] : ["attribution", "the largest; − is negative"];
    this.element.replaceChildren(`${name}, ${head ? headName(head) : "all heads"}: 0 `, scale(), ` ${end}`);
  }
}

/** @param {HTMLElement} token @param {string} tint its level and number */
function dress(token, tint) {
  const [level, mark] = tint.split(" ");
  token.style.setProperty("--heat", heat(Math.abs(Number(level)) / LEVELS));
  token.style.color = "var(--ink)"; // a prompt's is too faint for a background
  const sign = Number(level) < 0 ? "−" : "";
  token.style.setProperty("--marks", String(sign.length + (mark?.length ?? 0)));
  if (sign || mark) token.dataset["tint"] = `${sign}${mark}`;
  else delete token.dataset["tint"];
}

/** @param {HTMLElement} token */
function clear(token) {
  token.style.removeProperty("--heat");
  token.style.removeProperty("--marks");
  token.style.color = "";
  delete token.dataset["tint"];
}
