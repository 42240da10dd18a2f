/**
 * A conversation: whose turn it is, which run an answer comes from, and what becomes of it.
 *
 * Every function returns a new list of messages. Knows no document, no server and no store.
 */

/** @import { Message, Run } from "./store.js" */

/** @typedef {(id: number | null) => Run | null} Find */

/** @param {Message[]} messages @returns {Message[]} as a server takes them */
export const plain = (messages) => messages.map(({ role, content }) => ({ role, content }));

/** @param {Message[]} messages @returns {Message[]} up to the last question, which is to be answered */
export const open = (messages) =>
  messages.slice(0, 1 + messages.findLastIndex((message) => message.role === "user"));

/** @param {Message} message @param {Find} find @returns {string} while it is written, so far */
export function shown(message, find) {
  return message.content || (find(message.run ?? null)?.trace.text ?? "");
}

/**
 * The text of a run that has ended becomes its message's.
 * @param {Message[]} messages @param {Find} find @returns {Message[] | null} null: nothing changes
 */
export function settled(messages, find) {
  const ready = messages.map((message) => {
    const run = message.content === "" ? find(message.run ?? null) : null;
    return run && !run.live && run.trace.text !== "" ? { ...message, content: run.trace.text } : message;
  });
  return ready.some((message, i) => message !== messages[i]) ? ready : null;
}

/**
 * @param {Message[]} messages @param {Run | null} run @param {Find} find
 * @returns {number} which answer the run is another branch of; −1: of none
 */
export function branchOf(messages, run, find) {
  const answers = messages.map((message) => message.run ?? null);
  if (!run || answers.includes(run.id)) return -1;
  const seen = new Set(); // an address may say anything
  for (let at = find(run.parent); at && !seen.has(at.id); at = find(at.parent)) {
    if (answers.includes(at.id)) return answers.lastIndexOf(at.id);
    seen.add(at.id);
  }
  return -1;
}

/**
 * The conversation with another answer at a place; what was said after the old one is gone.
 * @param {Message[]} messages @param {number} at @param {Run} run @returns {Message[]}
 */
export const answered = (messages, at, run) =>
  [...messages.slice(0, at), { role: "assistant", content: run.trace.text, run: run.id }];

/** @param {Run} run @param {Find} find @returns {Run} what it was forked from, and that, … */
export function root(run, find) {
  const seen = new Set([run.id]);
  let at = run;
  for (let up = find(at.parent); up && !seen.has(up.id); up = find(up.parent)) {
    seen.add(up.id);
    at = up;
  }
  return at;
}

/** How a text ended, in few words. */
/** @type {Record<string, string>} */
const ENDS = {
  end_token: "", stop_token: "stop token", stop_string: "stop string", max_tokens: "cut at max_tokens",
  context_full: "context full", constraint: "complete", scored: "scored", aborted: "stopped", error: "failed",
};

/** @param {Run} run @returns {string} empty where it ended by itself */
export function ending(run) {
  if (run.live) return "writing …";
  if (run.error) return "failed";
  return run.trace.end ? (ENDS[run.trace.end.reason] ?? run.trace.end.reason) : "stopped";
}
