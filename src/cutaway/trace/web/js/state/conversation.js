/**
 * A conversation: which run an answer comes from, and how a run's text becomes an answer.
 *
 * The functions return new lists of messages. Knows no document, no server and no store.
 */

import { lineage } from "../figures/branches.js";
/** @import { Message, Run } from "./store.js" */

/** @typedef {(id: number | null) => Run | null} Find */

/** @param {Message[]} messages @returns {Message[]} as the server takes them */
export const plain = (messages) => messages.map(({ role, content }) => ({ role, content }));

/** @param {Message[]} messages @returns {Message[]} up to the last question */
export const open = (messages) =>
  messages.slice(0, 1 + messages.findLastIndex((message) => message.role === "user"));

/** @param {Message} message @param {Find} find @returns {string} its text so far */
export function shown(message, find) {
  return message.content || (find(message.run ?? null)?.trace.text ?? "");
}

/**
 * Put the texts of runs that have ended into their messages.
 * @param {Message[]} messages @param {Find} find @returns {Message[] | null} null: nothing has changed
 */
export function settled(messages, find) {
  const ready = messages.map((message) => {
    const run = message.content === "" ? find(message.run ?? null) : null;
    return run && !run.live && run.trace.text !== "" ? { ...message, content: run.trace.text } : message;
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
export const answered = (messages, at, run) =>
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
