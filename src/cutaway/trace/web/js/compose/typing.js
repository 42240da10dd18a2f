/**
 * The tab "Type with the model": the model offers its next tokens, and you pick one or type a text of your own.
 *
 * The text so far is a run in which all tokens are forced but the last. Each pick starts another such run, which
 * replaces the one before; of several picks in a row only the latest request is kept.
 */

import { ApiError, tokenize } from "../state/api.js";
import { begun, requested } from "../state/requests.js";
import { button, el, replace, setText } from "../parts/dom.js";
import { hue, percent, visible } from "../figures/numbers.js";
import { Following } from "./following.js";
import { MOST_OFFERS, offers, openStep, picks } from "../figures/next-token.js";
import { sentence } from "../state/session.js";
import { View } from "../parts/view.js";
import { endedByToken, whySentence } from "../figures/endings.js";
/** @import { Run } from "../state/store.js" */
/** @import { Step } from "../state/trace.js" */
/** @import { Offer } from "../figures/next-token.js" */

class TypingBox extends View {
  field = el("textarea", { rows: 2, id: "typing-field", placeholder: "Once upon a time",
    oninput: () => this.store.set({ prompt: this.field.value }) });
  begin = button("Begin", () => this.want(this.field.value, []));
  prompt = document.createTextNode("");
  words = document.createTextNode("");
  continuation = document.createTextNode("");
  text = el("div", { class: "result", tabindex: 0, role: "region", "aria-label": "The text so far" },
    el("span", { class: "begun" }, this.prompt), this.words, el("span", { class: "caret" }),
    el("span", { class: "own" }, this.continuation));
  following = new Following(this.text);
  keys = Array.from({ length: MOST_OFFERS }, (_, i) =>
    el("button", { type: "button", class: "offer", onclick: () => this.pick(i) }));
  board = el("div", { class: "board", role: "group", "aria-label": "The model's next token" }, ...this.keys);
  ended = el("p", { class: "faint", role: "status" });
  other = el("input", { type: "text", "aria-label": "A text of your own", placeholder: "or a text of your own" });
  form = el("form", { class: "row own-text", onsubmit: (/** @type {Event} */ event) => this.add(event) },
    this.other, el("button", {}, "Add"));
  undo = button("Undo", () => this.takeBack());
  goOn = button("Let the model continue", () => this.letGo());
  typeOn = button("Keep typing from there", () => this.adopt());
  hint = el("p", { class: "faint" }, "1–8 pick a token, Backspace removes one. ",
    "Percentages are the model's own probabilities; ● is the token that would be drawn; a letter is the stage that removes a token.");
  /** @type {Run | null} requested, but without its tokens yet */
  pending = null;
  /** @type {Offer[]} */
  offered = [];
  /** @type {Step | null} the step whose tokens are offered */
  drawn = null;

  build() {
    document.addEventListener("keydown", (event) => this.pressed(event));
    replace(this, el("label", { for: "typing-field" }, "Text to begin with"), this.field,
      el("div", { class: "row" }, this.begin), this.text, this.board, this.ended, this.form,
      el("div", { class: "row" }, this.undo, this.goOn, this.typeOn), this.hint);
  }

  /** @returns {Run | null} the text so far */
  get run() {
    return this.store.find(this.store.state.typing);
  }

  /** @returns {Run | null} the selected run, if the model continues the text in it */
  get continued() {
    const { run } = this.store;
    return run && run.parent === this.store.state.typing && run.at === this.given.length ? run : null;
  }

  /** @returns {number[]} */
  get given() {
    return this.run ? picks(this.run) : [];
  }

  draw() {
    if (this.hidden) return;
    const { run, continued } = this;
    if (this.field.value !== this.store.state.prompt) this.field.value = this.store.state.prompt;
    setText(this.begin, run ? "Begin again" : "Begin");
    this.begin.classList.toggle("primary", !run);
    const step = run ? openStep(run) : null;
    const here = run !== null && run.trace.steps.length > 0;
    for (const part of [this.text, this.form, this.undo, this.goOn, this.hint]) part.hidden = !here;
    this.board.hidden = !step;
    this.typeOn.hidden = !continued || continued.live;
    this.undo.disabled = !this.given.length;
    this.goOn.disabled = !step;
    setText(this.goOn, continued?.live ? "Stop" : "Let the model continue");
    this.ended.textContent = here && !step && !run.live ? whySentence(run.trace) : "";
    if (here) this.drawText(run, continued);
    if (step && step !== this.drawn) this.drawOffers(run, step);
  }

  /** @param {Run} run @param {Run | null} continued */
  drawText(run, continued) {
    const { trace } = run;
    const [words, continuation] = [trace.textOf(this.given),
      continued ? continued.trace.textOf(continued.trace.outputIds.slice(this.given.length)) : ""];
    const prompt = trace.textOf(trace.head.prompt_token_ids);
    if (prompt !== this.prompt.data) this.prompt.data = prompt;
    if (words === this.words.data && continuation === this.continuation.data) return;
    this.words.data = words;
    this.continuation.data = continuation;
    this.following.follow();
  }

