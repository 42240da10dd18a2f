/**
 * A conversation as token ids: what the model's template writes between messages (text/chat_probe.py), and the messages,
 * in which nothing is a special token.
 */

/** @import { Tokenizer } from "./tokenizer.js" */

/**
 * What a template writes around messages.
 * between: by two roles, "user assistant"; the first message follows "start", after the last comes "end"
 * trimmed: roles whose contents lose the white space around them
 * thought_end: of the assistant's contents what follows the last of these marks is written; "": all
 * blank: characters that are then taken from its front; null: all white space around it
 * drops_empty: whether an empty system message counts as none
 * @typedef {{between: Record<string, string>, trimmed: string[], thought_end: string, blank: string | null,
 *   drops_empty: boolean}} ChatPieces
 * @typedef {{role: string, content: string}} Message
 */

/** White space of Python's str.strip, which is not JavaScript's. */
const AROUND = /^[\t-\r\x1c-\x20\x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]+|[\t-\r\x1c-\x20\x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]+$/g;

/**
 * @param {Message[]} messages @param {ChatPieces | null} pieces null: the model has none @param {Tokenizer} tokenizer
 * @returns {number[]} ready to be answered
 */
export function chatIds(messages, pieces, tokenizer) {
  if (!pieces) throw new Error("this page has no chat: its model has no template, or one that a page cannot write");
  const [first, ...rest] = messages, isNone = pieces.drops_empty && first?.role === "system" && first.content === "";
  return idsOf(isNone ? rest : messages, pieces, tokenizer);
}

/** @param {Message[]} messages @param {ChatPieces} pieces @param {Tokenizer} tokenizer @returns {number[]} */
function idsOf(messages, pieces, tokenizer) {
  const roles = ["start", ...messages.map(({ role }) => role), "end"];
  const joins = roles.slice(1).map((role, i) => {
    const text = pieces.between[`${roles[i]} ${role}`];
    if (text === undefined) throw new Error(`messages: this page cannot write a message of ${name(role)} after ${name(roles[i] ?? "")}`);
    return text;
  });
  const mark = unusedLetter([...joins, ...messages.map(({ content }) => content)].join(""));
  const contents = messages.map(({ role, content }) => writeContent(role, tokenizer.escape(content, mark), pieces));
  const text = joins.map((join, i) => join + (contents[i] ?? "")).join("");
  return tokenizer.encode(text, true, mark);
}

/** @param {string} role @param {string} content @param {ChatPieces} pieces @returns {string} as the template writes it */
function writeContent(role, content, { trimmed, thought_end: end, blank }) {
  const text = trimmed.includes(role) ? content.replace(AROUND, "") : content;
  if (role !== "assistant" || !end || !text.includes(end)) return text;
  const rest = text.slice(text.lastIndexOf(end) + end.length);
  return rest.replace(blank === null ? AROUND : new RegExp(`^[${blank}]+`), "");
}

/** @param {string} role */
const name = (role) => ({ start: "the beginning", end: "the model's answer" })[role] ?? `the role ${role}`;

/** @param {string} text @returns {string} a letter that does not occur in it */
function unusedLetter(text) {
  for (let code = 0x20000; ; code++) if (!text.includes(String.fromCodePoint(code))) return String.fromCodePoint(code);
}
