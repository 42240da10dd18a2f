/**
 * The tab Chat: the messages so far, and a field for the next one.
 *
 * Every answer is a run; the request of the next answer contains the whole conversation.
 */

import { makeRequest, startRun } from "../state/requests.js";
import { button, el, replace, setText } from "../parts/dom.js";
import { QUESTIONS, exampleButtons } from "./examples.js";
import { Following } from "./following.js";
import { branchOf, callText, ending, fillAnswers, messageText, open, openCalls, plain, replaceAnswer } from "../state/conversation.js";
import { resultForm, toolSettings } from "./tools.js";
import { View } from "../parts/view.js";
/** @import { Message, Run } from "../state/store.js" */

/** @typedef {{item: HTMLElement, words: Text, calls: HTMLElement, status: HTMLElement, role: string, run: number | null}} Line */

class ChatBox extends View {
  list = el("ol", {});
  box = el("div", { class: "talk", tabindex: 0, role: "log", "aria-label": "The conversation" }, this.list);
  field = el("textarea", { rows: 3, placeholder: "Write a message; Enter sends it", "aria-label": "Your message",
    oninput: () => this.store.set({ draft: this.field.value }),
    onkeydown: (/** @type {KeyboardEvent} */ event) => this.handleKey(event) });
  send = button("Send", () => this.sendOrStop(), { class: "primary" });
  again = button("Another answer", () => this.answer(open(this.messages), null));
  adopt = button("", () => this.useBranch());
  clear = button("Clear", () => this.clearAll());
  examples = exampleButtons(QUESTIONS, ({ prompt, seed }) =>
    this.answer([{ role: "user", content: prompt }], this.store.state.seed.trim() || seed));
  tools = /** @type {View} */ (document.createElement("tools-field"));
  results = el("div");
  /** @type {string} the call whose result is asked for */
  asking = "";
  following = new Following(this.box);
  /** @type {Line[]} by message */
  lines = [];

  build() {
    this.list.addEventListener("click", (event) => this.handleClick(event));
    this.tools.attach(this.store, this.session);
    replace(this, this.box, this.results, this.field,
      el("div", { class: "row" }, this.send, this.again, this.clear), this.adopt,
      this.examples, this.tools);
  }

  get messages() {
    return this.store.state.messages;
  }

  /** @returns {Run | null} the answer that is being generated */
  get live() {
    const run = this.find(this.messages.at(-1)?.run ?? null);
    return run?.live ? run : null;
  }

  find = (/** @type {number | null} */ id) => this.store.find(id);

  draw() {
    const ready = fillAnswers(this.messages, this.find);
    if (ready) this.store.set({ messages: ready });
    if (this.hidden) return;
    this.drawLines();
    this.drawResults();
    this.drawButtons();
    if (this.field.value !== this.store.state.draft) this.field.value = this.store.state.draft;
  }

  drawButtons() {
    const { live } = this;
    this.send.textContent = live ? "Stop" : "Send";
    this.send.disabled = this.store.state.loading;
    this.again.hidden = live !== null || !open(this.messages).length;
    this.clear.hidden = !this.messages.length;
    this.examples.hidden = this.messages.length > 0 || !this.store.state.about;
    const at = live ? -1 : branchOf(this.messages, this.store.state.runs, this.store.run);
    this.adopt.hidden = at < 0 || this.store.run?.live === true;
    this.adopt.textContent = at === this.messages.length - 1 ? "Use this branch as the answer"
      : "Use this branch as the answer, and remove the messages after it";
  }

  /** Ask for the result of the first call that has none. */
  drawResults() {
    const [call] = this.live ? [] : openCalls(this.messages);
    if (this.asking === (call?.id ?? "")) return;
    this.asking = call?.id ?? "";
    replace(this.results, call && resultForm(call, (result) => this.giveResult(call.id, result)));
  }

  /** @param {string} id @param {string} content go on once every call has its result */
  giveResult(id, content) {
    const messages = [...this.messages, { role: "tool", content, result: id }];
    this.store.set({ messages });
    if (!openCalls(messages).length) this.answer(messages);
  }

  // -- messages -----------------------------------------------------------------------------------

  drawLines() {
    const { messages } = this;
    let changed = this.lines.length !== messages.length;
    for (const line of this.lines.splice(messages.length)) line.item.remove();
    messages.forEach((message, i) => {
      if (this.drawLine(this.lineOf(message, i), message)) changed = true;
    });
    this.box.hidden = !messages.length;
    this.box.setAttribute("aria-busy", String(this.live !== null));
    if (changed) this.following.follow();
  }

