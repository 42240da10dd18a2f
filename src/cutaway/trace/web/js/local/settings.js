/**
 * The settings of a request, checked as a server checks them, with its sentences.
 *
 * Knows kinds of settings; their names and ranges come from Python (features/page/settings.py).
 */

/** @import { About, Tokenizer } from "./loop.js" */

/**
 * A setting's kind and range. null: a server alone has it.
 * above, below: whether the range excludes its ends; zero: whether it has 0 besides; range: in words
 * usual: breakers where none are given and the setting used_with is on; most, characters, bytes: the limits of a list, or of a number's size
 * @typedef {{kind: string, low?: number, high?: number | null, above?: boolean, below?: boolean, zero?: boolean, range?: string,
 *   whole?: boolean, choices?: string[], names?: string[], usual?: string[], used_with?: string, most?: number, characters?: number, bytes?: number}} Row
 * @typedef {Record<string, Row | null>} Rows
 */

const MOST_SEED = 2n ** 64n - 1n;
const MOST_SHOWN = 80; // characters of a value

/** A refusal in a sentence, whose `param` is the setting. */
class SettingError extends Error {
  /** @param {string} param @param {string} rest of the sentence, after the setting's name */
  constructor(param, rest) {
    super(param + rest);
    this.param = param;
  }
}

/** @param {string} name @param {string} requirement @param {unknown} value @returns {never} */
function refuse(name, requirement, value) {
  const words = typeof value === "string" ? "a string" : Array.isArray(value) ? "a list" : value && typeof value === "object" ? "an object" : null;
  throw new SettingError(name, ` must be ${requirement}, not ${words ?? JSON.stringify(value)}`);
}

/**
 * @param {Record<string, any>} request @param {About} about @param {Tokenizer} tokenizer
 * @returns {Record<string, any>} every setting; the seed is a BigInt
 */
export function readSettings({ seed = null, ...request }, { defaults, settings, stages }, tokenizer) {
  /** @type {Record<string, any>} */
  const params = { ...defaults, seed: readSeed(seed) };
  for (const [name, value] of Object.entries(request)) {
    const row = settings[name];
    if (value === null || JSON.stringify(value) === JSON.stringify(defaults[name])) continue;
    if (row === undefined) throw Object.assign(new Error(`unknown field '${name}'; leave it out`), { param: name });
    if (row === null) throw new SettingError(name, ": this page cannot do that; cutaway serve can");
    params[name] = READERS[row.kind]?.(name, value, row) ?? value;
  }
  if (params["max_tokens"] === 0) throw new SettingError("max_tokens", " must be 1 or more, or 0 with echo or prompt_logprobs");
  if (params["candidates"] === 0) throw new SettingError("candidates", ": with a trace it must be 1 or more, not 0");
  checkChain(params, defaults, stages);
  return readTokens(request, params, settings, tokenizer);
}

