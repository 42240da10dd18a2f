/**
 * The right side of the river: luck, which carries each band that is left from its log-probability to its score, and the
 * line of the highest score, which leaves the drawing towards the text.
 */

import { rivalsOf } from "../figures/river.js";
import { percent, visible } from "../figures/numbers.js";
import { box, group, label, mark, path } from "./marks.js";
import { bandTitle, n, short, spread } from "./places.js";
/** @import { Mark } from "./marks.js" */
/** @import { Band, River } from "../figures/river.js" */
/** @import { Layout, Stack } from "./places.js" */

const FARTHEST = 12; // nats below the highest score: the axis ends there at the latest

/** @param {River} river @param {(Stack | null)[]} stacks @param {Layout} layout @param {number | null} exit @returns {Mark[]} */
export function luckMarks(river, stacks, layout, exit) {
  const { top, deep, scale, luck, goal } = layout;
  const stack = stacks.at(-1) ?? [];
  const racers = river.bands.flatMap((band, i) => {
    const place = stack[i];
    return place && band.score !== null ? [{ band, from: (place[0] + place[1]) / 2, y: 0 }] : [];
  });
  spread(racers, top + 3 * scale, top + deep - 3 * scale, 9 * scale);
  const best = Math.max(...racers.map(({ band }) => band.score ?? 0));
  const low = Math.max(best - FARTHEST, Math.min(...racers.flatMap(({ band }) => [band.start ?? 0, band.score ?? 0])));
  const xOf = (/** @type {number} */ value) => n(goal - (goal - luck) * Math.min((best - Math.min(value, best)) / (best - low || 1), 1));
  const winner = racers.find(({ band }) => band.isDrawn);
  const [next] = layout.small ? [] : rivalsOf(river);
  const drawnBand = river.bands.findIndex(({ isDrawn }) => isDrawn);
  const place = stack[drawnBand];
  const y = winner?.y ?? (place ? (place[0] + place[1]) / 2 : null);
  return [
    group("axes", ...axisMarks(river, racers.length > 0, layout)),
    group("races", ...racers.toSorted((a, b) => Number(a.band.isDrawn) - Number(b.band.isDrawn))
      .map((racer) => lane(racer, xOf, layout, racer.band === next))),
    group("out", ...drawExit(river, y === null ? null : [winner ? xOf(winner.band.score ?? 0) : layout.flow, y], layout, exit)),
  ];
}

/**
 * @param {{band: Band, from: number, y: number}} racer @param {(value: number) => number} xOf @param {Layout} layout
 * @param {boolean} isNext whether it came second @returns {Mark}
 */
function lane({ band, from, y }, xOf, { flow, luck, scale }, isNext) {
  const [start, score] = [xOf(band.start ?? 0), xOf(band.score ?? 0)];
  const kind = band.isDrawn ? "race chosen" : "race";
  const bend = n((flow + luck) / 2);
  const name = isNext ? [label(Math.min(start, score) - 5 * scale, n(y + 4 * scale), short(band.token, 10), "label end halo")] : [];
  return mark("g", { class: kind, "data-id": band.id }, mark("title", {}, bandTitle(band)),
    path(`M${n(flow)} ${n(from)}C${bend} ${n(from)} ${bend} ${n(y)} ${n(luck)} ${n(y)}H${start}`, "lead"),
    path(`M${start} ${n(y)}H${score}`, "luck"),
    path(`M${start} ${n(y - 3 * scale)}v${6 * scale}`, "tick"),
    mark("circle", { cx: score, cy: n(y), r: (band.isDrawn ? 4 : 2.2) * scale, class: "score" }), ...name);
}

/** @param {River} river @param {boolean} hasRace @param {Layout} layout @returns {Mark[]} */
function axisMarks({ isGreedy }, hasRace, { luck, goal, top, deep, scale, small }) {
  const y = top + deep + 8 * scale;
  const middle = (luck + goal) / 2;
  if (!hasRace) return isGreedy ? [label(middle, top - 9 * scale, "no luck", "label middle")] : [];
  return [label(middle, top - 9 * scale, "luck", "label middle"),
    path(`M${n(luck)} ${y}H${n(goal)}m${-4 * scale} ${-3 * scale}l${4 * scale} ${3 * scale}l${-4 * scale} ${3 * scale}`, "axis"),
    label(middle, y + 14 * scale, small ? "score" : "score = ln p + luck", "label middle")];
}

/**
 * @param {River} river @param {[number, number] | null} from where the winner's line begins; null: the record has no band of it
 * @param {Layout} layout @param {number | null} exit @returns {Mark[]} the line into the text, and the token on it
 */
function drawExit(river, from, { card, width, top, deep, scale, small }, exit) {
  const [wide, high] = [width - card - 8 * scale, 38 * scale];
  const y = Math.min(Math.max(from?.[1] ?? top + deep / 2, top + high / 2), top + deep - high / 2);
  const [out, over] = [card + wide / 2, 7 * scale];
  const up = exit === null || Math.abs(exit - out) < 4 ? `V${2 * scale}` : `V${over}H${n(exit)}V${2 * scale}`;
  const tip = exit === null || Math.abs(exit - out) < 4 ? out : exit;
  const joins = from && (!river.isForced || river.drawn === river.chosen);
  const [s, t] = [3.5 * scale, 6 * scale];
  const share = percent(river.probability);
  return [
    ...(from ? [path(`M${n(from[0])} ${n(from[1])}H${n(joins ? card : card - 8 * scale)}`, joins ? "way" : "way lost")] : []),
    path(`M${n(out)} ${n(y - high / 2)}${up}`, "way"),
    path(`M${n(tip - s)} ${t}L${n(tip)} 0L${n(tip + s)} ${t}Z`, "way tip"),
    box({ x: card, y: n(y - high / 2), width: wide, height: high }, "card chosen", visible(river.chosen)),
    label(card + wide / 2, n(y - 3 * scale), short(river.chosen, small ? 7 : 13), "label middle strong"),
    label(card + wide / 2, n(y + 11 * scale), river.isForced ? "forced" : small ? share : `${share} · ${river.bits}`, "label middle"),
  ];
}
