/**
 * The river: from the left the candidates as bands, as high as the model's probability; a gate for each stage of the
 * chain, where bands end or swell; under it a tray with what it cut; right of the last gate luck, which carries each band
 * from its log-probability to its score; and the line of the highest score, which leaves the drawing towards the text.
 */

import { luckMarks } from "./luck.js";
import { box, group, label, mark, path, picture } from "./marks.js";
import { bandTitle, fits, layoutOf, n, short, spread } from "./places.js";
import { formatTokenCount } from "../figures/river.js";
import { percent, thousands, visible } from "../figures/numbers.js";
/** @import { Mark } from "./marks.js" */
/** @import { Layout, Stack } from "./places.js" */
/** @import { Band, Gate, River } from "../figures/river.js" */

const LEAST = 11; // pixels of a band with its probability in it
const NAMES = 9; // bands whose names stand beside them

/**
 * @param {River} river @param {{width: number, scale: number, selected: number | null, exit: number | null}} look `selected`: the id of a
 *   candidate; exit: x at which the winner's line leaves upwards; null: above its card
 * @returns {Mark}
 */
export function riverDrawing(river, { width, scale, selected, exit }) {
  const layout = layoutOf(river.gates.length, width, scale);
  const stacks = stacksOf(river, layout);
  const { gates, bands } = river;
  return picture(layout, "",
    group("falls", ...gates.flatMap((gate, i) => falls(river, stacks, gate, i, layout))),
    restRibbon(river, stacks, layout),
    group("bands", ...bands.map((band, i) => ribbon(band, i, stacks, layout, selected))),
    group("gates", ...gates.flatMap((gate, i) => gateMarks(gate, i, layout))),
    group("names", ...namesOf(river, stacks, layout)),
    group("ends", ...endsOf(river, stacks, layout)),
    ...luckMarks(river, stacks, layout, exit));
}

// -- the flow -------------------------------------------------------------------------------------

/** @param {River} river @param {Layout} layout @returns {(Stack | null)[]} by column; null: the record does not have it */
function stacksOf({ bands, rests }, { top, deep }) {
  return rests.map(({ share: rest }, column) => {
    if (rest === undefined) return null;
    let y = top;
    return [...bands.map(({ shares }) => shares[column]), rest].map((share) => {
      if (share === null || share === undefined) return null;
      const from = y;
      return [from, (y += share * deep)];
    });
  });
}

/** @param {Layout} layout @param {number} column @returns {[number, number]} between which x a column's bands are level */
const level = ({ start, flow, gates, gate, lane }, column) =>
  [column ? (gates[column - 1] ?? 0) + gate + 0.4 * lane : start, column < gates.length ? (gates[column] ?? 0) : flow];

/**
 * @param {[number, number, number, number][]} places x from and to, y from and to of each known column
 * @param {number | null} point x at which it ends in a point, since its height there is unknown @returns {string}
 */
function ribbonPath(places, point) {
  const [first] = places;
  if (!first) return "";
  const traceEdge = (/** @type {0 | 1} */ edge, /** @type {typeof places} */ all, /** @type {boolean} */ back) => all.map((place, i) => {
    const y = place[2 + edge] ?? 0;
    const [from, to] = back ? [place[1], place[0]] : [place[0], place[1]];
    const before = all[i - 1];
    if (!before) return `${i || back ? "L" : "M"}${n(from)} ${n(y)}H${n(to)}`;
    const [x, yBefore] = [back ? before[0] : before[1], before[2 + edge] ?? 0];
    const middle = n((x + from) / 2);
    return `C${middle} ${n(yBefore)} ${middle} ${n(y)} ${n(from)} ${n(y)}H${n(to)}`;
  }).join("");
  const last = places.at(-1) ?? first;
  const tip = point === null ? "" : `L${n(point)} ${n((last[2] + last[3]) / 2)}`;
  return `${traceEdge(0, places, false)}${tip}${traceEdge(1, places.toReversed(), true)}Z`;
}

/**
 * @param {(Stack | null)[]} stacks @param {number} at @param {Layout} layout @param {number} [until] the last column
 * @returns {[number, number, number, number][]}
 */
const placesOf = (stacks, at, layout, until = Infinity) => stacks.flatMap((stack, column) => {
  const place = stack?.[at];
  if (!place || column > until) return [];
  const [from, to] = level(layout, column);
  return [/** @type {[number, number, number, number]} */ ([from, passGate(layout, column, to), ...place])];
});