  /** @param {Message} message @param {number} i @returns {Line} created where there is none */
  lineOf(message, i) {
    const old = this.lines[i];
    if (old?.role === message.role) return old;
    const line = createLine(message);
    if (old) old.item.replaceWith(line.item);
    else this.list.append(line.item);
    this.lines[i] = line;
    return line;
  }

  /** @param {Line} line @param {Message} message @returns {boolean} whether its text has changed */
  drawLine(line, message) {
    line.run = message.run ?? null;
    const run = this.find(line.run);
    const current = run !== null && run.id === this.store.state.run;
    if (current) line.item.setAttribute("aria-current", "true");
    else line.item.removeAttribute("aria-current");
    const status = run ? [`run ${run.id}`, ending(run)].filter(Boolean).join(" · ") : "";
    if (line.status.textContent !== status) line.status.textContent = status;
    setText(line.calls, (message.calls ?? run?.calls ?? []).map(callText).join("\n"));
    const text = messageText(message, this.find);
    if (line.words.data === text) return false;
    line.words.data = text;
    return true;
  }

  /** @param {Event} event select the run of the clicked answer, unless text was being selected */
  handleClick(event) {
    const item = /** @type {Element} */ (event.target).closest("li");
    const run = this.lines.find((line) => line.item === item)?.run ?? null;
    if (run !== null && this.find(run) && getSelection()?.isCollapsed !== false) this.store.select(run);
  }

  // -- actions ------------------------------------------------------------------------------------

  /** @param {KeyboardEvent} event */
  handleKey(event) {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    if (!this.live && !this.send.disabled) this.sendOrStop();
  }

  sendOrStop() {
    const { live } = this;
    if (live) return this.session.stop(live);
    const content = this.field.value.trim();
    if (!content) return this.field.focus();
    const before = this.messages;
    this.store.set({ draft: "" });
    return this.answer([...before, { role: "user", content }], undefined, () =>
      this.store.set({ messages: before, draft: this.store.state.draft || content }));
  }

  /**
   * Request an answer.
   * @param {Message[]} conversation the conversation, which ends with a question
   * @param {string | null} [seed] instead of the field's; null: a new one
   * @param {() => void} [takeBack] called where the request is refused
   */
  async answer(conversation, seed, takeBack = () => this.store.set({ messages: conversation })) {
    const settings = this.readTools(conversation);
    if (!settings) return takeBack();
    const request = makeRequest(this.store, { kind: "chat", messages: plain(conversation), settings,
      ...(seed === undefined ? {} : { seed }) });
    const run = startRun(this.store, this.session, request, { name: conversation.at(-1)?.content.slice(0, 40) ?? "" });
    const pending = { role: "assistant", content: "", run: this.store.state.run };
    this.store.set({ messages: [...conversation, pending] });
    this.following.toEnd();
    if (!await run) takeBack();
  }

  /** @param {Message[]} conversation @returns {Record<string, any> | null} null: the tools are no JSON, as their field says */
  readTools(conversation) {
    try {
      return toolSettings(this.store.state, conversation.at(-1)?.role === "user");
    } catch (error) {
      if (error instanceof SyntaxError) return null;
      throw error;
    }
  }

  useBranch() {
    const { run } = this.store;
    const at = branchOf(this.messages, this.store.state.runs, run);
    if (run && at >= 0) this.store.set({ messages: replaceAnswer(this.messages, at, run) });
  }

  clearAll() {
    if (this.live) this.session.stop(this.live);
    this.store.set({ messages: [] });
    this.field.focus();
  }
}

/** @type {Record<string, string>} */
const ROLE_NAMES = { user: "You", tool: "Result of the call" };

/** @param {Message} message @returns {Line} */
function createLine(message) {
  const words = document.createTextNode("");
  const calls = el("div", { class: "calls mono" });
  const status = el("span", { class: "faint" });
  const answer = message.role === "assistant";
  const speaker = answer
    ? button("Model", () => {}, { class: "look", title: "Inspect this answer" })
    : el("span", {}, ROLE_NAMES[message.role] ?? message.role);
  const item = el("li", { class: `said ${answer ? "answer" : "question"}` },
    el("div", { class: "who" }, speaker, status), el("div", { class: "words" }, words), calls);
  return { item, words, calls, status, role: message.role, run: null };
}

customElements.define("chat-box", ChatBox);
