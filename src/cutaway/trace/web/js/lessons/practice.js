/**
 * The lesson "Practice by hand": exercises on one step, each asked, answered, judged and explained.
 *
 * Does not know which answers are right: the server judges them, and sends a solution only after a right answer or
 * when asked to show it.
 */

import { ask } from "../state/api.js";
import { blockOf, tableOf } from "./blocks.js";
import { button, el, replace, setText } from "../parts/dom.js";
import { countFrom1 } from "../figures/numbers.js";
import { cellsOf, sign, startOf, summary } from "./practice-start.js";
import { sentence } from "../state/session.js";
import { stepOf } from "../state/inside-cache.js";
import { View } from "../parts/view.js";
/** @import { Cells, Start, Mark } from "./practice-start.js" */
/** @import { Block, Table } from "./blocks.js" */

/**
 * @typedef {{topic: string, question: string, given: Table, hint: string, kind: "numbers" | "token",
 *   labels?: string[], example?: string, names?: string[]}} Exercise
 * @typedef {{text: string, names: string[], seed: string, position: number, exercises: Exercise[],
 *   run: {step: number, left_out: number, chain: string, drawn: string} | null}} Sampling
 * @typedef {{text: string, introduction: string, exercises: Exercise[]}} Inside
 * @typedef {Sampling | Inside} Sheet
 * @typedef {{start?: Start | true | null, inside?: Record<string, any> | true, cells?: Cells | true, ways?: true}} Subject
 * @typedef {{right: boolean | null, remark: string, solution: string | null, arithmetic: Block[]}} Reply
 */

class PracticeLesson extends View {
  /** @type {Subject} what the exercises are about; {}: the sample */
  subject = {};
  /** @type {Sheet | null} */
  sheet = null;
  /** @type {{mark: Mark, reply: Reply}[]} by exercise: those that are done */
  done = [];
  at = 0;
  tries = 0;
  hasBegun = false;

  sample = button("The sample", () => this.begin({}));
  ownStep = button("", () => this.beginHere());
  inside = button("", () => this.beginInside());
  ways = button("Three ways to write", () => this.beginWays());
  cells = button("", () => this.begin({ cells: this.ownCells() ?? true }));
  intro = el("div");
  progress = el("ol", { class: "progress row", "aria-label": "The exercises" });
  exercise = el("div");
  remark = el("p", { class: "remark", role: "status" });
  worked = el("div", {});

  build() {
    const choice = el("div", { class: "row", role: "group", "aria-label": "Where to practise" },
      el("span", { class: "faint" }, "Practise on"), this.sample, this.ownStep, this.inside, this.cells, this.ways);
    replace(this, choice, this.intro, this.progress, this.exercise, this.remark, this.worked);
  }

  draw() {
    if (this.closest("[hidden]")) return;
    const { run, state } = this.store;
    const brought = state.about?.local?.practice;
    if (brought) return this.drawBrought(brought);
    const can = run && startOf(run.trace, state.step) !== null;
    this.ownStep.disabled = !can || !state.about;
    setText(this.ownStep, can ? `Step ${countFrom1(state.step)} of your run` : "A step of your own run");
    this.inside.disabled = !(run?.trace.steps[state.step] && state.about);
    setText(this.inside, this.inside.disabled ? "The inside of a step" : `The inside of step ${countFrom1(state.step)}`);
    const cells = this.ownCells();
    this.cells.disabled = this.ways.disabled = !state.about;
    setText(this.cells, cells ? `Cells of pass ${countFrom1(cells.made)}` : "Cells of a canvas");
    if (state.about && !this.hasBegun) this.begin({});
    if (!state.about && !this.hasBegun) replace(this.intro, "The exercises need a server.");
  }

  /** @param {string[]} brought what a page without a server has exercises on, of the model's own run */
  drawBrought(brought) {
    setText(this.ownStep, "A step of the model's");
    setText(this.inside, "The inside of that step");
    setText(this.cells, "Cells of a canvas");
    for (const name of /** @type {const} */ (["ownStep", "inside", "cells", "ways"])) {
      this[name].disabled = false;
      this[name].hidden = !brought.includes(name === "ownStep" ? "start" : name);
    }
    if (!this.hasBegun) this.begin({});
  }

  /** @returns {boolean} whether the exercises are made of the reader's own runs, which a server does */
  usesOwnRuns() {
    return !this.store.state.about?.local;
  }