/** A band that passes a gate stays level in it. @param {Layout} layout @param {number} column @param {number} x */
const passGate = ({ gates, gate }, column, x) => (column < gates.length ? x + gate : x);

/**
 * @param {Band} band @param {number} i @param {(Stack | null)[]} stacks @param {Layout} layout @param {number | null} selected
 * @returns {Mark}
 */
function ribbon(band, i, stacks, layout, selected) {
  const places = placesOf(stacks, i, layout);
  const last = places.at(-1);
  const isRecorded = stacks[band.cutAt ?? -1] !== null;
  if (last && band.cutAt !== null && isRecorded) last[1] = level(layout, band.cutAt)[1];
  const thin = Math.max(...places.map(([, , from, to]) => to - from)) < 2;
  const isLost = band.isDrawn && !band.isChosen;
  const kinds = ["band", band.isChosen ? "chosen" : "measured", isLost && "lost", thin && "thin", band.id === selected && "selected"]
    .filter((kind) => kind);
  const point = band.cutAt !== null && !isRecorded ? (layout.gates[band.cutAt] ?? null) : null;
  return mark("path", { d: ribbonPath(places, point), class: kinds.join(" "), "data-id": band.id }, mark("title", {}, bandTitle(band)));
}

/**
 * @param {River} river @param {(Stack | null)[]} stacks @param {Layout} layout
 * @returns {Mark} what has no band, of which a gate may cut a part
 */
function restRibbon(river, stacks, layout) {
  const at = river.bands.length;
  const places = placesOf(stacks, at, layout).flatMap((place) => {
    const i = layout.gates.findIndex((x) => n(x + layout.gate) === n(place[1]));
    const gate = river.gates[i];
    if (!gate) return [place];
    const [from, to, low, high] = place;
    return [[from, to - layout.gate, low, high], [to - layout.gate, to, low, high - restCut(river, stacks, gate, i, layout.deep)]];
  });
  const [rest] = river.rests;
  return path(ribbonPath(/** @type {[number, number, number, number][]} */ (places), null), "band rest",
    `${formatTokenCount(rest?.count ?? 0)} without a record of their own: ${percent(rest?.share)}`);
}

// -- the gates ------------------------------------------------------------------------------------

/**
 * @param {River} river @param {(Stack | null)[]} stacks @param {Gate} gate @param {number} i
 * @returns {[number, number][]} of the bands that a gate cuts
 */
const cutBands = ({ bands }, stacks, { cut }, i) => bands.flatMap(({ cutAt }, at) => {
  const place = stacks[i]?.[at];
  return cut && cutAt === i && place ? [place] : [];
});

/**
 * @param {River} river @param {(Stack | null)[]} stacks @param {Gate} gate @param {number} i @param {number} deep
 * @returns {number} pixels that a gate cuts from what has no band
 */
function restCut(river, stacks, gate, i, deep) {
  const rest = stacks[i]?.[river.bands.length];
  if (!gate.cut || !rest) return 0;
  const ofBands = cutBands(river, stacks, gate, i).reduce((sum, [from, to]) => sum + to - from, 0);
  return Math.min(Math.max(gate.cut.share * deep - ofBands, 0), rest[1] - rest[0]);
}

/**
 * The pieces that a gate cuts: from and to in pixels, those that touch as one.
 * @param {River} river @param {(Stack | null)[]} stacks @param {Gate} gate @param {number} i @param {number} deep
 * @returns {[number, number][]} as high as the removed probability; none where the record does not have the heights
 */
function piecesOf(river, stacks, gate, i, deep) {
  const rest = stacks[i]?.[river.bands.length];
  const ofRest = restCut(river, stacks, gate, i, deep);
  const pieces = cutBands(river, stacks, gate, i);
  if (rest && ofRest > 0) pieces.push([rest[1] - ofRest, rest[1]]);
  return pieces.reduce((/** @type {[number, number][]} */ spans, [from, to]) => {
    const before = spans.at(-1);
    if (before && from - before[1] < 1e-6) before[1] = to;
    else spans.push([from, to]);
    return spans;
  }, []);
}

/**
 * @param {River} river @param {(Stack | null)[]} stacks @param {Gate} gate @param {number} i @param {Layout} layout
 * @returns {Mark[]} what falls, and the tray: as wide as a lane is 100 %, filled as far as was cut
 */