/** @type {Record<string, (name: string, value: any, row: Row) => any>} by kind; each returns the value, or refuses it */
const READERS = {
  number: (name, value, row) => (row.whole ? READERS["int"]?.(name, value, row) : readNumber(name, value, row)),
  int(name, value, { low = -Infinity, high, range }) {
    if (!Number.isInteger(value)) refuse(name, "a whole number", value);
    if (value < low || value > (high ?? Infinity)) throw new SettingError(name, ` must be ${range}, not ${value}`);
  },
  bool: (name, value) => void (typeof value === "boolean" || refuse(name, "true or false", value)),
  off: (name, value) => void (typeof value === "boolean" || refuse(name, "true or false", value)),
  text(name, value, { choices = [] }) {
    if (typeof value !== "string") refuse(name, "a string", value);
    if (!choices.includes(value)) throw new SettingError(name, ` must be one of ${choices.join(", ")}, not ${quote(value)}`);
  },
  names(name, value, { names = [] }) {
    checkItems(name, value, (stage) => typeof stage === "string", "a string");
    value.forEach((/** @type {string} */ stage, /** @type {number} */ i) => {
      if (!names.includes(stage)) throw new SettingError(name, `: no stage is called ${quote(stage)}; ${names.join(", ")} are`);
      if (value.indexOf(stage) < i) throw new SettingError(name, ` has ${quote(stage)} twice: name each stage once`);
    });
  },
  stops(name, value, { most: limit = 0, characters = 0 }) {
    const stops = [value].flat();
    if (!stops.every((text) => typeof text === "string")) throw new SettingError(name, " must be a string or a list of strings");
    if (stops.length > limit) throw new SettingError(name, ` has ${stops.length} strings; at most ${limit}`);
    const length = [...stops.join("")].length;
    if (length > characters) throw new SettingError(name, ` has ${length} characters; at most ${characters} in all`);
    if (stops.includes("")) throw new SettingError(name, " must not hold an empty string; leave it out instead");
    return stops;
  },
  ids(name, value, { low }) {
    checkItems(name, value, Number.isInteger, "a whole number");
    const bad = value.find((/** @type {number} */ id) => low !== undefined && id < low);
    if (bad !== undefined) throw new SettingError(name, `: a token id must be ${low} or more, not ${bad}`);
  },
  tokens: (name, value) => checkItems(name, value, Number.isInteger, "a whole number"),
  breakers: (name, value) =>
    checkItems(name, value, (breaker) => typeof breaker === "string" || Number.isInteger(breaker), "a string or a whole number"),
  biases(name, value, { most: limit = 0 }) {
    if (!value || typeof value !== "object" || Array.isArray(value)) refuse(name, "an object", value);
    for (const [id, by] of Object.entries(value)) if (typeof by !== "number") refuse(`${name}[${id}]`, "a number", by);
    for (const [id, by] of Object.entries(value)) {
      if (!/^(0|[1-9]\d*)$/.test(id)) throw new SettingError(name, `: ${quote(id)} is no token id; /tokenize returns them`);
      if (Math.abs(by) > limit) throw new SettingError(`${name}[${id}]`, ` must be between ${-limit} and ${limit}, not ${float(by)}`);
    }
  },
};

/** @param {string} name @param {any} value @param {Row} row */
function readNumber(name, value, { low = -Infinity, high, above, below, zero, range }) {
  if (typeof value !== "number") refuse(name, "a number", value);
  const maximum = high ?? Infinity;
  const isIn = (above ? value > low : value >= low) && (below ? value < maximum : value <= maximum);
  if (!isIn && !(zero && value === 0)) throw new SettingError(name, ` must be ${range}, not ${float(value)}`);
}

/** @param {string} name @param {any} value @param {(item: any) => boolean} isRight @param {string} requirement of each item */
function checkItems(name, value, isRight, requirement) {
  if (!Array.isArray(value)) refuse(name, "a list", value);
  const wrong = value.findIndex((/** @type {any} */ item) => !isRight(item));
  if (wrong >= 0) refuse(`${name}[${wrong}]`, requirement, value[wrong]);
}

/** @param {Record<string, any>} params @param {Record<string, any>} defaults @param {import("./loop.js").StageEntry[]} stages */
function checkChain(params, defaults, stages) {
  if (params.chain === null) return;
  if (params.preset !== defaults["preset"]) {
    throw new SettingError("preset", " and chain both give the order of the stages: leave one out");
  }
  for (const stage of stages.filter(({ name }) => !params.chain.includes(name))) {
    for (const name of Object.values(stage.rule)) {
      const isGreedy = name === "temperature" && params[name] === 0; // greedy needs no stage
      if (isGreedy || JSON.stringify(params[name]) === JSON.stringify(defaults[name])) continue;
      throw new SettingError("chain", ` has no ${quote(stage.name)}, and ${name} is given: leave one out`);
    }
  }
}

/**
 * Check ids against the vocabulary, and turn breakers into the ids of the tokens that contain them.
 * @param {Record<string, any>} request @param {Record<string, any>} params @param {Rows} rows @param {Tokenizer} tokenizer
 */
