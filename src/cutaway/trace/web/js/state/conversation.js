/**
 * A conversation: which run an answer comes from, how a run's text becomes an answer, and the calls of tools in it.
 *
 * The functions return new lists of messages. Knows no document, no server and no store.
 */

import { lineage } from "../figures/branches.js";
/** @import { Call, Message, Run } from "./store.js" */

/** @typedef {(id: number | null) => Run | null} Find */

/** @param {Message[]} messages @returns {Message[]} as the server takes them */
export const plain = (messages) => messages.map(({ role, content, calls, result }) => ({
  role, content,
  ...(calls && { tool_calls: calls.map(({ id, ...call }) => ({ id, type: "function", function: call })) }),
  ...(result !== undefined && { tool_call_id: result }),
}));

/** @param {Message[]} messages @returns {Message[]} up to the last question, or the last result of a tool */
export const open = (messages) =>
  messages.slice(0, 1 + messages.findLastIndex((message) => message.role !== "assistant" && message.role !== "system"));

/** @param {Message} message @param {Find} find @returns {string} its text so far */
export function messageText(message, find) {
  const run = find(message.run ?? null);
  return message.content || (message.calls || run?.calls ? run?.textBeforeCalls : run?.trace.text) || "";
}

// -- calls of tools -------------------------------------------------------------------------------

/** @param {Run} run @param {any} delta what an event of the stream adds to its answer */
export function hear(run, { content, tool_calls: calls }) {
  if (content) run.textBeforeCalls = (run.textBeforeCalls ?? "") + content;
  for (const { index, id, function: { name, arguments: more = "" } } of calls ?? []) {
    run.calls ??= [];
    const call = (run.calls[index] ??= { id, name, arguments: "" });
    call.arguments += more;
  }
}

/** @param {Message[]} messages @returns {Call[]} the calls of the last answer that have no result yet */
export function openCalls(messages) {
  const at = messages.findLastIndex(({ role }) => role === "assistant");
  const results = messages.slice(at + 1).map(({ result }) => result);
  return (messages[at]?.calls ?? []).filter(({ id }) => !results.includes(id));
}

/** @param {Call} call @returns {string} get_weather(city: "Paris"); its arguments as they are while they are not whole */
export function callText({ name, arguments: argumentText }) {
  try {
    const pairs = Object.entries(JSON.parse(argumentText || "{}"));
    return `${name}(${pairs.map(([key, value]) => `${key}: ${JSON.stringify(value)}`).join(", ")})`;
  } catch {
    return `${name}(${argumentText.trim()} …`;
  }
}

/**
 * @param {string} text of the field
 * @returns {any[] | null} the functions; null: the field is empty
 * @throws {SyntaxError} what is wrong with it, in a sentence
 */
export function toolsOf(text) {
  if (!text.trim()) return null;
  let tools;
  try {
    tools = JSON.parse(text);
  } catch (error) {
    throw new SyntaxError(`The tools are not JSON: ${/** @type {Error} */ (error).message}.`);
  }
  return Array.isArray(tools) ? tools : [tools];
}

/**
 * Put the texts of runs that have ended into their messages.
 * @param {Message[]} messages @param {Find} find @returns {Message[] | null} null: nothing has changed
 */
export function fillAnswers(messages, find) {
  const ready = messages.map((message) => {
    const run = message.content === "" && !message.calls ? find(message.run ?? null) : null;
    if (!run || run.live || run.trace.text === "") return message;
    return run.calls?.length ? { ...message, content: run.textBeforeCalls ?? "", calls: run.calls } : { ...message, content: run.trace.text };
  });
  return ready.some((message, i) => message !== messages[i]) ? ready : null;
}

/**
 * @param {Message[]} messages @param {Run[]} runs @param {Run | null} run
 * @returns {number} the index of the answer that the run is a branch of; −1: none
 */
export function branchOf(messages, runs, run) {
  const answers = messages.map((message) => message.run ?? null);
  if (!run || answers.includes(run.id)) return -1;
  const from = lineage(runs, run).findLast(({ id }) => answers.includes(id));
  return from ? answers.lastIndexOf(from.id) : -1;
}

/**
 * The conversation with another answer at an index, without the messages after it.
 * @param {Message[]} messages @param {number} at @param {Run} run @returns {Message[]}
 */
export const replaceAnswer = (messages, at, run) =>
  [...messages.slice(0, at), { role: "assistant", content: run.trace.text, run: run.id }];

/** @type {Record<string, string>} how a text ended, in one or two words */
const ENDS = {
  end_token: "", stop_token: "stop token", stop_string: "stop string", max_tokens: "cut at max_tokens",
  context_full: "context full", constraint: "complete", scored: "scored", aborted: "stopped", error: "failed",
};

/** @param {Run} run @returns {string} empty where the model ended the text */
export function ending(run) {
  if (run.live) return "generating …";
  if (run.error) return "failed";
  return run.trace.end ? (ENDS[run.trace.end.reason] ?? run.trace.end.reason) : "stopped";
}