  /** @param {Run | null} run @param {Step} step */
  drawOffers(run, step) {
    this.drawn = step;
    this.offered = run ? offers(run, step) : [];
    this.keys.forEach((key, i) => {
      const offer = this.offered[i];
      key.hidden = !offer;
      if (offer) dress(key, i, offer);
    });
  }

  // -- actions ------------------------------------------------------------------------------------

  /** @param {KeyboardEvent} event */
  pressed(event) {
    if (this.hidden || !this.run || event.ctrlKey || event.metaKey || event.altKey) return;
    if (/** @type {Element} */ (event.target).closest?.("input, textarea, select, dialog")) return;
    if (event.key === "Backspace") this.takeBack();
    else if (this.offered[Number(event.key) - 1]) this.pick(Number(event.key) - 1);
    else return;
    event.preventDefault();
  }

  /** @param {number} i */
  pick(i) {
    const offer = this.offered[i];
    if (offer && this.run && openStep(this.run)) this.on([...this.given, offer.id]);
  }

  takeBack() {
    const latest = this.latest;
    if (latest.length) this.on(latest.slice(0, -1));
  }

  /** @returns {number[]} the picks, with those that are still requested */
  get latest() {
    return this.pending ? picks(this.pending) : this.given;
  }

  /** @param {Event} event */
  async add(event) {
    event.preventDefault();
    const text = this.other.value;
    if (!text) return;
    try {
      const { ids } = await tokenize(text, false);
      this.other.value = "";
      this.on([...this.latest, ...ids]);
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      this.store.set({ notice: sentence(error) });
    }
  }

  /** Take over what the model wrote, and pick on from there. */
  adopt() {
    if (!this.continued) return;
    const { trace } = this.continued;
    this.on(endedByToken(trace) ? trace.outputIds.slice(0, -1) : trace.outputIds);
  }

  letGo() {
    const { continued, run } = this;
    if (continued?.live) return this.session.stop(continued);
    if (!run) return undefined;
    const { given } = this;
    const request = this.request(run.request?.prompt ?? "", given);
    const most = Number(requested(this.store, {}).settings["max_tokens"]) || 0;
    request.settings["max_tokens"] = given.length + Math.max(most, 1);
    return begun(this.store, this.session, request, { parent: run.id, at: given.length, name: "typed, then continued" });
  }

  /** @param {number[]} given */
  on(given) {
    this.want(this.run?.request?.prompt ?? "", given);
  }

  /**
   * @param {string | number[]} prompt @param {number[]} given
   * @returns {import("../state/store.js").Request} for these tokens and one more, with the same seed
   */
  request(prompt, given) {
    const seed = this.store.state.seed.trim() || (given.length && this.run?.trace.known?.seed) || null;
    return requested(this.store, { prompt, forced: given, seed, settings: { max_tokens: given.length + 1 } });
  }

  /**
   * Request the token after these; an earlier request is cancelled.
   * @param {string | number[]} prompt @param {number[]} given
   */
  async want(prompt, given) {
    if (this.pending) this.session.stop(this.pending);
    const id = 1 + Math.max(0, ...this.store.state.runs.map((run) => run.id));
    const asked = begun(this.store, this.session, this.request(prompt, given), { name: "typed", id });
    const mine = this.store.find(id);
    this.pending = mine;
    const run = await asked;
    if (this.pending === mine) {
      this.pending = null;
      if (run) this.take(run);
    } else if (run) this.store.drop(run.id);
  }

  /** @param {Run} run replaces the one before */
  take(run) {
    const { runs, typing, other } = this.store.state;
    const inUse = runs.some((child) => child.parent === typing) || other === typing;
    if (typing !== null && !inUse) this.store.drop(typing);
    this.store.set({ typing: run.id, run: run.id, step: run.trace.steps.length - 1, candidate: 0,
      follow: false, whatIf: null });
  }
}

/** @param {HTMLElement} key @param {number} i @param {Offer} offer */
function dress(key, i, offer) {
  key.title = visible(offer.token); // a long one is cut
  key.style.setProperty("--share", `${100 * offer.probability}%`);
  replace(key, el("kbd", {}, i + 1), " ", el("span", { class: "token" }, visible(offer.token)),
    offer.ends && hidden("ends the text"),
    offer.letter && el("span", { class: "letter", title: `removed by ${offer.removedBy}`,
      style: { "--hue": hue(offer.letter) } }, offer.letter, hidden(`removed by ${offer.removedBy}`)),
    offer.drawn && el("span", { class: "mark", title: "would be drawn" }, "●", hidden("would be drawn")),
    " ", el("span", { class: "share mono" }, percent(offer.probability)));
}

/** @param {string} text @returns {HTMLElement} for screen readers */
const hidden = (text) => el("span", { class: "visually-hidden" }, ` ${text} `);

customElements.define("typing-box", TypingBox);
