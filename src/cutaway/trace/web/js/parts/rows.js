/**
 * The rows of the timelines: what each shows, on which scale and in which colours.
 *
 * Knows the figures of a run and heights in pixels. Makes paths, and the key of the end token's lanes.
 */

import { el } from "./dom.js";
import { outcomeColour, outcomePhrase } from "../figures/endings.js";
import { bars, nearlyAll, peaks, roundUp } from "../figures/columns.js";
import { MOST_BITS, height, memory, short } from "../figures/numbers.js";
import { PHASES, seriesOf } from "../figures/series.js";
/** @import { Columns } from "../figures/columns.js" */
/** @import { Run } from "../state/store.js" */
/** @import { Series } from "../figures/series.js" */

/**
 * A row of `high` pixels: its name, the ends of its scale, the shares of its height that have a
 * line, and its paths by colour, drawn from the foot at y = `foot`.
 * @typedef {{name: string, top: string, foot: string, high: number, lines?: number[],
 *   paths: (columns: Columns, foot: number) => Map<string, string>}} Row
 */

/** The colours of the phases of a step, from the bottom upwards. */
export const PHASE_COLOURS = ["var(--ink)", "var(--faint)", "var(--bar)", "var(--accent)"];

/**
 * @param {Series} series @param {Run | null} [twin] a run of the same text, whose times have the same scale
 * @returns {Row[]} of a canvas, the KV cache only where its record has it
 */
export function allRows(series, twin = null) {
  const canvas = series.trace.head.decoder !== undefined;
  const all = [series, ...(twin ? [seriesOf(twin.trace)] : [])];
  const maximum = Math.max(...all.map(({ ms }) => roundUp(nearlyAll(ms.at(-1) ?? []))));
  const times = all.map((member, i) => msRow(member, maximum, i ? `run ${twin?.id}` : "time"));
  return [plain("surprise", `${MOST_BITS} bits`, 56, series.surprise, MOST_BITS), entropyRow(series),
    ...(canvas && !series.kv.some(Boolean) ? [] : [kvRow(series)]), ...times];
}

/** @param {Series} series @returns {Row} */
function entropyRow({ entropy }) {
  const maximum = entropy.reduce((a, b) => Math.max(a, b), MOST_BITS);
  return plain("entropy", `${short(Math.ceil(maximum))} bits`, 44, entropy, Math.ceil(maximum));
}

/** @param {Series} series @returns {Row} */
function kvRow({ kv }) {
  const maximum = kv.at(-1) ?? 0; // a run's cache only grows
  return plain("KV", memory(maximum), 28, kv, maximum);
}

/**
 * @param {string} name @param {string} top @param {number} high
 * @param {number[]} values @param {number} maximum where the scale ends
 * @returns {Row} bars of one colour
 */
function plain(name, top, high, values, maximum) {
  const value = (/** @type {number} */ i) => values[i] ?? 0;
  return {
    name, top, foot: "0", high,
    paths: (columns, foot) => bars(columns, peaks(value, columns.edges), () => "var(--bar)",
      (i) => high * Math.min(value(i) / (maximum || 1), 1), foot),
  };
}

/**
 * The end token's probability, and a lane for each outcome, which marks the steps where it occurred: an outcome
 * is recognised by its lane and letter, not by colour alone.
 * @param {Series} series @returns {Row[]}
 */
export function endRows(series) {
  const high = 52;
  const chance = (/** @type {number} */ i) => series.end[i] ?? 0;
  const letter = (/** @type {number} */ i) => series.moments[i]?.letter;
  const colour = (/** @type {number} */ i) => outcomeColour(letter(i) ?? "?");
  /** @type {Row} */
  const curve = {
    name: "P(end)", top: "100%", foot: "0.01%", high, lines: [0.25, 0.5, 0.75],
    paths: (columns, foot) => bars(columns, peaks(chance, columns.edges),
      (i) => (letter(i) ? colour(i) : null), (i) => Math.max(high * height(chance(i)), 1), foot),
  };
  const lanes = [...series.outcomes.values()].map((outcome) => lane(outcome.letter, letter));
  return [curve, ...lanes];
}

/** @param {Series} series @returns {HTMLElement[]} a list item for each lane */
export const endKey = ({ outcomes }) => [...outcomes].map(([outcome, { letter }]) =>
  el("li", {}, el("span", { class: "letter", style: { "--hue": outcomeColour(letter) } }, letter),
    `the end token ${outcomePhrase(outcome)}`));

/** @param {string} letter @param {(step: number) => string | undefined} at @returns {Row} */
function lane(letter, at) {
  const here = (/** @type {number} */ i) => (at(i) === letter ? 1 : -Infinity);
  return {
    name: "", top: letter, foot: "", high: 8,
    paths: (columns, foot) =>
      bars(columns, peaks(here, columns.edges), () => outcomeColour(letter), () => 7, foot),
  };
}

/** @param {Series} series @param {number} maximum where the scale ends @param {string} name @returns {Row} stacked phases; bars beyond the scale are cut */
function msRow({ ms }, maximum, name) {
  const high = 48;
  const all = ms.at(-1) ?? [];
  const y = (/** @type {number} */ phase, /** @type {number} */ i) =>
    high * Math.min((ms[phase]?.[i] ?? 0) / maximum, 1);
  return {
    name, top: `${short(maximum)} ms`, foot: "0", high,
    paths: (columns, foot) => {
      const steps = peaks((i) => all[i] ?? 0, columns.edges);
      const parts = PHASES.flatMap((_, phase) => {
        const baseOf = (/** @type {number} */ i) => (phase ? y(phase - 1, i) : 0);
        return [...bars(columns, steps, () => PHASE_COLOURS[phase] ?? "",
          (i) => y(phase, i) - baseOf(i), foot, baseOf)];
      });
      return new Map(parts);
    },
  };
}