function readTokens(request, params, rows, tokenizer) {
  for (const [name, row] of Object.entries(rows)) {
    if (row?.kind === "ids" || row?.kind === "tokens") checkIds(name, params[name], tokenizer);
    if (row?.kind === "biases") checkIds(name, Object.keys(params[name]).map(Number), tokenizer);
    if (row?.kind !== "breakers") continue;
    const { usual = [], used_with: other = "", bytes = 0 } = row;
    params[name] = breakerIds(name, request[name] == null && params[other] ? usual : params[name], bytes, tokenizer);
  }
  return params;
}

/** @param {string} name @param {(string | number)[]} breakers @param {number} limit of their bytes @param {Tokenizer} tokenizer @returns {number[]} */
function breakerIds(name, breakers, limit, tokenizer) {
  const texts = [...new Set(breakers.filter((breaker) => typeof breaker === "string"))].map((text) => latin(new TextEncoder().encode(text)));
  if (texts.includes("")) throw new SettingError(name, ": an empty string is in every token; leave it out");
  const size = texts.join("").length;
  if (size > limit) throw new SettingError(name, ` have ${size} bytes; at most ${limit} in all`);
  const ids = new Set(breakers.filter((breaker) => typeof breaker === "number"));
  if (texts.length) {
    for (let id = 0; id < tokenizer.size; id++) {
      const bytes = latin(tokenizer.bytes(id));
      if (texts.some((text) => bytes.includes(text))) ids.add(id);
    }
  }
  return [...ids].sort((a, b) => a - b);
}

/** @param {Uint8Array} bytes @returns {string} a character for each */
const latin = (bytes) => Array.from(bytes, (byte) => String.fromCharCode(byte)).join("");

/** @param {string} name @param {number[]} ids @param {Tokenizer} tokenizer */
function checkIds(name, ids, tokenizer) {
  const bad = ids.find((id) => id < 0 || id >= tokenizer.size);
  if (bad !== undefined) throw new SettingError(name, `: token id ${bad} is not between 0 and ${tokenizer.size - 1}`);
}

/** @param {number[]} prompt @param {number[]} forced @param {Record<string, any>} params @param {Tokenizer} tokenizer */
export function checkPrompt(prompt, forced, params, tokenizer) {
  if (!prompt.length) throw new SettingError("prompt", " is empty and this model has no begin token: write something");
  checkItems("prompt", prompt, Number.isInteger, "a whole number");
  checkIds("prompt", prompt, tokenizer);
  checkItems("forced", forced, Number.isInteger, "a whole number");
  if (forced.length > params["max_tokens"]) {
    throw new SettingError("forced", ` has ${forced.length} token ids, and max_tokens is ${params["max_tokens"]}: `
      + "raise max_tokens, or give fewer");
  }
  checkIds("forced", forced, tokenizer);
}

/** @param {any} seed null: one is chosen @returns {bigint} */
function readSeed(seed) {
  if (seed === null) {
    const words = crypto.getRandomValues(new Uint32Array(2));
    return (BigInt(words[0] ?? 0) << 32n) | BigInt(words[1] ?? 0);
  }
  if (!/^\d+$/.test(String(seed))) refuse("seed", "a whole number", seed);
  if (BigInt(seed) > MOST_SEED) throw new SettingError("seed", ` must be between 0 and ${MOST_SEED}, not ${seed}`);
  return BigInt(seed);
}

// -- values as Python writes them ------------------------------------------------------------------

/** @param {number} value @returns {string} as Python writes a float */
function float(value) {
  const [digits = "", exponent = ""] = value.toExponential().split("e"), power = Number(exponent);
  if (power >= -4 && power < 16) return Number.isInteger(value) ? `${value}.0` : `${value}`;
  return `${digits}e${power < 0 ? "-" : "+"}${String(Math.abs(power)).padStart(2, "0")}`;
}

/** @param {string} value @returns {string} as Python quotes a string, cut if it is long */
function quote(value) {
  const mark = value.includes("'") && !value.includes('"') ? '"' : "'";
  const text = value.replaceAll("\\", "\\\\").replaceAll("\n", "\\n").replaceAll("\t", "\\t");
  const whole = mark + (mark === "'" ? text.replaceAll("'", "\\'") : text) + mark;
  return whole.length <= MOST_SHOWN ? whole : `${whole.slice(0, MOST_SHOWN - 1)}…`;
}
