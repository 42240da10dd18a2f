/**
 * The tab "Type with the model": the model offers its next tokens, and you pick one or type a text of your own.
 *
 * The text so far is a run in which all tokens are forced but the last. Each pick starts another such run, which
 * replaces the one before; of several picks in a row only the latest request is kept.
 */

import { ApiError, tokenize } from "../state/api.js";
import { makeRequest, startRun } from "../state/requests.js";
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
  endNote = el("p", { class: "faint", role: "status" });
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
  offers = [];
  /** @type {Step | null} the step whose tokens are offered */
  offeredStep = null;

  build() {
    document.addEventListener("keydown", (event) => this.handleKey(event));
    replace(this, el("label", { for: "typing-field" }, "Text to begin with"), this.field,
      el("div", { class: "row" }, this.begin), this.text, this.board, this.endNote, this.form,
      el("div", { class: "row" }, this.undo, this.goOn, this.typeOn), this.hint);
  }

  /** @returns {Run | null} the text so far */
  get run() {
    return this.store.find(this.store.state.typing);
  }

  /** @returns {Run | null} the selected run, if the model continues the text in it */
  get continuedRun() {
    const { run } = this.store;
    return run && run.parent === this.store.state.typing && run.at === this.pickedIds.length ? run : null;
  }

  /** @returns {number[]} */
  get pickedIds() {
    return this.run ? picks(this.run) : [];
  }

  draw() {
    if (this.hidden) return;
    const { run, continuedRun } = this;
    if (this.field.value !== this.store.state.prompt) this.field.value = this.store.state.prompt;
    setText(this.begin, run ? "Begin again" : "Begin");
    this.begin.classList.toggle("primary", !run);
    this.begin.disabled = this.store.state.loading;
    const step = run ? openStep(run) : null;
    const here = run !== null && run.trace.steps.length > 0;
    for (const part of [this.text, this.form, this.undo, this.goOn, this.hint]) part.hidden = !here;
    this.board.hidden = !step;
    this.typeOn.hidden = !continuedRun || continuedRun.live;
    this.undo.disabled = !this.pickedIds.length;
    this.goOn.disabled = !step;
    setText(this.goOn, continuedRun?.live ? "Stop" : "Let the model continue");
    this.endNote.textContent = here && !step && !run.live ? whySentence(run.trace) : "";
    if (here) this.drawText(run, continuedRun);
    if (step && step !== this.offeredStep) this.drawOffers(run, step);
  }

  /** @param {Run} run @param {Run | null} continuedRun */
  drawText(run, continuedRun) {
    const { trace } = run;
    const [words, continuation] = [trace.textOf(this.pickedIds),
      continuedRun ? continuedRun.trace.textOf(continuedRun.trace.outputIds.slice(this.pickedIds.length)) : ""];
    const prompt = trace.textOf(trace.head.prompt_token_ids);
    if (prompt !== this.prompt.data) this.prompt.data = prompt;
    if (words === this.words.data && continuation === this.continuation.data) return;
    this.words.data = words;
    this.continuation.data = continuation;
    this.following.follow();
  }

  /** @param {Run | null} run @param {Step} step */
  drawOffers(run, step) {
    this.offeredStep = step;
    this.offers = run ? offers(run, step) : [];
    this.keys.forEach((key, i) => {
      const offer = this.offers[i];
      key.hidden = !offer;
      if (offer) dress(key, i, offer);
    });
  }

  // -- actions ------------------------------------------------------------------------------------

  /** @param {KeyboardEvent} event */
  handleKey(event) {
    if (this.hidden || !this.run || event.ctrlKey || event.metaKey || event.altKey) return;
    if (/** @type {Element} */ (event.target).closest?.("input, textarea, select, dialog")) return;
    if (event.key === "Backspace") this.takeBack();
    else if (this.offers[Number(event.key) - 1]) this.pick(Number(event.key) - 1);
    else return;
    event.preventDefault();
  }

  /** @param {number} i */
  pick(i) {
    const offer = this.offers[i];
    if (offer && this.run && openStep(this.run)) this.wantNext([...this.pickedIds, offer.id]);
  }

  takeBack() {
    const latest = this.latest;
    if (latest.length) this.wantNext(latest.slice(0, -1));
  }

  /** @returns {number[]} the picks, with those that are still requested */
  get latest() {
    return this.pending ? picks(this.pending) : this.pickedIds;
  }

  /** @param {Event} event */
  async add(event) {
    event.preventDefault();
    const text = this.other.value;
    if (!text) return;
    try {
      const { ids } = await tokenize(text, false);
      this.other.value = "";
      this.wantNext([...this.latest, ...ids]);
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      this.store.set({ notice: sentence(error) });
    }
  }

  /** Take over what the model wrote, and pick on from there. */
  adopt() {
    if (!this.continuedRun) return;
    const { trace } = this.continuedRun;
    this.wantNext(endedByToken(trace) ? trace.outputIds.slice(0, -1) : trace.outputIds);
  }

  letGo() {
    const { continuedRun, run } = this;
    if (continuedRun?.live) return this.session.stop(continuedRun);
    if (!run) return undefined;
    const { pickedIds } = this;
    const request = this.request(run.request?.prompt ?? "", pickedIds);
    const maxTokens = Number(makeRequest(this.store, {}).settings["max_tokens"]) || 0;
    request.settings["max_tokens"] = pickedIds.length + Math.max(maxTokens, 1);
    return startRun(this.store, this.session, request, { parent: run.id, at: pickedIds.length, name: "typed, then continued" });
  }

  /** @param {number[]} ids */
  wantNext(ids) {
    this.want(this.run?.request?.prompt ?? "", ids);
  }

  /**
   * @param {string | number[]} prompt @param {number[]} ids
   * @returns {import("../state/store.js").Request} for these tokens and one more, with the same seed
   */
  request(prompt, ids) {
    const seed = this.store.state.seed.trim() || (ids.length && this.run?.trace.known?.seed) || null;
    return makeRequest(this.store, { prompt, forced: ids, seed, settings: { max_tokens: ids.length + 1 } });
  }

  /**
   * Request the token after these; an earlier request is cancelled.
   * @param {string | number[]} prompt @param {number[]} ids
   */
  async want(prompt, ids) {
    if (this.pending) this.session.stop(this.pending);
    const id = this.store.freshId;
    const answer = startRun(this.store, this.session, this.request(prompt, ids), { name: "typed", id });
    const ownRun = this.store.find(id);
    this.pending = ownRun;
    const run = await answer;
    if (this.pending === ownRun) {
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
