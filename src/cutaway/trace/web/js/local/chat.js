/**
 * A conversation as token ids: what the model's template writes between messages (text/chat_pieces.py), and the messages,
 * in which nothing is a special token.
 */

/** @import { ByteLevelBPE } from "./bpe.js" */

/**
 * between: by two roles, "user assistant"; the first message follows "start", after the last comes "end"
 * trimmed: roles whose contents lose the white space around them
 * @typedef {{between: Record<string, string>, trimmed: string[]}} ChatPieces
 * @typedef {{role: string, content: string}} Message
 */

/** White space of Python's str.strip, which is not JavaScript's. */
const AROUND = /^[\t-\r\x1c-\x20\x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]+|[\t-\r\x1c-\x20\x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]+$/g;

/**
 * @param {Message[]} messages @param {ChatPieces | null} pieces null: the model has none @param {ByteLevelBPE} tokenizer
 * @returns {number[]} ready to be answered
 */
export function chatIds(messages, pieces, tokenizer) {
  if (!pieces) throw new Error("this page has no chat: its model has no template, or one that a page cannot write");
  const contents = messages.map(({ role, content }) => (pieces.trimmed.includes(role) ? content.replace(AROUND, "") : content));
  const roles = ["start", ...messages.map(({ role }) => role), "end"];
  const joins = roles.slice(1).map((role, i) => {
    const text = pieces.between[`${roles[i]} ${role}`];
    if (text === undefined) throw new Error(`messages: this page cannot write a message of ${name(role)} after ${name(roles[i] ?? "")}`);
    return text;
  });
  const mark = unused([...joins, ...contents].join(""));
  const text = joins.map((join, i) => join + tokenizer.escape(contents[i] ?? "", mark)).join("");
  return tokenizer.encode(text, true, mark);
}

/** @param {string} role */
const name = (role) => ({ start: "the beginning", end: "the model's answer" })[role] ?? `the role ${role}`;

/** @param {string} text @returns {string} a letter that it has not */
function unused(text) {
  for (let code = 0x20000; ; code++) if (!text.includes(String.fromCodePoint(code))) return String.fromCodePoint(code);
}