  /** @returns {Cells | null} of the pass that is shown; null: it has no cells to choose among */
  ownCells() {
    const { run, state } = this.store;
    return run ? cellsOf(run.trace, state.pass ?? 0) : null;
  }

  beginHere() {
    const { run, state } = this.store;
    if (!this.usesOwnRuns()) this.begin({ start: true });
    else if (run) this.begin({ start: startOf(run.trace, state.step) });
  }

  beginWays() {
    if (this.usesOwnRuns()) this.say("The model generates in each of its ways …");
    this.begin({ ways: true });
  }

  beginInside() {
    const { run, state } = this.store;
    if (!this.usesOwnRuns()) return void this.begin({ inside: true });
    if (!run) return;
    this.say("The model computes the step again …");
    this.begin({ inside: stepOf(run.trace, state.step) });
  }

  /** @param {Subject} subject */
  async begin(subject) {
    const before = this.subject;
    this.hasBegun = true;
    this.subject = subject;
    this.hideSheet(true); // which is of the subject before
    const sheet = await this.fetchJson("", {});
    if (this.subject !== subject) return; // another step was selected meanwhile
    this.hideSheet(false);
    if (!sheet) {
      this.subject = before;
      return;
    }
    this.sheet = sheet;
    this.done = [];
    for (const [button, pressed] of /** @type {[HTMLElement, boolean][]} */ ([
      [this.sample, !Object.values(subject).some(Boolean)], [this.ownStep, subject.start],
      [this.inside, subject.inside], [this.cells, subject.cells], [this.ways, subject.ways],
    ])) button.setAttribute("aria-pressed", String(Boolean(pressed)));
    replace(this.intro, ...introduction(sheet));
    this.goTo(0);
  }

  /** @param {boolean} isHidden */
  hideSheet(isHidden) {
    for (const part of [this.intro, this.progress, this.exercise, this.worked]) part.hidden = isHidden;
  }

  /**
   * @param {string} path @param {Record<string, any>} more
   * @returns {Promise<any>} null where the server refuses, and the remark says why
   */
  async fetchJson(path, more) {
    try {
      return await (await ask(`/page/practice${path}`, { ...this.subject, ...more })).json();
    } catch (error) {
      this.say(sentence(error));
      return null;
    }
  }

  // -- one exercise -------------------------------------------------------------------------------

  /** @param {number} at */
  goTo(at) {
    const exercise = this.sheet?.exercises[at];
    if (!this.sheet || !exercise) return;
    this.at = at;
    this.tries = 0;
    this.say("");
    replace(this.worked);
    this.showProgress();
    replace(this.exercise,
      el("h2", { tabindex: -1 }, `${at + 1} of ${this.sheet.exercises.length} · ${exercise.topic}`),
      el("p", { class: "question" }, exercise.question), tableOf(exercise.given));
    const done = this.done[at];
    if (done) this.explain(done.reply);
    else this.exercise.append(this.form(exercise));
  }

  showProgress() {
    const buttons = this.sheet?.exercises.map(({ topic }, i) => {
      const mark = this.done[i]?.mark ?? null;
      return el("li", {}, el("button", { type: "button", class: mark?.split(" ")[0], title: topic,
        "aria-current": i === this.at && "step", onclick: () => this.goTo(i),
        "aria-label": `Exercise ${i + 1}, ${topic}: ${mark ?? "not answered"}` }, sign(mark, i)));
    });
    replace(this.progress, ...(buttons ?? []));
  }

  /** @param {Exercise} exercise @returns {HTMLElement} */
  form(exercise) {
    const hint = button("Hint", () => this.say(`Hint: ${exercise.hint}`));
    const reveal = button("Show me", () => this.reveal());
    if (exercise.kind === "token") {
      const tokens = exercise.names?.map((name, i) => button(name, () => this.answer(`#${i + 1}`), { class: "token" }));
      return el("div", {}, el("div", { class: "row answers", role: "group", "aria-label": "Which token" },
        ...(tokens ?? [])), el("p", { class: "row" }, hint, reveal));
    }
    const fields = exercise.labels?.map((label) =>
      el("label", {}, el("span", { class: "token" }, label),
        el("input", { type: "text", inputmode: "decimal", autocomplete: "off", placeholder: "0" })));
    return el("form", { onsubmit: (/** @type {Event} */ event) => this.handleSubmit(event) },
      el("div", { class: "row answers" }, ...(fields ?? [])),
      el("p", { class: "row" }, el("button", { class: "primary" }, "Check"), hint, reveal,
        el("span", { class: "faint" }, `for example ${exercise.example}`)));
  }

