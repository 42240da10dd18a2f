/**
 * The address, which anybody can edit: its fields, read and checked. What is not as the page writes it is left out.
 *
 * Knows the form of each field; not what the page does with it.
 */

import { PANELS, currentPanel } from "./panels.js";
/** @import { Kept } from "./store.js" */

/** @typedef {(value: any) => any} Reader returns the value, in the form that it must have; undefined: it has another */

/** @type {Reader} */
const text = (value) => (typeof value === "string" ? value : undefined);
/** @type {Reader} */
const flag = (value) => (typeof value === "boolean" ? value : undefined);
/** @type {Reader} */
const whole = (value) => (Number.isSafeInteger(value) && value >= 0 ? value : undefined);
/** @type {Reader} */
const number = (value) => (Number.isFinite(value) ? value : undefined);
/** @type {Reader} */
const anything = (value) => value;

/** @param {Iterable<string>} choices @returns {Reader} */
const choice = (choices) => {
  const all = new Set(choices);
  return (value) => (all.has(value) ? value : undefined);
};

/** @param {Reader} read @returns {Reader} */
const orNull = (read) => (value) => (value === null ? null : read(value));

/** @param {Reader} read @param {number} [count] @returns {Reader} of as many as these; default: of any number */
const list = (read, count) => (value) => {
  if (!Array.isArray(value) || (count !== undefined && value.length !== count)) return undefined;
  const all = value.map(read);
  return all.includes(undefined) ? undefined : all;
};

/** @param {any} value @returns {boolean} */
const isObject = (value) => typeof value === "object" && value !== null && !Array.isArray(value);

/** @param {Reader} read @returns {Reader} of an object with any names */
const record = (read) => (value) => {
  if (!isObject(value)) return undefined;
  const entries = Object.entries(value).map(([name, field]) => [name, read(field)]);
  return entries.some(([, field]) => field === undefined) ? undefined : Object.fromEntries(entries);
};

/**
 * @param {Record<string, Reader>} fields that it must have @param {Record<string, Reader>} [more] that it may have
 * @returns {Reader} of an object; other fields are left out
 */
const object = (fields, more = {}) => (value) => {
  if (!isObject(value)) return undefined;
  const read = Object.entries(fields).map(([name, reader]) => [name, reader(value[name])]);
  if (read.some(([, field]) => field === undefined)) return undefined;
  const rest = Object.entries(more).filter(([name]) => value[name] !== undefined).map(([name, reader]) => [name, reader(value[name])]);
  return Object.fromEntries([...read, ...rest.filter(([, field]) => field !== undefined)]);
};

/** @type {Map<string, Reader>} */
const LISTS = new Map([["stop", (value) => list(text)(typeof value === "string" ? [value] : value)], ["chain", orNull(list(text))], ["choice", list(text)]]);

/** @type {Reader} of settings, in their order: who writes the text checks their values, but some are lists here */
const settings = (value) => isObject(value) ? Object.fromEntries(Object.entries(record(anything)(value) ?? {})
  .map(([name, setting]) => [name, (LISTS.get(name) ?? anything)(setting)])
  .filter(([, setting]) => setting !== undefined)) : undefined;

const INSIDE = {
  by: choice(["weight", "attribution"]), map: choice(["attribution", "sink", "induction", "entropy"]),
  head: orNull(list(whole, 2)), part: orNull(text),
};
const CALL = object({ id: text, name: text, arguments: text });
const MESSAGE = object({ role: choice(["system", "user", "assistant", "tool"]), content: text },
  { run: whole, calls: list(CALL), result: text });
const REQUEST_MESSAGE = object({ role: text, content: text }, { tool_calls: list(record(anything)), tool_call_id: text });

const panels = choice(PANELS.keys());

/** The fields of texts stand in the address as they are, all others as JSON. */
const TEXTS = {
  panel: (/** @type {any} */ name) => panels(currentPanel(name)), lesson: choice(["practice", "snowball", "stop"]), kind: choice(["chat", "completion", "typing"]),
  tools: text, draft: text, prompt: text, seed: text,
};
const FIELDS = {
  run: whole, step: whole, candidate: whole, pass: orNull(whole), other: orNull(whole), inside: object(INSIDE),
  whatIf: orNull(record(number)), mustCall: flag, messages: list(MESSAGE), settings, typing: orNull(whole),
  price: orNull(object({ input: number, output: number })), large: flag,
};
const RUN = object({
  id: whole, parent: orNull(whole), at: whole, name: text,
  request: object({
    kind: choice(["chat", "completion"]), prompt: (value) => text(value) ?? list(whole)(value), messages: list(REQUEST_MESSAGE),
    settings, seed: orNull(text), forced: list(whole),
  }),
});

/** The names of the fields of the state that the address keeps. */
export const ADDRESS_FIELDS = /** @type {(keyof typeof TEXTS | keyof typeof FIELDS)[]} */ ([...Object.keys(FIELDS), ...Object.keys(TEXTS)]);

/**
 * @param {string} fragment
 * @returns {{fields: Record<string, any>, runs: Kept[]}} of the state, and the runs to generate again
 */
export function readAddress(fragment) {
  const address = new URLSearchParams(fragment);
  const read = [
    ...Object.entries(TEXTS).map(([name, reader]) => [name, reader(address.get(name))]),
    ...Object.entries(FIELDS).map(([name, reader]) => [name, address.has(name) ? reader(parseJson(address.get(name))) : undefined]),
  ];
  return { fields: Object.fromEntries(read.filter(([, value]) => value !== undefined)), runs: readRuns(parseJson(address.get("runs"))) };
}

/** @param {any} value @returns {Kept[]} whose parents, where they have one, are before them */
function readRuns(value) {
  const ids = new Set();
  return (Array.isArray(value) ? value : []).flatMap((entry) => {
    const run = RUN(entry);
    if (!run || run.id === 0 || ids.has(run.id)) return [];
    const parent = ids.has(run.parent) ? run.parent : null;
    ids.add(run.id);
    return [{ ...run, parent }];
  });
}

/** @param {string | null} json @returns {any} undefined where it is none */
export function parseJson(json) {
  try {
    return JSON.parse(json ?? "");
  } catch {
    return undefined;
  }
}
