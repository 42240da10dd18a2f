/**
 * Exercises without a server: as Python made them at the export (features/practice/page_exercises.py), with what judges an answer.
 *
 * Knows how an answer is read and compared (features/practice/__init__.py); makes no exercise and no sentence.
 */

/**
 * @typedef {{right: string, wrong: string, some: string, unreadable: string, unread: string, row?: number,
 *   values?: number[], slack: number, percent: number | null, is_share: boolean}} Judge
 * row: the right token's; else values: the right figures, each with this slack. The texts are remarks
 * @typedef {{told: {exercises: {labels?: string[], names?: string[]}[]}, comparison?: object,
 *   answers: {judge: Judge, solution: object}[]}} Sheet
 * @typedef {{index?: number, answer?: string, reveal?: boolean} & Record<string, unknown>} Body as the page sends it
 */

const NUMBER = /^[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?$/i;

/**
 * Answer as the server does.
 * @param {Record<string, Sheet>} sheets by the name of what is practised @param {string} path @param {Body} body
 * @returns {object | undefined}
 */
export function answerPractice(sheets, path, body) {
  const sheet = sheets[Object.keys(body).find((name) => body[name] && name in sheets) ?? "sample"];
  if (path.endsWith("/comparison")) return sheet?.comparison;
  if (!path.endsWith("/answer")) return sheet?.told;
  const exercise = sheet?.told.exercises[body.index ?? -1], entry = sheet?.answers[body.index ?? -1];
  if (!exercise || !entry) throw new Error(`there is no exercise ${body.index}`);
  const verdict = body.answer === undefined ? { right: null, remark: "" } : judgeAnswer(entry.judge, body.answer, exercise.labels ?? exercise.names ?? []);
  return { ...verdict, ...(verdict.right || body.reveal ? entry.solution : { solution: null, arithmetic: [] }) };
}

/**
 * @param {Judge} judge @param {string} answer @param {string[]} labels of figures, or the tokens
 * @returns {{right: boolean | null, remark: string}} right: null where it cannot be read
 */
export function judgeAnswer(judge, answer, labels) {
  const near = judge.values ? figures(judge, answer)?.map((figure, i) => Math.abs(figure - (judge.values?.[i] ?? NaN)) <= judge.slack)
    : token(judge, answer, labels.length);
  if (!near) return { right: null, remark: fillIn(judge.unreadable, judge) };
  if (near.every(Boolean)) return { right: true, remark: judge.right };
  if (!near.some(Boolean)) return { right: false, remark: judge.wrong };
  const wrong = labels.filter((_, i) => !near[i]).join(", ");
  return { right: false, remark: fillIn(judge.some, { right: near.filter(Boolean).length, all: near.length, labels: wrong }) };
}

/** @param {Judge} judge @param {string} answer "#2": the second @param {number} count @returns {boolean[] | null} */
function token(judge, answer, count) {
  const row = Number(/^#([1-9]\d?)$/.exec(answer)?.[1]) - 1;
  return row < count ? [row === judge.row] : null;
}

/** @param {Judge} judge @param {string} answer @returns {number[] | null} null where it cannot be read */
function figures({ values, percent, is_share: isShare }, answer) {
  const signed = answer.replaceAll("−", "-").replace(/\s+%/g, "%");
  const plain = signed.includes(".") ? signed : signed.replace(/(?<=\d),(?=\d)/g, "."); // a decimal comma
  const bare = plain.split(/[\s,;]+/).filter((word) => word !== "" && word !== "bits").map((word) => word.replace(/%$/, ""));
  if (bare.length !== values?.length || !bare.every((word) => NUMBER.test(word))) return null;
  const numbers = bare.map(Number), inPercent = plain.includes("%") || (isShare && Math.max(...numbers) > 1);
  if (inPercent && percent === null) return null;
  return inPercent ? numbers.map((figure) => figure * (percent ?? 1)) : numbers;
}

/** @param {string} sentence @param {Record<string, unknown>} by what stands in its braces @returns {string} */
const fillIn = (sentence, by) => sentence.replace(/\{(\w+)\}/g, (_, name) => String(by[name]));
