/**
 * What a picture of a step says: the text with its surprise, the step's river, why its token won, and from what the same
 * text comes again. Knows what follows from the record. Knows no document.
 */

import { bits, countFrom1, surpriseColour, thousands } from "./numbers.js";
import { riverOf, riverSentence } from "./river.js";
/** @import { River } from "./river.js" */
/** @import { Trace, Step } from "../state/trace.js" */

const LONGEST = 200; // characters of a prompt in the picture

/**
 * colour   of its surprise; null: a prompt, whose surprise is not recorded
 * @typedef {{text: string, colour: string | null, isChosen: boolean}} Piece
 * @typedef {{pieces: Piece[], river: River, sentence: string, imprint: string}} Card
 */

/** @param {Trace} trace @param {Step} step @returns {Card} */
export function cardOf(trace, step) {
  const { head, steps } = trace;
  const prompt = trace.textOf(head.prompt_token_ids);
  const words = head.prompt !== null && prompt.length <= LONGEST ? prompt.match(/\s*\S+|\s+$/g) ?? [] : [];
  return {
    pieces: [...words.map((text) => ({ text, colour: null, isChosen: false })), ...steps.map((item) => ({
      text: trace.nameOf(item.token_id), colour: surpriseColour(bits(item.logprob)), isChosen: item === step }))],
    river: riverOf(trace, step),
    sentence: riverSentence(riverOf(trace, step)),
    imprint: [head.model, `seed ${head.seed}`, `step ${thousands(countFrom1(step.index))} of ${thousands(steps.length)}`,
      `fingerprint ${trace.end?.fingerprint ?? step.fingerprint}`, "cutaway"].join(" · "),
  };
}