function falls(river, stacks, gate, i, layout) {
  const { cut } = gate;
  if (!cut) return [];
  const { gates, gate: wide, lane, scale, tray, deep, top } = layout;
  const x = gates[i] ?? 0;
  const pieces = piecesOf(river, stacks, gate, i, deep);
  const from = pieces[0]?.[0] ?? top + deep;
  const across = 0.86 * lane;
  const left = Math.max(x + wide / 2 - across / 2, layout.start - 0.16 * lane);
  const title = `${gate.label} cut off ${formatTokenCount(cut.tokens)} with ${percent(cut.share)}: ${cut.names.map(visible).join(" ")}`;
  const middle = left + across / 2;
  const words = [`${formatTokenCount(cut.tokens)}, ${percent(cut.share)}`, percent(cut.share)].find((caption) => fits(caption, lane, scale));
  const labels = words ? [label(middle, tray + 20 * scale, words, "label middle")] : [];
  return [group("fall", mark("title", {}, title),
    box({ x, y: from, width: wide, height: tray - from }, "chute"),
    ...pieces.map(([a, b]) => box({ x, y: n(a), width: wide, height: n(b - a) }, "cut piece")),
    box({ x: left, y: tray, width: across, height: 7 * scale }, "tray"),
    box({ x: left, y: tray, width: n(cut.share * across), height: 7 * scale }, "cut"),
    ...labels)];
}

/** @param {Gate} gate @param {number} i @param {Layout} layout @returns {Mark[]} its posts and its letter */
function gateMarks({ letter, colour, label: name, help, at, isGreedy }, i, { gates, gate, lane, top, deep, scale }) {
  const x = gates[i] ?? 0;
  const words = fits(name, lane, scale) ? name : letter;
  const posts = [x, x + gate].map((at) => `M${n(at)} ${top - 3 * scale}V${top + deep + 3 * scale}`).join("");
  const kind = at === null && !isGreedy ? "gate off" : "gate";
  return [mark("path", { d: posts, class: kind, style: { "--hue": colour } }, mark("title", {}, `${name}: ${help}`)),
    label(x + gate / 2, top - 9 * scale, words, words === letter ? "label middle strong" : "label middle")];
}

// -- names and figures ----------------------------------------------------------------------------

/**
 * @param {River} river @param {(Stack | null)[]} stacks @param {Layout} layout
 * @returns {Mark[]} names of the likeliest bands, of the winner's, and of what has none
 */
function namesOf({ bands, rests }, stacks, { start, top, deep, scale, small }) {
  const stack = stacks[0] ?? [];
  const [rest] = rests;
  const names = [...bands.map(({ token, shares: [share], isDrawn, isChosen }) =>
    ({ words: short(token, small ? 5 : 12), share, isFirst: isDrawn || isChosen })),
    { words: small ? "others" : `${thousands(rest?.count ?? 0)} others`, share: rest?.share, isFirst: false }];
  const entries = names.flatMap((name, i) => (stack[i] ? [{ ...name, from: (stack[i][0] + stack[i][1]) / 2, y: 0 }] : []))
    .filter(({ isFirst }, i, all) => isFirst || i < NAMES || i === all.length - 1);
  spread(entries, top + 5 * scale, top + deep - 5 * scale, 12.5 * scale);
  const x = start - 16 * scale;
  return entries.flatMap(({ words, share, isFirst, from, y }) => [
    path(`M${n(start - 2 * scale)} ${n(from)}L${n(x + 3 * scale)} ${n(y)}`, isFirst ? "lead strong" : "lead"),
    label(x, n(y + 4 * scale), `${words} ${percent(share)}`, isFirst ? "label end strong" : "label end"),
  ]);
}

/** @param {River} river @param {(Stack | null)[]} stacks @param {Layout} layout @returns {Mark[]} probabilities at the end of the flow */
function endsOf({ bands, gates, rests }, stacks, { flow, lane, scale }) {
  const stack = stacks.at(-1);
  if (!gates.length || !stack || lane < 80 * scale) return [];
  return [...bands.map(({ shares }) => shares.at(-1)), rests.at(-1)?.share].flatMap((share, i) => {
    const place = stack[i];
    if (!place || place[1] - place[0] < LEAST * scale) return [];
    return [label(flow - 5 * scale, n((place[0] + place[1]) / 2 + 4 * scale), percent(share), "label end inside")];
  });
}