  /** @param {Event} event */
  handleSubmit(event) {
    event.preventDefault();
    const form = /** @type {HTMLFormElement} */ (event.currentTarget);
    const values = [...form.querySelectorAll("input")].map((field) => field.value.trim());
    // An empty field would shift the others, so it is sent as a dash, which is not a number.
    this.answer(values.map((value) => value.replaceAll(/\s/g, "") || "–").join(" "));
  }

  /**
   * @param {Record<string, any>} request an answer, or that it is asked for
   * @returns {Promise<Reply | null>} null also where another exercise, or other exercises, were opened meanwhile
   */
  async judge(request) {
    const { at, done } = this;
    const reply = await this.fetchJson("/answer", { index: at, ...request });
    return done === this.done && at === this.at && !done[at] ? reply : null;
  }

  /** @param {string} text */
  async answer(text) {
    const reply = await this.judge({ answer: text });
    if (!reply) return;
    if (reply.right) this.settle(this.tries ? "right at the second try" : "right", reply);
    else if (reply.right === null) this.say(reply.remark);
    else if (this.tries++) this.reveal(reply.remark);
    else this.say(`${reply.remark} Hint: ${this.sheet?.exercises[this.at]?.hint}`);
  }

  /** @param {string} [remark] */
  async reveal(remark = "") {
    const reply = await this.judge({ reveal: true });
    if (reply) this.settle("missed", { ...reply, remark });
  }

  /** @param {Mark} mark @param {Reply} reply */
  settle(mark, reply) {
    this.done[this.at] = { mark, reply };
    this.exercise.lastChild?.remove(); // the form
    this.showProgress();
    this.explain(reply);
    this.worked.querySelector("button")?.focus({ preventScroll: true });
  }

  /** @param {Reply} reply */
  explain(reply) {
    this.say([reply.remark, `The answer: ${reply.solution}`].filter(Boolean).join(" "));
    const last = this.at + 1 === this.sheet?.exercises.length;
    const on = last ? button("Show the result", () => this.finish()) : button("Next", () => this.next(), { class: "primary" });
    replace(this.worked, ...reply.arithmetic.map(blockOf), el("p", {}, on));
  }

  next() {
    this.goTo(this.at + 1);
    this.exercise.querySelector("h2")?.focus({ preventScroll: true });
  }

  async finish() {
    if (!this.sheet) return;
    const { done } = this;
    const compares = !("introduction" in this.sheet); // only sampling methods are compared
    const table = compares ? /** @type {Table | null} */ (await this.fetchJson("/comparison", {})) : null;
    if (done !== this.done || !table && compares) return;
    const marks = this.sheet.exercises.map((_, i) => done[i]?.mark ?? null);
    const run = this.store.run;
    const again = run && this.usesOwnRuns() && button(`The same for step ${countFrom1(this.store.state.step)} of your run`, () => this.beginHere(), { class: "primary" });
    replace(this.exercise, ...(table ? [el("h2", { tabindex: -1 }, "The result of each sampling method"), tableOf(table)] : []));
    replace(this.worked, el("p", {}, again));
    this.say(summary(marks));
  }

  /** @param {string} text */
  say(text) {
    replace(this.remark, text);
  }
}

/** @param {Sheet} sheet @returns {HTMLElement[]} the data that all exercises share */
function introduction(sheet) {
  if ("introduction" in sheet) {
    return [el("p", { class: "token text" }, `${sheet.text} …`), el("p", { class: "faint" }, sheet.introduction)];
  }
  const { run } = sheet;
  const place = run ? ` at step ${countFrom1(run.step)} of your run` : "";
  const leftOut = run ? ` All other tokens, with a total probability of ${run.left_out.toFixed(3)}, are left out.` : "";
  return [
    el("p", { class: "token text" }, `${sheet.text} …`),
    el("p", { class: "faint" }, `Which token comes next${place}? These are ${sheet.names.length} tokens with their `
      + `logits z.${leftOut} Every exercise has the same luck, that of seed ${sheet.seed} and position `
      + `${sheet.position}. Figures are rounded.`),
  ];
}

customElements.define("practice-lesson", PracticeLesson);
