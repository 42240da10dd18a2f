/**
 * The rest of a row: the tokens that are not on record by name.
 *
 * Of them we know how many lie in each nat below the maximum (the sketch), and what they weigh
 * together. So whatever is asked of their weights has a least and a most: both are found here, and
 * nothing is guessed. Knows weights and intervals. Knows no record and no document.
 */

/**
 * Tokens whose logits lie from `low` to `high`. `low` is −∞ where it is not known either whether
 * they are still in: then their weight may be 0.
 * @typedef {{count: number, low: number, high: number}} Group
 * @typedef {[number, number]} Span the least and the most that something can be
 * Groups best first; `ref` is the logit whose weight is 1; `mass`: what all weigh together.
 * @typedef {{groups: Group[], mass: Span, ref: number}} Rest
 */

/** @param {Rest} rest @returns {number} how many tokens may be in */
export const size = (rest) => sum(rest.groups.map((group) => group.count));

/** @param {Rest} rest @returns {number} the most that one of them can weigh */
export const heaviest = (rest) =>
  Math.min(rest.mass[1], Math.max(0, ...rest.groups.map((g) => Math.exp(g.high - rest.ref))));

/** @param {Rest} rest @param {number} count @returns {Span} what the best so many of them weigh */
export function massOf(rest, count) {
  const best = firstOf(rest.groups, count);
  const weigh = (/** @type {"low" | "high"} */ edge) =>
    sum(best.map((group) => group.count * Math.exp(group[edge] - rest.ref)));
  const all = size(rest);
  const share = all ? Math.min(count / all, 1) : 0; // the best are no lighter than the others
  return [Math.max(weigh("low"), rest.mass[0] * share), Math.min(weigh("high"), rest.mass[1])];
}

/** @param {Group[]} groups @param {number} count @returns {Group[]} the best tokens of them */
function firstOf(groups, count) {
  let left = count;
  return groups.flatMap((group) => {
    const taken = Math.min(left, group.count);
    left -= taken;
    return taken > 0 ? [{ ...group, count: taken }] : [];
  });
}

/**
 * @param {Rest} rest @param {number} least @param {number} most how many of the best may stay
 * @returns {Rest} it, where at least `least` of them do
 */
export function cut(rest, least, most) {
  const sure = firstOf(rest.groups, least);
  const open = minus(firstOf(rest.groups, most), least);
  const mass = /** @type {Span} */ ([massOf(rest, least)[0], massOf(rest, most)[1]]);
  return { ...rest, groups: [...sure, ...open.map((g) => ({ ...g, low: -Infinity }))], mass };
}

/** @param {Group[]} groups @param {number} count @returns {Group[]} without the best so many */
function minus(groups, count) {
  let gone = count;
  return groups.flatMap((group) => {
    const lost = Math.min(gone, group.count);
    gone -= lost;
    return lost < group.count ? [{ ...group, count: group.count - lost }] : [];
  });
}

/**
 * All logits divided by a temperature. A weight w becomes w^β with β = 1/temperature. For a given
 * sum, weights that are as equal as they can be and weights that are as unequal as they can be are
 * the two ends of what the sum of powers can be.
 * @param {Rest} rest @param {number} temperature @returns {Rest}
 */
export function heated(rest, temperature) {
  const beta = 1 / temperature;
  const [least, most] = rest.mass;
  const mass = beta > 1
    ? [level(rest, least, beta), uneven(rest, most, beta)]
    : [uneven(rest, least, beta), level(rest, most, beta)];
  const groups = rest.groups.map((group) =>
    ({ ...group, low: group.low / temperature, high: group.high / temperature }));
  return { groups, mass: /** @type {Span} */ (mass), ref: rest.ref / temperature };
}

/**
 * Sum of w^β where the weights sum to `mass` and are as equal as their groups allow: a bound from
 * below for β > 1, from above for β < 1.
 * @param {Rest} rest @param {number} mass @param {number} beta @returns {number}
 */
function level(rest, mass, beta) {
  const edges = weights(rest);
  const at = (/** @type {number} */ height, /** @type {number} */ power) =>
    sum(edges.map((e) => e.count * Math.min(Math.max(height, e.low), e.high) ** power));
  let [low, high] = [0, Math.max(0, ...edges.map((edge) => edge.high))];
  for (let i = 0; i < 100; i++) {
    const middle = (low + high) / 2;
    if (at(middle, 1) < mass) low = middle;
    else high = middle;
  }
  return at(beta > 1 ? low : high, beta);
}

/**
 * A bound of the sum of w^β where the weights sum to `mass` and each is at an end of its group: from
 * above for β > 1, from below for β < 1. Between the ends the power's chord is taken.
 * @param {Rest} rest @param {number} mass @param {number} beta @returns {number}
 */
function uneven(rest, mass, beta) {
  const edges = weights(rest).map((edge) => ({ ...edge, slope: slope(edge, beta) }));
  edges.sort((a, b) => (beta > 1 ? b.slope - a.slope : a.slope - b.slope));
  let left = mass - sum(edges.map((edge) => edge.count * edge.low));
  let found = sum(edges.map((edge) => edge.count * edge.low ** beta));
  for (const edge of edges) {
    const taken = Math.min(Math.max(left, 0), edge.count * (edge.high - edge.low));
    left -= taken;
    found += taken * edge.slope;
  }
  return found;
}

/** @param {{low: number, high: number}} edge @param {number} beta @returns {number} of the chord */
function slope({ low, high }, beta) {
  const wide = high - low;
  return wide > 0 ? (high ** beta - low ** beta) / wide : 0;
}

/** @param {Rest} rest @returns {Group[]} with weights for logits */
const weights = ({ groups, ref }) =>
  groups.map(({ count, low, high }) => ({
    count, low: Math.exp(low - ref), high: Math.exp(high - ref),
  }));

/** @param {number[]} values @returns {number} */
export const sum = (values) => values.reduce((a, b) => a + b, 0);
